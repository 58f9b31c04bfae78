//! The published JSON schema of a device record, against the decoders and the simulator.

use std::{fs, path::Path};

use millrace_ingest::{DeviceId, Reading, obd};
use millrace_simulate::record::Record;
use serde_json::{Value, json};

use crate::server::Server;

fn schema() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/device-record.schema.json");
    serde_json::from_str(&fs::read_to_string(file).expect("the schema is published")).expect("JSON")
}

/// Validates a value against the part of JSON Schema that the schema uses. An unknown keyword is an error.
fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{value} {what}"));
    for (keyword, rule) in schema.as_object().expect("a schema") {
        match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "examples" => {}
            "type" => {
                let types: Vec<&str> = rule.as_str().map_or_else(
                    || rule.as_array().expect("types").iter().filter_map(Value::as_str).collect(),
                    |one| vec![one],
                );
                let is_type = |name: &&str| match *name {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "number" => value.is_number(),
                    "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                    other => panic!("the type {other} is not supported"),
                };
                if !types.iter().any(is_type) {
                    return wrong(format!("is no {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().expect("names").iter().filter_map(Value::as_str) {
                    if value.get(name).is_none() {
                        return wrong(format!("lacks {name}"));
                    }
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().expect("properties") {
                    value.get(name).map_or(Ok(()), |value| validate(schema, value))?;
                }
            }
            "additionalProperties" => {
                let known = schema["properties"].as_object();
                for (name, value) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    match rule {
                        Value::Bool(true) => {}
                        Value::Bool(false) => return wrong(format!("has the unknown field {name}")),
                        rule => validate(rule, value)?,
                    }
                }
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| validate(rule, item))?,
            "minimum" | "maximum" | "exclusiveMaximum" => {
                let (Some(number), Some(rule)) = (value.as_f64(), rule.as_f64()) else { continue };
                let is_good = match keyword.as_str() {
                    "minimum" => number >= rule,
                    "maximum" => number <= rule,
                    _ => number < rule,
                };
                if !is_good {
                    return wrong(format!("breaks {keyword} {rule}"));
                }
            }
            "maxLength" => {
                if value.as_str().is_some_and(|text| text.len() as u64 > rule.as_u64().expect("a number")) {
                    return wrong(format!("is longer than {rule}"));
                }
            }
            other => panic!("the keyword {other} is not supported"),
        }
    }
    Ok(())
}

/// Validates a record, as JSON.
pub fn validate_record(record: &str) -> Result<(), String> {
    static SCHEMA: std::sync::LazyLock<Value> = std::sync::LazyLock::new(schema);
    validate(&SCHEMA, &serde_json::from_str(record).map_err(|error| error.to_string())?)
}

/// Returns true if the schema has the field. The schema allows others, so that later senders are not refused.
fn is_listed(schema: &Value, field: &str) -> bool {
    schema["properties"].get(field).is_some()
}

#[test]
fn server_publishes_the_schema() {
    let server = Server::with(|config| config.ingest.enabled = millrace_ingest::Mode::Off);
    let answer = server.get("/v1/ingest/device-record.schema.json", "");
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/schema+json"));
    assert_eq!(serde_json::from_str::<Value>(&answer.body).unwrap(), schema());
}

#[test]
fn records_of_all_decoders_match_the_schema() {
    let schema = schema();
    for fixture in [
        include_str!("../fixtures/osmand-query.http"),
        include_str!("../fixtures/osmand-form.http"),
        include_str!("../fixtures/traccar-client-query.http"),
        include_str!("../fixtures/traccar-client-json.http"),
        include_str!("../fixtures/owntracks.http"),
        include_str!("../fixtures/torque.http"),
        include_str!("../fixtures/overland.http"),
        include_str!("../fixtures/gpx.http"),
        include_str!("../fixtures/csv.http"),
        include_str!("../fixtures/obd.http"),
    ] {
        let server = Server::start();
        server.replay(fixture);
        let records = server.records("fleet");
        assert!(!records.is_empty());
        for record in records {
            validate(&schema, &record).unwrap_or_else(|error| panic!("{fixture}: {error}"));
            for field in record.as_object().unwrap().keys() {
                assert!(is_listed(&schema, field), "{fixture}: the schema lacks {field}");
            }
        }
    }
}

#[test]
fn records_of_the_simulator_match_the_schema() {
    let schema = schema();
    let sent = json!({ "carId": 1, "timestamp": 1_397_000_000_000u64, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
        "speed": 1.25, "rpm": 1250, "coolantTemperature": 101, "heading": 12.5, "gear": 3, "seq": 7,
        "event": "trouble_code", "code": "P0301" });
    let record: Record = serde_json::from_value(sent.clone()).unwrap();
    let record = serde_json::to_value(record).unwrap();
    assert_eq!(record, sent, "the simulator's own record");
    validate(&schema, &record).unwrap();
    for field in record.as_object().unwrap().keys() {
        assert!(is_listed(&schema, field), "the schema lacks {field}");
    }
}

#[test]
fn schema_has_every_field_of_a_reading() {
    let schema = schema();
    let mut reading = obd::decode(
        "41 0C 0E 70\r41 05 8D\r41 0B 64\r41 10 01 F4\r41 5C 82\r41 5E 00 64\r41 42 35 E8\r43 00\r41 01 81 00 00 00",
    )
    .reading;
    reading.clone_from(&Reading { oil_pressure: Some(300.0), co2: Some(120.0), ..reading.clone() });
    let json: Value = serde_json::from_str(&reading.to_json(&DeviceId::parse("7").unwrap(), 1)).unwrap();
    validate(&schema, &json).unwrap();
    for field in json.as_object().unwrap().keys() {
        assert!(is_listed(&schema, field), "the schema lacks {field}");
    }
}

#[test]
fn wrong_records_do_not_match_the_schema() {
    let schema = schema();
    for wrong in [
        json!({ "timestamp": 1 }),
        json!({ "carId": 1 }),
        json!({ "carId": 1, "timestamp": -1 }),
        json!({ "carId": [], "timestamp": 1 }),
        json!({ "carId": 1, "timestamp": 1, "gpsLatitude": 91 }),
        json!({ "carId": 1, "timestamp": 1, "heading": 360 }),
        json!({ "carId": 1, "timestamp": 1, "troubleCodes": "P0133" }),
        json!({ "carId": 1, "timestamp": 1, "battery": 101 }),
        json!({ "carId": 1, "timestamp": 1, "attributes": { "a": {} } }),
        json!([]),
    ] {
        assert!(validate(&schema, &wrong).is_err(), "{wrong}");
    }
    assert!(validate(&schema, &json!({ "carId": "x", "timestamp": 1, "later": 1 })).is_ok(), "fields may be added");
}
