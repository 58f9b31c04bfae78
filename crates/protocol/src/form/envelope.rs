use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use crate::{ChannelName, Epoch, Gap, Kind, Position, Publication};

/// Appends `{"push"?, "channel"?, "position", "time", "key"?, "data", "encoding"?}` without a line break in it.
pub fn write_envelope(
    out: &mut Vec<u8>,
    push: bool,
    channel: Option<&ChannelName>,
    epoch: Epoch,
    publication: &Publication,
) {
    out.push(b'{');
    if push {
        out.extend_from_slice(b"\"push\":\"message\",");
    }
    if let Some(channel) = channel {
        let _ = write!(out, "\"channel\":\"{channel}\",");
    }
    let _ = write!(out, "\"position\":\"{:08x}:{}\",\"time\":{},", epoch.0, publication.offset, publication.time_ms);
    if let Some(key) = &publication.key {
        out.extend_from_slice(b"\"key\":");
        write_json(out, key.as_ref());
        out.push(b',');
    }
    out.extend_from_slice(b"\"data\":");
    match publication.kind {
        Kind::Json => write_without_line_breaks(out, &publication.data),
        Kind::Text => write_json(out, &String::from_utf8_lossy(&publication.data)),
        Kind::Binary => {
            write_json(out, BASE64_STANDARD.encode(&publication.data).as_str());
            out.extend_from_slice(b",\"encoding\":\"base64\"");
        }
    }
    out.push(b'}');
}

/// Appends `{"push"?, "channel"?, "from", "to"}`.
pub fn write_gap(out: &mut Vec<u8>, push: bool, channel: Option<&ChannelName>, gap: Gap) {
    out.push(b'{');
    if push {
        out.extend_from_slice(b"\"push\":\"gap\",");
    }
    if let Some(channel) = channel {
        let _ = write!(out, "\"channel\":\"{channel}\",");
    }
    let _ = write!(out, "\"from\":\"{}\",\"to\":\"{}\"}}", gap.from, gap.to);
}

/// Writes the JSON answer of a poll, of `history` and of the several-channel form, piece by piece.
pub struct Envelope(Vec<u8>);

impl Envelope {
    /// One channel: `{"position", "gap"?, "messages": [..]}`.
    pub fn answer(
        position: Position,
        gap: Option<Gap>,
        epoch: Epoch,
        publications: &[std::sync::Arc<Publication>],
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + publications.iter().map(|p| p.data.len() + 80).sum::<usize>());
        let _ = write!(out, "{{\"position\":\"{position}\",");
        if let Some(gap) = gap {
            out.extend_from_slice(b"\"gap\":");
            write_gap(&mut out, false, None, gap);
            out.push(b',');
        }
        out.extend_from_slice(b"\"messages\":[");
        for (i, publication) in publications.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write_envelope(&mut out, false, None, epoch, publication);
        }
        out.extend_from_slice(b"]}");
        out
    }

    /// Several channels: start with their positions ..
    pub fn many<'a>(positions: impl Iterator<Item = (&'a ChannelName, Position)>) -> Self {
        let mut out = b"{\"positions\":{".to_vec();
        for (i, (channel, position)) in positions.enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let _ = write!(out, "{comma}\"{channel}\":\"{position}\"");
        }
        out.push(b'}');
        Self(out)
    }

    /// .. which is already the whole first line of an NDJSON stream ..
    pub fn into_line(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        self.0
    }

    /// .. or goes on with everything that was read.
    pub fn finish<'a>(
        mut self,
        gaps: impl Iterator<Item = (&'a ChannelName, Gap)>,
        messages: impl Iterator<Item = (&'a ChannelName, Epoch, &'a Publication)>,
    ) -> Vec<u8> {
        self.0.extend_from_slice(b",\"gaps\":[");
        for (i, (channel, gap)) in gaps.enumerate() {
            if i > 0 {
                self.0.push(b',');
            }
            write_gap(&mut self.0, false, Some(channel), gap);
        }
        self.0.extend_from_slice(b"],\"messages\":[");
        for (i, (channel, epoch, publication)) in messages.enumerate() {
            if i > 0 {
                self.0.push(b',');
            }
            write_envelope(&mut self.0, false, Some(channel), epoch, publication);
        }
        self.0.extend_from_slice(b"]}");
        self.0
    }
}

fn write_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("a string always serialises into memory");
}

/// In JSON a raw line break can only be white space between tokens, so a space says the same and keeps the line whole.
fn write_without_line_breaks(out: &mut Vec<u8>, json: &[u8]) {
    let start = out.len();
    out.extend_from_slice(json);
    for byte in &mut out[start..] {
        if *byte == b'\n' || *byte == b'\r' {
            *byte = b' ';
        }
    }
}
