//! State of a room: its participants, its topology, and the notifications that a change causes. The room does
//! not command its participants; they follow its published state.
//!
//! No connections and no clock: requests and the time are inputs, notifications are outputs.
//!
//! Source: docs/reference/rooms.md.

mod rate_limiter;
#[cfg(test)]
mod tests;
mod topology;
mod tree;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::{Map, Value};

use rate_limiter::RateLimiter;
pub use topology::Topology;
use tree::Tree;

/// Id of the server as a participant, in a room with the topology `switch` or `mixer`. No list of participants
/// contains it.
pub const SWITCH: &str = "switch";
/// Maximum length of a participant's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum burst of signals and reports, as a duration at the permitted rate [`Config::signals_per_s`].
const BURST: Duration = Duration::from_secs(5);

/// Limits of a room, and the capabilities of its server.
#[derive(Clone, Debug)]
pub struct Config {
    pub participants_max: usize,
    /// Maximum number of participants where every participant connects to every other one.
    pub mesh_max: usize,
    /// Silent peer timeout: a participant that sends neither a signal nor a report for this long is removed.
    pub silence_max: Duration,
    /// Maximum number of signals and reports per second of one participant. 0 means no limit.
    pub signals_per_s: u32,
    /// Maximum number of children of one participant in a tree.
    pub children_max: usize,
    /// Silence after which a parent is taken out of the tree, if most of its children also have lost it. Clients
    /// report every 5 s.
    pub doubt_max: Duration,
    /// Time for which a room with the topology `auto` must have at most two participants before it returns to a
    /// mesh.
    pub calm: Duration,
    /// Whether the server has an SFU, so that participants can connect to [`SWITCH`].
    pub has_switch: bool,
    /// Whether the server can mix audio.
    pub has_mixer: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            participants_max: 100,
            mesh_max: 8,
            silence_max: Duration::from_secs(20),
            signals_per_s: 50,
            children_max: 3,
            doubt_max: Duration::from_secs(7),
            calm: Duration::from_secs(10),
            has_switch: false,
            has_mixer: false,
        }
    }
}

/// Id of a participant, never reused in a room. The ids of one room sort in the order in which participants
/// joined.
/// Random digits follow the number, so a room that is created again does not repeat the ids of the old one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ParticipantId(String);

impl ParticipantId {
    fn new(number: u32, chance: [u8; 16]) -> Self {
        let chance: String = chance[..5].iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{number:06x}{chance}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Role of a participant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Member,
    /// Preferred as the hub of a star or the root of a tree.
    Hub,
    /// Sends neither audio nor video. Becomes hub or root only if all participants are viewers.
    Viewer,
}

/// Kinds of a participant's media that a moderator has muted for all other participants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Muted {
    pub audio: bool,
    pub video: bool,
}

/// Request to join a room.
#[derive(Clone, Debug, Default)]
pub struct Join {
    pub name: String,
    /// `None` accepts the topology of the room; a new room then gets [`Topology::Mesh`].
    pub topology: Option<Topology>,
    pub role: Role,
    /// Time of joining in milliseconds since 1970, shown to other participants.
    pub since_ms: u64,
    /// Random bytes that must never be reused: the first array completes the id, the second one is the secret.
    pub chance: [[u8; 16]; 2],
    /// Identifies the client that joins: all participants of one client have the same number. 0 means unknown.
    pub holder: u32,
}

/// A client may join again only while it has fewer participants than this number times the free places. So one
/// client gets at most 89 of 100 places.
const CLIENT_SHARE_FACTOR: usize = 8;

/// Reason why a room refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a name has at most {NAME_BYTES_MAX} bytes and no control characters")]
    BadName,
    #[error("the room has the topology `{0}`: join with it, or without one")]
    OtherTopology(Topology),
    #[error("this server has no switching unit, so no room has the topology `switch`")]
    NoSwitch,
    #[error(
        "this server mixes no sound, so no room has the topology `mixer`; `rooms.mixers_max` is 0, or `rtc.listen` is off"
    )]
    NoMixer,
    #[error("the room is full: a room of the topology `{0}` has at most {1} participants")]
    Full(Topology, usize),
    #[error("this client has {0} of the {1} places in this room, and the free ones are kept for others")]
    Crowd(usize, usize),
    #[error("there is no such participant in the room, or it has left")]
    Gone,
    #[error("the secret is not this participant's")]
    NotTheirs,
    #[error("only the host may mute others: the participant who has been in the room longest")]
    NotHost,
    #[error("more signals and reports than a participant may send")]
    TooFast(Duration),
}

/// Result of a successful join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub id: ParticipantId,
    /// Secret that authenticates later requests of this participant. No other participant may learn it.
    pub secret: String,
}

/// Action for the caller. Actions must be done in the order in which they are polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The state has changed: publish [`Room::state`].
    State,
    /// A participant has joined: notify the SFU.
    Joined(ParticipantId),
    Left(ParticipantId),
    /// The SFU must stop forwarding the muted kinds of media of this participant, and resume the other kinds.
    Muted(ParticipantId, Muted),
}

struct Participant {
    name: String,
    role: Role,
    since_ms: u64,
    holder: u32,
    /// Whether the participant has muted itself, according to its reports.
    muted: bool,
    muted_by_host: Muted,
    secret: String,
    heard: Instant,
    rate_limiter: RateLimiter,
    /// Most recent report, unchanged.
    report: Map<String, Value>,
}

impl Participant {
    fn figure(&self, name: &str) -> Option<f64> {
        self.report.get(name)?.as_f64()
    }
}

/// A room. Its owner must remove it when [`Room::is_empty`] returns true.
///
/// ```text
///            join                 topology `auto` only:        third participant
///   (none) ───────► participants    mesh ───────────────────────────────────────► switch
///            leave, timeout          ▲                                              │
///   (none) ◄─────── participants     └──────── two or fewer for `calm` ─────────────┘
/// ```
pub struct Room {
    config: Config,
    /// Topology with which the room was created.
    topology: Topology,
    /// For `auto`: whether participants connect to the SFU now.
    is_switched: bool,
    /// For `auto`: time since which the switched room has few enough participants for a mesh.
    calm_since: Option<Instant>,
    version: u64,
    next: u32,
    participants: BTreeMap<ParticipantId, Participant>,
    /// Hub of a star.
    hub: Option<ParticipantId>,
    tree: Tree,
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
            calm_since: None,
            version: 0,
            next: 0,
            participants: BTreeMap::new(),
            hub: None,
            tree,
            outputs: VecDeque::new(),
        })
    }

    /// Adds a participant.
    ///
    /// Errors: [`Refused::BadName`], [`Refused::OtherTopology`], [`Refused::Full`], [`Refused::Crowd`].
    pub fn join(&mut self, now: Instant, join: Join) -> Result<Joined, Refused> {
        if join.name.len() > NAME_BYTES_MAX || join.name.chars().any(char::is_control) {
            return Err(Refused::BadName);
        }
        if join.topology.is_some_and(|topology| topology != self.topology) {
            return Err(Refused::OtherTopology(self.topology));
        }
        let max = self.participants_max();
        if self.participants.len() >= max {
            return Err(Refused::Full(self.topology, max));
        }
        let own = self.participants.values().filter(|other| other.holder == join.holder).count();
        if join.holder != 0 && own >= CLIENT_SHARE_FACTOR.saturating_mul(max - self.participants.len()) {
            return Err(Refused::Crowd(own, max));
        }
        self.next += 1;
        let id = ParticipantId::new(self.next, join.chance[0]);
        let secret: String = join.chance[1].iter().map(|byte| format!("{byte:02x}")).collect();
        let Join { name, role, since_ms, holder, .. } = join;
        let participant = Participant {
            name,
            role,
            holder,
            since_ms,
            muted: false,
            muted_by_host: Muted::default(),
            secret: secret.clone(),
            heard: now,
            rate_limiter: RateLimiter::new(now),
            report: Map::new(),
        };
        self.participants.insert(id.clone(), participant);
        self.outputs.push_back(Output::Joined(id.clone()));
        self.settle(now);
        Ok(Joined { id, secret })
    }

    /// Removes a participant. Does nothing if the participant is not in the room.
    pub fn leave(&mut self, now: Instant, id: &str) {
        let id = ParticipantId(id.to_owned());
        if self.participants.remove(&id).is_some() {
            self.outputs.push_back(Output::Left(id));
            self.settle(now);
        }
    }

    /// Checks that the participant `from` may send a signal to `to` now. With a valid secret and receiver, the
    /// request also counts as a sign of life.
    ///
    /// Errors: [`Refused::Gone`] if either participant is not in the room, [`Refused::NotTheirs`],
    /// [`Refused::TooFast`].
    pub fn check_signal(&mut self, now: Instant, from: &str, secret: &str, to: &str) -> Result<(), Refused> {
        self.check_secret(from, secret)?;
        let is_there = match to {
            SWITCH => self.topology().is_by_server(),
            to => self.participant(to).is_ok() && to != from,
        };
        if !is_there {
            return Err(Refused::Gone);
        }
        self.heard(now, from)
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
        self.heard(now, from)?;
        let muted = report.get("muted").and_then(Value::as_bool);
        let lost = report.get("parent_lost").and_then(Value::as_str).map(|id| ParticipantId(id.to_owned()));
        let participant = self.participant_mut(from)?;
        participant.report = report;
        if let Some(muted) = muted.filter(|muted| *muted != participant.muted) {
            participant.muted = muted;
            self.changed();
        }
        if let Some(lost) = lost.filter(|_| self.topology == Topology::Tree) {
            let Self { tree, participants, .. } = self;
            let is_moved = tree.lose(&ParticipantId(from.to_owned()), &lost, |id| quality(participants, id));
            if self.take_out(now) | is_moved {
                self.changed();
            }
        }
        Ok(())
    }

    /// Checks the secret of a participant.
    ///
    /// Errors: [`Refused::Gone`], [`Refused::NotTheirs`].
    pub fn check_secret(&self, id: &str, secret: &str) -> Result<(), Refused> {
        let own = &self.participant(id)?.secret;
        // Compares in constant time, whichever bytes are correct.
        let differs = own.bytes().zip(secret.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        if own.len() == secret.len() && differs == 0 { Ok(()) } else { Err(Refused::NotTheirs) }
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
    /// Errors: [`Refused::Gone`].
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

    /// Returns the kinds of media that are muted for all others; none if the participant is not in the room.
    pub fn muted_by_host(&self, id: &str) -> Muted {
        self.participant(id).map(|participant| participant.muted_by_host).unwrap_or_default()
    }

    /// Returns when [`Room::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent = self.participants.values().map(|participant| participant.heard + self.config.silence_max).min();
        let calm = self.calm_since.map(|since| since + self.config.calm);
        let doubted = self.tree.doubted().filter_map(|id| self.participants.get(id));
        let doubted = doubted.map(|participant| participant.heard + self.config.doubt_max).min();
        silent.into_iter().chain(calm).chain(doubted).min()
    }

    /// Removes participants after the silent peer timeout, returns a calm `auto` room to a mesh, and takes silent
    /// parents out of the tree.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_silent = |participant: &Participant| participant.heard + self.config.silence_max <= now;
        let silent: Vec<ParticipantId> =
            self.participants.iter().filter(|(_, one)| is_silent(one)).map(|(id, _)| id.clone()).collect();
        for id in &silent {
            self.participants.remove(id);
            self.outputs.push_back(Output::Left(id.clone()));
        }
        let is_calm = self.calm_since.is_some_and(|since| since + self.config.calm <= now);
        if is_calm || !silent.is_empty() {
            self.settle(now);
        } else if self.take_out(now) {
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
        self.participants.get(&ParticipantId(id.to_owned())).ok_or(Refused::Gone)
    }

    fn participant_mut(&mut self, id: &str) -> Result<&mut Participant, Refused> {
        self.participants.get_mut(&ParticipantId(id.to_owned())).ok_or(Refused::Gone)
    }

    /// Counts one more signal or report. A request above the rate limit also counts as a sign of life.
    fn heard(&mut self, now: Instant, id: &str) -> Result<(), Refused> {
        let per_s = self.config.signals_per_s;
        let participant = self.participant_mut(id)?;
        participant.heard = now;
        let taken = participant.rate_limiter.take(now, per_s, BURST).map_err(Refused::TooFast);
        if self.topology == Topology::Tree && self.tree.heard(&ParticipantId(id.to_owned())) {
            self.settle(now);
        }
        taken
    }

    /// Takes parents out of the tree if most of their children have lost them and they are silent to the room.
    /// Returns true if any were taken out.
    fn take_out(&mut self, now: Instant) -> bool {
        let mut is_changed = false;
        loop {
            let is_silent = |id: &&ParticipantId| {
                self.participants.get(*id).is_some_and(|one| one.heard + self.config.doubt_max <= now)
            };
            let silent: Vec<ParticipantId> = self.tree.doubted().filter(is_silent).cloned().collect();
            if silent.is_empty() {
                return is_changed;
            }
            silent.iter().for_each(|id| self.tree.take_out(id));
            self.settle_tree();
            is_changed = true;
        }
    }

    /// Updates the hub, the tree, or the current topology of `auto` after participants have joined, left or
    /// returned.
    fn settle(&mut self, now: Instant) {
        match self.topology {
            Topology::Star => self.hub = self.best_hub(),
            Topology::Tree => {
                self.settle_tree();
                self.take_out(now);
            }
            Topology::Auto if self.config.has_switch => self.settle_auto(now),
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

    fn settle_tree(&mut self) {
        let Self { tree, participants, .. } = self;
        tree.settle(participants.iter().map(|(id, one)| (id, one.role)), |id| quality(participants, id));
    }

    fn settle_auto(&mut self, now: Instant) {
        match (self.participants.len(), self.is_switched) {
            (3.., _) => (self.is_switched, self.calm_since) = (true, None),
            (_, true) if self.calm_since.is_some_and(|since| since + self.config.calm <= now) => {
                (self.is_switched, self.calm_since) = (false, None);
            }
            (_, true) => drop(self.calm_since.get_or_insert(now)),
            (_, false) => {}
        }
    }
}

fn quality(participants: &BTreeMap<ParticipantId, Participant>, id: &ParticipantId) -> tree::Quality {
    let figure = |name: &str| participants.get(id).and_then(|one| one.figure(name));
    tree::Quality {
        uplink_kbps: figure("uplink_kbps").unwrap_or(0.0),
        rtt_ms: figure("rtt_ms").unwrap_or(f64::INFINITY),
    }
}
