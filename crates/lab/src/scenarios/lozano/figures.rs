use std::time::Duration;

use millrace_call::{Endpoint, recorder::Difference};

use crate::histogram::Histogram;

/// Time before the end of a run in which packets are not counted: they may still be on their way, or be repaired.
const END: Duration = Duration::from_secs(1);

/// Figures of one stream, as its receiver sees them.
#[derive(Clone, Debug, Default)]
pub struct StreamFigures {
    /// Received RTP of each whole second, with heads and repair, in kbit/s.
    pub rates: Vec<f64>,
    /// Target rate of the sender at the end of each second, in kbit/s.
    pub targets: Vec<f64>,
    /// Round-trip time that the receiver of this stream measures, at the end of each second, in milliseconds.
    pub rtts: Vec<f64>,
    /// One-way delay of the video packets.
    pub delay: Histogram,
    /// Mean one-way delay of the packets that were sent in each second, in milliseconds.
    pub delays: Vec<Option<f64>>,
    /// Video packets that were sent, and those that did not arrive.
    pub sent: u64,
    pub lost: u64,
    /// Video packets that should have arrived, and those that were lost after repair.
    pub expected: u64,
    pub residual: u64,
    /// Payload of the video, received or repaired, in kbit/s.
    pub goodput: f64,
    pub frames: u64,
    pub broken_frames: u64,
    /// Capture beside statistics at the receiver.
    pub difference: Option<Difference>,
}

impl StreamFigures {
    /// `length`: duration of the call.
    pub fn of(from: &Endpoint, to: &Endpoint, ssrc: u32, length: Duration) -> Self {
        let seconds = length.as_secs() as usize;
        let mut rates: Vec<f64> = to.received.bins().iter().map(|bin| bin.bytes as f64 * 8.0 / 1000.0).collect();
        rates.resize(seconds, 0.0);
        let comparison = from.sent.compare(&to.received, ssrc, length.saturating_sub(END));
        let mut delay = Histogram::default();
        let mut sums = vec![(0.0, 0_u32); seconds];
        for (at, took) in &comparison.delays {
            delay.record_us(took.as_micros() as u64);
            if let Some((sum, count)) = sums.get_mut(at.as_secs() as usize) {
                (*sum, *count) = (*sum + took.as_secs_f64() * 1000.0, *count + 1);
            }
        }
        let delays = sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect();
        let statistics = to.receiver.statistics();
        let total = to.received.total();
        let payload = statistics.payload_bytes + statistics.repair_bytes;
        Self {
            rates,
            targets: from.seconds.iter().map(|second| second.target_bits_per_s as f64 / 1000.0).collect(),
            rtts: to.seconds.iter().filter_map(|second| Some(second.rtt?.as_secs_f64() * 1000.0)).collect(),
            delay,
            delays,
            sent: comparison.sent,
            lost: comparison.lost,
            expected: statistics.packets + statistics.lost,
            residual: statistics.residual,
            goodput: statistics.media_bytes as f64 * 8.0 / 1000.0 / length.as_secs_f64().max(1.0),
            frames: statistics.frames,
            broken_frames: statistics.broken_frames,
            difference: (total.packets > 0).then_some(Difference {
                capture_bytes: total.bytes,
                statistics_bytes: payload,
                head_bytes: statistics.header_bytes,
            }),
        }
    }

    /// Returns the mean rate in kbit/s.
    pub fn rate(&self) -> f64 {
        mean(&self.rates).unwrap_or_default()
    }

    /// Returns the mean rate from a second on, until another one.
    pub fn rate_between(&self, from: usize, to: usize) -> f64 {
        let seconds = self.rates.get(from.min(self.rates.len())..to.min(self.rates.len()));
        mean(seconds.unwrap_or_default()).unwrap_or_default()
    }
}

/// Figures of several streams: of one machine over all repeats, or of both machines.
#[derive(Clone, Debug, Default)]
pub struct Pooled {
    pub rate: f64,
    /// Mean of the deviations within each call.
    pub rate_sd: f64,
    pub rtt: Option<f64>,
    pub rtt_sd: Option<f64>,
    pub delay: Histogram,
    pub packet_loss: f64,
    pub residual_loss: f64,
    pub goodput: f64,
    pub broken: f64,
}

impl Pooled {
    pub fn of<'a>(streams: impl Iterator<Item = &'a StreamFigures>) -> Self {
        let streams: Vec<&StreamFigures> = streams.collect();
        let per_stream = |of: &dyn Fn(&StreamFigures) -> Option<f64>| {
            mean(&streams.iter().filter_map(|stream| of(stream)).collect::<Vec<f64>>())
        };
        let sum = |of: fn(&StreamFigures) -> u64| streams.iter().map(|stream| of(stream)).sum::<u64>() as f64;
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let mut delay = Histogram::default();
        streams.iter().for_each(|stream| delay.add(&stream.delay));
        Self {
            rate: per_stream(&|stream| Some(stream.rate())).unwrap_or_default(),
            rate_sd: per_stream(&|stream| deviation(&stream.rates)).unwrap_or_default(),
            rtt: per_stream(&|stream| mean(&stream.rtts)),
            rtt_sd: per_stream(&|stream| deviation(&stream.rtts)),
            delay,
            packet_loss: share(sum(|stream| stream.lost), sum(|stream| stream.sent)),
            residual_loss: share(sum(|stream| stream.residual), sum(|stream| stream.expected)),
            goodput: per_stream(&|stream| Some(stream.goodput)).unwrap_or_default(),
            broken: share(
                sum(|stream| stream.broken_frames),
                sum(|stream| stream.broken_frames) + sum(|stream| stream.frames),
            ),
        }
    }
}

/// Returns the mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the standard deviation of the sample; `None` for less than two values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}
