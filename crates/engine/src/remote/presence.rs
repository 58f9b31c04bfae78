use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use millrace_protocol::ChannelName;
use tokio::{
    sync::mpsc::{Sender, UnboundedSender, channel as bounded, unbounded_channel},
    time::timeout,
};

use super::{Broker, BrokerError, Deliver, Shared};

/// Timeout for the answers of other nodes.
const ANSWERS: Duration = Duration::from_millis(300);

/// Maximum number of queued questions. Further questions are not answered.
const QUESTIONS_MAX: usize = 1000;

/// Questions and answers between nodes about the number of readers of a channel.
///
/// ```text
/// ask NUMBER NODE CHANNEL    to all nodes; answers go to NODE
/// say NUMBER NODE COUNT      to the node that asked, from NODE
/// ```
#[derive(Default)]
pub(super) struct Presence {
    next: AtomicU64,
    /// Questions of this node that wait for answers.
    asked: Mutex<HashMap<u64, UnboundedSender<(String, u32)>>>,
    /// Queue for the questions of other nodes.
    questions: Mutex<Option<Sender<Question>>>,
}

/// A question of another node.
pub(super) struct Question {
    pub number: u64,
    pub node: String,
    pub channel: ChannelName,
}

impl Presence {
    /// Sends later questions to this queue.
    pub fn answer_with(&self, sender: Sender<Question>) {
        *lock(&self.questions) = Some(sender);
    }

    /// Handles a message from another node or from this one. Ignores malformed messages.
    pub fn hear(&self, message: &str) {
        let mut words = message.splitn(4, ' ');
        let (Some(verb), Some(number), Some(node), Some(rest)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        let Ok(number) = number.parse() else { return };
        let is_name = !node.is_empty() && node.len() <= 64 && node.bytes().all(|b| b.is_ascii_hexdigit());
        match verb {
            "ask" if is_name => {
                if let (Ok(channel), Some(questions)) = (ChannelName::parse(rest), &*lock(&self.questions)) {
                    let _ = questions.try_send(Question { number, node: node.into(), channel });
                }
            }
            "say" if is_name => {
                if let (Ok(count), Some(asked)) = (rest.parse(), lock(&self.asked).get(&number)) {
                    let _ = asked.send((node.into(), count));
                }
            }
            _ => {}
        }
    }
}

impl<B: Broker, D: Deliver> Shared<B, D> {
    /// Answers the questions of other nodes. Never returns.
    pub async fn answer_questions(&self) {
        let (sender, mut questions) = bounded(QUESTIONS_MAX);
        self.local.presence.answer_with(sender);
        while let Some(Question { number, node, channel }) = questions.recv().await {
            if node != self.node {
                let count = self.local.deliver.readers(&channel);
                let _ = self.broker.tell(Some(&node), &format!("say {number} {} {count}", self.node)).await;
            }
        }
    }

    /// Asks all nodes, and waits for the answers of those that have a lease.
    pub async fn presence(&self, channel: &ChannelName) -> Result<u32, BrokerError> {
        let presence = &self.local.presence;
        let number = presence.next.fetch_add(1, Relaxed);
        let (sender, mut answers) = unbounded_channel();
        lock(&presence.asked).insert(number, sender);
        let _forget = Forget(presence, number);
        let mut missing: HashSet<String> = self.renew().await?.nodes.into_iter().collect();
        missing.remove(&self.node);
        let mut count = self.local.deliver.readers(channel);
        if missing.is_empty() {
            return Ok(count);
        }
        self.broker.tell(None, &format!("ask {number} {} {channel}", self.node)).await?;
        let all = async {
            while !missing.is_empty()
                && let Some((node, readers)) = answers.recv().await
            {
                if missing.remove(&node) {
                    count = count.saturating_add(readers);
                }
            }
        };
        let _ = timeout(ANSWERS, all).await;
        Ok(count)
    }
}

/// Removes the question when it is dropped.
struct Forget<'a>(&'a Presence, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(&self.0.asked).remove(&self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
