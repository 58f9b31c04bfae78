//! Checks the reports of participants: known values must be in range, and all names and texts must be short. Source:
//! docs/reference/rooms.md, "Measuring".

use millrace_protocol::{Code, Error};
use serde_json::{Map, Value};

/// Maximum depth of a report: a report has links, which have streams, which have values.
const DEPTH_MAX: usize = 5;
const TEXT_BYTES_MAX: usize = 64;

/// Checks a report before it is published to other participants. Unknown fields may have any small value.
///
/// Errors: [`Code::BadRequest`], with the name of the invalid field.
pub(super) fn check(report: &Map<String, Value>) -> Result<(), Error> {
    report.iter().try_for_each(|(name, value)| check_value(name, value, DEPTH_MAX))
}

fn check_value(name: &str, value: &Value, depth_left: usize) -> Result<(), Error> {
    let bad = |what: String| Err(Error::new(Code::BadRequest, what));
    if name.len() > TEXT_BYTES_MAX {
        return bad(format!("a name in a report is longer than {TEXT_BYTES_MAX} bytes"));
    }
    let most = match name {
        "loss" | "residual_loss" => 1.0,
        "fps" | "calls" | "calls_failed" | "codec_cpu" => f64::MAX,
        name if name.ends_with("_kbps") || name.ends_with("_ms") => f64::MAX,
        _ => f64::NAN,
    };
    if !most.is_nan() && !value.as_f64().is_some_and(|figure| (0.0..=most).contains(&figure)) {
        let until = if most == 1.0 { " to 1" } else { "" };
        return bad(format!("`{name}` must be a number from 0{until}"));
    }
    match value {
        Value::String(text) if text.len() > TEXT_BYTES_MAX => {
            bad(format!("`{name}` is longer than {TEXT_BYTES_MAX} bytes"))
        }
        Value::Array(_) | Value::Object(_) if depth_left == 0 => {
            bad(format!("`{name}` is nested too deep: a report has at most {DEPTH_MAX} levels"))
        }
        Value::Array(values) => values.iter().try_for_each(|value| check_value("", value, depth_left - 1)),
        Value::Object(values) => values.iter().try_for_each(|(name, value)| check_value(name, value, depth_left - 1)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(report: &Value) -> Result<(), String> {
        check(report.as_object().expect("an object")).map_err(|error| error.to_string())
    }

    #[test]
    fn report_values_are_checked() {
        let stream = json!({ "from": "000001", "kind": "video", "rate_kbps": 312.5, "loss": 0, "residual_loss": 1, "fps": 30, "limited_by": "cpu" });
        let link = json!({ "to": "switch", "rtt_ms": 0.4, "setup_ms": 120, "streams": [stream, stream] });
        assert_eq!(checked(&json!({})), Ok(()));
        assert_eq!(
            checked(
                &json!({ "muted": true, "calls": 3, "calls_failed": 0, "links": [link], "battery": { "level": -1 } })
            ),
            Ok(())
        );
        for (report, named) in [
            (json!({ "rtt_ms": -1 }), "rtt_ms"),
            (json!({ "rtt_ms": "1" }), "rtt_ms"),
            (json!({ "uplink_kbps": null }), "uplink_kbps"),
            (json!({ "loss": 1.01 }), "loss"),
            (json!({ "links": [{ "streams": [{ "residual_loss": -0.1 }] }] }), "residual_loss"),
            (json!({ "links": [{ "to": "x".repeat(65) }] }), "to"),
            (json!({ "x".repeat(65): 1 }), "name"),
            (json!({ "links": [[[[[[1]]]]]] }), "deep"),
        ] {
            let refused = checked(&report).expect_err("out of bounds");
            assert!(refused.contains(named), "{report}: {refused}");
        }
    }
}
