//! The state machine of one session: from packets and records to packets and actions.

use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_protocol::{
    Attributes, ChannelName, Kind, NewPublication, Position, Publication,
    encoding::record::{PublicationRecord, QOS_ANY},
    session::Target,
};

use crate::{
    Filter, Membership, Reason,
    encode::{self, Ack, Outgoing},
    packet::{Connect, Frame, Options, Packet, Publish, Version},
    saved::{Resumed, Saved, SavedSubscription},
    window::{Origin, State, Window},
};

/// Maximum topic alias of a client, and of this server for a client.
pub const ALIAS_MAX: u16 = 32;
/// Maximum number of publications of quality of service 2 that a client may leave unfinished.
pub const RECEIVE_MAX: u16 = 100;
/// The same for clients of MQTT 3.1.1, which do not know the maximum.
const RECEIVE_MAX_V311: usize = 4096;
/// Maximum number of channels whose positions a session keeps. Further channels resume at the time of the subscription.
const POSITIONS_MAX: usize = 10_000;

/// Settings of a session besides those of its CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Maximum size of a packet of the client.
    pub packet_bytes_max: usize,
    pub session_expiry_max_s: u32,
    /// Number of the session, which marks its publications; not 0.
    pub publisher: u32,
}

/// A session while its client is connected.
#[derive(Debug)]
pub struct Session {
    pub version: Version,
    /// Seconds for which the session outlives its connection.
    pub expiry_s: u32,
    settings: Settings,
    receive_max: u16,
    packet_bytes_max: u32,
    alias_max: u16,
    aliases: Vec<Option<ChannelName>>,
    aliases_sent: Vec<ChannelName>,
    /// Topic of the last publication of the client. Most clients repeat it.
    topic: Option<ChannelName>,
    subscriptions: Vec<Subscription>,
    /// Identifiers of publications of quality of service 2 that the client has not released.
    unreleased: BTreeSet<u16>,
    window: Window,
    /// Publications that an earlier connection has sent.
    resumed: HashMap<ChannelName, VecDeque<Resumed>>,
    /// Position of the last record of each channel, if the session outlives its connection.
    positions: HashMap<ChannelName, Position>,
    scans: VecDeque<Scan>,
    identifiers: Vec<u32>,
}

/// Subscription of a session.
#[derive(Debug)]
pub struct Subscription {
    pub filter: Filter,
    pub options: Options,
    /// 0: none.
    pub identifier: u32,
    /// Start of a pattern, in milliseconds since 1970.
    pub since_ms: u64,
    /// The hub has a reader of its own for this subscription.
    pub is_attached: bool,
    pub membership: Option<Membership>,
}

/// Retained publications that a new subscription has not received yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    pub target: Target,
    pub after: Option<ChannelName>,
    qos: u8,
    identifier: u32,
}

/// Action that a packet requires from the caller.
#[derive(Debug)]
pub enum Action {
    Nothing,
    /// The client has acknowledged, so the hub may have more for it.
    Continue,
    /// Publish, then call [`Session::published`].
    Publish(Incoming),
    /// Subscribe, then send [`encode::sub_ack`].
    Subscribe {
        id: u16,
        identifier: u32,
        filters: Vec<(String, Options)>,
    },
    /// Unsubscribe, then send [`encode::unsub_ack`].
    Unsubscribe {
        id: u16,
        filters: Vec<String>,
    },
    /// The client ends the connection. `will`: its will is published.
    Disconnect {
        will: bool,
    },
}

/// Publication of the client.
#[derive(Debug)]
pub struct Incoming {
    pub channel: ChannelName,
    pub publication: NewPublication,
    pub id: u16,
    pub qos: u8,
    pub is_retained: bool,
}

impl Session {
    /// Begins a session, or continues a saved one.
    pub fn new(connect: &Connect, settings: Settings, saved: Option<Saved>) -> Self {
        let mut session = Self {
            version: connect.version,
            expiry_s: connect.session_expiry_s.min(settings.session_expiry_max_s),
            settings,
            receive_max: connect.receive_max,
            packet_bytes_max: connect.packet_bytes_max,
            alias_max: connect.alias_max.min(ALIAS_MAX),
            aliases: Vec::new(),
            aliases_sent: Vec::new(),
            topic: None,
            subscriptions: Vec::new(),
            unreleased: BTreeSet::new(),
            window: Window::default(),
            resumed: HashMap::new(),
            positions: HashMap::new(),
            scans: VecDeque::new(),
            identifiers: Vec::new(),
        };
        if let Some(saved) = saved {
            session.restore(saved);
        }
        session
    }

    fn restore(&mut self, saved: Saved) {
        self.settings.publisher = saved.publisher;
        self.window.continue_after(saved.last_id);
        saved.released.iter().for_each(|id| self.window.push_released(*id));
        (self.unreleased, self.resumed, self.positions) = (saved.unreleased, saved.resumed, saved.positions);
        let subscription = |SavedSubscription { filter, options, identifier, since_ms }| Subscription {
            filter,
            options,
            identifier,
            since_ms,
            is_attached: false,
            membership: None,
        };
        self.subscriptions = saved.subscriptions.into_iter().map(subscription).collect();
        let scan = |channel: ChannelName| Scan { target: Target::Channel(channel), after: None, qos: 2, identifier: 0 };
        self.scans = saved.retained.into_iter().map(scan).collect();
    }

    /// Appends the first packets of a resumed connection: PUBREL of publications that the client has received.
    pub fn resend(&self, out: &mut Vec<u8>) {
        for sent in self.window.iter().filter(|sent| sent.state == State::Released) {
            encode::ack(out, self.version, Ack::Pubrel, sent.id, Reason::SUCCESS);
        }
    }

    /// Ends the connection of the session. Returns what is kept of it, unless it ends, too.
    pub fn end(self) -> Option<Saved> {
        if self.expiry_s == 0 {
            return None;
        }
        let mut saved = Saved {
            publisher: self.settings.publisher,
            last_id: self.window.last_id(),
            unreleased: self.unreleased,
            positions: self.positions,
            resumed: self.resumed,
            ..Saved::default()
        };
        for sent in self.window.iter() {
            saved.add(sent);
        }
        saved.rewind();
        saved.subscriptions = self
            .subscriptions
            .into_iter()
            .map(|own| SavedSubscription {
                filter: own.filter,
                options: own.options,
                identifier: own.identifier,
                since_ms: own.since_ms,
            })
            .collect();
        Some(saved)
    }

    /// Handles a packet of the client. Answers are appended to `out`.
    ///
    /// Errors: the reason to close the connection.
    pub fn handle(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) -> Result<Action, Reason> {
        match Packet::decode(self.version, frame)? {
            Packet::Publish(publish) => self.handle_publish(publish, out),
            Packet::PubAck { id } => Ok(self.acknowledged(id, 1, State::Sent)),
            Packet::PubRec { id, is_error: true } => Ok(self.acknowledged(id, 2, State::Sent)),
            Packet::PubRec { id, is_error: false } => {
                let is_known = self.window.advance(id, 2, State::Sent, State::Released).is_some()
                    || self.window.iter().any(|sent| sent.id == id && sent.state == State::Released);
                let reason = if is_known { Reason::SUCCESS } else { Reason::PACKET_IDENTIFIER_NOT_FOUND };
                encode::ack(out, self.version, Ack::Pubrel, id, reason);
                Ok(Action::Nothing)
            }
            Packet::PubComp { id } => Ok(self.acknowledged(id, 2, State::Released)),
            Packet::PubRel { id } => {
                let is_known = self.unreleased.remove(&id);
                let reason = if is_known { Reason::SUCCESS } else { Reason::PACKET_IDENTIFIER_NOT_FOUND };
                encode::ack(out, self.version, Ack::Pubcomp, id, reason);
                Ok(Action::Nothing)
            }
            Packet::Subscribe { id, identifier, filters } => Ok(Action::Subscribe { id, identifier, filters }),
            Packet::Unsubscribe { id, filters } => Ok(Action::Unsubscribe { id, filters }),
            Packet::PingReq => {
                encode::ping_resp(out);
                Ok(Action::Nothing)
            }
            Packet::Disconnect { reason, session_expiry_s } => {
                if let Some(expiry_s) = session_expiry_s {
                    if self.expiry_s == 0 && expiry_s > 0 {
                        return Err(Reason::PROTOCOL_ERROR);
                    }
                    self.expiry_s = expiry_s.min(self.settings.session_expiry_max_s);
                }
                Ok(Action::Disconnect { will: reason != Reason::SUCCESS })
            }
        }
    }

    fn acknowledged(&mut self, id: u16, qos: u8, from: State) -> Action {
        let Some(origin) = self.window.advance(id, qos, from, State::Done) else { return Action::Nothing };
        if let Origin::Log(channel, position) = origin {
            self.done(&channel, position);
        }
        Action::Continue
    }

    fn done(&self, channel: &ChannelName, position: Position) {
        for membership in self.subscriptions.iter().filter_map(|own| own.membership.as_ref()) {
            membership.done(channel, position);
        }
    }

    fn handle_publish(&mut self, publish: Publish<'_>, out: &mut Vec<u8>) -> Result<Action, Reason> {
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
        let mut publication = NewPublication::new(kind, publish.payload);
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

    /// Adds a subscription, or replaces the options of an existing one. Returns its index, and whether it is new.
    pub fn subscribe(&mut self, filter: &Filter, options: Options, identifier: u32) -> (usize, bool) {
        match self.subscriptions.iter().position(|own| own.filter == *filter) {
            Some(index) => {
                let own = &mut self.subscriptions[index];
                (own.options, own.identifier) = (options, identifier);
                (index, false)
            }
            None => {
                let (filter, since_ms, is_attached, membership) = (filter.clone(), 0, false, None);
                let own = Subscription { filter, options, identifier, since_ms, is_attached, membership };
                self.subscriptions.push(own);
                (self.subscriptions.len() - 1, true)
            }
        }
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

    /// Removes a subscription. Returns `None` if there is none.
    pub fn unsubscribe(&mut self, filter: &Filter) -> Option<Subscription> {
        let index = self.subscriptions.iter().position(|own| own.filter == *filter)?;
        self.scans.retain(|scan| filter.group.is_some() || scan.target != filter.target);
        Some(self.subscriptions.remove(index))
    }

    pub fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    pub fn subscription_mut(&mut self, filter: &Filter) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|own| own.filter == *filter)
    }

    /// Returns true if the session has shared subscriptions.
    pub fn shares(&self) -> bool {
        self.subscriptions.iter().any(|own| own.membership.is_some())
    }

    /// Returns publications of other members of a group that have left. The session must read them from history.
    pub fn take_adopted(&self) -> Vec<(ChannelName, Position)> {
        let memberships = self.subscriptions.iter().filter_map(|own| own.membership.as_ref());
        memberships.flat_map(Membership::take_adopted).collect()
    }

    /// Returns a publication of [`Session::take_adopted`] that could not be sent yet.
    pub fn adopt_later(&self, channel: &ChannelName, position: Position) {
        let own = |own: &&Subscription| own.membership.is_some() && own.filter.matches(channel.as_str());
        if let Some(membership) = self.subscriptions.iter().find(own).and_then(|own| own.membership.as_ref()) {
            membership.adopt_later(channel.clone(), position);
        }
    }

    /// Returns the position from which the session continues a channel.
    pub fn position(&self, channel: &ChannelName) -> Option<Position> {
        self.positions.get(channel).copied()
    }

    /// Returns the positions of the channels that match.
    pub fn positions(&self, target: &Target) -> HashMap<ChannelName, Position> {
        let Target::Pattern(pattern) = target else { return HashMap::new() };
        let matching = self.positions.iter().filter(|(channel, _)| pattern.matches(channel.as_str()));
        matching.map(|(channel, position)| (channel.clone(), *position)).collect()
    }

    /// Records where a subscription begins.
    pub fn begin_at(&mut self, channel: &ChannelName, position: Position) {
        self.note(Some(channel), position);
    }

    fn note(&mut self, channel: Option<&ChannelName>, position: Position) {
        let Some(channel) = channel.filter(|_| self.expiry_s > 0) else { return };
        if let Some(known) = self.positions.get_mut(channel) {
            *known = position;
        } else if self.positions.len() < POSITIONS_MAX {
            self.positions.insert(channel.clone(), position);
        }
    }

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
