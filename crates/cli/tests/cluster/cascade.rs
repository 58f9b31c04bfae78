//! A room over three nodes: its participants receive each other's media over links, and the room survives the death of
//! its owner and of other nodes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    peer::Peer,
    process::{BOUND, is_there, print_line, turn, until},
};

const ROOM: &str = "cascade";
/// Time during which the media of the others are observed after a node has died.
const OBSERVED: Duration = Duration::from_secs(4);
/// A pause of the media between two surviving nodes that is longer than this is an interruption on any machine.
const PAUSE_MAX: Duration = Duration::from_secs(2);

struct World {
    cluster: Cluster,
    http: reqwest::Client,
    peers: Vec<Peer>,
}

impl World {
    fn urls(&self) -> Vec<String> {
        (0..3).map(|node| self.cluster.node(node).http("")).collect()
    }

    async fn room(&self, node: usize) -> Value {
        let url = self.cluster.node(node).http(&format!("/v1/rooms/{ROOM}"));
        let Ok(answer) = self.http.get(url).send().await else { return Value::Null };
        answer.json().await.unwrap_or_default()
    }

    /// Returns a metric of a node; 0 if the node does not answer.
    async fn metric(&self, node: usize, name: &str) -> u64 {
        let Ok(answer) = self.http.get(self.cluster.node(node).http("/metrics")).send().await else { return 0 };
        let text = answer.text().await.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).map_or(0, |value| value as u64)
    }

    /// Waits until every participant receives the media of all others, sent after `since`.
    async fn all_receive(&self, what: &str, since: Instant) {
        until(what, BOUND, async || {
            let receives = |peer: &Peer| {
                let mut others = self.peers.iter().filter(|other| other.mark != peer.mark);
                others.all(|other| peer.receives(other.mark, since))
            };
            self.peers.iter().all(receives)
        })
        .await;
    }

    /// Returns how many seconds after `since` this participant has received the media of all others again.
    async fn rejoined(&self, at: usize, since: Instant, joins: usize) -> f64 {
        let peer = &self.peers[at];
        until("the participant has joined on another node", BOUND, async || peer.seen().joins > joins).await;
        let joined = Instant::now();
        let others = || self.peers.iter().filter(|other| other.mark != peer.mark);
        until("it receives again", BOUND, async || others().all(|other| peer.receives(other.mark, joined))).await;
        since.elapsed().as_secs_f64()
    }

    fn longest_pause(&self, from: usize, to: usize) -> Duration {
        let received = self.peers[to].seen().senders.get(&self.peers[from].mark).copied();
        received.map_or(Duration::MAX, |received| received.pause.max(received.last.elapsed()))
    }

    async fn moderate(&self, node: usize, secret: &str, is_locked: bool) -> u16 {
        let url = self.cluster.node(node).http(&format!("/v1/rooms/{ROOM}/lock"));
        let body = json!({ "locked": is_locked }).to_string();
        let request = self.http.post(url).header("millrace-participant", secret).body(body);
        request.send().await.expect("an answer").status().as_u16()
    }
}

#[test]
fn room_over_three_nodes_survives_dead_nodes() {
    let _turn = turn();
    for kind in [Kind::Redis, Kind::Nats] {
        if !is_there("haproxy") || !kind.is_there() {
            continue;
        }
        block_on(run(kind));
    }
}

async fn run(kind: Kind) {
    let cluster = Cluster::start("cascade", kind, 3, 3, &[]).await;
    let http = millrace_client::tls::http().timeout(Duration::from_secs(8)).build().expect("a client");
    let mut world = World { cluster, http, peers: Vec::new() };
    let began = Instant::now();
    for node in 0..3 {
        world.peers.push(Peer::start(world.urls(), ROOM, node as u8 + 1, node));
        // The first participant opens the room, so that its node owns it.
        let peer = &world.peers[node];
        until("the participant has joined", BOUND, async || peer.seen().joins > 0).await;
    }
    world.all_receive("all participants receive each other", began).await;
    let met = began.elapsed();
    requests_reach_the_owner(&world).await;
    for node in 0..3 {
        until("one link and one video go to each other node", BOUND, async || {
            let metric = async |name| world.metric(node, name).await;
            let counts = [metric("millrace_room_links").await, metric("millrace_room_link_layers").await];
            counts == [2, 2] && metric("millrace_room_link_bytes_per_second").await > 0
        })
        .await;
    }

    // The owner dies. The call of the others goes on, and its participant resumes its seat on another node.
    let id = world.peers[0].seen().id.clone();
    let killed = Instant::now();
    world.peers.iter().for_each(Peer::forget_pauses);
    world.cluster.kill(0);
    let owner_rejoined = world.rejoined(0, killed, 1).await;
    assert_eq!(world.peers[0].seen().id, id, "{kind:?}: the participant of the owner has kept its seat");
    until("another node owns the room", BOUND, async || {
        world.metric(1, "millrace_room_owner_changes_total").await
            + world.metric(2, "millrace_room_owner_changes_total").await
            > 0
    })
    .await;
    let observed = killed + OBSERVED;
    until("the call was observed", BOUND, async || Instant::now() > observed).await;
    let pauses = [(1, 2), (2, 1)].map(|(from, to)| world.longest_pause(from, to));
    assert!(pauses.iter().all(|pause| *pause < PAUSE_MAX), "{kind:?}: the call was interrupted: {pauses:?}");
    until("the room has its three participants", BOUND, async || {
        world.room(1).await["participants"].as_array().map(Vec::len) == Some(3)
    })
    .await;

    // A node that does not own the room dies. Its participants join on another node.
    world.cluster.begin(0);
    world.cluster.ready(0).await;
    let owner = if world.metric(1, "millrace_room_owner_changes_total").await > 0 { 1 } else { 2 };
    let other = 3 - owner;
    let here: Vec<usize> = (0..3).filter(|at| world.peers[*at].seen().node == other).collect();
    let joins: Vec<usize> = world.peers.iter().map(|peer| peer.seen().joins).collect();
    let ids: Vec<String> = world.peers.iter().map(|peer| peer.seen().id.clone()).collect();
    let killed = Instant::now();
    world.cluster.kill(other);
    let mut rejoined: f64 = 0.0;
    for at in &here {
        rejoined = rejoined.max(world.rejoined(*at, killed, joins[*at]).await);
        assert_eq!(world.peers[*at].seen().id, ids[*at], "{kind:?}: it has kept its seat");
    }
    assert!(!here.is_empty());
    world.all_receive("all participants receive each other again", Instant::now()).await;
    let [one, two] = pauses.map(|pause| pause.as_millis());
    print_line(&format!(
        "  cascade, {kind:?}: all receive after {:.1} s; owner killed: pauses of the others {one} and {two} ms, its \
         participant receives on another node after {owner_rejoined:.2} s; other node killed: {rejoined:.2} s",
        met.as_secs_f64()
    ));
}

/// Requests to any node have their effect on the owner, and errors come back.
async fn requests_reach_the_owner(world: &World) {
    let state = world.room(2).await;
    let host = state["host"].as_str().expect("a host").to_owned();
    let peer = world.peers.iter().find(|peer| peer.seen().id == host).expect("the host is one of them");
    let secret = peer.seen().secret.clone();
    for node in 0..3 {
        assert_eq!(world.moderate(node, &secret, true).await, 204, "node {node}");
        let url = world.cluster.node((node + 1) % 3).http(&format!("/v1/rooms/{ROOM}/participants"));
        let refused = world.http.post(url).body("{}").send().await.expect("an answer");
        assert_eq!(refused.status(), 409, "the room is locked on every node");
        assert_eq!(world.moderate(node, "0", false).await, 403, "node {node}");
        assert_eq!(world.moderate(node, &secret, false).await, 204, "node {node}");
    }
    let url = world.cluster.node(1).http(&format!("/v1/rooms/{ROOM}/participants/000000aa/reports"));
    let refused = world.http.post(url).header("millrace-participant", "x").body("{}").send().await;
    assert_eq!(refused.expect("an answer").status(), 404, "an unknown participant");
}
