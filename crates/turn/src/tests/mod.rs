mod world;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{
    message::{
        ALLOCATE, BINDING, CHANNEL_BIND, CHANNEL_NUMBER, CREATE_PERMISSION, Class, DATA, DATA_INDICATION, EVEN_PORT,
        LIFETIME, Message, NONCE, REALM, REFRESH, REQUESTED_ADDRESS_FAMILY, REQUESTED_TRANSPORT, RESERVATION_TOKEN,
        SEND, UNKNOWN_ATTRIBUTES, USERNAME, Writer, XOR_MAPPED_ADDRESS, XOR_PEER_ADDRESS, XOR_RELAYED_ADDRESS,
    },
    *,
};
use world::*;

#[test]
fn binding_request_returns_reflexive_address() {
    let mut world = World::new();
    for address in ["192.0.2.1:5000", "[2001:db8::1]:5000"] {
        let mut guest = world.guest(address, "");
        let answer = world.request_signed(&mut guest, BINDING, &[]);
        assert_eq!((answer.class, answer.address(XOR_MAPPED_ADDRESS)), (Class::Success, address.parse().unwrap()));
    }
    let mut guest = world.guest("192.0.2.1:5000", "");
    let answer = world.request_signed(&mut guest, BINDING, &[(0x7777, &EMPTY)]);
    assert_eq!((answer.code, &answer.attributes[&UNKNOWN_ATTRIBUTES][..]), (420, &[0x77, 0x77][..]));
}

#[test]
fn valid_credentials_get_one_allocation() {
    let mut world = World::new();
    let mut guest = world.guest("192.0.2.1:5000", "alice");
    let asked = world.request_once(&mut guest, ALLOCATE, &[UDP]);
    assert_eq!((asked.code, &asked.attributes[&REALM][..]), (401, &b"millrace"[..]));
    assert!(world.ports.open.is_empty(), "nothing is opened for a stranger");
    let answer = world.request_once(&mut guest, ALLOCATE, &[UDP]);
    assert_eq!((answer.class, answer.lifetime_s()), (Class::Success, 600));
    assert_eq!(answer.address(XOR_RELAYED_ADDRESS), "198.51.100.1:50001".parse().unwrap());
    assert_eq!(answer.address(XOR_MAPPED_ADDRESS), guest.client.address());
    // The answer was lost, and the client repeats the request.
    assert_eq!(world.request_once(&mut guest, ALLOCATE, &[UDP]).bytes, answer.bytes);
    guest.next();
    assert_eq!(world.request_once(&mut guest, ALLOCATE, &[UDP]).code, 437);
    assert_eq!(world.ports.open.len(), 1);
    assert_eq!(world.metrics.allocations.load(Relaxed), 1);
}

#[test]
fn invalid_credentials_are_rejected() {
    let mut world = World::new();
    let mut refused = |change: &dyn Fn(&mut Login)| {
        let mut guest = world.guest("192.0.2.1:5000", "alice");
        change(guest.login.as_mut().unwrap());
        (0..3).map(|_| world.request_once(&mut guest, ALLOCATE, &[UDP]).code).collect::<Vec<_>>()
    };
    assert_eq!(refused(&|login| login.password.push('x')), [401, 401, 401]);
    assert_eq!(refused(&|login| login.username.push('x')), [401, 401, 401]);
    assert_eq!(refused(&|login| login.username = "alice".into()), [401, 401, 401]);
    let expired = Credentials::new(b"a secret", "millrace").login("alice", START_MS / 1000);
    assert_eq!(refused(&|login| *login = expired.clone()), [401, 401, 401]);
    let foreign = Credentials::new(b"another secret", "millrace").login("alice", START_MS);
    assert_eq!(refused(&|login| *login = foreign.clone()), [401, 401, 401]);
    assert!(world.ports.open.is_empty() && world.metrics.allocated.load(Relaxed) == 0);
    assert_eq!(world.metrics.unauthorized.load(Relaxed), 15);
}

#[test]
fn expired_username_keeps_existing_allocation_only() {
    let mut world = World::new();
    let mut guest = world.guest("192.0.2.1:5000", "alice");
    guest.login = Some(world.credentials.login("alice", START_MS / 1000 + 60));
    assert_eq!(world.request_signed(&mut guest, ALLOCATE, &[UDP]).code, 0);
    world.wait(61);
    guest.next();
    assert_eq!(world.request_signed(&mut guest, REFRESH, &[]).code, 0);
    let mut again = Guest { client: Client::Datagram("192.0.2.1:5001".parse().unwrap()), ..guest };
    again.nonce.clear();
    assert_eq!(world.request_signed(&mut again, ALLOCATE, &[UDP]).code, 401);
}

#[test]
fn stale_or_foreign_nonce_is_rejected() {
    let mut world = World::new();
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    let old = guest.nonce.clone();
    for _ in 0..7 {
        world.wait(590);
        guest.next();
        assert_eq!(world.request_signed(&mut guest, REFRESH, &[]).code, 0);
    }
    assert_ne!(guest.nonce, old);
    guest.nonce = old;
    assert_eq!(world.request_once(&mut guest, REFRESH, &[]).code, 438);
    let mut thief = Guest { client: Client::Datagram("192.0.2.66:5000".parse().unwrap()), ..guest };
    assert_eq!(world.request_once(&mut thief, ALLOCATE, &[UDP]).code, 438);
}

#[test]
fn allocation_expires_after_its_lifetime() {
    let mut world = World::with(|limits| limits.lifetime_max_s = 1800);
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    world.wait(599);
    assert_eq!(world.ports.open.len(), 1);
    guest.next();
    let mut asked = |world: &mut World, seconds: u32| {
        guest.next();
        world.request_signed(&mut guest, REFRESH, &[(LIFETIME, &seconds.to_be_bytes())]).lifetime_s()
    };
    assert_eq!([60, 900, 100_000].map(|seconds| asked(&mut world, seconds)), [600, 900, 1800]);
    world.wait(1799);
    assert_eq!(world.ports.open.len(), 1);
    world.wait(1);
    assert_eq!((world.ports.open.len(), world.metrics.allocations.load(Relaxed)), (0, 0));

    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    guest.next();
    assert_eq!(world.request_signed(&mut guest, REFRESH, &[(LIFETIME, &[0; 4])]).lifetime_s(), 0);
    guest.next();
    assert_eq!(world.request_signed(&mut guest, REFRESH, &[]).code, 437);
    world.wait(0);
    assert!(world.ports.open.is_empty());
}

#[test]
fn closed_stream_ends_its_allocation() {
    let mut world = World::new();
    let mut guest = world.guest("192.0.2.1:5000", "alice");
    guest.client = Client::Stream(1, guest.client.address());
    assert_eq!(world.request_signed(&mut guest, ALLOCATE, &[UDP]).code, 0);
    world.server.disconnect(Client::Stream(2, guest.client.address()));
    world.wait(0);
    assert_eq!(world.ports.open.len(), 1);
    world.server.disconnect(guest.client);
    world.wait(0);
    assert!(world.ports.open.is_empty());
}

#[test]
fn only_permitted_peers_pass_until_expiry() {
    let mut world = World::new();
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    assert!(world.receive_from_peer(50_001, PEER, b"hello").is_none());
    guest.next();
    let peer = guest.xor_address(PEER.parse().unwrap());
    let indication = |guest: &Guest| {
        let mut out = Vec::new();
        let writer = Writer::new(&mut out, Class::Indication, SEND, guest.transaction());
        writer.attribute(XOR_PEER_ADDRESS, &peer).attribute(DATA, b"ping").end();
        out
    };
    let ping = indication(&guest);
    assert_eq!(world.handle(guest.client, &ping).0, Action::Nothing);
    assert_eq!(world.permit(&mut guest, &[PEER]).code, 0);
    let relayed = Action::Relay { relay: world.relay_of(50_001), peer: PEER.parse().unwrap(), payload: b"ping" };
    assert_eq!(world.handle(guest.client, &ping).0, relayed);
    // Another port of the same peer is permitted too, because permissions apply to addresses.
    let (client, bytes) = world.receive_from_peer(50_001, "192.0.2.50:1", b"pong").unwrap();
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((client, message.class, message.method), (guest.client, Class::Indication, DATA_INDICATION));
    assert_eq!(message.get(DATA), Some(&b"pong"[..]));
    assert_eq!(message.address(message.get(XOR_PEER_ADDRESS).unwrap()), Some("192.0.2.50:1".parse().unwrap()));
    assert!(world.receive_from_peer(50_001, "192.0.2.51:9000", b"x").is_none());
    world.wait(301);
    assert_eq!(world.handle(guest.client, &ping).0, Action::Nothing);
    assert!(world.receive_from_peer(50_001, PEER, b"late").is_none());
    let sent = [&world.metrics.bytes_to_peers, &world.metrics.bytes_to_clients, &world.metrics.dropped]
        .map(|n| n.load(Relaxed));
    assert_eq!(sent, [4, 4, 5]);
    let counts = |world: &World| {
        let (rows, rest) = world.metrics.registry.read();
        assert_eq!((rows.len(), rest), (1, Counts::default()));
        let Counts { datagrams_to_peers, bytes_to_peers, datagrams_to_clients, bytes_to_clients, over_quota } =
            rows[0].counts;
        let all = [datagrams_to_peers, bytes_to_peers, datagrams_to_clients, bytes_to_clients, over_quota];
        (rows[0].user.to_string(), rows[0].has_ended, all)
    };
    assert_eq!(counts(&world), ("alice".into(), false, [1, 4, 1, 4, 0]), "the only allocation has the totals");
    // An allocation that ends between two readings is still listed.
    world.wait(600);
    assert_eq!(counts(&world), ("alice".into(), true, [1, 4, 1, 4, 0]));
}

#[test]
fn channel_data_carries_payload_both_ways() {
    let mut world = World::new();
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    guest.next();
    assert_eq!(world.bind(&mut guest, 0x4001, PEER).code, 0);
    let relayed = Action::Relay { relay: world.relay_of(50_001), peer: PEER.parse().unwrap(), payload: b"ping!" };
    assert_eq!(world.handle(guest.client, b"\x40\x01\0\x05ping!").0, relayed);
    // Padded as on a stream, or truncated.
    assert_eq!(world.handle(guest.client, b"\x40\x01\0\x05ping!\0\0\0").0, relayed);
    assert_eq!(world.handle(guest.client, b"\x40\x01\0\x06ping!").0, Action::Nothing);
    assert_eq!(world.handle(guest.client, b"\x40\x02\0\x05ping!").0, Action::Nothing);
    assert_eq!(world.receive_from_peer(50_001, PEER, b"pong!"), Some((guest.client, b"\x40\x01\0\x05pong!".to_vec())));
    for (number, peer) in
        [(0x4001, "192.0.2.51:9000"), (0x4002, PEER), (0x3fff, "192.0.2.52:1"), (0x7fff, "192.0.2.52:1")]
    {
        guest.next();
        assert_eq!(world.bind(&mut guest, number, peer).code, 400, "{number:x} {peer}");
    }
    world.wait(299);
    guest.next();
    assert_eq!(world.bind(&mut guest, 0x4001, PEER).code, 0, "the same again keeps it");
    world.wait(299);
    assert!(world.receive_from_peer(50_001, PEER, b"pong!").is_some());
    guest.next();
    assert_eq!(world.request_signed(&mut guest, REFRESH, &[]).code, 0);
    world.wait(302);
    assert_eq!(world.handle(guest.client, b"\x40\x01\0\x05ping!").0, Action::Nothing);
}

#[test]
fn channel_data_on_stream_is_padded() {
    let mut world = World::new();
    let mut guest = world.guest("192.0.2.1:5000", "alice");
    guest.client = Client::Stream(1, guest.client.address());
    assert_eq!(world.request_signed(&mut guest, ALLOCATE, &[UDP]).code, 0);
    guest.next();
    assert_eq!(world.bind(&mut guest, 0x4001, PEER).code, 0);
    let (_, bytes) = world.receive_from_peer(50_001, PEER, b"pong!").unwrap();
    assert_eq!(bytes, b"\x40\x01\0\x05pong!\0\0\0");
    assert_eq!(framed_bytes(bytes[..4].try_into().unwrap()), Some(bytes.len()));
}

#[test]
fn peers_excluded_by_policy_are_forbidden() {
    let mut world = World::new();
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    for peer in ["10.0.0.1:80", "224.0.0.1:80", "255.255.255.255:80", "0.0.0.0:80"] {
        guest.next();
        assert_eq!(world.permit(&mut guest, &[peer]).code, 403, "{peer}");
        guest.next();
        assert_eq!(world.bind(&mut guest, 0x4001, peer).code, 403, "{peer}");
    }
    guest.next();
    assert_eq!(world.permit(&mut guest, &[PEER, "10.0.0.1:80"]).code, 403);
    assert!(world.receive_from_peer(50_001, PEER, b"x").is_none(), "all of them, or none");
    guest.next();
    assert_eq!(world.permit(&mut guest, &["[2001:db8::1]:80"]).code, 443);
    guest.next();
    assert_eq!(world.permit(&mut guest, &["[::ffff:10.0.0.1]:80"]).code, 443);
    guest.next();
    assert_eq!(world.permit(&mut guest, &[]).code, 400);
}

#[test]
fn allocations_are_limited_per_user_and_server() {
    let mut world = World::with(|limits| limits.allocations_max = 5);
    for port in 5000..5003 {
        world.allocated(&format!("192.0.2.1:{port}"), "alice");
    }
    let mut fourth = world.guest("192.0.2.9:5003", "alice");
    assert_eq!(world.request_signed(&mut fourth, ALLOCATE, &[UDP]).code, 486, "from anywhere");
    world.allocated("192.0.2.2:5000", "bob");
    // Clients without a subject are counted by address, whatever their credentials.
    let mut unnamed = world.allocated("192.0.2.3:5000", "");
    let mut late = world.guest("192.0.2.4:5000", "carol");
    assert_eq!(world.request_signed(&mut late, ALLOCATE, &[UDP]).code, 508);
    unnamed.next();
    world.request_signed(&mut unnamed, REFRESH, &[(LIFETIME, &[0; 4])]);
    assert_eq!(world.request_signed(&mut late, ALLOCATE, &[UDP]).code, 0, "there is room again");
    world.wait(601);
    assert!(world.ports.open.is_empty());
    world.ports.last = 50_000;
    world.allocated("192.0.2.1:5000", "alice");
}

#[test]
fn bytes_are_limited_per_user() {
    let mut world = World::with(|limits| limits.bytes_per_s_max = 1000);
    for port in [5000, 5001] {
        let mut guest = world.allocated(&format!("192.0.2.1:{port}"), "alice");
        guest.next();
        assert_eq!(world.bind(&mut guest, 0x4001, PEER).code, 0);
    }
    let message = [&b"\x40\x01\0\xfa"[..], &[0; 250]].concat();
    let client = |port| Client::Datagram(SocketAddr::new("192.0.2.1".parse().unwrap(), port));
    let out = |world: &mut World, port| matches!(world.handle(client(port), &message).0, Action::Relay { .. });
    assert!(out(&mut world, 5000) && out(&mut world, 5001));
    assert!(
        world.receive_from_peer(50_001, PEER, &[0; 250]).is_some()
            && world.receive_from_peer(50_002, PEER, &[0; 250]).is_some()
    );
    assert!(!out(&mut world, 5000) && world.receive_from_peer(50_001, PEER, &[0; 250]).is_none());
    assert_eq!(world.metrics.over_quota.load(Relaxed), 2);
    world.now_ms += 250;
    assert!(out(&mut world, 5001) && !out(&mut world, 5001));
}

#[test]
fn unsupported_requests_get_specific_errors() {
    let mut world = World::new();
    let cases: [(&[Attribute<'_>], u16); 8] = [
        (&[(LIFETIME, &[0, 0, 2, 0])], 400),
        (&[(REQUESTED_TRANSPORT, &[6, 0, 0, 0])], 442),
        (&[(REQUESTED_TRANSPORT, &[17])], 400),
        (&[UDP, (REQUESTED_ADDRESS_FAMILY, &[2, 0, 0, 0])], 440),
        (&[UDP, (REQUESTED_ADDRESS_FAMILY, &[3, 0, 0, 0])], 440),
        (&[UDP, (0x1a, &EMPTY)], 420),
        (&[UDP, (RESERVATION_TOKEN, &[1; 8])], 508),
        (&[UDP, (RESERVATION_TOKEN, &[1; 8]), (EVEN_PORT, &[0])], 400),
    ];
    for (attributes, code) in cases {
        let mut guest = world.guest("192.0.2.1:5000", "alice");
        assert_eq!(world.request_signed(&mut guest, ALLOCATE, attributes).code, code, "{attributes:x?}");
    }
    assert!(world.ports.open.is_empty());
}

#[test]
fn reserved_port_requires_its_token() {
    let mut world = World::new();
    let mut guest = world.guest("192.0.2.1:5000", "alice");
    let answer = world.request_signed(&mut guest, ALLOCATE, &[UDP, (EVEN_PORT, &[0x80])]);
    let (port, token) = (answer.address(XOR_RELAYED_ADDRESS).port(), answer.attributes[&RESERVATION_TOKEN].clone());
    assert_eq!((port, world.ports.open.len()), (50_002, 2));
    let mut other = world.guest("192.0.2.2:5000", "bob");
    assert_eq!(
        world.request_signed(&mut other, ALLOCATE, &[UDP, (RESERVATION_TOKEN, &token)]).code,
        508,
        "it is another one's"
    );
    let mut second = world.guest("192.0.2.1:5001", "alice");
    let answer = world.request_signed(&mut second, ALLOCATE, &[UDP, (RESERVATION_TOKEN, &token)]);
    assert_eq!(answer.address(XOR_RELAYED_ADDRESS).port(), 50_003);
    // A reserved port that no client requests is closed after 30 s. It counts toward the quotas until then.
    let mut third = world.guest("192.0.2.1:5002", "alice");
    assert_eq!(world.request_signed(&mut third, ALLOCATE, &[UDP, (EVEN_PORT, &[0x80])]).code, 486);
    let mut pair = world.guest("192.0.2.2:5000", "bob");
    assert_eq!(world.request_signed(&mut pair, ALLOCATE, &[UDP, (EVEN_PORT, &[0x80])]).code, 0);
    world.wait(29);
    assert_eq!(world.ports.open.len(), 4);
    world.wait(1);
    assert_eq!(world.ports.open.len(), 3);
}

#[test]
fn allocation_rejects_other_users() {
    let mut world = World::new();
    let guest = world.allocated("192.0.2.1:5000", "alice");
    let mut thief = world.guest("192.0.2.1:5000", "mallory");
    thief.nonce = guest.nonce;
    thief.next();
    for (method, attributes) in [(REFRESH, &[][..]), (ALLOCATE, &[UDP])] {
        let code = world.request_signed(&mut thief, method, attributes).code;
        assert!([437, 441].contains(&code), "{method} {code}");
    }
    assert_eq!(world.permit(&mut thief, &[PEER]).code, 441);
    assert_eq!(world.bind(&mut thief, 0x4001, PEER).code, 441);
}

/// Limits how much traffic a client with a forged address can cause at that address.
#[test]
fn unauthenticated_response_is_below_twice_request() {
    const UDP_AND_IPV4_BYTES: usize = 28;
    const UDP_AND_IPV6_BYTES: usize = 48;
    let mut world = World::new();
    // The longest realm produces the longest possible answer.
    let credentials = Arc::new(Credentials::new(b"a secret", &"r".repeat(REALM_BYTES_MAX)));
    world.server = Server::new(limits(), credentials, world.metrics.clone(), [7; 32]);
    for (address, around) in [("192.0.2.1:5000", UDP_AND_IPV4_BYTES), ("[2001:db8::1]:5000", UDP_AND_IPV6_BYTES)] {
        let mut guest = world.guest(address, "");
        let methods = [BINDING, ALLOCATE, REFRESH, CREATE_PERMISSION, CHANNEL_BIND, 0x123];
        let attributes: [&[(u16, &[u8])]; 6] = [
            &[],
            &[UDP],
            &[(0x7777, &EMPTY)],
            &[(0x7777, &EMPTY), (0x7778, &EMPTY), (0x7779, &EMPTY), (0x777a, &EMPTY)],
            &[(USERNAME, &EMPTY), (REALM, &EMPTY), (NONCE, &EMPTY), (8, &[0; 20])],
            &[(8, &[0; 20])],
        ];
        for method in methods {
            for attributes in attributes {
                guest.nonce.clear();
                let request = guest.request("", method, attributes);
                let (_, answer) = world.handle(guest.client, &request);
                let (asked, told) = (request.len() + around, answer.len() + around);
                assert!(told < asked * 2, "{method} {attributes:x?}: {asked} {told}");
            }
        }
    }
}

/// Changes every byte of every request of a conversation. Nothing panics, and each changed request is refused
/// if it needs a signature.
#[test]
fn modified_requests_are_rejected() {
    let mut world = World::new();
    let mut guest = world.allocated("192.0.2.1:5000", "alice");
    guest.next();
    let peer = guest.xor_address(PEER.parse().unwrap());
    let number = [0x40, 1, 0, 0];
    let requests = [
        guest.request("millrace", CHANNEL_BIND, &[(CHANNEL_NUMBER, &number), (XOR_PEER_ADDRESS, &peer)]),
        guest.request("millrace", CREATE_PERMISSION, &[(XOR_PEER_ADDRESS, &peer)]),
        guest.request("millrace", REFRESH, &[(LIFETIME, &[0; 4])]),
    ];
    for request in &requests {
        for at in 0..request.len() {
            for value in [0, 0xff, request[at] ^ 1, request[at] ^ 0x80] {
                let mut changed = request.clone();
                changed[at] = value;
                if changed == *request {
                    continue;
                }
                let (step, answer) = world.handle(guest.client, &changed);
                if step == Action::Answer {
                    let answer = Response::of(&answer, &changed);
                    // A binding request needs no signature.
                    let is_binding = Message::parse(&changed).unwrap().method == BINDING;
                    assert!(is_binding || answer.class == Class::Error, "{at} {value:x}");
                }
            }
            world.handle(guest.client, &request[..at]);
        }
    }
    assert!(world.server.is_known(guest.client));
    assert!(world.receive_from_peer(50_001, PEER, b"x").is_none());
}
