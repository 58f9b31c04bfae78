mod announced;
mod composite;
mod seat;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};

use super::{
    config::Config,
    error::Refused,
    participant::{Muted, NAME_BYTES_MAX, Participant, ParticipantId, Role},
    rate_limiter::RateLimiter,
    topology::{SWITCH, Topology},
    tree::{Quality, Tree},
};

pub use announced::Announced;
pub use composite::{Cell, Composite};

/// Maximum burst of signals and reports, as a duration at the permitted rate [`Config::signals_per_s`].
const BURST: Duration = Duration::from_secs(5);

/// A client may join again only while it has fewer participants than this number times the free places. So one
/// client gets at most 89 of 100 places.
const CLIENT_SHARE_FACTOR: usize = 8;

/// Maximum number of ids of removed participants in the state.
const REMOVED_MAX: usize = 16;

pub use seat::Resume;

/// Request to join a room.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Join {
    pub name: String,
    /// `None` accepts the topology of the room; a new room then gets [`Topology::Mesh`].
    pub topology: Option<Topology>,
    pub role: Role,
    /// Time of joining in milliseconds since 1970, shown to other participants.
    pub since_ms: u64,
    /// Random bytes that must never be reused: the first array completes the id, the second one is the secret, the
    /// third one the ticket.
    pub random: [[u8; 16]; 3],
    /// Subject of the token, if there is one.
    pub subject: Option<String>,
    /// Identifies the client that joins: all participants of one client have the same number. 0 means unknown.
    pub client_id: u32,
}

/// Result of a successful join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub id: ParticipantId,
    /// Secret that authenticates later requests of this participant. No other participant may learn it.
    pub secret: String,
    /// Ticket that resumes the seat once, see [`Room::resume`]. No other participant may learn it.
    pub ticket: String,
}

/// Action for the caller. Actions must be done in the order in which they are polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The state has changed: publish [`Room::state`].
    State,
    /// A participant has joined: notify the SFU.
    Joined(ParticipantId),
    Left(ParticipantId),
    /// The page of the participant was reloaded: the SFU must replace its connection.
    Resumed(ParticipantId),
    /// The SFU must stop forwarding the muted kinds of media of this participant, and resume the other kinds.
    Muted(ParticipantId, Muted),
}

/// A room. Its owner must remove it when [`Room::is_empty`] returns true.
///
/// ```text
///            join                 topology `auto` only:        third participant
///   (none) ───────► participants    mesh ───────────────────────────────────────► switch
///            leave, timeout          ▲                                              │
///   (none) ◄─────── participants     └──────── two or fewer for `mesh_return_delay` ─────────────┘
/// ```
pub struct Room {
    config: Config,
    /// Topology with which the room was created.
    topology: Topology,
    /// For `auto`: whether participants connect to the SFU now.
    is_switched: bool,
    /// For `auto`: time since which the switched room has few enough participants for a mesh.
    few_since: Option<Instant>,
    version: u64,
    next: u32,
    participants: BTreeMap<ParticipantId, Participant>,
    /// Hub of a star.
    hub: Option<ParticipantId>,
    tree: Tree,
    /// Whether other participants are kept from joining.
    is_locked: bool,
    /// Ids of participants that a moderator has removed, the newest last.
    removed: VecDeque<ParticipantId>,
    /// Number of hands raised so far.
    hands: u64,
    /// Layout of the composite video, if the room has one.
    composite: Option<Composite>,
    outputs: VecDeque<Output>,
}

impl Room {
    /// Creates a room with the topology that its first participant requests.
    ///
    /// Errors: [`Refused::NoSwitch`], [`Refused::NoMixer`].
    pub fn new(config: Config, topology: Option<Topology>) -> Result<Self, Refused> {
        let topology = topology.unwrap_or_default();
        if topology == Topology::Switch && !config.has_switch {
            return Err(Refused::NoSwitch);
        }
        if topology == Topology::Mixer && !(config.has_switch && config.has_mixer) {
            return Err(Refused::NoMixer);
        }
        let tree = Tree::new(config.children_max);
        Ok(Self {
            config,
            topology,
            is_switched: false,
            few_since: None,
            version: 0,
            next: 0,
            participants: BTreeMap::new(),
            hub: None,
            tree,
            is_locked: false,
            removed: VecDeque::new(),
            hands: 0,
            composite: None,
            outputs: VecDeque::new(),
        })
    }

    /// Adds a participant.
    ///
    /// Errors: [`Refused::BadName`], [`Refused::OtherTopology`], [`Refused::Locked`], [`Refused::Full`],
    /// [`Refused::ClientQuota`].
    pub fn join(&mut self, now: Instant, join: Join) -> Result<Joined, Refused> {
        if join.name.len() > NAME_BYTES_MAX || join.name.chars().any(char::is_control) {
            return Err(Refused::BadName);
        }
        if join.topology.is_some_and(|topology| topology != self.topology) {
            return Err(Refused::OtherTopology(self.topology));
        }
        if self.is_locked {
            return Err(Refused::Locked);
        }
        let max = self.participants_max();
        if self.participants.len() >= max {
            return Err(Refused::Full(self.topology, max));
        }
        let own = self.participants.values().filter(|other| other.client_id == join.client_id).count();
        if join.client_id != 0 && own >= CLIENT_SHARE_FACTOR.saturating_mul(max - self.participants.len()) {
            return Err(Refused::ClientQuota(own, max));
        }
        self.next += 1;
        let id = ParticipantId::new(self.next, join.random[0]);
        let (secret, ticket) = (seat::hex(&join.random[1]), seat::hex(&join.random[2]));
        let Join { name, role, since_ms, client_id, subject, .. } = join;
        let participant = Participant {
            name,
            role,
            client_id,
            since_ms,
            muted: false,
            muted_by_host: Muted::default(),
            screen: false,
            hand: None,
            secret: secret.clone(),
            ticket: ticket.clone(),
            subject,
            away_since: None,
            resumed: 0,
            last_seen: now,
            rate_limiter: RateLimiter::new(now),
            report: Map::new(),
        };
        self.participants.insert(id.clone(), participant);
        self.outputs.push_back(Output::Joined(id.clone()));
        self.update_topology(now);
        Ok(Joined { id, secret, ticket })
    }

    /// Removes a participant. Does nothing if the participant is not in the room.
    pub fn leave(&mut self, now: Instant, id: &str) {
        let id = ParticipantId(id.to_owned());
        if self.participants.remove(&id).is_some() {
            self.outputs.push_back(Output::Left(id));
            self.update_topology(now);
        }
    }

    /// Checks that the participant `from` may send a signal to `to` now. With a valid secret and receiver, the
    /// request also counts as a sign of life.
    ///
    /// Errors: [`Refused::NotFound`] if either participant is not in the room, [`Refused::WrongSecret`],
    /// [`Refused::TooFast`].
    pub fn check_signal(&mut self, now: Instant, from: &str, secret: &str, to: &str) -> Result<(), Refused> {
        self.check_secret(from, secret)?;
        let is_there = match to {
            SWITCH => self.topology().is_by_server(),
            to => self.participant(to).is_ok() && to != from,
        };
        if !is_there {
            return Err(Refused::NotFound);
        }
        self.record_activity(now, from)
    }

    /// Stores a report of a participant. The report is also a heartbeat. In a tree, a child that receives nothing
    /// from its parent names the parent in `parent_lost`.
    ///
    /// Errors: the same as those of [`Room::check_signal`].
    pub fn report(
        &mut self,
        now: Instant,
        from: &str,
        secret: &str,
        report: Map<String, Value>,
    ) -> Result<(), Refused> {
        self.check_secret(from, secret)?;
        self.record_activity(now, from)?;
        let [muted, screen, hand] = ["muted", "screen", "hand"].map(|name| report.get(name).and_then(Value::as_bool));
        let lost = report.get("parent_lost").and_then(Value::as_str).map(|id| ParticipantId(id.to_owned()));
        let next_hand = self.hands + 1;
        let participant = self.participant_mut(from)?;
        participant.report = report;
        let was = (participant.muted, participant.screen, participant.hand);
        participant.muted = muted.unwrap_or(was.0);
        participant.screen = screen.unwrap_or(was.1);
        participant.hand = match hand {
            Some(true) => was.2.or(Some(next_hand)),
            Some(false) => None,
            None => was.2,
        };
        let now_set = (participant.muted, participant.screen, participant.hand);
        if now_set != was {
            if now_set.2 == Some(next_hand) {
                self.hands = next_hand;
            }
            self.changed();
        }
        if let Some(lost) = lost.filter(|_| self.topology == Topology::Tree) {
            let Self { tree, participants, .. } = self;
            let is_moved = tree.report_lost(&ParticipantId(from.to_owned()), &lost, |id| quality(participants, id));
            if self.remove_silent_parents(now) | is_moved {
                self.changed();
            }
        }
        Ok(())
    }

    /// Checks the secret of a participant.
    ///
    /// Errors: [`Refused::NotFound`], [`Refused::WrongSecret`].
    pub fn check_secret(&self, id: &str, secret: &str) -> Result<(), Refused> {
        if seat::is_equal(&self.participant(id)?.secret, secret) { Ok(()) } else { Err(Refused::WrongSecret) }
    }

    /// Returns the host: the participant who joined first, viewers last. The host moderates where no token is needed.
    pub fn host(&self) -> Option<&ParticipantId> {
        let mut members = self.participants.iter().filter(|(_, one)| one.role != Role::Viewer);
        members.next().or(self.participants.iter().next()).map(|(id, _)| id)
    }

    /// Checks that this secret is the host's.
    ///
    /// Errors: [`Refused::NotHost`].
    pub fn check_host(&self, secret: &str) -> Result<(), Refused> {
        let host = self.host().ok_or(Refused::NotHost)?;
        self.check_secret(host.as_str(), secret).map_err(|_| Refused::NotHost)
    }

    /// Mutes or unmutes a participant for all others. `None` leaves that kind of media unchanged. The caller must
    /// check the permission first.
    ///
    /// Errors: [`Refused::NotFound`].
    pub fn mute(&mut self, id: &str, audio: Option<bool>, video: Option<bool>) -> Result<(), Refused> {
        let participant = self.participant_mut(id)?;
        let was = participant.muted_by_host;
        let muted = Muted { audio: audio.unwrap_or(was.audio), video: video.unwrap_or(was.video) };
        if muted != was {
            participant.muted_by_host = muted;
            self.outputs.push_back(Output::Muted(ParticipantId(id.to_owned()), muted));
            self.changed();
        }
        Ok(())
    }

    /// Removes a participant on behalf of a moderator. The state names it, so that its client does not join again by
    /// itself. The caller must check the permission first.
    ///
    /// Errors: [`Refused::NotFound`].
    pub fn remove(&mut self, now: Instant, id: &str) -> Result<(), Refused> {
        self.participant(id)?;
        self.removed.push_back(ParticipantId(id.to_owned()));
        if self.removed.len() > REMOVED_MAX {
            self.removed.pop_front();
        }
        self.leave(now, id);
        Ok(())
    }

    /// Locks or unlocks the room. Present participants stay, and may resume their seats. The caller must check the
    /// permission first.
    pub fn lock(&mut self, is_locked: bool) {
        if self.is_locked != is_locked {
            self.is_locked = is_locked;
            self.changed();
        }
    }

    /// Returns the kinds of media that are muted for all others; none if the participant is not in the room.
    pub fn muted_by_host(&self, id: &str) -> Muted {
        self.participant(id).map(|participant| participant.muted_by_host).unwrap_or_default()
    }

    /// Returns when [`Room::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent = self.participants.values().map(|participant| participant.deadline(&self.config)).min();
        let mesh_return_delay = self.few_since.map(|since| since + self.config.mesh_return_delay);
        let suspected = self.tree.suspected().filter_map(|id| self.participants.get(id));
        let suspected = suspected.map(|participant| participant.last_seen + self.config.suspect_timeout).min();
        silent.into_iter().chain(mesh_return_delay).chain(suspected).min()
    }

    /// Removes participants after the silent peer timeout, returns an `auto` room with few participants to a mesh, and
    /// takes silent parents out of the tree.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_silent = |participant: &Participant| participant.deadline(&self.config) <= now;
        let silent: Vec<ParticipantId> =
            self.participants.iter().filter(|(_, one)| is_silent(one)).map(|(id, _)| id.clone()).collect();
        for id in &silent {
            self.participants.remove(id);
            self.outputs.push_back(Output::Left(id.clone()));
        }
        let is_few_long_enough = self.few_since.is_some_and(|since| since + self.config.mesh_return_delay <= now);
        if is_few_long_enough || !silent.is_empty() {
            self.update_topology(now);
        } else if self.remove_silent_parents(now) {
            self.changed();
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns how participants connect now. For `auto`, this is either `mesh` or `switch`.
    pub fn topology(&self) -> Topology {
        match self.topology {
            Topology::Auto if self.is_switched => Topology::Switch,
            Topology::Auto => Topology::Mesh,
            topology => topology,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.participants.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = &ParticipantId> {
        self.participants.keys()
    }

    /// Returns the state that all participants receive. See docs/reference/rooms.md, "State".
    pub fn state(&self) -> Value {
        let participant = |(id, one): (&ParticipantId, &Participant)| {
            let mut shown =
                serde_json::json!({ "id": id, "name": one.name, "role": one.role, "since_ms": one.since_ms });
            if one.muted {
                shown["muted"] = true.into();
            }
            if one.screen {
                shown["screen"] = true.into();
            }
            if let Some(hand) = one.hand {
                shown["hand"] = hand.into();
            }
            if one.away_since.is_some() {
                shown["away"] = true.into();
            }
            if one.resumed > 0 {
                shown["resumed"] = one.resumed.into();
            }
            let Muted { audio, video } = one.muted_by_host;
            let kinds: Vec<&str> = audio.then_some("audio").into_iter().chain(video.then_some("video")).collect();
            if !kinds.is_empty() {
                shown["muted_by_host"] = kinds.into();
            }
            shown
        };
        let participants: Vec<Value> = self.participants.iter().map(participant).collect();
        let mut state = serde_json::json!({
            "version": self.version, "topology": self.topology(), "participants": participants,
        });
        if self.topology == Topology::Auto {
            state["auto"] = true.into();
        }
        if self.is_locked {
            state["locked"] = true.into();
        }
        if !self.removed.is_empty() {
            state["removed"] = self.removed.iter().map(ParticipantId::as_str).collect();
        }
        if let Some(host) = self.host() {
            state["host"] = host.as_str().into();
        }
        if let Some(hub) = &self.hub {
            state["hub"] = hub.as_str().into();
        }
        if self.topology == Topology::Tree {
            let parents = self.tree.parents().map(|(id, parent)| (id.to_string(), parent.as_str().into()));
            state["parents"] = Value::Object(parents.collect());
        }
        if let Some(composite) = &self.composite {
            state["composite"] = serde_json::json!(composite);
        }
        state
    }

    /// Returns the most recent report of each participant.
    pub fn reports(&self) -> Value {
        let reported = self.participants.iter().filter(|(_, one)| !one.report.is_empty());
        Value::Object(reported.map(|(id, one)| (id.to_string(), Value::Object(one.report.clone()))).collect())
    }

    fn participants_max(&self) -> usize {
        let own = match self.topology {
            Topology::P2p => 2,
            Topology::Mesh | Topology::Relay => self.config.mesh_max,
            Topology::Auto if !self.config.has_switch => self.config.mesh_max,
            _ => usize::MAX,
        };
        own.min(self.config.participants_max)
    }

    fn participant(&self, id: &str) -> Result<&Participant, Refused> {
        self.participants.get(&ParticipantId(id.to_owned())).ok_or(Refused::NotFound)
    }

    fn participant_mut(&mut self, id: &str) -> Result<&mut Participant, Refused> {
        self.participants.get_mut(&ParticipantId(id.to_owned())).ok_or(Refused::NotFound)
    }

    /// Counts one more signal or report. A request above the rate limit also counts as a sign of life.
    fn record_activity(&mut self, now: Instant, id: &str) -> Result<(), Refused> {
        let per_s = self.config.signals_per_s;
        let participant = self.participant_mut(id)?;
        participant.last_seen = now;
        let taken = participant.rate_limiter.take(now, per_s, BURST).map_err(Refused::TooFast);
        if self.topology == Topology::Tree && self.tree.record_activity(&ParticipantId(id.to_owned())) {
            self.update_topology(now);
        }
        taken
    }

    /// Takes parents out of the tree if most of their children have lost them and they are silent to the room.
    /// Returns true if any were taken out.
    fn remove_silent_parents(&mut self, now: Instant) -> bool {
        let mut is_changed = false;
        loop {
            let is_silent = |id: &&ParticipantId| {
                self.participants.get(*id).is_some_and(|one| one.last_seen + self.config.suspect_timeout <= now)
            };
            let silent: Vec<ParticipantId> = self.tree.suspected().filter(is_silent).cloned().collect();
            if silent.is_empty() {
                return is_changed;
            }
            silent.iter().for_each(|id| self.tree.mark_absent(id));
            self.update_tree();
            is_changed = true;
        }
    }

    /// Updates the hub, the tree, or the current topology of `auto` after participants have joined, left or
    /// returned.
    fn update_topology(&mut self, now: Instant) {
        match self.topology {
            Topology::Star => self.hub = self.best_hub(),
            Topology::Tree => {
                self.update_tree();
                self.remove_silent_parents(now);
            }
            Topology::Auto if self.config.has_switch => self.update_auto(now),
            _ => {}
        }
        self.changed();
    }

    fn changed(&mut self) {
        self.version += 1;
        self.outputs.push_back(Output::State);
    }

    /// Returns the best hub: by role first, then the current hub, then the participant who joined first.
    fn best_hub(&self) -> Option<ParticipantId> {
        let rank = |role: Role| match role {
            Role::Hub => 0,
            Role::Member => 1,
            Role::Viewer => 2,
        };
        let is_not = |id: &ParticipantId| self.hub.as_ref() != Some(id);
        self.participants.iter().min_by_key(|(id, one)| (rank(one.role), is_not(id), *id)).map(|(id, _)| id.clone())
    }

    fn update_tree(&mut self) {
        let Self { tree, participants, .. } = self;
        tree.update(participants.iter().map(|(id, one)| (id, one.role)), |id| quality(participants, id));
    }

    fn update_auto(&mut self, now: Instant) {
        match (self.participants.len(), self.is_switched) {
            (3.., _) => (self.is_switched, self.few_since) = (true, None),
            (_, true) if self.few_since.is_some_and(|since| since + self.config.mesh_return_delay <= now) => {
                (self.is_switched, self.few_since) = (false, None);
            }
            (_, true) => drop(self.few_since.get_or_insert(now)),
            (_, false) => {}
        }
    }
}

fn quality(participants: &BTreeMap<ParticipantId, Participant>, id: &ParticipantId) -> Quality {
    Quality::from_report(participants.get(id).map_or(&Map::new(), |one| &one.report))
}
