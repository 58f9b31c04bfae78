//! Tables of calls beside TCP, and of parallel calls.

use millrace_link::Direction;

use super::{
    conditions::{Cell, Choice},
    tables::{Call, SHORT_KEYS, of_cell, or_null, short_key},
};
use crate::{
    recording::Table,
    scenarios::lozano::{figures::mean, tables::table},
    stats::fairness::jain,
};

/// Seconds after the start of TCP flows that do not count: slow start.
const SLOW_START_S: usize = 2;
/// Seconds at the end over which fairness is measured.
const FAIR_S: usize = 15;

pub fn tables(choice: &Choice, cells: &[Cell], calls: &[Call]) -> Vec<Table> {
    let mut all = Vec::new();
    if cells.iter().any(|cell| cell.flows > 0) {
        all.push(tcp(choice, cells, calls));
    }
    if cells.iter().any(|cell| cell.calls > 1) {
        all.push(parallel(cells, calls));
    }
    all
}

fn tcp(choice: &Choice, cells: &[Cell], calls: &[Call]) -> Table {
    let start = choice.tcp_start.as_secs() as usize;
    let mut rows = Vec::new();
    for (n, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.flows > 0) {
        let streams = || of_cell(calls, n).flat_map(|call| &call.streams).map(|stream| &stream.figures);
        let between = |from: usize, to: usize| {
            mean(
                &streams().map(|figures| figures.rate_between(from, to.min(figures.rates.len()))).collect::<Vec<f64>>(),
            )
        };
        let (before, beside) = (between(0, start), between(start + SLOW_START_S, usize::MAX));
        let flows = |wanted: Direction| {
            let those = of_cell(calls, n).flat_map(|call| &call.flows).filter(|(direction, _)| *direction == wanted);
            mean(&those.filter_map(|(_, rates)| mean(rates.get(SLOW_START_S..)?)).collect::<Vec<f64>>())
        };
        let (up, down) = (flows(Direction::Up), flows(Direction::Down));
        let mut row = short_key(cell);
        row.extend([or_null(before, 1), or_null(beside, 1), or_null(up, 1), or_null(down, 1)]);
        row.push(or_null(beside.zip(up).map(|(call, flow)| call / flow), 2));
        row.push(or_null(beside.zip(cell.capacity_kbit_s).map(|(call, fair)| call / fair), 2));
        rows.push(row);
    }
    let own = [
        ("call before", "kbit/s"),
        ("call beside TCP", "kbit/s"),
        ("TCP up", "kbit/s"),
        ("TCP down", "kbit/s"),
        ("call / TCP up", ""),
        ("call / fair share", ""),
    ];
    let notes = vec![format!(
        "TCP of this kernel with CUBIC, between each participant and this machine, in both directions, from second {start} on. beside TCP: {SLOW_START_S} s later. TCP up and down: payload of one flow; the call has RTP."
    )];
    table("browsers-tcp", "Shares of call and TCP", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}

fn parallel(cells: &[Cell], calls: &[Call]) -> Table {
    let mut rows = Vec::new();
    for (n, cell) in cells.iter().enumerate().filter(|(_, cell)| cell.calls > 1) {
        // The calls compete per direction: the last seconds of all streams from one participant.
        let mut shares: Vec<Vec<f64>> = Vec::new();
        for call in of_cell(calls, n) {
            for from in 0..cell.browsers.len() {
                let streams = call.streams.iter().filter(|stream| stream.from == from);
                let last = |rates: &[f64]| mean(&rates[rates.len().saturating_sub(FAIR_S)..]).unwrap_or_default();
                shares.push(streams.map(|stream| last(&stream.figures.rates)).collect());
            }
        }
        let all: Vec<f64> = shares.iter().flatten().copied().collect();
        let indexes: Vec<f64> = shares.iter().filter_map(|shares| jain(shares)).collect();
        // The first call, before and after the others have started.
        let firsts = || of_cell(calls, n).flat_map(|call| &call.streams).filter(|stream| stream.call == 0);
        let alone = cell.offset.as_secs() as usize;
        let before: Vec<f64> =
            firsts().filter(|_| alone > 0).map(|stream| stream.figures.rate_between(0, alone)).collect();
        let lowest = firsts().flat_map(|stream| stream.figures.rates.get(alone..).unwrap_or_default());
        let mut row = short_key(cell);
        row.extend([or_null(mean(&all), 1), or_null(all.iter().copied().reduce(f64::min), 1)]);
        row.extend([or_null(mean(&indexes), 3), or_null(mean(&before), 1)]);
        row.push(or_null(lowest.copied().reduce(f64::min).filter(|_| alone > 0), 1));
        row.push(or_null(mean(&all).zip(cell.capacity_kbit_s).map(|(rate, fair)| rate / fair), 2));
        rows.push(row);
    }
    let own = [
        ("stream", "kbit/s"),
        ("lowest stream", "kbit/s"),
        ("Jain's index", ""),
        ("first call alone", "kbit/s"),
        ("its lowest second later", "kbit/s"),
        ("stream / fair share", ""),
    ];
    let notes = vec![format!(
        "stream to Jain's index: the last {FAIR_S} s, in which all calls run. The index compares the streams of one direction, and is the mean of both. The calls of the thesis had 640x480; its rates rise with the number of calls (E-L19)."
    )];
    table("browsers-parallel", "Parallel calls", &[&SHORT_KEYS[..], &own].concat(), rows, notes)
}
