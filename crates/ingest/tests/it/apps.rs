//! Requests in the documented formats of the apps: the record that each gives, and the answer that the app expects.

use std::net::UdpSocket;

use serde_json::{Value, json};

use crate::server::Server;

const TIME: u64 = 1_397_028_600_000;

/// Sends a fixture. Returns the body of the answer, and the records of a channel.
fn replay(fixture: &str, channel: &str) -> (String, Vec<Value>) {
    let server = Server::start();
    let answer = server.replay(fixture);
    assert_eq!(answer.status, 200, "{answer:?}");
    (answer.body, server.records(channel))
}

#[test]
fn osmand_sends_a_query_in_meters_per_second() {
    let (answer, records) = replay(include_str!("../fixtures/osmand-query.http"), "cars/osmand-phone/telemetry");
    assert_eq!(answer, "");
    let expected = json!({ "carId": "osmand-phone", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.9, "heading": 122.5, "elevation": 110.2, "accuracy": 4.5, "source": "osmand" });
    assert_eq!(records, [expected]);
}

#[test]
fn traccar_client_sends_to_the_root_in_knots() {
    let (answer, records) = replay(include_str!("../fixtures/traccar-client-query.http"), "cars/123456/telemetry");
    assert_eq!(answer, "");
    let expected = json!({ "carId": 123456, "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.889, "heading": 122.5, "elevation": 110.2, "accuracy": 12.5, "battery": 77.5, "source": "osmand" });
    assert_eq!(records, [expected]);
}

#[test]
fn traccar_client_sends_json() {
    let (answer, records) = replay(include_str!("../fixtures/traccar-client-json.http"), "cars/my-phone/telemetry");
    assert_eq!(answer, "");
    let expected = json!({ "carId": "my-phone", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.89, "heading": 122.5, "elevation": 110.2, "accuracy": 12.5, "battery": 77.0, "charging": false,
        "odometer": 1500.5, "activity": "in_vehicle", "source": "osmand",
        "attributes": { "event": "motionchange", "is_moving": true } });
    assert_eq!(records, [expected]);
}

#[test]
fn osmand_protocol_has_forms() {
    let (_, records) = replay(include_str!("../fixtures/osmand-form.http"), "cars/form-phone/telemetry");
    let expected = json!({ "carId": "form-phone", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 0.0, "heading": 0.0, "battery": 50.0, "source": "osmand", "attributes": { "driverUniqueId": "jane" } });
    assert_eq!(records, [expected]);
}

#[test]
fn owntracks_gets_an_array() {
    let (answer, records) = replay(include_str!("../fixtures/owntracks.http"), "cars/jane-phone/telemetry");
    assert_eq!(answer, "[]");
    let expected = json!({ "carId": "jane-phone", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.889, "elevation": 110.0, "accuracy": 13.0, "battery": 77.0, "charging": true, "source": "owntracks",
        "attributes": { "connection": "w", "tid": "jp", "trigger": "u" } });
    assert_eq!(records, [expected]);
}

#[test]
fn torque_gets_its_words() {
    let device = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
    let (answer, records) = replay(include_str!("../fixtures/torque.http"), &format!("cars/{device}/telemetry"));
    assert_eq!(answer, "OK!");
    let expected = json!({ "carId": device, "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.889, "heading": 122.5, "elevation": 110.2, "rpm": 1250, "coolantTemperature": 101,
        "fuel": 40.5, "co2": 131.0, "source": "torque" });
    assert_eq!(records, [expected]);
    let server = Server::start();
    let names = server.get("/v1/ingest/torque?eml=&v=8&session=1&id=a&time=1397028600000&userShortName0d=Speed", "");
    assert_eq!((names.status, &*names.body, names.summary()), (200, "OK!", [0; 4]));
}

#[test]
fn overland_gets_its_result() {
    let (answer, records) = replay(include_str!("../fixtures/overland.http"), "cars/overland-phone/telemetry");
    assert_eq!(answer, "{\"result\":\"ok\"}");
    assert_eq!(records.len(), 2);
    let expected = json!({ "carId": "overland-phone", "timestamp": TIME, "gpsLatitude": 47.53398,
        "gpsLongitude": 19.079723, "speed": 13.9, "elevation": 110.0, "accuracy": 30.0, "battery": 89.0,
        "charging": true, "activity": "driving", "source": "overland" });
    assert_eq!(records[0], expected);
}

#[test]
fn files_are_uploaded() {
    let (answer, records) = replay(include_str!("../fixtures/gpx.http"), "cars/gpx-car/telemetry");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer, json!({ "live": 2, "late": 0, "duplicate": 0, "dropped": 0 }));
    let expected = json!({ "carId": "gpx-car", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.9, "elevation": 110.2, "hdop": 4.5, "source": "gpx" });
    assert_eq!(records[0], expected);
    let (_, records) = replay(include_str!("../fixtures/csv.http"), "cars/42/telemetry");
    let expected = json!({ "carId": 42, "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.9, "heading": 122.5, "elevation": 110.2, "accuracy": 5.0, "source": "csv" });
    assert_eq!((records.len(), &records[0]), (2, &expected));
}

#[test]
fn text_of_an_adapter_becomes_a_record() {
    let (_, records) = replay(include_str!("../fixtures/obd.http"), "cars/obd-car/telemetry");
    let expected = json!({ "carId": "obd-car", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.889, "rpm": 924, "coolantTemperature": 101, "troubleCodes": ["P0133"], "source": "obd" });
    assert_eq!(records, [expected]);
}

#[test]
fn tracker_sends_nmea_datagrams() {
    let server = Server::with(|config| config.ingest.nmea_udp = "127.0.0.1:0".into());
    let port = server.nmea();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let summed = |body: &str| format!("${body}*{:02X}\r\n", body.bytes().fold(0, |sum, byte| sum ^ byte));
    let rmc = summed("GPRMC,073000.00,A,4732.0388,N,01904.78338,E,027.0,122.5,090414,,,A");
    let gga = summed("GPGGA,073000.00,4732.0388,N,01904.78338,E,1,08,0.9,110.2,M,40.0,M,,");
    socket.send_to(b"nonsense", port).unwrap();
    socket.send_to(format!("tracker 1\r\n{rmc}").as_bytes(), port).unwrap();
    socket.send_to(format!("{}{rmc}{gga}", summed("PGID,tracker-1")).as_bytes(), port).unwrap();
    let records = server.await_records("cars/tracker-1/telemetry", 1);
    let expected = json!({ "carId": "tracker-1", "timestamp": TIME, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 13.89, "heading": 122.5, "elevation": 110.2, "hdop": 0.9, "satellites": 8, "source": "nmea" });
    assert_eq!(records, [expected]);
}

#[test]
fn car_appears_in_the_fleet() {
    let server = Server::start();
    server.replay(include_str!("../fixtures/overland.http"));
    let state = server.get("/v1/channels/fleet?state", "");
    let state: Value = serde_json::from_str(&state.body).unwrap();
    assert_eq!(state["messages"][0]["key"], "overland-phone");
    assert_eq!(state["messages"][0]["data"]["timestamp"], TIME + 5000);
}
