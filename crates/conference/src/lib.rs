//! Rooms and their media, upon the public interface of `millrace-transport`.
//!
//! - [`rooms`]: the rooms API: participants, signals and reports, and the state that rooms publish
//! - [`media`]: hosting of the SFU and of the mixers; publishers and viewers over WHIP and WHEP
//! - [`cluster`]: rooms over several nodes
//! - [`turn`]: hosting of the TURN server, and `POST /v1/turn`
//!
//! The state machines are elsewhere (`millrace-room`, `millrace-sfu`, `millrace-turn`). This crate gives them sockets,
//! threads and routes. It never decides about delivery, and it knows no client connection other than those of media.
//!
//! Read first: [`Conference`], [`ConferenceRoutes`], [`rooms::Rooms`].

pub mod cluster;
mod conference;
pub mod media;
pub mod rooms;
mod routes;
pub mod turn;

pub use conference::{Conference, Question};
pub use rooms::Config as RoomsConfig;
pub use routes::{ConferenceRoutes, endpoints};
