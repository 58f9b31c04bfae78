//! Properties of every link: every packet is counted, the order is kept, the same seed gives the same result, and the
//! times do not depend on how often the link is polled.

use std::time::Duration;

use millrace_link::{Cause, Config, Counters, Direction, Link, Time, Traces, profiles};
use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng, SeedableRng},
};

use crate::support::{Numbered, drain, link, poll};

/// Configurations beside the profiles, as in a file of the lab.
const MORE: &[&str] = &[
    "",
    r#"up = { delay = "20ms", jitter = "20ms", reorder = true, duplicate = "10%", corrupt = "5%" }"#,
    r#"up = { rate = "1Mbit/s", queue = "5 packets", delay = "3ms", jitter = "1ms", distribution = "normal" }"#,
    r#"up = { rate = "300kbit/s", codel = {}, loss = "2%", jitter = "30ms", distribution = "pareto" }"#,
    r#"up = { gilbert_elliott = { a = "1%", r = "30%", e_g = "0.1%", e_b = "60%", step = "5ms" } }
       radio = { promotion = "2s", active_for = "100ms", middle = { lasts = "1s", promotion = "1s", bytes_max = 300 } }
       outage = { at = "1s", for = "200ms", every = "3s" }"#,
];

fn configs() -> impl Iterator<Item = (String, Config)> {
    let named = profiles().iter().map(|(name, profile)| (name.clone(), profile.config.clone()));
    named.chain(MORE.iter().map(|text| ((*text).to_owned(), toml::from_str(text).expect("a configuration"))))
}

/// Arrivals of a source that sends bursts: time and size.
fn arrivals(seed: u64) -> Vec<(Time, usize)> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut now = Time::ZERO;
    (0..3000)
        .map(|_| {
            let bits = random.next_u64();
            let gap_us = if bits % 8 == 0 { bits >> 40 & 0xffff } else { bits >> 40 & 0xff };
            now = now + Duration::from_micros(gap_us);
            (now, 40 + (bits >> 20 & 0x3ff) as usize)
        })
        .collect()
}

/// Sends all arrivals up. `often`: the link is polled at each of its timeouts, otherwise only now and then.
fn run(config: &Config, seed: u64, often: bool) -> (Vec<(Time, Numbered)>, Counters) {
    let mut link = Link::new(config.clone(), &Traces::default(), seed).expect("a link");
    let mut arrived = Vec::new();
    for (number, (now, bytes)) in arrivals(5).into_iter().enumerate() {
        while let Some(time) = link.poll_timeout().filter(|time| often && *time <= now) {
            arrived.extend(poll(&mut link, time));
        }
        if number % 100 == 0 {
            arrived.extend(poll(&mut link, now));
        }
        link.handle_input(Direction::Up, Numbered::new(number as u64, bytes), now);
    }
    arrived.extend(drain(&mut link));
    (arrived, *link.pipe(Direction::Up).counters())
}

#[test]
fn no_packet_vanishes_uncounted() {
    for (name, config) in configs() {
        let (arrived, counters) = run(&config, 1, true);
        assert_eq!(counters.received, 3000, "{name}");
        assert_eq!(counters.delivered, arrived.len() as u64, "{name}");
        assert_eq!(counters.in_flight(), 0, "{name}: {counters:?}");
        let bytes: usize = arrived.iter().map(|(_, packet)| packet.bytes).sum();
        assert_eq!(counters.delivered_bytes, bytes as u64, "{name}");
        let inverted = arrived.iter().filter(|(_, packet)| packet.inverted.is_some()).count() as u64;
        assert!(inverted <= counters.corrupted && (inverted > 0) == (config.up.corrupt.get() > 0.0), "{name}");
    }
}

#[test]
fn order_changes_only_where_it_may() {
    for (name, config) in configs() {
        let (arrived, _) = run(&config, 1, true);
        assert!(arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{name}: times increase");
        let is_in_order = arrived.windows(2).all(|pair| pair[0].1.number <= pair[1].1.number);
        assert_eq!(is_in_order, !config.up.reorder, "{name}");
    }
}

#[test]
fn same_seed_gives_the_same_result_however_often_the_link_is_polled() {
    for (name, config) in configs() {
        let first = run(&config, 7, true);
        assert!(first == run(&config, 7, true), "{name}: a second run differs");
        assert!(first == run(&config, 7, false), "{name}: late calls change the result");
        let is_random =
            config.up.loss.get() > 0.0 || config.up.gilbert_elliott.is_some() || !config.up.jitter.is_zero();
        assert_eq!(first != run(&config, 8, true), is_random, "{name}: another seed");
    }
}

#[test]
fn change_of_one_cell_does_not_change_which_packets_are_lost() {
    let lost = |text: &str| {
        let (arrived, counters) = run(&toml::from_str(text).expect("a configuration"), 3, true);
        assert!(counters.dropped(Cause::Channel) > 20);
        let mut numbers: Vec<u64> = arrived.into_iter().map(|(_, packet)| packet.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let alone = lost(r#"up = { loss = "2%" }"#);
    assert_eq!(alone, lost(r#"up = { loss = "2%", delay = "9ms", jitter = "9ms", reorder = true, duplicate = "3%" }"#));
    assert_eq!(alone, lost(r#"up = { loss = "2%", rate = "100Mbit/s", queue = "10s" }"#));
}

#[test]
fn round_trip_is_the_sum_of_both_delays() {
    let mut link = link(profiles()["karadogan-82ms"].config.clone());
    link.handle_input(Direction::Up, Numbered::new(0, 100), Time::ZERO);
    let (direction, there, packet) = link.poll_output(Time::MAX).expect("it arrives");
    assert_eq!(direction, Direction::Up);
    link.handle_input(Direction::Down, packet, there);
    let (_, back, _) = link.poll_output(Time::MAX).expect("it arrives");
    assert_eq!(back.since(Time::ZERO), Duration::from_millis(82));
}

#[test]
fn bad_configurations_say_what_to_change() {
    for (text, message) in [
        (r#"up = { loss = "1%", gilbert_elliott = { a = 0.1, r = 0.1 } }"#, "up.gilbert_elliott contains the loss"),
        (r#"down = { loss = "1%", loss_burst = 0.5 }"#, "down.loss_burst must be 1 or more"),
        (r#"up = { rate = "1Mbit/s", trace = "a" }"#, "leave out one of them"),
        (r#"up = { queue = "5 packets" }"#, "up.queue and up.codel need a rate"),
        (r#"up = { jitter = "5ms" }"#, "up.jitter is larger than the delay allows"),
        (r#"up = { jitter = "5ms", delay = "14ms", distribution = "normal" }"#, "normal of 3 x jitter"),
        (r#"up = { reorder = true }"#, "up.reorder needs jitter"),
        (r#"up = { trace = "a" }"#, "up.trace was not loaded"),
        (r#"outage = { for = "2s", every = "1s" }"#, "outage.for must be longer than 0"),
        (r#"up = { gilbert_elliott = { a = 0.1, r = 0.1, step = "0s" } }"#, "step must be longer than 0"),
    ] {
        let config: Config = toml::from_str(text).expect("it can be read");
        let error = Link::<Numbered>::new(config, &Traces::default(), 1).err().expect(text);
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
    for (text, message) in [
        (r#"up = { loss = "101%" }"#, "is not a probability"),
        (r#"up = { loss = -0.5 }"#, "is not a probability"),
        (r#"up = { rate = "10" }"#, "is not a rate"),
        (r#"up = { rate = "1Mbit/s", queue = "0 packets" }"#, "is not a queue limit"),
        (r#"up = { dealy = "1ms" }"#, "unknown field `dealy`"),
    ] {
        let error = toml::from_str::<Config>(text).expect_err(text);
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}
