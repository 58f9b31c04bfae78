//! Hand-over of all channels to the engine of another process, and their arrival there.

use std::{
    io,
    sync::{Arc, PoisonError},
};

use hashbrown::HashTable;
use millrace_delivery::History;
use millrace_protocol::ChannelName;

use super::{Deliver, MemoryEngine, Stripe, lock};
use crate::{
    Engine,
    hand_over::{Ending, HandOver, Inherited, SavedChannel},
};

impl<D: Deliver> MemoryEngine<D> {
    /// Sends all channels, one stripe after another. The channels of a stripe wait for the new process from then on.
    /// While a stripe is sent, publications into its channels block their thread.
    pub(super) fn send_channels(&self, to: &HandOver) -> io::Result<()> {
        *self.successor.write().unwrap_or_else(PoisonError::into_inner) = Some(to.successor.clone());
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            for channel in &stripe.channels {
                let (name, holder) = (channel.name.to_string(), channel.holder);
                to.send(SavedChannel { name, holder, history: channel.history.save() })?;
            }
            let Stripe { channels, by_name, handed_over } = &mut *stripe;
            *handed_over = Some(std::mem::take(channels));
            *by_name = HashTable::new();
        }
        to.end(Ending { epoch: self.epoch, forgotten: *lock(&self.forgotten) })
    }

    /// Ends [`MemoryEngine::send_channels`] as if it had not happened.
    pub(super) fn restore_channels(&self) {
        for stripe in &self.stripes {
            let mut stripe = lock(stripe);
            for channel in stripe.handed_over.take().unwrap_or_default() {
                let (_, hash) = self.stripe(&channel.name);
                stripe.insert(channel, hash, &self.hasher);
            }
        }
        *self.successor.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the engine of the new process, if the hand-over has begun.
    pub(super) fn handed_over_to(&self) -> Option<Arc<dyn Engine>> {
        self.successor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the channels of the engine of an old process. The engine is new and has the epoch of the old one.
    ///
    /// Errors: a channel that is malformed.
    pub(crate) fn inherit(&self, inherited: Inherited) -> io::Result<()> {
        *lock(&self.forgotten) = inherited.ending.forgotten;
        for SavedChannel { name, holder, history } in inherited.channels {
            let malformed = || io::Error::other(format!("the history of {name} is malformed"));
            let history = History::restore(history).ok_or_else(malformed)?;
            let name = ChannelName::parse(&name).map_err(io::Error::other)?;
            let (number, hash) = self.stripe(&name);
            self.create(&mut lock(&self.stripes[number]), hash, &name, holder, history);
        }
        Ok(())
    }
}
