//! Two dispatchers over one engine, as while a node takes over from one that was paused.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use millrace_engine::{Engine, HistoryConfig, MemoryEngine};
use millrace_hooks::{HookUrl, signature::Signer};
use millrace_node::Router;
use millrace_protocol::{ChannelName, Epoch, Kind, NewPublication};
use millrace_webhooks::{Config, EventKind, EventSet, EventSets, Limits, Webhooks};
use serde_json::Value;

use super::{SECRET, events, once};
use crate::{
    hooks::back_end::{BackEnd, Reply},
    server::until,
};

fn start(back_end: &BackEnd, engine: &Arc<dyn Engine>) -> Webhooks {
    let limits = Limits {
        batch_max: 5,
        batch_bytes_max: 1 << 20,
        batch_wait: Duration::from_millis(5),
        pause_max: Duration::from_secs(1),
        give_up: Duration::from_secs(60),
    };
    let config = Config {
        url: HookUrl::parse(&back_end.url("/webhooks"), false).expect("a URL"),
        signer: Signer::new([SECRET]),
        authorities: Vec::new(),
        events: EventSets { all: EventSet::from_iter([EventKind::Publication]), namespaces: BTreeMap::new() },
        timeout: Duration::from_secs(5),
        limits,
        dead_max: 10,
    };
    Webhooks::start(config, engine.clone()).expect("webhooks")
}

#[tokio::test]
async fn dispatchers_that_overlap_lose_nothing_and_keep_the_order() {
    const COUNT: u64 = 300;
    let back_end = BackEnd::start(|_| Reply::After(Duration::from_millis(2), Value::Null)).await;
    let state = HistoryConfig { state: true, ..HistoryConfig::default() };
    let config = millrace_engine::Config { internal_states: Some(state), ..Default::default() };
    let router = Arc::new(Router::new(1));
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(config, Epoch(1), router, || 1_000_000));
    let both = [start(&back_end, &engine), start(&back_end, &engine)];
    let channels = ["a", "b"].map(|name| ChannelName::parse(name).expect("a channel"));
    for n in 0..COUNT {
        for channel in &channels {
            both[0].registry().register(channel).await.expect("registered");
            let publication = NewPublication::new(Kind::Json, n.to_string());
            engine.append(channel, publication).await.expect("a position");
            both.iter().for_each(|webhooks| webhooks.registry().notify(channel));
        }
    }
    until("all have arrived", async || once(events(&back_end.questions())).len() as u64 == 2 * COUNT).await;
    let all = once(events(&back_end.questions()));
    for channel in &channels {
        let of_channel = all.iter().filter(|event| event["channel"] == channel.as_str());
        let numbers: Vec<u64> = of_channel.map(|event| event["data"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>(), "{channel}");
    }
    both.iter().for_each(Webhooks::stop);
}
