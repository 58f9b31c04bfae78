use millrace_link::{Flow, Packet, Time};
use millrace_sfu::congestion::Arrival;

/// Packet in one of the two directions.
#[derive(Clone, Debug)]
pub struct Sent {
    pub flow: usize,
    pub at: Time,
    pub bytes: usize,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    Video { sequence: u64 },
    Report(Report),
    Segment { sequence: u64 },
    Acknowledgment { sequence: u64 },
}

/// Report of a video receiver.
#[derive(Clone, Debug)]
pub struct Report {
    pub arrivals: Vec<Arrival>,
    pub lost: usize,
    /// Send time of the newest packet. The report leaves when this packet arrives.
    pub newest: Time,
}

impl Packet for Sent {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn flow(&self) -> Option<Flow> {
        None
    }

    fn is_opening(&self) -> bool {
        false
    }

    fn corrupt(&mut self, _: usize) {}

    fn reset(&self) -> Option<Self> {
        None
    }
}
