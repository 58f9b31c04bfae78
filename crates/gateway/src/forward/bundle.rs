//! Bundle of many messages as one: a JSON array with one object per message.
//!
//! ```json
//! [{"peer":"arm-1","data":"text, as it was sent"},{"peer":"arm-2","data":"AP8=","encoding":"base64"},{"lost":3}]
//! ```
//!
//! Source: docs/reference/gateway.md, "Bundles".

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

const BASE64: &str = "base64";

/// Message in a bundle.
#[derive(Debug, PartialEq, Eq)]
pub struct BundledMessage {
    /// Sender of the message in a gathered bundle; receiver of the message in a bundle to be split.
    pub peer: String,
    pub message: Vec<u8>,
}

#[derive(Serialize)]
struct EncodedMessage<'a> {
    peer: &'a str,
    data: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

/// Element of the array: a message, or the number of messages that were dropped.
#[derive(Deserialize)]
struct Item {
    peer: Option<String>,
    data: Option<String>,
    encoding: Option<String>,
    lost: Option<u64>,
}

/// Bundle under construction.
#[derive(Debug, Default)]
pub struct Bundle {
    text: Vec<u8>,
    count: u64,
    lost: u64,
}

impl Bundle {
    pub fn push(&mut self, peer: &str, message: &[u8]) {
        let written = match std::str::from_utf8(message) {
            Ok(text) => EncodedMessage { peer, data: text.into(), encoding: None },
            Err(_) => EncodedMessage { peer, data: BASE64_STANDARD.encode(message).into(), encoding: Some(BASE64) },
        };
        self.begin_item();
        serde_json::to_writer(&mut self.text, &written).expect("strings are JSON, and writing to memory cannot fail");
        self.count += 1;
    }

    /// Adds the number of messages that were dropped before the next ones.
    pub fn push_lost(&mut self, lost: u64) {
        self.begin_item();
        self.text.extend_from_slice(format!("{{\"lost\":{lost}}}").as_bytes());
        self.lost += lost;
    }

    fn begin_item(&mut self) {
        self.text.push(if self.text.is_empty() { b'[' } else { b',' });
    }

    /// Returns the length of the text in bytes, without the closing bracket.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the number of messages in the bundle.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of dropped messages that the bundle reports.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the complete text, and leaves the bundle empty.
    pub fn take(&mut self) -> Vec<u8> {
        let Bundle { mut text, .. } = std::mem::take(self);
        text.push(b']');
        text
    }
}

/// Returns the messages of a bundle in order, or `None` if the text is not a bundle.
pub fn parts(text: &[u8]) -> Option<Vec<BundledMessage>> {
    let items: Vec<Item> = serde_json::from_slice(text).ok()?;
    let mut parts = Vec::with_capacity(items.len());
    for item in items {
        let message = match (item.peer, item.data, item.encoding.as_deref(), item.lost) {
            (Some(peer), Some(data), None, _) => BundledMessage { peer, message: data.into_bytes() },
            (Some(peer), Some(data), Some(BASE64), _) => {
                BundledMessage { peer, message: BASE64_STANDARD.decode(data).ok()? }
            }
            (None, None, None, Some(_)) => continue,
            _ => return None,
        };
        parts.push(message);
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_round_trips() {
        let messages: [(&str, &[u8]); 4] =
            [("a", b"text"), ("\"b\"", "\u{1}\n\u{e9}\"".as_bytes()), ("c", &[0, 255]), ("a", b"")];
        let mut bundle = Bundle::default();
        bundle.push_lost(3);
        messages.iter().for_each(|(peer, message)| bundle.push(peer, message));
        assert_eq!(bundle.count(), 4);
        let (bytes, text) = (bundle.bytes(), bundle.take());
        assert_eq!((text.len(), bundle.bytes(), bundle.count()), (bytes + 1, 0, 0));
        let wanted = messages.map(|(peer, message)| BundledMessage { peer: peer.into(), message: message.into() });
        assert_eq!(parts(&text).expect("a bundle"), wanted);
        assert!(text.starts_with(br#"[{"lost":3},{"peer":"a","data":"text"},"#), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn invalid_bundle_is_rejected() {
        assert_eq!(parts(b"[]"), Some(Vec::new()));
        for bad in [
            &b""[..],
            b"hello",
            b"{}",
            b"[1]",
            br#"[{"peer":"a"}]"#,
            br#"[{"peer":"a","data":"!","encoding":"base64"}]"#,
            b"[\xff]",
        ] {
            assert_eq!(parts(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        let other = br#"[{"peer":"a","data":"x","encoding":"rot13"}]"#;
        assert_eq!(parts(other), None, "an unknown encoding");
    }
}
