//! Tables of the distribution of the delay, and of rates, CPU and memory over time.

use serde_json::json;

use super::{
    call::{SERVER, name_of},
    conditions::Cell,
    tables::{Call, SHORT_KEYS, of_cell, or_null, rounded, short_key, stream_name},
};
use crate::{
    recording::Table,
    scenarios::lozano::{
        figures::Pooled,
        tables::{shares, table},
    },
};

pub fn tables(cells: &[Cell], calls: &[Call]) -> Vec<Table> {
    vec![distribution(cells, calls), time(cells, calls), host(cells, calls)]
}

fn distribution(cells: &[Cell], calls: &[Call]) -> Table {
    let mut rows = Vec::new();
    for (n, cell) in cells.iter().enumerate() {
        let streams = of_cell(calls, n).flat_map(|call| &call.streams);
        let pooled = Pooled::of(streams.map(|stream| &stream.figures));
        rows.extend(shares(&pooled.delay).into_iter().map(|(upper_ms, share)| {
            let mut row = short_key(cell);
            row.extend([json!(upper_ms), rounded(share, 6)]);
            row
        }));
    }
    let columns = [&SHORT_KEYS[..], &[("delay up to", "ms"), ("share", "")]].concat();
    let notes =
        vec!["One-way delay of all video packets in bins of 10 ms. Bins without packets are left out.".to_owned()];
    table("browsers-delay", "Distribution of the one-way delay", &columns, rows, notes)
}

fn time(cells: &[Cell], calls: &[Call]) -> Table {
    let own = [
        ("stream", ""),
        ("second", "s"),
        ("recorder", "kbit/s"),
        ("getStats", "kbit/s"),
        ("delay", "ms"),
        ("RTT", "ms"),
    ];
    let mut rows = Vec::new();
    for call in calls.iter().filter(|call| call.repeat == 0) {
        let first = call.streams.iter().map(|stream| stream.first_second).min().unwrap_or_default();
        for stream in &call.streams {
            for (second, rate) in stream.figures.rates.iter().enumerate() {
                let at = |values: &[f64]| values.get(second).copied();
                let mut row = short_key(&cells[call.cell]);
                let since = stream.first_second.saturating_sub(first) + second;
                row.extend([json!(stream_name(stream)), json!(since), rounded(*rate, 1)]);
                row.push(or_null(at(&stream.statistics_rates), 1));
                row.push(or_null(stream.figures.delays.get(second).copied().flatten(), 2));
                row.push(or_null(at(&stream.figures.rtts), 2));
                rows.push(row);
            }
        }
    }
    let notes = vec![
        "The first repeat. recorder: RTP with heads, in the bins of its clock. getStats: payload between two readings, which are up to a second away from these bins; the thesis's recorders had the same shift.".to_owned(),
    ];
    table("browsers-time", "Rate over time", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}

fn host(cells: &[Cell], calls: &[Call]) -> Table {
    let own = [("second", "s"), ("machine", "%"), ("process", ""), ("CPU", "%"), ("memory", "MB")];
    let mut rows = Vec::new();
    for call in calls.iter().filter(|call| call.repeat == 0) {
        for second in &call.host {
            for (n, (cpu, memory)) in second.trees.iter().enumerate() {
                let is_server = n + 1 == second.trees.len();
                let process = if is_server { SERVER.to_owned() } else { name_of(n) };
                let mut row = short_key(&cells[call.cell]);
                row.extend([rounded(second.at_s, 1), rounded(second.machine_percent, 1), json!(process)]);
                row.extend([rounded(*cpu, 1), or_null(*memory, 1)]);
                rows.push(row);
            }
        }
    }
    let notes = vec![
        "The first repeat, once per second. machine: busy time of all cores. CPU: 100 x busy time / time, in percent of one core; the script of the thesis prints a tenth of this value (E-L29). memory: proportional set size of all processes of a browser.".to_owned(),
    ];
    table("browsers-host", "CPU and memory over time", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}
