//! Cursors and registrations: entries of keyed states in the engine.

use std::{collections::HashMap, sync::Arc};

use millrace_delivery::{PageLimit, Part};
use millrace_engine::Engine;
use millrace_protocol::{
    ChannelName, Code, Error, Expected, Kind, NewPublication, Position, Publication, Since, session::Policy,
};
use serde::{Deserialize, Serialize};

use crate::{
    dispatcher::Cursor,
    event::{CURSORS, REGISTRATIONS},
};

const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Returns the name of a channel of this crate.
pub(crate) fn channel(name: &str) -> ChannelName {
    ChannelName::parse(name).expect("a channel name")
}

/// Entry of a cursor.
#[derive(Serialize, Deserialize)]
struct CursorEntry {
    at: String,
}

/// Entry of a registered channel.
#[derive(Default, Serialize, Deserialize)]
struct RegistrationEntry {
    /// End of the log before the first event; absent if another node has registered the channel before.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
}

/// A registered channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub channel: ChannelName,
    /// End of the log before the first event; `None` if it is unknown.
    pub from: Option<Position>,
    /// Position of the registration in its state.
    pub entry: Position,
    /// Time of the newest registration by any node, in milliseconds since 1970.
    pub touched_ms: u64,
}

/// Access to the states.
#[derive(Clone)]
pub struct Store {
    engine: Arc<dyn Engine>,
    cursors: ChannelName,
    registrations: ChannelName,
}

impl Store {
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        Self { engine, cursors: channel(CURSORS), registrations: channel(REGISTRATIONS) }
    }

    /// Returns all cursors. Entries that this version does not understand are left out.
    ///
    /// Errors: those of the engine.
    pub async fn cursors(&self) -> Result<HashMap<ChannelName, Cursor>, Error> {
        let (entries, end) = read_state(&*self.engine, &self.cursors).await?;
        let cursor = |entry: Publication| {
            let channel = ChannelName::parse(entry.key.as_deref()?).ok()?;
            let CursorEntry { at } = serde_json::from_slice(entry.data()).ok()?;
            let entry = Position { epoch: end.epoch, offset: entry.offset };
            Some((channel, Cursor { at: Some(at.parse().ok()?), entry: Some(entry) }))
        };
        Ok(entries.into_iter().filter_map(cursor).collect())
    }

    /// Writes a cursor that was read or written at `entry` before. Returns the position of the new entry.
    ///
    /// Errors: [`Code::PreconditionFailed`] if another dispatcher has written it since; those of the engine.
    pub async fn write_cursor(
        &self,
        log: &ChannelName,
        at: Position,
        entry: Option<Position>,
    ) -> Result<Position, Error> {
        let data = to_json(&CursorEntry { at: at.to_string() });
        self.put(&self.cursors, log, data, Some(entry.map_or(Expected::Absent, Expected::At))).await
    }

    /// Deletes a cursor. A cursor that does not exist is no error.
    ///
    /// Errors: those of the engine.
    pub async fn delete_cursor(&self, log: &ChannelName) -> Result<(), Error> {
        self.engine.append(&self.cursors, NewPublication::deletion(log.as_str().into())).await.map(drop)
    }

    /// Registers a channel whose next publication may be an event.
    ///
    /// The first registration stores the end of the log. A later one only renews the time, because its node cannot
    /// know which events are unsent.
    ///
    /// Errors: those of the engine; [`Code::TooMany`] if too many channels are registered.
    pub async fn register(&self, log: &ChannelName) -> Result<(), Error> {
        let top = self.engine.newest(log).await?.top;
        let first = to_json(&RegistrationEntry { from: Some(top.to_string()) });
        match self.put(&self.registrations, log, first, Some(Expected::Absent)).await {
            Err(error) if error.code == Code::PreconditionFailed => {
                self.put(&self.registrations, log, to_json(&RegistrationEntry::default()), None).await.map(drop)
            }
            registered => registered.map(drop),
        }
    }

    /// Deletes a registration, unless a node has renewed it since. Returns whether it is deleted.
    ///
    /// Errors: those of the engine.
    pub async fn unregister(&self, log: &ChannelName, entry: Position) -> Result<bool, Error> {
        let mut deletion = NewPublication::deletion(log.as_str().into());
        deletion.expected = Some(Expected::At(entry));
        match self.engine.append(&self.registrations, deletion).await {
            Err(error) if error.code == Code::PreconditionFailed => Ok(false),
            deleted => deleted.map(|_| true),
        }
    }

    /// Returns the registrations after `since`, and where the next read continues. Start with [`Since::State`].
    ///
    /// Errors: those of the engine.
    pub async fn registrations(&self, mut since: Since) -> Result<(Vec<Registration>, Since), Error> {
        let mut found = Vec::new();
        loop {
            let page = self.engine.page(&self.registrations, since, Policy::Every, PAGE).await?;
            let registration = |entry: &Publication| {
                let channel = ChannelName::parse(entry.key.as_deref()?).ok()?;
                let RegistrationEntry { from } = serde_json::from_slice(entry.data()).ok()?;
                let from = from.and_then(|from| from.parse().ok());
                let position = Position { epoch: page.end.epoch, offset: entry.offset };
                Some(Registration { channel, from, entry: position, touched_ms: entry.time_ms })
            };
            let entries = page.publications.iter().filter(|entry| !entry.is_deletion);
            found.extend(entries.filter_map(registration));
            let is_last = !matches!(page.part, Part::State { .. }) && !page.has_more();
            since = match page.next() {
                Since::Position(at) => Since::StateOr(at),
                place => place,
            };
            if is_last {
                return Ok((found, since));
            }
        }
    }

    async fn put(
        &self,
        state: &ChannelName,
        key: &ChannelName,
        data: Vec<u8>,
        expected: Option<Expected>,
    ) -> Result<Position, Error> {
        let publication =
            NewPublication { key: Some(key.as_str().into()), expected, ..NewPublication::new(Kind::Json, data) };
        self.engine.append(state, publication).await
    }
}

/// Reads a whole state. Returns the newest entry of each key in the order of offsets, and the end of the log.
///
/// Errors: those of the engine.
pub(crate) async fn read_state(
    engine: &dyn Engine,
    state: &ChannelName,
) -> Result<(Vec<Publication>, Position), Error> {
    let mut since = Since::State;
    let mut entries: HashMap<Box<str>, Publication> = HashMap::new();
    loop {
        let page = engine.page(state, since, Policy::Every, PAGE).await?;
        if page.gap.is_some() {
            entries.clear();
        }
        for entry in &page.publications {
            let Some(key) = &entry.key else { continue };
            match entry.is_deletion {
                true => drop(entries.remove(key)),
                false => drop(entries.insert(key.clone(), entry.clone())),
            }
        }
        since = page.next();
        if !matches!(page.part, Part::State { .. }) {
            let mut entries: Vec<Publication> = entries.into_values().collect();
            entries.sort_by_key(|entry| entry.offset);
            return Ok((entries, page.end));
        }
    }
}

pub(crate) fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text always serializes into memory")
}
