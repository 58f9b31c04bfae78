//! Rooms as clients see them: who joins, which updates are published, permissions, and the reaction to bad input.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::{SinkExt as _, StreamExt as _};
use millrace_server::{Config, auth::SigningKey, config::Secret};
use millrace_sfu::{MediaClient, MediaKind};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::server::{Answer, Server, client, until, within};

pub const SECRET: &str = "a secret of thirty-two bytes or more";

/// A participant of a room.
pub struct Participant {
    pub id: String,
    pub secret: String,
    pub location: String,
    pub joined: Value,
}

/// Sends each request on a new connection, so that any shard may receive it.
pub async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: String) -> Answer {
    let request = client(false).request(method.parse().expect("a method"), server.url(path)).body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    Answer::read(within(request.send()).await.expect("an answer")).await
}

pub async fn try_join(server: &Server, room: &str, asked: Value) -> Answer {
    ask(server, "POST", &format!("/v1/rooms/{room}/participants"), &[], asked.to_string()).await
}

pub async fn join(server: &Server, room: &str, asked: Value) -> Participant {
    let answer = try_join(server, room, asked).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let joined = answer.json();
    let text = |name: &str| joined[name].as_str().expect("a string").to_owned();
    let (id, secret) = (text("participant"), text("secret"));
    assert_eq!(answer.header("location"), format!("/v1/rooms/{room}/participants/{id}"));
    Participant { location: answer.header("location").to_owned(), id, secret, joined }
}

impl Participant {
    pub async fn post(&self, server: &Server, what: &str, body: Value) -> Answer {
        let path = format!("{}/{what}", self.location);
        ask(server, "POST", &path, &[("millrace-participant", &self.secret)], body.to_string()).await
    }

    pub async fn leave(&self, server: &Server) -> Answer {
        ask(server, "DELETE", &self.location, &[("millrace-participant", &self.secret)], String::new()).await
    }

    /// Returns the signals in the participant's inbox since a position, and the position after them.
    async fn inbox(&self, server: &Server, room: &str, since: &str) -> (Vec<Value>, String) {
        let path = format!("/v1/channels/rooms/{room}/inbox/{}?since={since}&wait=1", self.id);
        let answer = server.get(&path).await;
        let is_nothing = answer.status == 204;
        let received =
            if is_nothing { Vec::new() } else { answer.json()["messages"].as_array().cloned().unwrap_or_default() };
        (received.into_iter().map(|message| message["data"].clone()).collect(), answer.position().to_owned())
    }

    fn position(&self, channel: &str) -> &str {
        self.joined["positions"][channel].as_str().unwrap_or_else(|| panic!("a position of {channel}: {}", self.joined))
    }
}

pub async fn state(server: &Server, room: &str) -> Value {
    server.get(&format!("/v1/rooms/{room}")).await.json()
}

async fn assert_is_empty(server: &Server, room: &str) {
    let shown = server.get(&format!("/v1/rooms/{room}")).await;
    assert_eq!(shown.status, 200, "an empty room is no error: {}", shown.text());
    assert_eq!(shown.json(), json!({ "version": 0, "participants": [], "reports": {}, "switch": [] }));
}

pub fn ids(state: &Value) -> Vec<&str> {
    let participants = state["participants"].as_array().expect("a list");
    participants.iter().map(|one| one["id"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn joining_participant_is_announced() {
    let server = Server::start();
    // Several rooms, so that some belong to the other shard.
    for room in ["a", "b", "c", "d", "e"] {
        let ann = join(&server, room, json!({ "name": "Ann", "topology": "mesh" })).await;
        assert_eq!(ids(&ann.joined["state"]), [ann.id.as_str()]);
        let bob = join(&server, room, json!({ "name": "Bob" })).await;
        assert_eq!(
            ids(&bob.joined["state"]),
            [ann.id.as_str(), bob.id.as_str()],
            "participants are in the order of joining"
        );
        // Ann receives Bob's join after the position that she was given.
        let since = ann.position(&format!("rooms/{room}/state"));
        let update = server.get(&format!("/v1/channels/rooms/{room}/state?since={since}&wait=5&policy=latest")).await;
        let update = update.json()["messages"][0]["data"].clone();
        assert_eq!(update, bob.joined["state"]);
        assert_eq!(update["participants"][1]["name"], "Bob");
        assert!(update["participants"][1]["since_ms"].as_u64().is_some_and(|ms| ms > 1_600_000_000_000), "{update}");
        assert!(!state(&server, room).await.to_string().contains(&ann.secret), "the secret is not in the state");
        assert_eq!(ann.leave(&server).await.status, 204);
        assert_eq!(ids(&state(&server, room).await), [bob.id.as_str()]);
        assert_eq!(bob.leave(&server).await.status, 204);
        assert_is_empty(&server, room).await;
    }
}

#[tokio::test]
async fn state_of_a_room_is_a_keyed_state_until_the_room_ends() {
    // The log of the channel holds a single change.
    let server = Server::with(|config| config.history.count_max = 1);
    let page = async || server.get("/v1/channels/rooms/r/state?state").await.json()["messages"].clone();
    assert_eq!(page().await, json!([]));
    let (ann, bob) = (join(&server, "r", json!({ "name": "Ann" })).await, join(&server, "r", json!({})).await);
    let shown = page().await;
    assert_eq!((&shown[0]["key"], &shown[0]["data"]), (&json!("room"), &bob.joined["state"]), "{shown}");
    // A reader that history has left receives the whole state after the gap.
    let lost = ann.position("rooms/r/state");
    assert_eq!(ann.post(&server, "reports", json!({ "muted": true })).await.status, 204);
    let answer = server.get(&format!("/v1/channels/rooms/r/state?since=state:{lost}")).await.json();
    assert!(answer["gap"].is_object(), "{answer}");
    assert_eq!(answer["messages"][0]["data"]["participants"][0]["muted"], true, "{answer}");
    for one in [ann, bob] {
        assert_eq!(one.leave(&server).await.status, 204);
    }
    until("the state is deleted", async || page().await == json!([])).await;
}

#[tokio::test]
async fn signals_arrive_once_in_order_with_sender() {
    let server = Server::start();
    let (ann, bob) = (join(&server, "r", json!({})).await, join(&server, "r", json!({})).await);
    for number in 0..5 {
        let signal =
            json!({ "to": bob.id, "candidate": { "number": number }, "from": "another participant", "link": 7 });
        assert_eq!(ann.post(&server, "signals", signal).await.status, 204);
    }
    let path = format!("{}/signals", ann.location);
    for _ in 0..2 {
        let headers = [("millrace-participant", ann.secret.as_str()), ("idempotency-key", "once")];
        let signal = json!({ "to": bob.id, "description": { "type": "offer", "sdp": "v=0" } });
        assert_eq!(ask(&server, "POST", &path, &headers, signal.to_string()).await.status, 204);
    }
    assert_eq!(ann.post(&server, "signals", json!({ "to": bob.id, "bye": "" })).await.status, 204);
    // A reader that is cut after the first three signals resumes from its position, on another transport.
    let inbox = format!("rooms/r/inbox/{}", bob.id);
    let first = server.get(&format!("/v1/channels/{inbox}?since={}&limit=3", bob.position(&inbox))).await;
    let (rest, _) = bob.inbox(&server, "r", first.position()).await;
    let first: Vec<Value> = first.json()["messages"].as_array().expect("messages").clone();
    let received: Vec<Value> = first.iter().map(|message| message["data"].clone()).chain(rest).collect();
    assert!(
        received.iter().all(|signal| signal["from"] == ann.id.as_str() && signal.get("to").is_none()),
        "{received:?}"
    );
    let numbers: Vec<_> = received.iter().filter_map(|signal| signal["candidate"]["number"].as_u64()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!(
        received.iter().filter(|signal| signal.get("description").is_some()).count(),
        1,
        "one publication per key"
    );
    assert_eq!((received.len(), &received[0]["link"]), (7, &json!(7)));
}

#[tokio::test]
async fn only_server_publishes_state_and_signals() {
    let server = Server::start();
    let ann = join(&server, "r", json!({})).await;
    let inbox = format!("rooms/r/inbox/{}", ann.id);
    for channel in ["rooms/r/state", inbox.as_str(), "rooms/other/state"] {
        let refused = server.post(&format!("/v1/channels/{channel}"), &[], "{}").await;
        refused.assert_problem(403, "forbidden");
        let line = json!({ "channel": channel, "data": 1 }).to_string();
        let batch = server.post("/v1/publish", &[], line).await.json();
        assert_eq!(batch["results"][0]["error"]["code"], "forbidden", "{batch}");
    }
    let mut request = server.websocket_url("/v1/connect").into_client_request().expect("a request");
    request.headers_mut().insert("sec-websocket-protocol", "millrace.v1+json".parse().expect("a header"));
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.expect("a session");
    let command = json!({ "id": 1, "publish": { "channel": inbox, "data": { "from": "x", "bye": "" } } });
    within(socket.send(command.to_string().into())).await.expect("sent");
    let refused = within(async {
        loop {
            let message = socket.next().await.expect("a reply").expect("a reply").into_text().expect("text");
            if message.contains("\"id\":1") {
                break message.to_string();
            }
        }
    })
    .await;
    assert!(refused.contains("forbidden"), "{refused}");
    server.publish("rooms/r/chat", "\"hello\"").await;
    server.publish("rooms/r/data", "1").await;
    let (received, _) = ann.inbox(&server, "r", ann.position(&inbox)).await;
    assert_eq!(received, Vec::<Value>::new());
}

#[tokio::test]
async fn invalid_room_requests_are_refused_with_reason() {
    let server = Server::with(|config| {
        config.rooms.rooms_max = 3;
        // Without media, the server has no SFU.
        config.rtc.listen = "off".into();
        config.rooms.mesh_max = 3;
        config.rooms.signal_bytes_max = 1024;
        config.rooms.signals_per_s = 2;
    });
    let ann = join(&server, "two", json!({ "topology": "p2p" })).await;
    let bob = join(&server, "two", json!({ "topology": "p2p" })).await;
    try_join(&server, "two", json!({ "topology": "mesh" })).await.assert_problem(409, "conflict");
    try_join(&server, "two", json!({})).await.assert_problem(429, "too_many");
    let why = try_join(&server, "new", json!({ "topology": "switch" })).await.assert_problem(400, "bad_request");
    assert!(why.contains("no SFU"), "{why}");
    for (room, asked, status, code) in [
        ("new", json!({ "topology": "ring" }), 400, "bad_json"),
        ("new", json!({ "role": "king" }), 400, "bad_json"),
        ("new", json!({ "colour": "red" }), 400, "bad_json"),
        ("new", json!([]), 400, "bad_json"),
        ("new", json!({ "name": "x".repeat(65) }), 400, "bad_request"),
        ("new", json!({ "name": "a\nb" }), 400, "bad_request"),
        ("new", json!({ "name": "x".repeat(5000) }), 413, "too_large"),
        ("a%2Fb", json!({}), 400, "bad_channel"),
        ("%23", json!({}), 400, "bad_channel"),
        (&"x".repeat(250), json!({}), 400, "bad_channel"),
    ] {
        try_join(&server, room, asked).await.assert_problem(status, code);
    }
    assert_is_empty(&server, "new").await;
    server.get("/v1/rooms/two/participants").await.assert_problem(405, "method_not_allowed");

    let signal = || json!({ "to": bob.id, "bye": "" }).to_string();
    let path = format!("{}/signals", ann.location);
    ask(&server, "POST", &path, &[], signal()).await.assert_problem(403, "forbidden");
    for secret in [bob.secret.as_str(), "", "x"] {
        let headers = [("millrace-participant", secret)];
        ask(&server, "POST", &path, &headers, signal()).await.assert_problem(403, "forbidden");
        ask(&server, "DELETE", &ann.location, &headers, String::new()).await.assert_problem(403, "forbidden");
    }
    for (body, status, code) in [
        (json!({ "bye": "" }), 400, "bad_request"),
        (json!({ "to": bob.id }), 400, "bad_request"),
        (json!({ "to": bob.id, "bye": "", "candidate": {} }), 400, "bad_request"),
        (json!({ "to": 7, "bye": "" }), 400, "bad_request"),
        (json!([1]), 400, "bad_json"),
        (json!({ "to": bob.id, "bye": "x".repeat(1024) }), 413, "too_large"),
        (json!({ "to": ann.id, "bye": "" }), 404, "not_found"),
        (json!({ "to": "nobody", "bye": "" }), 404, "not_found"),
        (json!({ "to": "switch", "bye": "" }), 404, "not_found"),
    ] {
        ann.post(&server, "signals", body).await.assert_problem(status, code);
    }
    let mut refused = None;
    for _ in 0..40 {
        let answer = ann.post(&server, "signals", json!({ "to": bob.id, "bye": "" })).await;
        if answer.status == 429 {
            answer.assert_problem(429, "rate_limited");
            refused = Some(answer.header("retry-after").to_owned());
            break;
        }
    }
    assert!(refused.is_some(), "forty at once were taken, of two per second");
    assert_eq!(bob.post(&server, "reports", json!({ "rtt_ms": 1 })).await.status, 204, "others may go on");

    join(&server, "x", json!({})).await;
    let last = join(&server, "y", json!({})).await;
    try_join(&server, "z", json!({})).await.assert_problem(429, "too_many");
    assert_eq!(last.leave(&server).await.status, 204);
    last.leave(&server).await.assert_problem(404, "not_found");
    join(&server, "z", json!({})).await;
}

#[tokio::test]
async fn silent_participant_is_removed_and_reports_are_shown() {
    let server = Server::with(|config| config.rooms.silence_max = Duration::from_secs(2));
    let (ann, bob) = (join(&server, "r", json!({})).await, join(&server, "r", json!({})).await);
    let report = json!({ "uplink_kbps": 800, "muted": true, "links": [{ "to": bob.id, "rtt_ms": 1.5 }] });
    until("the silent participant is removed", async || {
        assert_eq!(ann.post(&server, "reports", report.clone()).await.status, 204);
        ids(&state(&server, "r").await) == [ann.id.as_str()]
    })
    .await;
    let shown = state(&server, "r").await;
    assert_eq!(shown["reports"][&ann.id], report);
    assert_eq!(shown["participants"][0]["muted"], true);
    // The report is also published on the reports channel, and only the server may publish there.
    let update = json!({ "participant": ann.id, "report": report, "switch": null });
    until("the record has it", async || {
        let record = server.get("/v1/channels/rooms/r/reports?since=earliest").await.json();
        record["messages"].as_array().is_some_and(|messages| messages.iter().any(|message| message["data"] == update))
    })
    .await;
    server.post("/v1/channels/rooms/r/reports", &[], update.to_string()).await.assert_problem(403, "forbidden");
    for report in [json!({ "rtt_ms": -1 }), json!({ "links": [{ "streams": [{ "loss": 2 }] }] })] {
        ann.post(&server, "reports", report).await.assert_problem(400, "bad_request");
    }
    assert_eq!(state(&server, "r").await["reports"][&ann.id], report, "a refused report changes nothing");
    bob.post(&server, "reports", json!({})).await.assert_problem(404, "not_found");
    ann.post(&server, "signals", json!({ "to": bob.id, "bye": "" })).await.assert_problem(404, "not_found");
}

#[tokio::test]
async fn lost_tree_parent_is_replaced_at_once() {
    let server = Server::with(|config| config.rooms.children_max = 2);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(join(&server, "r", json!({ "topology": "tree" })).await);
    }
    let [root, one, two, orphan] = &all[..] else { panic!("four") };
    let parent = async || state(&server, "r").await["parents"][&orphan.id].clone();
    assert_eq!(parent().await, one.id.as_str());
    for lost in [json!(7), json!("nobody"), json!(two.id), json!(root.id)] {
        assert_eq!(orphan.post(&server, "reports", json!({ "parent_lost": lost })).await.status, 204);
        assert_eq!(parent().await, one.id.as_str(), "{lost} is not its parent");
    }
    assert_eq!(orphan.post(&server, "reports", json!({ "parent_lost": one.id })).await.status, 204);
    assert_eq!(parent().await, two.id.as_str());
    let channel = "/v1/channels/rooms/r/state?since=earliest";
    let update = server.get(channel).await.json();
    let last = update["messages"].as_array().and_then(|messages| messages.last()).expect("a state")["data"].clone();
    assert_eq!(last["parents"][&orphan.id], two.id.as_str(), "the state has the new parent");
}

/// Returns a token that grants `rights` on all channels of the room `r`.
pub fn token(subject: &str, rights: &[&str]) -> String {
    token_for(subject, &rights.iter().map(|right| (*right, "rooms/r/#")).collect::<Vec<_>>())
}

/// Returns a token that grants each permission on the channel beside it.
pub fn token_for(subject: &str, rights: &[(&str, &str)]) -> String {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs();
    let granted: serde_json::Map<String, Value> =
        rights.iter().map(|(right, channel)| ((*right).to_owned(), json!([channel]))).collect();
    let claims = json!({ "sub": subject, "iat": now_s, "exp": now_s + 60, "millrace": granted });
    SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token")
}

#[tokio::test]
async fn permissions_decide_role_of_participant() {
    let server = Server::with(|config: &mut Config| config.auth.secret = Secret::from(SECRET));
    let join = async |token: Option<String>| {
        let bearer = format!("Bearer {}", token.unwrap_or_default());
        let headers: &[(&str, &str)] = if bearer == "Bearer " { &[] } else { &[("authorization", &bearer)] };
        ask(&server, "POST", "/v1/rooms/r/participants", headers, json!({ "role": "hub" }).to_string()).await
    };
    join(None).await.assert_problem(401, "unauthorized");
    join(Some(token("ann", &["presence", "history"]))).await.assert_problem(403, "forbidden");
    let viewer = join(Some(token("ann", &["subscribe"]))).await.json();
    assert_eq!(viewer["state"]["participants"][0]["role"], "viewer");
    let member = join(Some(token("ann", &["subscribe", "publish"]))).await.json();
    assert_eq!(member["state"]["participants"][1]["role"], "hub");

    // Neither the secret alone nor the token alone is sufficient.
    let path = format!("/v1/rooms/r/participants/{}/signals", member["participant"].as_str().expect("an id"));
    let secret = member["secret"].as_str().expect("a secret");
    let signal = json!({ "to": viewer["participant"], "bye": "" }).to_string();
    let bearer = format!("Bearer {}", token("ann", &["subscribe", "publish"]));
    let both = [("millrace-participant", secret), ("authorization", bearer.as_str())];
    ask(&server, "POST", &path, &both[..1], signal.clone()).await.assert_problem(401, "unauthorized");
    ask(&server, "POST", &path, &both[1..], signal.clone()).await.assert_problem(403, "forbidden");
    assert_eq!(ask(&server, "POST", &path, &both, signal).await.status, 204);
    ask(&server, "GET", "/v1/rooms/r", &[], String::new()).await.assert_problem(401, "unauthorized");
    ask(&server, "POST", "/v1/channels/rooms/r/state", &both[1..], "1".into()).await.assert_problem(403, "forbidden");
}

#[tokio::test]
async fn moderator_mutes_others_in_state() {
    let server = Server::with(|config: &mut Config| config.auth.secret = Secret::from(SECRET));
    let of = |rights: &[(&str, &str)]| format!("Bearer {}", token_for("ann", rights));
    let host = of(&[("publish", "rooms/r/#"), ("subscribe", "rooms/r/#")]);
    let guest = of(&[("publish", "rooms/r/chat"), ("subscribe", "rooms/r/#")]);
    let join = async |bearer: &str| {
        let headers = [("authorization", bearer)];
        let joined = ask(&server, "POST", "/v1/rooms/r/participants", &headers, String::new()).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
        joined.json()
    };
    let (first, second) = (join(&host).await, join(&guest).await);
    let loud = second["participant"].as_str().expect("an id").to_owned();
    let mute = async |bearer: &str, id: &str, asked: Value| {
        let path = format!("/v1/rooms/r/participants/{id}/mute");
        ask(&server, "POST", &path, &[("authorization", bearer)], asked.to_string()).await
    };
    let muted = async || {
        let state = ask(&server, "GET", "/v1/rooms/r", &[("authorization", &host)], String::new()).await.json();
        state["participants"][1]["muted_by_host"].clone()
    };
    assert_eq!((&first["moderates"], &second["moderates"]), (&json!("always"), &Value::Null));
    // Without tokens the first participant is the host, but here only the token grants the permission to moderate.
    mute(&guest, &loud, json!({ "audio": true })).await.assert_problem(403, "forbidden");
    mute("Bearer x", &loud, json!({ "audio": true })).await.assert_problem(401, "unauthorized");
    mute(&host, "nobody", json!({ "audio": true })).await.assert_problem(404, "not_found");
    mute(&host, &loud, json!({})).await.assert_problem(400, "bad_request");
    for bad in [json!({ "audio": 1 }), json!({ "sound": true }), json!([])] {
        mute(&host, &loud, bad).await.assert_problem(400, "bad_json");
    }
    assert_eq!(muted().await, Value::Null);
    for (asked, expected) in [
        (json!({ "audio": true }), json!(["audio"])),
        (json!({ "video": true }), json!(["audio", "video"])),
        (json!({ "audio": false }), json!(["video"])),
        (json!({ "video": false }), Value::Null),
    ] {
        assert_eq!(mute(&host, &loud, asked).await.status, 204);
        assert_eq!(muted().await, expected);
    }
}

#[tokio::test]
async fn without_tokens_only_host_mutes_others() {
    let server = Server::start();
    let ann = join(&server, "r", json!({ "name": "Ann" })).await;
    let bob = join(&server, "r", json!({ "name": "Bob" })).await;
    assert_eq!(ann.joined["moderates"], "as_host");
    assert_eq!(state(&server, "r").await["host"], json!(ann.id));
    let mute = async |secret: Option<&str>, id: &str| {
        let path = format!("/v1/rooms/r/participants/{id}/mute");
        let shown: Vec<_> = secret.map(|secret| ("millrace-participant", secret)).into_iter().collect();
        ask(&server, "POST", &path, &shown, json!({ "audio": true }).to_string()).await
    };
    let refused = mute(Some(&bob.secret), &ann.id).await;
    assert!(refused.assert_problem(403, "forbidden").contains("host"), "{}", refused.text());
    mute(Some("x"), &ann.id).await.assert_problem(403, "forbidden");
    mute(None, &ann.id).await.assert_problem(403, "forbidden");
    assert_eq!(mute(Some(&ann.secret), &bob.id).await.status, 204);
    assert_eq!(state(&server, "r").await["participants"][1]["muted_by_host"], json!(["audio"]));
    // When the host leaves, the participant that joined earliest becomes the host.
    let cat = join(&server, "r", json!({ "name": "Cat" })).await;
    ann.leave(&server).await;
    assert_eq!(state(&server, "r").await["host"], json!(bob.id));
    assert_eq!(mute(Some(&bob.secret), &cat.id).await.status, 204);
}

#[tokio::test]
async fn number_of_mixed_rooms_is_limited() {
    let asked = || json!({ "topology": "mixer" });
    let why = try_join(&Server::start(), "r", asked()).await.assert_problem(400, "bad_request");
    assert!(why.contains("rooms.mixers_max"), "{why}");
    let server = Server::with(|config| config.rooms.mixers_max = 1);
    let ann = join(&server, "one", asked()).await;
    assert_eq!(ann.joined["state"]["topology"], "mixer");
    let local = "127.0.0.1:9".parse().expect("an address");
    let (_, offer) = MediaClient::offer(local, &[MediaKind::Audio], &[], Instant::now());
    let signal = json!({ "to": "switch", "description": { "type": "offer", "sdp": offer } });
    assert_eq!(ann.post(&server, "signals", signal).await.status, 204);
    try_join(&server, "two", asked()).await.assert_problem(429, "too_many");
    assert_eq!(ann.leave(&server).await.status, 204);
    until("its mixer has ended", async || try_join(&server, "two", asked()).await.status == 201).await;
}

#[tokio::test]
async fn disabled_rooms_are_not_found() {
    let server = Server::with(|config| config.rooms.rooms_max = 0);
    let why = try_join(&server, "r", json!({})).await.assert_problem(404, "not_found");
    assert!(why.contains("rooms.rooms_max"), "{why}");
}
