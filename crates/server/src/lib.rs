//! The server around the transports: configuration, health, metrics, pages, and threads from start to drain.
//!
//! It decides nothing about delivery. Read first: [`Config`], [`run`].

pub mod config;
mod pages;
mod run;

pub use config::{Config, Sources};
pub use run::{Running, run, start};
