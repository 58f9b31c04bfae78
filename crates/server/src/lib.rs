//! The server around the transports: configuration, authentication, health, metrics, web pages, and threads from start
//! to drain.
//!
//! Message delivery is not part of this crate. Read first: [`Config`], [`run`].

mod admin;
mod agent;
pub mod auth;
pub mod config;
mod devices;
pub mod hooks;
pub mod lab;
mod lists;
pub mod log;
mod memory;
mod metrics;
pub mod openapi;
mod pages;
mod process;
pub mod push;
mod reload;
mod run;
mod secure;
mod setting;
pub mod tls;
pub mod traces;
pub mod turn;
pub mod upgrade;
pub mod webhooks;

pub use config::{Config, Sources};
pub use reload::{Reload, SetLogLevel};
pub use run::{Running, check, run, start};
