//! The binary as its users meet it: real processes, real sockets, and the documents that promise what they do.

mod acme;
mod balancer;
mod cli;
mod docs;
mod flood;
mod gateway;
mod hygiene;
mod lab;
mod memory;
#[path = "../ports/mod.rs"]
mod ports;
mod quiet;
mod readme;
mod restart;
mod serving;
mod support;
mod talking;
mod tls;
mod token;
mod turn;
