use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Place of a publication in a distributed trace: the trace, and the span of the publisher.
///
/// Only sampled contexts exist, because a context that is not sampled leads to no span.
///
/// Source: W3C Trace Context, level 1, section 3.2 (`traceparent`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TraceContext {
    /// Not zero.
    pub trace_id: [u8; 16],
    /// Not zero.
    pub span_id: [u8; 8],
    pub flags: u8,
}

/// The text is no `traceparent`, or its trace is not sampled. A publication is accepted without a context then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a sampled `traceparent`, such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`")]
pub struct NoTraceContext;

impl TraceContext {
    /// Bytes of the binary form: trace id, span id, flags.
    pub const BYTES: usize = 25;
    /// Length of the text of version 00.
    pub const TEXT_BYTES: usize = 55;
    /// The bit of `flags` that says that the spans of the trace are recorded.
    pub const SAMPLED: u8 = 1;

    /// Parses the value of a `traceparent` header. A text of a later version counts by its first four fields.
    ///
    /// Errors: the text is malformed, or its flag `sampled` is not set. Source: sections 3.2.2 and 4.3.
    pub fn parse(text: &[u8]) -> Result<Self, NoTraceContext> {
        let (head, rest) = text.split_at_checked(Self::TEXT_BYTES).ok_or(NoTraceContext)?;
        let [version, trace_id, span_id, flags] = [&head[..2], &head[3..35], &head[36..52], &head[53..]];
        let [version] = hex(version)?;
        let is_end = rest.is_empty() || (version > 0 && rest[0] == b'-');
        if version == 0xff || !is_end || [head[2], head[35], head[52]] != *b"---" {
            return Err(NoTraceContext);
        }
        Self { trace_id: hex(trace_id)?, span_id: hex(span_id)?, flags: u8::from_be_bytes(hex(flags)?) }.check()
    }

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [self.flags; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..24].copy_from_slice(&self.span_id);
        bytes
    }

    /// Decodes the binary form. Errors: as [`TraceContext::parse`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoTraceContext> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| NoTraceContext)?;
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        trace_id.copy_from_slice(&bytes[..16]);
        span_id.copy_from_slice(&bytes[16..24]);
        Self { trace_id, span_id, flags: bytes[24] }.check()
    }

    /// Appends the text of version 00.
    pub fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"00");
        for bytes in [&self.trace_id[..], &self.span_id, &[self.flags]] {
            out.push(b'-');
            bytes.iter().for_each(|byte| write_hex(out, *byte));
        }
    }

    fn check(self) -> Result<Self, NoTraceContext> {
        let is_valid = self.trace_id != [0; 16] && self.span_id != [0; 8] && self.flags & Self::SAMPLED != 0;
        if is_valid { Ok(self) } else { Err(NoTraceContext) }
    }
}

fn write_hex(out: &mut Vec<u8>, byte: u8) {
    out.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
}

/// Decodes lower-case hexadecimal digits; upper-case ones are invalid.
fn hex<const N: usize>(text: &[u8]) -> Result<[u8; N], NoTraceContext> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(NoTraceContext),
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(bytes)
}

impl FromStr for TraceContext {
    type Err = NoTraceContext;

    fn from_str(text: &str) -> Result<Self, NoTraceContext> {
        Self::parse(text.as_bytes())
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::with_capacity(Self::TEXT_BYTES);
        self.write(&mut text);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn text_and_bytes_round_trip() {
        let context: TraceContext = TEXT.parse().unwrap();
        assert_eq!((context.trace_id[0], context.span_id[7], context.flags), (0x4b, 0xb7, 1));
        assert_eq!(context.to_string(), TEXT);
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Ok(context));
    }

    #[test]
    fn later_versions_count_by_their_first_fields() {
        let later = |rest: &str| format!("cc{}{rest}", &TEXT[2..]).parse::<TraceContext>();
        for rest in ["", "-", "-what-the-future-will-be-like"] {
            assert_eq!(later(rest), TEXT.parse(), "{rest}");
        }
        assert_eq!(later("."), Err(NoTraceContext));
    }

    #[test]
    fn malformed_contexts_are_refused() {
        let changed = |at: usize, with: &str| [&TEXT[..at], with, &TEXT[at + with.len()..]].concat();
        let bad = [
            String::new(),
            TEXT[..54].to_owned(),
            format!("{TEXT}-"),
            format!(" {TEXT}"),
            changed(0, "ff"),
            changed(0, "0x"),
            changed(2, "_"),
            changed(35, "0"),
            changed(3, "4B"),
            changed(3, &"0".repeat(32)),
            changed(36, &"0".repeat(16)),
            changed(53, "00"),
            changed(53, "02"),
            changed(53, "é"),
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceContext>(), Err(NoTraceContext), "{text}");
        }
        assert_eq!(TraceContext::from_bytes(&[1; 24]), Err(NoTraceContext));
        assert_eq!(TraceContext::from_bytes(&[0; 25]), Err(NoTraceContext));
    }
}
