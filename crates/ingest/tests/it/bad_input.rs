//! Requests that no app should send.

use millrace_ingest::{DeviceId, Filter, Report, filter::Verdict, format, obd};

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

/// Numbers of a seeded xorshift generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

#[test]
fn damaged_requests_are_decoded_or_refused() {
    let inputs = [
        include_str!("../fixtures/osmand-query.http"),
        include_str!("../fixtures/traccar-client-json.http"),
        include_str!("../fixtures/owntracks.http"),
        include_str!("../fixtures/torque.http"),
        include_str!("../fixtures/overland.http"),
        include_str!("../fixtures/gpx.http"),
        include_str!("../fixtures/csv.http"),
        include_str!("../fixtures/obd.http"),
        "x\n\na\n$GPRMC,073000.00,A,4732.0388,N,01904.78338,E,027.0,122.5,090414,,,A*69\n$GPGGA,1,2,3,4*00",
        "x\n\n014\r0: 49 02 01 31 44 34\r1: 47 50 30 30 52 35 35\r7E8#1014490201314434\r7E8 21 47 50\r43 01 33 00 00 00 00",
    ];
    let parts = |text: &str| {
        text.split_once("\n\n").map_or_else(|| text.split('?').nth(1).unwrap().to_owned(), |(_, body)| body.to_owned())
    };
    let words: [&[u8]; 12] = [b"-1", b"1e999", b"\"", b"<", b">", b"\xff", b"0", b"NaN", b"{", b"[", b",", b"&lat=91"];
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (device, mut filter) = (DeviceId::parse("a").unwrap(), Filter::new(4, 100));
    let (mut decoded, mut published) = (0, 0);
    for input in inputs.map(parts) {
        for _ in 0..1_000 {
            let mut bytes = input.clone().into_bytes();
            for _ in 0..numbers.next(4) {
                let at = numbers.next(bytes.len());
                match numbers.next(3) {
                    0 => bytes[at] = numbers.next(256) as u8,
                    1 => drop(bytes.drain(at..(at + numbers.next(20)).min(bytes.len() - 1).max(at))),
                    _ => drop(bytes.splice(at..at, words[numbers.next(words.len())].iter().copied())),
                }
            }
            let query = format::parameters(&bytes);
            let reports = [
                format::osmand::decode_parameters(&query).map(|report| vec![report]),
                format::osmand::decode_json(&bytes, 9),
                format::owntracks::decode(&bytes, 9),
                format::torque::decode(&query).map(|report| report.into_iter().collect()),
                format::overland::decode(&bytes, 9).map(|(reports, _)| reports),
                format::nmea::decode(&bytes, 1_397_028_600_000),
                format::gpx::decode(&bytes, 9),
                format::csv::decode(&bytes, 9),
                Ok(vec![Report {
                    reading: obd::decode(&String::from_utf8_lossy(&bytes)).reading,
                    ..Report::default()
                }]),
            ];
            for Report { time_ms, mut reading, .. } in reports.into_iter().flatten().flatten() {
                decoded += 1;
                let time_ms = time_ms.unwrap_or(1_397_028_600_000);
                let verdict = filter.judge("a", time_ms, &mut reading, 1_397_028_600_000);
                if !matches!(verdict, Verdict::Live(_) | Verdict::Late(_)) {
                    continue;
                }
                published += 1;
                let record = reading.to_json(&device, time_ms);
                crate::schema::validate_record(&record).unwrap_or_else(|error| panic!("{error}: {record}"));
            }
        }
    }
    assert!(decoded > 10_000 && published > 5_000, "{decoded} decoded, {published} published");
}
