use std::time::Duration;

use millrace_race::Mode;
use millrace_server::{Config, Running, auth::SigningKey, config::Secret, start};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

const SECRET: &str = "a secret of thirty-two bytes or more";

struct Server {
    running: Option<Running>,
    url: String,
    http: Client,
}

impl Server {
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.server.listen = "127.0.0.1:0".parse().unwrap();
        config.server.shards = 1;
        change(&mut config);
        let running = start(config).unwrap();
        let url = format!("http://{}", running.address);
        let http = millrace_client::tls::http().timeout(Duration::from_secs(10)).build().unwrap();
        Self { running: Some(running), url, http }
    }

    async fn lanes(&self, token: &str) -> (StatusCode, Value) {
        let answer = self.http.get(format!("{}/v1/race", self.url)).bearer_auth(token).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    async fn impair(&self, lane: &str, token: Option<&str>, body: &str) -> (StatusCode, Value) {
        let mut request = self.http.post(format!("{}/v1/race/{lane}", self.url)).body(body.to_owned());
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop();
        }
    }
}

fn token(claims: Value) -> String {
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({ "sub": "ann", "exp": now_s + 60, "millrace": claims });
    SigningKey::parse(SECRET.as_bytes()).unwrap().sign(&claims, None).unwrap()
}

#[tokio::test]
async fn open_server_has_a_lane_per_transport_and_everyone_impairs() {
    let server = Server::start(|_| {});
    let (status, race) = server.lanes("").await;
    // An empty bearer token is no token at all: the request is refused before anything opens.
    assert_eq!(status, StatusCode::UNAUTHORIZED, "{race}");
    let answer = server.http.get(format!("{}/v1/race", server.url)).send().await.unwrap();
    let race: Value = answer.json().await.unwrap();
    assert_eq!(race["may_control"], true);
    let lanes = race["lanes"].as_array().unwrap();
    let names: Vec<&str> = lanes.iter().map(|lane| lane["transport"].as_str().unwrap()).collect();
    assert_eq!(names, ["websocket", "session", "sse", "stream", "long-polling", "polling", "data-channel"]);
    let through = |lane: &Value| format!("http://127.0.0.1:{}/v1/channels/demo", lane["port"]);
    for lane in lanes {
        let posted = server.http.post(through(lane)).body("{}").send().await.unwrap();
        assert_eq!(posted.status(), StatusCode::OK, "{lane}");
    }
    let (status, lane) = server.impair("polling", None, r#"{"delay_ms":150,"rate_kbit_s":64}"#).await;
    assert_eq!((status, &lane["delay_ms"], &lane["rate_kbit_s"]), (StatusCode::OK, &json!(150), &json!(64)));
    assert!(lane["bytes_up"].as_u64() > Some(0) && lane["bytes_down"].as_u64() > Some(0), "{lane}");
    assert_eq!(lane["opened"], 1);
    // A field that is missing has its default.
    let (_, lane) = server.impair("polling", None, r#"{"cut":true}"#).await;
    assert_eq!((&lane["cut"], &lane["delay_ms"]), (&json!(true), &json!(0)));

    for (lane, body, status) in [
        ("pigeon", "{}", StatusCode::NOT_FOUND),
        ("polling", r#"{"delay_ms":10001}"#, StatusCode::BAD_REQUEST),
        ("polling", r#"{"delay":1}"#, StatusCode::BAD_REQUEST),
        ("polling", "cut", StatusCode::BAD_REQUEST),
        ("polling", &format!(r#"{{"cut":{}true}}"#, " ".repeat(2000)), StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let (answered, problem) = server.impair(lane, None, body).await;
        assert_eq!(answered, status, "{lane} {body}: {problem}");
    }
    // A page of another site cannot impair a lane of this machine.
    let foreign = server.http.post(format!("{}/v1/race/sse", server.url)).header("origin", "http://evil.example");
    assert_eq!(foreign.body("{}").send().await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn only_operators_impair_lanes_of_a_server_with_authentication() {
    let server = Server::start(|config| {
        config.auth.secret = Secret::from(SECRET);
        config.race.enabled = Mode::On;
    });
    let (reader, operator) = (token(json!({ "subscribe": ["#"] })), token(json!({ "admin": true })));
    let (status, race) = server.lanes(&reader).await;
    assert_eq!((status, &race["may_control"]), (StatusCode::OK, &json!(false)));
    let anonymous = server.http.get(format!("{}/v1/race", server.url)).send().await.unwrap();
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(server.impair("sse", None, r#"{"cut":true}"#).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(server.impair("sse", Some(&reader), r#"{"cut":true}"#).await.0, StatusCode::FORBIDDEN);
    assert_eq!(server.lanes(&operator).await.1["lanes"][2]["cut"], false);
    assert_eq!(server.impair("sse", Some(&operator), r#"{"cut":true}"#).await.0, StatusCode::OK);
    assert_eq!(server.lanes(&operator).await.1["lanes"][2]["cut"], true);
}

#[tokio::test]
async fn server_with_authentication_has_no_lanes_by_default() {
    let server = Server::start(|config| config.auth.secret = Secret::from(SECRET));
    let operator = token(json!({ "admin": true, "subscribe": ["#"] }));
    let (status, problem) = server.lanes(&operator).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    assert!(problem["detail"].as_str().unwrap().contains("--race"), "{problem}");
    assert_eq!(server.impair("sse", Some(&operator), "{}").await.0, StatusCode::NOT_FOUND);
}
