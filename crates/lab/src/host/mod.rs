//! The measuring machine: its resource use during a run, whether it was fit to measure, what it is, and its limits.
//!
//! Linux only. Data comes from `/proc`, `/sys` and one system call. No program is started, so monitoring costs almost
//! nothing.

mod cgroup;
pub mod doctor;
pub mod limits;
pub mod machine;
pub mod proc;
pub mod process;
pub mod provenance;
pub mod sampler;
pub mod scheduling;
pub mod series;
pub mod validity;

pub use {
    machine::MachineSample,
    process::{Cpu, TreeSample},
    sampler::{Root, Sampler, Settings},
    series::{Sample, Series},
};
