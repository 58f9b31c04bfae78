//! The contract of every engine. Each case runs on every engine, unless the case gives a reason.

use std::{sync::atomic::Ordering, time::Duration};

use millrace_engine::{Config, HistoryConfig};
use millrace_protocol::{
    Code, Epoch, Holder, INTERNAL, Kind, NewPublication, Pattern, Position, Since, TraceContext,
    session::{Policy, Target},
};

use crate::{
    servers::until,
    worlds::{LIMIT, channel, on_engines_that_bound_all, on_engines_with_a_given_clock, on_every_engine, text, wait},
};

/// Margin for the engine's own clock. Its estimate is as good as the engine's fastest answer: after a slow first answer
/// the clock may be set back by half of that time.
const SURELY: Duration = Duration::from_millis(200);
/// Trace context that publications carry.
const TRACE: TraceContext = TraceContext { trace_id: [7; 16], span_id: [9; 8], flags: 1 };

#[test]
fn positions_increase_by_one_and_arrive_in_order() {
    on_every_engine(Config::default(), |world| {
        world.watch("a/b");
        let positions: Vec<_> = (0..5).map(|i| world.append("a/b", text(&i.to_string()))).collect();
        assert_eq!(positions.iter().map(|p| p.offset).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(positions.iter().all(|p| p.epoch == positions[0].epoch));
        assert_eq!(world.append("other", text("x")).offset, 1);
        assert_eq!(world.delivered("a/b", 5), positions.iter().map(|p| (p.epoch, p.offset)).collect::<Vec<_>>());
    });
}

#[test]
fn concurrent_publishers_keep_channel_order() {
    on_every_engine(Config::default(), |world| {
        world.watch("busy");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| world.publish("busy")));
            }
        });
        let offsets: Vec<_> = world.delivered("busy", 2000).iter().map(|(_, offset)| *offset).collect();
        assert_eq!(offsets, (1..=2000).collect::<Vec<_>>());
    });
}

#[test]
fn history_starts_after_any_position() {
    on_every_engine(Config::default(), |world| {
        assert_eq!(world.read("a", Since::Earliest), (None, vec![]));
        let positions: Vec<_> = (0..4).map(|_| world.append("a", text("x"))).collect();
        assert_eq!(world.read("a", Since::Earliest), (None, vec![1, 2, 3, 4]));
        assert_eq!(world.read("a", Since::Position(positions[1])), (None, vec![3, 4]));
        assert_eq!(world.read("a", Since::Now), (None, vec![]));
        let newest = wait(world.engine.newest(&channel("a"))).unwrap();
        assert_eq!((newest.top, newest.publication.unwrap().offset), (positions[3], 4));
    });
}

#[test]
fn trimmed_publications_are_reported_as_gap() {
    let small = HistoryConfig { count_max: 3, bytes_max: 1000, ..HistoryConfig::default() };
    let config = Config { namespaces: [("small".to_owned(), small)].into(), ..Config::default() };
    on_every_engine(config, |world| {
        let first = world.append("small/x", text("1"));
        (0..4).for_each(|_| world.publish("small/x"));
        let at = |offset| Position { offset, ..first };
        assert_eq!(world.read("small/x", Since::Position(first)), (Some((first, at(2))), vec![3, 4, 5]));
        (0..5).for_each(|_| world.publish("large/x"));
        assert_eq!(world.read("large/x", Since::Earliest).1.len(), 5);
        world.append("small/x", text(&"x".repeat(990)));
        assert_eq!(world.read("small/x", Since::Earliest), (None, vec![4, 5, 6]));
        world.append("small/x", text(&"x".repeat(990)));
        assert_eq!(world.read("small/x", Since::Position(at(5))), (Some((at(5), at(6))), vec![7]));
    });
}

#[test]
fn expired_history_keeps_positions() {
    let age_max = Duration::from_millis(400);
    let short = HistoryConfig { age_max, ..HistoryConfig::default() };
    on_every_engine(Config { history: short, ..Config::default() }, |world| {
        let first = world.append("x", text("1"));
        let at = |offset| Position { offset, ..first };
        world.pass(age_max + SURELY);
        world.engine.sweep();
        assert_eq!(world.read("x", Since::Position(at(1))), (None, vec![]));
        assert_eq!(world.read("x", Since::Position(at(0))), (Some((at(0), at(1))), vec![]));
        assert_eq!(wait(world.engine.newest(&channel("x"))).unwrap().publication, None);
        assert_eq!(world.append("x", text("2")), at(2));
    });
}

/// The total history of all channels is limited to a small multiple of 10,000 bytes.
#[test]
fn longest_idle_channels_are_removed_first() {
    on_engines_that_bound_all(Config { history_bytes_max: 50_000, ..Config::default() }, |world| {
        let large = || text(&"x".repeat(10_000));
        let first = world.append("old", large());
        world.pass(Duration::from_secs(1));
        world.append("silent", large());
        world.pass(Duration::from_secs(10 * 60));
        for _ in 0..3 {
            world.append("busy", large());
        }
        let at = |offset| Position { offset, ..first };
        assert_eq!(world.read("old", Since::Position(at(0))), (Some((at(0), at(1))), vec![]));
        assert_eq!(world.read("silent", Since::Earliest), (None, vec![1]), "one was enough");
        assert_eq!(world.read("busy", Since::Earliest), (None, vec![1, 2, 3]));
        assert_eq!(world.append("old", large()), at(2), "positions go on");
        assert_eq!(world.read("old", Since::Position(at(1))), (None, vec![2]));
        assert_eq!(world.read("silent", Since::Position(at(0))), (Some((at(0), at(1))), vec![]));
    });
}

#[test]
fn without_idle_channels_longest_histories_are_trimmed() {
    on_engines_that_bound_all(Config { history_bytes_max: 50_000, ..Config::default() }, |world| {
        let first = world.append("short", text(&"x".repeat(1000)));
        for _ in 0..100 {
            world.append("long", text(&"x".repeat(1000)));
        }
        assert_eq!(world.read("short", Since::Position(first)), (None, vec![]));
        assert_eq!(world.read("short", Since::Earliest), (None, vec![1]));
        let (gap, left) = world.read("long", Since::Position(first));
        let (from, to) = gap.expect("the oldest are gone, and that is said");
        assert_eq!((from, to.offset + 1, *left.last().unwrap()), (first, left[0], 100));
        assert!((30..=50).contains(&left.len()), "{left:?}");
        assert!(world.engine.size().1 <= 50_000);
    });
}

#[test]
fn concurrent_publishers_stay_within_channel_limit() {
    on_engines_that_bound_all(Config { history_bytes_max: 100_000, ..Config::default() }, |world| {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for i in 0..500 {
                        world.append(&format!("c/{thread}/{}", i % 50), text(&"x".repeat(500)));
                    }
                });
            }
        });
        world.publish("last");
        assert!(world.engine.size().1 <= 100_000, "{:?}", world.engine.size());
        assert_eq!(world.append("c/0/0", text("x")).offset, 11);
    });
}

#[test]
fn presence_is_the_sum_of_nodes() {
    on_every_engine(Config::default(), |world| {
        assert_eq!(wait(world.engine.presence(&channel("seven/7"))), Ok(7));
    });
}

#[test]
fn other_epoch_is_reported_as_gap() {
    on_every_engine(Config::default(), |world| {
        let here = world.append("a", text("x"));
        let elsewhere = Position { epoch: Epoch(here.epoch.0 ^ 1), offset: 7 };
        let before = Position { offset: 0, ..here };
        assert_eq!(world.read("a", Since::Position(elsewhere)), (Some((elsewhere, before)), vec![1]));
    });
}

#[test]
fn idempotency_key_publishes_once_per_engine() {
    on_every_engine(Config::default(), |world| {
        world.watch("a");
        let keyed = || NewPublication { idempotency_key: Some("once".into()), ..text("x") };
        let first = world.append("a", keyed());
        assert_eq!(world.append("a", keyed()), first);
        world.publish("a");
        assert_eq!(world.append("a", keyed()), first);
        assert_eq!(world.append("b", keyed()).offset, 1, "keys belong to their channel");
        assert_eq!(world.delivered("a", 2).len(), 2);
    });
}

#[test]
fn time_never_decreases_and_is_searchable() {
    on_engines_with_a_given_clock(Config::default(), |world| {
        world.append("a", text("1"));
        world.clock_ms.as_ref().unwrap().fetch_sub(500, Ordering::SeqCst);
        world.append("a", text("2"));
        world.pass(Duration::from_secs(1));
        world.append("a", text("3"));
        let page = wait(world.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        let times: Vec<_> = page.publications.iter().map(|p| p.time_ms).collect();
        assert_eq!(times, [1_000_000, 1_000_000, 1_000_500]);
        assert_eq!(world.read("a", Since::Time(1_000_001)), (None, vec![3]));
    });
}

/// Neither a list nor a pattern contains the channels of the server itself, and they keep their own history.
#[test]
fn internal_channels_have_own_history_and_are_not_listed() {
    let short = HistoryConfig { count_max: 1, ..HistoryConfig::default() };
    let config = Config { history: short, internal: HistoryConfig::default(), ..Config::default() };
    on_every_engine(config, |world| {
        let internal = format!("{INTERNAL}/x");
        (0..3).for_each(|_| world.publish(&internal));
        world.publish("a");
        let all = Pattern::parse("#").unwrap();
        assert_eq!(wait(world.engine.channels(&all, None, 10)).unwrap(), [channel("a")]);
        if world.engine.node().is_some() {
            assert_eq!(world.read(&internal, Since::Earliest), (None, vec![1, 2, 3]));
        }
    });
}

#[test]
fn channel_list_matches_pattern_within_limit() {
    on_every_engine(Config { channels_max: 4, ..Config::default() }, |world| {
        for name in ["cars/1/telemetry", "cars/2/telemetry", "cars/1/alarm", "x"] {
            world.append(name, text("x"));
        }
        let pattern = Pattern::parse("cars/+/telemetry").unwrap();
        let list =
            |after: Option<&str>, max| wait(world.engine.channels(&pattern, after.map(channel).as_ref(), max)).unwrap();
        let both = [channel("cars/1/telemetry"), channel("cars/2/telemetry")];
        assert_eq!(list(None, 10), both);
        assert_eq!(list(None, 1), both[..1]);
        assert_eq!(list(Some("cars/1/telemetry"), 10), both[1..]);
        assert_eq!(list(Some("cars/1/telemetrx"), 1), both[..1], "the name need not exist");
        assert_eq!(list(Some("cars/2/telemetry"), 10), []);
        assert_eq!(list(None, 0), []);
        // Where several nodes share an engine, each node counts the channels only from time to time.
        let is_refused = |i: usize| match wait(world.engine.append(&channel(&format!("more/{i}")), text("x"))) {
            Ok(_) => false,
            Err(error) => error.code == Code::TooMany || panic!("{error}"),
        };
        let tried = std::cell::Cell::new(0);
        let limit = Duration::from_secs(if world.clock_ms.is_some() { 0 } else { 15 });
        assert!(until(limit, || is_refused(tried.replace(tried.get() + 1))), "{} channels", tried.get());
        world.publish("x");
    });
}

#[test]
fn flooding_holder_leaves_room_for_others() {
    let config = Config { channels_max: 180, reserved: vec!["rooms".into()], ..Config::default() };
    on_every_engine(config, |world| {
        let append = |holder: u32, name: &str| {
            let publication = text("x").held_by(Holder::new(holder));
            wait(world.engine.append(&channel(name), publication)).map(|position| position.offset)
        };
        let flooded = (0..200).take_while(|i| append(1, &format!("flood/{i}")).is_ok()).count();
        assert!((150..=160).contains(&flooded), "{flooded} channels");
        let told = append(1, "flood/more").unwrap_err();
        assert!(told.code == Code::TooMany && told.detail.contains("this client has created"), "{told}");
        for holder in 2..7 {
            assert_eq!(append(holder, &format!("honest/{holder}")), Ok(1));
            assert_eq!(append(holder, &format!("rooms/{holder}/chat")), Ok(1));
        }
        assert_eq!(append(1, "flood/0"), Ok(2), "what exists goes on");
    });
}

#[test]
fn times_are_searched_by_engine_clock() {
    on_every_engine(Config::default(), |world| {
        for i in 1..=40 {
            world.append("a", text(&i.to_string()));
            world.pass(Duration::from_millis(2));
        }
        let now = world.engine.now_ms();
        let page = wait(world.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        let times: Vec<_> = page.publications.iter().map(|p| p.time_ms).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert!(now.abs_diff(times[39]) < 10_000, "{now} and {times:?}");
        // On a busy machine the publications are seconds apart. Only the times around each of them are searched.
        for time in times.iter().flat_map(|time| time - 1..=time + 1) {
            let wanted = (1..=40).filter(|i| times[*i as usize - 1] >= time).collect::<Vec<_>>();
            assert_eq!(world.read("a", Since::Time(time)), (None, wanted), "{time} of {times:?}");
        }
    });
}

#[test]
fn payloads_of_every_kind_round_trip() {
    on_every_engine(Config::default(), |world| {
        let all = [
            NewPublication::new(Kind::Json, b"{\"a\": 1}"),
            NewPublication { key: Some("k\u{e4}".into()), ..text("") },
            NewPublication { ttl_ms: Some(60_000), ..NewPublication::new(Kind::Binary, [0, 255, 10, 13]) },
            NewPublication::new(Kind::Binary, vec![7; 1 << 20]),
            text("traced").traced(Some(TRACE)),
            NewPublication { key: Some("k".into()), ..NewPublication::new(Kind::Json, b"[]") }.traced(Some(TRACE)),
        ];
        let positions: Vec<_> = all.iter().map(|new| world.append("any", new.clone())).collect();
        let mut since = Since::Earliest;
        let mut read = Vec::new();
        while read.len() < all.len() {
            let page = wait(world.engine.page(&channel("any"), since, Policy::Every, LIMIT)).unwrap();
            assert!(page.gap.is_none() && !page.publications.is_empty());
            since = Since::Position(page.end);
            read.extend(page.publications);
        }
        for ((publication, new), position) in read.iter().zip(&all).zip(&positions) {
            assert_eq!((&publication.key, publication.kind, publication.data()), (&new.key, new.kind, &new.data[..]));
            assert_eq!((publication.offset, publication.trace()), (position.offset, new.trace()));
            // The times of a log never decrease. If the engine's clock goes back, the time of the previous publication
            // is used.
            let came_ms = publication.expires_ms.zip(new.ttl_ms).map(|(expires, ttl)| expires - ttl);
            assert_eq!(publication.expires_ms.is_some(), new.ttl_ms.is_some());
            let before_ms = publication.offset.checked_sub(2).map_or(0, |i| read[i as usize].time_ms);
            assert!(
                came_ms.is_none_or(|came| publication.time_ms == before_ms.max(came)),
                "{publication:?} after {before_ms}"
            );
        }
    });
}

#[test]
fn expired_publication_is_reported_as_gap() {
    on_every_engine(Config::default(), |world| {
        let first = world.append("a", text("1"));
        world.append("a", NewPublication { ttl_ms: Some(50), ..text("2") });
        world.append("a", text("3"));
        world.pass(Duration::from_millis(50) + SURELY);
        let at = |offset| Position { offset, ..first };
        assert_eq!(world.read("a", Since::Position(at(1))), (Some((at(1), at(2))), vec![3]));
        let page = wait(world.engine.page(&channel("a"), Since::Earliest, Policy::Every, LIMIT)).unwrap();
        assert_eq!((page.publications.len(), page.end), (1, at(1)));
    });
}

#[test]
fn latest_returns_newest_per_key_of_long_log() {
    on_every_engine(Config::default(), |world| {
        let keyed = |key: &str| NewPublication { key: Some(key.into()), ..text("x") };
        let before = world.append("a", keyed("old"));
        for _ in 0..2500 {
            drop(world.engine.append(&channel("a"), keyed("often")));
        }
        let last = world.append("a", keyed("last"));
        assert_eq!(last.offset, 2502);
        let page = |since| wait(world.engine.page(&channel("a"), since, Policy::Latest, LIMIT)).unwrap();
        let offsets = |since| page(since).publications.iter().map(|p| p.offset).collect::<Vec<_>>();
        assert_eq!(offsets(Since::Earliest), [1, 2501, 2502]);
        assert_eq!(offsets(Since::Position(before)), [2501, 2502]);
        assert_eq!((page(Since::Earliest).end, page(Since::Now).end), (last, last));
    });
}

#[test]
fn pattern_includes_channels_created_later() {
    on_every_engine(Config::default(), |world| {
        let pattern = Pattern::parse("cars/+/speed").unwrap();
        world.publish("cars/1/speed");
        world.engine.watch(&Target::Pattern(pattern.clone()), true);
        wait(world.engine.joined(&pattern)).unwrap();
        world.publish("cars/1/speed");
        assert_eq!(world.delivered("cars/1/speed", 1).last().unwrap().1, 2);
        world.publish("cars/2/speed");
        world.publish("cars/2/alarm");
        assert_eq!(world.delivered("cars/2/speed", 1).len(), 1);
    });
}
