//! Prints one table of all attacks to the terminal.

use std::sync::Once;

use crate::process::print_line;

/// Names of the phases, in order.
pub const PHASES: [&str; 3] = ["before", "during", "after"];

pub struct Row {
    pub name: &'static str,
    pub done: u64,
    pub lasted_s: f64,
    /// 99th percentile of honest delivery latency in milliseconds, by phase.
    pub p99_ms: [f64; 3],
    pub deliveries: u64,
    /// Memory of the server in MiB, by phase. The value for "during" is the maximum.
    pub memory_mb: [f64; 3],
    /// Memory in MiB that the server reports in its metrics at the end of the attack.
    pub told_mb: f64,
    pub bound_mb: u64,
    /// Longest response time of `/healthz` in milliseconds.
    pub health_ms: f64,
}

impl Row {
    pub fn print(&self) {
        static HEAD: Once = Once::new();
        HEAD.call_once(|| {
            print_line(&format!(
                "  {:<34} {:>9} {:>6}  {:^24}  {:>10}  {:^24} {:>6} {:>6}  {:>8}",
                "attack",
                "times",
                "s",
                "honest p99, ms",
                "deliveries",
                "server's memory, MiB",
                "told",
                "bound",
                "health"
            ));
            let phases = PHASES.map(|phase| format!("{phase:>8}")).concat();
            print_line(&format!(
                "  {:<34} {:>9} {:>6}  {phases}  {:>10}  {phases} {:>6} {:>6}  {:>8}",
                "", "", "", "", "", "", "ms"
            ));
        });
        let cells = |values: [f64; 3]| values.map(|value| format!("{value:>8.1}")).concat();
        print_line(&format!(
            "  {:<34} {:>9} {:>6.1}  {}  {:>10}  {} {:>6.1} {:>6}  {:>8.1}",
            self.name,
            self.done,
            self.lasted_s,
            cells(self.p99_ms),
            self.deliveries,
            cells(self.memory_mb),
            self.told_mb,
            self.bound_mb,
            self.health_ms
        ));
    }
}
