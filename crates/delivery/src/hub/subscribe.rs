//! Subscriptions: a channel opens with its first reader and closes with its last.

use std::collections::{BTreeMap, HashMap};

use millrace_protocol::{
    ChannelName, Code, Error, Pattern, Position, Since,
    session::{Policy, Subscription, Target},
};
use smallvec::SmallVec;

use super::{
    Channel, ChannelKey, Conn, ConnId, FirstPage, Group, Hub, Opening, Output, PatternRef, ReaderRef, Recovering,
    Snapshot, WaiterId, Wire,
};
use crate::log::WireLog;

impl Hub {
    /// Opens a channel for a future reader, so that its publications arrive at this hub from now on.
    ///
    /// Read the history after this call, never before. Then call [`Hub::attach`] or [`Hub::release`] exactly once.
    pub fn watch(&mut self, name: &ChannelName) {
        let key = self.open(name, None);
        self.channels[key as usize].opening += 1;
        self.tell_interest(key);
    }

    /// Cancels one [`Hub::watch`]: its reader will not attach.
    pub fn release(&mut self, name: &ChannelName) {
        if let Some(&key) = self.by_name.get(name) {
            self.channels[key as usize].opening -= 1;
            self.tell_interest(key);
        }
    }

    /// Checks whether [`Hub::attach`] would succeed now if `ahead` other channels were attached before this one.
    ///
    /// Errors: [`Code::AlreadySubscribed`], [`Code::TooMany`], or [`Code::Unavailable`] if the connection has
    /// closed.
    pub fn check_attach(&self, id: ConnId, name: &ChannelName, ahead: usize) -> Result<(), Error> {
        let conn = self.conn(id).filter(|conn| !conn.closing);
        let conn = conn.ok_or_else(|| Error::new(Code::Unavailable, "the connection has gone"))?;
        let key = self.by_name.get(name);
        if key.is_some_and(|key| conn.readers.iter().flatten().any(|reader| reader.channel == *key)) {
            return Err(Error::new(Code::AlreadySubscribed, format!("this connection reads {name} already")));
        }
        self.check_room(id, ahead)
    }

    /// Makes the connection a reader of watched channels: of all of them or of none. Each channel starts with a
    /// page of history that was read after [`Hub::watch`]. The pages are sent at once; later publications follow
    /// without further calls. The position list that precedes an event of several channels is complete from the
    /// first event on.
    ///
    /// Errors: as [`Hub::check_attach`].
    pub fn attach(
        &mut self,
        id: ConnId,
        policy: Policy,
        pages: &[FirstPage],
        wire: &mut impl Wire,
    ) -> Result<(), Error> {
        let mut attached = Vec::with_capacity(pages.len());
        for (i, first) in pages.iter().enumerate() {
            match self.start_reader(id, first, policy, None) {
                Ok(slot) => attached.push((slot, &first.page)),
                Err(error) => {
                    attached.iter().for_each(|(slot, _)| self.remove_reader(id, *slot));
                    pages[i + 1..].iter().for_each(|first| self.release(&first.channel));
                    return Err(error);
                }
            }
        }
        for (slot, page) in attached {
            self.write_page(id, slot, page, wire);
        }
        self.catch_up(id, wire);
        Ok(())
    }

    /// Makes the connection a reader of a watched channel. The caller must send this page before anything else of
    /// the channel.
    fn start_reader(
        &mut self,
        id: ConnId,
        first: &FirstPage,
        policy: Policy,
        pattern: Option<u32>,
    ) -> Result<u32, Error> {
        let FirstPage { channel: name, since, page } = first;
        let checked = self.check_attach(id, name, 0);
        let key = self.open(name, None);
        let channel = &mut self.channels[key as usize];
        channel.opening -= 1;
        if let Err(error) = checked {
            self.tell_interest(key);
            return Err(error);
        }
        channel.head.get_or_insert(page.top);
        // Until the page is written, the gap is not reported. The position lists of other channels must not include
        // its end before that.
        let (at, snapshot) = match first.start() {
            Since::StateAfter { epoch, offset, began } => (Position { epoch, offset }, Snapshot::Inside { began }),
            Since::Position(at) => (at, Snapshot::Outside),
            _ => (Position { epoch: page.top.epoch, offset: 0 }, Snapshot::Begin),
        };
        let slot = self.add_reader(id, key, policy, at, pattern);
        if since.is_state() {
            self.want_state(id.slot, slot, snapshot);
        }
        self.tell_joined(id, key);
        self.tell_interest(key);
        Ok(slot)
    }

    /// Returns the subscriptions of a connection with its current positions. Another node that gets these
    /// subscriptions continues without loss. Subscriptions that are still opening are not included.
    pub fn subscriptions(&self, id: ConnId) -> Vec<Subscription> {
        let Some(conn) = self.conn(id) else { return Vec::new() };
        let readers = || conn.readers.iter().flatten();
        let name = |reader: &ReaderRef| self.channels[reader.channel as usize].name.clone();
        let named = readers().filter(|reader| reader.pattern.is_none()).map(|reader| Subscription {
            target: Target::Channel(name(reader)),
            since: match self.place(reader) {
                Since::Position(at) if reader.is_state => Since::StateOr(at),
                place => place,
            },
            positions: HashMap::new(),
            policy: self.channels[reader.channel as usize].groups[reader.group as usize].policy,
        });
        let is_open = |slot: u32| self.opening.iter().all(|opening| (opening.conn, opening.slot) != (id, slot));
        let patterns = conn.patterns.iter().zip(0..).filter(|(_, slot)| is_open(*slot));
        let patterns = patterns.filter_map(|(asked, slot)| {
            let PatternRef { pattern, policy, since_ms, .. } = asked.as_ref()?;
            let heard = readers().filter(|reader| reader.pattern == Some(slot));
            Some(Subscription {
                target: Target::Pattern(pattern.clone()),
                since: Since::Time(*since_ms),
                positions: heard.map(|reader| (name(reader), self.position(reader))).collect(),
                policy: *policy,
            })
        });
        named.chain(patterns).collect()
    }

    /// Returns the targets of the subscriptions of a connection, without their positions.
    pub fn targets(&self, id: ConnId) -> impl Iterator<Item = Target> {
        let conn = self.conn(id);
        let named = conn.into_iter().flat_map(|conn| conn.readers.iter().flatten());
        let named = named.filter(|reader| reader.pattern.is_none());
        let named = named.map(|reader| Target::Channel(self.channels[reader.channel as usize].name.clone()));
        let patterns = conn.into_iter().flat_map(|conn| conn.patterns.iter().flatten());
        named.chain(patterns.map(|asked| Target::Pattern(asked.pattern.clone())))
    }

    /// Ends a subscription to a channel, or a pattern with all channels that it opened.
    ///
    /// Errors: [`Code::NotSubscribed`].
    pub fn unsubscribe(&mut self, id: ConnId, target: &Target) -> Result<(), Error> {
        let missing = || Error::new(Code::NotSubscribed, format!("this connection does not read {}", target.as_str()));
        let key = match target {
            Target::Channel(name) => self.by_name.get(name).copied(),
            Target::Pattern(_) => None,
        };
        let conn = self.conn(id).ok_or_else(missing)?;
        match target {
            Target::Channel(_) => {
                let is_it = |reader: &&ReaderRef| reader.pattern.is_none() && Some(reader.channel) == key;
                let slot = conn.readers.iter().position(|reader| reader.as_ref().filter(is_it).is_some());
                let slot = slot.ok_or_else(missing)? as u32;
                let fallback_pattern = conn.fallback_pattern(target.as_str());
                self.transfer_reader(id, slot, fallback_pattern);
            }
            Target::Pattern(pattern) => {
                let slot = self.pattern_slot(id, pattern).ok_or_else(missing)?;
                self.remove_pattern(id, slot);
            }
        }
        Ok(())
    }

    /// Subscribes to all channels that match, from now on.
    ///
    /// The pattern stays opening until [`Hub::attach_open_channels`] is called. Meanwhile its publications arrive
    /// at this hub, and the hub records where each channel begins, but the pattern does not attach to channels by
    /// itself. Channels that start from another position are watched, read and attached with
    /// [`Hub::attach_matching`] during this time. `since_ms` is used by [`Hub::subscriptions`] only.
    ///
    /// Errors: [`Code::AlreadySubscribed`], [`Code::TooMany`], or [`Code::Unavailable`] if the connection has
    /// closed.
    pub fn subscribe_pattern(
        &mut self,
        id: ConnId,
        pattern: &Pattern,
        policy: Policy,
        since_ms: u64,
    ) -> Result<(), Error> {
        let conn = self.conn(id).filter(|conn| !conn.closing);
        conn.ok_or_else(|| Error::new(Code::Unavailable, "the connection has gone"))?;
        if self.pattern_slot(id, pattern).is_some() {
            return Err(Error::new(Code::AlreadySubscribed, "this connection has this pattern already"));
        }
        self.check_room(id, 0)?;
        let conn = &mut self.conns[id.slot as usize];
        let slot =
            insert(&mut conn.patterns, PatternRef { pattern: pattern.clone(), policy, since_ms, told_full: false });
        let listeners = self.patterns.get_or_insert_with(pattern, Vec::new);
        listeners.push((id, slot));
        let readers = listeners.len() as u32;
        self.opening.push(Opening { conn: id, slot, heard: BTreeMap::new() });
        self.outputs.push_back(Output::PatternInterest { pattern: pattern.clone(), readers });
        Ok(())
    }

    /// Attaches like [`Hub::attach`], for a channel that a pattern of this connection matches.
    pub fn attach_matching(
        &mut self,
        id: ConnId,
        pattern: &Pattern,
        first: &FirstPage,
        wire: &mut impl Wire,
    ) -> Result<(), Error> {
        let Some(slot) = self.pattern_slot(id, pattern) else {
            self.release(&first.channel);
            return Err(Error::new(Code::NotSubscribed, "the pattern is gone"));
        };
        let policy =
            self.conns[id.slot as usize].patterns[slot as usize].as_ref().map_or(Policy::Every, |asked| asked.policy);
        let slot = self.start_reader(id, first, policy, Some(slot))?;
        self.write_page(id, slot, &first.page, wire);
        self.catch_up(id, wire);
        Ok(())
    }

    /// Ends the opening of a pattern. The pattern reads channels that published since [`Hub::subscribe_pattern`]
    /// from the start of those publications. It reads other channels open in this hub from their heads, and all
    /// remaining channels from their next publication.
    pub fn attach_open_channels(&mut self, id: ConnId, pattern: &Pattern) {
        let Some(slot) = self.pattern_slot(id, pattern) else { return };
        let is_it = |opening: &Opening| (opening.conn, opening.slot) == (id, slot);
        let Some(opening) = self.opening.iter().position(is_it) else { return };
        for (name, at) in self.opening.swap_remove(opening).heard {
            let key = self.open(&name, None);
            self.attach_patterns(key, at, |listener, asked| listener == id && asked == pattern);
        }
        let open = self.channels.iter().filter(|(_, channel)| channel.heard && pattern.matches(channel.name.as_str()));
        let matching: Vec<_> = open.filter_map(|(key, channel)| Some((key as u32, channel.head?))).collect();
        for (key, head) in matching {
            self.attach_patterns(key, head, |listener, asked| listener == id && asked == pattern);
        }
    }

    /// Records the start position of a publication for all patterns that are still opening, so that they do not
    /// miss it.
    pub(super) fn note_for_opening(&mut self, name: &ChannelName, before: Position) {
        for Opening { conn, slot, heard } in &mut self.opening {
            let asked = &self.conns[conn.slot as usize].patterns[*slot as usize];
            if asked.as_ref().is_some_and(|asked| asked.pattern.matches(name.as_str())) {
                heard.entry(name.clone()).or_insert(before);
            }
        }
    }

    /// Registers a waiter for the next publication of any of these channels. It counts as a reader until it is
    /// woken or [`Hub::forget`] is called.
    ///
    /// Read the history after this call, never before.
    pub fn wait(&mut self, waiter: WaiterId, names: &[ChannelName]) {
        let mut keys = Vec::with_capacity(names.len());
        for name in names {
            let key = self.open(name, None);
            if !keys.contains(&key) {
                self.channels[key as usize].waiters.push(waiter);
                self.tell_interest(key);
                keys.push(key);
            }
        }
        self.waiters.insert(waiter, keys);
    }

    /// Returns every waiter.
    pub fn waiters(&self) -> impl Iterator<Item = WaiterId> + '_ {
        self.waiters.keys().copied()
    }

    /// Removes a waiter.
    pub fn forget(&mut self, waiter: WaiterId) {
        for key in self.waiters.remove(&waiter).unwrap_or_default() {
            self.channels[key as usize].waiters.retain(|other| *other != waiter);
            self.tell_interest(key);
        }
    }

    /// Wakes and removes all waiters of this channel. This may close the channel.
    pub(super) fn wake_waiters(&mut self, key: u32) {
        let woken = std::mem::take(&mut self.channels[key as usize].waiters);
        if woken.is_empty() {
            return;
        }
        for waiter in woken {
            for other in self.waiters.remove(&waiter).unwrap_or_default() {
                if other != key {
                    self.channels[other as usize].waiters.retain(|waits| *waits != waiter);
                    self.tell_interest(other);
                }
            }
            self.outputs.push_back(Output::Wake(waiter));
        }
        self.tell_interest(key);
    }

    pub(super) fn open(&mut self, name: &ChannelName, head: Option<Position>) -> u32 {
        if let Some(&key) = self.by_name.get(name) {
            return key;
        }
        self.serial = self.serial.wrapping_add(1).max(1);
        let channel = Channel {
            name: name.clone(),
            serial: self.serial,
            head,
            heard: false,
            groups: SmallVec::new(),
            opening: 0,
            waiters: Vec::new(),
            told_readers: 0,
            dirty: false,
            has_roster: self.has_roster.as_ref().is_some_and(|has_roster| has_roster(name)),
        };
        let key = self.channels.insert(channel) as u32;
        self.by_name.insert(name.clone(), key);
        key
    }

    fn tell_joined(&mut self, id: ConnId, key: u32) {
        let channel = &self.channels[key as usize];
        if channel.has_roster {
            self.outputs.push_back(Output::Joined { conn: id, channel: channel.name.clone() });
        }
    }

    /// Reports a change in the number of readers, and closes the channel if it has none.
    pub(super) fn tell_interest(&mut self, key: u32) {
        let channel = &mut self.channels[key as usize];
        let readers = channel.readers();
        if readers != channel.told_readers {
            channel.told_readers = readers;
            let channel_key = ChannelKey { slot: key, serial: channel.serial };
            self.outputs.push_back(Output::Interest { channel: channel.name.clone(), key: channel_key, readers });
        }
        if readers == 0 {
            self.by_name.remove(&channel.name);
            self.channels.remove(key as usize);
            self.dirty.retain(|dirty| *dirty != key);
        }
    }

    /// Attaches connections to this channel through their open patterns, if `wanted` accepts the pattern and the
    /// connection does not read the channel yet. Each new reader has everything up to `at`.
    pub(super) fn attach_patterns(&mut self, key: u32, at: Position, wanted: impl Fn(ConnId, &Pattern) -> bool) {
        let name = self.channels[key as usize].name.clone();
        let mut listeners = Vec::new();
        self.patterns.matching(name.as_str(), |pattern, list| {
            listeners.extend(list.iter().copied().filter(|(id, _)| wanted(*id, pattern)));
            true
        });
        listeners.retain(|entry| self.opening.iter().all(|opening| (opening.conn, opening.slot) != *entry));
        // The iteration order of a hash map is not reproducible from a seed, so sort.
        listeners.sort_unstable();
        for (id, slot) in listeners {
            let checked = self.check_attach(id, &name, 0);
            let Some(asked) = self.conns[id.slot as usize].patterns[slot as usize].as_mut() else { continue };
            if let Err(error) = checked {
                // Reported once per pattern: otherwise a pattern that matches too much would cause a report with
                // every publication.
                if error.code == Code::TooMany && !std::mem::replace(&mut asked.told_full, true) {
                    self.outputs.push_back(Output::Refuse { conn: id, error });
                }
                continue;
            }
            let policy = asked.policy;
            let reader = self.add_reader(id, key, policy, at, Some(slot));
            self.tell_joined(id, key);
            self.go_live_if_covered(id.slot, reader);
            self.ask(id.slot);
        }
        self.tell_interest(key);
    }

    /// Adds a recovering reader that has everything up to `at`. Returns its slot in the connection.
    pub(super) fn add_reader(
        &mut self,
        id: ConnId,
        key: u32,
        policy: Policy,
        at: Position,
        pattern: Option<u32>,
    ) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let encoding = self.conns[id.slot as usize].encoding;
        let channel = &mut self.channels[key as usize];
        let head = channel.head.unwrap_or(at);
        let same = |group: &Group| group.encoding == encoding && group.policy == policy;
        let group = channel.groups.iter().position(same).unwrap_or_else(|| {
            let log = WireLog::new(policy, head.offset + 1);
            channel.groups.push(Group { encoding, policy, log, live: SmallVec::new(), recovering: Vec::new() });
            channel.groups.len() - 1
        });
        let recovering = &mut channel.groups[group].recovering;
        let conn = &mut self.conns[id.slot as usize];
        let reader = ReaderRef {
            channel: key,
            group: group as u32,
            index: recovering.len() as u32,
            live: false,
            is_state: false,
            serial: self.serial,
            pattern,
        };
        let slot = insert(&mut conn.readers, reader);
        let snapshot = Snapshot::Outside;
        recovering.push(Recovering { conn: id.slot, slot, at, hold: at.offset, top: 0, snapshot });
        slot
    }

    /// Makes a new reader one of the state, at this place of the state.
    fn want_state(&mut self, conn_slot: u32, slot: u32, snapshot: Snapshot) {
        let Some(reader) = &mut self.conns[conn_slot as usize].readers[slot as usize] else { return };
        reader.is_state = true;
        let group = &mut self.channels[reader.channel as usize].groups[reader.group as usize];
        if let Some(recovering) = group.recovering.get_mut(reader.index as usize).filter(|_| !reader.live) {
            recovering.snapshot = snapshot;
        }
    }

    pub(super) fn drop_readers(&mut self, id: ConnId) {
        for slot in 0..self.conns[id.slot as usize].readers.len() {
            if self.conns[id.slot as usize].readers[slot].is_some() {
                self.remove_reader(id, slot as u32);
            }
        }
        for slot in 0..self.conns[id.slot as usize].patterns.len() {
            self.remove_pattern(id, slot as u32);
        }
    }

    fn remove_reader(&mut self, id: ConnId, slot: u32) {
        let Some(reader) = self.conns[id.slot as usize].readers[slot as usize].take() else { return };
        self.unlink(&reader);
        let channel = &self.channels[reader.channel as usize];
        if channel.has_roster {
            self.outputs.push_back(Output::Left { conn: id, channel: channel.name.clone() });
        }
        // Frames that only this reader still needed may be dropped.
        self.mark_moved(reader.channel);
        self.tell_interest(reader.channel);
    }

    /// Handles the end of a subscription. The reader is removed, or passes to another matching pattern of its
    /// connection (`fallback_pattern`).
    fn transfer_reader(&mut self, id: ConnId, slot: u32, fallback_pattern: Option<u32>) {
        let conn = &mut self.conns[id.slot as usize];
        let policy = fallback_pattern
            .and_then(|fallback_pattern| conn.patterns[fallback_pattern as usize].as_ref())
            .map(|asked| asked.policy);
        let (Some(policy), Some(reader)) = (policy, &mut conn.readers[slot as usize]) else {
            self.remove_reader(id, slot);
            return;
        };
        reader.pattern = fallback_pattern;
        let (key, group) = (reader.channel, reader.group);
        if self.channels[key as usize].groups[group as usize].policy == policy {
            return;
        }
        let Some(reader) = self.conns[id.slot as usize].readers[slot as usize].take() else { return };
        let at = self.position(&reader);
        self.unlink(&reader);
        let slot = self.add_reader(id, key, policy, at, fallback_pattern);
        self.go_live_if_covered(id.slot, slot);
        self.ask(id.slot);
        self.mark_moved(key);
    }

    /// Removes a reader from its group's list and updates the reference of the reader that moves into its place.
    pub(super) fn unlink(&mut self, reader: &ReaderRef) {
        let group = &mut self.channels[reader.channel as usize].groups[reader.group as usize];
        let moved = if reader.live {
            group.live.swap_remove(reader.index as usize);
            group.live.get(reader.index as usize).map(|moved| (moved.conn, moved.slot))
        } else {
            group.recovering.swap_remove(reader.index as usize);
            group.recovering.get(reader.index as usize).map(|moved| (moved.conn, moved.slot))
        };
        if group.live.is_empty() && group.recovering.is_empty() {
            let next = group.log.next();
            group.log.restart(next, &mut self.pool);
        }
        if let Some((conn, slot)) = moved
            && let Some(moved) = &mut self.conns[conn as usize].readers[slot as usize]
        {
            moved.index = reader.index;
        }
    }

    fn remove_pattern(&mut self, id: ConnId, slot: u32) {
        let Some(gone) = self.conns[id.slot as usize].patterns[slot as usize].take() else { return };
        self.opening.retain(|opening| (opening.conn, opening.slot) != (id, slot));
        if let Some(listeners) = self.patterns.get_mut(&gone.pattern) {
            listeners.retain(|entry| *entry != (id, slot));
            let readers = listeners.len() as u32;
            if readers == 0 {
                self.patterns.remove(&gone.pattern);
            }
            self.outputs.push_back(Output::PatternInterest { pattern: gone.pattern, readers });
        }
        let conn = &self.conns[id.slot as usize];
        let mut orphans = Vec::new();
        for (reader_slot, reader) in conn.readers.iter().enumerate() {
            if let Some(reader) = reader.as_ref().filter(|reader| reader.pattern == Some(slot)) {
                let name = self.channels[reader.channel as usize].name.as_str();
                orphans.push((reader_slot as u32, conn.fallback_pattern(name)));
            }
        }
        for (reader_slot, fallback_pattern) in orphans {
            self.transfer_reader(id, reader_slot, fallback_pattern);
        }
    }

    /// Returns the slot of this pattern in the connection. Cost: O(connections with the pattern) or O(patterns of
    /// this connection), whichever is smaller.
    fn pattern_slot(&self, id: ConnId, pattern: &Pattern) -> Option<u32> {
        let listeners = self.patterns.get(pattern)?;
        let own = &self.conn(id)?.patterns;
        if listeners.len() <= own.len() {
            return listeners.iter().find(|(listener, _)| *listener == id).map(|(_, slot)| *slot);
        }
        let is_it = |asked: &Option<PatternRef>| asked.as_ref().is_some_and(|asked| asked.pattern == *pattern);
        own.iter().position(is_it).map(|slot| slot as u32)
    }

    fn check_room(&self, id: ConnId, ahead: usize) -> Result<(), Error> {
        let max = self.config.subscriptions_max;
        let count =
            self.conn(id).map_or(0, |c| c.readers.iter().flatten().count() + c.patterns.iter().flatten().count());
        if count + ahead >= max {
            return Err(Error::new(Code::TooMany, format!("a connection has at most {max} subscriptions")));
        }
        Ok(())
    }
}

impl Conn {
    /// Returns the pattern that keeps a channel subscribed when another subscription to it ends.
    fn fallback_pattern(&self, name: &str) -> Option<u32> {
        let matches = |asked: &Option<PatternRef>| asked.as_ref().is_some_and(|asked| asked.pattern.matches(name));
        self.patterns.iter().position(matches).map(|slot| slot as u32)
    }
}

fn insert<T>(slots: &mut Vec<Option<T>>, value: T) -> u32 {
    let free = slots.iter().position(Option::is_none).unwrap_or_else(|| {
        slots.push(None);
        slots.len() - 1
    });
    slots[free] = Some(value);
    free as u32
}
