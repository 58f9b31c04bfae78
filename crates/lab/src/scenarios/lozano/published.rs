//! Rates that the thesis published, as the means of its machines: its own means of them contain slips (E-L1, E-L4,
//! E-L10).

use super::figures::mean;

/// Tables of the thesis, as in `crates/lab/data`.
pub const LATENCY: &str = include_str!("../../../data/lozano_t02_latency.csv");
pub const LOSS: &str = include_str!("../../../data/lozano_t03_loss.csv");
pub const LOSS_AND_LATENCY: &str = include_str!("../../../data/lozano_t04_loss_and_latency.csv");
pub const QUEUES: [&str; 3] = [
    include_str!("../../../data/lozano_t05_queue_500kbit.csv"),
    include_str!("../../../data/lozano_t06_queue_1mbit.csv"),
    include_str!("../../../data/lozano_t07_queue_5mbit.csv"),
];
pub const TCP: &str = include_str!("../../../data/lozano_t09_tcp_cross_traffic.csv");
pub const TWO_CALLS: &str = include_str!("../../../data/lozano_t10_two_parallel_calls.csv");
pub const THREE_CALLS: &str = include_str!("../../../data/lozano_t11_three_parallel_calls.csv");
pub const THREE_SHIFTED_CALLS: &str = include_str!("../../../data/lozano_t12_three_shifted_calls.csv");
pub const MESH: &str = include_str!("../../../data/lozano_t13_mesh_three_peers.csv");
pub const UNIT: &str = include_str!("../../../data/lozano_t14_switching_mcu_three_peers.csv");

/// Returns the mean rate of the machines in kbit/s, for the rows whose columns have these values. `None`: the thesis
/// has no such row.
pub fn rate_kbit_s(csv: &str, wanted: &[(&str, &str)]) -> Option<f64> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<&str>>());
    let head = lines.next()?;
    let place = |name: &str| head.iter().position(|column| *column == name);
    let (machine, rate) = (place("machine")?, place("rate_kbit_s")?);
    let is_wanted = |row: &Vec<&str>| {
        row[machine] != "overall"
            && wanted.iter().all(|(column, value)| place(column).is_some_and(|at| row[at] == *value))
    };
    let rates: Vec<f64> = lines.filter(is_wanted).filter_map(|row| row[rate].parse().ok()).collect();
    mean(&rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_those_of_the_machines() {
        for (csv, wanted, expected) in [
            (LOSS, ("configured_loss_percent", "1"), Some(1896.915)),
            (LOSS_AND_LATENCY, ("path_latency_ms", "50"), Some(55.34)),
            (QUEUES[2], ("queue_ms", "100"), Some(1971.075)),
            (LATENCY, ("path_latency_ms", "75"), None),
            (LATENCY, ("no_column", "75"), None),
        ] {
            let rate = rate_kbit_s(csv, &[wanted]);
            assert_eq!(rate.map(|rate| (rate * 1000.0).round()), expected.map(|rate| (rate * 1000.0_f64).round()));
        }
        assert!(rate_kbit_s(MESH, &[]).is_some_and(|rate| (rate - 362.88).abs() < 0.1));
    }
}
