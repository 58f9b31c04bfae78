//! Checks that logs, metrics and pages contain no payloads, tokens, keys or passwords.
//!
//! The server logs at the most verbose level. The test puts secrets into valid and invalid requests, and searches all
//! output for them.

use std::{
    io::{Read, Write},
    net::{TcpStream, UdpSocket},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rustix::process::Signal;
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest};

use crate::support::{BOUND, Server, free_port, run};

/// Part of every secret. The text after it tells where the secret was used.
const MARK: &str = "hush0c0ffee";

/// Log level. Libraries must be named explicitly: those that process remote input, and the clients of engines.
const EVERYTHING: &str =
    "log.level=trace,h2=trace,hyper=trace,hyper_util=trace,rustls=trace,str0m=trace,async_nats=trace,redis=trace";

/// Returns a new secret that also looks like a token. `place` names where it is used.
fn secret(place: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{MARK}-{place}-{}", NEXT.fetch_add(1, Relaxed))
}

#[test]
fn secrets_and_payloads_are_in_no_log_metric_or_page() {
    let own = secret("server.secret");
    let setting = format!("server.secret={own}");
    // Static pages are the same for all clients; only pages about this server are searched.
    let server = Server::start(&["--udp", "127.0.0.1:0", "--set", EVERYTHING, "--set", &setting]);
    let address = server.address.clone();
    say_by_http(&address);
    say_by_http2(&server.url);
    say_by_websocket(&address);
    say_by_udp(&server);

    let mut said = String::new();
    for path in ["/metrics", "/v1/info", "/", "/healthz", "/readyz", "/nowhere"] {
        said += &server.get(path).body;
    }
    let mut process = server.process;
    process.signal(Signal::TERM);
    let log = process.err.rest() + &process.out.rest();
    assert!(log.lines().count() > 20 && log.contains("TRACE"), "it said little, so little was tested: {log}");
    assert_none(&log, "the log");
    assert_none(&said, "a page");
}

#[test]
fn secrets_are_in_no_output_and_no_error() {
    let port = free_port();
    for scheme in ["redis", "nats"] {
        let url = format!("engine.url={scheme}://{}:{}@127.0.0.1:{port}", "user", secret("engine"));
        let own = format!("server.secret={}", secret("server.secret"));
        let shown = run(&["config", "effective", "--set", &url, "--set", &own]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(shown.out.contains(&format!("127.0.0.1:{port}")), "the address itself is worth showing: {}", shown.out);
        assert_none(&(shown.out + &shown.err), "config effective");
        // No engine listens at this URL. The error about that must not contain the URL's secrets.
        let server = Server::start(&["--set", EVERYTHING, "--set", &url, "--set", &own]);
        assert_none(&server.get("/v1/info").body, "a page");
        let mut process = server.process;
        process.signal(Signal::TERM);
        assert_none(&process.err.rest(), "the log of a server without its engine");
    }
    // An invalid value is reported by its key only.
    let bad = run(&["config", "check", "--set", &format!("engine.url=nonsense://u:{}@h", secret("bad engine"))]);
    assert_ne!(bad.code, Some(0));
    assert_none(&(bad.out + &bad.err), "an error about the configuration");
}

fn say_by_http(address: &str) {
    let (name, good) = (secret("key"), format!("\"{}\"", secret("payload")));
    let token = |place| format!("Authorization: Bearer {}\r\n", secret(place));
    let requests = [
        // Valid requests, with and without a token.
        request(
            "POST",
            "/v1/channels/a",
            &format!("Millrace-Key: {name}\r\nIdempotency-Key: {}\r\n", secret("idempotency")),
            &good,
        ),
        request("POST", "/v1/channels/a", &token("header"), &good),
        request(
            "POST",
            "/v1/publish",
            "",
            &format!("{{\"channel\":\"a\",\"data\":{good}}}\n{{\"channel\":\"a\",{good}\n"),
        ),
        request("GET", "/v1/channels/a?since=earliest", &token("header"), ""),
        request(
            "GET",
            "/v1/channels/a?wait=0.01",
            &format!("Cookie: token={}; millrace={0}\r\n", secret("cookie")),
            "",
        ),
        // Refused requests, one for each reason.
        request("GET", &format!("/v1/channels/a?token={}", secret("query")), "", ""),
        request("GET", &format!("/v1/channels/a?access_token={}", secret("query")), "", ""),
        request("GET", &format!("/v1/channels/a?since={}", secret("position")), &token("refused"), ""),
        request("GET", &format!("/v1/channels/a%20{}", secret("channel")), &token("refused"), ""),
        request("GET", &format!("/{}", secret("path")), &token("refused"), ""),
        request("GET", "/v1/channels/a", &format!("Accept: {}\r\n", secret("accept")), ""),
        request("GET", "/v1/channels/a", &format!("Authorization: Basic {}\r\n", secret("basic")), ""),
        request("GET", "/v1/channels/a", &format!("Last-Event-ID: {}\r\n", secret("last event")), ""),
        request(
            "POST",
            "/v1/channels/a",
            "Content-Type: application/json\r\n",
            &format!("{{\"{}\"", secret("bad JSON")),
        ),
        request("POST", "/rest/input", "", &format!("{{\"carId\":\"{}/\"", secret("bad record"))),
        request("POST", "/v1/channels/a", &format!("Millrace-TTL: {}\r\n", secret("ttl")), "1"),
        request("PATCH", "/v1/channels/a", &token("refused"), &good),
        // Invalid HTTP.
        format!(
            "GET /v1/channels/a HTTP/1.1\r\nAuthorization: Bearer {}\r\nno colon {}\r\n\r\n",
            secret("garbage"),
            secret("garbage")
        ),
        format!("{} / HTTP/9.9\r\n\r\n", secret("method")),
        format!("GET / HTTP/1.1\r\nX: {}\0\r\n\r\n", secret("control")),
        format!(
            "POST /v1/channels/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz{}\r\n",
            secret("chunk")
        ),
    ];
    for request in requests {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
        stream.write_all(request.as_bytes()).expect("it is read");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

fn say_by_http2(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = millrace_client::tls::http().http2_prior_knowledge().build().expect("a client");
        let path = |path: &str| format!("{url}{path}");
        let requests = [
            client.post(path("/v1/channels/a")).bearer_auth(secret("HTTP/2")).body(secret("HTTP/2 payload")),
            client.get(path("/v1/channels/a")).bearer_auth(secret("HTTP/2")).header("cookie", secret("HTTP/2 cookie")),
            client.get(path(&format!("/v1/channels/a?token={}", secret("HTTP/2 query")))),
            client.post(path("/v1/channels/a%00")).bearer_auth(secret("HTTP/2")).body(secret("HTTP/2 payload")),
        ];
        for request in requests {
            request.send().await.expect("an answer").bytes().await.expect("a body");
        }
    });
}

fn say_by_websocket(address: &str) {
    let (token, ticket) =
        (secret("subprotocol"), BASE64_STANDARD.encode(secret("ticket")).replace(['=', '+', '/'], ""));
    for (path, protocols) in [
        ("/v1/channels/a".to_owned(), None),
        ("/v1/connect".to_owned(), Some(format!("millrace.v1+json, bearer.{token}, resume.{ticket}"))),
        (format!("/v1/connect?token={}", secret("query")), Some("millrace.v1+json".to_owned())),
        ("/v1/connect".to_owned(), Some(format!("nonsense.{token}"))),
    ] {
        let mut request = format!("ws://{address}{path}").into_client_request().expect("a good address");
        if let Some(protocols) = &protocols {
            request.headers_mut().insert("sec-websocket-protocol", protocols.parse().expect("a header"));
        }
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
        let Ok((mut socket, _)) = tungstenite::client(request, stream) else { continue };
        for message in [
            format!("\"{}\"", secret("message")),
            format!(
                "{{\"id\":1,\"publish\":{{\"channel\":\"a\",\"data\":\"{}\",\"key\":\"{}\"}}}}",
                secret("data"),
                secret("key")
            ),
            format!("{{\"id\":2,\"{}\":{{}}}}", secret("command")),
            format!("{{\"id\":3,\"auth\":{{\"token\":\"{}\"}}}}", secret("refresh")),
            format!("{{\"id\":4,\"subscribe\":{{\"channel\":\"{} \"}}}}", secret("channel")),
            format!("{{ \"{}", secret("bad command")),
        ] {
            let _ = socket.send(Message::text(message));
        }
        let _ = socket.send(Message::binary(secret("binary").into_bytes()));
        let _ = socket.close(None);
        while socket.read().is_ok() {}
    }
}

fn say_by_udp(server: &Server) {
    let info: serde_json::Value = serde_json::from_str(&server.get("/v1/info").body).expect("JSON");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let datagrams = [
        format!("{{\"carId\":1,\"speed\":\"{}\"}}", secret("record")),
        format!(
            "{{\"channel\":\"a\",\"data\":\"{}\",\"token\":\"{}\"}}",
            secret("line"),
            secret("token of a datagram")
        ),
        format!("{{\"{}", secret("bad datagram")),
    ];
    for datagram in &datagrams {
        socket.send_to(datagram.as_bytes(), info["udp"].as_str().expect("it receives datagrams")).expect("it is sent");
    }
    let all = format!("millrace_udp_received_total {}", datagrams.len());
    server.get_until("/metrics", |answer| answer.body.contains(&all));
}

#[track_caller]
fn assert_none(text: &str, what: &str) {
    let packed = BASE64_STANDARD.encode(MARK).trim_end_matches('=').to_owned();
    // The last bits of the last character belong to the following data.
    let packed = &packed[..packed.len() - 1];
    let found: Vec<&str> = text.lines().filter(|line| line.contains(MARK) || line.contains(packed)).collect();
    assert!(found.is_empty(), "in {what}: {found:#?}");
}
