use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use millrace_protocol::ChannelName;
use tokio::time::{Instant, timeout};

use super::{
    broker::{Broker, BrokerError, Lease},
    shared::Shared,
};
use crate::{Deliver, NodeAnswers};

/// Duration of a node's lease, and interval between its renewals.
const LEASE: Duration = Duration::from_secs(5);
pub(super) const RENEW: Duration = Duration::from_secs(1);
/// Interval between two counts of the channels.
const COUNT: Duration = Duration::from_secs(5);
/// Timeout for the answers of other nodes about the readers of a channel.
const ANSWERS: Duration = Duration::from_millis(300);
/// Number of failed lease renewals between two log lines about an engine that does not answer.
const REPORT_EVERY: usize = 10;
pub(super) const NO_ANSWER: &str = "no answer";
/// Minimum interval at which the channel counts of holders are halved. The interval is `history.age_max`, if that is
/// longer.
const FADE_MIN: Duration = Duration::from_secs(60);

impl<B: Broker, D: Deliver> Shared<B, D> {
    pub async fn renew(&self) -> Result<Lease, BrokerError> {
        let asked = std::time::Instant::now();
        let lease = self.broker.renew(LEASE).await;
        self.is_leased.store(lease.is_ok(), Relaxed);
        if let Ok(lease) = &lease {
            self.local.clock.set(lease.now_ms, asked.elapsed());
        }
        lease
    }

    /// Returns the number of subscriptions of a channel on all live nodes.
    pub async fn presence(&self, channel: &ChannelName) -> Result<u32, BrokerError> {
        let elsewhere = self.ask_nodes(channel.as_str(), ANSWERS).await?.answers;
        let counts = elsewhere.iter().filter_map(|answer| answer.text.parse::<u32>().ok());
        Ok(counts.fold(self.local.deliver.readers(channel), u32::saturating_add))
    }

    /// Asks the other nodes that have a lease; see [`Engine::ask_nodes`](crate::Engine::ask_nodes).
    pub async fn ask_nodes(&self, question: &str, wait: Duration) -> Result<NodeAnswers, BrokerError> {
        let mut others: HashSet<String> = self.renew().await?.nodes.into_iter().collect();
        others.remove(&self.node);
        self.local.questions.ask(&self.broker, &self.node, (None, others), question, wait).await
    }

    pub async fn ask_node(&self, to: String, question: &str, wait: Duration) -> Result<Option<String>, BrokerError> {
        let asked = (Some(to.as_str()), HashSet::from([to.clone()]));
        let mut answers = self.local.questions.ask(&self.broker, &self.node, asked, question, wait).await?;
        Ok(answers.answers.pop().map(|answer| answer.text))
    }

    pub async fn keep_lease(self: Arc<Self>) {
        let mut counted = None::<Instant>;
        let (fade, mut faded) = (self.config.history.age_max.max(FADE_MIN), Instant::now());
        loop {
            let renewed = timeout(LEASE, self.renew()).await;
            match renewed {
                Ok(Ok(_)) => {
                    self.report_answer();
                    if counted.is_none_or(|at| at.elapsed() >= COUNT) {
                        let created = self.created.load(Relaxed);
                        if let Ok(count) = self.broker.count().await {
                            // The answer may lack channels that this node created during the request. It may also
                            // include channels that this node has not counted yet, because their answers are in
                            // flight.
                            let during = self.created.load(Relaxed) - created;
                            let least = count.saturating_sub(self.appends.flying());
                            let estimate = self.count.load(Relaxed);
                            let change = estimate.clamp(least, count + during).wrapping_sub(estimate);
                            self.count.fetch_add(change, Relaxed);
                            counted = Some(Instant::now());
                        }
                    }
                }
                failed => {
                    self.is_leased.store(false, Relaxed);
                    if (self.attempts.fetch_add(1, Relaxed) + 1).is_multiple_of(REPORT_EVERY) {
                        let why = match failed {
                            Ok(Err(BrokerError::Unavailable(why))) => why,
                            Ok(Err(BrokerError::Refused(error))) => error.detail,
                            _ => NO_ANSWER.into(),
                        };
                        self.report_absence(&why);
                    }
                }
            }
            if B::FORGETS && faded.elapsed() >= fade {
                self.shares.fade();
                faded = Instant::now();
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    pub fn report_absence(&self, why: &str) {
        let (engine, attempt) = (&self.url, self.attempts.load(Relaxed));
        let wait = humantime::format_duration(self.config.wait);
        tracing::warn!(
            %engine, attempt, why,
            "the engine does not respond; retrying every second. Until it responds, publishing and history are refused with 503 \
             after {wait}, and subscribers receive nothing new"
        );
    }

    pub fn report_answer(&self) {
        let attempts = self.attempts.swap(0, Relaxed);
        if attempts > 1 {
            tracing::info!(engine = %self.url, attempts, "the engine responds again");
        }
    }
}
