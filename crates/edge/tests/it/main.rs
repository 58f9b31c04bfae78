//! The shipped files equal the generated ones, and the wire side is tested against a server that fails on command.

mod post;
mod script;
mod shipped;
mod subscription;
