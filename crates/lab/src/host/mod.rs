//! The machine that measures: what it uses meanwhile, whether it was fit to measure, what it is, and what limits it.
//!
//! Linux only, from `/proc` and `/sys` and one system call: no program is started, so that watching costs next to nothing.

mod cgroup;
pub mod doctor;
pub mod limits;
pub mod machine;
pub mod proc;
pub mod process;
pub mod provenance;
pub mod sampler;
pub mod series;
pub mod validity;

pub use {
    machine::MachineSample,
    process::{Cpu, TreeSample},
    sampler::{Root, Sampler, Settings},
    series::{Sample, Series},
};
