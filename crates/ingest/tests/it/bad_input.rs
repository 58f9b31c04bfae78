//! Requests that no app should send.

use crate::server::Server;

#[test]
fn unknown_and_impossible_ids_are_refused_with_the_reason() {
    let server = Server::start();
    for (id, part) in
        [("a/b", "1 to 64 characters"), ("%2B", "1 to 64"), (":members", "1 to 64"), ("%C3%A9", "1 to 64")]
    {
        let answer = server.get(&format!("/v1/ingest/osmand?id={id}&lat=1&lon=2"), "");
        assert!(answer.status == 400 && answer.body.contains(part), "{id}: {answer:?}");
    }
    let none = server.get("/v1/ingest/osmand?lat=1&lon=2", "");
    assert!(none.status == 400 && none.body.contains("add `id=ID`"), "{none:?}");
    let overland = r#"{"locations":[{"geometry":{"coordinates":[1,2]},"properties":{"timestamp":"1397028600"}}]}"#;
    let answer = server.post("/v1/ingest/overland", "", overland);
    assert!(answer.status == 400 && answer.body.contains("device id"), "{answer:?}");
}

#[test]
fn malformed_requests_are_refused() {
    let server = Server::start();
    for target in
        ["/v1/ingest/osmand?id=7", "/v1/ingest/osmand?id=7&lat=north&lon=2", "/v1/ingest/torque?id=7&time=noon&kd=1"]
    {
        let answer = server.get(target, "");
        assert_eq!((answer.status, answer.header("content-type")), (400, "text/plain; charset=utf-8"), "{target}");
    }
    for (target, body) in [
        ("/v1/ingest/osmand?id=7", "{\"location\":"),
        ("/pub", "{\"lat\":1}"),
        ("/pub", "{\"_type\":\"encrypted\",\"data\":\"x\"}"),
        ("/v1/ingest/overland", "[]"),
        ("/v1/ingest/gpx?id=7", "<gpx>"),
        ("/v1/ingest/csv?id=7", "time,lat\n"),
        ("/v1/ingest/obd?id=7", "NO DATA"),
    ] {
        let answer = server.post(target, "", body);
        assert_eq!(answer.status, 400, "{target} {body}: {answer:?}");
    }
    assert_eq!(server.post("/v1/ingest/torque", "", "").status, 405);
    assert_eq!(server.get("/pub", "").status, 405);
    assert_eq!(server.get("/v1/ingest/pigeon", "").status, 404);
}

#[test]
fn bodies_and_lists_have_limits() {
    let server = Server::with(|config| {
        config.limits.batch_bytes_max = 10_000;
        config.limits.batch_lines_max = 10;
    });
    for target in
        ["/v1/ingest/osmand", "/pub", "/v1/ingest/overland", "/v1/ingest/gpx", "/v1/ingest/csv", "/v1/ingest/obd"]
    {
        assert_eq!(server.post(target, "", &" ".repeat(10_001)).status, 413, "{target}");
    }
    let location = r#"{"_type":"location","lat":1,"lon":2,"tst":1397028600,"topic":"owntracks/a/b"}"#;
    let answer = server.post("/pub", "", &[location; 11].join("\n"));
    assert_eq!(answer.status, 429, "{answer:?}");
}

#[test]
fn empty_payload_of_owntracks_is_accepted() {
    let server = Server::start();
    for body in ["", "{\"_type\":\"lwt\",\"tst\":1}", "{\"_type\":\"status\"}"] {
        let answer = server.post("/pub", "X-Limit-U: jane\r\nX-Limit-D: phone\r\n", body);
        assert_eq!((answer.status, &*answer.body), (200, "[]"), "{body}");
    }
}

#[test]
fn jump_is_not_shown_to_readers() {
    let server = Server::start();
    for (second, latitude) in [(0, 47.5), (5, 47.5001), (10, 52.0), (15, 47.5002), (20, 0.0)] {
        let longitude = if latitude == 0.0 { 0.0 } else { 19.0 };
        let target = format!("/?id=7&lat={latitude}&lon={longitude}&timestamp={}", 1_397_028_600 + second);
        assert_eq!(server.get(&target, "").status, 200);
    }
    let latitudes: Vec<f64> =
        server.records("cars/7/telemetry").iter().map(|record| record["gpsLatitude"].as_f64().unwrap()).collect();
    assert_eq!(latitudes, [47.5, 47.5001, 47.5002]);
}
