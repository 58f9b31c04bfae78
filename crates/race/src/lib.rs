//! Lanes of the race page: one listener per transport, each a proxy to this server through an emulated link of its own.
//! A request cuts, delays or throttles one lane.
//!
//! Each lane is an origin of its own, because a browser opens at most six HTTP/1.1 connections per origin. The lanes
//! open at the first use, and run on a thread of their own. This crate makes no delivery decision, and reads nothing
//! of what passes a lane.
//!
//! Read first: [`Race`], [`Impairment`], [`RaceRoutes`]. Source: docs/reference/race.md.

mod config;
mod connection;
mod datagrams;
mod lane;
mod pump;
mod race;
mod routes;
mod unit;

pub use config::{Config, Mode};
pub use lane::{Impairment, Lane};
pub use race::{Control, Opening, Race, Target, run};
pub use routes::{ENDPOINTS, RaceRoutes};
