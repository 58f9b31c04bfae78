//! Spans of publications: sent to an OpenTelemetry collector by OTLP over HTTP (protobuf).
//!
//! The shards put spans into a bounded queue and never wait. A thread of its own sends them in batches. A span that
//! finds the queue full is dropped and counted. This crate never sees a payload, and calls no URL that is not
//! configured.
//!
//! Read first: [`Exporter`], [`Config`].

mod exporter;
mod http_client;
mod span_data;

pub use exporter::{Config, Exporter, StartError};
