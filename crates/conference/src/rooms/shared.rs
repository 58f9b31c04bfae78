use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use millrace_engine::{HolderCounts, may_take};
use millrace_protocol::{Code, Error, Holder};

use super::Config;

/// State of rooms shared by all shards of a node.
pub struct Shared {
    pub(super) config: Config,
    /// Number of rooms of all shards.
    count: AtomicUsize,
    /// Number of rooms of each holder.
    held: HolderCounts,
    /// Number of rooms that are mixed now.
    mixers: AtomicUsize,
}

/// Slot of one mixer; dropping it frees the slot.
pub(crate) struct MixerSlot(Arc<Shared>);

impl Drop for MixerSlot {
    fn drop(&mut self) {
        self.0.mixers.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    pub fn new(config: Config) -> Arc<Self> {
        let (count, mixers, held) = Default::default();
        Arc::new(Self { config, count, held, mixers })
    }

    /// Counts one more room. A holder of many rooms leaves the last free ones to other holders, as with channels.
    ///
    /// Errors: [`Code::TooMany`].
    pub(super) fn open(&self, holder: Holder) -> Result<(), Error> {
        let used = self.count.fetch_add(1, Relaxed);
        let checked = self.check(holder, used);
        match checked {
            Ok(()) => self.held.take(holder),
            Err(_) => drop(self.count.fetch_sub(1, Relaxed)),
        }
        checked
    }

    /// Checks that this holder may open one more room.
    ///
    /// Errors: [`Code::TooMany`].
    pub(super) fn check_free(&self, holder: Holder) -> Result<(), Error> {
        self.check(holder, self.count.load(Relaxed))
    }

    fn check(&self, holder: Holder, used: usize) -> Result<(), Error> {
        let max = self.config.rooms_max;
        let free = max.saturating_sub(used);
        if may_take(max, free, || self.held.of(holder)) {
            return Ok(());
        }
        Err(Error::new(
            Code::TooMany,
            match free {
                0 => format!("this server has {max} rooms already (`rooms.rooms_max`); try again later"),
                _ => {
                    let held = self.held.of(holder);
                    format!(
                        "this client has opened {held} of at most {max} rooms, and the {free} free ones are kept for others"
                    )
                }
            },
        ))
    }

    pub(super) fn close(&self, holder: Holder) {
        self.count.fetch_sub(1, Relaxed);
        self.held.give_back(holder);
    }

    pub(super) fn has_free_mixer(&self) -> bool {
        self.mixers.load(Relaxed) < self.config.mixers_max
    }

    /// Reserves a mixer slot; `None` if all are in use.
    pub(super) fn mixer(self: &Arc<Self>) -> Option<MixerSlot> {
        let slot = MixerSlot(self.clone());
        (self.mixers.fetch_add(1, Relaxed) < self.config.mixers_max).then_some(slot)
    }
}
