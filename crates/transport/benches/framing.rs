//! WebSocket framing, compared with an established library: the cost of decoding one client message, the memory of an
//! idle connection, and the bytes that compression saves for its CPU time.
//!
//! The figures are in docs/adr/0004. Run: `cargo bench -p millrace-transport --bench framing`.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    io::{self, Read, Write},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use millrace_protocol::websocket::{self, Decoder, DecoderLimits, Deflate, Message};
use tokio_tungstenite::tungstenite::{
    WebSocket,
    protocol::{Role, WebSocketConfig},
};

const MESSAGES: usize = 200;
const ROUNDS: usize = 2000;
const IDLE: usize = 1000;

/// Allocator that counts the bytes in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A socket that returns the same bytes repeatedly, and otherwise blocks.
struct Replay<'a> {
    bytes: &'a [u8],
    at: usize,
    left: usize,
}

impl Read for Replay<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.bytes.len() {
            if self.left == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.left -= 1;
            self.at = 0;
        }
        let length = buf.len().min(self.bytes.len() - self.at);
        buf[..length].copy_from_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

impl Write for Replay<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    for size in [16, 173, 4096] {
        let bytes = frames(size);
        let (mut ours, mut library) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            ours.push(decode_ours(&bytes));
            library.push(decode_library(&bytes));
        }
        let (ours, library) = (median(ours), median(library));
        println!("decode {size} B: ours {ours:.0} ns, tungstenite {library:.0} ns per message ({:.2})", ours / library);
    }
    let before = IN_USE.load(Relaxed);
    let idle: Vec<Decoder> = (0..IDLE).map(|_| Decoder::default()).collect();
    let ours = IN_USE.load(Relaxed) - before;
    let before = IN_USE.load(Relaxed);
    let bytes = frames(173);
    let library: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut socket = WebSocket::from_raw_socket(Replay { bytes: &bytes, at: 0, left: 0 }, Role::Server, None);
            while socket.read().is_ok() {}
            socket
        })
        .collect();
    let library_bytes = IN_USE.load(Relaxed) - before;
    let small = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
    let before = IN_USE.load(Relaxed);
    let tuned: Vec<_> = (0..IDLE)
        .map(|_| {
            let mut socket =
                WebSocket::from_raw_socket(Replay { bytes: &bytes, at: 0, left: 0 }, Role::Server, Some(small));
            while socket.read().is_ok() {}
            socket
        })
        .collect();
    let tuned_bytes = IN_USE.load(Relaxed) - before;
    println!(
        "idle, after {MESSAGES} messages: ours {} B, tungstenite {} B, with a 4 KiB read buffer {} B per connection",
        ours / IDLE,
        library_bytes / IDLE,
        tuned_bytes / IDLE,
    );
    black_box((idle, library, tuned));
    let (deflate, _) = Deflate::negotiate("permessage-deflate").expect("an offer that can be met");
    let before = IN_USE.load(Relaxed);
    deflate.encode(&mut Vec::new(), websocket::TEXT, &[b'x'; 64]);
    println!("a thread's compressor: {} B", IN_USE.load(Relaxed) - before);
    for records in [1, 6, 24, 240] {
        let payload = telemetry(records);
        let (mut plain, mut small) = (Vec::new(), Vec::new());
        websocket::encode(&mut plain, websocket::TEXT, &payload);
        deflate.encode(&mut small, websocket::TEXT, &payload);
        let saved = plain.len() as f64 - small.len() as f64;
        let costs = (0..5).map(|_| encode_deflated(deflate, &payload)).collect();
        let us = median(costs);
        println!(
            "compress {} B: {} B on the wire instead of {}, {us:.1} us: {:.0} bytes saved per us and reader",
            payload.len(),
            small.len(),
            plain.len(),
            saved / us,
        );
    }
}

/// Returns JSON as cars send it, one record after another.
fn telemetry(records: u32) -> Vec<u8> {
    let record = |i: u32| {
        format!(
            "{{\"carId\":{i},\"timestamp\":{},\"gpsLatitude\":{:.6},\"gpsLongitude\":{:.6},\"speed\":{},\"rpm\":{},\
             \"coolantTemperature\":{}}}",
            1_790_000_000_000u64 + u64::from(i) * 997,
            60.170_123 + f64::from(i * 7919 % 9973) / 1e5,
            24.941_456 + f64::from(i * 104_729 % 9967) / 1e5,
            i * 37 % 120,
            900 + i * 7919 % 4100,
            80 + i % 17,
        )
    };
    let records: Vec<String> = (1..=records).map(record).collect();
    match &records[..] {
        [one] => one.clone().into_bytes(),
        many => format!("[{}]", many.join(",")).into_bytes(),
    }
}

/// Returns the microseconds per frame.
fn encode_deflated(deflate: Deflate, payload: &[u8]) -> f64 {
    const FRAMES: u32 = 2000;
    let mut out = Vec::new();
    let started = Instant::now();
    for _ in 0..FRAMES {
        out.clear();
        deflate.encode(&mut out, websocket::TEXT, black_box(payload));
    }
    black_box(out);
    started.elapsed().as_secs_f64() * 1e6 / f64::from(FRAMES)
}

/// Returns masked text frames, one after another, as one read delivers them.
fn frames(size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..MESSAGES {
        let mut frame = Vec::new();
        websocket::encode(&mut frame, websocket::TEXT, &vec![b'x'; size]);
        let head = frame.len() - size;
        frame[1] |= 0x80;
        let mask = [0x12, 0x34, 0x56, 0x78];
        out.extend_from_slice(&frame[..head]);
        out.extend_from_slice(&mask);
        out.extend(frame[head..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    }
    out
}

fn decode_ours(bytes: &[u8]) -> f64 {
    let (mut decoder, mut scratch, mut count) = (Decoder::default(), vec![0; 64 * 1024], 0);
    let limits = DecoderLimits::new(1 << 20, false);
    let mut replay = Replay { bytes, at: 0, left: ROUNDS };
    let started = Instant::now();
    while let Ok(length) = replay.read(&mut scratch) {
        let decoded = decoder.decode(&mut scratch[..length], limits, |message| {
            if let Message::Text(text) = message {
                count += 1;
                black_box(text.len());
            }
            true
        });
        decoded.expect("good frames");
    }
    started.elapsed().as_nanos() as f64 / f64::from(count)
}

fn decode_library(bytes: &[u8]) -> f64 {
    let mut socket = WebSocket::from_raw_socket(Replay { bytes, at: 0, left: ROUNDS }, Role::Server, None);
    let mut count = 0;
    let started = Instant::now();
    while let Ok(message) = socket.read() {
        count += 1;
        black_box(message.len());
    }
    started.elapsed().as_nanos() as f64 / f64::from(count)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
