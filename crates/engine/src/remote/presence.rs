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

use super::broker::{Broker, BrokerError};

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
struct Question {
    number: u64,
    node: String,
    channel: ChannelName,
}

impl Presence {
    /// Handles a message from another node or from this one. Ignores malformed messages.
    pub fn on_message(&self, message: &str) {
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

    /// Answers the questions of other nodes. `readers` returns the number of readers on this node. Never returns.
    pub async fn answer_questions(&self, broker: &impl Broker, node: &str, readers: impl Fn(&ChannelName) -> u32) {
        let (sender, mut questions) = bounded(QUESTIONS_MAX);
        *lock(&self.questions) = Some(sender);
        while let Some(Question { number, node: asker, channel }) = questions.recv().await {
            if asker != node {
                let count = readers(&channel);
                let _ = broker.send(Some(&asker), &format!("say {number} {node} {count}")).await;
            }
        }
    }

    /// Asks all nodes for their readers of a channel, and returns the sum of their answers. Waits for `nodes`, the
    /// other nodes that have a lease, for at most [`ANSWERS`].
    pub async fn readers_of(
        &self,
        broker: &impl Broker,
        node: &str,
        mut nodes: HashSet<String>,
        channel: &ChannelName,
    ) -> Result<u32, BrokerError> {
        if nodes.is_empty() {
            return Ok(0);
        }
        let number = self.next.fetch_add(1, Relaxed);
        let (sender, mut answers) = unbounded_channel();
        lock(&self.asked).insert(number, sender);
        let _forget = Forget(self, number);
        broker.send(None, &format!("ask {number} {node} {channel}")).await?;
        let mut count = 0u32;
        let all = async {
            while !nodes.is_empty()
                && let Some((node, readers)) = answers.recv().await
            {
                if nodes.remove(&node) {
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
