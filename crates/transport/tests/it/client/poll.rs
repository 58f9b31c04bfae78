//! Polling and long polling: one request after another, each from the position at which the previous answer ended.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{
    item::{Gap, Item, Message, Positions},
    read_options::{Http, ReadOptions},
};
use crate::server::{Answer, Server, client};

/// Interval between two polls.
const EVERY: Duration = Duration::from_millis(20);

pub struct Poll {
    http: reqwest::Client,
    base: String,
    ask: ReadOptions,
    /// Positions up to which publications were fetched, whether returned yet or not.
    fetched: Positions,
    first: Vec<Item>,
    /// Interval of polling; `None` for long polling.
    every: Option<Interval>,
}

impl Poll {
    /// Opens the reader. The first request never waits: it resolves `now`, `earliest` or a time to positions.
    pub async fn open(server: &Server, ask: &ReadOptions, http: Http, long: bool) -> Self {
        let mut every = interval(EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut this = Self {
            http: client(http == Http::Two),
            base: server.url(""),
            ask: ask.clone(),
            fetched: ask.positions.clone(),
            first: Vec::new(),
            every: (!long).then_some(every),
        };
        this.first = this.fetch("").await;
        this
    }

    pub fn first(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.first)
    }

    pub async fn next(&mut self) -> Vec<Item> {
        match &mut self.every {
            Some(every) => {
                every.tick().await;
                self.fetch("").await
            }
            None => self.fetch("&wait=5").await,
        }
    }

    async fn fetch(&mut self, wait: &str) -> Vec<Item> {
        let url = format!("{}{}{wait}", self.base, self.ask.path(&self.fetched));
        let answer = match self.http.get(&url).send().await {
            Ok(response) => Answer::read(response).await,
            // The server has stopped.
            Err(error) if error.is_connect() => return vec![Item::End(None)],
            Err(error) => panic!("{url}: {error:?}"),
        };
        assert!(matches!(answer.status.as_u16(), 200 | 204), "{url}: {answer:?}");
        self.fetched = self.ask.read_list(answer.position());
        let mut items = Vec::new();
        if answer.status == 200 {
            items = self.read(&answer.json());
            assert!(!items.is_empty(), "200 with nothing in it: {answer:?}");
        }
        items.push(Item::At(self.fetched.clone()));
        items
    }

    fn read(&self, body: &Value) -> Vec<Item> {
        let channel = &self.ask.channels[0];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let gaps = if self.ask.many { list(&body["gaps"]) } else { body.get("gap").cloned().into_iter().collect() };
        let gaps = gaps.iter().map(|gap| Item::Gap(Gap::from_json(gap, channel)));
        let messages = list(&body["messages"]);
        let messages = messages.iter().map(|message| Item::Message(Message::from_envelope(message, channel)));
        if self.ask.many {
            let positions: Positions = serde_json::from_value(body["positions"].clone()).expect("positions");
            assert_eq!(positions, self.fetched, "header and body say the same");
        } else {
            assert_eq!(body["position"].as_str(), self.fetched.get(channel).map(String::as_str));
        }
        gaps.chain(messages).collect()
    }
}
