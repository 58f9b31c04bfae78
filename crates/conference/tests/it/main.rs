//! Tests docs/reference/rooms.md and the parts "Rooms" and "Media" of docs/reference/protocol.md against a real
//! server.

mod composite;
mod media;
mod rooms;
mod seats;
#[path = "../../../transport/tests/it/server.rs"]
#[allow(dead_code, reason = "shared with the tests of millrace-transport, which use all of it")]
mod server;
