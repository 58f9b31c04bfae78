//! Shared code of the scenarios `lozano-*`: calls in virtual time, their figures, and their tables.
//!
//! - [`choice`]: parameters that all of them have
//! - [`network`]: nodes and emulated links in virtual time
//! - [`calls`]: calls of two participants over such a network
//! - [`tcp`]: TCP flows beside the calls
//! - [`figures`]: rate, delay and loss of one stream
//! - [`study`]: runs all cells of a scenario with all controllers, and makes the tables
//! - [`published`]: figures of the thesis

pub mod calls;
pub mod choice;
pub mod figures;
pub mod network;
pub mod published;
pub mod study;
pub mod tables;
pub mod tcp;
