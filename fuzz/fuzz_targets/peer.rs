//! Fuzzes WebRTC with untrusted peers. Input: a browser's offer with changed lines, or a path between client and
//! server that corrupts datagrams.
//!
//! The underlying library panics when its invariants are violated. Such a panic must end one peer only.

#![no_main]

use std::{
    net::SocketAddr,
    sync::Once,
    time::{Duration, Instant},
};

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_rtc::{Event, Lane, Outputs, Peer};
use millrace_sfu::switch::{Role, Switch};

const OFFERS: [&str; 3] =
    [include_str!("offers/data.sdp"), include_str!("offers/sends.sdp"), include_str!("offers/views.sdp")];
const ROLES: [Role; 3] = [Role::Member, Role::Publisher, Role::Viewer];
const CHANGES_MAX: usize = 16;
const SPOILED_MAX: usize = 24;
const MEMBERS_MAX: usize = 3;
/// Rounds of the client and the server, ten per second.
const ROUNDS: u32 = 40;
const STEP: Duration = Duration::from_millis(100);

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Descriptions { offer: u8, changes: Vec<Change<'a>>, again: Vec<Change<'a>>, names: (&'a str, &'a str), role: u8 },
    Text { text: &'a str },
    Wire { spoiled: Vec<Spoiled<'a>>, strange: Vec<&'a [u8]> },
}

/// Change of the line with this number.
#[derive(Arbitrary, Debug)]
enum Change<'a> {
    Cut {
        line: u8,
    },
    Twice {
        line: u8,
    },
    Swap {
        line: u8,
        other: u8,
    },
    Put {
        line: u8,
        text: &'a str,
    },
    /// Replaces the line from a word on.
    Words {
        line: u8,
        word: u8,
        text: &'a str,
    },
}

/// Fault of the datagram with this number, counted over both directions.
#[derive(Arbitrary, Debug)]
enum Spoiled<'a> {
    Lost { nth: u8 },
    Twice { nth: u8 },
    Byte { nth: u8, at: u16, byte: u8 },
    Cut { nth: u8, at: u16 },
    Other { nth: u8, bytes: &'a [u8] },
}

fuzz_target!(|input: Input<'_>| {
    // Panics of the library are caught and are allowed. Any other panic still ends the fuzzer.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    match input {
        Input::Descriptions { offer, changes, again, names, role } => {
            let offer = OFFERS[usize::from(offer) % OFFERS.len()];
            let role = ROLES[usize::from(role) % ROLES.len()];
            describe(&changed(offer, &changes), &changed(offer, &again), names, role);
        }
        Input::Text { text } => describe(text, text, ("", ""), Role::Member),
        Input::Wire { spoiled, strange } => wire(&spoiled, &strange),
    }
});

fn changed(offer: &str, changes: &[Change<'_>]) -> String {
    let mut lines: Vec<String> = offer.lines().map(str::to_owned).collect();
    for change in changes.iter().take(CHANGES_MAX) {
        let count = lines.len();
        let at = |line: u8| usize::from(line) % count;
        match *change {
            _ if count == 0 => break,
            Change::Cut { line } => drop(lines.remove(at(line))),
            Change::Twice { line } => lines.insert(at(line), lines[at(line)].clone()),
            Change::Swap { line, other } => lines.swap(at(line), at(other)),
            Change::Put { line, text } => lines.insert(at(line), text.to_owned()),
            Change::Words { line, word, text } => {
                let line = at(line);
                let words = lines[line].split_inclusive([':', ' ', '/', ';', '=']).take(usize::from(word) % 8);
                lines[line] = words.chain([text]).collect();
            }
        }
    }
    lines.iter().flat_map(|line| [line.as_str(), "\r\n"]).collect()
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Uses the text as an offer of data channels and as the offer of a room's member, which then sends a second offer.
fn describe(offer: &str, again: &str, (ufrag, password): (&str, &str), role: Role) {
    let now = Instant::now();
    if let Ok((peer, answer)) = Peer::answer(offer, &address(1).into(), now) {
        assert!(answer.starts_with("v=0\r\n") && answer.contains(peer.ufrag()));
    }
    let mut switch = Switch::new(address(1).into(), MEMBERS_MAX, MEMBERS_MAX);
    let send = &mut |_: SocketAddr, _: Vec<u8>| panic!("nobody has shown yet where they are");
    for name in ["a", "b"] {
        let Ok((id, answer)) = switch.join("room", (name, role), offer, now, send) else { continue };
        assert!(answer.starts_with("v=0\r\n"));
        let _ = switch.accept_answer(id, again, now, send);
        let _ = switch.accept_offer(id, again, now, send);
        let _ = switch.restart(id, (ufrag, password), now, send);
        switch.handle_timeouts(now + STEP, send);
        assert!(switch.len() <= MEMBERS_MAX && switch.reports("room", now).len() == switch.len());
    }
    switch.handle_timeouts(now + Duration::from_secs(60), send);
    while let Some(event) = switch.poll_event() {
        drop(event);
    }
    assert!(switch.is_empty() && switch.timeout().is_none_or(|at| at <= now + Duration::from_secs(61)));
}

/// Lets a client open its channels over a path that corrupts some datagrams, and sends unrelated datagrams as well.
fn wire(spoiled: &[Spoiled<'_>], strange: &[&[u8]]) {
    let begin = Instant::now();
    let addresses = [address(1), address(2)];
    let offer = Peer::offer(addresses[0], begin);
    let (server, answer) = Peer::answer(&offer.sdp, &addresses[1].into(), begin).expect("a good offer");
    let mut ends = [offer.accept(&answer).expect("a good answer"), server];
    let mut outs = [Outputs::default(), Outputs::default()];
    let mut count = 0;
    for round in 0..ROUNDS {
        let now = begin + STEP * round;
        for (end, out) in ends.iter_mut().zip(&mut outs) {
            let _ = end.handle_timeout(now, out);
            let _ = end.write(now, Lane::Session, true, b"hello\n", out);
            let _ = end.write(now, Lane::Latest, false, b"1\nhello\n", out);
        }
        if let Some(datagram) = strange.get(round as usize) {
            let _ = ends[1].handle_datagram(now, addresses[0], addresses[1], datagram, &mut outs[1]);
            let mut nobody = Outputs::default();
            let _ = ends[1].handle_datagram(now, address(3), addresses[1], datagram, &mut nobody);
            assert!(nobody.datagrams.is_empty(), "a stranger is told nothing");
        }
        // Replies are delivered immediately, up to eight times; the rest follows in the next round.
        for _ in 0..8 {
            for from in [0, 1] {
                let to = 1 - from;
                for (_, datagram) in std::mem::take(&mut outs[from].datagrams) {
                    let mut copies = vec![datagram];
                    spoil(spoiled, count, &mut copies);
                    count += 1;
                    for datagram in copies {
                        let way = (addresses[from], addresses[to]);
                        let _ = ends[to].handle_datagram(now, way.0, way.1, &datagram, &mut outs[to]);
                    }
                }
            }
        }
    }
    for out in &outs {
        for event in &out.events {
            if let Event::Data(_, data) = event {
                assert!(data == b"hello\n" || data == b"1\nhello\n", "what comes is what was sent: {data:?}");
            }
        }
    }
}

fn spoil(spoiled: &[Spoiled<'_>], count: usize, copies: &mut Vec<Vec<u8>>) {
    for one in spoiled.iter().take(SPOILED_MAX) {
        let (Spoiled::Lost { nth }
        | Spoiled::Twice { nth }
        | Spoiled::Byte { nth, .. }
        | Spoiled::Cut { nth, .. }
        | Spoiled::Other { nth, .. }) = *one;
        let Some(first) = copies.first_mut().filter(|_| usize::from(nth) == count) else { continue };
        match *one {
            Spoiled::Lost { .. } => copies.clear(),
            Spoiled::Twice { .. } => {
                let copy = first.clone();
                copies.push(copy);
            }
            Spoiled::Byte { at, byte, .. } => {
                let at = usize::from(at) % first.len().max(1);
                first.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            Spoiled::Cut { at, .. } => first.truncate(usize::from(at)),
            Spoiled::Other { bytes, .. } => *first = bytes.to_vec(),
        }
    }
}
