//! The owners of all rooms, in a keyed state of the engine that only compare-and-set changes.

use std::collections::HashMap;

use millrace_engine::{Engine, StateChanges};
use millrace_protocol::{ChannelName, Code, Epoch, Error, Expected, Kind, NewPublication, Position, Since};
use millrace_room::ownership::{Condition, Lease, Write, Written};
use serde::{Deserialize, Serialize};

/// State with one key per room.
const OWNERS: &str = ":millrace/room-owners";
/// Time after which the entry of a room expires that no node renews or takes over, in milliseconds.
const TTL_MS: u64 = 60_000;

#[derive(Serialize, Deserialize)]
struct Entry {
    /// SFU of the owner: `{node}.{shard}`.
    node: Box<str>,
    /// Offset of the claim; 0 in the claim itself.
    epoch: u64,
}

/// Known owners of rooms.
pub(super) struct Leases {
    state: ChannelName,
    since: Since,
    /// Epoch of the state's log, unknown before the first read.
    epoch: Option<Epoch>,
    known: HashMap<Box<str>, Lease>,
}

impl Leases {
    pub fn new() -> Self {
        let state = ChannelName::parse(OWNERS).expect("a channel name");
        Self { state, since: Since::State, epoch: None, known: HashMap::new() }
    }

    pub fn place(&self) -> (ChannelName, Since) {
        (self.state.clone(), self.since)
    }

    pub fn get(&self, room: &str) -> Option<&Lease> {
        self.known.get(room)
    }

    /// Takes over the changes of a read. Returns true if the log has begun anew, so that earlier offsets are void.
    pub fn take(&mut self, changes: &StateChanges) -> bool {
        if changes.is_whole {
            self.known.clear();
        }
        for publication in &changes.publications {
            let Some(room) = publication.key.as_deref() else { continue };
            match decode(publication.data(), publication.offset).filter(|_| !publication.is_deletion) {
                Some(lease) => drop(self.known.insert(room.into(), lease)),
                None => drop(self.known.remove(room)),
            }
        }
        let before = self.epoch.replace(changes.end.epoch);
        self.since = changes.next;
        before.is_some_and(|before| before != changes.end.epoch)
    }

    /// Returns the publication of a write; `None` before the first read.
    pub fn publication(&self, room: &str, node: &str, condition: Condition, write: Write) -> Option<NewPublication> {
        let expected = match condition {
            Condition::Absent => Expected::Absent,
            Condition::At(offset) => Expected::At(Position { epoch: self.epoch?, offset }),
        };
        let entry = |epoch| serde_json::to_vec(&Entry { node: node.into(), epoch }).unwrap_or_default();
        let mut publication = match write {
            Write::Claim => NewPublication::new(Kind::Json, entry(0)),
            Write::Renew { epoch } => NewPublication::new(Kind::Json, entry(epoch)),
            Write::Release => NewPublication::deletion(room.into()),
        };
        publication.key = Some(room.into());
        if write != Write::Release {
            publication.ttl_ms = Some(TTL_MS);
        }
        Some(publication.only_if(expected))
    }
}

/// Writes an entry.
pub(super) async fn write(engine: &dyn Engine, state: &ChannelName, publication: NewPublication) -> Written {
    match engine.append(state, publication).await {
        Ok(position) => Written::At(position.offset),
        Err(Error { code: Code::PreconditionFailed, .. }) => Written::Conflict,
        Err(error) => {
            tracing::debug!(%error, "the owner of a room cannot be written");
            Written::Failed
        }
    }
}

fn decode(data: &[u8], offset: u64) -> Option<Lease> {
    let Entry { node, epoch } = serde_json::from_slice(data).ok()?;
    Some(Lease { node, epoch: if epoch == 0 { offset } else { epoch }, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_of_claim_is_the_epoch() {
        let mut leases = Leases::new();
        assert!(leases.publication("r", "ab.0", Condition::At(3), Write::Claim).is_none(), "nothing was read yet");
        leases.epoch = Some(Epoch(1));
        let claim = leases.publication("r", "ab.0", Condition::Absent, Write::Claim).unwrap();
        assert_eq!((claim.key.as_deref(), claim.expected), (Some("r"), Some(Expected::Absent)));
        let lease = |epoch, offset| Some(Lease { node: "ab.0".into(), epoch, offset });
        assert_eq!(decode(&claim.data, 7), lease(7, 7));
        let renewal = leases.publication("r", "ab.0", Condition::At(7), Write::Renew { epoch: 7 }).unwrap();
        assert_eq!(decode(&renewal.data, 9), lease(7, 9));
        assert_eq!(renewal.expected, Some(Expected::At(Position { epoch: Epoch(1), offset: 7 })));
        assert_eq!(decode(b"[]", 9), None);
    }
}
