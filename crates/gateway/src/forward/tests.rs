//! Tests with a virtual clock.

use super::*;

struct Bench {
    forwarder: Forwarder,
    now: Instant,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self { forwarder: Forwarder::new(config), now: Instant::now() }
    }

    fn gathering() -> Self {
        Self::new(Config { gathers: true, ..Config::default() })
    }

    fn join(&mut self, name: &str, to: Option<&str>) -> PeerId {
        let options = PeerOptions { name: name.into(), to: to.map(Into::into), urgent: Some(b"!".to_vec()) };
        self.forwarder.join(options).expect("a free name")
    }

    fn send(&mut self, from: PeerId, text: &str) {
        self.forwarder.handle_message(self.now, from, Lane::Session, text.as_bytes().to_vec());
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        if self.forwarder.poll_timeout().is_some_and(|due| due <= self.now) {
            self.forwarder.handle_timeout(self.now);
        }
    }

    fn received(&mut self, id: PeerId) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.forwarder.poll_output(id)).map(|message| message.bytes).collect()
    }

    /// Returns the bundles that a peer has received, with each message as `sender text`.
    fn bundles(&mut self, id: PeerId) -> Vec<Vec<String>> {
        let text = |part: BundledMessage| format!("{} {}", part.peer, String::from_utf8_lossy(&part.message));
        let read = |bundle: Vec<u8>| parts(&bundle).expect("a bundle").into_iter().map(text).collect();
        self.received(id).into_iter().map(read).collect()
    }
}

#[test]
fn message_goes_to_named_receiver() {
    let mut bench = Bench::new(Config::default());
    let (a, b, c) = (bench.join("a", Some("b")), bench.join("b", Some("a")), bench.join("c", None));
    bench.send(a, "to b");
    bench.send(b, "to a");
    bench.send(c, "without a receiver");
    bench.forwarder.handle_message(bench.now, a, Lane::Latest, vec![0, 255]);
    assert_eq!(
        [bench.forwarder.poll_ready(), bench.forwarder.poll_ready(), bench.forwarder.poll_ready()],
        [Some(b), Some(a), None]
    );
    let first = bench.forwarder.poll_output(b).expect("a message");
    assert_eq!((first.lane, first.is_text, &first.bytes[..]), (Lane::Session, true, &b"to b"[..]));
    let second = bench.forwarder.poll_output(b).expect("a message");
    assert_eq!((second.lane, second.is_text, &second.bytes[..]), (Lane::Latest, false, &[0, 255][..]));
    assert_eq!((bench.received(a), bench.received(b).len(), bench.received(c).len()), (vec![b"to a".to_vec()], 0, 0));
    let stats = bench.forwarder.stats();
    assert_eq!((stats.received, stats.sent, stats.nowhere), (4, 3, 1));
    bench.forwarder.leave(b);
    bench.send(a, "too late");
    assert_eq!(bench.forwarder.stats().nowhere, 2);
}

#[test]
fn bundle_is_sent_when_window_ends() {
    let mut bench = Bench::gathering();
    let (a, b, up) = (bench.join("a", Some("up")), bench.join("b", Some("up")), bench.join("up", None));
    assert_eq!(bench.forwarder.poll_timeout(), None);
    bench.send(a, "1");
    assert_eq!(bench.forwarder.poll_timeout(), Some(bench.now + Duration::from_millis(250)));
    bench.wait_ms(100);
    bench.send(b, "2");
    bench.wait_ms(149);
    bench.send(a, "3");
    assert!(bench.bundles(up).is_empty() && bench.forwarder.poll_ready().is_none());
    bench.wait_ms(1);
    assert_eq!(bench.forwarder.poll_ready(), Some(up));
    assert_eq!(bench.bundles(up), [["a 1", "b 2", "a 3"]]);
    // The next window starts with the next message, not earlier.
    bench.wait_ms(1000);
    assert_eq!((bench.forwarder.poll_timeout(), bench.bundles(up).len()), (None, 0));
    bench.send(b, "4");
    bench.wait_ms(250);
    assert_eq!(bench.bundles(up), [["b 4"]]);
}

#[test]
fn bundle_is_sent_before_size_limit() {
    let limit = 200;
    let mut bench = Bench::new(Config { gathers: true, bundle_bytes_max: limit, ..Config::default() });
    let (a, up) = (bench.join("a", Some("up")), bench.join("up", None));
    for _ in 0..20 {
        bench.send(a, "0123456789");
    }
    let sizes: Vec<usize> = bench.received(up).iter().map(Vec::len).collect();
    assert!(sizes.len() >= 3 && sizes.iter().all(|size| *size <= limit), "{sizes:?}");
    // A message that is larger than the limit is sent at once and alone, after the earlier messages.
    bench.send(a, &"x".repeat(2 * limit));
    let bundles = bench.bundles(up);
    assert_eq!(bundles.len(), 2);
    assert_eq!((bundles[1].len(), bundles[1][0].len()), (1, 2 * limit + 2));
    assert_eq!(bench.forwarder.poll_timeout(), None);
}

#[test]
fn urgent_message_flushes_bundle() {
    let mut bench = Bench::gathering();
    let (a, b, up) = (bench.join("a", Some("up")), bench.join("b", Some("up")), bench.join("up", None));
    bench.send(b, "1");
    bench.send(a, "!2");
    assert_eq!(bench.bundles(up), [["b 1", "a !2"]]);
    bench.send(a, "!3");
    assert_eq!(bench.bundles(up), [["a !3"]]);
    // The window of a bundle that was sent early does not shorten the next window.
    bench.wait_ms(249);
    bench.send(b, "4");
    bench.wait_ms(249);
    assert!(bench.bundles(up).is_empty());
    bench.wait_ms(1);
    assert_eq!((bench.bundles(up), bench.forwarder.stats().urgent), (vec![vec!["b 4".to_owned()]], 2));
}

#[test]
fn bundle_is_split_by_receiver() {
    let mut bench = Bench::new(Config { splits: true, ..Config::default() });
    let hub = bench.join("hub", None);
    let arms: Vec<PeerId> = (0..10).map(|n| bench.join(&format!("arm-{n}"), Some("hub"))).collect();
    let mut bundle = Bundle::default();
    bundle.push_lost(1);
    for n in 0..10 {
        bundle.push(&format!("arm-{n}"), format!("move {n}").as_bytes());
    }
    bundle.push("unknown", b"x");
    bundle.push("arm-3", &[255]);
    bench.forwarder.handle_message(bench.now, hub, Lane::Session, bundle.take());
    for (n, arm) in arms.iter().enumerate() {
        let mut wanted = vec![format!("move {n}").into_bytes()];
        wanted.extend((n == 3).then(|| vec![255]));
        assert_eq!(bench.received(*arm), wanted, "{n}");
    }
    bench.send(arms[0], "as it is");
    assert_eq!(bench.received(hub), [b"as it is"]);
    bench.send(hub, "no bundle");
    let stats = bench.forwarder.stats();
    assert_eq!((stats.split_bundles, stats.nowhere, stats.refused), (1, 1, 1));
}

#[test]
fn data_flows_both_ways_at_once() {
    let mut bench = Bench::new(Config { gathers: true, splits: true, ..Config::default() });
    let (up, a, b) = (bench.join("up", None), bench.join("a", Some("up")), bench.join("b", Some("up")));
    bench.send(a, "1");
    bench.send(b, "2");
    bench.wait_ms(250);
    let gathered = bench.received(up).remove(0);
    // Another gateway can split what one gateway has gathered. Here the messages return to their senders.
    bench.forwarder.handle_message(bench.now, up, Lane::Session, gathered);
    assert_eq!((bench.received(a), bench.received(b)), (vec![b"1".to_vec()], vec![b"2".to_vec()]));
}

/// Deterministic sequence of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn messages_arrive_once_and_in_order() {
    for seed in 0..50 {
        let mut dice = Dice(seed);
        let config = Config { gathers: true, bundle_bytes_max: 150 + dice.below(500) as usize, ..Config::default() };
        let mut bench = Bench::new(config);
        let ups = [bench.join("up-0", None), bench.join("up-1", None)];
        let senders: Vec<PeerId> =
            (0..5).map(|n| bench.join(&format!("{n}"), Some(&format!("up-{}", n % 2)))).collect();
        let (mut sent, mut received) = ([0; 5], vec![Vec::new(); 5]);
        for _ in 0..1000 {
            let sender = dice.below(5) as usize;
            let mark = if dice.below(20) == 0 { "!" } else { "" };
            let text = format!("{mark}{}{}", sent[sender], "\n".repeat(dice.below(40) as usize));
            bench.send(senders[sender], &text);
            sent[sender] += 1;
            bench.wait_ms(dice.below(30));
            let due = bench.forwarder.poll_timeout();
            assert!(
                due.is_none_or(|due| due > bench.now && due <= bench.now + Duration::from_millis(250)),
                "seed {seed}"
            );
            for up in ups {
                for entry in bench.bundles(up).concat() {
                    let (from, text) = entry.split_once(' ').expect("a sender");
                    let number: u64 = text.trim_matches(['!', '\n']).parse().expect("a number");
                    received[from.parse::<usize>().expect("a number")].push(number);
                }
            }
        }
        bench.wait_ms(250);
        for up in ups {
            for entry in bench.bundles(up).concat() {
                let (from, text) = entry.split_once(' ').expect("a sender");
                received[from.parse::<usize>().expect("a number")]
                    .push(text.trim_matches(['!', '\n']).parse().expect("a number"));
            }
        }
        for sender in 0..5 {
            assert_eq!(received[sender], (0..sent[sender]).collect::<Vec<u64>>(), "seed {seed}, sender {sender}");
        }
    }
}

#[test]
fn stalled_receiver_has_bounded_queue_and_gap_report() {
    let queue_bytes_max = 4096;
    let mut bench = Bench::new(Config { gathers: true, bundle_bytes_max: 300, queue_bytes_max, ..Config::default() });
    let (a, up) = (bench.join("a", Some("up")), bench.join("up", None));
    for n in 0..1000 {
        bench.send(a, &format!("{n:0100}"));
    }
    bench.wait_ms(250);
    let entry = &bench.forwarder.peers[&up];
    let queued: usize = entry.queue.iter().map(|message| message.bytes.len()).sum();
    assert!(queued <= queue_bytes_max && entry.queue.len() > 5, "{queued} bytes");
    let lost = bench.forwarder.stats().lost;
    // A receiver that continues to read gets a report of every dropped message.
    bench.send(a, "next");
    bench.wait_ms(250);
    let (mut received, mut reported) = (Vec::new(), 0);
    for text in bench.received(up) {
        let items: Vec<serde_json::Value> = serde_json::from_slice(&text).expect("JSON");
        reported += items.iter().filter_map(|item| item["lost"].as_u64()).sum::<u64>();
        received.extend(parts(&text).expect("a bundle"));
    }
    assert!(lost > 900 && received[received.len() - 2].message.ends_with(b"999"), "the oldest messages are dropped");
    assert_eq!((received.len() as u64 + lost, reported), (1001, lost));
}

#[test]
fn rejected_join_has_reason() {
    let mut bench = Bench::new(Config { peers_max: 2, ..Config::default() });
    let mut join = |name: &str, to: Option<&str>| {
        bench.forwarder.join(PeerOptions { name: name.into(), to: to.map(Into::into), urgent: None })
    };
    assert!(join("a", Some("b")).is_ok());
    assert_eq!(join("a", None), Err(Refused::NameTaken));
    for (name, to) in [("", None), ("x\n", None), ("y", Some("")), (&"z".repeat(65)[..], None)] {
        assert_eq!(join(name, to), Err(Refused::BadName));
    }
    assert!(join("b", None).is_ok());
    assert_eq!(join("c", None), Err(Refused::Full));
}

#[test]
fn oversized_message_is_rejected() {
    let mut bench = Bench::new(Config { gathers: true, splits: true, ..Config::default() });
    let (a, up) = (bench.join("a", Some("up")), bench.join("up", None));
    bench.send(a, &"x".repeat(MESSAGE_BYTES_MAX + 1));
    bench.send(up, &format!("[{}]", " ".repeat(BUNDLE_BYTES_MAX)));
    assert_eq!((bench.forwarder.stats().refused, bench.forwarder.poll_timeout()), (2, None));
}
