//! The client is tested against a server that fails on command.

mod script;
mod subscription;
