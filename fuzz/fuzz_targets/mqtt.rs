//! Fuzzes what MQTT clients send: CONNECT, then packets of a session, between publications of the hub. Input: the
//! version, then a stream of packets. No input causes a panic, and the window stays within its bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_mqtt::{Action, Connect, Filter, Frame, Reason, Session, Settings};
use millrace_protocol::{
    Epoch, Position,
    encoding::record::{PublicationRecord, QOS_ANY},
};

const SETTINGS: Settings = Settings { packet_bytes_max: 4096, session_expiry_max_s: 60, publisher: 1 };

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else { return };
    let body: &[u8] = if first & 1 == 0 {
        b"\0\x04MQTT\x04\0\0\x3c\0\x01c"
    } else {
        b"\0\x04MQTT\x05\0\0\x3c\x05\x11\0\0\0\x09\0\x01c"
    };
    if first & 2 != 0 {
        let _ = Connect::decode(Frame { first: 0x10, body: data, bytes: data.len() + 2 });
        return;
    }
    let connect = Connect::decode(Frame { first: 0x10, body, bytes: body.len() + 2 }).expect("a valid packet");
    let (mut session, mut out, mut rest, mut offset) = (Session::new(&connect, SETTINGS, None), Vec::new(), data, 0);
    while let Ok(Some(frame)) = Frame::decode(rest, SETTINGS.packet_bytes_max) {
        assert!(frame.bytes >= 2 && frame.bytes <= rest.len());
        rest = &rest[frame.bytes..];
        match session.handle(frame, &mut out) {
            Ok(Action::Publish(incoming)) => {
                let outcome = if incoming.id % 3 == 0 { Err(Reason::QUOTA_EXCEEDED) } else { Ok(()) };
                session.published(incoming.id, incoming.qos, outcome, &mut out);
            }
            Ok(Action::Subscribe { filters, identifier, .. }) => {
                for (filter, options) in filters {
                    if let Ok(filter) = Filter::parse(&filter) {
                        let (index, is_new) = session.subscribe(&filter, options, identifier);
                        session.send_retained(index, is_new);
                    }
                }
            }
            Ok(Action::Unsubscribe { filters, .. }) => {
                filters.iter().filter_map(|filter| Filter::parse(filter).ok()).for_each(|filter| {
                    session.unsubscribe(&filter);
                });
            }
            Ok(Action::Disconnect { .. }) | Err(_) => break,
            Ok(Action::Nothing | Action::Continue) => {}
        }
        offset += 1;
        let record = PublicationRecord {
            channel: "a/b",
            position: Position { epoch: Epoch(1), offset },
            time_ms: offset,
            expires_ms: None,
            qos: QOS_ANY,
            is_retained: false,
            publisher: 0,
            properties: &[],
            trace: &[],
            payload: b"payload",
        };
        session.deliver(&record, 0, &mut out);
    }
    if let Some(saved) = session.end() {
        assert!(saved.bytes() < 1 << 20);
        let mut again = Vec::new();
        Session::new(&connect, SETTINGS, Some(saved)).resend(&mut again);
    }
});
