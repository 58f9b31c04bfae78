//! Metrics of the process, with the names that Prometheus recommends.
//!
//! Source: Prometheus, "Writing client libraries", "Process metrics".

use millrace_node::MetricKind;
use rustix::{
    process::{Resource, getrlimit},
    time::{ClockId, clock_gettime},
};

use crate::{memory, metrics::Exposition};

/// Appends the metrics of the process. The number of open descriptors is not among them, because the kernel lists all
/// of them for it; `millrace_sockets_open` is close to it.
pub fn render(out: &mut Exposition) {
    let version = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
    let help = "Always 1; the label is the version of the server.";
    out.family("millrace_build_info", MetricKind::Gauge, help, version);
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_s = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    out.value("process_cpu_seconds_total", MetricKind::Counter, "CPU time of the process.", cpu_s);
    if let Some(bytes) = memory::resident() {
        out.value("process_resident_memory_bytes", MetricKind::Gauge, "Resident memory of the process.", bytes);
    }
    if let Some(max) = getrlimit(Resource::Nofile).current {
        out.value("process_max_fds", MetricKind::Gauge, "Maximum number of open file descriptors.", max);
    }
}
