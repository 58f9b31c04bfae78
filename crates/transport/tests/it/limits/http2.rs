//! Floods of HTTP/2 frames.

use std::time::{Duration, Instant};

use crate::{client::raw::Raw, server::Server};

/// Returns one HTTP/2 frame. Source: RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Opens a connection and sends the HTTP/2 preface and settings.
async fn connect(server: &Server) -> Raw {
    let mut raw = Raw::connect(server).await;
    raw.send([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat()).await;
    raw
}

/// Returns the error code of the last GOAWAY among these frames.
fn goaway(mut bytes: &[u8]) -> Option<u32> {
    let mut found = None;
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        if bytes[3] == 7 && bytes.len() >= 9 + 8 {
            found = Some(u32::from_be_bytes(bytes[13..17].try_into().expect("four bytes")));
        }
        bytes = bytes.get(9 + length..)?;
    }
    found
}

/// `GET`, `http`, `/` from the static table, and an authority. Source: RFC 7541, appendix A.
const REQUEST: &[u8] = &[0x82, 0x86, 0x84, 0x01, 4, b't', b'e', b's', b't'];
const ENHANCE_YOUR_CALM: u32 = 11;

#[tokio::test]
async fn rapid_reset_ends_the_connection() {
    let server = Server::start();
    let mut raw = connect(&server).await;
    let pair = |i: u32| [frame(1, 5, 2 * i + 1, REQUEST), frame(3, 0, 2 * i + 1, &8u32.to_be_bytes())].concat();
    raw.send((0..3000).flat_map(pair).collect::<Vec<u8>>()).await;
    assert_eq!(goaway(&raw.read_to_end().await), Some(ENHANCE_YOUR_CALM));
    server.assert_well().await;
}

#[tokio::test]
async fn continuation_flood_ends_the_connection() {
    let server = Server::start();
    let mut raw = connect(&server).await;
    let literal = [[0x00, 1, b'x', 0x7f, 0x81, 0x7d].as_slice(), &[b'y'; 16_000]].concat();
    raw.send(frame(1, 1, 1, REQUEST)).await;
    for _ in 0..200 {
        raw.send(frame(9, 0, 1, &literal)).await;
    }
    raw.read_to_end().await;
    server.assert_well().await;
}

#[tokio::test]
async fn ping_and_settings_floods_are_tolerated() {
    let server = Server::with(|config| config.limits.write_timeout = Duration::from_secs(1));
    for flood in [frame(6, 0, 0, &[0; 8]), frame(4, 0, 0, &[0, 3, 0, 0, 0, 1])] {
        let mut raw = connect(&server).await;
        let sender = tokio::spawn(async move {
            // The client reads nothing. In the end the server stops reading, too, and then closes the connection.
            for _ in 0..1000 {
                raw.send(flood.repeat(1000)).await;
            }
        });
        for _ in 0..5 {
            let began = Instant::now();
            server.assert_well().await;
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
        sender.abort();
    }
}
