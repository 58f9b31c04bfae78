//! What is shipped equals what is grown, and the wire side against a server that fails on command.

mod post;
mod script;
mod shipped;
mod subscription;
