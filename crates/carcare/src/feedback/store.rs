//! The channels of the driving feedback in the engine.

use std::sync::Arc;

use millrace_delivery::PageLimit;
use millrace_driving::Car;
use millrace_engine::{Engine, StateChanges, state_changes};
use millrace_protocol::{
    ChannelName, Error, Expected, Kind, NewPublication, Position, Publication, Since, session::Policy,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::channels::{LEADER, STATES};

const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };

/// Entry of the state [`STATES`].
#[derive(Serialize, Deserialize)]
struct StateEntry<C> {
    /// Position of the last record that the car contains.
    at: String,
    car: C,
}

/// A car as it was stored.
pub struct Stored {
    pub id: String,
    pub at: Position,
    pub car: Car,
    /// Position of the entry, for the next write.
    pub entry: Position,
}

/// Access to the channels of this module.
#[derive(Clone)]
pub struct Store {
    engine: Arc<dyn Engine>,
    states: ChannelName,
    leader: ChannelName,
}

/// Records of a car that this node has not taken.
pub struct Missed {
    pub records: Vec<Publication>,
    /// Position of the last one.
    pub end: Position,
    pub has_more: bool,
    /// Position of the record behind the newest event of the car.
    pub published: Option<Position>,
}

/// Returns the channel with the records of a car. Errors: `bad_channel`.
fn telemetry_of(id: &str) -> Result<ChannelName, Error> {
    ChannelName::parse(&format!("cars/{id}/telemetry"))
}

/// Returns the channel with the events of a car. Errors: `bad_channel`.
pub fn events_of(id: &str) -> Result<ChannelName, Error> {
    ChannelName::parse(&format!("cars/{id}/events"))
}

impl Store {
    pub fn new(engine: Arc<dyn Engine>) -> Self {
        let name = |name| ChannelName::parse(name).expect("a channel name");
        Self { engine, states: name(STATES), leader: name(LEADER) }
    }

    /// Makes this node the one that follows the cars. Returns the position of its entry; `None` if no other node can
    /// share the engine.
    ///
    /// Errors: those of the engine.
    pub async fn begin_term(&self) -> Result<Option<Position>, Error> {
        self.write_leader(None).await
    }

    /// Renews the entry of this node.
    ///
    /// Errors: [`millrace_protocol::Code::PreconditionFailed`] if another node follows the cars since; those of the
    /// engine.
    pub async fn renew_term(&self, entry: Option<Position>) -> Result<Option<Position>, Error> {
        match entry {
            Some(entry) => self.write_leader(Some(Expected::At(entry))).await,
            None => Ok(None),
        }
    }

    async fn write_leader(&self, expected: Option<Expected>) -> Result<Option<Position>, Error> {
        let Some(node) = self.engine.node() else { return Ok(None) };
        let json = json!({ "node": node }).to_string();
        let key = Some("leader".into());
        let publication = NewPublication { key, expected, ..NewPublication::new(Kind::Json, json) };
        self.engine.append(&self.leader, publication).await.map(Some)
    }

    /// Returns all stored cars. Entries that this version does not understand are left out.
    ///
    /// Errors: those of the engine.
    pub async fn cars(&self) -> Result<Vec<Stored>, Error> {
        let (entries, _, epoch_end) = self.changes(&self.states, Since::State).await?;
        let stored = |entry: Publication| {
            let id = entry.key.as_deref()?.to_owned();
            let StateEntry { at, car }: StateEntry<Car> = serde_json::from_slice(entry.data()).ok()?;
            let entry = Position { epoch: epoch_end.epoch, offset: entry.offset };
            Some(Stored { id, at: at.parse().ok()?, car, entry })
        };
        Ok(entries.into_iter().filter(|entry| !entry.is_deletion).filter_map(stored).collect())
    }

    /// Writes a car that was read or written at `entry` before. Returns the position of the new entry.
    ///
    /// Errors: [`millrace_protocol::Code::PreconditionFailed`] if another node has written it since; those of the
    /// engine.
    pub async fn write_car(
        &self,
        id: &str,
        at: Position,
        car: &Car,
        entry: Option<Position>,
    ) -> Result<Position, Error> {
        let state = StateEntry { at: at.to_string(), car };
        let data = serde_json::to_vec(&state).expect("a car is a struct, whose fields have names");
        let publication = NewPublication { key: Some(id.into()), ..NewPublication::new(Kind::Json, data) };
        let expected = entry.map_or(Expected::Absent, Expected::At);
        self.engine.append(&self.states, publication.only_if(expected)).await
    }

    /// Publishes a value. A repeated `idempotency_key` publishes nothing.
    ///
    /// Errors: those of the engine.
    pub async fn publish(&self, to: &ChannelName, value: &Value, idempotency_key: String) -> Result<(), Error> {
        let mut publication = NewPublication::new(Kind::Json, value.to_string());
        publication.idempotency_key = Some(idempotency_key.into());
        self.engine.append(to, publication).await.map(drop)
    }

    /// Sets an entry of a state.
    ///
    /// Errors: those of the engine.
    pub async fn set(&self, state: &ChannelName, key: &str, value: &Value, ttl_ms: u64) -> Result<(), Error> {
        let mut publication = NewPublication::new(Kind::Json, value.to_string());
        (publication.key, publication.ttl_ms) = (Some(key.into()), Some(ttl_ms));
        self.engine.append(state, publication).await.map(drop)
    }

    /// Returns the changes of a state after `since`, where the next read continues, and the end of the log. Start with
    /// [`Since::State`].
    ///
    /// Errors: those of the engine.
    pub async fn changes(
        &self,
        state: &ChannelName,
        since: Since,
    ) -> Result<(Vec<Publication>, Since, Position), Error> {
        let StateChanges { publications, next, end, .. } = state_changes(&*self.engine, state, since).await?;
        Ok((publications, next, end))
    }

    /// Returns the records of a car after a position.
    ///
    /// Errors: those of the engine.
    pub async fn missed(&self, id: &str, after: Since) -> Result<Missed, Error> {
        let page = self.engine.page(&telemetry_of(id)?, after, Policy::Every, PAGE).await?;
        let (has_more, end) = (page.has_more(), page.end);
        // The event of a record is younger than the record, so a car without new records has no new events.
        let published = match page.publications.is_empty() {
            true => None,
            false => self.newest_event(&events_of(id)?).await?,
        };
        Ok(Missed { records: page.publications, end, has_more, published })
    }

    /// Returns the position of the record behind the newest event of a car.
    ///
    /// Errors: those of the engine.
    async fn newest_event(&self, events: &ChannelName) -> Result<Option<Position>, Error> {
        let newest = self.engine.newest(events).await?.publication;
        let record = |event: Publication| {
            let event: Value = serde_json::from_slice(event.data()).ok()?;
            event.get("record")?.as_str()?.parse().ok()
        };
        Ok(newest.and_then(record))
    }
}
