//! Events of the last time that an operator wants to know about: drains, nodes that come and go, congestion.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::no_parameters,
};

/// Maximum number of events that a node keeps, and that an answer has.
const EVENTS_MAX: usize = 200;
/// Interval between two checks of the state of this node.
const CHECK: Duration = Duration::from_secs(1);
/// Number of checks between two lists of the live nodes, which are a request to the engine.
const CHECKS_PER_LIST: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Started,
    Reloaded,
    DrainBegan,
    DrainCancelled,
    Upgraded,
    NodeJoined,
    NodeLeft,
    CongestionBegan,
    CongestionEnded,
    BreakerOpened,
    BreakerClosed,
    EngineLost,
    EngineBack,
    /// An event of a node of a later version.
    #[serde(other)]
    Other,
}

/// An event, as nodes send it to each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    number: u64,
    time_ms: u64,
    kind: EventKind,
    text: String,
}

/// The newest events of this node. All threads of the server share it.
#[derive(Default)]
pub struct Events(Mutex<VecDeque<Event>>);

impl Events {
    pub fn add(&self, kind: EventKind, text: impl Into<String>) {
        let mut events = self.lock();
        let number = events.back().map_or(0, |newest| newest.number) + 1;
        events.push_back(Event { number, time_ms: millrace_engine::unix_ms(), kind, text: text.into() });
        if events.len() > EVENTS_MAX {
            events.pop_front();
        }
    }

    fn newest(&self) -> Vec<Event> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the node at the last check.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    is_congested: bool,
    is_engine_lost: bool,
    /// URLs of hooks whose breaker is open, with the names of the hooks.
    open_breakers: BTreeMap<String, &'static str>,
    /// The live nodes, this one included; `None` while unknown.
    nodes: Option<BTreeSet<String>>,
}

impl Seen {
    /// Returns the events that lead from this state to another.
    fn changes(&self, now: &Seen) -> Vec<(EventKind, String)> {
        let mut events = Vec::new();
        let mut event = |kind, text: String| events.push((kind, text));
        match (self.is_congested, now.is_congested) {
            (false, true) => event(
                EventKind::CongestionBegan,
                "Congestion began: a shard receives more than it delivers, so publishers are slowed down or refused"
                    .into(),
            ),
            (true, false) => event(EventKind::CongestionEnded, "Congestion ended".into()),
            _ => {}
        }
        match (self.is_engine_lost, now.is_engine_lost) {
            (false, true) => event(EventKind::EngineLost, "The engine does not answer".into()),
            (true, false) => event(EventKind::EngineBack, "The engine answers again".into()),
            _ => {}
        }
        for (url, hook) in now.open_breakers.iter().filter(|(url, _)| !self.open_breakers.contains_key(*url)) {
            event(EventKind::BreakerOpened, format!("The breaker of the hook `{hook}` opened: {url} fails"));
        }
        for (url, hook) in self.open_breakers.iter().filter(|(url, _)| !now.open_breakers.contains_key(*url)) {
            event(EventKind::BreakerClosed, format!("The breaker of the hook `{hook}` closed: {url} answers again"));
        }
        if let (Some(before), Some(after)) = (&self.nodes, &now.nodes) {
            for node in after.difference(before) {
                event(EventKind::NodeJoined, format!("Node {node} joined"));
            }
            for node in before.difference(after) {
                event(EventKind::NodeLeft, format!("Node {node} left"));
            }
        }
        events
    }
}

impl Admin {
    /// Returns the newest events of all nodes: `{"events": [..]}`, the newest first. Only this node's view of the other
    /// nodes is included.
    pub async fn events(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Events {}).await?;
        let mut all: Vec<(String, Event)> = Vec::new();
        for (node, mut answer) in answers {
            let events: Vec<Event> = serde_json::from_value(answer["events"].take()).unwrap_or_default();
            let is_own = node == self.node;
            let of_nodes = |event: &Event| matches!(event.kind, EventKind::NodeJoined | EventKind::NodeLeft);
            let shown = events.into_iter().filter(|event| is_own || !of_nodes(event));
            all.extend(shown.map(|event| (node.clone(), event)));
        }
        all.sort_by_key(|(_, event)| std::cmp::Reverse((event.time_ms, event.number)));
        all.truncate(EVENTS_MAX);
        let row = |(node, Event { number, time_ms, kind, text }): (String, Event)| json!({ "id": format!("{node}-{number}"), "time_ms": time_ms, "node": node, "kind": kind, "text": text });
        let rows: Vec<Value> = all.into_iter().map(row).collect();
        Ok(Gathered::with_missing(missing, json!({ "events": rows })))
    }

    /// Returns the events of this node for another node.
    pub fn own_events(&self) -> Value {
        json!({ "events": self.events.newest() })
    }

    /// Adds an event whenever the state of this node changes. Never returns.
    pub async fn watch_state(self: Rc<Self>) {
        let mut ticks = interval(CHECK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut check) = (Seen::default(), 0u32);
        loop {
            ticks.tick().await;
            let lists_nodes = check.is_multiple_of(CHECKS_PER_LIST);
            check = check.wrapping_add(1);
            let nodes = match lists_nodes {
                true => self.live_nodes().await.or_else(|| seen.nodes.take()),
                false => seen.nodes.clone(),
            };
            let now = Seen {
                is_congested: self.router.is_congested(),
                is_engine_lost: !self.engine.is_up(),
                open_breakers: self.open_breakers(),
                nodes,
            };
            seen.changes(&now).into_iter().for_each(|(kind, text)| self.events.add(kind, text));
            seen = now;
        }
    }

    /// Returns the live nodes; `None` if they are unknown, or no other node can share the engine.
    async fn live_nodes(&self) -> Option<BTreeSet<String>> {
        self.engine.node()?;
        Some(self.engine.live_nodes().await.ok()??.into_iter().collect())
    }

    fn open_breakers(&self) -> BTreeMap<String, &'static str> {
        let endpoints = self.site.hooks.as_ref().map(|hooks| hooks.endpoints()).unwrap_or_default();
        let open = endpoints.into_iter().filter(|endpoint| endpoint.breaker.name() != "closed");
        open.map(|endpoint| (endpoint.url, endpoint.hook.name())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_state_are_events_once() {
        let nodes = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
        let calm = Seen { nodes: nodes(&["a", "b"]), ..Seen::default() };
        assert_eq!(Seen::default().changes(&calm), [], "the first list of nodes is no change");
        let trouble = Seen {
            is_congested: true,
            is_engine_lost: true,
            open_breakers: BTreeMap::from([("http://127.0.0.1:1/".to_owned(), "publish")]),
            nodes: nodes(&["b", "c"]),
        };
        let kinds = |from: &Seen, to: &Seen| from.changes(to).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        use EventKind::*;
        assert_eq!(kinds(&calm, &trouble), [CongestionBegan, EngineLost, BreakerOpened, NodeJoined, NodeLeft]);
        assert_eq!(kinds(&trouble, &trouble), []);
        assert_eq!(kinds(&trouble, &calm), [CongestionEnded, EngineBack, BreakerClosed, NodeJoined, NodeLeft]);
    }

    #[test]
    fn newest_events_are_kept_and_numbered() {
        let events = Events::default();
        for number in 1..=EVENTS_MAX + 5 {
            events.add(EventKind::Reloaded, format!("{number}"));
        }
        let kept = events.newest();
        assert_eq!((kept.len(), kept[0].number, kept[0].text.as_str()), (EVENTS_MAX, 6, "6"));
        let later = r#"{"number":1,"time_ms":2,"kind":"moon_phase","text":"x"}"#;
        assert_eq!(serde_json::from_str::<Event>(later).unwrap().kind, EventKind::Other);
    }
}
