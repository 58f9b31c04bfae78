//! What the figures of runs are worth. Pure: no I/O, no clock, and chance only from a seed.
//!
//! The run is the unit of replication, not the message: messages of one run wait in the same queues, so a million of them are no million
//! observations. What is given to the tests here is one value per run, such as its p99.

pub mod fairness;
pub mod usl;
