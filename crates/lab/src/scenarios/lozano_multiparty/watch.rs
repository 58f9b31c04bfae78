use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use millrace_call::packet::{Header, VIDEO};

use super::layout::stream_of;

/// Stream as a participant has received it.
#[derive(Clone, Debug, Default)]
pub struct StreamWatch {
    /// Received RTP of each second, in kbit/s: video, retransmissions and forward error correction.
    pub rates: Vec<f64>,
    /// Time from the camera of the sender until each video packet has arrived, in microseconds: a histogram per stream
    /// would need gigabytes.
    pub delays_us: Vec<u32>,
}

/// Records the streams that a participant receives, by the number of their sender.
#[derive(Clone, Debug)]
pub struct Watch {
    start: Instant,
    pub streams: BTreeMap<usize, StreamWatch>,
}

impl Watch {
    pub fn new(start: Instant) -> Self {
        Self { start, streams: BTreeMap::new() }
    }

    pub fn record(&mut self, packet: &[u8], now: Instant) {
        let Some((header, _)) = Header::read(packet) else { return };
        let stream = self.streams.entry(stream_of(header.ssrc).0).or_default();
        let since = now.saturating_duration_since(self.start);
        let second = since.as_secs() as usize;
        stream.rates.resize(stream.rates.len().max(second + 1), 0.0);
        stream.rates[second] += packet.len() as f64 * 8.0 / 1000.0;
        if header.payload_type == VIDEO {
            let filmed = Duration::from_secs_f64(f64::from(header.time) / 90_000.0);
            let delay_us = since.saturating_sub(filmed).as_micros();
            stream.delays_us.push(u32::try_from(delay_us).unwrap_or(u32::MAX));
        }
    }
}
