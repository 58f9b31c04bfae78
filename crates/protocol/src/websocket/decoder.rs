use super::{
    BINARY, CLOSE, CLOSE_NOT_UTF8, CLOSE_PROTOCOL, CLOSE_TOO_LARGE, CloseFrame, Message, PING, PONG, RSV1, TEXT,
    deflate,
};

/// Decompressed size up to which the ratio limit does not apply.
const INFLATED_BYTES_FREE: usize = 4096;

/// Limits of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct DecoderLimits {
    /// Maximum bytes of a message over all fragments, checked again after decompression.
    pub message_bytes_max: usize,
    /// Maximum number of fragments of one message, including empty ones. Autobahn's case 9.3.1 sends 65,537.
    pub fragments_max: u32,
    /// Maximum ratio of the decompressed size to the compressed size of a message.
    pub inflate_ratio_max: usize,
    /// True if compression was negotiated: see [`super::Deflate`].
    pub deflate: bool,
}

impl DecoderLimits {
    /// Creates limits with default values for the other fields.
    pub fn new(message_bytes_max: usize, deflate: bool) -> Self {
        Self { message_bytes_max, fragments_max: 131_072, inflate_ratio_max: 200, deflate }
    }

    /// Returns the maximum decompressed size for this many compressed bytes. The ratio limit does not apply to
    /// short messages, because they cost little.
    pub(super) fn inflated_bytes_max(&self, compressed_bytes: usize) -> usize {
        let by_ratio = compressed_bytes.saturating_mul(self.inflate_ratio_max).max(INFLATED_BYTES_FREE);
        self.message_bytes_max.min(by_ratio)
    }
}

/// Decodes the bytes of a client into messages.
///
/// Errors: [`CloseFrame`]; afterwards the decoder must not be used.
/// An idle connection holds no buffer: a buffer exists only between the first and the last byte of a message.
/// Source: RFC 6455, sections 5 (framing), 5.4 (fragments), 5.5 (control frames), 8.1 (UTF-8).
#[derive(Default, Debug)]
pub struct Decoder {
    partial: Option<Box<Partial>>,
}

#[derive(Default, Debug)]
struct Partial {
    /// Bytes of an incomplete frame, still masked.
    frame: Vec<u8>,
    /// Fragments received so far of an incomplete message.
    message: Option<Fragments>,
}

#[derive(Debug)]
struct Fragments {
    opcode: u8,
    compressed: bool,
    payload: Vec<u8>,
    count: u32,
}

struct Head {
    fin: bool,
    compressed: bool,
    opcode: u8,
    mask: [u8; 4],
    head_len: usize,
    payload_len: usize,
}

impl Decoder {
    /// Decodes `input` (unmasked in place) and passes every complete message to `on`. If `on` returns false,
    /// decoding stops.
    pub fn decode(
        &mut self,
        input: &mut [u8],
        limits: DecoderLimits,
        mut on: impl FnMut(Message<'_>) -> bool,
    ) -> Result<(), CloseFrame> {
        let mut partial = self.partial.take().map(|boxed| *boxed).unwrap_or_default();
        let mut rest = input;
        let mut buffered = Vec::new();
        // Complete a frame from an earlier call first.
        while !partial.frame.is_empty() && !rest.is_empty() {
            let wanted = match Head::parse(&partial.frame)? {
                None => 1,
                Some(head) => {
                    head.check(&partial, limits)?;
                    (head.head_len + head.payload_len).saturating_sub(partial.frame.len())
                }
            };
            let take = wanted.min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            partial.frame.extend_from_slice(now);
            rest = later;
            if let Some(head) = Head::parse(&partial.frame)? {
                head.check(&partial, limits)?;
                if partial.frame.len() == head.head_len + head.payload_len {
                    std::mem::swap(&mut buffered, &mut partial.frame);
                    let payload = &mut buffered[head.head_len..];
                    if !head.deliver(payload, &mut partial, limits, &mut on)? {
                        return Ok(());
                    }
                    buffered.clear();
                }
            }
        }
        while !rest.is_empty() {
            let Some(head) = Head::parse(rest)? else { break };
            head.check(&partial, limits)?;
            if rest.len() < head.head_len + head.payload_len {
                break;
            }
            let (frame, later) = rest.split_at_mut(head.head_len + head.payload_len);
            rest = later;
            if !head.deliver(&mut frame[head.head_len..], &mut partial, limits, &mut on)? {
                return Ok(());
            }
        }
        partial.frame.extend_from_slice(rest);
        if !partial.frame.is_empty() || partial.message.is_some() {
            self.partial = Some(Box::new(partial));
        }
        Ok(())
    }

    /// Returns the bytes buffered for an incomplete message.
    pub fn buffered_bytes(&self) -> usize {
        let message = |p: &Partial| p.message.as_ref().map_or(0, |message| message.payload.capacity());
        self.partial.as_ref().map_or(0, |p| p.frame.capacity() + message(p))
    }
}

impl Head {
    /// Parses a frame header. Returns `None` while more bytes are needed.
    fn parse(bytes: &[u8]) -> Result<Option<Head>, CloseFrame> {
        let violation = |reason| Err(CloseFrame { code: CLOSE_PROTOCOL, reason });
        let Some(&first) = bytes.first() else { return Ok(None) };
        if first & 0x70 & !RSV1 != 0 {
            return violation("reserved bit is set");
        }
        let (fin, compressed, opcode) = (first & 0x80 != 0, first & RSV1 != 0, first & 0x0f);
        if !matches!(opcode, 0..=2 | 8..=10) {
            return violation("unknown opcode");
        }
        if compressed && !matches!(opcode, TEXT | BINARY) {
            return violation("compression bit is set on a frame other than the first of its message");
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        if second & 0x80 == 0 {
            return violation("client frame is not masked");
        }
        let (payload_len, len_bytes) = match second & 0x7f {
            126 => match bytes.get(2..4) {
                Some(len) => (u16::from_be_bytes([len[0], len[1]]) as u64, 2),
                None => return Ok(None),
            },
            127 => match bytes.get(2..10) {
                Some(len) => (u64::from_be_bytes(len.try_into().expect("eight bytes")), 8),
                None => return Ok(None),
            },
            n => (n as u64, 0),
        };
        if opcode >= 8 && (!fin || payload_len > 125) {
            return violation("control frame is fragmented or longer than 125 bytes");
        }
        if payload_len >> 63 != 0 {
            return violation("payload length exceeds 63 bits");
        }
        let payload_len = usize::try_from(payload_len).unwrap_or(usize::MAX / 2).min(usize::MAX / 2);
        let mask_at = 2 + len_bytes;
        // A frame without its mask is incomplete, but its length can already be checked.
        let mask = bytes.get(mask_at..mask_at + 4).map_or([0; 4], |m| m.try_into().expect("four bytes"));
        Ok(Some(Head { fin, compressed, opcode, mask, head_len: mask_at + 4, payload_len }))
    }

    fn check(&self, partial: &Partial, limits: DecoderLimits) -> Result<(), CloseFrame> {
        if self.compressed && !limits.deflate {
            return Err(CloseFrame { code: CLOSE_PROTOCOL, reason: "compression was not negotiated" });
        }
        if self.opcode >= 8 {
            return Ok(());
        }
        let before = partial.message.as_ref().map_or(0, |message| message.payload.len());
        if before.saturating_add(self.payload_len) > limits.message_bytes_max {
            return Err(CloseFrame { code: CLOSE_TOO_LARGE, reason: super::TOO_LARGE });
        }
        match (self.opcode, partial.message.is_some()) {
            (0, false) => Err(CloseFrame { code: CLOSE_PROTOCOL, reason: "continuation frame without a message" }),
            (1 | 2, true) => {
                Err(CloseFrame { code: CLOSE_PROTOCOL, reason: "new message inside a fragmented message" })
            }
            _ => Ok(()),
        }
    }

    fn deliver(
        &self,
        payload: &mut [u8],
        partial: &mut Partial,
        limits: DecoderLimits,
        on: &mut impl FnMut(Message<'_>) -> bool,
    ) -> Result<bool, CloseFrame> {
        unmask(payload, self.mask);
        match self.opcode {
            PING => return Ok(on(Message::Ping(payload))),
            PONG => return Ok(on(Message::Pong)),
            CLOSE => {
                on(Message::Close(close_code(payload)?));
                return Ok(false);
            }
            _ => {}
        }
        if self.fin && self.opcode != 0 {
            return whole(self.opcode, self.compressed, payload, limits, on);
        }
        let message = partial.message.get_or_insert_with(|| Fragments {
            opcode: self.opcode,
            compressed: self.compressed,
            payload: Vec::new(),
            count: 0,
        });
        message.count += 1;
        if message.count > limits.fragments_max {
            return Err(CloseFrame { code: CLOSE_TOO_LARGE, reason: super::TOO_MANY_FRAGMENTS });
        }
        message.payload.extend_from_slice(payload);
        if !self.fin {
            return Ok(true);
        }
        let message = partial.message.take().expect("set above");
        whole(message.opcode, message.compressed, &message.payload, limits, on)
    }
}

/// Passes a complete message to `on`.
fn whole(
    opcode: u8,
    compressed: bool,
    payload: &[u8],
    limits: DecoderLimits,
    on: &mut impl FnMut(Message<'_>) -> bool,
) -> Result<bool, CloseFrame> {
    if compressed {
        return deflate::inflated(payload, limits, |payload| Ok(on(message(opcode, payload)?)));
    }
    Ok(on(message(opcode, payload)?))
}

fn message(opcode: u8, payload: &[u8]) -> Result<Message<'_>, CloseFrame> {
    if opcode == BINARY {
        return Ok(Message::Binary(payload));
    }
    match std::str::from_utf8(payload) {
        Ok(text) => Ok(Message::Text(text)),
        Err(_) => Err(CloseFrame { code: CLOSE_NOT_UTF8, reason: "text message is not UTF-8" }),
    }
}

/// Returns the code of a close frame. Source: RFC 6455, sections 5.5.1 and 7.4.
fn close_code(payload: &[u8]) -> Result<Option<u16>, CloseFrame> {
    match payload {
        [] => Ok(None),
        [_] => Err(CloseFrame { code: CLOSE_PROTOCOL, reason: "incomplete close code" }),
        [a, b, reason @ ..] => {
            let code = u16::from_be_bytes([*a, *b]);
            if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                return Err(CloseFrame { code: CLOSE_PROTOCOL, reason: "invalid close code" });
            }
            if std::str::from_utf8(reason).is_err() {
                return Err(CloseFrame { code: CLOSE_NOT_UTF8, reason: "close reason is not UTF-8" });
            }
            Ok(Some(code))
        }
    }
}

/// Unmasks eight bytes at a time; the compiler vectorizes it further.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let word = u64::from_ne_bytes((&*chunk).try_into().expect("eight bytes")) ^ wide;
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::{Deflate, encode_frame};

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(&mut out, first, payload);
        let head = out.len() - payload.len();
        out[1] |= 0x80;
        let mask = [7, 99, 200, 13];
        let mut body = out.split_off(head);
        out.extend_from_slice(&mask);
        unmask(&mut body, mask);
        out.extend_from_slice(&body);
        out
    }

    fn decode_in_steps(bytes: &[u8], step: usize, max: usize) -> Result<Vec<String>, CloseFrame> {
        decode_with_limits(bytes, step, plain(max))
    }

    fn plain(message_bytes_max: usize) -> DecoderLimits {
        DecoderLimits::new(message_bytes_max, false)
    }

    fn decode_with_limits(bytes: &[u8], step: usize, limits: DecoderLimits) -> Result<Vec<String>, CloseFrame> {
        let (mut decoder, mut got) = (Decoder::default(), Vec::new());
        for chunk in bytes.to_vec().chunks_mut(step) {
            decoder.decode(chunk, limits, |message| {
                got.push(format!("{message:?}"));
                true
            })?;
        }
        Ok(got)
    }

    #[test]
    fn split_input_yields_whole_messages() {
        let long = vec![b'x'; 70_000];
        let mut bytes = masked(0x81, b"hello");
        bytes.extend(masked(0x01, b"frag"));
        bytes.extend(masked(0x89, b"ping in between"));
        bytes.extend(masked(0x80, b"ment"));
        bytes.extend(masked(0x82, &long));
        let whole = decode_in_steps(&bytes, bytes.len(), 1 << 20).unwrap();
        assert_eq!(whole[0], "Text(\"hello\")");
        assert!(whole[1].starts_with("Ping"));
        assert_eq!(whole[2], "Text(\"fragment\")");
        assert_eq!(whole.len(), 4);
        for step in [1, 2, 3, 7, 100, 65_536] {
            assert_eq!(decode_in_steps(&bytes, step, 1 << 20).unwrap(), whole, "step {step}");
        }
    }

    #[test]
    fn idle_decoder_holds_no_buffer() {
        let mut decoder = Decoder::default();
        decoder.decode(&mut masked(0x81, b"hi"), plain(100), |_| true).unwrap();
        assert_eq!(decoder.buffered_bytes(), 0);
        decoder.decode(&mut masked(0x81, b"hi")[..3].to_vec(), plain(100), |_| true).unwrap();
        assert!(decoder.buffered_bytes() > 0);
    }

    #[test]
    fn invalid_frames_have_close_codes() {
        let unmasked = vec![0x81, 2, b'h', b'i'];
        let cases: [(Vec<u8>, u16); 10] = [
            (unmasked, CLOSE_PROTOCOL),
            (masked(0x81, &[0xff, 0xfe]), CLOSE_NOT_UTF8),
            (masked(0x81, &[b'x'; 101]), CLOSE_TOO_LARGE),
            (masked(0xc1, b"reserved"), CLOSE_PROTOCOL),
            (masked(0x83, b"opcode"), CLOSE_PROTOCOL),
            (masked(0x80, b"continuation"), CLOSE_PROTOCOL),
            (masked(0x09, b"ping in parts"), CLOSE_PROTOCOL),
            (masked(0x88, &[3]), CLOSE_PROTOCOL),
            (masked(0x88, &[3, 0xed]), CLOSE_PROTOCOL),
            ([masked(0x01, b"a"), masked(0x81, b"b")].concat(), CLOSE_PROTOCOL),
        ];
        for (bytes, code) in cases {
            for step in [1, bytes.len()] {
                assert_eq!(decode_in_steps(&bytes, step, 100).unwrap_err().code, code, "{bytes:?}");
            }
        }
    }

    #[test]
    fn length_is_checked_before_payload_arrives() {
        let mut decoder = Decoder::default();
        let mut head = vec![0x82, 0x80 | 127, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(decoder.decode(&mut head, plain(1 << 20), |_| true).unwrap_err().code, CLOSE_TOO_LARGE);
    }

    #[test]
    fn size_limit_covers_all_fragments() {
        let bytes = [masked(0x02, &[0; 60]), masked(0x80, &[0; 60])].concat();
        assert_eq!(decode_in_steps(&bytes, 9, 100).unwrap_err().code, CLOSE_TOO_LARGE);
    }

    #[test]
    fn fragment_count_is_limited() {
        let of = |count: usize| {
            let first = masked(0x02, b"x");
            [first, masked(0x00, b"").repeat(count - 2), masked(0x80, b"")].concat()
        };
        let limits = DecoderLimits { fragments_max: 10, ..plain(100) };
        assert_eq!(decode_with_limits(&of(10), 5, limits).unwrap().len(), 1);
        let violation = decode_with_limits(&of(11), 5, limits).unwrap_err();
        assert_eq!((violation.code, violation.reason), (CLOSE_TOO_LARGE, super::super::TOO_MANY_FRAGMENTS));
    }

    #[test]
    fn inflate_ratio_is_limited_during_inflation() {
        let message = |text: &str| {
            let mut frame = Vec::new();
            Deflate::negotiate("permessage-deflate").unwrap().0.encode(&mut frame, TEXT, text.as_bytes());
            let head = if frame[1] == 126 { 4 } else { 2 };
            masked(0xc1, &frame[head..])
        };
        let bomb = message(&"x".repeat(900_000));
        assert!(bomb.len() < 5000, "{}", bomb.len());
        let violation = decode_with_limits(&bomb, bomb.len(), DecoderLimits::new(1 << 20, true)).unwrap_err();
        assert_eq!((violation.code, violation.reason), (CLOSE_TOO_LARGE, super::super::TOO_COMPRESSIBLE));
        let all = DecoderLimits { inflate_ratio_max: 2000, ..DecoderLimits::new(1 << 20, true) };
        assert_eq!(decode_with_limits(&bomb, bomb.len(), all).unwrap().len(), 1);
        assert_eq!(
            decode_with_limits(&message(&"x".repeat(4000)), 7, DecoderLimits::new(1 << 20, true)).unwrap().len(),
            1
        );
    }

    #[test]
    fn split_compressed_input_yields_whole_messages() {
        let text = "wheel of a mill, ".repeat(20);
        let mut frame = Vec::new();
        Deflate::negotiate("permessage-deflate").unwrap().0.encode(&mut frame, TEXT, text.as_bytes());
        assert_eq!(frame[0], 0xc1);
        let (one, two) = frame[2..].split_at(7);
        let mut bytes = masked(0xc1, &frame[2..]);
        bytes.extend(masked(0x41, one));
        bytes.extend(masked(0x89, b"ping in between"));
        bytes.extend(masked(0x80, two));
        bytes.extend(masked(0x81, b"as it is"));
        let limits = DecoderLimits::new(text.len(), true);
        let whole = decode_with_limits(&bytes, bytes.len(), limits).unwrap();
        let expected = format!("Text({text:?})");
        assert_eq!([&whole[0], &whole[2], &whole[3]], [&expected, &expected, "Text(\"as it is\")"]);
        for step in 1..bytes.len() {
            assert_eq!(decode_with_limits(&bytes, step, limits).unwrap(), whole, "step {step}");
        }
        let small = DecoderLimits::new(text.len() - 1, true);
        assert_eq!(decode_with_limits(&bytes, bytes.len(), small).unwrap_err().code, CLOSE_TOO_LARGE);
    }

    #[test]
    fn compression_bit_is_allowed_only_on_first_frame() {
        let deflate = DecoderLimits::new(100, true);
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        assert_eq!(decode_with_limits(&masked(0xc1, &hello), 1, deflate).unwrap(), ["Text(\"Hello\")"]);
        let cases = [
            (plain(100), masked(0xc1, &hello), CLOSE_PROTOCOL),
            (deflate, masked(0xc9, b"ping"), CLOSE_PROTOCOL),
            (deflate, masked(0xc8, &[]), CLOSE_PROTOCOL),
            (deflate, [masked(0x41, &hello[..3]), masked(0xc0, &hello[3..])].concat(), CLOSE_PROTOCOL),
            (deflate, masked(0xa1, &hello), CLOSE_PROTOCOL),
            (deflate, masked(0xc1, &hello[..3]), CLOSE_NOT_UTF8),
            // A stored block of two bytes that are not UTF-8.
            (deflate, masked(0xc1, &[0, 2, 0, 0xfd, 0xff, 0xff, 0xfe, 0]), CLOSE_NOT_UTF8),
        ];
        for (limits, bytes, code) in cases {
            for step in [1, bytes.len()] {
                assert_eq!(decode_with_limits(&bytes, step, limits).unwrap_err().code, code, "{bytes:?}");
            }
        }
    }
}
