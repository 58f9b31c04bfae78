//! Late points, repeated batches, wrong clocks, and answers that mean that the points are stored.

use std::fmt::Write;

use crate::server::{Server, now_ms, times};

/// Returns an Overland batch of points at these times, all at one place.
fn batch(device: &str, times_ms: impl IntoIterator<Item = u64>) -> String {
    let mut locations = String::new();
    for (n, ms) in times_ms.into_iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        write!(
            locations,
            r#"{comma}{{"geometry":{{"coordinates":[19.0,47.5]}},"properties":{{"timestamp":"{ms}","device_id":"{device}"}}}}"#
        )
        .unwrap();
    }
    format!("{{\"locations\":[{locations}]}}")
}

#[test]
fn buffered_points_after_a_live_one_go_to_late() {
    let (server, now) = (Server::start(), now_ms());
    let live = server.post("/v1/ingest/overland", "", &batch("a", [now]));
    assert_eq!(live.summary(), [1, 0, 0, 0]);
    // The backlog of a tunnel, out of order.
    let buffered = [now - 60_000, now - 120_000, now - 90_000];
    let late = server.post("/v1/ingest/overland", "", &batch("a", buffered));
    assert_eq!((late.status, late.summary()), (200, [0, 3, 0, 0]));
    assert_eq!(times(&server.records("cars/a/telemetry")), [now]);
    assert_eq!(times(&server.records("cars/a/late")), [now - 120_000, now - 90_000, now - 60_000]);
}

#[test]
fn batch_out_of_order_is_published_in_order() {
    let (server, now) = (Server::start(), now_ms());
    let answer = server.post("/v1/ingest/overland", "", &batch("a", [now - 1000, now - 60_000, now - 30_000]));
    assert_eq!(answer.summary(), [3, 0, 0, 0]);
    assert_eq!(times(&server.records("cars/a/telemetry")), [now - 60_000, now - 30_000, now - 1000]);
}

#[test]
fn repeated_batch_is_stored_once() {
    let (server, now) = (Server::start(), now_ms());
    let points: Vec<u64> = (0..100).map(|second| now - 100_000 + second * 1000).collect();
    let body = batch("a", points.clone());
    assert_eq!(server.post("/v1/ingest/overland", "", &body).summary(), [100, 0, 0, 0]);
    // The answer was lost, and the app repeats the batch, with two more points.
    let longer = batch("a", points.iter().copied().chain([now, now + 1000]));
    let again = server.post("/v1/ingest/overland", "", &longer);
    assert_eq!((&*again.body, again.summary()), ("{\"result\":\"ok\"}", [2, 0, 100, 0]));
    assert_eq!(server.records("cars/a/telemetry").len(), 102);
    assert!(server.records("cars/a/late").is_empty());
}

#[test]
fn points_of_the_future_do_not_hide_later_ones() {
    let (server, now) = (Server::start(), now_ms());
    let year = 365 * 24 * 3_600_000;
    let future = server.post("/v1/ingest/overland", "", &batch("a", [now + 10 * year]));
    assert_eq!(
        (&*future.body, future.summary()),
        ("{\"result\":\"ok\"}", [0, 0, 0, 1]),
        "or the app repeats it forever"
    );
    assert_eq!(server.post("/v1/ingest/overland", "", &batch("a", [now])).summary(), [1, 0, 0, 0]);
}

#[test]
fn refused_publication_is_no_ok_and_can_be_repeated() {
    let server = Server::with(|config| config.limits.publishes_per_s = 2);
    let now = now_ms();
    let body = batch("a", (0..50).map(|second| now - 50_000 + second * 1000));
    let refused = server.post("/v1/ingest/overland", "", &body);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(!refused.body.contains("\"ok\"") && !refused.header("retry-after").is_empty(), "{refused:?}");
    let stored = server.records("cars/a/telemetry").len();
    assert!((1..50).contains(&stored), "{stored}");
    // Each connection has a quota of its own, so each repetition gets further.
    let mut last = refused;
    for _ in 0..60 {
        last = server.post("/v1/ingest/overland", "", &body);
        if last.status == 200 {
            break;
        }
    }
    assert_eq!(last.body, "{\"result\":\"ok\"}");
    let records = times(&server.records("cars/a/telemetry"));
    assert_eq!(records, (0..50).map(|second| now - 50_000 + second * 1000).collect::<Vec<_>>());
    assert!(server.records("cars/a/late").is_empty());
}

#[test]
fn nothing_is_ok_while_the_engine_does_not_answer() {
    let server = Server::with(|config| {
        config.engine.url = "redis://127.0.0.1:1".into();
        config.engine.wait = std::time::Duration::from_millis(50);
    });
    let overland = server.post("/v1/ingest/overland", "", &batch("a", [now_ms()]));
    assert!(overland.status == 503 && !overland.body.contains("\"ok\""), "{overland:?}");
    let torque = server.get("/v1/ingest/torque?id=a&kd=5", "");
    assert!(torque.status == 503 && !torque.body.contains("OK!"), "{torque:?}");
    assert!(!torque.header("retry-after").is_empty(), "{torque:?}");
}

#[test]
fn restarted_server_knows_what_is_late() {
    let folder = tempfile::tempdir().unwrap();
    let now = now_ms();
    for (n, time_ms, summary) in [(0, now, [1, 0, 0, 0]), (1, now - 60_000, [0, 1, 0, 0])] {
        let server = Server::with(|config| {
            config.engine.url = format!("sqlite:{}", folder.path().join("log.db").display());
        });
        let answer = server.post("/v1/ingest/overland", "", &batch("a", [time_ms]));
        assert_eq!((answer.status, answer.summary()), (200, summary), "start {n}");
    }
}
