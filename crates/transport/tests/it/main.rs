//! docs/reference/protocol.md, tested against a real server over real sockets: every promise on every transport, and
//! the reaction to bad input.

mod access;
mod added_routes;
mod admission;
mod amplification;
mod bad_frames;
mod bad_input;
mod balance;
mod client;
mod compression;
mod congestion;
mod contract;
mod data_channels;
mod devices;
mod drain;
mod drip;
mod half_close;
mod hooks;
mod http;
mod keep_alive;
mod layers;
mod life;
mod limits;
mod many;
mod measured;
mod openapi;
mod own_keys;
mod ranges;
mod roster;
mod server;
mod session;
mod state;
mod switching;
mod tls;
mod traces;
mod webhooks;
