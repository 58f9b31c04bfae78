//! Byte streams over a link, in virtual time, as TCP carries them: in order, complete, and later if segments are lost.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{Config, ConfigError, Direction, Flow, Link, Packet, Time, Traces};

/// Payload of a full segment, and the IP and TCP headers, for an MTU of 1500.
const SEGMENT_BYTES: usize = 1460;
const HEADER_BYTES: usize = 40;
/// Bytes that are sent and not yet acknowledged.
const WINDOW_BYTES: usize = 256 * 1024;
/// Acknowledgements without progress after which a segment counts as lost. Source: RFC 5681, section 3.2.
const DUPLICATES: u32 = 3;
/// Time until the first retransmission. Source: RFC 6298; the minimum is that of Linux.
const RTO_FIRST: Duration = Duration::from_secs(1);
const RTO_MIN: Duration = Duration::from_millis(200);
const RTO_MAX: Duration = Duration::from_secs(60);

/// A connection with a byte stream per direction, over a [`Link`].
///
/// It has cumulative acknowledgements, and retransmits after three duplicates or a timeout. It has a fixed window and
/// no congestion control, so a queue that is shorter than the window loses more segments than with TCP.
pub struct StreamLink {
    link: Link<Segment>,
    /// The client, which sends up, and the server.
    ends: [End; 2],
    received: VecDeque<Received>,
}

/// An event at an end of a [`StreamLink`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The next bytes of the stream in this direction, at the time at which they arrived.
    Data(Direction, Time, Vec<u8>),
    /// A NAT has ended the connection; reported to the sender in this direction.
    Reset(Direction, Time),
}

impl StreamLink {
    /// Errors: see [`ConfigError`].
    pub fn new(config: Config, traces: &Traces, seed: u64) -> Result<Self, ConfigError> {
        let ends = [End::default(), End::default()];
        Ok(Self { link: Link::new(config, traces, seed)?, ends, received: VecDeque::new() })
    }

    /// Appends bytes to the stream in a direction.
    pub fn send(&mut self, direction: Direction, bytes: &[u8], now: Time) {
        self.ends[direction as usize].unacknowledged.extend(bytes);
        self.transmit(direction, now);
    }

    /// Returns what has arrived until `now`. Call it until it returns `None`, then again at
    /// [`StreamLink::poll_timeout`].
    pub fn poll_received(&mut self, now: Time) -> Option<Received> {
        while self.received.is_empty() {
            let next = self.poll_timeout().filter(|next| *next <= now)?;
            self.advance(next);
        }
        self.received.pop_front()
    }

    /// Returns the time of the next event, or `None` if nothing is in flight.
    pub fn poll_timeout(&self) -> Option<Time> {
        let timers = self.ends.iter().filter_map(|end| end.retransmit_at);
        timers.chain(self.link.poll_timeout()).min()
    }

    /// Returns the bytes that the receiver has not acknowledged.
    pub fn unacknowledged(&self, direction: Direction) -> usize {
        self.ends[direction as usize].unacknowledged.len()
    }

    pub fn link(&self) -> &Link<Segment> {
        &self.link
    }

    fn advance(&mut self, now: Time) {
        while let Some((direction, at, segment)) = self.link.poll_output(now) {
            self.handle(direction, segment, at, now);
        }
        for direction in Direction::BOTH {
            let end = &mut self.ends[direction as usize];
            if end.retransmit_at.is_some_and(|at| at <= now) {
                end.timeout = (end.timeout() * 2).min(RTO_MAX);
                end.measured = None;
                self.retransmit(direction, now);
            }
        }
    }

    /// Handles a segment that went in a direction. It has data of this direction, and acknowledges the other one.
    fn handle(&mut self, direction: Direction, segment: Segment, at: Time, now: Time) {
        if segment.is_corrupt {
            return;
        }
        if segment.is_reset {
            self.ends = [End::default(), End::default()];
            return self.received.push_back(Received::Reset(direction.opposite(), at));
        }
        let back = direction.opposite();
        match self.ends[back as usize].acknowledge(segment.acknowledged, segment.data.is_empty(), now) {
            Acknowledged::New => self.transmit(back, now),
            Acknowledged::Lost => self.retransmit(back, now),
            Acknowledged::Nothing => {}
        }
        if segment.data.is_empty() {
            return;
        }
        let data = self.ends[direction as usize].receive(segment.offset, segment.data);
        if !data.is_empty() {
            self.received.push_back(Received::Data(direction, at, data));
        }
        self.put(back, self.ends[back as usize].sent, Vec::new(), now);
    }

    /// Sends new data, as far as the window allows.
    fn transmit(&mut self, direction: Direction, now: Time) {
        loop {
            let end = &mut self.ends[direction as usize];
            let start = (end.sent - end.acknowledged) as usize;
            let length = SEGMENT_BYTES.min(end.unacknowledged.len().min(WINDOW_BYTES).saturating_sub(start));
            if length == 0 {
                return;
            }
            let (offset, data) = (end.sent, end.piece(start, length));
            end.sent += length as u64;
            end.measured.get_or_insert((end.sent, now));
            end.retransmit_at.get_or_insert(now + end.timeout());
            self.put(direction, offset, data, now);
        }
    }

    /// Sends the oldest unacknowledged segment again.
    fn retransmit(&mut self, direction: Direction, now: Time) {
        let end = &mut self.ends[direction as usize];
        let length = SEGMENT_BYTES.min((end.sent - end.acknowledged) as usize);
        let (offset, data) = (end.acknowledged, end.piece(0, length));
        end.retransmit_at = (length > 0).then(|| now + end.timeout());
        if length > 0 {
            self.put(direction, offset, data, now);
        }
    }

    fn put(&mut self, direction: Direction, offset: u64, data: Vec<u8>, now: Time) {
        let acknowledged = self.ends[direction.opposite() as usize].expected;
        let segment = Segment { offset, data, acknowledged, is_reset: false, is_corrupt: false };
        self.link.handle_input(direction, segment, now);
    }
}

/// State of the stream in one direction: the sender's, and the receiver's.
#[derive(Default)]
struct End {
    /// Bytes from `acknowledged` on, sent or not.
    unacknowledged: VecDeque<u8>,
    acknowledged: u64,
    sent: u64,
    duplicates: u32,
    /// Offset at which the next round trip is measured, and when the bytes before it were sent.
    measured: Option<(u64, Time)>,
    round_trip: Option<Duration>,
    /// Zero: not yet set by a retransmission or a measurement.
    timeout: Duration,
    retransmit_at: Option<Time>,
    /// Offset up to which the receiver has everything.
    expected: u64,
    /// Segments that arrived before an earlier one, by offset.
    early: BTreeMap<u64, Vec<u8>>,
}

enum Acknowledged {
    New,
    /// A segment after the oldest one has arrived, but not that one.
    Lost,
    Nothing,
}

impl End {
    fn timeout(&self) -> Duration {
        if self.timeout.is_zero() { RTO_FIRST } else { self.timeout }
    }

    fn piece(&self, start: usize, length: usize) -> Vec<u8> {
        self.unacknowledged.range(start..start + length).copied().collect()
    }

    fn acknowledge(&mut self, acknowledged: u64, is_pure: bool, now: Time) -> Acknowledged {
        if acknowledged > self.acknowledged && acknowledged <= self.sent {
            self.unacknowledged.drain(..(acknowledged - self.acknowledged) as usize);
            self.acknowledged = acknowledged;
            self.duplicates = 0;
            if let Some((_, sent)) = self.measured.take_if(|(offset, _)| *offset <= acknowledged) {
                let sample = now.since(sent);
                let mean = self.round_trip.map_or(sample, |mean| (mean * 7 + sample) / 8);
                self.round_trip = Some(mean);
                self.timeout = (mean * 2).clamp(RTO_MIN, RTO_MAX);
            }
            self.retransmit_at = (self.sent > acknowledged).then(|| now + self.timeout());
            return Acknowledged::New;
        }
        let is_duplicate = is_pure && acknowledged == self.acknowledged && self.sent > acknowledged;
        self.duplicates += u32::from(is_duplicate);
        match is_duplicate && self.duplicates == DUPLICATES {
            true => Acknowledged::Lost,
            false => Acknowledged::Nothing,
        }
    }

    /// Returns the bytes that are next in the stream, if the segment completes them.
    fn receive(&mut self, offset: u64, data: Vec<u8>) -> Vec<u8> {
        if offset + data.len() as u64 > self.expected {
            let longest = self.early.entry(offset).or_default();
            if data.len() > longest.len() {
                *longest = data;
            }
        }
        let mut next = Vec::new();
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() <= self.expected) {
            let (offset, data) = first.remove_entry();
            let known = ((self.expected - offset) as usize).min(data.len());
            next.extend_from_slice(&data[known..]);
            self.expected += (data.len() - known) as u64;
        }
        next
    }
}

/// A piece of a byte stream on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    offset: u64,
    data: Vec<u8>,
    acknowledged: u64,
    is_reset: bool,
    is_corrupt: bool,
}

impl Packet for Segment {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.data.len()
    }

    fn flow(&self) -> Option<Flow> {
        Some(Flow(0))
    }

    fn is_opening(&self) -> bool {
        self.offset == 0 && !self.data.is_empty()
    }

    /// The checksum of TCP finds each single bit error.
    fn corrupt(&mut self, _: usize) {
        self.is_corrupt = true;
    }

    fn reset(&self) -> Option<Self> {
        let reset = Self { offset: 0, data: Vec::new(), acknowledged: 0, is_reset: true, is_corrupt: false };
        (!self.is_reset).then_some(reset)
    }
}
