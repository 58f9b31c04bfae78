//! One planned run of a sweep.

use std::sync::Arc;

use super::Parameters;
use crate::{
    recording::{Factors, Run},
    targets::{Target, Transport},
};

/// Estimated seconds to start and end a server, and to wait for the last deliveries.
const AROUND_S: f64 = 1.0;

/// A planned run.
#[derive(Clone)]
pub struct Job {
    pub part: String,
    pub parameters: Arc<Parameters>,
    /// Target name as requested, with its label.
    pub name: String,
    pub target: &'static dyn Target,
    pub transport: Transport,
    pub factors: Factors,
    pub repeat: u32,
}

impl Job {
    pub fn estimate_s(&self) -> f64 {
        let (p, plan) = (&self.parameters, self.parameters.plan(&self.factors));
        let connections = (plan.clients + plan.streams() + 2) as f64;
        AROUND_S + connections / plan.ramp_per_s + (p.idle + p.test + p.after).as_secs_f64()
    }

    /// Returns an empty run with the identity of this job.
    pub fn run(&self) -> Run {
        Run {
            part: self.part.clone(),
            target: self.name.clone(),
            transport: self.transport.name().into(),
            load: self.parameters.load(&self.factors),
            factors: self.factors,
            repeat: self.repeat,
            ..Run::default()
        }
    }

    pub fn label(&self) -> String {
        let part = if self.part.is_empty() { String::new() } else { format!("{} ", self.part) };
        let f = &self.factors;
        let cpus =
            if self.parameters.server_cpus.len() > 1 { format!(", {} CPUs", f.server_cpus) } else { String::new() };
        format!(
            "{part}{} {}, {} clients x {}/s x {} B{cpus}, repeat {}",
            self.name,
            self.transport,
            f.clients,
            f.each_per_s,
            f.bytes,
            self.repeat + 1
        )
    }
}
