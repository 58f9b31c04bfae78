//! Prints the results of a run as tables.

use std::time::Instant;

use crate::{
    client::{Client, ClientKind},
    process::print_line,
};

/// Prints one row per transport.
pub fn table(clients: &[Client]) {
    print_line(&format!(
        "  {:<18} {:>7} {:>10} {:>10} {:>5} {:>15}",
        "transport", "clients", "deliveries", "reconnects", "gaps", "longest silence"
    ));
    for kind in ClientKind::ALL {
        let of = || clients.iter().filter(|client| client.kind == kind);
        if of().next().is_none() {
            continue;
        }
        let sum = |pick: fn(&Client) -> u64| of().map(pick).sum::<u64>();
        let silence = of().map(|client| client.seen.borrow().silence).max().unwrap_or_default();
        print_line(&format!(
            "  {:<18} {:>7} {:>10} {:>10} {:>5} {:>13.1} s",
            kind.name(),
            of().count(),
            sum(|client| client.seen.borrow().messages),
            sum(|client| client.seen.borrow().reconnects),
            sum(|client| client.seen.borrow().gaps),
            silence.as_secs_f64(),
        ));
    }
}

/// Returns the median and the 99th percentile of the delivery latency of one transport between two moments, in
/// milliseconds.
pub fn ages(clients: &[Client], kind: ClientKind, from: Instant, to: Instant) -> (u32, u32) {
    let mut ages: Vec<u32> = Vec::new();
    for client in clients.iter().filter(|client| client.kind == kind) {
        let seen = client.seen.borrow();
        ages.extend(seen.ages.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, age)| age));
    }
    (quantile(&mut ages, 0.5), quantile(&mut ages, 0.99))
}

/// Returns the quantile by nearest rank, or 0 for an empty list.
fn quantile(values: &mut [u32], q: f64) -> u32 {
    values.sort_unstable();
    let rank = (values.len() as f64 * q).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}
