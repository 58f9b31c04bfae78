//! The shipped files equal the generated ones, and the publisher is tested against a server that fails on command.

mod publisher;
#[path = "../../../client/tests/it/script.rs"]
#[expect(dead_code, reason = "the tests of the client use all of its steps")]
mod script;
mod shipped;
