use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{
    CLOSE_NOT_UTF8, CLOSE_TOO_LARGE, CloseFrame, DecoderLimits, RSV1, TOO_COMPRESSIBLE, TOO_LARGE, encode_frame,
};

/// Minimum payload size for compression: below it the saved bytes are not worth the processor time.
const PAYLOAD_BYTES_MIN: usize = 64;
/// Compression level. Measured: docs/adr/0004, "Compression".
const LEVEL: Compression = Compression::new(1);
/// Maximum capacity of a buffer that is kept for the next message.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Window sizes that a client may request, in bits. Source: RFC 7692, section 7.1.2.1.
const WINDOW_BITS: std::ops::RangeInclusive<u8> = 8..=15;
/// The four bytes that a sender omits, followed by an empty final block. With them, decompression ends only if the
/// message ended at a block boundary.
/// Source: RFC 7692, section 7.2.2; RFC 1951, section 3.2.4.
const END: [u8; 9] = [0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff];

/// Negotiated permessage-deflate parameters of one client.
///
/// No message depends on an earlier one, in either direction. So a publication is compressed once for all clients
/// with the same window, and a connection holds no compression state. One compressor and one decompressor serve a
/// whole thread; they are created on first use.
/// Source: RFC 7692, section 7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Deflate {
    window_bits: u8,
}

struct Deflater {
    compressor: Compress,
    out: Vec<u8>,
}

thread_local! {
    static DEFLATER: RefCell<Option<Deflater>> = const { RefCell::new(None) };
    static INFLATER: RefCell<Option<(Decompress, Vec<u8>)>> = const { RefCell::new(None) };
}

impl Deflate {
    /// Returns the first acceptable offer of a client, and the response to it. Both are values of
    /// `Sec-WebSocket-Extensions`.
    pub fn negotiate(offers: &str) -> Option<(Self, String)> {
        offers.split(',').find_map(Self::limits)
    }

    /// Parses one offer. An offer with an unknown, repeated or malformed parameter is declined. Source: RFC 7692,
    /// section 7.1.
    fn limits(offer: &str) -> Option<(Self, String)> {
        let mut parts = offer.split(';').map(str::trim);
        if parts.next() != Some("permessage-deflate") {
            return None;
        }
        let mut seen = Vec::new();
        let mut asked = None;
        for part in parts {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
                None => (part, None),
            };
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
            match (name, value) {
                ("server_no_context_takeover" | "client_no_context_takeover" | "client_max_window_bits", None) => {}
                ("client_max_window_bits", Some(value)) => drop(window_bits(value)?),
                ("server_max_window_bits", Some(value)) => asked = Some(window_bits(value)?),
                _ => return None,
            }
        }
        let mut answer = "permessage-deflate; server_no_context_takeover; client_no_context_takeover".to_owned();
        if let Some(bits) = asked {
            answer.push_str(&format!("; server_max_window_bits={bits}"));
        }
        Some((Self { window_bits: asked.unwrap_or(*WINDOW_BITS.end()) }, answer))
    }

    /// Appends one whole, unmasked frame. The payload is compressed if that makes it smaller.
    pub fn encode(self, out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
        if payload.len() < PAYLOAD_BYTES_MIN {
            return encode_frame(out, 0x80 | opcode, payload);
        }
        DEFLATER.with_borrow_mut(|deflater| {
            let deflater = deflater.get_or_insert_with(Deflater::new);
            match deflater.compress(self.window_bits, payload) {
                Some(compressed) => encode_frame(out, 0x80 | RSV1 | opcode, compressed),
                None => encode_frame(out, 0x80 | opcode, payload),
            }
        });
    }
}

/// Parses a window size: 8 to 15, without leading zeros, quoted or not. Source: RFC 7692, section 7.1.2.1.
fn window_bits(value: &str) -> Option<u8> {
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let digits = !value.starts_with('0') && value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|bits| digits && WINDOW_BITS.contains(bits))
}

impl Deflater {
    fn new() -> Self {
        Self { compressor: Compress::new(LEVEL, false), out: Vec::new() }
    }

    /// Compresses a payload. Returns `None` if the result would not be smaller.
    fn compress(&mut self, window_bits: u8, payload: &[u8]) -> Option<&[u8]> {
        if self.out.capacity() > KEPT_BYTES_MAX {
            self.out = Vec::new();
        }
        // The output buffer is as large as the payload: a result that fills it saves nothing.
        self.out.clear();
        self.out.resize(payload.len(), 0);
        let mut length = 0;
        // The compressor's window is 32 KiB. For a smaller window it restarts after every window size of input;
        // blocks that end on a byte boundary form one stream.
        let chunk_bytes = if window_bits < 15 { 1 << window_bits } else { payload.len() };
        for chunk in payload.chunks(chunk_bytes) {
            self.compressor.reset();
            let room = &mut self.out[length..];
            self.compressor.compress(chunk, room, FlushCompress::Sync).ok()?;
            let made = self.compressor.total_out() as usize;
            if made == room.len() || self.compressor.total_in() as usize != chunk.len() {
                return None;
            }
            length += made;
        }
        self.out[..length].strip_suffix(&END[..4])
    }
}

/// Decompresses a message and passes it to `on`.
///
/// Errors: [`CLOSE_TOO_LARGE`] as soon as the output exceeds the accepted size; [`CLOSE_NOT_UTF8`] ("inconsistent
/// with the type of the message") if the payload is not a compressed message; and the errors of `on`. Memory: up to
/// the accepted size, while `on` runs.
pub(super) fn inflated<T>(
    payload: &[u8],
    limits: DecoderLimits,
    on: impl FnOnce(&[u8]) -> Result<T, CloseFrame>,
) -> Result<T, CloseFrame> {
    // Taken out of the thread-local, not borrowed, so that `on` may also decompress messages.
    let (mut decompressor, mut out) = INFLATER.take().unwrap_or_else(|| (Decompress::new(false), Vec::new()));
    let result = inflate(&mut decompressor, payload, limits, &mut out).and_then(|()| on(&out));
    out.clear();
    if out.capacity() > KEPT_BYTES_MAX {
        out = Vec::new();
    }
    INFLATER.set(Some((decompressor, out)));
    result
}

fn inflate(
    decompressor: &mut Decompress,
    payload: &[u8],
    limits: DecoderLimits,
    out: &mut Vec<u8>,
) -> Result<(), CloseFrame> {
    let bytes_max = limits.inflated_bytes_max(payload.len());
    const BAD: CloseFrame = CloseFrame { code: CLOSE_NOT_UTF8, reason: "invalid compressed message" };
    decompressor.reset(false);
    let mut ended = false;
    for mut rest in [payload, &END] {
        loop {
            // A sender may end its stream within a message and begin another. Source: RFC 7692, section 7.2.3.4.
            if std::mem::take(&mut ended) {
                decompressor.reset(false);
            }
            if out.len() == out.capacity() {
                let wanted = (2 * out.len()).max(4 * payload.len()).max(1024).min(bytes_max.saturating_add(1));
                out.reserve_exact(wanted - out.len());
            }
            let (taken, made) = (decompressor.total_in(), out.len());
            let status = decompressor.decompress_vec(rest, out, FlushDecompress::None).map_err(|_| BAD)?;
            rest = &rest[(decompressor.total_in() - taken) as usize..];
            if out.len() > bytes_max {
                let reason = if bytes_max < limits.message_bytes_max { TOO_COMPRESSIBLE } else { TOO_LARGE };
                return Err(CloseFrame { code: CLOSE_TOO_LARGE, reason });
            }
            ended = status == Status::StreamEnd;
            let stuck = !ended && taken == decompressor.total_in() && made == out.len();
            // While the output buffer is full, the decompressor may hold more output, even without more input.
            if (rest.is_empty() || stuck) && (ended || out.len() < out.capacity()) {
                break;
            }
        }
        // Unread input means an invalid message. Otherwise the sender ended its stream, or omitted the end, which
        // follows.
        if !rest.is_empty() {
            return Err(BAD);
        }
        if ended {
            return Ok(());
        }
    }
    Err(BAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deflate(window_bits: u8) -> Deflate {
        Deflate { window_bits }
    }

    /// Returns text whose words repeat at short and long distances, so that every window finds a match.
    fn text(length: usize) -> Vec<u8> {
        let words = ["speed", "rpm", "coolant", "gps", "{\"id\":", "},", "0.5"];
        let word = |i: usize| words[(i * i + i / 7) % words.len()].as_bytes();
        (0..).flat_map(word).copied().take(length).collect()
    }

    fn compressed(payload: &[u8], window_bits: u8) -> Vec<u8> {
        Deflater::new().compress(window_bits, payload).expect("smaller").to_vec()
    }

    fn inflated_whole(payload: &[u8], bytes_max: usize) -> Result<Vec<u8>, u16> {
        inflated(payload, DecoderLimits { inflate_ratio_max: 2000, ..DecoderLimits::new(bytes_max, true) }, |whole| {
            Ok(whole.to_vec())
        })
        .map_err(|close| close.code)
    }

    #[test]
    fn compression_round_trips() {
        for window_bits in WINDOW_BITS {
            for length in [64, 100, 1000, 40_000, 300_000] {
                let payload = text(length);
                let small = compressed(&payload, window_bits);
                assert!(small.len() < length, "{length} has become {}", small.len());
                assert_eq!(inflated_whole(&small, length).as_deref(), Ok(&payload[..]), "{window_bits} bits, {length}");
            }
        }
    }

    #[test]
    fn compression_window_has_negotiated_size() {
        // One kilobyte of noise, twice: only a window that reaches back that far makes it smaller.
        let mut state = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(1024)
        .collect();
        let twice = [noise.clone(), noise].concat();
        for window_bits in 11..=15 {
            assert!(compressed(&twice, window_bits).len() < 1200, "{window_bits} bits");
        }
        for window_bits in 8..=10 {
            assert_eq!(Deflater::new().compress(window_bits, &twice), None, "{window_bits} bits");
        }
    }

    #[test]
    fn incompressible_payloads_are_sent_uncompressed() {
        let mut frame = Vec::new();
        deflate(15).encode(&mut frame, 1, &[b'x'; PAYLOAD_BYTES_MIN - 1]);
        assert_eq!(frame[0], 0x81);
        frame.clear();
        deflate(15).encode(&mut frame, 1, &[b'x'; PAYLOAD_BYTES_MIN]);
        assert_eq!(frame[0], 0xc1);
        let spread: Vec<u8> = (0..=255).collect();
        assert_eq!(Deflater::new().compress(15, &spread), None);
    }

    #[test]
    fn rfc_samples_are_decoded() {
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
        let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        let two_blocks = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
        for sample in [&hello[..], &stored, &last, &last[..7], &two_blocks] {
            assert_eq!(inflated_whole(sample, 5).as_deref(), Ok(&b"Hello"[..]), "{sample:02x?}");
        }
        assert_eq!(inflated_whole(&[0], 0).as_deref(), Ok(&b""[..]));
        let twice = [&last[..7], &hello].concat();
        assert_eq!(inflated_whole(&twice, 10).as_deref(), Ok(&b"HelloHello"[..]), "a stream after a stream");
    }

    #[test]
    fn inflation_stops_at_size_limit() {
        let bomb = compressed(&vec![0; 8 << 20], 15);
        assert!(bomb.len() < (8 << 20) / 100, "{}", bomb.len());
        for max in [0, 1, 1000, 1 << 20, (8 << 20) - 1] {
            assert_eq!(inflated_whole(&bomb, max), Err(CLOSE_TOO_LARGE), "{max}");
        }
        assert_eq!(inflated_whole(&bomb, 8 << 20).map(|whole| whole.len()), Ok(8 << 20));
        let kept = INFLATER.with_borrow(|kept| kept.as_ref().map_or(0, |(_, out)| out.capacity()));
        assert!(kept <= KEPT_BYTES_MAX, "{kept} bytes are kept");
    }

    #[test]
    fn invalid_data_does_not_affect_next_message() {
        let good = compressed(&text(1000), 15);
        let reserved_block = [0x07];
        let before_the_beginning = [0x02, 0x09, 0x00];
        for bad in [&[][..], &reserved_block, &before_the_beginning, &[0xff; 40]] {
            assert_eq!(inflated_whole(bad, 1 << 20), Err(CLOSE_NOT_UTF8), "{bad:02x?}");
            assert_eq!(inflated_whole(&good, 1 << 20), Ok(text(1000)));
        }
        for end in 1..good.len() - 1 {
            let cut = inflated_whole(&good[..end], 1 << 20);
            assert_eq!(cut, Err(CLOSE_NOT_UTF8), "cut at {end} of {}", good.len());
        }
    }

    #[test]
    fn first_supported_offer_is_accepted() {
        let plain = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let ten = format!("{plain}; server_max_window_bits=10");
        let cases = [
            ("permessage-deflate", Some(plain)),
            ("permessage-deflate; client_max_window_bits", Some(plain)),
            ("permessage-deflate;client_max_window_bits=8 ; server_no_context_takeover", Some(plain)),
            ("permessage-deflate; server_max_window_bits=10", Some(&*ten)),
            ("permessage-deflate; server_max_window_bits=\"10\"; client_no_context_takeover", Some(&*ten)),
            ("permessage-bzip2, permessage-deflate; server_max_window_bits=7, permessage-deflate", Some(plain)),
            ("permessage-deflate; server_max_window_bits=7", None),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=010", None),
            ("permessage-deflate; server_max_window_bits=+9", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; client_max_window_bits=7", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            ("permessage-deflate; server_no_context_takeover; server_no_context_takeover", None),
            ("permessage-deflate; unknown", None),
            ("x-webkit-deflate-frame", None),
            ("", None),
        ];
        for (offers, expected) in cases {
            assert_eq!(Deflate::negotiate(offers).map(|(_, answer)| answer).as_deref(), expected, "{offers}");
        }
    }
}
