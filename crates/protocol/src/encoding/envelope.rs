use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use crate::{ChannelName, Epoch, Gap, Kind, Position, Publication, Since};

/// Appends `{"push"?, "channel"?, "position", "time", "key"?, "trace"?, "data", "encoding"?}` without line breaks. A
/// deletion has `"deleted": true` in place of `data`.
pub fn write_envelope(
    out: &mut Vec<u8>,
    push: bool,
    channel: Option<&ChannelName>,
    epoch: Epoch,
    publication: &Publication,
) {
    write_start(out, if push { b"{\"push\":\"message\"," } else { b"{" }, channel);
    out.extend_from_slice(b"\"position\":\"");
    Position { epoch, offset: publication.offset }.write(out);
    out.extend_from_slice(b"\",\"time\":");
    out.extend_from_slice(itoa::Buffer::new().format(publication.time_ms).as_bytes());
    if let Some(key) = &publication.key {
        out.extend_from_slice(b",\"key\":");
        write_json(out, key.as_ref());
    }
    if let Some(trace) = publication.trace() {
        out.extend_from_slice(b",\"trace\":\"");
        trace.write(out);
        out.push(b'"');
    }
    if publication.is_deletion {
        out.extend_from_slice(b",\"deleted\":true}");
        return;
    }
    write_data(out, publication.kind(), publication.data());
    out.push(b'}');
}

/// Appends `"data"`, and `"encoding"` for a binary payload, each after a comma: the fields that
/// [`crate::session::decode_data`] decodes.
pub fn write_data(out: &mut Vec<u8>, kind: Kind, data: &[u8]) {
    out.extend_from_slice(b",\"data\":");
    match kind {
        Kind::Json => write_without_line_breaks(out, data),
        Kind::Text | Kind::Utf8 => write_json(out, &String::from_utf8_lossy(data)),
        Kind::Binary => {
            write_json(out, BASE64_STANDARD.encode(data).as_str());
            out.extend_from_slice(b",\"encoding\":\"base64\"");
        }
    }
}

/// Appends `{"push"?, "channel"?, "from", "to"}`.
pub fn write_gap(out: &mut Vec<u8>, push: bool, channel: Option<&ChannelName>, gap: Gap) {
    write_start(out, if push { b"{\"push\":\"gap\"," } else { b"{" }, channel);
    out.extend_from_slice(b"\"from\":\"");
    gap.from.write(out);
    out.extend_from_slice(b"\",\"to\":\"");
    gap.to.write(out);
    out.extend_from_slice(b"\"}");
}

fn write_start(out: &mut Vec<u8>, start: &[u8], channel: Option<&ChannelName>) {
    out.extend_from_slice(start);
    // A channel name contains no character that JSON escapes.
    if let Some(channel) = channel {
        out.extend_from_slice(b"\"channel\":\"");
        out.extend_from_slice(channel.as_str().as_bytes());
        out.extend_from_slice(b"\",");
    }
}

/// One page of the state of a keyed channel.
#[derive(Debug)]
pub struct StatePage<'a> {
    /// Position of the end of the page. After the last page, the changes begin here.
    pub position: Position,
    /// Start of the next page; `None` after the last one.
    pub next: Option<Since>,
    /// The page begins the state anew, because the previous page can no longer be continued.
    pub restart: bool,
    pub publications: &'a [Publication],
}

/// Appends `"messages": [..]`.
fn write_messages(out: &mut Vec<u8>, epoch: Epoch, publications: &[Publication]) {
    out.extend_from_slice(b"\"messages\":[");
    for (i, publication) in publications.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_envelope(out, false, None, epoch, publication);
    }
    out.push(b']');
}

/// Builder of the JSON response of a poll, of `history` and of reads of several channels.
pub struct Envelope(Vec<u8>);

impl Envelope {
    /// Returns the response for one channel: `{"position", "more"?, "gap"?, "messages": [..]}`.
    pub fn answer(
        position: Since,
        more: bool,
        gap: Option<Gap>,
        epoch: Epoch,
        publications: &[Publication],
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + publications.iter().map(|p| p.data().len() + 80).sum::<usize>());
        out.extend_from_slice(b"{\"position\":\"");
        position.write(&mut out);
        out.extend_from_slice(if more { b"\",\"more\":true,".as_slice() } else { b"\"," });
        if let Some(gap) = gap {
            out.extend_from_slice(b"\"gap\":");
            write_gap(&mut out, false, None, gap);
            out.push(b',');
        }
        write_messages(&mut out, epoch, publications);
        out.push(b'}');
        out
    }

    /// Returns one page of a state: `{"position", "next"?, "restart"?, "messages": [..]}`.
    pub fn state(page: &StatePage<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(96 + page.publications.iter().map(|p| p.data().len() + 80).sum::<usize>());
        out.extend_from_slice(b"{\"position\":\"");
        page.position.write(&mut out);
        out.extend_from_slice(b"\",");
        if let Some(next) = page.next {
            out.extend_from_slice(b"\"next\":\"");
            next.write(&mut out);
            out.extend_from_slice(b"\",");
        }
        if page.restart {
            out.extend_from_slice(b"\"restart\":true,");
        }
        write_messages(&mut out, page.position.epoch, page.publications);
        out.push(b'}');
        out
    }

    /// Starts a response for several channels with their positions.
    pub fn many<'a>(positions: impl Iterator<Item = (&'a ChannelName, Since)>) -> Self {
        let mut out = b"{\"positions\":{".to_vec();
        for (i, (channel, position)) in positions.enumerate() {
            out.extend_from_slice(if i > 0 { b",\"" } else { b"\"" });
            out.extend_from_slice(channel.as_str().as_bytes());
            out.extend_from_slice(b"\":\"");
            position.write(&mut out);
            out.push(b'"');
        }
        out.push(b'}');
        Self(out)
    }

    /// Ends the response after the positions: the first line of an NDJSON stream.
    pub fn into_line(mut self) -> Vec<u8> {
        self.0.extend_from_slice(b"}\n");
        self.0
    }

    /// Completes the response with gaps and messages.
    pub fn finish<'a>(
        mut self,
        more: bool,
        gaps: impl Iterator<Item = (&'a ChannelName, Gap)>,
        messages: impl Iterator<Item = (&'a ChannelName, Epoch, &'a Publication)>,
    ) -> Vec<u8> {
        self.0.extend_from_slice(if more { b",\"more\":true,\"gaps\":[".as_slice() } else { b",\"gaps\":[" });
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

/// Appends JSON with its line breaks replaced by spaces. In JSON a raw line break can only be white space between
/// tokens, so the meaning stays the same.
fn write_without_line_breaks(out: &mut Vec<u8>, json: &[u8]) {
    let start = out.len();
    out.extend_from_slice(json);
    for at in memchr::memchr2_iter(b'\n', b'\r', json) {
        out[start + at] = b' ';
    }
}
