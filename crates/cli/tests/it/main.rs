//! Tests the binary as users run it: with real processes and sockets. Also checks the claims of the documents.

mod acme;
mod admin;
mod balancer;
mod cli;
mod cycles;
mod docs;
mod earl;
mod files;
mod flood;
mod gateway;
mod hygiene;
mod keyed_states;
mod lab;
mod lab_page;
mod link_page;
mod lists;
mod memory;
mod metrics;
mod monitoring;
mod mqtt;
#[path = "../ports/mod.rs"]
mod ports;
mod quiet;
mod readme;
mod requests;
mod restart;
mod serving;
mod store_and_forward;
mod support;
mod talking;
mod tls;
mod token;
mod turn;
mod upgrade;
mod upgrade_failures;
mod upgrade_sockets;
