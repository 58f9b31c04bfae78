//! This node's indexes of keyed states.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::{ChannelName, Epoch};

use super::{state_index::StateIndex, wire::Batch};

/// Time after which an unused index is dropped, unless one of its keys has a time to live or the channel is read here.
const IDLE_MAX: Duration = Duration::from_secs(10 * 60);
/// Indexes of the states that this node uses.
#[derive(Default)]
pub struct States(Mutex<HashMap<ChannelName, Arc<StateSlot>>>);

/// The index of one state.
pub struct StateSlot {
    /// `None` until the state is used first. Locked during an append, so that this node does not compete with itself.
    index: tokio::sync::Mutex<Option<StateIndex>>,
    used: Mutex<Instant>,
}

impl States {
    /// Returns the slot of a channel, which need not be read yet.
    pub fn of(&self, channel: &ChannelName) -> Arc<StateSlot> {
        let new = || Arc::new(StateSlot { index: tokio::sync::Mutex::default(), used: Mutex::new(Instant::now()) });
        let slot = self.lock().entry(channel.clone()).or_insert_with(new).clone();
        *slot.used() = Instant::now();
        slot
    }

    /// Reads a message that another node has just stored, if it is the next one.
    pub fn observe(&self, channel: &ChannelName, epoch: Epoch, sequence: u64, batch: &Batch, kept: usize) {
        let Some(slot) = self.lock().get(channel).cloned() else { return };
        if let Ok(mut index) = slot.index.try_lock()
            && let Some(index) = index.as_mut()
            && index.tail().epoch == epoch
            && index.tail().sequence < sequence
            && index.is_followed_by(batch)
        {
            index.read(sequence, batch, kept);
        }
    }

    /// Returns all slots with their channels.
    pub fn all(&self) -> Vec<(ChannelName, Arc<StateSlot>)> {
        self.lock().iter().map(|(channel, slot)| (channel.clone(), slot.clone())).collect()
    }

    /// Drops idle indexes.
    pub fn forget_idle(&self, is_read: impl Fn(&ChannelName) -> bool) {
        self.lock().retain(|channel, slot| {
            let is_idle = slot.used().elapsed() > IDLE_MAX && !is_read(channel);
            !is_idle || slot.index.try_lock().map_or(true, |index| index.as_ref().is_some_and(StateIndex::will_expire))
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ChannelName, Arc<StateSlot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateSlot {
    pub async fn lock(&self) -> tokio::sync::MutexGuard<'_, Option<StateIndex>> {
        self.index.lock().await
    }

    fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
