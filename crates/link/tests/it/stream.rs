//! Byte streams over a link: complete and in order, whatever the link does.

use std::time::Duration;

use millrace_link::{
    Config, Direction, Nat, OnIdle, PipeConfig, Probability, QueueLimit, Time, Traces,
    stream::{Received, StreamLink},
};

/// Sends bytes down at once. Returns them as received, with the time of the last one.
fn transfer(pipe: PipeConfig, bytes: usize, seed: u64) -> (Vec<u8>, Time, StreamLink) {
    let config = Config { up: pipe.clone(), down: pipe, ..Config::default() };
    let mut stream = StreamLink::new(config, &Traces::default(), seed).expect("a valid link");
    let sent: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    stream.send(Direction::Down, &sent, Time::ZERO);
    let (mut received, mut last) = (Vec::new(), Time::ZERO);
    while let Some(now) = stream.poll_timeout().filter(|now| *now < Time::ZERO + Duration::from_secs(3600)) {
        while let Some(event) = stream.poll_received(now) {
            let Received::Data(Direction::Down, at, data) = event else { panic!("{event:?}") };
            received.extend(data);
            last = at;
        }
    }
    assert_eq!(received, sent, "all bytes, in order");
    assert_eq!(stream.unacknowledged(Direction::Down), 0);
    (received, last, stream)
}

fn loss(share: f64) -> Probability {
    Probability::new(share).expect("a probability")
}

#[test]
fn stream_takes_its_delay_and_the_time_of_its_bytes_at_the_rate() {
    let pipe = PipeConfig {
        delay: Duration::from_millis(40),
        rate: Some("10Mbit/s".parse().expect("a rate")),
        queue: Some(QueueLimit::Packets(1000)),
        ..PipeConfig::default()
    };
    let (_, last, _) = transfer(pipe, 1_000_000, 1);
    let packets = 1_000_000_f64 / 1460.0;
    let expected = 0.04 + (1_000_000.0 + packets.ceil() * 40.0) * 8.0 / 10e6;
    let took = last.since(Time::ZERO).as_secs_f64();
    assert!((expected..expected + 0.01).contains(&took), "{took} instead of {expected}");
}

#[test]
fn stream_survives_loss_duplication_corruption_and_reordering() {
    for seed in 0..20 {
        let pipe = PipeConfig {
            delay: Duration::from_millis(30),
            jitter: Duration::from_millis(20),
            reorder: true,
            loss: loss(0.05),
            duplicate: loss(0.02),
            corrupt: loss(0.02),
            ..PipeConfig::default()
        };
        transfer(pipe, 300_000, seed);
    }
}

#[test]
fn lost_segments_delay_a_stream_and_the_same_seed_repeats_it() {
    let pipe = |share| PipeConfig { delay: Duration::from_millis(30), loss: loss(share), ..PipeConfig::default() };
    let (_, clean, _) = transfer(pipe(0.0), 200_000, 7);
    let (_, lossy, stream) = transfer(pipe(0.1), 200_000, 7);
    assert!(lossy.since(clean) > Duration::from_millis(60), "{:?}", lossy.since(clean));
    let (_, again, same) = transfer(pipe(0.1), 200_000, 7);
    assert_eq!(lossy, again);
    assert_eq!(stream.link().pipe(Direction::Down).counters(), same.link().pipe(Direction::Down).counters());
}

#[test]
fn nat_that_resets_ends_an_idle_stream() {
    let nat = Nat { idle: Duration::from_secs(10), on_idle: OnIdle::Reset };
    let config = Config { nat: Some(nat), ..Config::default() };
    let mut stream = StreamLink::new(config, &Traces::default(), 1).expect("a valid link");
    stream.send(Direction::Up, b"hello", Time::ZERO);
    let mut events = Vec::new();
    let later = Time::ZERO + Duration::from_secs(60);
    while let Some(event) = stream.poll_received(Time::ZERO + Duration::from_secs(30)) {
        events.push(event);
    }
    stream.send(Direction::Up, b"late", later);
    while let Some(event) = stream.poll_received(later + Duration::from_secs(30)) {
        events.push(event);
    }
    assert!(matches!(&events[0], Received::Data(Direction::Up, _, data) if data == b"hello"), "{events:?}");
    assert_eq!(events[1], Received::Reset(Direction::Up, later), "{events:?}");
}
