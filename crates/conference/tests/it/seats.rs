//! Seats that survive a reload of the page, and the requests of moderators.

use std::time::Duration;

use millrace_server::{Config, config::Secret};
use serde_json::{Value, json};

use crate::{
    rooms::{Participant, SECRET, ask, ids, join, state, token_for, try_join},
    server::{Server, until},
};

fn resume(of: &Participant) -> Value {
    json!({ "name": "another name", "resume": { "participant": of.id, "ticket": of.joined["ticket"] } })
}

#[tokio::test]
async fn reloaded_page_gets_its_seat_back() {
    let server = Server::start();
    for room in ["a", "b", "c"] {
        let ann = join(&server, room, json!({ "name": "Ann" })).await;
        let bob = join(&server, room, json!({ "name": "Bob" })).await;
        assert_eq!(ann.post(&server, "reports", json!({ "muted": true, "hand": true })).await.status, 204);
        ann.post(&server, "away", json!({})).await;
        let shown = state(&server, room).await;
        assert_eq!(shown["participants"][0]["away"], true, "{shown}");
        assert!(!shown.to_string().contains(ann.joined["ticket"].as_str().expect("a ticket")), "the ticket is secret");
        let again = join(&server, room, resume(&ann)).await;
        assert_eq!((&again.id, &again.joined["resumed"]), (&ann.id, &json!(true)));
        assert!(again.secret != ann.secret && again.joined["ticket"] != ann.joined["ticket"]);
        let shown = again.joined["state"].clone();
        assert_eq!(ids(&shown), [ann.id.as_str(), bob.id.as_str()]);
        assert_eq!(
            shown["participants"][0],
            json!({ "id": ann.id, "name": "Ann", "role": "member", "since_ms": shown["participants"][0]["since_ms"],
                "muted": true, "hand": 1, "resumed": 1 })
        );
        // The inbox begins after the signals to the old page.
        let inbox = format!("rooms/{room}/inbox/{}", ann.id);
        assert_ne!(ann.joined["positions"][&inbox], again.joined["positions"][&inbox]);
        // The farewell of the old page comes late.
        ann.post(&server, "away", json!({})).await.assert_problem(403, "forbidden");
        // A copied tab has a used ticket, so it joins as another participant, with its own name.
        let copy = join(&server, room, resume(&ann)).await;
        assert_eq!((copy.joined.get("resumed"), ids(&copy.joined["state"]).len()), (None, 3));
        assert_eq!(copy.joined["state"]["participants"][2]["name"], "another name");
        // A participant that has left has no seat.
        assert_eq!(again.leave(&server).await.status, 204);
        let late = join(&server, room, resume(&again)).await;
        assert_ne!(late.id, again.id);
    }
}

#[tokio::test]
async fn seat_is_held_for_a_limited_time() {
    let server = Server::with(|config: &mut Config| config.rooms.away_max = Duration::from_millis(100));
    let (ann, bob) = (join(&server, "r", json!({})).await, join(&server, "r", json!({})).await);
    assert_eq!(ann.post(&server, "away", json!({})).await.status, 204);
    until("the seat is free", async || ids(&state(&server, "r").await) == [bob.id.as_str()]).await;
    assert_ne!(join(&server, "r", resume(&ann)).await.id, ann.id);
}

#[tokio::test]
async fn seat_is_bound_to_the_subject_of_its_token() {
    let server = Server::with(|config: &mut Config| config.auth.secret = Secret::from(SECRET));
    let bearer = |subject: &str| format!("Bearer {}", token_for(subject, &[("publish", "rooms/+/chat")]));
    let join = async |room: &str, subject: &str, asked: Value| {
        let path = format!("/v1/rooms/{room}/participants");
        let joined = ask(&server, "POST", &path, &[("authorization", &bearer(subject))], asked.to_string()).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
        joined.json()
    };
    let ann = join("r", "ann", json!({})).await;
    let resume = json!({ "resume": { "participant": ann["participant"], "ticket": ann["ticket"] } });
    assert_eq!(join("r", "eve", resume.clone()).await.get("resumed"), None);
    assert_eq!(join("other", "ann", resume.clone()).await.get("resumed"), None, "another room");
    assert_eq!(join("r", "ann", resume).await["participant"], ann["participant"]);
    for bad in
        [json!({ "resume": {} }), json!({ "resume": { "participant": 1, "ticket": "" } }), json!({ "resume": 7 })]
    {
        let bearer = bearer("ann");
        let headers = [("authorization", bearer.as_str())];
        ask(&server, "POST", "/v1/rooms/r/participants", &headers, bad.to_string())
            .await
            .assert_problem(400, "bad_json");
    }
}

#[tokio::test]
async fn only_host_locks_and_removes() {
    let server = Server::start();
    let (ann, bob) = (join(&server, "r", json!({})).await, join(&server, "r", json!({})).await);
    let lock = async |secret: &str, asked: Value| {
        ask(&server, "POST", "/v1/rooms/r/lock", &[("millrace-participant", secret)], asked.to_string()).await
    };
    let remove = async |secret: &str, id: &str| {
        let path = format!("/v1/rooms/r/participants/{id}");
        ask(&server, "DELETE", &path, &[("millrace-participant", secret)], String::new()).await
    };
    lock(&bob.secret, json!({ "locked": true })).await.assert_problem(403, "forbidden");
    lock(&ann.secret, json!({})).await.assert_problem(400, "bad_json");
    assert_eq!(lock(&ann.secret, json!({ "locked": true })).await.status, 204);
    assert_eq!(state(&server, "r").await["locked"], true);
    let refused = try_join(&server, "r", json!({})).await;
    assert!(refused.assert_problem(409, "conflict").contains("locked"), "{}", refused.text());
    // A reload is possible in a locked room.
    let ann = join(&server, "r", resume(&ann)).await;
    remove(&bob.secret, &ann.id).await.assert_problem(403, "forbidden");
    remove("x", &ann.id).await.assert_problem(403, "forbidden");
    remove(&ann.secret, "nobody").await.assert_problem(404, "not_found");
    assert_eq!(remove(&ann.secret, &bob.id).await.status, 204);
    let shown = state(&server, "r").await;
    assert_eq!((ids(&shown), &shown["removed"]), (vec![ann.id.as_str()], &json!([bob.id])));
    assert_eq!(lock(&ann.secret, json!({ "locked": false })).await.status, 204);
    assert_eq!(try_join(&server, "r", json!({})).await.status, 201);
}

#[tokio::test]
async fn list_shows_only_readable_rooms() {
    let server = Server::start();
    for room in ["b", "a", "c"] {
        join(&server, room, json!({ "topology": "mesh" })).await;
    }
    join(&server, "a", json!({})).await;
    let listed = server.get("/v1/rooms").await.json();
    let row = |room: &str, participants: u32| json!({ "room": room, "topology": "mesh", "participants": participants, "members": 0 });
    assert_eq!(listed, json!({ "rooms": [row("a", 2), row("b", 1), row("c", 1)] }));

    let server = Server::with(|config: &mut Config| config.auth.secret = Secret::from(SECRET));
    let bearer = format!("Bearer {}", token_for("ann", &[("publish", "rooms/#"), ("subscribe", "rooms/a/state")]));
    let headers = [("authorization", bearer.as_str())];
    for room in ["a", "b"] {
        let path = format!("/v1/rooms/{room}/participants");
        assert_eq!(ask(&server, "POST", &path, &headers, String::new()).await.status, 201);
    }
    let listed = ask(&server, "GET", "/v1/rooms", &headers, String::new()).await.json();
    assert_eq!(
        listed["rooms"].as_array().map(|rooms| rooms.iter().map(|one| &one["room"]).collect()),
        Some(vec![&json!("a")])
    );
    assert_eq!(ask(&server, "GET", "/v1/rooms", &[], String::new()).await.json(), json!({ "rooms": [] }));
}

#[tokio::test]
async fn chat_of_earlier_people_is_not_for_later_ones() {
    let server = Server::start();
    let say =
        async |text: &str| server.post("/v1/channels/rooms/r/chat", &[], json!({ "text": text }).to_string()).await;
    let ann = join(&server, "r", json!({})).await;
    assert_eq!(ann.joined["chat_since"], ann.joined["positions"]["rooms/r/chat"]);
    say("before").await;
    assert_eq!(ann.leave(&server).await.status, 204);
    let bob = join(&server, "r", json!({})).await;
    say("now").await;
    let cat = join(&server, "r", json!({})).await;
    assert_eq!(cat.joined["chat_since"], bob.joined["chat_since"]);
    let since = cat.joined["chat_since"].as_str().expect("a position");
    let read = server.get(&format!("/v1/channels/rooms/r/chat?since={since}")).await.json();
    let texts: Vec<&Value> =
        read["messages"].as_array().expect("a list").iter().map(|one| &one["data"]["text"]).collect();
    assert_eq!(texts, [&json!("now")]);
}
