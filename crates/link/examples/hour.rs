//! Simulates one hour of each profile in virtual time, and prints how long the computer needed:
//!
//! `cargo run --release -p millrace-link --example hour`
//!
//! Datagrams: 200 bytes in each direction every 5 ms. Byte stream: 200 bytes from the server every 250 ms, as a ticker
//! sends them.

use std::time::{Duration, Instant};

use millrace_link::{
    Config, Direction, Flow, Link, Packet, Time, Traces, profiles,
    stream::{Received, StreamLink},
};

const HOUR: Duration = Duration::from_secs(3600);
const SEED: u64 = 1;

#[derive(Clone)]
struct Datagram;

impl Packet for Datagram {
    fn bytes(&self) -> usize {
        200
    }

    fn flow(&self) -> Option<Flow> {
        Some(Flow(1))
    }

    fn is_opening(&self) -> bool {
        true
    }

    fn corrupt(&mut self, _bit: usize) {}

    fn reset(&self) -> Option<Self> {
        None
    }
}

fn main() {
    println!(
        "{:<18} {:>12} {:>10} {:>9} {:>12} {:>10} {:>9}",
        "profile", "datagrams", "delivered", "s", "stream, B", "received", "s"
    );
    let begun = Instant::now();
    for (name, profile) in profiles() {
        let start = Instant::now();
        let (sent, delivered) = datagrams(&profile.config);
        let datagram_time = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let (written, received) = stream(&profile.config);
        let stream_time = start.elapsed().as_secs_f64();
        println!(
            "{name:<18} {sent:>12} {delivered:>10} {datagram_time:>9.2} {written:>12} {received:>10} {stream_time:>9.2}"
        );
    }
    println!("{} simulated hours of each kind in {:.1} s", profiles().len(), begun.elapsed().as_secs_f64());
}

/// Returns how many datagrams were sent and delivered.
fn datagrams(config: &Config) -> (u64, u64) {
    let mut link = Link::new(config.clone(), &Traces::default(), SEED).expect("profiles are valid");
    let interval = Duration::from_millis(5);
    let (mut now, mut sent, mut delivered) = (Time::ZERO, 0, 0);
    while now < Time::ZERO + HOUR {
        for direction in Direction::BOTH {
            link.handle_input(direction, Datagram, now);
            sent += 1;
        }
        now = now + interval;
        while link.poll_output(now).is_some() {
            delivered += 1;
        }
    }
    while let Some(next) = link.poll_timeout() {
        while link.poll_output(next).is_some() {
            delivered += 1;
        }
    }
    (sent, delivered)
}

/// Returns how many bytes the server wrote, and how many the client received.
fn stream(config: &Config) -> (usize, usize) {
    let mut stream = StreamLink::new(config.clone(), &Traces::default(), SEED).expect("profiles are valid");
    let interval = Duration::from_millis(250);
    let (mut now, mut written, mut received) = (Time::ZERO, 0, 0);
    while now < Time::ZERO + HOUR {
        stream.send(Direction::Down, &[0; 200], now);
        written += 200;
        now = now + interval;
        received += arrived(&mut stream, now);
    }
    // Retransmissions may need a minute after the last byte.
    received += arrived(&mut stream, now + Duration::from_secs(60));
    (written, received)
}

fn arrived(stream: &mut StreamLink, now: Time) -> usize {
    std::iter::from_fn(|| stream.poll_received(now))
        .map(|event| match event {
            Received::Data(_, _, bytes) => bytes.len(),
            Received::Reset(..) => 0,
        })
        .sum()
}
