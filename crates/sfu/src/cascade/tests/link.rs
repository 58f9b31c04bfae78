//! Links in one situation each.

use std::time::Duration;

use rand_pcg::{Pcg64Mcg, rand_core::Rng};

use super::world::{RATES, ROOM, World};
use crate::{
    cascade::{
        Codec, DEAD_TIMEOUT, Event, Handle, LINGER, Layers, Link, NodeId, Packet, Refused, SenderReport, TrackInfo,
        UNUSED_TIMEOUT,
        frame::{self, FrameError, Head, Table, VERSION, Want},
    },
    congestion::Algorithm,
};

const SETTLED: Duration = Duration::from_secs(2);

fn two(wants: u8) -> (World, NodeId, NodeId) {
    let mut world = World::new(1);
    let (a, b) = (World::node("a"), World::node("b"));
    world.add_node("a");
    world.add_node("b");
    world.nodes.get_mut(&b).unwrap().wants = Layers(wants);
    world.join(&a, "m", 1);
    world.run(SETTLED);
    (world, a, b)
}

#[test]
fn only_wanted_layers_cross_the_link() {
    let (mut world, a, b) = two(0b010);
    assert_eq!(world.seen(&b), world.expected(&b));
    world.run(SETTLED);
    world.take_received(&b);
    world.run(Duration::from_secs(1));
    let received = world.take_received(&b);
    let layers: Vec<u8> = received.keys().filter(|(_, track, _)| *track == 1).map(|key| key.2).collect();
    assert_eq!(layers, [1]);
    assert!(received.values().all(|count| (49..=51).contains(count)), "{received:?}");
    assert_eq!(world.take_received(&a).len(), 0, "nothing returns");
    let link = world.nodes[&a].mesh.links().next().unwrap().1;
    assert_eq!((link.counters().retransmitted, link.counters().unwanted), (0, 0));
}

#[test]
fn layer_lingers_before_it_stops() {
    let (mut world, a, b) = two(0b101);
    world.run(SETTLED);
    let id = world.remote_id(&b, "m", 1).unwrap();
    let now = world.now;
    world.nodes.get_mut(&b).unwrap().mesh.want(&id, Layers(0b001), false, now);
    world.run(LINGER - Duration::from_millis(500));
    world.take_received(&b);
    let keyframes = world.nodes[&a].keyframes.len();
    let now = world.now;
    world.nodes.get_mut(&b).unwrap().mesh.want(&id, Layers(0b101), false, now);
    world.run(Duration::from_millis(500));
    assert!(world.take_received(&b)[&("m".into(), 1, 2)] > 40, "it has not stopped");
    assert_eq!(world.nodes[&a].keyframes.len(), keyframes, "so that it needs no keyframe");
    let now = world.now;
    world.nodes.get_mut(&b).unwrap().mesh.want(&id, Layers(0b001), false, now);
    world.run(LINGER + Duration::from_millis(500));
    world.take_received(&b);
    world.run(Duration::from_secs(1));
    assert_eq!(world.take_received(&b).get(&("m".into(), 1, 2)), None);
}

#[test]
fn lost_packets_are_retransmitted() {
    let (mut world, a, b) = two(0b011);
    world.take_received(&b);
    world.loss = 0.05;
    world.run(Duration::from_secs(10));
    world.loss = 0.0;
    world.run(Duration::from_millis(200));
    let received = world.take_received(&b)[&("m".into(), 0, 0)];
    assert!(received >= 500, "{received} of 510; without retransmission 484");
    assert!(world.nodes[&a].mesh.counters().retransmitted > 20);
    let link = world.nodes[&a].mesh.links().next().unwrap().1;
    let rtt = link.round_trip_time();
    assert!((Duration::from_millis(19)..Duration::from_millis(32)).contains(&rtt), "{rtt:?}");
}

#[test]
fn narrow_link_loses_layers_not_packets() {
    let mut world = World::new(2);
    let (a, b) = (World::node("a"), World::node("b"));
    world.add_node("a");
    world.add_node("b");
    world.capacity = Some(2_000_000);
    for member in ["x", "y", "z"] {
        world.join(&a, member, 1);
    }
    world.run(Duration::from_secs(30));
    world.take_received(&b);
    world.run(Duration::from_secs(10));
    let received = world.take_received(&b);
    for member in ["x", "y", "z"] {
        for track in [0, 1] {
            let count = received.get(&(member.into(), track, 0)).copied().unwrap_or(0);
            assert!(count >= 495, "{count} of 500 packets of {member}, track {track}: {received:?}");
        }
    }
    let upper: usize =
        received.iter().filter(|((_, track, layer), _)| *track == 1 && *layer > 0).map(|one| one.1).sum();
    assert!(upper >= 500, "the rest of the link is used: {received:?}");
    let estimate = world.nodes[&a].mesh.links().next().unwrap().1.bits_per_s();
    assert!((800_000..=3_000_000).contains(&estimate), "{estimate}, of 5,000,000 at first");
}

#[test]
fn wide_link_carries_all_layers_after_probes() {
    let mut world = World::new(3);
    let (a, b) = (World::node("a"), World::node("b"));
    world.add_node("a");
    world.add_node("b");
    world.capacity = Some(100_000_000);
    for member in 0..8 {
        world.join(&a, &format!("m{member}"), 1);
    }
    world.run(Duration::from_secs(15));
    world.take_received(&b);
    world.run(Duration::from_secs(1));
    let received = world.take_received(&b);
    let best = received.iter().filter(|((_, track, layer), count)| (*track, *layer) == (1, 2) && **count >= 90).count();
    assert_eq!(best, 8, "{received:?}, {}", RATES.iter().sum::<u64>() * 8);
}

/// A pair of links without loss, for frames that a test writes itself.
struct Pair {
    one: Link,
    other: Link,
    now: std::time::Instant,
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new() -> Self {
        let now = std::time::Instant::now();
        let (a, b) = (World::node("a"), World::node("b"));
        let one = Link::new((a.clone(), b.clone()), 1, Algorithm::Gcc, now);
        let mut pair = Self { one, other: Link::new((b, a), 2, Algorithm::Gcc, now), now };
        pair.run(Duration::from_millis(100));
        pair
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            loop {
                let (from_one, from_other) = (self.one.poll_frame(), self.other.poll_frame());
                if from_one.is_none() && from_other.is_none() {
                    break;
                }
                from_one.into_iter().for_each(|frame| self.other.handle_frame(&frame, self.now).unwrap());
                from_other.into_iter().for_each(|frame| self.one.handle_frame(&frame, self.now).unwrap());
            }
            self.now += Duration::from_millis(5);
            self.one.handle_timeout(self.now);
            self.other.handle_timeout(self.now);
        }
    }

    fn events(link: &mut Link) -> Vec<Event> {
        std::iter::from_fn(|| link.poll_event()).collect()
    }
}

fn info(handle: u32, is_audio: bool) -> TrackInfo {
    TrackInfo {
        handle: Handle(handle),
        generation: 1,
        room: ROOM.into(),
        member: format!("m{handle}").into(),
        index: 0,
        is_audio,
        is_muted: false,
        is_participant: true,
        is_screen: false,
        layers: if is_audio { 1 } else { 3 },
    }
}

fn want(handle: u32, layers: u8) -> Want {
    Want { handle: Handle(handle), layers: Layers(layers), has_priority: false }
}

fn packet(layer: u8, sequence: u64, level: Option<u8>) -> Packet {
    Packet {
        layer,
        codec: Codec::new(1).unwrap(),
        sequence,
        time: 7 + (3 << 32),
        marker: false,
        audio_level: level.map(|level| (level, true)),
        orientation: None,
        payload: [1; 50].into(),
    }
}

#[test]
fn keyframe_requests_are_merged() {
    let mut pair = Pair::new();
    pair.one.set_tracks([info(1, false)].into_iter(), pair.now);
    pair.run(Duration::from_millis(50));
    pair.other.set_wants([want(1, 0b11)].into_iter(), pair.now);
    pair.run(Duration::from_millis(50));
    let wanted = |pair: &mut Pair| {
        let events = Pair::events(&mut pair.one).into_iter();
        events.filter(|event| matches!(event, Event::KeyframeWanted(..))).collect::<Vec<_>>()
    };
    let both = [Event::KeyframeWanted(Handle(1), 0), Event::KeyframeWanted(Handle(1), 1)];
    assert_eq!(wanted(&mut pair), both, "both layers begin");
    for _ in 0..20 {
        pair.other.request_keyframe(Handle(1), 1, pair.now);
        pair.other.request_keyframe(Handle(1), 3, pair.now);
        pair.other.request_keyframe(Handle(9), 0, pair.now);
        pair.run(Duration::from_millis(10));
    }
    assert_eq!(wanted(&mut pair), [Event::KeyframeWanted(Handle(1), 1)], "layer 3 is not carried, track 9 unknown");
    pair.run(Duration::from_millis(200));
    pair.other.request_keyframe(Handle(1), 1, pair.now);
    pair.run(Duration::from_millis(10));
    assert_eq!(wanted(&mut pair).len(), 1);
}

#[test]
fn eight_loudest_tracks_cross_the_link() {
    let mut pair = Pair::new();
    pair.one.set_tracks((1..=10).map(|handle| info(handle, true)), pair.now);
    pair.run(Duration::from_millis(50));
    pair.other.set_wants((1..=10).map(|handle| want(handle, 1)), pair.now);
    let talk = |pair: &mut Pair, quiet: [u32; 2]| {
        for sequence in 0..100 {
            for handle in 1..=10 {
                let level = if quiet.contains(&handle) { 70 } else { 20 };
                pair.one.forward(Handle(handle), &packet(0, sequence, Some(level)), pair.now);
            }
            pair.run(Duration::from_millis(20));
        }
        (1..=10)
            .filter(|handle| pair.other.remote_track(Handle(*handle)).unwrap().carried.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(talk(&mut pair, [3, 4]), [3, 4]);
    Pair::events(&mut pair.other);
    assert_eq!(talk(&mut pair, [1, 9]), [1, 9]);
    let levels = Pair::events(&mut pair.other).into_iter().filter_map(|event| match event {
        Event::Levels(levels) => Some(levels),
        _ => None,
    });
    assert_eq!(levels.last(), Some(vec![(Handle(1), 70), (Handle(9), 70)]));
}

#[test]
fn numbers_and_sender_reports_cross_the_link() {
    let mut pair = Pair::new();
    pair.one.set_tracks([info(1, false)].into_iter(), pair.now);
    pair.run(Duration::from_millis(50));
    pair.other.set_wants([want(1, 0b1)].into_iter(), pair.now);
    pair.run(Duration::from_millis(50));
    Pair::events(&mut pair.other);
    let first = (1 << 33) - 2;
    for sequence in [first, first + 1, first + 3, first + 2] {
        assert!(pair.one.forward(Handle(1), &packet(0, sequence, None), pair.now));
    }
    assert!(!pair.one.forward(Handle(1), &packet(1, 7, None), pair.now), "this layer is not wanted");
    let report = SenderReport { handle: Handle(1), layer: 0, rtp: 7, ntp: 1 << 60 };
    pair.one.forward_sender_report(report, pair.now);
    pair.run(Duration::from_millis(50));
    let events = Pair::events(&mut pair.other);
    let numbers: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Media(Handle(1), packet) => Some(packet.sequence),
            _ => None,
        })
        .collect();
    let at = numbers[0];
    assert_eq!(numbers, [at, at + 1, at + 3, at + 2]);
    assert_eq!(at as u32, first as u32);
    assert!(events.contains(&Event::SenderReport(report)));
}

#[test]
fn node_that_breaks_the_protocol_is_refused() {
    let mut pair = Pair::new();
    let node = World::node("c");
    let head = |sequence| Head { epoch: 1, sequence };
    let hello = frame::hello(head(9), &node, 0);
    let (expected, said) = ("a".to_owned(), "c".to_owned());
    assert_eq!(pair.other.handle_frame(&hello, pair.now), Err(Refused::Node { expected, said }));
    let mut newer = frame::padding(head(9), 20);
    newer[0] = frame::FIRST_BYTE + VERSION + 1;
    let version = FrameError::Version(VERSION + 1);
    assert_eq!(pair.other.handle_frame(&newer, pair.now), Err(Refused::Frame(version)));
    let mut entries = Vec::new();
    info(1, true).encode(&mut entries);
    info(1, false).encode(&mut entries);
    let table = frame::table(head(100), Table::Tracks, 9, (0, 0), &entries);
    assert_eq!(pair.other.handle_frame(&table, pair.now), Err(Refused::DuplicateTrack(1)));
    let short = frame::table(head(101), Table::Tracks, 10, (0, 0), &entries[1..]);
    assert!(matches!(pair.other.handle_frame(&short, pair.now), Err(Refused::Frame(_))));
}

#[test]
fn frames_of_an_earlier_epoch_are_void() {
    let mut pair = Pair::new();
    pair.one.set_tracks([info(1, false)].into_iter(), pair.now);
    pair.run(Duration::from_millis(50));
    assert_eq!(pair.other.remote_tracks().count(), 1);
    // The first node begins again, without a track.
    let (a, b) = (World::node("a"), World::node("b"));
    pair.one = Link::new((a.clone(), b), 3, Algorithm::Gcc, pair.now);
    pair.run(Duration::from_millis(400));
    assert!(pair.one.is_established() && pair.other.is_established());
    assert_eq!(pair.other.remote_tracks().count(), 0);
    let old = frame::hello(Head { epoch: 1, sequence: 1000 }, &a, 2);
    let stale = pair.other.counters().stale;
    pair.other.handle_frame(&old, pair.now).unwrap();
    pair.other.handle_frame(&frame::padding(Head { epoch: 1, sequence: 1001 }, 50), pair.now).unwrap();
    assert_eq!(pair.other.counters().stale, stale + 2);
    assert!(pair.other.is_established());
}

#[test]
fn media_that_nobody_wants_is_dropped() {
    let mut pair = Pair::new();
    let media = frame::media(Head { epoch: 1, sequence: 500 }, Handle(1), &packet(0, 1, None)).unwrap();
    pair.other.handle_frame(&media, pair.now).unwrap();
    assert!(!Pair::events(&mut pair.other).iter().any(|event| matches!(event, Event::Media(..))));
    assert_eq!(pair.other.counters().unwanted, 1);
    pair.other.handle_frame(&media, pair.now).unwrap();
    assert_eq!((pair.other.counters().unwanted, pair.other.counters().duplicates), (1, 1));
}

#[test]
fn silent_link_dies_and_unused_link_is_reported() {
    let mut pair = Pair::new();
    pair.run(UNUSED_TIMEOUT);
    assert!(Pair::events(&mut pair.one).contains(&Event::Unused));
    assert!(!pair.one.is_silent(), "an idle link sends empty reports");
    for _ in 0..200 {
        pair.now += Duration::from_millis(5);
        pair.one.handle_timeout(pair.now);
    }
    assert_eq!(Pair::events(&mut pair.one), [Event::Silent]);
    pair.run(Duration::from_millis(300));
    assert_eq!(Pair::events(&mut pair.one), [Event::Alive]);
    pair.now += DEAD_TIMEOUT;
    pair.one.handle_timeout(pair.now);
    assert_eq!(Pair::events(&mut pair.one), [Event::Silent, Event::Dead]);
}

/// The fuzz target `cascade` does the same with inputs that its coverage guides.
#[test]
fn frames_of_any_content_are_handled() {
    let mut random = Pcg64Mcg::new(7);
    let mut below = move |max: u64| random.next_u64() % max;
    for _ in 0..300 {
        let mut pair = Pair::new();
        pair.one.set_tracks((1..9).map(|handle| info(handle, handle % 2 == 0)), pair.now);
        for sequence in 100..200 {
            let mut bytes = frame::padding(Head { epoch: 1, sequence: sequence + below(3) }, 14);
            bytes[1] = below(12) as u8;
            // Few different bytes, so that lengths, handles and flags are often valid.
            bytes.extend((0..below(80)).map(|_| [0, 0, 0, 1, 2, 3, 0x80, 0xff][below(8) as usize]));
            if pair.other.handle_frame(&bytes, pair.now).is_err() {
                break;
            }
            pair.now += Duration::from_millis(below(20));
            pair.other.handle_timeout(pair.now);
            let answers: usize = std::iter::from_fn(|| pair.other.poll_frame()).map(|frame| frame.len()).sum();
            assert!(answers < 100_000, "{answers} bytes for one frame");
            while pair.other.poll_event().is_some() {}
        }
    }
}
