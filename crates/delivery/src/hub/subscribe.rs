//! Who reads what: channels open when the first reader comes and close when the last one goes.

use std::collections::HashMap;

use millrace_protocol::{ChannelName, Code, Error, Gap, Pattern, Position, session::Policy, session::Target};

use super::{Channel, ConnId, Group, Hub, Output, PatternRef, ReaderRef, Recovering, WaiterId, Wire};
use crate::{Page, log::WireLog};

/// Where a new reader starts, for the reply to its subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    pub position: Position,
    /// What it asked for and cannot have.
    pub gap: Option<Gap>,
}

impl Hub {
    /// Opens a channel for a reader (or waiter) to come, so that from now on its publications arrive here.
    ///
    /// Read the history after this, never before; then call [`Hub::attach`] or [`Hub::release`], exactly once.
    pub fn watch(&mut self, name: &ChannelName) {
        let key = self.open(name, None);
        self.channels[key as usize].opening += 1;
        self.tell_interest(key);
    }

    /// The reader that [`Hub::watch`] was called for does not come.
    pub fn release(&mut self, name: &ChannelName) {
        if let Some(&key) = self.by_name.get(name) {
            self.channels[key as usize].opening -= 1;
            self.tell_interest(key);
        }
    }

    /// Makes the connection a reader of a watched channel, starting with a page of history that was read after [`Hub::watch`].
    ///
    /// Errors: [`Code::AlreadySubscribed`], [`Code::TooMany`], or [`Code::Unavailable`] if the connection has gone.
    pub fn check_attach(&self, id: ConnId, name: &ChannelName) -> Result<(), Error> {
        let conn = self.conn(id).filter(|conn| !conn.closing);
        let conn = conn.ok_or_else(|| Error::new(Code::Unavailable, "the connection has gone"))?;
        let mut readers = conn.readers.iter().flatten();
        if let Some(&key) = self.by_name.get(name) {
            if readers.any(|reader| reader.channel == key) {
                return Err(Error::new(Code::AlreadySubscribed, format!("this connection reads {name} already")));
            }
        }
        self.check_room(id)
    }

    /// See [`Hub::check_attach`], whose errors it returns. The page is sent at once; the rest follows by itself.
    pub fn attach(
        &mut self,
        id: ConnId,
        name: &ChannelName,
        policy: Policy,
        page: &Page,
        wire: &mut impl Wire,
    ) -> Result<Subscribed, Error> {
        self.attach_for(id, name, policy, page, None, wire)
    }

    pub(super) fn attach_for(
        &mut self,
        id: ConnId,
        name: &ChannelName,
        policy: Policy,
        page: &Page,
        pattern: Option<u32>,
        wire: &mut impl Wire,
    ) -> Result<Subscribed, Error> {
        let checked = self.check_attach(id, name);
        let key = self.open(name, None);
        let channel = &mut self.channels[key as usize];
        channel.opening -= 1;
        if let Err(error) = checked {
            self.tell_interest(key);
            return Err(error);
        }
        if channel.head.is_none() {
            channel.head = Some(page.top);
        }
        let start = page.start();
        let slot = self.add_reader(id, key, policy, start, pattern);
        self.tell_interest(key);
        self.send_page(id, slot, page, wire);
        Ok(Subscribed { position: start, gap: page.gap })
    }

    /// Ends a subscription by name, or a pattern with all that it opened.
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
                self.remove_reader(id, slot.ok_or_else(missing)? as u32);
            }
            Target::Pattern(pattern) => {
                let is_it = |asked: &PatternRef| asked.pattern == *pattern;
                let slot = conn.patterns.iter().position(|asked| asked.as_ref().is_some_and(is_it));
                self.remove_pattern(id, slot.ok_or_else(missing)? as u32);
            }
        }
        Ok(())
    }

    /// Subscribes to all channels that match, from now on; those that are open here already are read from their heads.
    ///
    /// Channels that shall start elsewhere are attached beforehand by [`Hub::attach_matching`].
    /// Errors: [`Code::AlreadySubscribed`], [`Code::TooMany`].
    pub fn subscribe_pattern(&mut self, id: ConnId, pattern: &Pattern, policy: Policy) -> Result<(), Error> {
        let conn = self.conn(id).filter(|conn| !conn.closing);
        let conn = conn.ok_or_else(|| Error::new(Code::Unavailable, "the connection has gone"))?;
        if conn.patterns.iter().flatten().any(|asked| asked.pattern == *pattern) {
            return Err(Error::new(Code::AlreadySubscribed, "this connection has this pattern already"));
        }
        self.check_room(id)?;
        let conn = &mut self.conns[id.slot as usize];
        let slot = insert(&mut conn.patterns, PatternRef { pattern: pattern.clone(), policy });
        let listeners = self.patterns.entry(pattern.clone()).or_default();
        listeners.push((id, slot));
        let readers = listeners.len() as u32;
        self.outputs.push_back(Output::PatternInterest { pattern: pattern.clone(), readers });
        Ok(())
    }

    /// As [`Hub::attach`], for a channel that a pattern of this connection matches.
    pub fn attach_matching(
        &mut self,
        id: ConnId,
        pattern: &Pattern,
        name: &ChannelName,
        page: &Page,
        wire: &mut impl Wire,
    ) -> Result<Subscribed, Error> {
        let asked = |asked: &PatternRef| asked.pattern == *pattern;
        let slot = self.conn(id).and_then(|conn| conn.patterns.iter().position(|a| a.as_ref().is_some_and(asked)));
        let Some(slot) = slot else {
            self.release(name);
            return Err(Error::new(Code::NotSubscribed, "the pattern is gone"));
        };
        let policy = self.conns[id.slot as usize].patterns[slot].as_ref().map_or(Policy::Every, |asked| asked.policy);
        self.attach_for(id, name, policy, page, Some(slot as u32), wire)
    }

    /// Attaches a pattern to the matching channels that are open here and that it does not read yet, from their heads on.
    pub fn attach_open_channels(&mut self, id: ConnId, pattern: &Pattern) {
        let open = self.channels.iter().filter(|(_, channel)| channel.head.is_some());
        let matching: Vec<u32> = open.filter(|(_, c)| pattern.matches(c.name.as_str())).map(|(key, _)| key as u32).collect();
        for key in matching {
            self.attach_patterns(key, |listener, asked| listener == id && asked == pattern);
        }
    }

    /// Someone waits for the next publication of a watched channel; it counts as a reader until it is woken or [`Hub::forget`] is called.
    pub fn wait(&mut self, waiter: WaiterId, names: &[ChannelName]) {
        let mut keys = Vec::with_capacity(names.len());
        for name in names {
            let key = self.open(name, None);
            self.channels[key as usize].waiters.push(waiter);
            self.tell_interest(key);
            keys.push(key);
        }
        self.waiters.insert(waiter, keys);
    }

    /// The waiter has gone.
    pub fn forget(&mut self, waiter: WaiterId) {
        for key in self.waiters.remove(&waiter).unwrap_or_default() {
            self.channels[key as usize].waiters.retain(|other| *other != waiter);
            self.tell_interest(key);
        }
    }

    /// How many subscriptions a channel has here.
    pub fn readers(&self, name: &ChannelName) -> u32 {
        self.by_name.get(name).map_or(0, |&key| self.channels[key as usize].readers())
    }

    pub(super) fn open(&mut self, name: &ChannelName, head: Option<Position>) -> u32 {
        if let Some(&key) = self.by_name.get(name) {
            return key;
        }
        let (groups, waiters) = (Vec::new(), Vec::new());
        let channel = Channel { name: name.clone(), head, groups, opening: 0, waiters, told_readers: 0, dirty: false };
        let key = self.channels.insert(channel) as u32;
        self.by_name.insert(name.clone(), key);
        key
    }

    /// Reports a change in readers, and closes the channel when there is none.
    pub(super) fn tell_interest(&mut self, key: u32) {
        let channel = &mut self.channels[key as usize];
        let readers = channel.readers();
        if readers != channel.told_readers {
            channel.told_readers = readers;
            self.outputs.push_back(Output::Interest { channel: channel.name.clone(), readers });
        }
        if readers == 0 {
            self.by_name.remove(&channel.name);
            self.channels.remove(key as usize);
            self.dirty.retain(|dirty| *dirty != key);
        }
    }

    /// A publication has opened this channel, or a pattern has come: everyone who listens by pattern and not otherwise becomes a reader.
    pub(super) fn attach_patterns(&mut self, key: u32, wanted: impl Fn(ConnId, &Pattern) -> bool) {
        let Some(head) = self.channels[key as usize].head else { return };
        let name = self.channels[key as usize].name.clone();
        let matching = self.patterns.iter().filter(|(pattern, _)| pattern.matches(name.as_str()));
        let listeners = matching.flat_map(|(pattern, list)| list.iter().map(move |entry| (pattern, *entry)));
        let listeners: Vec<_> = listeners.filter(|(p, (id, _))| wanted(*id, p)).map(|(_, entry)| entry).collect();
        for (id, slot) in listeners {
            if self.check_attach(id, &name).is_err() {
                continue;
            }
            let policy = self.conns[id.slot as usize].patterns[slot as usize].as_ref().map_or(Policy::Every, |p| p.policy);
            self.add_reader(id, key, policy, head, Some(slot));
        }
        self.tell_interest(key);
    }

    /// A reader that has everything up to `at`: live if the log reaches back to there, else recovering.
    pub(super) fn add_reader(&mut self, id: ConnId, key: u32, policy: Policy, at: Position, pattern: Option<u32>) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let form = self.conns[id.slot as usize].form;
        let channel = &mut self.channels[key as usize];
        let head = channel.head.unwrap_or(at);
        let same = |group: &Group| group.form == form && group.policy == policy;
        let group = channel.groups.iter().position(same).unwrap_or_else(|| {
            let log = WireLog::new(policy, head.offset + 1);
            channel.groups.push(Group { form, policy, log, live: Vec::new(), recovering: Vec::new() });
            channel.groups.len() - 1
        });
        let recovering = &mut channel.groups[group].recovering;
        let conn = &mut self.conns[id.slot as usize];
        let reader = ReaderRef {
            channel: key,
            group: group as u32,
            index: recovering.len() as u32,
            live: false,
            serial: self.serial,
            pattern,
        };
        let slot = insert(&mut conn.readers, reader);
        recovering.push(Recovering { conn: id.slot, slot, at, hold: at.offset });
        self.go_live_if_covered(id.slot, slot);
        slot
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
        self.tell_interest(reader.channel);
    }

    /// Takes a reader out of its group's list and mends the reference of the one that fills its place.
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
            group.log.restart(next);
        }
        if let Some((conn, slot)) = moved {
            if let Some(moved) = &mut self.conns[conn as usize].readers[slot as usize] {
                moved.index = reader.index;
            }
        }
    }

    fn remove_pattern(&mut self, id: ConnId, slot: u32) {
        let Some(gone) = self.conns[id.slot as usize].patterns[slot as usize].take() else { return };
        if let Some(listeners) = self.patterns.get_mut(&gone.pattern) {
            listeners.retain(|entry| *entry != (id, slot));
            let readers = listeners.len() as u32;
            if readers == 0 {
                self.patterns.remove(&gone.pattern);
            }
            self.outputs.push_back(Output::PatternInterest { pattern: gone.pattern, readers });
        }
        // What another pattern of the same connection matches stays with that one.
        let conn = &self.conns[id.slot as usize];
        let mut orphans = HashMap::new();
        for (reader_slot, reader) in conn.readers.iter().enumerate() {
            if let Some(reader) = reader.as_ref().filter(|reader| reader.pattern == Some(slot)) {
                let name = self.channels[reader.channel as usize].name.as_str();
                let heir = |p: &Option<PatternRef>| p.as_ref().is_some_and(|p| p.pattern.matches(name));
                orphans.insert(reader_slot as u32, conn.patterns.iter().position(heir));
            }
        }
        for (reader_slot, heir) in orphans {
            match (heir, &mut self.conns[id.slot as usize].readers[reader_slot as usize]) {
                (Some(heir), Some(reader)) => reader.pattern = Some(heir as u32),
                _ => self.remove_reader(id, reader_slot),
            }
        }
    }

    fn check_room(&self, id: ConnId) -> Result<(), Error> {
        let max = self.config.subscriptions_max;
        let count = self.conn(id).map_or(0, |c| c.readers.iter().flatten().count() + c.patterns.iter().flatten().count());
        if count >= max {
            return Err(Error::new(Code::TooMany, format!("a connection has at most {max} subscriptions")));
        }
        Ok(())
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
