//! Attacks with new names: channels, idempotency keys and patterns, and all public requests about them.

use std::{cell::Cell, io};

use tokio::io::AsyncWriteExt;

use super::{frame, get, post, upgrade};
use crate::trial::AttackContext;

const LINES: u64 = 500;
/// Lines of a batch when each line may wait for an engine.
const FEW_LINES: u64 = 100;
/// Subscriptions of one session.
const SUBSCRIPTIONS: u64 = 1_000;

/// Publishes once to each of up to a million channels, and subscribes to new channels.
pub async fn channels(context: &AttackContext) {
    let (next, most) = (Cell::new(0), if context.full { 1_000_000 } else { 200_000 });
    context
        .again(8, async |lane| {
            let mut stream = context.connect(lane).await?;
            if lane >= 4 {
                return subscribe(context, stream, |i| format!("names/{lane}/{i:x}/{}", scramble(i))).await;
            }
            loop {
                let first = next.replace(next.get() + LINES);
                if first >= most {
                    return std::future::pending().await;
                }
                let line = |i: u64| format!("{{\"channel\":\"names/{}/{i:x}\",\"data\":{i}}}\n", scramble(i));
                let body: String = (first..first + LINES).map(line).collect();
                post(&mut stream, "/v1/publish", "", body.as_bytes()).await?;
                context.done(LINES);
            }
        })
        .await;
}

/// Creates channels from one address as fast as the server responds, and continues after a refusal.
pub async fn neighbour(context: &AttackContext) {
    let next = Cell::new(0);
    context
        .again(4, async |lane| {
            let mut stream = context.connect(lane).await?;
            loop {
                let first = next.replace(next.get() + FEW_LINES);
                let line = |i: u64| format!("{{\"channel\":\"names/{}/{i:x}\",\"data\":{i}}}\n", scramble(i));
                let body: String = (first..first + FEW_LINES).map(line).collect();
                post(&mut stream, "/v1/publish", "", body.as_bytes()).await?;
                if post(&mut stream, &format!("/v1/channels/names/one/{first}"), "", b"0").await? == 429 {
                    context.refused(1);
                }
                context.done(FEW_LINES + 1);
            }
        })
        .await;
}

/// Publishes over many channels, each publication with a new key of nearly the maximum length.
pub async fn idempotency_keys(context: &AttackContext) {
    context.again(4, async |lane| {
        let mut stream = context.connect(lane).await?;
        for batch in 0u64.. {
            let line = |i: u64| {
                let (channel, key) = ((batch * LINES + i) % 50_000, "k".repeat(230));
                format!(
                    "{{\"channel\":\"keys/{channel}\",\"data\":0,\"idempotency_key\":\"{lane}/{batch}/{i}/{key}\"}}\n"
                )
            };
            let body: String = (0..LINES).map(line).collect();
            post(&mut stream, "/v1/publish", "", body.as_bytes()).await?;
            context.done(LINES);
        }
        Ok(())
    })
    .await;
}

/// Subscribes many sessions to the maximum number of patterns, and publishes messages that must be matched against
/// all of them.
pub async fn patterns(context: &AttackContext) {
    let sessions = if context.full { 64 } else { 16 };
    context
        .again(sessions + 2, async |lane| {
            let mut stream = context.connect(lane).await?;
            if lane < sessions {
                return subscribe(context, stream, |i| format!("+/{}/+/p{lane}/+/{i}/#", scramble(i))).await;
            }
            for i in 0u64.. {
                let path = format!("/v1/channels/a/{}/b/p1/c/{i}/d", scramble(i));
                post(&mut stream, &path, "", b"0").await?;
                context.done(1);
            }
            Ok(())
        })
        .await;
}

/// Sends all requests that need no credentials.
pub async fn scraping(context: &AttackContext) {
    let line = |i: u64| format!("{{\"channel\":\"scraped\",\"data\":\"{i} {}\"}}\n", "x".repeat(100));
    let body: String = (0..1000).map(line).collect();
    context
        .again(16, async |lane| {
            let mut stream = context.connect(lane).await?;
            if lane == 0 {
                post(&mut stream, "/v1/publish", "", body.as_bytes()).await?;
            }
            for i in 0u64.. {
                let name = scramble(i);
                let path = match (lane as u64 + i) % 6 {
                    0 => format!("/v1/presence/scraped/{name}"),
                    1 => "/v1/channels/scraped?since=earliest&limit=1000".to_owned(),
                    2 => format!("/v1/channels/scraped/{name}?since=earliest&limit=1000"),
                    3 => "/metrics".to_owned(),
                    4 => format!("/v1/stream?channel=scraped&channel=scraped/{name}&since=earliest"),
                    _ => "/v1/info".to_owned(),
                };
                get(&mut stream, &path, "").await?;
                context.done(1);
            }
            Ok(())
        })
        .await;
}

/// Opens a session that subscribes to the maximum number of names and then ends. The messages it receives stay mostly
/// unread.
async fn subscribe(
    context: &AttackContext,
    mut stream: tokio::net::TcpStream,
    name: impl Fn(u64) -> String,
) -> io::Result<()> {
    upgrade(&mut stream, "/v1/connect", "Sec-WebSocket-Protocol: millrace.v1+json\r\n").await?;
    for first in (1..=SUBSCRIPTIONS).step_by(100) {
        let command =
            |id: u64| frame(0x81, format!("{{\"id\":{id},\"subscribe\":{{\"channel\":\"{}\"}}}}", name(id)).as_bytes());
        let commands: Vec<u8> = (first..first + 100).flat_map(command).collect();
        stream.write_all(&commands).await?;
        let mut scratch = [0; 64 * 1024];
        let _ = stream.try_read(&mut scratch);
        context.done(100);
    }
    stream.readable().await
}

/// Returns a different text for each number; the texts share no common prefix.
fn scramble(i: u64) -> String {
    format!("{:x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
