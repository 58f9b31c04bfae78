//! Publications of the client: from PUBLISH to its acknowledgment.

use millrace_protocol::{Attributes, ChannelName, Kind, NewPublication};

use super::{ALIAS_MAX, Action, Incoming, Session};
use crate::{
    Reason,
    encode::{self, Ack},
    packet::{Publish, Version},
};

/// Maximum number of publications of quality of service 2 that a client may leave unfinished.
pub const RECEIVE_MAX: u16 = 100;
/// The same for clients of MQTT 3.1.1, which do not know the maximum.
const RECEIVE_MAX_V311: usize = 4096;

impl Session {
    pub(super) fn handle_publish(&mut self, publish: Publish<'_>, out: &mut Vec<u8>) -> Result<Action, Reason> {
        let (id, qos) = (publish.id, publish.qos);
        if qos == 2 {
            if self.unreleased.contains(&id) {
                encode::ack(out, self.version, Ack::Pubrec, id, Reason::SUCCESS);
                return Ok(Action::Nothing);
            }
            let max = if self.version == Version::V5 { RECEIVE_MAX.into() } else { RECEIVE_MAX_V311 };
            if self.unreleased.len() >= max {
                return Err(Reason::RECEIVE_MAXIMUM_EXCEEDED);
            }
        }
        let Some(channel) = self.topic_of(&publish)? else {
            self.published(id, qos, Err(Reason::TOPIC_NAME_INVALID), out);
            return Ok(Action::Nothing);
        };
        if qos == 2 {
            self.unreleased.insert(id);
        }
        let kind = if std::str::from_utf8(publish.payload).is_ok() { Kind::Utf8 } else { Kind::Binary };
        let mut publication = NewPublication::new(kind, publish.payload).traced(publish.trace);
        publication.ttl_ms = publish.expiry_s.map(|expiry_s| u64::from(expiry_s) * 1000);
        let has_no_local = self.subscriptions.iter().any(|own| own.options.no_local);
        let attributes = Attributes {
            qos,
            is_retained: publish.is_retained,
            publisher: if has_no_local { self.settings.publisher } else { 0 },
            properties: &publish.properties,
        };
        if attributes != (Attributes { qos: 2, ..Attributes::default() }) {
            publication = publication.with_attributes(attributes);
        }
        Ok(Action::Publish(Incoming { channel, publication, id, qos, is_retained: publish.is_retained }))
    }

    /// Returns the channel of a publication, or `None` if its topic is no channel.
    ///
    /// Errors: an invalid alias, or a topic with wildcards.
    fn topic_of(&mut self, publish: &Publish<'_>) -> Result<Option<ChannelName>, Reason> {
        if publish.topic.contains(['+', '#']) {
            return Err(Reason::TOPIC_NAME_INVALID);
        }
        let channel = match publish.topic {
            "" if publish.alias.is_none() => {
                return Err(Reason::PROTOCOL_ERROR);
            }
            "" => None,
            topic => match self.topic.as_ref().filter(|known| known.as_str() == topic) {
                Some(known) => Some(known.clone()),
                None => match ChannelName::parse(topic) {
                    Ok(channel) => Some(channel),
                    // Its alias is not set, so that later uses of the alias are an error of the client.
                    Err(_) => return Ok(None),
                },
            },
        };
        if let Some(channel) = &channel
            && self.topic.as_ref() != Some(channel)
        {
            self.topic = Some(channel.clone());
        }
        let Some(alias) = publish.alias else { return Ok(channel) };
        if alias == 0 || alias > ALIAS_MAX {
            return Err(Reason::TOPIC_ALIAS_INVALID);
        }
        let slot = usize::from(alias) - 1;
        match channel {
            Some(channel) => {
                if self.aliases.len() <= slot {
                    self.aliases.resize(slot + 1, None);
                }
                self.aliases[slot] = Some(channel.clone());
                Ok(Some(channel))
            }
            None => match self.aliases.get(slot).cloned().flatten() {
                Some(channel) => Ok(Some(channel)),
                None => Err(Reason::TOPIC_ALIAS_INVALID),
            },
        }
    }

    /// Answers a publication of the client. MQTT 3.1.1 has no refusal, so the answer is positive there.
    pub fn published(&mut self, id: u16, qos: u8, outcome: Result<(), Reason>, out: &mut Vec<u8>) {
        let reason = match outcome {
            Err(reason) if self.version == Version::V5 => reason,
            _ => Reason::SUCCESS,
        };
        match qos {
            1 => encode::ack(out, self.version, Ack::Puback, id, reason),
            2 => {
                if reason.is_error() {
                    self.unreleased.remove(&id);
                } else {
                    self.unreleased.insert(id);
                }
                encode::ack(out, self.version, Ack::Pubrec, id, reason);
            }
            _ => {}
        }
    }
}
