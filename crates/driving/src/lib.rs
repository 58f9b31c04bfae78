//! Driving feedback, diagnostics and geofences from the records of cars.
//!
//! [`Car`] reads the records of one car in order and returns events ([`Event`]), drives with a score ([`Drive`]), and
//! advice in words. The same records always give the same events, so a service can repeat records after a restart.
//! This crate never does I/O and never reads a clock: the time is an input.
//!
//! Read first: [`Car`], [`Sample`], [`Thresholds`], [`Event`].
//!
//! Source: docs/explanation/driving-feedback.md.

mod advice;
mod car;
mod detect;
mod drive;
mod event;
mod gate;
mod geofence;
mod motion;
mod place;
mod sample;
mod thresholds;
pub mod trouble;

pub use car::{Car, Observed};
pub use drive::{Drive, Score};
pub use event::{Event, Kind, Severity};
pub use geofence::{Area, Geofence, GeofenceError};
pub use place::Place;
pub use sample::{Sample, SampleError};
pub use thresholds::{Thresholds, VehicleClass};
