//! Resume tickets: the subscriptions of a session and their positions, signed so that any node with the same secret
//! can continue the session.
//!
//! A ticket is base64url (no padding) of `HMAC-SHA256 ‖ JSON`. The JSON contains the bodies of the session's own
//! `subscribe` commands: `{"until": <ms>, "subscribe": [{"channel", "since", "policy"?, "positions"?}]}`. A ticket
//! is signed, not encrypted, because its session knows the content anyway. Source: docs/reference/protocol.md, "Moving
//! to another server".

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;

use crate::{
    Code, Error,
    session::{SubscribeFields, Subscription},
};

/// Maximum length of a ticket in bytes. It is sent in a request header, and proxies commonly limit all headers to 8
/// KiB.
pub const TICKET_BYTES_MAX: usize = 4096;
/// Prefix of the signed data. Anything else that is ever signed with the same secret must start with a different
/// prefix.
const PURPOSE: &[u8] = b"millrace resume ticket 1\n";
const MAC_BYTES: usize = 32;
/// Maximum bytes of JSON in a ticket: three for every four bytes of base64.
const JSON_BYTES_MAX: usize = TICKET_BYTES_MAX / 4 * 3 - MAC_BYTES;

/// Key that signs and verifies tickets. Nodes with the same secret accept each other's tickets.
pub struct TicketKey(Hmac<Sha256>);

#[derive(Deserialize)]
struct Contents {
    /// Expiry time, in milliseconds since 1970.
    until: u64,
    subscribe: Vec<SubscribeFields>,
}

impl TicketKey {
    pub fn new(secret: &[u8]) -> Self {
        let mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
        Self(mac.chain_update(PURPOSE))
    }

    /// Signs a ticket for these subscriptions, at most [`TICKET_BYTES_MAX`] long. A subscription that does not fit
    /// is left out as a whole, and the client subscribes to it again itself. Returns `None` if no subscription
    /// fits. The ticket is valid for the same subject only.
    ///
    /// Units: `until_ms` in milliseconds since 1970.
    pub fn sign(&self, subscriptions: &[Subscription], subject: Option<&str>, until_ms: u64) -> Option<String> {
        let mut json = format!("{{\"until\":{until_ms},\"subscribe\":[");
        let empty = json.len();
        for subscription in subscriptions {
            let body = subscription.to_json().to_string();
            if json.len() + body.len() + ",]}".len() <= JSON_BYTES_MAX {
                if json.len() > empty {
                    json.push(',');
                }
                json.push_str(&body);
            }
        }
        if json.len() == empty {
            return None;
        }
        json.push_str("]}");
        let mac = self.of(subject).chain_update(&json).finalize().into_bytes();
        Some(BASE64_URL_SAFE_NO_PAD.encode([mac.as_slice(), json.as_bytes()].concat()))
    }

    /// Verifies a ticket and returns the subscriptions to resume.
    ///
    /// Errors: [`Code::BadTicket`] if the text is not a ticket, the ticket has expired, or it was signed with
    /// another secret or for another subject. An invalid subscription in it has the error of its command.
    pub fn verify(&self, ticket: &str, subject: Option<&str>, now_ms: u64) -> Result<Vec<Subscription>, Error> {
        let bad = |what: &str| Error::new(Code::BadTicket, format!("{what}; subscribe without a ticket"));
        let none = || bad("this is no resume ticket");
        let bytes = Some(ticket).filter(|ticket| ticket.len() <= TICKET_BYTES_MAX);
        let bytes = bytes.and_then(|ticket| BASE64_URL_SAFE_NO_PAD.decode(ticket).ok()).ok_or_else(none)?;
        let (mac, json) = bytes.split_at_checked(MAC_BYTES).ok_or_else(none)?;
        let signed = self.of(subject).chain_update(json).verify_slice(mac);
        signed.map_err(|_| bad("this resume ticket was signed with another secret, or for another subject"))?;
        let contents: Contents = serde_json::from_slice(json).map_err(|_| none())?;
        if contents.until < now_ms {
            return Err(bad("this resume ticket has expired"));
        }
        contents.subscribe.into_iter().map(SubscribeFields::decode).collect()
    }

    /// Returns an HMAC that has consumed the subject. The length prefix makes the encoding of each subject
    /// unambiguous.
    fn of(&self, subject: Option<&str>) -> Hmac<Sha256> {
        let length = subject.map_or(u64::MAX, |subject| subject.len() as u64);
        self.0.clone().chain_update(length.to_be_bytes()).chain_update(subject.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        ChannelName, Epoch, Position, Since,
        session::{Policy, Target},
    };

    fn position(offset: u64) -> Position {
        Position { epoch: Epoch(7), offset }
    }

    fn channel(name: &str) -> Subscription {
        Subscription {
            target: Target::parse(name).unwrap(),
            since: Since::Position(position(5)),
            positions: HashMap::new(),
            policy: Policy::Latest,
        }
    }

    fn pattern(positions: usize) -> Subscription {
        let name = |i| ChannelName::parse(&format!("cars/{i}/telemetry")).unwrap();
        Subscription {
            target: Target::parse("cars/+/telemetry").unwrap(),
            since: Since::Time(1_700_000_000_000),
            positions: (0..positions).map(|i| (name(i), position(i as u64))).collect(),
            policy: Policy::Every,
        }
    }

    #[test]
    fn ticket_round_trips_until_it_expires() {
        let key = TicketKey::new(b"secret");
        let read = [channel("a/b"), pattern(20)];
        let ticket = key.sign(&read, None, 1000).unwrap();
        assert!(ticket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{ticket}");
        assert_eq!(TicketKey::new(b"secret").verify(&ticket, None, 1000).unwrap(), read);
        assert!(key.verify(&ticket, None, 1001).unwrap_err().detail.contains("expired"));
    }

    #[test]
    fn ticket_is_valid_only_for_its_subject() {
        let key = TicketKey::new(b"secret");
        let whom = [None, Some(""), Some("ann"), Some("anna")];
        for signed in whom {
            let ticket = key.sign(&[channel("a/b")], signed, 1000).unwrap();
            for shown in whom {
                assert_eq!(key.verify(&ticket, shown, 0).is_ok(), signed == shown, "{signed:?} {shown:?}");
            }
        }
    }

    #[test]
    fn forged_tickets_are_refused() {
        let key = TicketKey::new(b"secret");
        let ticket = key.sign(&[channel("a/b")], None, 1000).unwrap();
        let foreign = TicketKey::new(b"another").sign(&[channel("a/b")], None, 1000).unwrap();
        assert!(key.verify(&foreign, None, 0).unwrap_err().detail.contains("another secret"));
        for place in 0..ticket.len() - 1 {
            let mut bent = ticket.clone().into_bytes();
            bent[place] = if bent[place] == b'A' { b'B' } else { b'A' };
            let error = key.verify(std::str::from_utf8(&bent).unwrap(), None, 0).unwrap_err();
            assert_eq!(error.code, Code::BadTicket, "place {place}");
        }
        for none in ["", "A", "====", &ticket[..40], &"A".repeat(TICKET_BYTES_MAX + 1), "não"] {
            assert_eq!(key.verify(none, None, 0).unwrap_err().code, Code::BadTicket, "{none:.20}");
        }
    }

    #[test]
    fn oversized_ticket_omits_subscriptions() {
        let key = TicketKey::new(b"secret");
        let many: Vec<_> = (0..1000).map(|i| channel(&format!("cars/{i}/telemetry"))).collect();
        let ticket = key.sign(&many, None, 1000).unwrap();
        assert!(ticket.len() <= TICKET_BYTES_MAX && ticket.len() > TICKET_BYTES_MAX / 2, "{}", ticket.len());
        let kept = key.verify(&ticket, None, 0).unwrap();
        assert_eq!(kept, many[..kept.len()]);
        let around = [pattern(1000), channel("last")];
        assert_eq!(key.verify(&key.sign(&around, None, 1000).unwrap(), None, 0).unwrap(), around[1..]);
        assert_eq!((key.sign(&[pattern(1000)], None, 1000), key.sign(&[], None, 1000)), (None, None));
    }
}
