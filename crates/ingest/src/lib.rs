//! Positions and readings of phones, trackers and OBD-II adapters, in the formats of their own apps.
//!
//! Each sender has a decoder that turns its bytes into [`Report`]s, with the units of the device record. A [`Filter`]
//! decides for each report whether it is live, late, a duplicate, or nothing that a reader should see. Live records are
//! published to `cars/{device}/telemetry`, late ones to `cars/{device}/late`.
//!
//! This crate never reads a clock: the time is an input. It never publishes past the admission of `transport`.
//!
//! - [`format`]: the decoders of the apps
//! - [`obd`]: the decoder of OBD-II adapters
//! - [`filter`]: late points, duplicates, jumps, wrong clocks
//! - [`Ingest`], [`IngestRoutes`], [`Nmea`], `mqtt.rs`: where the decoders meet the server
//!
//! Read first: [`Reading`], [`Filter`], [`IngestRoutes`]. Source: docs/reference/device-record.md.

mod config;
mod credential;
mod deliver;
mod device;
mod error;
pub mod filter;
pub mod format;
mod metrics;
mod mqtt;
mod nmea_port;
pub mod obd;
mod reading;
mod routes;
mod text;
mod time;

pub use config::{Config, Mode};
pub use deliver::{Ingest, Summary};
pub use device::{DeviceId, DeviceIdError};
pub use error::DecodeError;
pub use filter::Filter;
pub use metrics::{Metrics, PointResult, RequestResult};
pub use nmea_port::Nmea;
pub use reading::{Reading, Report};
pub use routes::{ENDPOINTS, IngestRoutes};
