//! Short scripts on a hub: inputs in, bytes out.

use std::{collections::HashMap, num::NonZeroU16};

use millrace_delivery::{Bounds, Config, ConnId, FirstPage, History, Output, WaiterId};
use millrace_protocol::{Code, Encoding, Epoch, Pattern, Position, Since, session::Policy, session::Target};

use crate::stage::{BOUNDS, Stage, at, at_position, line, name, pattern, push};

#[test]
fn one_turn_makes_one_write_per_reader() {
    let mut stage = Stage::new();
    let readers = [stage.reader(Encoding::Ndjson, "a"), stage.reader(Encoding::Ndjson, "a")];
    for data in ["x", "y", "z"] {
        stage.publish("a", data);
    }
    assert!(readers.iter().all(|conn| stage.tape.take(*conn).is_empty()), "nothing leaves before the turn ends");
    stage.flush();
    let expected = [line(1, "x"), line(2, "y"), line(3, "z")].concat();
    for conn in readers {
        assert_eq!(stage.tape.take(conn), [expected.as_str()]);
    }
    stage.flush();
    assert!(stage.tape.writes.is_empty());
}

#[test]
fn blocked_reader_has_no_queue() {
    let mut stage = Stage::new();
    let slow = stage.reader(Encoding::Session, "a");
    stage.tape.room.insert(slow, 10);
    for i in 1..=2000 {
        stage.publish("a", &format!("{i:0>100}"));
        stage.flush();
        assert!(
            stage.hub.out_bytes(slow) <= push("a", i, &"0".repeat(100)).len(),
            "at {i}: {} bytes",
            stage.hub.out_bytes(slow)
        );
    }
    assert!(stage.hub.memory().logs > 200_000, "the log has grown instead");
    stage.unblock(slow, usize::MAX);
    let expected: String = (1..=2000).map(|i| push("a", i, &format!("{i:0>100}"))).collect();
    let writes = stage.tape.take(slow);
    assert!(writes.len() < 12, "a few large writes, not {}", writes.len());
    assert_eq!(writes.concat(), expected);
    stage.flush();
    assert!(stage.hub.memory().logs <= 2 * millrace_delivery::SEGMENT_BYTES, "the log is small again");
}

#[test]
fn lag_counts_what_a_blocked_reader_lacks() {
    let mut stage = Stage::new();
    let (slow, fast) = (stage.reader(Encoding::Ndjson, "a"), stage.reader(Encoding::Ndjson, "a"));
    stage.hub.tick(5, &mut stage.tape);
    let caught_up = stage.hub.lag(slow).expect("it is open");
    assert!(!caught_up.is_behind() && caught_up.since_s.is_none() && caught_up.furthest.is_none(), "{caught_up:?}");
    assert_eq!((caught_up.policy, caught_up.has_mixed_policies), (Some(Policy::Every), false));
    stage.tape.room.insert(slow, 10);
    for i in 1..=20 {
        stage.publish("a", &format!("{i:0>100}"));
        stage.flush();
    }
    stage.hub.tick(12, &mut stage.tape);
    // The first frame was sent in part, so its rest is in the queue of the connection.
    let lag = stage.hub.lag(slow).expect("it is open");
    assert_eq!((lag.behind, lag.channels, lag.furthest), (19, 1, Some((name("a"), 19))));
    assert!(lag.is_blocked && lag.since_s == Some(7));
    let bytes: usize = (1..=20).map(|i| line(i, &format!("{i:0>100}")).len()).sum();
    assert_eq!(lag.bytes, bytes - 10);
    assert!(!stage.hub.lag(fast).expect("it is open").is_behind());
    // A reader that takes some bytes is still behind, for as long as before.
    stage.unblock(slow, 500);
    let lag = stage.hub.lag(slow).expect("it is open");
    assert!(lag.is_behind() && lag.since_s == Some(7) && lag.behind < 19, "{lag:?}");
    stage.unblock(slow, usize::MAX);
    let lag = stage.hub.lag(slow).expect("it is open");
    assert!(!lag.is_behind() && lag.since_s.is_none(), "{lag:?}");
    stage.hub.disconnect(slow);
    assert_eq!(stage.hub.lag(slow), None);
}

#[test]
fn connection_uses_its_own_heartbeat_interval() {
    let mut stage = Stage::new();
    let usual = stage.hub.connect(Encoding::Ndjson);
    let [rare, ping, often] = [(Encoding::Ndjson, 100), (Encoding::Bare, 60), (Encoding::Ndjson, 7)]
        .map(|(encoding, every_s)| stage.hub.connect_with(encoding, NonZeroU16::new(every_s)));
    let mut beats: HashMap<ConnId, Vec<u32>> = HashMap::new();
    for now_s in 1..=200 {
        stage.hub.tick(now_s, &mut stage.tape);
        for conn in [usual, rare, ping, often] {
            if !stage.tape.take(conn).is_empty() {
                beats.entry(conn).or_default().push(now_s);
            }
        }
        // The client answers the ping.
        if beats.get(&ping).is_some_and(|beats| beats.last() == Some(&now_s)) {
            stage.hub.heard(ping);
        }
    }
    assert_eq!(beats[&usual], [25, 50, 75, 100, 125, 150, 175, 200]);
    assert_eq!((&beats[&rare][..], &beats[&ping][..]), (&[100, 200][..], &[60, 120, 180][..]));
    assert_eq!(beats[&often], (7..=200).step_by(7).collect::<Vec<_>>());
}

#[test]
fn incremental_counts_match_full_counts() {
    let mut stage = Stage::new();
    for i in 0..20 {
        let slow = stage.reader([Encoding::Session, Encoding::Ndjson][i % 2], &format!("c{}", i % 7));
        stage.attach(slow, "all", Since::Now).unwrap();
        stage.tape.room.insert(slow, i);
    }
    stage.publish("all", &"x".repeat(1000));
    stage.flush();
    let whole = stage.hub.memory();
    assert!(whole.logs > 0 && whole.out > 0 && whole.connections > 20 * 100, "{whole:?}");
    let mut parts = stage.hub.shared_memory();
    for slot in (0..stage.hub.slots()).step_by(3) {
        stage.hub.count(slot..slot + 3, &mut parts);
    }
    assert_eq!(parts, whole);
}

#[test]
fn total_limit_trims_longest_log() {
    let mut stage = Stage::with(Config { logs_bytes_max: 400_000, ..Config::default() });
    let (short, long) = (stage.reader(Encoding::Ndjson, "short"), stage.reader(Encoding::Ndjson, "long"));
    let quick = stage.reader(Encoding::Ndjson, "long");
    for conn in [short, long] {
        stage.tape.room.insert(conn, 0);
    }
    stage.publish("short", "x");
    for i in 1..=5000 {
        stage.publish("long", &format!("{i:0>100}"));
        if stage.hub.is_full() {
            stage.flush();
        }
        assert!(stage.hub.memory().logs <= 400_000);
    }
    stage.flush();
    let all = (1..=5000).map(|i| line(i, &format!("{i:0>100}"))).collect::<String>();
    assert!(stage.tape.take(quick).concat() == all);
    let reads = stage.outputs().into_iter().filter(|output| matches!(output, Output::ReadHistory { .. }));
    assert_eq!(reads.count(), 0, "who is quick reads no history");
    stage.unblock(short, usize::MAX);
    assert_eq!(stage.tape.take(short), [line(1, "x")], "and what is short stays");
    stage.unblock(long, usize::MAX);
    while !stage.answer_reads().is_empty() {}
    assert!(stage.tape.take(long).concat() == all, "who was behind the cut reads history");
}

#[test]
fn blocked_multi_channel_stream_holds_one_segment() {
    let mut stage = Stage::new();
    let slow = stage.reader(Encoding::SseMany, "a");
    stage.tape.room.insert(slow, 10);
    stage.publish("a", "first");
    stage.flush();
    for i in 0..2000 {
        stage.publish("a", &format!("{i:0>100}"));
    }
    stage.flush();
    stage.unblock(slow, 200);
    assert!(stage.hub.out_bytes(slow) <= millrace_delivery::SEGMENT_BYTES + 300, "{}", stage.hub.out_bytes(slow));
    stage.unblock(slow, usize::MAX);
    assert_eq!(stage.tape.take(slow).concat().matches("id: a@00000001:").count(), 2001);
}

#[test]
fn reader_behind_log_reads_history() {
    let mut stage = Stage::with(Config { log_bytes_max: 1, ..Config::default() });
    let slow = stage.reader(Encoding::Ndjson, "a");
    let big = "x".repeat(40_000);
    stage.tape.room.insert(slow, 5);
    for _ in 0..6 {
        stage.publish("a", &big);
        stage.flush();
    }
    stage.unblock(slow, usize::MAX);
    assert_eq!(stage.tape.take(slow).concat(), line(1, &big), "the frame that was begun is finished");
    assert_eq!(stage.answer_reads(), [at(1)]);
    assert_eq!(stage.tape.take(slow).concat(), (2..=6).map(|i| line(i, &big)).collect::<String>());
    stage.publish("a", "live");
    stage.flush();
    assert_eq!(stage.tape.take(slow), [line(7, "live")]);
    assert_eq!(stage.answer_reads(), []);
}

#[test]
fn lost_publication_is_read_from_history() {
    let mut stage = Stage::new();
    let conn = stage.reader(Encoding::Ndjson, "a");
    stage.append("a", "lost");
    stage.publish("a", "second");
    stage.flush();
    assert_eq!(stage.tape.take(conn), Vec::<String>::new());
    assert_eq!(stage.answer_reads(), [at(0)]);
    assert_eq!(stage.tape.take(conn).concat(), line(1, "lost") + &line(2, "second"));
}

#[test]
fn undelivered_publications_are_read_after_moved() {
    let mut stage = Stage::new();
    let conn = stage.reader(Encoding::Ndjson, "a");
    stage.publish("a", "first");
    stage.flush();
    stage.append("a", "lost");
    stage.hub.moved(&name("a"), None, at_position(1), at_position(2));
    assert_eq!(stage.answer_reads(), [at(1)]);
    assert_eq!(stage.tape.take(conn).concat(), line(1, "first") + &line(2, "lost"));
    stage.hub.moved(&name("a"), None, at_position(1), at_position(2));
    assert_eq!(stage.answer_reads(), [], "that is known");
    let elsewhere = Position { epoch: Epoch(2), offset: 0 };
    stage.histories.insert(name("a"), History::new(Epoch(2)));
    stage.hub.moved(&name("a"), None, elsewhere, elsewhere);
    assert_eq!(stage.answer_reads(), [at(2)]);
    assert_eq!(stage.tape.take(conn).concat(), "{\"gap\":{\"from\":\"00000001:2\",\"to\":\"00000002:0\"}}\n");
}

#[test]
fn pattern_reader_follows_moved_channel() {
    let mut stage = Stage::new();
    let conn = stage.hub.connect(Encoding::Session);
    let pattern = Pattern::parse("a/+").unwrap();
    stage.hub.subscribe_pattern(conn, &pattern, Policy::Every, 0).unwrap();
    stage.hub.attach_open_channels(conn, &pattern);
    stage.append("a/b", "old");
    stage.append("a/b", "lost");
    stage.hub.moved(&name("a/b"), None, at_position(1), at_position(2));
    assert_eq!(stage.answer_reads(), [at(1)]);
    assert_eq!(stage.tape.take(conn).concat(), push("a/b", 2, "lost"));
}

#[test]
fn page_of_older_epoch_is_ignored() {
    let mut stage = Stage::new();
    stage.publish("a", "old");
    let conn = stage.reader(Encoding::Ndjson, "a");
    stage.append("a", "lost");
    stage.publish("a", "third");
    let Some(Output::ReadHistory { ticket, since, .. }) =
        stage.outputs().into_iter().find(|output| matches!(output, Output::ReadHistory { .. }))
    else {
        panic!("history must be asked for")
    };
    let stale = stage.page("a", since);
    stage.histories.insert(name("a"), History::new(Epoch(2)));
    let publication = stage.append("a", "new");
    stage.hub.deliver(&name("a"), None, Epoch(2), &publication);
    stage.hub.handle_page(ticket, &stale, &mut stage.tape);
    assert_eq!(stage.tape.take(conn), Vec::<String>::new(), "asked again instead");
    assert_eq!(stage.answer_reads(), [at(1)]);
    stage.flush();
    let expected = "{\"gap\":{\"from\":\"00000001:1\",\"to\":\"00000002:0\"}}\n".to_owned()
        + &line(1, "new").replace("00000001", "00000002");
    assert_eq!(stage.tape.take(conn).concat(), expected);
}

#[test]
fn reply_never_splits_a_frame() {
    let mut stage = Stage::new();
    let conn = stage.reader(Encoding::Session, "a");
    stage.tape.room.insert(conn, 5);
    stage.publish("a", "one");
    stage.publish("a", "two");
    stage.flush();
    stage.hub.send(conn, b"<reply>", &mut stage.tape);
    stage.unblock(conn, 3);
    stage.hub.send(conn, b"<pong>", &mut stage.tape);
    stage.unblock(conn, usize::MAX);
    assert_eq!(stage.tape.take(conn).concat(), push("a", 1, "one") + "<reply><pong>" + &push("a", 2, "two"));
}

#[test]
fn bare_reader_gets_gap_as_close_frame() {
    let mut stage = Stage::new();
    (0..3).for_each(|_| stage.publish("a", "x"));
    stage.history("a").trim(1, &Bounds { count_max: 1, ..BOUNDS });
    let conn = stage.hub.connect(Encoding::Bare);
    assert_eq!(stage.attach(conn, "a", at(1)).unwrap().offset, 2);
    assert!(stage.tape.take(conn).concat().ends_with("00000001:2"));
    assert!(stage.outputs().contains(&Output::Close(conn)));
    stage.hub.disconnect(conn);
    assert_eq!((stage.hub.channel_count(), stage.hub.conn_count()), (0, 0));
}

#[test]
fn invalid_subscriptions_are_refused() {
    let mut stage = Stage::with(Config { subscriptions_max: 2, ..Config::default() });
    let conn = stage.reader(Encoding::Session, "a");
    assert_eq!(stage.attach(conn, "a", Since::Now), Err(Code::AlreadySubscribed));
    assert_eq!(stage.attach(conn, "b", Since::Now).map(|at| at.offset), Ok(0));
    assert_eq!(stage.attach(conn, "c", Since::Now), Err(Code::TooMany));
    assert_eq!(stage.hub.subscribe_pattern(conn, &pattern("#"), Policy::Every, 0).unwrap_err().code, Code::TooMany);
    assert_eq!(stage.hub.unsubscribe(conn, &Target::Channel(name("c"))).unwrap_err().code, Code::NotSubscribed);
    assert_eq!(stage.hub.channel_count(), 2, "what was refused leaves no channel open");
    stage.hub.unsubscribe(conn, &Target::Channel(name("a"))).unwrap();
    assert_eq!(stage.hub.unsubscribe(conn, &Target::Channel(name("a"))).unwrap_err().code, Code::NotSubscribed);
    stage.outputs();
    stage.hub.disconnect(conn);
    assert!(matches!(&stage.outputs()[..], [Output::Interest { channel, readers: 0, .. }] if channel == &name("b")));
}

#[test]
fn overlapping_patterns_deliver_each_channel_once() {
    let mut stage = Stage::new();
    let conn = stage.hub.connect(Encoding::Session);
    for asked in ["a/+", "a/#"] {
        stage.hub.subscribe_pattern(conn, &pattern(asked), Policy::Every, 0).unwrap();
        stage.hub.attach_open_channels(conn, &pattern(asked));
    }
    assert_eq!(
        stage.hub.subscribe_pattern(conn, &pattern("a/#"), Policy::Every, 0).unwrap_err().code,
        Code::AlreadySubscribed
    );
    stage.publish("a/1", "x");
    stage.publish("b", "nobody's");
    stage.flush();
    assert_eq!(stage.tape.take(conn).concat(), push("a/1", 1, "x"));
    stage.hub.unsubscribe(conn, &Target::Pattern(pattern("a/+"))).unwrap();
    stage.publish("a/1", "y");
    stage.flush();
    assert_eq!(stage.tape.take(conn).concat(), push("a/1", 2, "y"), "the other pattern goes on without a gap");
    stage.hub.unsubscribe(conn, &Target::Pattern(pattern("a/#"))).unwrap();
    stage.publish("a/1", "z");
    stage.flush();
    assert_eq!((stage.tape.take(conn), stage.hub.channel_count()), (vec![], 0));
}

#[test]
fn oversized_pattern_is_reported_once() {
    let mut stage = Stage::with(Config { subscriptions_max: 2, ..Config::default() });
    let conn = stage.hub.connect(Encoding::Session);
    stage.hub.subscribe_pattern(conn, &pattern("#"), Policy::Every, 0).unwrap();
    stage.hub.attach_open_channels(conn, &pattern("#"));
    for channel in ["a", "b", "c", "b"] {
        stage.publish(channel, "x");
    }
    stage.flush();
    assert_eq!(stage.tape.take(conn).concat(), push("a", 1, "x"));
    let refused = |output: &Output| matches!(output, Output::Refuse { error, .. } if error.code == Code::TooMany);
    assert_eq!(stage.outputs().iter().filter(|output| refused(output)).count(), 1);
}

#[test]
fn resumed_pattern_misses_nothing() {
    let mut stage = Stage::new();
    for data in ["1", "2", "3"] {
        stage.publish("a/1", data);
    }
    let conn = stage.hub.connect(Encoding::Session);
    stage.hub.subscribe_pattern(conn, &pattern("a/+"), Policy::Every, 0).unwrap();
    // While the pages of the pattern are read, a resumed channel and a new channel each receive a publication.
    stage.publish("a/1", "4");
    stage.publish("a/2", "new");
    stage.hub.watch(&name("a/1"));
    let first = FirstPage { channel: name("a/1"), since: at(1), page: stage.page("a/1", at(1)) };
    stage.hub.attach_matching(conn, &pattern("a/+"), &first, &mut stage.tape).unwrap();
    stage.hub.attach_open_channels(conn, &pattern("a/+"));
    assert_eq!(stage.answer_reads(), [at(0)]);
    stage.flush();
    let expected: String = [(2, "2"), (3, "3"), (4, "4")].map(|(offset, data)| push("a/1", offset, data)).concat();
    assert_eq!(stage.tape.take(conn).concat(), expected + &push("a/2", 1, "new"));
}

#[test]
fn pattern_includes_channels_opened_by_other_readers() {
    let mut stage = Stage::new();
    let listener = stage.hub.connect(Encoding::Session);
    stage.hub.subscribe_pattern(listener, &pattern("#"), Policy::Every, 0).unwrap();
    stage.hub.attach_open_channels(listener, &pattern("#"));
    stage.reader(Encoding::Ndjson, "a");
    stage.publish("a", "x");
    stage.flush();
    assert_eq!(stage.tape.take(listener).concat(), push("a", 1, "x"));
}

#[test]
fn multi_channel_event_lists_all_positions() {
    let mut stage = Stage::new();
    stage.publish("a", "old");
    stage.publish("b", "old");
    let conn = stage.hub.connect(Encoding::SseMany);
    stage.hub.watch(&name("a"));
    stage.hub.watch(&name("b"));
    let pages =
        ["a", "b"].map(|channel| FirstPage { channel: name(channel), since: at(0), page: stage.page(channel, at(0)) });
    stage.hub.attach(conn, Policy::Every, &pages, &mut stage.tape).unwrap();
    let text = stage.tape.take(conn).concat();
    let ids: Vec<_> = text.lines().filter(|line| line.starts_with("id: ")).collect();
    assert_eq!(ids, ["id: a@00000001:1,b@00000001:0", "id: a@00000001:1,b@00000001:1"]);
}

/// A reader that is cut between two gaps resumes with the last list of positions. A gap that was not reported yet must
/// still lie after its position in that list.
#[test]
fn event_lists_no_unreported_gap_end() {
    let mut stage = Stage::new();
    stage.publish("a", "new");
    stage.publish("b", "new");
    let conn = stage.hub.connect(Encoding::SseMany);
    stage.hub.watch(&name("a"));
    stage.hub.watch(&name("b"));
    let lost = Since::Position(Position { epoch: Epoch(9), offset: 7 });
    let pages =
        ["a", "b"].map(|channel| FirstPage { channel: name(channel), since: lost, page: stage.page(channel, lost) });
    stage.hub.attach(conn, Policy::Every, &pages, &mut stage.tape).unwrap();
    let text = stage.tape.take(conn).concat();
    let ids: Vec<_> = text.lines().filter(|line| line.starts_with("id: ")).collect();
    let [b_lost, b_told] = ["b@00000009:7", "b@00000001:0"];
    let wanted = [
        format!("id: a@00000001:0,{b_lost}"),
        format!("id: a@00000001:1,{b_lost}"),
        format!("id: a@00000001:1,{b_told}"),
        "id: a@00000001:1,b@00000001:1".to_owned(),
    ];
    assert_eq!(ids, wanted);
}

#[test]
fn each_waiter_is_woken_once() {
    let mut stage = Stage::new();
    for id in [1, 2] {
        stage.hub.wait(WaiterId::Task(id), &[name("a"), name("b"), name("a")]);
    }
    stage.outputs();
    stage.publish("a", "x");
    let woken: Vec<_> = stage.outputs().into_iter().filter(|output| matches!(output, Output::Wake(_))).collect();
    assert_eq!(woken, [Output::Wake(WaiterId::Task(1)), Output::Wake(WaiterId::Task(2))]);
    assert_eq!(stage.hub.channel_count(), 0);
}

#[test]
fn idle_connection_gets_heartbeats_then_ping_then_close() {
    let mut stage = Stage::with(Config { heartbeat_s: 25, grace_s: 10, ..Config::default() });
    let dead = stage.reader(Encoding::Session, "a");
    let alive = stage.reader(Encoding::Bare, "a");
    let slow = stage.reader(Encoding::Bare, "a");
    let sse = stage.reader(Encoding::Sse, "a");
    stage.tape.room.insert(slow, 1);
    stage.publish("a", "x");
    stage.flush();
    for conn in [dead, alive, slow, sse] {
        stage.tape.take(conn);
    }
    stage.outputs();
    for now_s in 1..=34 {
        stage.hub.tick(now_s, &mut stage.tape);
    }
    assert_eq!(stage.tape.take(dead), ["\u{fffd}\0"]);
    assert_eq!(stage.tape.take(sse), [":\n\n"]);
    assert_eq!(stage.outputs(), []);
    stage.hub.heard(alive);
    stage.hub.tick(40, &mut stage.tape);
    assert_eq!(
        stage.outputs().into_iter().filter(|o| matches!(o, Output::Close(_))).collect::<Vec<_>>(),
        [Output::Close(dead)]
    );
    stage.publish("a", "y");
    stage.tape.take(dead);
    stage.flush();
    assert!(stage.tape.take(dead).is_empty(), "nothing is written after a close");
    // A connection that was too slow for a ping gets its ping first, once it accepts bytes again.
    stage.unblock(slow, usize::MAX);
    stage.hub.tick(41, &mut stage.tape);
    assert_eq!(stage.outputs(), []);
    stage.hub.tick(51, &mut stage.tape);
    assert_eq!(
        stage.outputs().into_iter().filter(|o| matches!(o, Output::Close(_))).collect::<Vec<_>>(),
        [Output::Close(slow)]
    );
}

#[test]
fn responsive_client_is_pinged_every_heartbeat() {
    let mut stage = Stage::with(Config { heartbeat_s: 2, grace_s: 10, ..Config::default() });
    let (alive, dead) = (stage.reader(Encoding::Bare, "a"), stage.reader(Encoding::Bare, "a"));
    for conn in [alive, dead] {
        stage.tape.take(conn);
    }
    stage.outputs();
    let mut pings = Vec::new();
    for now_s in 1..=12 {
        stage.hub.tick(now_s, &mut stage.tape);
        if !stage.tape.take(alive).is_empty() {
            pings.push(now_s);
            stage.hub.heard(alive);
        }
    }
    assert_eq!(pings, [2, 4, 6, 8, 10, 12]);
    assert_eq!(stage.tape.take(dead).len(), 1, "one ping, and all the time to answer it");
    let closed: Vec<_> = stage.outputs().into_iter().filter(|output| matches!(output, Output::Close(_))).collect();
    assert_eq!(closed, [Output::Close(dead)]);
}

#[test]
fn stalled_reader_holds_no_log_and_misses_nothing() {
    let mut stage = Stage::new();
    let stuck = stage.reader(Encoding::Ndjson, "a");
    stage.reader(Encoding::Ndjson, "a");
    stage.tape.room.insert(stuck, 0);
    let data = "x".repeat(1000);
    let mut most = 0;
    for second in 1..=20 {
        for _ in 0..100 {
            stage.publish("a", &data);
        }
        stage.flush();
        stage.hub.tick(second, &mut stage.tape);
        most = most.max(stage.hub.memory().logs);
    }
    assert!(most < 700_000, "{most} bytes for who takes none of them");
    stage.unblock(stuck, usize::MAX);
    while !stage.answer_reads().is_empty() {
        stage.flush();
    }
    let expected: String = (1..=2000).map(|offset| line(offset, &data)).collect();
    assert_eq!(stage.tape.take(stuck).concat(), expected);
}

#[test]
fn stalled_reader_is_closed_after_eight_heartbeats() {
    let mut stage = Stage::with(Config { heartbeat_s: 10, grace_s: 5, ..Config::default() });
    let stuck = stage.reader(Encoding::Session, "a");
    stage.tape.room.insert(stuck, 0);
    stage.publish("a", "x");
    stage.flush();
    stage.outputs();
    stage.hub.tick(79, &mut stage.tape);
    assert_eq!(stage.outputs(), []);
    stage.hub.tick(80, &mut stage.tape);
    assert!(stage.outputs().contains(&Output::Close(stuck)));
}

#[test]
fn drain_is_encoded_for_each_reader() {
    let mut stage = Stage::new();
    let session = stage.reader(Encoding::Session, "a");
    let sse = stage.reader(Encoding::Sse, "a");
    stage.hub.tell_drain(session, 100, Some("a-ticket"), &mut stage.tape);
    stage.hub.tell_drain(sse, 200, None, &mut stage.tape);
    let push = "{\"push\":\"drain\",\"after_ms\":100,\"resume\":\"a-ticket\"}";
    assert!(stage.tape.take(session).concat().ends_with(push));
    assert!(stage.tape.take(sse).concat().contains("event: drain\ndata: {\"after_ms\":200}\n\n"));
    stage.hub.close(session, b"bye", &mut stage.tape);
    assert_eq!(stage.tape.take(session), ["bye"]);
    assert!(stage.outputs().contains(&Output::Close(session)));
}
