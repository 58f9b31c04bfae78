//! Joins, leaves, moves, pauses and kills on a virtual clock. When all is quiet, each list is exactly right.
//!
//! `MILLRACE_SIM_SEED=N` runs one seed; `MILLRACE_SIM_SEEDS=N` runs `N` seeds.

use std::env;

use crate::world::{Breakage, World};

/// Duration of a run with actions, and of the quiet time after it: a lease, a check, and the second pass of a removal.
const BUSY_MS: u64 = 40_000;
const QUIET_MS: u64 = 45_000;
const STEP_MS: u64 = 50;

fn run(seed: u64, breakage: Breakage) -> Result<(), String> {
    let mut world = World::new(seed, breakage);
    let end_ms = world.ms + BUSY_MS;
    while world.ms < end_ms {
        if world.percent(15.0) {
            world.act();
        }
        if world.readers.len() < 5 && world.percent(1.0) {
            world.add_reader();
        }
        world.step(STEP_MS);
    }
    world.is_quiet = true;
    let end_ms = world.ms + QUIET_MS;
    while world.ms < end_ms {
        world.step(STEP_MS);
    }
    world.check().map_err(|fault| format!("seed {seed}: {fault}"))
}

/// Returns the faults of these seeds. Two threads run them; each ends at its first fault.
fn run_all(seeds: u64, breakage: Breakage) -> Vec<String> {
    let run_some = |first: u64| (first..seeds).step_by(2).find_map(|seed| run(seed, breakage).err());
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|first| scope.spawn(move || run_some(first)));
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: expected a number")))
}

#[test]
fn rosters_are_right_once_quiet() {
    if let Some(seed) = number("MILLRACE_SIM_SEED") {
        run(seed, Breakage::None).expect("no fault");
        return;
    }
    let faults = run_all(number("MILLRACE_SIM_SEEDS").unwrap_or(500), Breakage::None);
    assert!(faults.is_empty(), "{faults:#?}\nreplay: MILLRACE_SIM_SEED=N cargo test -p millrace-presence");
}

#[test]
#[ignore = "some minutes; `make test` runs a part of it"]
fn ten_thousand_seeds() {
    let faults = run_all(number("MILLRACE_SIM_SEEDS").unwrap_or(10_000), Breakage::None);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn simulation_finds_built_in_defects() {
    for breakage in [Breakage::NoCondition, Breakage::NoCleanup, Breakage::NoRetry] {
        assert!(!run_all(200, breakage).is_empty(), "{breakage:?}");
    }
}
