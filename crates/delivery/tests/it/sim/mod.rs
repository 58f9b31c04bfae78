//! Simulates a server that fails around a hub that must not fail. Everything runs on a virtual clock and from one seed.
//!
//! A world has an engine with short histories and a mailbox that delays and loses entries. Its sockets accept a few
//! bytes at a time and block. Its clients use every encoding and both policies. They are cut at any byte and resume
//! from their position, often in another encoding. In some worlds the total size of all logs is limited to almost
//! nothing. The server restarts and the engine loses its data.
//!
//! Some channels are keyed states: keys are deleted, expire, and are published under conditions whose outcome the truth
//! predicts. Some clients read the state; they resume inside it, after it, or from its beginning. At the end of a state
//! the map that a client has built must be the true one, and a state may begin anew only if history has lost something.
//!
//! Each client parses its bytes as a real client does, and checks what it receives. With `every`, it must receive each
//! offset once and in order, or an explicit gap that names its position and no publication that the history still
//! holds. With `latest`, offsets must rise, and only publications that a newer one of the same key has superseded may
//! be missing. At the end all faults stop, and every client must be at the top of every channel that it reads. When all
//! clients have disconnected, no state may remain.
//!
//! `MILLRACE_SIM_SEED=N` replays one seed with a trace; `MILLRACE_SIM_SEEDS=N` runs `N` seeds.

mod client;
mod clients;
mod counts;
mod dice;
mod event;
mod publish;
mod reading;
mod request;
mod server;
mod truth;
mod view;
mod wires;
mod world;

use std::{env, panic, thread};

use counts::{Breakage, Counts};
use truth::Check;
use world::World;

fn run(seed: u64, breakage: Breakage, trace: bool) -> (Check, Counts) {
    let mut world = World::new(seed, breakage, trace);
    let ran = panic::catch_unwind(panic::AssertUnwindSafe(|| world.run()));
    let panicked = |cause: Box<dyn std::any::Any + Send>| {
        let text = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a word")))
    };
    (ran.unwrap_or_else(panicked), world.counts)
}

/// Runs the seeds on two threads. Each thread ends at its first failure.
fn run_all(seeds: u64) -> (Vec<(u64, String)>, Counts) {
    let half = |first: u64| {
        let mut sum = Counts::default();
        for seed in (first..seeds).step_by(2) {
            let (checked, counts) = run(seed, Breakage::None, false);
            sum.add(&counts);
            if let Err(why) = checked {
                return (Some((seed, why)), sum);
            }
        }
        (None, sum)
    };
    let (even, odd) = thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        (half(0), odd.join().expect("panics are caught inside"))
    });
    let mut sum = even.1;
    sum.add(&odd.1);
    (even.0.into_iter().chain(odd.0).collect(), sum)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn ten_thousand_seeds() {
    if let Some(seed) = number("MILLRACE_SIM_SEED") {
        let (checked, mut counts) = run(seed, Breakage::None, true);
        for (name, count) in counts.all() {
            eprintln!("{count:>7} {name}");
        }
        checked.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        return;
    }
    let seeds = number("MILLRACE_SIM_SEEDS").unwrap_or(10_000);
    let (failures, mut counts) = run_all(seeds);
    for (seed, why) in &failures {
        println!("seed {seed}: {why:.600}");
        println!("replay: MILLRACE_SIM_SEED={seed} cargo test -p millrace-delivery --test it sim");
    }
    let counted: Vec<_> = counts.all().into_iter().map(|(name, count)| (name, *count)).collect();
    println!("{seeds} seeds: {counted:?}");
    assert!(failures.is_empty(), "{failures:?}");
    for (name, count) in counted {
        assert_eq!(count > 0, name != "broken", "{name}: {count}");
    }
}

/// Checks the simulation itself: most runs that a defect affects must detect it. A run may miss the defect if the
/// affected client is cut before it notices.
#[test]
fn deliberate_defects_are_detected() {
    for (breakage, least_percent) in [
        (Breakage::DroppedBytes, 90),
        (Breakage::PageWithHole, 90),
        (Breakage::SilentGap, 80),
        (Breakage::LostWake, 30),
        (Breakage::LostDeletion, 60),
    ] {
        let (mut broken, mut noticed) = (0, 0);
        for seed in 0..300 {
            let (checked, counts) = run(seed, breakage, false);
            broken += u64::from(counts.broken > 0);
            noticed += u64::from(counts.broken > 0 && checked.is_err());
            assert!(counts.broken > 0 || checked.is_ok(), "{breakage:?} seed {seed}: {checked:?}");
        }
        println!("{breakage:?}: {noticed} of {broken} broken runs were noticed");
        assert!(broken > 20 && noticed * 100 >= broken * least_percent, "{breakage:?}: {noticed} of {broken}");
    }
}
