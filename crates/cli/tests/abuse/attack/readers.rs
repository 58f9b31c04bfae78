//! Readers that read nothing while they are flooded, on every transport.

use std::io;

use tokio::io::AsyncWriteExt;

use super::{frame, http2, upgrade};
use crate::trial::AttackContext;

/// Readers of each kind, one per channel. With many channels, the limit of a single channel is not what protects the
/// server.
const PER_KIND: usize = 10;
/// Bytes of one publication. The kernel buffers of such a reader hold less.
const BYTES: usize = 200_000;

pub async fn slow(context: &AttackContext) {
    let wait = async |lane: usize| -> io::Result<()> {
        // The receive buffer is too small for the first publication.
        let mut stream = context.connect_with(lane, |socket| socket.set_recv_buffer_size(4096)).await?;
        let channel = format!("/v1/channels/flood/{}", lane % PER_KIND);
        let get = |path: &str, accept: &str| format!("GET {path} HTTP/1.1\r\nHost: attack\r\nAccept: {accept}\r\n\r\n");
        match lane / PER_KIND {
            0 => upgrade(&mut stream, &channel, "").await?,
            1 => upgrade(&mut stream, &channel, "Sec-WebSocket-Protocol: millrace.v1+json\r\n").await?,
            2 => stream.write_all(get(&channel, "text/event-stream").as_bytes()).await?,
            3 => stream.write_all(get(&channel, "application/x-ndjson").as_bytes()).await?,
            // Pipelined requests whose responses are never read.
            4 => stream.write_all(get(&(channel + "?since=earliest"), "*/*").repeat(20).as_bytes()).await?,
            5 => stream.write_all(get(&(channel + "?wait=30"), "*/*").repeat(20).as_bytes()).await?,
            _ => {
                let streams: Vec<u8> =
                    (0..20).flat_map(|i| http2::request(1 + 2 * i, &channel, Some("text/event-stream"))).collect();
                stream.write_all(&[http2::opening(1 << 30), streams].concat()).await?;
            }
        }
        std::future::pending().await
    };
    let flood = async {
        let message = frame(0x82, &vec![b'x'; BYTES]);
        context
            .again(PER_KIND, async |lane| {
                let mut stream = context.connect(lane).await?;
                upgrade(&mut stream, &format!("/v1/channels/flood/{lane}?subscribe=no"), "").await?;
                loop {
                    stream.write_all(&message).await?;
                    context.done(1);
                }
            })
            .await;
    };
    futures_util::future::join(context.again(7 * PER_KIND, wait), flood).await;
}
