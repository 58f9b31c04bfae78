use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use millrace_protocol::{ChannelName, Holder};

use super::{
    append_queues::AppendQueues,
    broker::{Broker, Event},
    clock::Clock,
    questions::Questions,
    retry::RequestCounts,
    subscription_manager::SubscriptionManager,
};
use crate::{Config, Deliver, mirror::Mirror, shares::Shares};

/// State shared by the tasks of an engine.
pub(super) struct Shared<B: Broker, D: Deliver> {
    pub broker: B,
    /// URL for logs, without user and password.
    pub url: String,
    pub node: String,
    pub config: Config,
    pub local: Arc<Local<D>>,
    pub appends: AppendQueues,
    /// Approximate number of channels with history. `created` counts those that this node has created since its start.
    pub count: AtomicUsize,
    /// Attempts to reach the broker since its last answer; 0 while it answers.
    pub attempts: AtomicUsize,
    pub created: AtomicUsize,
    /// Number of channels that each holder has created on this node. The counts are halved regularly if the broker
    /// expires channels.
    pub shares: Shares,
    /// True if the last attempt to renew the lease succeeded.
    pub is_leased: AtomicBool,
    /// True while a task deletes expired keys.
    pub is_expiring: AtomicBool,
    pub counts: RequestCounts,
}

/// State that events change. It exists before the broker does.
pub(super) struct Local<D: Deliver> {
    pub deliver: Arc<D>,
    pub mirror: Mirror<D>,
    pub keeper: SubscriptionManager,
    pub questions: Questions,
    pub clock: Clock,
}

impl<B: Broker, D: Deliver> Shared<B, D> {
    /// Returns the approximate number of channels with history.
    pub fn used(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub fn may_create(&self, holder: Holder, channel: &ChannelName) -> bool {
        self.shares.may_create(holder, self.shares.namespace(channel), self.used())
    }

    /// Counts a channel that this node has created.
    pub fn created(&self, holder: Holder, channel: &ChannelName) {
        self.created.fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.shares.take(holder, self.shares.namespace(channel));
    }

    pub fn bounds(&self, channel: &ChannelName) -> millrace_delivery::Bounds {
        self.config.bounds(channel)
    }
}

impl<D: Deliver> Local<D> {
    pub fn on_event(&self, event: Event) {
        match event {
            Event::Published { channel, epoch, publication } => {
                let is_matched = self.keeper.matches(&channel);
                if self.mirror.receive(&channel, epoch, publication, self.clock.now_ms(), is_matched) {
                    self.keeper.overtaken.notify_one();
                }
            }
            Event::Message(message) => self.questions.on_message(&message),
            Event::LinkLost => {
                self.keeper.link(false);
                self.mirror.part();
            }
            Event::LinkBack => self.keeper.link(true),
        }
    }
}
