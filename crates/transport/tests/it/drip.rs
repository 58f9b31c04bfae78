//! Input that arrives one byte at a time is understood, and must complete within the same deadline as a whole request.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::yield_now,
};

use crate::{
    client::{ReadOptions, Reader, ReaderKind, raw::handshake},
    server::{Answer, BOUND, Server, client, within},
};

/// Starts a proxy to a server and returns its address. The proxy forwards client bytes one at a time, and server bytes
/// as they arrive.
async fn dripping(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let server = TcpStream::connect(to).await.expect("a connection");
                server.set_nodelay(true).expect("a socket");
                let ((mut asks, mut back), (mut answers, mut into)) = (client.into_split(), server.into_split());
                let drip = async {
                    while let Ok(byte) = asks.read_u8().await {
                        if into.write_u8(byte).await.is_err() {
                            break;
                        }
                        yield_now().await;
                    }
                    let _ = into.shutdown().await;
                };
                let answer = async {
                    let _ = tokio::io::copy(&mut answers, &mut back).await;
                    let _ = back.shutdown().await;
                };
                tokio::join!(drip, answer);
            });
        }
    });
    address
}

#[tokio::test]
async fn every_transport_accepts_single_bytes() {
    let server = Server::start();
    let dripped = Server::at(dripping(server.address).await);
    for (way, n) in ReaderKind::all().zip(0..) {
        let channel = format!("drip/{n}");
        let mut reader = Reader::open(way, &dripped, &ReadOptions::one(&channel)).await;
        dripped.publish(&channel, n.to_string()).await;
        assert_eq!(reader.message().await.data.into_text(), n.to_string(), "{way:?}");
    }
    server.assert_well().await;
}

#[tokio::test]
async fn tls_accepts_single_bytes() {
    let server = Server::with(crate::server::secure);
    let address = dripping(server.address).await;
    for http2 in [false, true] {
        let url = format!("https://{address}/v1/channels/drip");
        let posted = within(client(http2).post(&url).body("\"slow\"").send()).await.expect("an answer");
        assert_eq!(Answer::read(posted).await.status, 200, "http2: {http2}");
    }
    assert_eq!(server.get("/v1/channels/drip").await.json()["messages"][0]["data"], "slow");
}

#[tokio::test]
async fn endless_slow_request_is_disconnected() {
    let short = Duration::from_secs(1);
    let limits = |config: &mut millrace_server::Config| {
        (config.limits.header_timeout, config.limits.body_timeout) = (short, short);
        (config.limits.heartbeat, config.limits.grace) = (short, short);
    };
    let server = Server::with(limits);
    let secured = Server::with(|config| {
        limits(config);
        crate::server::secure(config);
        config.tls.handshake_timeout = short;
    });
    let body = "POST /v1/channels/drip HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x04\0\0\0\x01";
    let cases: [(&str, &Server, &[u8], Option<&str>); 5] = [
        ("a head", &server, b"GET /v1/channels/drip HTTP/1.1\r\nHost: test\r\nX: ", None),
        ("a body", &server, body.as_bytes(), Some("HTTP/1.1 408 ")),
        ("a TLS handshake", &secured, &hello, None),
        ("a head of HTTP/2", &server, preface, None),
        ("a preface of HTTP/2", &server, b"PRI * HTTP/2", None),
    ];
    let mut waiting = Vec::new();
    for (what, server, beginning, answer) in cases {
        let (mut stream, beginning) =
            (TcpStream::connect(server.address).await.expect("a connection"), beginning.to_vec());
        waiting.push(tokio::spawn(async move {
            let started = Instant::now();
            stream.write_all(&beginning).await.expect("sent");
            let (mut reader, mut writer) = stream.split();
            let drip = async {
                let mut pace = tokio::time::interval(Duration::from_millis(20));
                while writer.write_all(b"a").await.is_ok() {
                    pace.tick().await;
                }
                std::future::pending().await
            };
            let read = async {
                let mut heard = Vec::new();
                let _ = reader.read_to_end(&mut heard).await;
                String::from_utf8_lossy(&heard).into_owned()
            };
            let heard = tokio::select! {
                heard = tokio::time::timeout(BOUND, read) => heard.unwrap_or_else(|_| panic!("{what} goes on and on")),
                () = drip => unreachable!("it does not end by itself"),
            };
            assert!(started.elapsed() < BOUND, "{what}");
            assert!(answer.is_none_or(|answer| heard.starts_with(answer)), "{what}: {heard}");
        }));
    }
    // A client that sends a frame slowly occupies only its own connection.
    let mut frame = crate::client::raw::Raw::connect(&server).await;
    frame.send(handshake("/v1/channels/drip", None)).await;
    assert!(frame.head().await.starts_with("HTTP/1.1 101 "));
    frame.send([0x81, 0xfe, 0x40, 0]).await;
    for case in waiting {
        case.await.expect("cut off in time");
    }
    server.assert_well().await;
}
