//! The state machine of one session: from packets and records to packets and actions.
//!
//! - [`deliver`]: publications to the client, live and retained
//! - [`publish`]: publications of the client

mod deliver;
mod publish;

use std::collections::{BTreeSet, HashMap, VecDeque};

use millrace_protocol::{ChannelName, NewPublication, Position, session::Target};

use crate::{
    Filter, Membership, Reason,
    encode::{self, Ack},
    packet::{Connect, Frame, Options, Packet, Version},
    saved::{Resumed, Saved, SavedSubscription},
    window::{Origin, State, Window},
};
pub use publish::RECEIVE_MAX;

/// Maximum topic alias of a client, and of this server for a client.
pub const ALIAS_MAX: u16 = 32;
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
}
