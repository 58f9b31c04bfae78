//! A datagram from a forged address causes no answer to the owner of that address, or one small answer.

use std::{net::SocketAddr, time::Instant};

use millrace_rtc::{Outputs, Peer};
use tokio::net::UdpSocket;

use crate::server::{Server, within};

/// Returns a STUN binding request that the server's peer accepts, and its destination. Only the client that made the
/// offer can build such a request.
async fn good_request(server: &Server) -> (SocketAddr, Vec<u8>) {
    let now = Instant::now();
    let offer = Peer::offer(SocketAddr::from(([127, 0, 0, 1], 1)), now);
    let answer = server.post("/v1/connect", &[("content-type", "application/sdp")], offer.sdp.clone()).await;
    let mut peer = offer.accept(&answer.text()).expect("a good answer");
    let mut out = Outputs::default();
    while out.datagrams.is_empty() {
        peer.handle_timeout(peer.timeout().max(now), &mut out).expect("it begins");
    }
    out.datagrams.pop_front().expect("a request")
}

/// Sends all datagrams from one address and returns the number of bytes that come back to that address.
async fn bytes_back(to: SocketAddr, good: &[u8], datagrams: &[Vec<u8>]) -> usize {
    let (victim, other) = (bind().await, bind().await);
    for datagram in datagrams {
        victim.send_to(datagram, to).await.expect("sent");
    }
    // One shard handles datagrams in order: once this one is answered, all earlier ones have been handled.
    let mut buffer = [0; 2048];
    other.send_to(good, to).await.expect("sent");
    within(other.recv(&mut buffer)).await.expect("an answer");
    let mut bytes = 0;
    while let Ok(length) = victim.try_recv(&mut buffer) {
        bytes += length;
    }
    bytes
}

async fn bind() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    // `try_recv` knows only the readiness events that the runtime has already received.
    socket.writable().await.expect("a socket");
    socket
}

#[tokio::test]
async fn forged_request_is_not_amplified() {
    let server = Server::with(|config| config.server.shards = 1);
    let (to, good) = good_request(&server).await;
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut datagram = good.clone();
        change(&mut datagram);
        datagram
    };
    let text = |bytes: &mut Vec<u8>| {
        let at = bytes.windows(4).position(|four| four == [0, 6, 0, bytes[23]]).map_or(24, |at| at + 4);
        bytes[at] ^= 1;
    };
    let unproven = [
        ("nothing", vec![]),
        ("one byte", vec![0]),
        ("noise", (0..1200_u32).map(|i| ((i * 7919) >> 3) as u8).collect()),
        ("media", [[0x80, 96].as_slice(), &[7; 1000]].concat()),
        ("a handshake", [[22, 254, 253, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0].as_slice(), &[1; 256]].concat()),
        ("a request of nobody", [[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42].as_slice(), &[5; 12][..]].concat()),
        ("a request for somebody unknown", changed(&text)),
        ("a request with a wrong password", {
            // The fingerprint is the last attribute, 8 bytes. The signature (MESSAGE-INTEGRITY) precedes it.
            changed(&|bytes| {
                let at = bytes.len() - 10;
                bytes[at] ^= 1;
            })
        }),
        ("half a request", good[..good.len() / 2].to_vec()),
    ];
    for (what, datagram) in unproven {
        let back = bytes_back(to, &good, &vec![datagram.clone(); 20]).await;
        assert_eq!(back, 0, "{what}");
    }
    let back = bytes_back(to, &good, &vec![good.clone(); 20]).await;
    assert!(back > 0 && back <= 20 * good.len(), "{back} bytes for {}", 20 * good.len());
}
