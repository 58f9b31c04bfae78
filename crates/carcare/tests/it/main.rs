//! Tests of the driving feedback with real engines.

mod feedback;
