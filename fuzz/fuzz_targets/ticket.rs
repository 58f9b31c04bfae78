//! Fuzzes resume tickets: a signed ticket is valid until it expires; an unsigned or modified ticket is refused.

#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use millrace_protocol::{
    ChannelName, Code, Epoch, Position, Since,
    session::{Policy, Subscription, Target},
    ticket::{TICKET_BYTES_MAX, TicketKey},
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    forged: &'a str,
    secret: &'a [u8],
    subject: Option<&'a str>,
    until_ms: u64,
    now_ms: u64,
    bend: (u16, u8),
    read: Vec<Read<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Read<'a> {
    target: &'a str,
    since: Start,
    positions: Vec<(u8, u32, u64)>,
    is_latest: bool,
}

#[derive(Arbitrary, Debug)]
enum Start {
    Now,
    Earliest,
    Position(u32, u64),
    Time(u64),
}

fuzz_target!(|input: Input<'_>| {
    let key = TicketKey::new(input.secret);
    let refused = |ticket: &str| match key.verify(ticket, input.subject, input.now_ms) {
        Err(error) => {
            assert!(error.code == Code::BadTicket && !error.detail.contains(ticket.get(..20).unwrap_or("\0")))
        }
        Ok(read) => panic!("nobody has signed {ticket:?}: {read:?}"),
    };
    refused(input.forged);
    let read: Vec<_> = input.read.into_iter().filter_map(subscription).collect();
    let Some(ticket) = key.sign(&read, input.subject, input.until_ms) else { return };
    assert!(ticket.len() <= TICKET_BYTES_MAX);
    match key.verify(&ticket, input.subject, input.now_ms) {
        Ok(kept) => {
            assert!(input.now_ms <= input.until_ms);
            // Subscriptions that did not fit are left out; the order is kept.
            let mut all = read.iter();
            assert!(kept.iter().all(|one| all.any(|other| other == one)), "{kept:?} {read:?}");
            assert!(kept.len() == read.len() || ticket.len() > 300, "left out though it would have fitted");
        }
        Err(error) => assert!(error.code == Code::BadTicket && input.now_ms > input.until_ms, "{error}"),
    }
    let (place, change) = (usize::from(input.bend.0) % ticket.len(), input.bend.1);
    let mut bent = ticket.clone().into_bytes();
    bent[place] ^= change & 0x7f;
    let bent = String::from_utf8(bent).expect("ASCII");
    if bent != ticket {
        refused(&bent);
    }
    refused(&ticket[..place]);
    for another in [None, Some(""), Some("ann"), Some(input.forged)].into_iter().filter(|one| *one != input.subject) {
        assert_eq!(key.verify(&ticket, another, 0).expect_err("somebody else's ticket").code, Code::BadTicket);
    }
    // HMAC treats a key with trailing zeros like the key without them.
    if !input.secret.starts_with(b"another") {
        let another = TicketKey::new(b"another").verify(&ticket, input.subject, 0);
        assert_eq!(another.expect_err("another's ticket").code, Code::BadTicket);
    }
});

/// Returns `None` for a subscription that no session can request.
fn subscription(read: Read<'_>) -> Option<Subscription> {
    let target = Target::parse(read.target).ok()?;
    let is_pattern = matches!(target, Target::Pattern(_));
    let at = |(name, epoch, offset)| {
        let name = ChannelName::parse(&format!("cars/{name}")).expect("a good name");
        (name, Position { epoch: Epoch(epoch), offset })
    };
    let positions: HashMap<_, _> = read.positions.into_iter().filter(|_| is_pattern).map(at).collect();
    let since = match read.since {
        Start::Now => Since::Now,
        Start::Earliest => Since::Earliest,
        Start::Position(..) if is_pattern => return None,
        Start::Position(epoch, offset) => Since::Position(Position { epoch: Epoch(epoch), offset }),
        Start::Time(ms) => Since::Time(ms),
    };
    let policy = if read.is_latest { Policy::Latest } else { Policy::Every };
    Some(Subscription { target, since, positions, policy })
}
