//! Fuzzes a TURN server with a few clients and peers, with valid, invalid and missing signatures. Input: the
//! messages, their order, and the time between them.

#![no_main]

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use libfuzzer_sys::{arbitrary::Arbitrary, fuzz_target};
use md5::{Digest, Md5};
use millrace_turn::{Action, Client, Credentials, Limits, Metrics, NoRelay, RelayId, Relays, Server, framed_bytes};

const START_MS: u64 = 1_795_208_191_000;
const SECRET: &[u8] = b"a secret";
const REALM: &str = "millrace";
const ALLOCATIONS_MAX: usize = 4;
const HEAD_BYTES: usize = 20;
const BINDING: u16 = 1;
/// Attribute types: known ones, unknown optional ones, and unknown mandatory ones.
const KINDS: [u16; 16] =
    [0x06, 0x0c, 0x0d, 0x12, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x19, 0x22, 0x7777, 0x8022];

#[derive(Arbitrary, Debug)]
enum Sent<'a> {
    Raw { client: u8, bytes: &'a [u8] },
    Signed { client: u8, method: u8, transaction: u8, attributes: Vec<(u8, &'a [u8])>, is_forged: bool },
    Peer { relay: u8, peer: [u8; 4], port: u16, bytes: &'a [u8] },
    Gone { client: u8 },
    Wait { seconds: u16 },
}

#[derive(Default)]
struct Ports {
    open: HashMap<RelayId, u16>,
    last: u16,
}

impl Relays for Ports {
    fn open(&mut self, ids: &[RelayId], is_ipv6: bool, even: bool) -> Result<SocketAddr, NoRelay> {
        let first = (self.last + 1).next_multiple_of(if even { 2 } else { 1 });
        if first > 60_000 {
            return Err(NoRelay::Full);
        }
        self.last = first + ids.len() as u16 - 1;
        self.open.extend(ids.iter().copied().zip(first..));
        let ip = if is_ipv6 { "2001:db8::1" } else { "198.51.100.1" };
        Ok(SocketAddr::new(ip.parse().expect("an address"), first))
    }
}

fuzz_target!(|sent: Vec<Sent<'_>>| {
    let figures = Arc::<Metrics>::default();
    let rules = Limits {
        allocations_max: ALLOCATIONS_MAX,
        allocations_per_user_max: 3,
        lifetime_max_s: 3600,
        bytes_per_s_max: 10_000,
        may_reach: Box::new(may_reach),
    };
    let mut server = Server::new(rules, Arc::new(Credentials::new(SECRET, REALM)), figures.clone(), [7; 32]);
    let (mut ports, mut now_ms, mut out) = (Ports { last: 1024, ..Ports::default() }, START_MS, Vec::new());
    let mut nonces: HashMap<u8, Vec<u8>> = HashMap::new();
    for one in sent {
        let (client, request, is_good) = match &one {
            Sent::Raw { client, bytes } => (*client, bytes.to_vec(), false),
            Sent::Signed { client, method, transaction, attributes, is_forged } => {
                let nonce = nonces.get(client).map_or(&b""[..], |nonce| nonce);
                (
                    *client,
                    signed(*client, u16::from(*method) % 16, *transaction, attributes, nonce, *is_forged),
                    !*is_forged,
                )
            }
            Sent::Peer { relay, peer, port, bytes } => {
                let peer = SocketAddr::new(IpAddr::from(*peer), *port);
                if server.handle_peer(now_ms, RelayId(u64::from(*relay)), peer, bytes, &mut out).is_some() {
                    assert!(may_reach(peer.ip()), "{peer} was never permitted");
                    assert!(out.len() >= bytes.len() + 4 && ports.open.contains_key(&RelayId(u64::from(*relay))));
                    assert_eq!(framed_bytes(out[..4].try_into().expect("four")), Some(out.len().next_multiple_of(4)));
                }
                continue;
            }
            Sent::Gone { client } => {
                server.disconnect(who(*client));
                close(&mut server, &mut ports);
                continue;
            }
            Sent::Wait { seconds } => {
                now_ms += u64::from(*seconds) * 1000;
                server.handle_timeout(now_ms);
                close(&mut server, &mut ports);
                continue;
            }
        };
        match server.handle(now_ms, who(client), &request, &mut ports, &mut out) {
            Action::Nothing => {}
            Action::Relay { relay, peer, payload } => {
                assert!(may_reach(peer.ip()) && ports.open.contains_key(&relay) && payload.len() <= request.len());
            }
            Action::Answer => {
                let (kind, length) = (u16::from_be_bytes([out[0], out[1]]), u16::from_be_bytes([out[2], out[3]]));
                assert!(
                    kind & 0x100 != 0 && out.len() == HEAD_BYTES + usize::from(length) && out[4..20] == request[4..20]
                );
                let is_binding = kind & !0x110 == BINDING;
                // Without a valid signature, the only allowed responses are errors and Binding responses.
                assert!(is_good || is_binding || kind & 0x10 != 0, "{kind:x} without a signature");
                assert!(is_good || out.len() + 28 < (request.len() + 28) * 2, "{} for {}", out.len(), request.len());
                if let Some(nonce) = attribute(&out, 0x15) {
                    nonces.insert(client, nonce);
                }
            }
        }
        close(&mut server, &mut ports);
        assert!(ports.open.len() <= ALLOCATIONS_MAX && figures.allocations.load(Relaxed) <= ports.open.len() as u64);
    }
    server.handle_timeout(now_ms + 24 * 3600 * 1000);
    close(&mut server, &mut ports);
    assert!(ports.open.is_empty(), "all of it ends");
});

fn close(server: &mut Server, ports: &mut Ports) {
    while let Some(relay) = server.poll_closed() {
        assert!(ports.open.remove(&relay).is_some(), "closed once, and only what is open");
    }
}

fn may_reach(ip: IpAddr) -> bool {
    !ip.is_multicast() && matches!(ip, IpAddr::V4(ip) if ip.octets()[3] % 2 == 1)
}

fn who(client: u8) -> Client {
    let address = SocketAddr::new([192, 0, 2, client % 4].into(), 5000);
    if client.is_multiple_of(2) { Client::Datagram(address) } else { Client::Stream(u64::from(client % 4), address) }
}

/// Signs with another HMAC implementation than the server's.
fn signed(
    client: u8,
    method: u16,
    transaction: u8,
    attributes: &[(u8, &[u8])],
    nonce: &[u8],
    is_forged: bool,
) -> Vec<u8> {
    type HmacSha1 = Hmac<sha1::Sha1>;
    let mac = |key: &[u8], bytes: &[u8]| {
        HmacSha1::new_from_slice(key).expect("any length").chain_update(bytes).finalize().into_bytes()
    };
    let username = format!("{}:user{}", START_MS / 1000 + 3600, client % 3);
    let password = STANDARD.encode(mac(SECRET, username.as_bytes()));
    let key = Md5::digest(format!("{username}:{REALM}:{password}{}", if is_forged { "x" } else { "" }));
    let mut out = [&method.to_be_bytes()[..], &[0, 0, 0x21, 0x12, 0xa4, 0x42], &[transaction; 12]].concat();
    let push = |out: &mut Vec<u8>, kind: u16, value: &[u8]| {
        out.extend(kind.to_be_bytes());
        out.extend((value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
        out.resize(out.len().next_multiple_of(4), 0);
    };
    for (kind, value) in attributes.iter().take(8) {
        push(&mut out, KINDS[usize::from(*kind) % KINDS.len()], &value[..value.len().min(1024)]);
    }
    for (kind, value) in [(0x06, username.as_bytes()), (0x14, REALM.as_bytes()), (0x15, nonce)] {
        push(&mut out, kind, value);
    }
    let length = (out.len() - HEAD_BYTES + 24) as u16;
    out[2..4].copy_from_slice(&length.to_be_bytes());
    let integrity = mac(&key, &out);
    push(&mut out, 0x08, &integrity);
    out
}

fn attribute(message: &[u8], wanted: u16) -> Option<Vec<u8>> {
    let mut rest = &message[HEAD_BYTES..];
    while rest.len() >= 4 {
        let (kind, length) =
            (u16::from_be_bytes([rest[0], rest[1]]), usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        if kind == wanted {
            return Some(rest[4..4 + length].to_vec());
        }
        rest = &rest[4 + length.next_multiple_of(4)..];
    }
    None
}
