//! Publications to the client: those that the hub delivers, and retained ones.

use millrace_protocol::{
    ChannelName, Position, Publication,
    encoding::record::{PublicationRecord, QOS_ANY, encode_trace},
    session::Target,
};

use super::{Scan, Session};
use crate::{encode::Outgoing, window::Origin};

impl Session {
    /// Sends a publication that the hub delivers. Returns false if the client must acknowledge others first.
    pub fn deliver(&mut self, record: &PublicationRecord<'_>, now_ms: u64, out: &mut Vec<u8>) -> bool {
        // Most dashboards need no name: it costs an allocation for a channel that a pattern matches.
        let needs_name = self.expiry_s > 0 || self.alias_max > 0 || self.shares();
        let mut name = if needs_name { self.name_of(record.channel) } else { None };
        let (mut granted, mut keeps_retained, mut is_shared) = (None::<u8>, false, false);
        self.identifiers.clear();
        for own in &self.subscriptions {
            if !own.filter.matches(record.channel)
                || (own.options.no_local && record.publisher != 0 && record.publisher == self.settings.publisher)
            {
                continue;
            }
            if let Some(membership) = &own.membership {
                let Some(name) = &name else { continue };
                if !membership.sends(name, record.position, record.time_ms) {
                    continue;
                }
                is_shared = true;
            }
            granted = granted.max(Some(own.options.qos));
            keeps_retained |= own.options.retain_as_published;
            if own.identifier != 0 && !self.identifiers.contains(&own.identifier) {
                self.identifiers.push(own.identifier);
            }
        }
        let is_expired = record.expires_ms.is_some_and(|at| at <= now_ms);
        let Some(granted) = granted.filter(|_| !is_expired) else {
            self.note(name.as_ref(), record.position);
            return true;
        };
        let qos = if record.qos == QOS_ANY { granted } else { granted.min(record.qos) };
        if qos > 0 && self.window.is_full(self.receive_max) {
            return false;
        }
        if qos > 0 && name.is_none() {
            name = self.name_of(record.channel);
        }
        let (resumed, is_sent) = match &name {
            Some(name) => self.resumed_as(name, record.position),
            None => (None, false),
        };
        if is_sent {
            self.note(name.as_ref(), record.position);
            return true;
        }
        let id = match (qos, &name) {
            (1.., Some(name)) => self.window.push(resumed, qos, Origin::Log(name.clone(), record.position)),
            _ => 0,
        };
        let packet = Outgoing {
            dup: resumed.is_some() && qos > 0,
            qos,
            is_retained: record.is_retained && keeps_retained,
            topic: record.channel,
            alias: None,
            id,
            expiry_s: record.expires_ms.map(|at| seconds(at.saturating_sub(now_ms))),
            identifiers: &[],
            properties: record.properties,
            trace: record.trace,
            payload: record.payload,
        };
        let is_encoded = self.encode(packet, name.as_ref(), out);
        if qos > 0 && !is_encoded {
            self.window.pop();
        }
        if let Some(name) = name.as_ref().filter(|_| is_shared && (qos == 0 || !is_encoded)) {
            self.done(name, record.position);
        }
        self.note(name.as_ref(), record.position);
        true
    }

    /// Encodes a packet with the aliases and identifiers of the session. Returns false if it is too large.
    fn encode(&mut self, packet: Outgoing<'_>, name: Option<&ChannelName>, out: &mut Vec<u8>) -> bool {
        let mut packet = Outgoing { identifiers: &self.identifiers, ..packet };
        if let Some(name) = name.filter(|_| self.alias_max > 0) {
            match self.aliases_sent.iter().position(|known| known == name) {
                Some(known) => (packet.alias, packet.topic) = (Some(known as u16 + 1), ""),
                None if self.aliases_sent.len() < self.alias_max.into() => {
                    packet.alias = Some(self.aliases_sent.len() as u16 + 1);
                }
                None => {}
            }
        }
        let is_new = packet.alias.is_some() && !packet.topic.is_empty();
        let is_encoded = packet.encode(out, self.version, self.packet_bytes_max);
        if is_new && is_encoded {
            self.aliases_sent.extend(name.cloned());
        }
        is_encoded
    }

    /// Returns how an earlier connection has sent a publication: its identifier, and whether the client has it.
    fn resumed_as(&mut self, name: &ChannelName, position: Position) -> (Option<u16>, bool) {
        let Some(earlier) = self.resumed.get_mut(name) else { return (None, false) };
        let is_before = |other: Position| other.epoch != position.epoch || other.offset < position.offset;
        while earlier.front().is_some_and(|entry| is_before(entry.position)) {
            earlier.pop_front();
        }
        let found = earlier.front().copied().filter(|entry| entry.position == position);
        if found.is_some() {
            earlier.pop_front();
        }
        if earlier.is_empty() {
            self.resumed.remove(name);
        }
        found.map_or((None, false), |entry| (entry.id, entry.id.is_none()))
    }

    fn name_of(&self, channel: &str) -> Option<ChannelName> {
        let own = self.subscriptions.iter().find_map(|own| match &own.filter.target {
            Target::Channel(name) if name.as_str() == channel => Some(name.clone()),
            _ => None,
        });
        own.or_else(|| ChannelName::parse(channel).ok())
    }

    /// Sends the retained publications that match a subscription, as its options demand.
    pub fn send_retained(&mut self, index: usize, is_new: bool) {
        let Some(own) = self.subscriptions.get(index).filter(|own| own.filter.group.is_none()) else { return };
        if own.options.retain_handling == 0 || (own.options.retain_handling == 1 && is_new) {
            self.scans.push_back(Scan {
                target: own.filter.target.clone(),
                after: None,
                qos: own.options.qos,
                identifier: own.identifier,
            });
        }
    }

    /// Returns the retained publications to send next: all of this target, after this channel.
    pub fn scan(&self) -> Option<&Scan> {
        self.scans.front()
    }

    /// Ends the first scan.
    pub fn end_scan(&mut self) {
        self.scans.pop_front();
    }

    /// Sends the next retained publication of the first scan. Returns false if the client must acknowledge others
    /// first.
    pub fn deliver_retained(
        &mut self,
        channel: &ChannelName,
        publication: &Publication,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(scan) = self.scans.front_mut() else { return true };
        let attributes = publication.attributes().unwrap_or_default();
        let qos = scan.qos.min(attributes.qos);
        if qos > 0 && self.window.is_full(self.receive_max) {
            return false;
        }
        scan.after = Some(channel.clone());
        self.identifiers.clear();
        if scan.identifier != 0 {
            self.identifiers.push(scan.identifier);
        }
        if publication.is_expired(now_ms) {
            return true;
        }
        let mut trace = Vec::new();
        if let Some(context) = publication.trace() {
            encode_trace(&mut trace, context);
        }
        let id = if qos > 0 { self.window.push(None, qos, Origin::Retained(channel.clone())) } else { 0 };
        let packet = Outgoing {
            dup: false,
            qos,
            is_retained: true,
            topic: channel.as_str(),
            alias: None,
            id,
            expiry_s: publication.expires_ms.map(|at| seconds(at.saturating_sub(now_ms))),
            identifiers: &[],
            properties: attributes.properties,
            trace: &trace,
            payload: publication.data(),
        };
        if !self.encode(packet, Some(channel), out) && qos > 0 {
            self.window.pop();
        }
        true
    }
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)
}
