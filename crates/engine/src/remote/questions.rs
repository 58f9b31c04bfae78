use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use millrace_protocol::ChannelName;
use tokio::{
    sync::mpsc::{Sender, channel as bounded},
    time::{Instant, timeout},
};

use super::broker::{Broker, BrokerError};
use crate::{Answerer, NodeAnswer, NodeAnswers};

/// Maximum number of queued questions. Further questions are not answered.
const QUESTIONS_MAX: usize = 1000;
/// Maximum number of questions that this node answers at the same time.
const ANSWERING_MAX: usize = 64;
/// Maximum number of answers that wait for the asking task. A cluster has fewer nodes.
const ANSWERS_MAX: usize = 1000;
/// Maximum length of a question or an answer, in bytes. A NATS server takes messages of 1 MiB by default.
pub(super) const TEXT_BYTES_MAX: usize = 768 * 1024;

/// Questions and answers between the nodes of a cluster.
///
/// ```text
/// ask NUMBER NODE QUESTION    to all nodes, or to one; answers go to NODE
/// say NUMBER NODE ANSWER      to the node that asked, from NODE
/// ```
///
/// A question that is a channel name asks for the number of the channel's readers; every version answers it. All other
/// questions belong to the [`Answerer`] of the node. A node that does not know a question sends no answer.
#[derive(Default)]
pub(super) struct Questions {
    next: AtomicU64,
    /// Questions of this node that wait for answers.
    asked: Mutex<HashMap<u64, Sender<(String, String)>>>,
    /// Queue for the questions of other nodes.
    questions: Mutex<Option<Sender<Question>>>,
    answerer: Mutex<Option<Answerer>>,
}

/// A question of another node.
struct Question {
    number: u64,
    node: String,
    text: String,
}

impl Questions {
    /// Sets the function that answers questions other than channel names.
    pub fn set_answerer(&self, answerer: Answerer) {
        *lock(&self.answerer) = Some(answerer);
    }

    /// Handles a message from another node or from this one. Ignores malformed messages.
    pub fn on_message(&self, message: &str) {
        let mut words = message.splitn(4, ' ');
        let (Some(verb), Some(number), Some(node), Some(text)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        let Ok(number) = number.parse() else { return };
        let is_name = !node.is_empty() && node.len() <= 64 && node.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_name || text.len() > TEXT_BYTES_MAX {
            return;
        }
        let (node, text) = (node.to_owned(), text.to_owned());
        match verb {
            "ask" => {
                if let Some(questions) = &*lock(&self.questions) {
                    let _ = questions.try_send(Question { number, node, text });
                }
            }
            "say" => {
                if let Some(asked) = lock(&self.asked).get(&number) {
                    let _ = asked.try_send((node, text));
                }
            }
            _ => {}
        }
    }

    /// Answers the questions of other nodes. `readers` returns the number of readers on this node. Never returns.
    pub async fn answer_questions(&self, broker: &impl Broker, node: &str, readers: impl Fn(&ChannelName) -> u32) {
        let (sender, mut questions) = bounded(QUESTIONS_MAX);
        *lock(&self.questions) = Some(sender);
        let mut answering = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(()) = answering.next() => {}
                Some(Question { number, node: asker, text }) = questions.recv(), if answering.len() < ANSWERING_MAX => {
                    if asker == node {
                        continue;
                    }
                    let readers = &readers;
                    answering.push(async move {
                        let answer = match ChannelName::parse(&text) {
                            Ok(channel) => Some(readers(&channel).to_string()),
                            Err(_) => self.answer(text).await,
                        };
                        if let Some(answer) = answer.filter(|answer| answer.len() <= TEXT_BYTES_MAX) {
                            let _ = broker.send(Some(&asker), &format!("say {number} {node} {answer}")).await;
                        }
                    });
                }
                else => std::future::pending().await,
            }
        }
    }

    async fn answer(&self, text: String) -> Option<String> {
        let answerer = lock(&self.answerer).clone()?;
        answerer(text).await
    }

    /// Asks all nodes, or the node `to`, and collects the answers. Waits for `nodes`, the other nodes that were asked
    /// and have a lease, for at most `wait`.
    pub async fn ask(
        &self,
        broker: &impl Broker,
        node: &str,
        (to, mut nodes): (Option<&str>, HashSet<String>),
        text: &str,
        wait: Duration,
    ) -> Result<NodeAnswers, BrokerError> {
        let mut answers = Vec::with_capacity(nodes.len());
        if nodes.is_empty() {
            return Ok(NodeAnswers::default());
        }
        let number = self.next.fetch_add(1, Relaxed);
        let (sender, mut incoming) = bounded(ANSWERS_MAX);
        lock(&self.asked).insert(number, sender);
        let _forget = Forget(self, number);
        let began = Instant::now();
        broker.send(to, &format!("ask {number} {node} {text}")).await?;
        let all = async {
            while !nodes.is_empty()
                && let Some((node, text)) = incoming.recv().await
            {
                if nodes.remove(&node) {
                    answers.push(NodeAnswer { node, text, round_trip: began.elapsed() });
                }
            }
        };
        let _ = timeout(wait, all).await;
        let mut missing: Vec<String> = nodes.into_iter().collect();
        missing.sort();
        answers.sort();
        Ok(NodeAnswers { answers, missing })
    }
}

/// Removes the question when it is dropped.
struct Forget<'a>(&'a Questions, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(&self.0.asked).remove(&self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_messages_are_ignored() {
        let questions = Questions::default();
        let (sender, mut queued) = bounded(10);
        *lock(&questions.questions) = Some(sender);
        let (answers, mut answered) = bounded(10);
        lock(&questions.asked).insert(7, answers);
        let long = format!("say 7 ab {}", "x".repeat(TEXT_BYTES_MAX + 1));
        for message in [
            "",
            " ",
            "ask",
            "ask 7",
            "ask 7 ab",
            "say 7 ab",
            "ask x ab a",
            "ask -1 ab a",
            "ask 7  a",
            "ask 7 xyz a",
            "tell 7 ab a",
            "ask 99999999999999999999 ab a",
            "say 8 ab 1",
            &format!("ask 7 {} a", "a".repeat(65)),
            &long,
        ] {
            questions.on_message(message);
        }
        assert!(queued.try_recv().is_err() && answered.try_recv().is_err());
        questions.on_message("ask 7 ab {\"a\": 1}");
        questions.on_message("say 7 ab 5");
        assert_eq!(queued.try_recv().unwrap().text, "{\"a\": 1}");
        assert_eq!(answered.try_recv().unwrap(), ("ab".to_owned(), "5".to_owned()));
    }
}
