//! Fuzzes device datagrams through a real socket of a real shard. An accepted datagram is a record or a publication;
//! any other is counted and does no harm. Input: a datagram.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::world::{self, CHANNELS_MAX, MESSAGE_BYTES_MAX};
use millrace_protocol::{
    ChannelName, Grant, Permission,
    session::{Target, decode_publish},
};
use serde_json::Value;

/// Maximum size of a datagram.
///
/// Source: docs/reference/protocol.md, "CarCare aliases".
const DATAGRAM_BYTES_MAX: usize = 1472;

fuzz_target!(|datagram: &[u8]| {
    world::with(&mut |world| {
        let grant = world.context.admission.access.authority.anonymous();
        if world.send(datagram) {
            assert!(is_good(datagram, &grant), "taken: {}", String::from_utf8_lossy(datagram));
        } else {
            // A valid datagram may also be dropped because the number of channels is at its limit.
            let is_full = world.context.shard.engine.size().0 + 2 > CHANNELS_MAX;
            assert!(is_full || !is_good(datagram, &grant), "dropped: {}", String::from_utf8_lossy(datagram));
        }
    });
});

fn is_good(datagram: &[u8], grant: &Grant) -> bool {
    let Ok(text) = std::str::from_utf8(datagram) else { return false };
    if datagram.len() > DATAGRAM_BYTES_MAX {
        return false;
    }
    let may = |channel| grant.check(Permission::Publish, &Target::Channel(channel)).is_ok();
    if let Ok((channel, publication)) = decode_publish(text) {
        return publication.data.len() <= MESSAGE_BYTES_MAX && may(channel);
    }
    let Ok(Value::Object(record)) = serde_json::from_str(text) else { return false };
    let car = match record.get("carId") {
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::String(id)) if !id.contains('/') => id.clone(),
        _ => return false,
    };
    let is_record = record.get("channel").is_none_or(Value::is_null);
    is_record && datagram.len() <= MESSAGE_BYTES_MAX && ChannelName::parse(&format!("cars/{car}/telemetry")).is_ok()
}
