//! Tests requests to devices that are away, with a real server that is killed between the steps.

use std::{fs, path::PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Process, Server, free_port, millrace};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("requests").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

/// Sends a request and returns status and JSON.
fn ask(server: &Server, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, Value) {
    let answer = server.ask(method, path, headers, body);
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}")))
}

#[test]
fn request_survives_restarts_until_the_device_answers() {
    let folder = folder("restarts");
    let engine = format!("sqlite:{}", folder.join("data.db").display());
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || {
        Server::start_from(&mut millrace(&[
            "serve",
            "--listen",
            &listen,
            "--engine",
            &engine,
            "--set",
            "namespaces.requests.durable=true",
        ]))
    };
    let restart = |server: Server| {
        server.process.signal(Signal::KILL);
        server.process.finish();
        start()
    };
    let server = start();
    // The application follows the state while it asks, over all restarts.
    let to = ["--to", &server.url, "--json", "--since", "state", "--limit", "3"];
    let mut follower = Process::start(millrace(&["sub", "requests/car-7"]).args(to));
    let (status, asked) = ask(&server, "POST", "/v1/requests/car-7?ttl=1h", &[], "{\"send\":\"log.txt\"}");
    assert_eq!((status, &asked["state"], &asked["channel"]), (202, &json!("queued"), &json!("requests/car-7")));
    let next = |follower: &mut Process| -> Value {
        let line = follower.out.next().expect("a change");
        serde_json::from_str::<Value>(&line).expect("JSON")["data"].clone()
    };
    assert_eq!(next(&mut follower)["state"], "queued");
    let path = format!("/v1/requests/car-7/{}", asked["id"].as_str().expect("an id"));

    // The device returns after a crash of the server, and receives the request over a WebSocket.
    let server = restart(server);
    let to = ["--to", &server.url, "--json", "--since", "state", "--limit", "1"];
    let received = Process::start(millrace(&["sub", "requests/car-7", "--transport", "websocket"]).args(to)).finish();
    let received: Value = serde_json::from_str(received.out.trim()).expect("one request");
    assert_eq!((&received["key"], &received["data"]["request"]), (&asked["id"], &json!({"send": "log.txt"})));
    let (status, listed) = ask(&server, "GET", "/v1/requests/car-7", &[], "");
    assert_eq!((status, &listed["requests"][0]["id"]), (200, &asked["id"]), "{listed}");
    assert_eq!(ask(&server, "POST", &format!("{path}?state=sent"), &[], "").1["state"], "sent");
    assert_eq!(next(&mut follower)["state"], "sent");

    let server = restart(server);
    let (status, answered) = ask(&server, "POST", &path, &[], "[1, 2]");
    assert_eq!((status, &answered["state"], &answered["answer"]), (200, &json!("answered"), &json!([1, 2])));
    let last = next(&mut follower);
    assert_eq!((&last["state"], &last["answer"]), (&json!("answered"), &json!([1, 2])));
    // A repeated answer changes nothing, another one is refused, and neither is listed for the device.
    assert_eq!(ask(&server, "POST", &path, &[], "[1, 2]").1["position"], answered["position"]);
    assert_eq!(ask(&server, "POST", &path, &[], "[3]").1["code"], "conflict");
    let server = restart(server);
    assert_eq!(ask(&server, "GET", &path, &[], "").1, answered);
    assert_eq!(ask(&server, "GET", "/v1/requests/car-7", &[], "").1, json!({"requests": []}));
}

#[test]
fn request_expires_and_a_late_answer_is_refused() {
    let server = Server::start(&[]);
    let mut follower = server.open("/v1/channels/requests/car-8?since=state", "application/x-ndjson");
    let (_, asked) = ask(&server, "POST", "/v1/requests/car-8?ttl=1", &[], "1");
    let path = format!("/v1/requests/car-8/{}", asked["id"].as_str().expect("an id"));
    // The end is an event: the engine deletes the key.
    follower.wait_for("\"deleted\":true");
    let (status, expired) = ask(&server, "GET", &path, &[], "");
    assert_eq!((status, &expired["state"], &expired["request"]), (200, &json!("expired"), &json!(1)), "{expired}");
    let (status, refused) = ask(&server, "POST", &path, &[], "2");
    assert_eq!((status, &refused["code"]), (409, &json!("conflict")), "{refused}");
    for (method, path, body, status, code) in [
        ("GET", "/v1/requests/car-8/none", "", 404, "not_found"),
        ("POST", "/v1/requests/car-8/none", "1", 404, "not_found"),
        ("POST", "/v1/requests/car-8", "{", 400, "bad_json"),
        ("POST", "/v1/requests/car-8?ttl=0", "1", 400, "bad_request"),
        ("POST", "/v1/requests/car-8?ttl=31days", "1", 400, "bad_request"),
        ("POST", "/v1/requests/car-8/none?state=answered", "1", 400, "bad_request"),
        ("POST", "/v1/requests/+", "1", 400, "bad_channel"),
        ("POST", "/v1/requests/a%2Fb", "1", 400, "bad_channel"),
        ("DELETE", "/v1/requests/car-8", "", 405, "method_not_allowed"),
    ] {
        let (found, problem) = ask(&server, method, path, &[], body);
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{method} {path}: {problem}");
    }
}

#[test]
fn repeated_request_is_one_request() {
    let server = Server::start(&[]);
    let ask_with = |key: &str| ask(&server, "POST", "/v1/requests/car-9", &[&format!("Idempotency-Key: {key}")], "1").1;
    let (first, again, other) = (ask_with("a"), ask_with("a"), ask_with("b"));
    assert_eq!(first, again);
    assert_ne!(first["id"], other["id"]);
    // After the answer, the repeated request returns the answer.
    let path = format!("/v1/requests/car-9/{}", first["id"].as_str().expect("an id"));
    ask(&server, "POST", &path, &[], "\"done\"");
    assert_eq!(ask_with("a")["answer"], "done");
}

#[test]
fn asking_and_answering_are_separate_permissions() {
    let server =
        Server::start_from(millrace(&["serve", "--listen", "127.0.0.1:0"]).env("MILLRACE_AUTH__SECRET", SECRET));
    let token = |args: &[&str]| {
        let created = Process::start(
            millrace(&["token", "create", "--sub", "x"]).args(args).env("MILLRACE_AUTH__SECRET", SECRET),
        );
        format!("Authorization: Bearer {}", created.finish().out.trim())
    };
    let app = token(&["--subscribe", "requests/+", "--publish", "requests/+"]);
    let device = token(&["--subscribe", "requests/car-1", "--publish", "requests/car-1/answers"]);
    let (status, asked) = ask(&server, "POST", "/v1/requests/car-1", &[&app], "1");
    assert_eq!(status, 202, "{asked}");
    let path = format!("/v1/requests/car-1/{}", asked["id"].as_str().expect("an id"));
    for (method, path, with, status) in [
        ("POST", "/v1/requests/car-1", &device, 403),
        ("POST", &path[..], &app, 403),
        ("GET", "/v1/requests/car-2", &device, 403),
        ("GET", "/v1/requests/car-1", &device, 200),
        ("POST", &path[..], &device, 200),
        ("GET", &path[..], &app, 200),
    ] {
        let (found, answer) = ask(&server, method, path, &[with], "2");
        assert_eq!(found, status, "{method} {path}: {answer}");
    }
    assert_eq!(ask(&server, "GET", &path, &[], "").0, 401);
}

#[test]
fn simulated_cars_answer_also_what_was_asked_before() {
    let server = Server::start(&[]);
    let (_, early) = ask(&server, "POST", "/v1/requests/2", &[], "{\"ask\":\"fuel\"}");
    let file = [&["file", "send", "files/1/to-car"][..], &["--to", &server.url]].concat();
    let path = folder("simulated").join("settings.json");
    fs::write(&path, "{\"speed_max\": 120}").expect("a file");
    let sent = Process::start(millrace(&file).arg(&path)).finish();
    let sha256 = sent.out.trim().to_owned();
    let args = ["simulate", "fleet", "--cars", "3", "--seed", "7", "--interval", "50ms", "--to", &server.url];
    let _fleet = Process::start(&mut millrace(&args));
    let answer = |car: &str, asked: &Value| -> Value {
        let path = format!("/v1/requests/{car}/{}", asked["id"].as_str().expect("an id"));
        let answer = server.get_until(&path, |answer| answer.body.contains("\"state\":\"answered\""));
        serde_json::from_str::<Value>(&answer.body).expect("JSON")["answer"].clone()
    };
    assert!(answer("2", &early)["fuel"].is_f64(), "the car was away when it was asked");
    let ask_car = |request: &str| {
        let (_, asked) = ask(&server, "POST", "/v1/requests/1", &[], request);
        answer("1", &asked)
    };
    assert!(ask_car("{\"ask\":\"position\"}")["gpsLatitude"].is_f64());
    assert!(ask_car("{\"ask\":\"trouble-codes\"}")["troubleCodes"].is_array());
    assert!(ask_car("{\"do\":\"clear-trouble-codes\"}")["cleared"].is_array());
    assert!(ask_car("{\"do\":\"explode\"}")["error"].is_string());
    let taken = ask_car(&json!({"read": "files/1/to-car", "sha256": sha256}).to_string());
    assert_eq!((&taken["bytes"], &taken["sha256"]), (&json!(18), &json!(sha256)));
    let log = ask_car("{\"send\":\"drive.csv\"}");
    let out = path.with_extension("csv");
    let (to, sha256) = (["--to", &server.url], log["sha256"].as_str().expect("a hash"));
    let received = Process::start(
        millrace(&["file", "receive", "files/1/from-car", "--sha256", sha256]).args(to).arg("--out").arg(&out),
    );
    assert_eq!(received.finish().code, Some(0));
    assert!(fs::read_to_string(&out).expect("a file").starts_with("time,lat,lon,elevation"));
}

#[test]
fn simulated_cars_without_answers_only_publish() {
    let server = Server::start(&[]);
    let (_, asked) = ask(&server, "POST", "/v1/requests/1", &[], "{\"ask\":\"fuel\"}");
    let args = ["simulate", "fleet", "--cars", "1", "--count", "3", "--interval", "100ms", "--no-answers"];
    let ended = Process::start(millrace(&args).args(["--to", &server.url])).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let path = format!("/v1/requests/1/{}", asked["id"].as_str().expect("an id"));
    assert_eq!(ask(&server, "GET", &path, &[], "").1["state"], "queued");
}
