//! The shipped files equal the generated ones. The publisher is tested against a server that fails on command, and the
//! kit Earl with faults of its hardware.

mod earl;
mod earl_serial;
mod publisher;
#[path = "../../../client/tests/it/script.rs"]
#[expect(dead_code, reason = "the tests of the client use all of its steps")]
mod script;
mod shipped;
