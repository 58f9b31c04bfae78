//! Tests of whole links on a virtual clock.

mod bottleneck;
mod contract;
mod nat;
mod stream;
mod support;
