//! Tests of the detectors against simulated cars, whose labels say what their drivers really did.

mod truth;
