//! Memory of an idle peer, counted at the allocator: a figure of the program, not of the machine.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_rtc::{Event, Lane, Outputs, Peer};

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is forwarded to the system allocator, and counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the two ends of a connection whose channels are open and idle.
fn pair(begin: Instant) -> [Peer; 2] {
    let addresses: [SocketAddr; 2] =
        ["127.0.0.1:1001", "127.0.0.1:1002"].map(|address| address.parse().expect("an address"));
    let offer = Peer::offer(addresses[0], begin);
    let (server, answer) = Peer::answer(&offer.sdp, &addresses[1].into(), begin).expect("a good offer");
    let (mut ends, mut outs) =
        ([offer.accept(&answer).expect("a good answer"), server], [Outputs::default(), Outputs::default()]);
    for ms in 0..3000 {
        let now = begin + Duration::from_millis(ms);
        for (end, out) in ends.iter_mut().zip(&mut outs) {
            end.handle_timeout(now, out).expect("a peer that lives");
        }
        for from in [0, 1] {
            let to = 1 - from;
            for (_, datagram) in std::mem::take(&mut outs[from].datagrams) {
                ends[to]
                    .handle_datagram(now, addresses[from], addresses[to], &datagram, &mut outs[to])
                    .expect("a peer that lives");
            }
        }
    }
    let is_open = |out: &Outputs| Lane::ALL.iter().all(|lane| out.events.contains(&Event::Open(*lane)));
    assert!(outs.iter().all(is_open));
    ends
}

/// The target for all memory of a peer on the server is 50 kB. This count excludes the allocator's overhead, sessions
/// and sockets.
#[test]
#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn idle_peer_holds_less_than_40_kilobytes() {
    const PAIRS: usize = 10;
    let begin = Instant::now();
    // Allocate the parts that all peers share.
    let mut pairs = vec![pair(begin)];
    pairs.reserve_exact(PAIRS);
    let before = BYTES.load(Relaxed);
    pairs.extend((0..PAIRS).map(|_| pair(begin)));
    let bytes = (BYTES.load(Relaxed) - before) / (2 * PAIRS) + size_of::<Peer>();
    println!("{bytes} bytes, {} of them in one piece", size_of::<Peer>());
    assert!((20_000..40_000).contains(&bytes), "{bytes}");
}
