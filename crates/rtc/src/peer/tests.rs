use super::*;

/// Two ends on a link that loses every `lose`th datagram (0: none). The time is an input.
struct Pair {
    ends: [Peer; 2],
    addresses: [SocketAddr; 2],
    outs: [Outputs; 2],
    now: Instant,
    lose: usize,
    count: usize,
    /// Address at which the other end sees each end.
    seen: [SocketAddr; 2],
    /// Whether the link drops all STUN messages.
    drops_stun: bool,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new(lose: usize) -> Self {
        let now = Instant::now();
        Self::begun(lose, now, |local| Peer::offer(local, now))
    }

    /// Creates a pair without losses, with [`Lane::Latest`] in another mode.
    #[expect(clippy::disallowed_methods, reason = "as above")]
    fn with_latest(ordered: bool, reliability: Reliability) -> Self {
        let now = Instant::now();
        Self::begun(0, now, |local| Peer::offer_with(local, now, ordered, reliability))
    }

    fn begun(lose: usize, now: Instant, offer: impl FnOnce(SocketAddr) -> Offer) -> Self {
        let addresses = ["127.0.0.1:1001", "127.0.0.1:1002"].map(|address| address.parse().unwrap());
        let offer = offer(addresses[0]);
        let (server, answer) = Peer::answer(&offer.sdp, &addresses[1].into(), now).unwrap();
        let ends = [offer.accept(&answer).unwrap(), server];
        Self { ends, addresses, outs: Default::default(), now, lose, count: 0, seen: addresses, drops_stun: false }
    }

    /// Exchanges datagrams until none is in flight, then advances the time. Stops after `limit`, or as soon as
    /// `until` returns true. Returns whether `until` returned true.
    fn run(&mut self, limit: Duration, mut until: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while !until(self) {
            let mut moved = false;
            for from in 0..2 {
                let to = 1 - from;
                for (target, datagram) in std::mem::take(&mut self.outs[from].datagrams) {
                    moved = true;
                    self.count += 1;
                    let is_lost = self.lose > 0 && self.count.is_multiple_of(self.lose);
                    let is_misaddressed = target != self.seen[to];
                    if is_lost || is_misaddressed || self.drops_stun && datagram[0] < 4 {
                        continue;
                    }
                    let Self { ends, outs, addresses, seen, now, .. } = self;
                    let (source, target) = (seen[from], addresses[to]);
                    ends[to].handle_datagram(*now, source, target, &datagram, &mut outs[to]).unwrap();
                }
            }
            if !moved {
                let next = self.ends.iter().map(Peer::timeout).min().unwrap().max(self.now + Duration::from_millis(1));
                if next > end {
                    self.now = end;
                    return false;
                }
                self.now = next;
                for i in 0..2 {
                    self.ends[i].handle_timeout(self.now, &mut self.outs[i]).unwrap();
                }
            }
        }
        true
    }
}

fn both_open(pair: &Pair) -> bool {
    pair.outs.iter().all(|out| Lane::ALL.iter().all(|lane| out.events.contains(&Event::Open(*lane))))
}

#[test]
fn both_channels_open_and_carry_messages() {
    let mut pair = Pair::new(0);
    assert!(pair.run(Duration::from_secs(2), both_open));
    assert!(pair.ends[1].write(pair.now, Lane::Session, true, b"hello\n", &mut pair.outs[1]).unwrap());
    assert!(pair.ends[0].write(pair.now, Lane::Latest, false, &[0, 255], &mut pair.outs[0]).unwrap());
    assert!(pair.run(Duration::from_secs(1), |pair| {
        pair.outs[0].events.contains(&Event::Data(Lane::Session, b"hello\n".to_vec()))
            && pair.outs[1].events.contains(&Event::Data(Lane::Latest, vec![0, 255]))
    }));
    pair.ends[1].close(&mut pair.outs[1]);
    let datagrams = std::mem::take(&mut pair.outs[1].datagrams);
    for (_, datagram) in datagrams {
        let (from, to) = (pair.addresses[1], pair.addresses[0]);
        let _ = pair.ends[0].handle_datagram(pair.now, from, to, &datagram, &mut pair.outs[0]);
    }
    assert!(pair.outs[0].events.contains(&Event::Closed));
}

/// The sender of an offer can start a handshake from a forged address. The server must not flood that address
/// with answers.
#[test]
#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn unproven_address_receives_little() {
    let start = Instant::now();
    let mut now = start;
    let [client_at, server_at]: [SocketAddr; 2] = ["127.0.0.1:1001", "127.0.0.1:1002"].map(|at| at.parse().unwrap());
    let offer = Peer::offer(client_at, now);
    let mut received = offer.sdp.len();
    let (mut server, answer) = Peer::answer(&offer.sdp, &server_at.into(), now).unwrap();
    let mut client = offer.accept(&answer).unwrap();
    let (mut outs, mut sent, mut begun) = ([Outputs::default(), Outputs::default()], 0, None);
    let is_handshake = |datagram: &[u8]| (20..=63).contains(&datagram[0]);
    // Runs until the server's first flight, which is lost, and for 60 s after it without any input.
    while now < begun.unwrap_or(start) + Duration::from_secs(60) {
        let [of_client, of_server] = outs.each_mut().map(|out| std::mem::take(&mut out.datagrams));
        for (_, datagram) in of_client.into_iter().filter(|_| begun.is_none()) {
            received += datagram.len();
            server.handle_datagram(now, client_at, server_at, &datagram, &mut outs[1]).unwrap();
        }
        for (_, datagram) in of_server {
            sent += datagram.len();
            match is_handshake(&datagram) {
                true => begun = begun.or(Some(now)),
                false => _ = client.handle_datagram(now, server_at, client_at, &datagram, &mut outs[0]).unwrap(),
            }
        }
        let next = client.timeout().min(server.timeout());
        now = next.clamp(now + Duration::from_millis(1), now + Duration::from_secs(1));
        if begun.is_none() {
            client.handle_timeout(now, &mut outs[0]).unwrap();
        }
        if server.handle_timeout(now, &mut outs[1]).is_err() {
            break;
        }
    }
    assert!(begun.is_some() && sent > 1000, "{sent}");
    assert!(sent <= 3 * received, "{sent} bytes for {received}");
}

/// A write does not wait for a pending acknowledgement, and nothing is sent twice, even after a long idle time.
#[test]
fn fragmented_message_is_not_delayed() {
    for (bytes, datagrams) in [(500, 1), (1300, 2), (3000, 3)] {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        pair.run(Duration::from_secs(1), |_| false);
        for round in 0..50 {
            pair.outs[1].events.clear();
            let begin = pair.now;
            let Pair { ends, outs, now, .. } = &mut pair;
            assert!(ends[0].write(*now, Lane::Session, true, &vec![7; bytes], &mut outs[0]).unwrap());
            let sent = outs[0].datagrams.iter().filter(|(_, datagram)| datagram.len() > 200).count();
            assert_eq!(sent, datagrams, "of {bytes} bytes in round {round}");
            assert!(pair.run(Duration::from_secs(5), |pair| !pair.outs[1].events.is_empty()));
            assert_eq!(pair.now, begin, "{bytes} bytes in round {round}");
            pair.run(Duration::from_millis(250), |_| false);
        }
    }
}

/// Consent to send is valid for 30 s of real time, although the library's time runs faster. Firefox renews the
/// consent every 5 s.
#[test]
fn consent_expires_after_thirty_seconds() {
    let mut pair = Pair::new(0);
    assert!(pair.run(Duration::from_secs(2), both_open));
    pair.run(Duration::from_secs(10), |_| false);
    pair.drops_stun = true;
    let began = pair.now;
    let is_closed = |pair: &Pair| pair.outs[1].events.contains(&Event::Closed);
    while !is_closed(&pair) && pair.now < began + Duration::from_secs(60) {
        for i in 0..2 {
            let now = pair.now;
            let _ = pair.ends[i].write(now, Lane::Session, true, b"x\n", &mut pair.outs[i]);
        }
        pair.run(Duration::from_millis(100), is_closed);
    }
    let after = pair.now - began;
    assert!((27..36).contains(&after.as_secs()), "{after:?}");
}

/// The client gets another port from its NAT, or changes its network.
#[test]
fn moved_peer_is_found_by_binding_request() {
    let mut pair = Pair::new(0);
    assert!(pair.run(Duration::from_secs(2), both_open));
    pair.run(Duration::from_secs(10), |_| false);
    pair.seen[0].set_port(1003);
    let (began, mut found) = (pair.now, None);
    while found.is_none() && pair.now < began + Duration::from_secs(40) {
        pair.outs[0].events.clear();
        let now = pair.now;
        let _ = pair.ends[1].write(now, Lane::Session, true, b"x\n", &mut pair.outs[1]);
        pair.run(Duration::from_millis(100), |_| false);
        let has_heard = pair.outs[0].events.iter().any(|event| matches!(event, Event::Data(..)));
        found = has_heard.then(|| pair.now - began);
    }
    assert!(found.is_some_and(|after| after < Duration::from_secs(8)), "{found:?}");
}

#[test]
fn handshake_survives_packet_loss() {
    for lose in [3, 5, 7] {
        let mut pair = Pair::new(lose);
        assert!(pair.run(Duration::from_secs(30), both_open), "every {lose}th is lost");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn bad_offers_are_rejected_with_reason() {
    let now = Instant::now();
    let good = Peer::offer("127.0.0.1:1001".parse().unwrap(), now).sdp;
    let local = SocketAddr::from(([127, 0, 0, 1], 1002)).into();
    assert!(Peer::answer(&good, &local, now).is_ok());
    for bad in ["", "v=0", "\0\0", &good.replace("m=application", "m=audio"), &good.replace("a=fingerprint", "a=x")] {
        assert!(Peer::answer(bad, &local, now).is_err(), "{bad}");
    }
    // Errors of the library contain memory addresses and quote the offer, so the peer must not receive them.
    for (bad, part) in [
        (good.replace("a=mid:", "a=mad:"), "`a=mid`"),
        (good.replace("a=ice-ufrag:", "a=x:"), "a=ice-ufrag"),
        (good.replace("a=fingerprint:", "a=x:"), "a=fingerprint"),
        (good.replace("v=0", "v=0x7f"), "as browsers write it"),
    ] {
        let refused = Peer::answer(&bad, &local, now).err().expect(part).to_string();
        assert!(refused.contains(part) && !refused.contains("0x") && !refused.contains("Offset"), "{refused}");
    }
    for cut in (0..good.len()).step_by(7) {
        let _ = Peer::answer(&good[..cut], &local, now);
    }
}

/// Deterministic sequence of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Changes, removes or inserts one byte at a random position, or cuts off all bytes from there.
    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len().max(1));
        match self.below(4) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] = self.below(256) as u8,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, self.below(256) as u8),
            _ => bytes.truncate(at),
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
fn corrupt_offers_give_peer_or_error() {
    let now = Instant::now();
    let good = Peer::offer("127.0.0.1:1001".parse().unwrap(), now).sdp;
    let local = SocketAddr::from(([127, 0, 0, 1], 2)).into();
    let (mut dice, mut taken) = (Dice(7), 0);
    for _ in 0..3000 {
        let mut offer = good.clone().into_bytes();
        (0..=dice.below(4)).for_each(|_| dice.spoil(&mut offer));
        taken += usize::from(Peer::answer(&String::from_utf8_lossy(&offer), &local, now).is_ok());
    }
    assert!((1..3000).contains(&taken), "{taken}");
}

#[test]
fn corrupt_datagrams_end_one_peer_at_most() {
    for seed in 0..60 {
        let (mut pair, mut dice) = (Pair::new(0), Dice(seed));
        let rounds = 200 + dice.below(200);
        for round in 0..rounds {
            for (from, to) in [(0, 1), (1, 0)] {
                for (_, mut datagram) in std::mem::take(&mut pair.outs[from].datagrams) {
                    if dice.below(6) == 0 {
                        dice.spoil(&mut datagram);
                    }
                    let (source, target) = (pair.addresses[from], pair.addresses[to]);
                    let Pair { ends, outs, now, .. } = &mut pair;
                    let _ = ends[to].handle_datagram(*now, source, target, &datagram, &mut outs[to]);
                }
            }
            pair.now += Duration::from_millis(20);
            for i in 0..2 {
                let now = pair.now;
                let _ = pair.ends[i].handle_timeout(now, &mut pair.outs[i]);
                let _ =
                    pair.ends[i].write(now, Lane::Session, true, format!("{round}\n").as_bytes(), &mut pair.outs[i]);
            }
        }
    }
}

#[test]
fn foreign_datagrams_change_nothing() {
    let mut pair = Pair::new(0);
    assert!(pair.run(Duration::from_secs(2), both_open));
    let stranger = "127.0.0.1:9".parse().unwrap();
    let mut out = Outputs::default();
    for datagram in [&b""[..], b"\x00", b"\x16\xfe\xfd", &[0x80; 100], &[20; 3000], b"\x00\x01\x00\x00"] {
        let taken = pair.ends[1].handle_datagram(pair.now, stranger, pair.addresses[1], datagram, &mut out);
        assert!(!taken.unwrap(), "{datagram:?}");
    }
    assert!(out.datagrams.is_empty(), "a stranger is told nothing");
}

/// On an unreliable channel, a message that is not lost arrives at once. It does not wait for a lost message
/// before it, and it is not queued behind one.
#[test]
fn loss_on_latest_delays_no_later_message() {
    for (every_ms, lose) in [(100, 20), (10, 20), (3, 7)] {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        pair.lose = lose;
        let (mut came, count) = (0, 1000u32);
        for n in 0..count {
            pair.outs[0].events.clear();
            let Pair { ends, outs, now, .. } = &mut pair;
            assert!(ends[1].write(*now, Lane::Latest, false, &n.to_be_bytes().repeat(50), &mut outs[1]).unwrap());
            pair.run(Duration::ZERO, |_| false);
            let at_once = pair.outs[0].events.len();
            came += at_once;
            pair.run(Duration::from_millis(every_ms), |_| false);
            assert_eq!(pair.outs[0].events.len(), at_once, "message {n} of one every {every_ms} ms");
        }
        let lost = count as usize - came;
        assert!((1..=2 * count as usize / lose).contains(&lost), "{lost} lost of one every {every_ms} ms");
    }
}

/// The mode that the opener of a channel requests also applies to messages sent to the opener: ordered or
/// unordered, with unlimited or no retransmissions, or up to a number or a time.
#[test]
fn each_mode_of_channel_survives_loss() {
    const COUNT: u32 = 600;
    let retransmits = |retransmits| Reliability::MaxRetransmits { retransmits };
    // Milliseconds of the library's time, which runs five times as fast.
    let lifetime = |ms: u16| Reliability::MaxPacketLifetime { lifetime: ms };
    for (ordered, reliability, loses) in [
        (true, Reliability::Reliable, false),
        (false, Reliability::Reliable, false),
        (true, retransmits(0), true),
        (false, retransmits(0), true),
        (true, retransmits(8), false),
        (false, retransmits(8), false),
        (true, lifetime(500), true),
        (false, lifetime(500), true),
        (true, lifetime(20_000), false),
        (false, lifetime(20_000), false),
    ] {
        let mut pair = Pair::with_latest(ordered, reliability);
        assert!(pair.run(Duration::from_secs(2), both_open));
        pair.lose = 7;
        let (mut came, mut latest) = (Vec::new(), Duration::ZERO);
        let mut receive = |pair: &mut Pair, began: Instant| {
            for event in pair.outs[0].events.drain(..) {
                let Event::Data(Lane::Latest, message) = event else { continue };
                let n = u32::from_be_bytes(message[..4].try_into().unwrap());
                latest = latest.max(pair.now - (began + n * Duration::from_millis(10)));
                came.push(n);
            }
        };
        let began = pair.now;
        for n in 0..COUNT {
            let Pair { ends, outs, now, .. } = &mut pair;
            assert!(ends[1].write(*now, Lane::Latest, false, &n.to_be_bytes().repeat(50), &mut outs[1]).unwrap());
            let next = began + (n + 1) * Duration::from_millis(10);
            while pair.now < next {
                pair.run(Duration::from_millis(1), |_| false);
                receive(&mut pair, began);
            }
        }
        for _ in 0..5_000 {
            pair.run(Duration::from_millis(1), |_| false);
            receive(&mut pair, began);
        }
        let lost = COUNT as usize - came.len();
        let in_order = came.is_sorted();
        let mut once = came.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), came.len(), "{ordered} {reliability:?}: something came twice");
        assert!(in_order || !ordered, "{ordered} {reliability:?}");
        assert_eq!(lost > 0, loses, "{ordered} {reliability:?}: {lost} lost");
        let late_max = match (ordered, &reliability) {
            (false, Reliability::MaxRetransmits { retransmits: 0 }) => 1,
            (false, Reliability::MaxPacketLifetime { lifetime: 500 }) => 100,
            // Allows for a datagram that is lost three times by chance.
            _ => 1_000,
        };
        assert!(latest <= Duration::from_millis(late_max), "{ordered} {reliability:?}: {latest:?} late");
    }
}
