//! The clock, the engine, the mailbox and the faults. See the documentation of the parent module.

use std::collections::{BTreeMap, HashSet};

use millrace_delivery::{Bounds, ChannelKey, Config, ConnId, History, Hub, Output, Page, PageLimit, Part};
use millrace_protocol::{ChannelName, Epoch, Gap, Pattern, Position, Since, session::Policy};

use super::{
    client::{Client, Want},
    counts::{Breakage, Counts},
    dice::Dice,
    event::{Asker, Event},
    request::{Job, Poll},
    truth::{Check, Truth},
    wires::Wires,
};

const NAMES: [&str; 4] = ["a/1", "a/2", "b/1", "a"];
const PATTERNS: [&str; 5] = ["a/+", "#", "a/#", "+/1", "a/2"];
/// Start time of a run, in milliseconds since 1970.
const START_MS: u64 = 1_700_000_000_000;
/// Maximum number of steps; a run with more does not settle.
const STEPS_MAX: u32 = 60_000;

pub struct World {
    pub dice: Dice,
    pub now_ms: u64,
    pub(super) events: BTreeMap<(u64, u64), Event>,
    pub(super) serial: u64,
    pub names: Vec<ChannelName>,
    pub truth: Truth,
    pub(super) histories: Vec<History>,
    /// Whether each channel is a keyed state.
    pub states: Vec<bool>,
    pub(super) last_arrival_ms: Vec<u64>,
    pub(super) bounds: Bounds,
    pub(super) limit: PageLimit,
    pub(super) keys_max: usize,
    pub(super) config: Config,
    pub hub: Hub,
    /// Number of restarts. Events of an earlier life that have not reached the hub are lost.
    pub life: u32,
    pub wires: Wires,
    pub clients: Vec<Client>,
    pub jobs: BTreeMap<u64, Job>,
    pub polls: BTreeMap<u64, Poll>,
    pub(super) interest: Vec<u32>,
    /// Key of each channel as last reported. A publication carries the key of its publish time, which may have been
    /// closed since.
    pub(super) keys: Vec<Option<ChannelKey>>,
    pub(super) pattern_interest: Vec<(Pattern, u32)>,
    /// Connections that the hub has reported as members of a channel.
    members: HashSet<(ConnId, usize)>,
    /// True while faults happen.
    pub rough: bool,
    pub(super) payload_bytes: u64,
    pub(super) slow_percent: u32,
    pub(super) breakage: Breakage,
    pub counts: Counts,
    pub trace: bool,
}

/// Prints events when one seed is replayed.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace {
            eprintln!("{:>6} {}", $world.now_ms % 1_000_000, format!($($arg)*));
        }
    };
}
pub(super) use trace;

/// Returns a hub that reports the members of all channels.
fn new_hub(config: &Config) -> Hub {
    let mut hub = Hub::new(config.clone());
    hub.set_rosters(Box::new(|_| true));
    hub
}

impl World {
    pub fn new(seed: u64, breakage: Breakage, trace: bool) -> Self {
        let mut dice = Dice::new(seed);
        let bounds = Bounds {
            count_max: dice.between(3, 30) as usize,
            bytes_max: dice.pick(&[600, 4000, 1 << 20]),
            age_max_ms: dice.pick(&[100, 1000, 100_000]),
            keys_max: 0,
        };
        let limit = PageLimit { count: dice.pick(&[1, 2, 5, 100]), bytes: dice.pick(&[200, 1 << 20]) };
        let has_states = dice.percent(50);
        let keys_max = dice.pick(&[3, 12, 1000]);
        let tiny = dice.percent(15);
        let crowded = dice.percent(15);
        let config = Config {
            log_bytes_max: if tiny { 1 } else { 4 << 20 },
            logs_bytes_max: if crowded { dice.pick(&[1, 200, 1000, 50_000]) } else { 256 << 20 },
            heartbeat_s: dice.pick(&[1, 25]),
            grace_s: 1,
            ..Config::default()
        };
        let names: Vec<_> =
            NAMES[..dice.between(1, 4) as usize].iter().map(|name| ChannelName::parse(name).unwrap()).collect();
        let mut world = Self {
            now_ms: START_MS,
            events: BTreeMap::new(),
            serial: 0,
            truth: Truth::new(bounds),
            histories: Vec::new(),
            states: Vec::new(),
            last_arrival_ms: vec![0; names.len()],
            hub: new_hub(&config),
            life: 0,
            wires: Wires::default(),
            clients: Vec::new(),
            jobs: BTreeMap::new(),
            polls: BTreeMap::new(),
            interest: vec![0; names.len()],
            keys: vec![None; names.len()],
            pattern_interest: Vec::new(),
            members: HashSet::new(),
            rough: true,
            payload_bytes: if tiny { 30_000 } else { 40 },
            slow_percent: dice.pick(&[0, 20, 60]),
            counts: Counts::default(),
            names,
            bounds,
            limit,
            keys_max,
            config,
            breakage,
            trace,
            dice,
        };
        for _ in 0..world.names.len() {
            let epoch = Epoch(world.dice.between(0, u64::from(u32::MAX)) as u32);
            world.histories.push(History::new(epoch));
            let is_state = has_states && world.dice.percent(70);
            world.states.push(is_state);
            world.truth.add_channel(epoch);
        }
        if breakage == Breakage::DroppedBytes {
            world.wires.drop_bytes_in = Some(world.dice.between(5, 40) as u32);
        }
        world.add_clients();
        world.schedule(0, Event::Publish);
        world.schedule(1000, Event::Tick);
        world.schedule(100, Event::Expire);
        if world.dice.percent(30) {
            let after = world.dice.between(100, 1500);
            world.schedule(after, Event::LoseEngine);
        }
        if world.dice.percent(30) {
            let after = world.dice.between(100, 1500);
            world.schedule(after, Event::Restart);
        }
        world
    }

    fn add_clients(&mut self) {
        for index in 0..self.dice.between(2, 5) as usize {
            let mut wants: Vec<Want> = Vec::new();
            if self.dice.percent(30) {
                for _ in 0..self.dice.between(1, 2) {
                    let pattern = self.dice.pick(&PATTERNS[..4]);
                    let want = Want::Pattern(Pattern::parse(pattern).unwrap());
                    if !wants.contains(&want) {
                        wants.push(want);
                    }
                }
            }
            if wants.is_empty() || self.dice.percent(40) {
                let first = self.dice.index(self.names.len());
                let count = self.dice.between(1, 3).min((self.names.len() - first) as u64) as usize;
                wants.splice(0..0, (first..first + count).map(Want::Channel));
            }
            let policy = self.dice.pick(&[Policy::Every, Policy::Latest]);
            let is_state = |want: &Want| matches!(want, Want::Channel(channel) if self.states[*channel]);
            let reads_states = wants.iter().all(is_state) && self.dice.percent(70);
            trace!(self, "client {index} wants {wants:?}, {policy:?}, states: {reads_states}");
            self.clients.push(Client::new(wants, policy, reads_states));
            let after = self.dice.between(0, 300);
            self.schedule(after, Event::Connect { client: index });
        }
    }

    /// Runs the world to its end: first with faults, then without them. Then every client must be at the top, and no
    /// state may remain.
    pub fn run(&mut self) -> Check {
        let mut end_ms = self.now_ms + self.dice.between(300, 1800);
        let mut steps = 0;
        while let Some((&(at_ms, _), _)) = self.events.first_key_value() {
            if self.rough && at_ms >= end_ms {
                self.now_ms = end_ms;
                self.calm()?;
                continue;
            }
            let (_, event) = self.events.pop_first().expect("seen above");
            let turn_ends = self.events.first_key_value().is_none_or(|((next_ms, _), _)| *next_ms > at_ms);
            self.now_ms = at_ms;
            self.step(event)?;
            if turn_ends || self.dice.percent(20) {
                self.flush()?;
            }
            steps += 1;
            if steps > STEPS_MAX {
                return Err("does not settle".into());
            }
            if self.events.is_empty() && self.rough {
                end_ms = self.now_ms;
            }
        }
        self.check_end()?;
        self.leave()
    }

    fn step(&mut self, event: Event) -> Check {
        let life = self.life;
        match event {
            Event::Publish if self.rough => {
                let channel = self.dice.index(self.names.len());
                self.publish(channel, true)?;
                let after = if self.dice.percent(40) { 0 } else { self.dice.between(1, 40) };
                self.schedule(after, Event::Publish);
            }
            Event::Deliver { life: l, channel, key, epoch, publication } if l == life => {
                trace!(self, "mailbox: {} {:08x}:{}", self.names[channel], epoch.0, publication.offset);
                self.hub.deliver(&self.names[channel], key, epoch, &publication);
                self.counts.deliveries += 1;
                self.drain()?;
                if self.hub.is_full() {
                    self.counts.full += 1;
                    self.flush()?;
                }
                let (logs, most) = (self.hub.memory().logs, self.config.logs_bytes_max);
                if logs > most {
                    return Err(format!("the logs hold {logs} bytes, more than {most}"));
                }
            }
            Event::Moved { life: l, channel, key, from } if l == life => {
                let top = Position { offset: from.offset + 1, ..from };
                trace!(self, "mailbox: {} has moved from {from} to {top}", self.names[channel]);
                self.counts.moved += 1;
                self.hub.moved(&self.names[channel], key, from, top);
                self.drain()?;
            }
            Event::Read { life: l, asker, channel, since, policy } if l == life => {
                let page = self.read(channel, since, policy, matches!(asker, Asker::Poll { .. }));
                self.poll_reads(asker, channel, since);
                let after = self.delay(30);
                self.schedule(after, Event::Page { life, asker, channel, page });
            }
            Event::Page { life: l, asker, channel, page } if l == life => self.page(asker, channel, page)?,
            Event::Writable { life: l, conn } if l == life => {
                let capacity = self.capacity();
                if self.wires.unblock(conn, capacity) {
                    self.hub.writable(conn, &mut self.wires);
                    self.drain()?;
                }
            }
            Event::Receive { life: l, conn } if l == life => self.receive(conn)?,
            Event::Received { life: l, conn } if l == life => self.hub.heard(conn),
            Event::Disconnect { life: l, conn } if l == life => {
                self.hub.disconnect(conn);
                self.wires.forget(conn);
                self.drain()?;
            }
            Event::Connect { client } => self.connect(client)?,
            Event::Cut { client } if self.rough => self.cut(client),
            Event::Act { client } => self.act(client),
            Event::Command { life: l, client, conn, id, command } if l == life => {
                self.command(client, conn, id, command)?
            }
            Event::Answer { client, poll, body } => self.answered(client, poll, &body)?,
            Event::Forget { life: l, poll } if l == life => self.forget_poll(poll)?,
            Event::Timeout { life: l, poll } if l == life && self.rough && self.breakage != Breakage::LostWake => {
                self.time_out(poll)?;
            }
            Event::Tick if self.rough => {
                self.hub.tick(((self.now_ms - START_MS) / 1000) as u32, &mut self.wires);
                self.drain()?;
                self.schedule(1000, Event::Tick);
            }
            Event::Expire if self.rough => {
                for channel in 0..self.names.len() {
                    self.expire(channel);
                }
                self.schedule(100, Event::Expire);
            }
            Event::LoseEngine if self.rough => {
                let channel = self.dice.index(self.names.len());
                let epoch = Epoch(self.dice.between(0, u64::from(u32::MAX)) as u32);
                trace!(self, "the engine loses {}: epoch {:08x}", self.names[channel], epoch.0);
                self.histories[channel] = History::new(epoch);
                self.truth.begin(channel, epoch);
                self.counts.epochs += 1;
                if self.dice.percent(30) {
                    let after = self.dice.between(1, 500);
                    self.schedule(after, Event::LoseEngine);
                }
            }
            Event::Restart if self.rough => self.restart(),
            _ => {}
        }
        Ok(())
    }

    fn flush(&mut self) -> Check {
        self.hub.flush(&mut self.wires);
        self.counts.lapses += u64::from(self.drain()?);
        Ok(())
    }

    /// Reads a page. A poll `heals`: where history has left a reader of the state, it gets the state again.
    fn read(&mut self, channel: usize, since: Since, policy: Policy, heals: bool) -> Page {
        let bounds = self.bounds(channel);
        let mut page = self.histories[channel].page(since, policy, self.limit, self.now_ms, &bounds);
        if let (Since::StateOr(_), Some(gap), true) = (since, page.gap, heals) {
            page = self.histories[channel].page(Since::State, policy, self.limit, self.now_ms, &bounds);
            let to = Position { offset: 0, ..page.top };
            page.gap = (gap.from != to).then_some(Gap { from: gap.from, to });
        }
        trace!(
            self,
            "history of {} since {since:?}: gap {:?}, {:?}, end {}, top {}",
            self.names[channel],
            page.gap.map(|gap| (gap.from.to_string(), gap.to.to_string())),
            page.publications.iter().map(|p| p.offset).collect::<Vec<_>>(),
            page.end,
            page.top
        );
        self.counts.pages += 1;
        if self.breakage == Breakage::PageWithHole && page.publications.len() > 2 {
            page.publications.remove(1);
            self.counts.broken += 1;
        }
        if self.breakage == Breakage::LostDeletion && page.part != Part::Log {
            let before = page.publications.len();
            page.publications.retain(|publication| !publication.is_deletion);
            self.counts.broken += u64::from(page.publications.len() < before);
        }
        if self.breakage == Breakage::SilentGap && page.gap.take().is_some() {
            self.counts.broken += 1;
        }
        page
    }

    /// Executes the outputs of the hub and serves the wires. Returns the number of pages that the hub requested.
    pub fn drain(&mut self) -> Check<u32> {
        let mut asked = 0;
        while let Some(output) = self.hub.poll_output() {
            match output {
                Output::ReadHistory { ticket, channel, since, policy } => {
                    asked += 1;
                    let channel = self.channel(channel.as_str())?;
                    self.ask(Asker::Reader(ticket), channel, since, policy);
                }
                Output::Interest { channel, key, readers } => {
                    let channel = self.channel(channel.as_str())?;
                    self.interest[channel] = readers;
                    self.keys[channel] = Some(key);
                }
                Output::PatternInterest { pattern, readers } => {
                    self.pattern_interest.retain(|(other, _)| *other != pattern);
                    if readers > 0 {
                        self.pattern_interest.push((pattern, readers));
                    }
                }
                Output::Joined { conn, channel } => {
                    let channel = self.channel(channel.as_str())?;
                    if !self.members.insert((conn, channel)) {
                        return Err(format!("{conn:?} joined {} twice", self.names[channel]));
                    }
                }
                Output::Left { conn, channel } => {
                    let channel = self.channel(channel.as_str())?;
                    if !self.members.remove(&(conn, channel)) {
                        return Err(format!("{conn:?} left {} without having joined", self.names[channel]));
                    }
                }
                Output::Wake(_) if self.breakage == Breakage::LostWake => self.counts.broken += 1,
                Output::Wake(waiter) => self.wake(waiter)?,
                Output::Refuse { conn, error } => return Err(format!("{conn:?} was refused: {error}")),
                Output::Close(conn) => {
                    trace!(self, "the hub closes {conn:?}");
                    self.wires.close(conn);
                    self.hub.disconnect(conn);
                }
            }
        }
        let life = self.life;
        for conn in std::mem::take(&mut self.wires.blocked) {
            self.counts.blocked += 1;
            let after = if self.rough && self.dice.percent(10) { self.dice.between(500, 3000) } else { self.delay(60) };
            self.schedule(after, Event::Writable { life, conn });
        }
        for conn in std::mem::take(&mut self.wires.touched) {
            let after = self.delay(20);
            self.schedule(after, Event::Receive { life, conn });
        }
        self.counts.broken += std::mem::take(&mut self.wires.dropped);
        self.wires.fault.take().map_or(Ok(asked), Err)
    }

    pub fn ask(&mut self, asker: Asker, channel: usize, since: Since, policy: Policy) {
        let after = self.delay(30);
        self.schedule(after, Event::Read { life: self.life, asker, channel, since, policy });
    }

    fn page(&mut self, asker: Asker, channel: usize, page: Page) -> Check {
        match asker {
            Asker::Reader(ticket) => {
                self.hub.handle_page(ticket, &page, &mut self.wires);
                self.drain()?;
            }
            Asker::Job { job, read } => self.job_page(job, read, page)?,
            Asker::Poll { poll, round, read } => self.poll_page(poll, round, read, channel, page)?,
        }
        Ok(())
    }

    fn restart(&mut self) {
        trace!(self, "the server restarts");
        self.counts.restarts += 1;
        for client in 0..self.clients.len() {
            self.cut(client);
        }
        self.life += 1;
        self.hub = new_hub(&self.config);
        self.members.clear();
        self.hub.tick(((self.now_ms - START_MS) / 1000) as u32, &mut self.wires);
        let drop_bytes_in = self.wires.drop_bytes_in.take();
        self.wires = Wires::default();
        self.wires.drop_bytes_in = drop_bytes_in;
        self.jobs.clear();
        self.polls.clear();
        self.interest.fill(0);
        self.keys.fill(None);
        self.pattern_interest.clear();
        if self.dice.percent(30) {
            let after = self.dice.between(100, 1000);
            self.schedule(after, Event::Restart);
        }
    }

    /// Stops all faults and delays, and publishes a last publication on each channel.
    fn calm(&mut self) -> Check {
        trace!(self, "calm");
        self.rough = false;
        for channel in 0..self.names.len() {
            self.settle_state(channel)?;
            self.publish(channel, false)?;
        }
        self.drain().map(|_| ())
    }

    fn check_end(&mut self) -> Check {
        for (index, client) in self.clients.iter().enumerate() {
            for channel in 0..self.names.len() {
                if let Some(views) = &client.views {
                    let view =
                        views.get(&channel).map_or(Ok(()), |view| view.check_end(&self.truth, channel, self.now_ms));
                    view.map_err(|why| format!("client {index} in {}: {why}", self.names[channel]))?;
                    continue;
                }
                let top = self.truth.top(channel);
                client.check_end(channel, &self.names[channel], top).map_err(|why| format!("client {index}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Disconnects all clients. No state may remain.
    fn leave(&mut self) -> Check {
        for client in 0..self.clients.len() {
            self.hang_up(client)?;
        }
        self.drain()?;
        let memory = self.hub.memory();
        let left = (self.hub.channel_count(), self.hub.conn_count(), memory.logs, memory.out);
        if left != (0, 0, 0, 0) {
            return Err(format!("left behind: channels, connections, bytes {left:?}"));
        }
        if self.interest.iter().any(|readers| *readers > 0) || !self.pattern_interest.is_empty() {
            return Err(format!("interest left behind: {:?} {:?}", self.interest, self.pattern_interest));
        }
        if !self.members.is_empty() {
            return Err(format!("members left behind: {:?}", self.members));
        }
        Ok(())
    }

    pub fn channel(&self, name: &str) -> Check<usize> {
        self.names.iter().position(|other| other.as_str() == name).ok_or_else(|| format!("who asked for {name}?"))
    }

    pub fn schedule(&mut self, after_ms: u64, event: Event) {
        self.serial += 1;
        self.events.insert((self.now_ms + after_ms, self.serial), event);
    }

    /// Returns a delay in milliseconds, mostly a short one.
    pub fn delay(&mut self, max_ms: u64) -> u64 {
        if self.dice.percent(40) { self.dice.between(0, 1) } else { self.dice.between(0, max_ms) }
    }

    /// Returns the number of bytes that a socket accepts until it blocks.
    pub fn capacity(&mut self) -> usize {
        if !self.rough || !self.dice.percent(self.slow_percent) {
            return usize::MAX;
        }
        let most = self.dice.pick(&[0, 5, 100, 1000, 50_000]);
        self.dice.between(0, most) as usize
    }
}
