//! The token decides for which device a request may report.

use millrace_server::{Config, auth::SigningKey, config::Secret};
use serde_json::json;

use crate::server::Server;

const SECRET: &str = "a secret of thirty-two bytes or more";

fn closed() -> Server {
    Server::with(|config| {
        config.auth.secret = Secret::from(SECRET);
        config.ingest.enabled = millrace_ingest::Mode::On;
    })
}

/// Returns the token of a device, which may publish only to its own channels.
fn token(device: &str) -> String {
    let claims = json!({ "sub": device, "exp": crate::server::now_ms() / 1000 + 60, "millrace": {
        "publish": [format!("cars/{device}/#")], "history": [format!("cars/{device}/#")], "subscribe": [format!("cars/{device}/#")],
    } });
    SigningKey::parse(SECRET.as_bytes()).unwrap().sign(&claims, None).unwrap()
}

fn basic(user: &str, password: &str) -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(format!("{user}:{password}")))
}

const OWNTRACKS: &str = r#"{"_type":"location","lat":47.5,"lon":19.0,"tst":1397028600,"topic":"owntracks/jane/phone"}"#;

#[test]
fn server_with_tokens_is_off_unless_it_is_switched_on() {
    let server = Server::with(|config: &mut Config| config.auth.secret = Secret::from(SECRET));
    let answer = server.get(&format!("/v1/ingest/osmand?id=7&lat=1&lon=2&token={}", token("7")), "");
    assert!(answer.status == 404 && answer.body.contains("ingest.enabled"), "{answer:?}");
    assert!(!server.get("/?id=7&lat=1&lon=2", "").head.contains("millrace-ingest"), "the start page");
}

#[test]
fn token_is_a_bearer_a_password_or_a_parameter_of_the_url() {
    let server = closed();
    let own = token("jane-phone");
    for headers in [format!("Authorization: Bearer {own}\r\n"), basic("jane", &own)] {
        assert_eq!(server.post("/pub", &headers, OWNTRACKS).status, 200);
    }
    let point = format!("/v1/ingest/osmand?id=jane-phone&lat=47.5&lon=19&timestamp=1397028601&token={own}");
    assert_eq!(server.get(&point, "").status, 200);
    let torque = format!("/v1/ingest/torque?id=jane-phone&kd=5&time=1397028602000&token={own}");
    assert_eq!(server.get(&torque, "").body, "OK!");
    let records = server.records_with("cars/jane-phone/telemetry", &format!("Authorization: Bearer {own}\r\n"));
    assert_eq!(records.len(), 3);
    // OwnTracks can send a password, so its token in a URL is refused like that of any other client.
    let refused = server.post(&format!("/pub?token={own}"), "", OWNTRACKS);
    assert!(refused.status == 400 && !refused.body.contains(&own), "{refused:?}");
}

#[test]
fn token_of_another_device_is_refused_in_the_form_of_the_sender() {
    let server = closed();
    let other = token("other");
    let osmand = server.get(&format!("/v1/ingest/osmand?id=7&lat=1&lon=2&token={other}"), "");
    assert_eq!((osmand.status, osmand.header("content-type")), (403, "text/plain; charset=utf-8"));
    assert!(osmand.body.contains("cars/7/telemetry") && !osmand.body.contains(&other), "{osmand:?}");
    let torque = server.get(&format!("/v1/ingest/torque?id=7&kd=1&token={other}"), "");
    assert!(torque.status == 403 && !torque.body.contains("OK!"), "{torque:?}");
    let owntracks = server.post("/pub", &basic("jane", &other), OWNTRACKS);
    assert_eq!((owntracks.status, owntracks.header("content-type")), (403, "application/problem+json"));
    // One device of a batch without permission: nothing of the batch is published.
    let point = |id: &str| {
        format!(
            r#"{{"geometry":{{"coordinates":[1,2]}},"properties":{{"timestamp":"1397028600","device_id":"{id}"}}}}"#
        )
    };
    let body = format!(r#"{{"locations":[{},{}]}}"#, point("other"), point("7"));
    let headers = format!("Authorization: Bearer {other}\r\n");
    assert_eq!(server.post("/v1/ingest/overland", &headers, &body).status, 403);
    assert!(server.records_with("cars/other/telemetry", &headers).is_empty());
}

#[test]
fn request_without_valid_token_is_refused() {
    let server = closed();
    for headers in [String::new(), basic("jane", ""), basic("jane", "guess"), "Authorization: Basic ?\r\n".into()] {
        assert_eq!(server.post("/pub", &headers, OWNTRACKS).status, 401, "{headers}");
    }
    let answer = server.get("/?id=7&lat=1&lon=2", "");
    assert_eq!((answer.status, answer.header("content-type")), (401, "text/plain; charset=utf-8"));
    assert_eq!(server.get("/v1/ingest/torque?id=7&kd=1&token=a.b.c", "").status, 401);
}

#[test]
fn subject_of_the_token_names_the_device() {
    let server = closed();
    let headers = format!("Authorization: Bearer {}\r\n", token("9"));
    let body =
        r#"{"locations":[{"geometry":{"coordinates":[1,2]},"properties":{"timestamp":"1397028600","device_id":""}}]}"#;
    assert_eq!(server.post("/v1/ingest/overland", &headers, body).status, 200);
    assert_eq!(server.records_with("cars/9/telemetry", &headers)[0]["carId"], 9);
}

#[test]
fn page_of_another_site_cannot_publish() {
    let server = Server::start();
    for site in ["cross-site", "same-site"] {
        let answer = server.get("/?id=7&lat=1&lon=2", &format!("Sec-Fetch-Site: {site}\r\n"));
        assert_eq!(answer.status, 403, "{answer:?}");
    }
    assert!(server.records("cars/7/telemetry").is_empty());
}
