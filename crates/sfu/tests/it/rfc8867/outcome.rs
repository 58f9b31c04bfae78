use std::time::Duration;

use millrace_link::Time;

use super::{
    cases::{Case, Source},
    media::RATE_MAX,
};

/// Figures of a case: rates, delays and losses of its flows.
pub struct Outcome {
    seconds: usize,
    flows: Vec<FlowOutcome>,
    /// Capacity of the forward direction in bit/s, per second.
    capacity: Vec<f64>,
}

/// Figures of one flow.
struct FlowOutcome {
    is_video: bool,
    is_forward: bool,
    start_s: usize,
    /// Received bytes per second.
    bytes: Vec<u64>,
    /// Queuing delay of each packet, in ms.
    delays_ms: Vec<f64>,
    sent: u64,
    received: u64,
}

/// The last part of a case, over which fairness counts.
const LAST_S: usize = 30;

impl Outcome {
    pub fn new(case: &Case) -> Self {
        let seconds = case.seconds as usize;
        let capacity = |second: usize| {
            let changes = case.forward.iter().rev();
            changes.clone().find(|(at, _)| *at as usize <= second).map_or(0.0, |(_, rate)| *rate as f64)
        };
        let flows = case.flows.iter().map(|flow| FlowOutcome {
            is_video: matches!(flow.source, Source::Video { .. }),
            is_forward: flow.is_forward,
            start_s: flow.start_s as usize,
            bytes: vec![0; seconds],
            delays_ms: Vec::new(),
            sent: 0,
            received: 0,
        });
        Self { seconds, flows: flows.collect(), capacity: (0..seconds).map(capacity).collect() }
    }

    pub fn count_sent(&mut self, flow: usize) {
        self.flows[flow].sent += 1;
    }

    pub fn count_arrival(&mut self, flow: usize, at: Time, bytes: usize, queuing: Duration) {
        let flow = &mut self.flows[flow];
        let second = (at.ns() / 1_000_000_000) as usize;
        if let Some(second) = flow.bytes.get_mut(second) {
            *second += bytes as u64;
        }
        flow.received += 1;
        flow.delays_ms.push(queuing.as_secs_f64() * 1000.0);
    }

    /// Returns the mean rate of a flow in kbit/s, from a second to another.
    pub fn kbit_per_s(&self, flow: usize, from: usize, to: usize) -> f64 {
        let (from, to) = (from.max(self.flows[flow].start_s), to.min(self.seconds));
        self.flows[flow].bytes[from..to].iter().sum::<u64>() as f64 * 8.0 / 1000.0 / (to - from) as f64
    }

    /// Returns the mean rates of all video flows in kbit/s, over the last 30 s.
    pub fn last_kbit_per_s(&self) -> Vec<f64> {
        self.video().map(|flow| self.kbit_per_s(flow, self.seconds - LAST_S, self.seconds)).collect()
    }

    /// Returns the mean rate of all TCP flows together in kbit/s, over the last 30 s. `None`: the case has none.
    pub fn last_tcp_kbit_per_s(&self) -> Option<f64> {
        let flows = (0..self.flows.len()).filter(|flow| !self.flows[*flow].is_video);
        flows.map(|flow| self.kbit_per_s(flow, self.seconds - LAST_S, self.seconds)).reduce(|sum, rate| sum + rate)
    }

    /// Returns Jain's fairness index of the video flows over the last 30 s.
    pub fn jain(&self) -> f64 {
        let rates = self.last_kbit_per_s();
        let (sum, squares) = rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
        sum * sum / (rates.len() as f64 * squares)
    }

    /// Returns the share of the usable forward capacity that the flows have used, from a second to another. The video
    /// flows can use at most their highest rate.
    pub fn use_of_capacity(&self, from: usize, to: usize) -> f64 {
        let forward = || (0..self.flows.len()).filter(|flow| self.flows[*flow].is_forward);
        let received: f64 =
            forward().map(|flow| self.flows[flow].bytes[from..to].iter().sum::<u64>() as f64 * 8.0).sum();
        let can_use = |second: usize| {
            let rate = |flow: usize| match (self.flows[flow].is_video, self.flows[flow].start_s <= second) {
                (_, false) => 0.0,
                (true, true) => RATE_MAX,
                (false, true) => f64::INFINITY,
            };
            self.capacity[second].min(forward().map(rate).sum())
        };
        received / (from..to).map(can_use).sum::<f64>()
    }

    /// Returns a percentile of the queuing delay of all video packets, in ms.
    pub fn queuing_ms(&self, percent: f64) -> f64 {
        let mut delays: Vec<f64> = self.video().flat_map(|flow| self.flows[flow].delays_ms.iter().copied()).collect();
        delays.sort_by(f64::total_cmp);
        delays[((delays.len() - 1) as f64 * percent / 100.0) as usize]
    }

    /// Returns the share of the video packets that were lost, in percent.
    pub fn loss_percent(&self) -> f64 {
        let (sent, received) =
            self.video().fold((0, 0), |all, flow| (all.0 + self.flows[flow].sent, all.1 + self.flows[flow].received));
        100.0 * (1.0 - received as f64 / sent as f64)
    }

    fn video(&self) -> impl Iterator<Item = usize> {
        (0..self.flows.len()).filter(|flow| self.flows[*flow].is_video)
    }
}
