//! A room: who is there, in which topology, and what has to be said when that changes. It commands nobody: participants follow its state.
//!
//! No connections and no clock: requests and the time are inputs, and what is to be told is an output.
//!
//! Source: docs/rooms.md.

mod allowance;
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

use allowance::Allowance;
pub use topology::Topology;
use tree::Tree;

/// The participant that is the server, in a room with the topology `switch` or `mixer`. It is in no list of participants.
pub const SWITCH: &str = "switch";
/// Of what a participant calls itself.
pub const NAME_BYTES_MAX: usize = 64;
/// Signals, and reports, that may come at once: as many as in so many seconds.
const BURST: Duration = Duration::from_secs(5);

/// Bounds of a room.
#[derive(Clone, Debug)]
pub struct Config {
    pub participants_max: usize,
    /// Of a room in which everybody is connected with everybody.
    pub mesh_max: usize,
    /// Who says nothing for so long has left.
    pub silence_max: Duration,
    /// Signals and reports of one participant.
    pub signals_per_s: u32,
    /// In a tree.
    pub children_max: usize,
    /// A parent that most of its children have lost, and that says nothing itself for so long, is in the tree no more. Clients report every
    /// 5 s.
    pub doubt_max: Duration,
    /// How long a room of the topology `auto` has two participants before it goes back to a mesh.
    pub calm: Duration,
    /// There is a switching unit, so that participants can be connected with [`SWITCH`].
    pub has_switch: bool,
    /// It can mix.
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

/// Names a participant, and never another one of the room. Those of one room sort by when they joined; what follows the number is chance,
/// so that a room which begins anew does not name anybody as the old one did.
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

/// What a participant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    #[default]
    Member,
    /// Would rather be the hub of a star, or the root of a tree, than anybody else.
    Hub,
    /// Sends neither sound nor pictures, and becomes hub or root only where nobody else is.
    Viewer,
}

/// What of a participant's media others are sent no more of, because somebody who may has said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Muted {
    pub audio: bool,
    pub video: bool,
}

/// How somebody wants to join.
#[derive(Clone, Debug, Default)]
pub struct Join {
    pub name: String,
    /// `None`: whatever the room has; of a new room, [`Topology::Mesh`].
    pub topology: Option<Topology>,
    pub role: Role,
    /// Milliseconds since 1970, for others to see.
    pub since_ms: u64,
    /// Of nobody else, ever: what follows the number in its id, and its secret.
    pub chance: [[u8; 16]; 2],
    /// Identifies the client that joins: participants of one client have the same number; 0: unknown.
    pub holder: u32,
}

/// A client may join again while it has fewer than this many times the free places: it gets at most 89 of 100.
const HOLDER_TIMES: usize = 8;

/// Why something cannot be done.
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
    #[error("more signals and reports than a participant may send")]
    TooFast(Duration),
}

/// Whom somebody has become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    pub id: ParticipantId,
    /// To be shown with whatever the participant asks for; for nobody else.
    pub secret: String,
}

/// To be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The state has changed: [`Room::state`] is to be told.
    State,
    /// Has joined, or left: for the switching unit.
    Joined(ParticipantId),
    Left(ParticipantId),
    /// The switching unit passes on no more of these, and of the others again.
    Muted(ParticipantId, Muted),
}

struct Participant {
    name: String,
    role: Role,
    since_ms: u64,
    holder: u32,
    /// As it says itself.
    muted: bool,
    muted_by_host: Muted,
    secret: String,
    heard: Instant,
    allowance: Allowance,
    /// The last one, as it came.
    report: Map<String, Value>,
}

impl Participant {
    fn figure(&self, name: &str) -> Option<f64> {
        self.report.get(name)?.as_f64()
    }
}

/// One room. Whoever keeps it forgets it when [`Room::is_empty`].
///
/// ```text
///            join                 topology `auto` only:        third participant
///   (none) ───────► participants    mesh ───────────────────────────────────────► switch
///            leave, silence          ▲                                              │
///   (none) ◄─────── participants     └──────── two or fewer for `calm` ─────────────┘
/// ```
pub struct Room {
    config: Config,
    /// What it was made with.
    topology: Topology,
    /// Of `auto`: connected with the switching unit now.
    is_switched: bool,
    /// Of `auto`: since when there are few enough for a mesh.
    calm_since: Option<Instant>,
    version: u64,
    next: u32,
    participants: BTreeMap<ParticipantId, Participant>,
    /// Of a star.
    hub: Option<ParticipantId>,
    tree: Tree,
    outputs: VecDeque<Output>,
}

impl Room {
    /// A room as its first participant wants it.
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

    /// Somebody comes.
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
        if join.holder != 0 && own >= HOLDER_TIMES.saturating_mul(max - self.participants.len()) {
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
            allowance: Allowance::new(now),
            report: Map::new(),
        };
        self.participants.insert(id.clone(), participant);
        self.outputs.push_back(Output::Joined(id.clone()));
        self.settle(now);
        Ok(Joined { id, secret })
    }

    /// Somebody goes, or has gone.
    pub fn leave(&mut self, now: Instant, id: &str) {
        let id = ParticipantId(id.to_owned());
        if self.participants.remove(&id).is_some() {
            self.outputs.push_back(Output::Left(id));
            self.settle(now);
        }
    }

    /// May a participant who shows this secret signal to `to` now? That it asks is a sign of life, too.
    ///
    /// Errors: [`Refused::Gone`] for either of them, [`Refused::NotTheirs`], [`Refused::TooFast`].
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

    /// A heartbeat, with what was measured. In a tree a child that hears nothing of its parent names it as `parent_lost`.
    ///
    /// Errors: as [`Room::check_signal`].
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

    /// Errors: [`Refused::Gone`], [`Refused::NotTheirs`].
    pub fn check_secret(&self, id: &str, secret: &str) -> Result<(), Refused> {
        let own = &self.participant(id)?.secret;
        // In a time that does not depend on how much of it is right.
        let differs = own.bytes().zip(secret.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        if own.len() == secret.len() && differs == 0 { Ok(()) } else { Err(Refused::NotTheirs) }
    }

    /// Somebody who may mutes a participant for everybody, or takes that back; `None`: that kind stays as it was.
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

    /// What of a participant is muted for everybody; nothing of one that is not there.
    pub fn muted_by_host(&self, id: &str) -> Muted {
        self.participant(id).map(|participant| participant.muted_by_host).unwrap_or_default()
    }

    /// When [`Room::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silent = self.participants.values().map(|participant| participant.heard + self.config.silence_max).min();
        let calm = self.calm_since.map(|since| since + self.config.calm);
        let doubted = self.tree.doubted().filter_map(|id| self.participants.get(id));
        let doubted = doubted.map(|participant| participant.heard + self.config.doubt_max).min();
        silent.into_iter().chain(calm).chain(doubted).min()
    }

    /// Whoever has said nothing for too long has left; what has lasted long enough is done.
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

    /// How participants are connected now: of `auto` that which holds.
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

    /// What everybody is told: see docs/rooms.md, "The state".
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
        if let Some(hub) = &self.hub {
            state["hub"] = hub.as_str().into();
        }
        if self.topology == Topology::Tree {
            let parents = self.tree.parents().map(|(id, parent)| (id.to_string(), parent.as_str().into()));
            state["parents"] = Value::Object(parents.collect());
        }
        state
    }

    /// What each participant has reported last.
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

    /// One more signal or report. What comes too fast counts as a sign of life all the same.
    fn heard(&mut self, now: Instant, id: &str) -> Result<(), Refused> {
        let per_s = self.config.signals_per_s;
        let participant = self.participant_mut(id)?;
        participant.heard = now;
        let taken = participant.allowance.take(now, per_s, BURST).map_err(Refused::TooFast);
        if self.topology == Topology::Tree && self.tree.heard(&ParticipantId(id.to_owned())) {
            self.settle(now);
        }
        taken
    }

    /// Parents that are silent to their children and to the room have no place any more. True if there were any.
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

    /// After somebody has come or gone: who is hub, who has which parent, which of its two ways `auto` takes.
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

    /// The one that is, as long as it is there and nobody has come whose role it is rather; then the first to have joined.
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
