//! The same responses in XML, so that the message-size comparison of the theses can be repeated.

use std::fmt::Write;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use super::StatePage;
use crate::{Epoch, Gap, Kind, Publication, Since};

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>\n";

/// Returns `<answer position more?><gap from to/><message position time key trace><data>..</data></message></answer>`.
pub fn answer(position: Since, more: bool, gap: Option<Gap>, epoch: Epoch, publications: &[Publication]) -> String {
    let more = if more { " more=\"true\"" } else { "" };
    let mut out = format!("{DECLARATION}<answer position=\"{position}\"{more}>");
    if let Some(gap) = gap {
        let _ = write!(out, "<gap from=\"{}\" to=\"{}\"/>", gap.from, gap.to);
    }
    write_messages(&mut out, epoch, publications);
    out.push_str("</answer>");
    out
}

/// Returns one page of a state: `<answer position next? restart?><message ..><data>..</data></message></answer>`.
pub fn state(page: &StatePage<'_>) -> String {
    let mut out = format!("{DECLARATION}<answer position=\"{}\"", page.position);
    if let Some(next) = page.next {
        let _ = write!(out, " next=\"{next}\"");
    }
    out.push_str(if page.restart { " restart=\"true\">" } else { ">" });
    write_messages(&mut out, page.position.epoch, page.publications);
    out.push_str("</answer>");
    out
}

fn write_messages(out: &mut String, epoch: Epoch, publications: &[Publication]) {
    for publication in publications {
        let _ = write!(
            out,
            "<message position=\"{:08x}:{}\" time=\"{}\"",
            epoch.0, publication.offset, publication.time_ms
        );
        if let Some(key) = &publication.key {
            let _ = write!(out, " key=\"{}\"", escape(key));
        }
        if let Some(trace) = publication.trace() {
            let _ = write!(out, " trace=\"{trace}\"");
        }
        match publication.kind() {
            _ if publication.is_deletion => out.push_str(" deleted=\"true\">"),
            Kind::Json => {
                out.push('>');
                write_element(out, "data", &value(publication.data()));
            }
            Kind::Text | Kind::Utf8 => {
                let _ = write!(out, "><data>{}</data>", escape(&String::from_utf8_lossy(publication.data())));
            }
            Kind::Binary => {
                let _ = write!(out, " encoding=\"base64\"><data>{}</data>", BASE64_STANDARD.encode(publication.data()));
            }
        }
        out.push_str("</message>");
    }
}

/// Parses a JSON payload. A payload with a number out of range, such as `1e999`, is returned as text.
pub fn value(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_else(|_| String::from_utf8_lossy(json).into())
}

/// Returns one JSON value as an XML document: `<root>` with one element per field.
pub fn document(root: &str, value: &Value) -> String {
    let mut out = DECLARATION.to_owned();
    write_element(&mut out, root, value);
    out
}

fn write_element(out: &mut String, name: &str, value: &Value) {
    let tag = if is_xml_name(name) { name } else { "entry" };
    let _ = write!(out, "<{tag}");
    if tag != name {
        let _ = write!(out, " key=\"{}\"", escape(name));
    }
    out.push('>');
    match value {
        Value::Null => {}
        Value::String(text) => out.push_str(&escape(text)),
        Value::Array(items) => items.iter().for_each(|item| write_element(out, "item", item)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| write_element(out, name, value)),
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(out, "{value}");
        }
    }
    let _ = write!(out, "</{tag}>");
}

fn is_xml_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
        && !name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("xml"))
}

/// Escapes text for XML. Characters that XML 1.0 cannot represent become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => {
                let _ = write!(out, "&#{};", c as u32);
            }
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn thesis_record_has_documented_size() {
        let record = json!({"carId": 1, "timestamp": 1396876402000u64, "gpsLatitude": 47.53398, "gpsLongitude": 19.079723,
            "speed": 1.25, "rpm": 1250, "coolantTemperature": 101});
        let xml = document("sensordata", &record);
        assert!(xml.ends_with("</sensordata>") && xml.contains("<carId>1</carId>"));
        assert!((270..=295).contains(&xml.len()), "{} bytes, the thesis has about 281", xml.len());
    }

    #[test]
    fn out_of_range_number_is_kept_in_xml() {
        for json in ["1e999", "{\"a\": [-1e999]}"] {
            let xml = document("data", &value(json.as_bytes()));
            assert!(xml.contains(&escape(json)), "{xml}");
        }
    }

    #[test]
    fn special_names_and_characters_are_escaped() {
        let xml = document("data", &json!({"a b": "<&>\u{0}", "xmlish": [1, true, null]}));
        assert!(xml.contains("<entry key=\"a b\">&lt;&amp;&gt;\u{fffd}</entry>"));
        assert!(xml.contains("<entry key=\"xmlish\"><item>1</item><item>true</item><item></item></entry>"));
    }
}
