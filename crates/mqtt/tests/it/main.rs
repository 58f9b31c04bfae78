//! Sessions on virtual networks: seeded cuts, acknowledgements in any order, and a judge of what the client received.

mod client;
mod session;
mod simulation;
