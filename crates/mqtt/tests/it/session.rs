//! Single rules of MQTT 5, as short scripts.

use millrace_mqtt::{Action, Connect, Filter, Frame, Options, Reason, Session, Settings, Version};
use millrace_protocol::{
    Epoch, Position,
    encoding::record::{PublicationRecord, QOS_ANY},
};

const SETTINGS: Settings = Settings { packet_bytes_max: 4096, session_expiry_max_s: 60, publisher: 7 };

fn session(change: impl FnOnce(&mut Connect)) -> Session {
    let mut connect = Connect {
        version: Version::V5,
        client_id: "c".into(),
        is_clean: true,
        keep_alive_s: 0,
        session_expiry_s: 0,
        receive_max: u16::MAX,
        packet_bytes_max: u32::MAX,
        alias_max: 0,
        user_name: None,
        password: None,
        will: None,
    };
    change(&mut connect);
    Session::new(&connect, SETTINGS, None)
}

/// A publication of the channel `a` with this offset.
fn record(offset: u64) -> PublicationRecord<'static> {
    PublicationRecord {
        channel: "a",
        position: Position { epoch: Epoch(1), offset },
        time_ms: 1,
        expires_ms: None,
        qos: QOS_ANY,
        is_retained: false,
        publisher: 0,
        properties: &[],
        trace: &[],
        payload: b"x",
    }
}

fn subscribe(session: &mut Session, filter: &str, options: Options, identifier: u32) {
    session.subscribe(&Filter::parse(filter).expect("a filter"), options, identifier);
}

fn handle(session: &mut Session, packet: &[u8]) -> (Result<Action, Reason>, Vec<u8>) {
    let mut out = Vec::new();
    let frame = Frame::decode(packet, 4096).expect("a packet").expect("a whole packet");
    (session.handle(frame, &mut out), out)
}

fn deliver(session: &mut Session, record: &PublicationRecord<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    session.deliver(record, 0, &mut out).then_some(out)
}

#[test]
fn overlapping_subscriptions_give_one_copy_with_all_identifiers() {
    let mut session = session(|_| {});
    subscribe(&mut session, "a", Options { qos: 1, ..Options::default() }, 5);
    subscribe(&mut session, "#", Options { qos: 2, ..Options::default() }, 6);
    subscribe(&mut session, "b", Options { qos: 2, ..Options::default() }, 7);
    let packet = deliver(&mut session, &record(1)).expect("room in the window");
    assert_eq!(packet, [0x34, 11, 0, 1, b'a', 0, 1, 4, 0x0b, 5, 0x0b, 6, b'x']);
    let packet = deliver(&mut session, &PublicationRecord { qos: 0, ..record(2) }).expect("no window");
    assert_eq!(packet[0], 0x30, "the smaller quality of service counts");
}

#[test]
fn own_publications_are_not_delivered_with_no_local() {
    let mut session = session(|_| {});
    subscribe(&mut session, "a", Options { no_local: true, ..Options::default() }, 0);
    let (action, _) = handle(&mut session, b"\x30\x05\0\x01a\0x");
    let Ok(Action::Publish(incoming)) = action else { panic!("{action:?}") };
    let publisher = incoming.publication.attributes().expect("attributes").publisher;
    assert_eq!(deliver(&mut session, &PublicationRecord { publisher, ..record(1) }), Some(Vec::new()));
    assert!(!deliver(&mut session, &PublicationRecord { publisher: 8, ..record(2) }).expect("room").is_empty());
}

#[test]
fn retain_flag_is_kept_only_if_the_subscription_asks_for_it() {
    let retained = PublicationRecord { is_retained: true, ..record(1) };
    for (retain_as_published, first) in [(false, 0x30), (true, 0x31)] {
        let mut session = session(|_| {});
        subscribe(&mut session, "a", Options { retain_as_published, ..Options::default() }, 0);
        assert_eq!(deliver(&mut session, &retained).expect("room")[0], first);
    }
}

#[test]
fn aliases_replace_topics_in_both_directions() {
    let mut session = session(|connect| connect.alias_max = 1);
    subscribe(&mut session, "#", Options::default(), 0);
    assert_eq!(deliver(&mut session, &record(1)).expect("room"), [0x30, 8, 0, 1, b'a', 3, 0x23, 0, 1, b'x']);
    assert_eq!(deliver(&mut session, &record(2)).expect("room"), [0x30, 7, 0, 0, 3, 0x23, 0, 1, b'x']);
    let other = PublicationRecord { channel: "b", ..record(1) };
    assert_eq!(deliver(&mut session, &other).expect("room"), [0x30, 5, 0, 1, b'b', 0, b'x']);
    for (packet, channel) in [(&b"\x30\x08\0\x01t\x03\x23\0\x05x"[..], "t"), (b"\x30\x07\0\0\x03\x23\0\x05x", "t")] {
        let (action, _) = handle(&mut session, packet);
        let Ok(Action::Publish(incoming)) = action else { panic!("{action:?}") };
        assert_eq!(incoming.channel.as_str(), channel);
    }
    for packet in [&b"\x30\x07\0\0\x03\x23\0\x06x"[..], b"\x30\x07\0\0\x03\x23\0\0x", b"\x30\x08\0\x01t\x03\x23\0\x21x"]
    {
        assert!(matches!(handle(&mut session, packet), (Err(Reason::TOPIC_ALIAS_INVALID), _)), "{packet:?}");
    }
}

#[test]
fn publication_of_quality_two_is_published_once() {
    let mut session = session(|_| {});
    let publish = b"\x34\x07\0\x01a\0\x09\0x";
    assert!(matches!(handle(&mut session, publish), (Ok(Action::Publish(_)), _)));
    let mut out = Vec::new();
    session.published(9, 2, Ok(()), &mut out);
    assert_eq!(out, [0x50, 2, 0, 9]);
    let (action, out) = handle(&mut session, b"\x3c\x07\0\x01a\0\x09\0x");
    assert!(matches!(action, Ok(Action::Nothing)) && out == [0x50, 2, 0, 9]);
    assert_eq!(handle(&mut session, &[0x62, 2, 0, 9]).1, [0x70, 2, 0, 9]);
    assert_eq!(handle(&mut session, &[0x62, 2, 0, 9]).1, [0x70, 3, 0, 9, 0x92], "the identifier is unknown now");
    assert!(matches!(handle(&mut session, publish), (Ok(Action::Publish(_)), _)));
}

#[test]
fn receive_maximum_of_the_server_is_enforced() {
    let mut session = session(|_| {});
    for id in 1..=millrace_mqtt::RECEIVE_MAX {
        let [high, low] = id.to_be_bytes();
        let (action, _) = handle(&mut session, &[0x34, 7, 0, 1, b'a', high, low, 0, b'x']);
        assert!(matches!(action, Ok(Action::Publish(_))), "{id}");
        session.published(id, 2, Ok(()), &mut Vec::new());
    }
    let (action, _) = handle(&mut session, &[0x34, 7, 0, 1, b'a', 0xff, 1, 0, b'x']);
    assert_eq!(action.unwrap_err(), Reason::RECEIVE_MAXIMUM_EXCEEDED);
}

#[test]
fn packet_above_the_clients_maximum_is_skipped() {
    let mut session = session(|connect| (connect.packet_bytes_max, connect.receive_max) = (20, 1));
    subscribe(&mut session, "a", Options { qos: 1, ..Options::default() }, 0);
    let large = PublicationRecord { payload: &[b'x'; 30], ..record(1) };
    assert_eq!(deliver(&mut session, &large), Some(Vec::new()));
    assert!(!deliver(&mut session, &record(2)).expect("the large one takes no room").is_empty());
    assert_eq!(deliver(&mut session, &record(3)), None, "the window is full");
    assert!(matches!(handle(&mut session, &[0x40, 2, 0, 2]), (Ok(Action::Continue), _)));
    assert!(!deliver(&mut session, &record(3)).expect("room again").is_empty());
}

#[test]
fn publications_that_expire_are_not_sent() {
    let mut session = session(|_| {});
    subscribe(&mut session, "a", Options::default(), 0);
    let mut out = Vec::new();
    let record = PublicationRecord { expires_ms: Some(5000), ..record(1) };
    assert!(session.deliver(&record, 5000, &mut out) && out.is_empty());
    assert!(session.deliver(&record, 2500, &mut out));
    assert_eq!(out, [0x30, 10, 0, 1, b'a', 5, 0x02, 0, 0, 0, 3, b'x'], "three seconds are left");
}

#[test]
fn session_expiry_cannot_begin_with_disconnect() {
    let mut session = session(|_| {});
    let (action, _) = handle(&mut session, b"\xe0\x07\0\x05\x11\0\0\0\x09");
    assert_eq!(action.unwrap_err(), Reason::PROTOCOL_ERROR);
}
