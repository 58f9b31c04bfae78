//! Work of the SFU per forwarded packet, counted in instructions: the count does not depend on other load of the
//! machine.
//!
//! Ten viewers with bandwidth estimates, one publisher of 1,100-byte packets, a simulated clock, and no socket.
//! Encryption, the estimator and the pacer are counted; the kernel and the clients are not. Divide by the number of
//! forwarded packets that a case prints:
//!
//! ```sh
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured*' \
//!   target/release/deps/switch-* pass_on_slow
//! ```
//!
//! Without an argument every case runs once.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_sfu::{
    MediaClient, MediaEvent, MediaKind, MediaOutput,
    switch::{Role, Switch},
};

const VIEWERS: usize = 10;
const PAYLOAD_BYTES: usize = 1100;
/// Step of the simulated clock, and delay of each datagram.
const STEP: Duration = Duration::from_millis(1);

/// Milliseconds between two packets.
const CASES: &[(&str, u64)] = &[("pass_on_slow", 9), ("pass_on_fast", 1)];

fn main() {
    let wanted = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    for (name, every_ms) in CASES.iter().filter(|(name, _)| wanted.as_deref().is_none_or(|wanted| wanted == *name)) {
        let mut net = Net::new();
        net.run(2_000, *every_ms, false);
        let before = net.switch.forwarded();
        net.run(1_000, *every_ms, true);
        let forwarded = net.switch.forwarded() - before;
        assert!(forwarded.abs_diff(1_000 / every_ms * VIEWERS as u64) <= VIEWERS as u64, "{name}: packets were lost");
        println!("{name}");
        eprintln!("{forwarded} packets passed on");
    }
}

/// Callgrind counts while this function runs.
#[inline(never)]
fn measured<T>(work: impl FnOnce() -> T) -> T {
    work()
}

fn perhaps<T>(is_counted: bool, work: impl FnOnce() -> T) -> T {
    if is_counted { measured(work) } else { work() }
}

/// The switch and its clients.
struct Net {
    switch: Switch,
    publisher: Client,
    viewers: Vec<Client>,
    on_the_way: Vec<(SocketAddr, Vec<u8>)>,
    now: Instant,
    ms: u64,
}

struct Client {
    end: MediaClient,
    address: SocketAddr,
    out: Out,
    /// Datagrams that arrive in the next step.
    said: Vec<Vec<u8>>,
}

#[derive(Default)]
struct Out(Vec<Vec<u8>>);

impl MediaOutput for Out {
    fn send(&mut self, _: SocketAddr, datagram: Vec<u8>) {
        self.0.push(datagram);
    }
    fn event(&mut self, _: MediaEvent) {}
}

impl Net {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new() -> Self {
        let mut switch = Switch::new(switch_address().into(), 100, 100);
        let now = Instant::now();
        let mut join = |n: usize, role, sends: &[MediaKind], receives: &[MediaKind]| {
            let address = SocketAddr::from(([127, 0, 0, 1], 2000 + n as u16));
            let (mut end, offer) = MediaClient::offer(address, sends, receives, now);
            let who = (format!("member-{n}"), role);
            let (_, answer) = switch.join("room", (&who.0, who.1), &offer, now, &mut |_, _| {}).expect("there is room");
            end.accept(&answer).expect("an answer");
            Client { end, address, out: Out::default(), said: Vec::new() }
        };
        let publisher = join(0, Role::Publisher, &[MediaKind::Video], &[]);
        let viewers = (1..=VIEWERS).map(|n| join(n, Role::Viewer, &[], &[MediaKind::Video])).collect();
        Self { switch, publisher, viewers, on_the_way: Vec::new(), now, ms: 0 }
    }

    /// Runs for `ms` milliseconds and publishes a packet every `every_ms`.
    fn run(&mut self, ms: u64, every_ms: u64, is_counted: bool) {
        for _ in 0..ms {
            self.now += STEP;
            self.ms += 1;
            let Self { switch, publisher, viewers, on_the_way, now, ms } = self;
            if ms.is_multiple_of(every_ms) {
                let mut payload = vec![7; PAYLOAD_BYTES];
                // A payload descriptor without extension. The frame's own header marks a keyframe.
                payload[..2].copy_from_slice(&[0x10, 0]);
                let packet = (*ms as u32 * 90, true, Arc::from(payload));
                let _ = publisher.end.send(0, packet, *now, &mut publisher.out);
            }
            // Datagrams of the last step arrive in this one.
            for (to, datagram) in on_the_way.drain(..) {
                let mut clients = viewers.iter_mut().chain([&mut *publisher]);
                if let Some(client) = clients.find(|client| client.address == to) {
                    let _ = client.end.handle_datagram(*now, (switch_address(), to), &datagram, &mut client.out);
                }
            }
            let send = &mut |to, datagram| on_the_way.push((to, datagram));
            perhaps(is_counted, || switch.handle_timeouts(*now, send));
            for client in viewers.iter_mut().chain([&mut *publisher]) {
                for datagram in std::mem::take(&mut client.said) {
                    perhaps(is_counted, || switch.handle_datagram(*now, client.address, &datagram, send));
                }
                client.said.append(&mut client.out.0);
            }
            for client in viewers.iter_mut().chain([publisher]) {
                if client.end.timeout() <= *now {
                    let _ = client.end.handle_timeout(*now, &mut client.out);
                }
            }
        }
    }
}

fn switch_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1000))
}
