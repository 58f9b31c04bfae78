//! Data channels of one connection: which channels a remote peer may open, and their events.

use str0m::{
    IceConnectionState, Rtc,
    channel::{ChannelConfig, ChannelId, Reliability},
};

use crate::connection::ConnectionError;

/// Maximum number of channels that one peer may open in total, whatever their labels.
const CHANNELS_MAX: usize = 4;
/// Maximum number of bytes that the library buffers for a peer that does not read. Writers check
/// [`Channels::buffered`] first, and stay below this limit.
pub const BUFFERED_MAX: usize = 1 << 20;

/// The data channels of one connection.
#[derive(Default)]
pub struct Channels {
    lanes: [Option<ChannelId>; 2],
    opened: usize,
}

/// Data channel with a known label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// `millrace`: ordered and reliable.
    Session,
    /// `latest`: in the mode that its opener requests. [`Peer::offer`](crate::Peer::offer) requests no order and no
    /// retransmissions.
    Latest,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A channel is open and can be written to.
    Open(Lane),
    /// A message was received.
    Data(Lane, Vec<u8>),
    /// Fewer bytes than the threshold are buffered now.
    Low(Lane),
    /// The connection has ended: the other end has closed it, or was silent for too long.
    Closed,
}

impl Lane {
    pub const ALL: [Lane; 2] = [Lane::Session, Lane::Latest];

    pub fn label(self) -> &'static str {
        match self {
            Lane::Session => "millrace",
            Lane::Latest => "latest",
        }
    }
}

impl Channels {
    /// Returns the number of bytes that were written but not yet acknowledged.
    pub fn buffered(&self, rtc: &mut Rtc, lane: Lane) -> usize {
        self.id(lane).and_then(|id| rtc.channel(id)).map_or(0, |mut channel| channel.buffered_amount())
    }

    pub fn id(&self, lane: Lane) -> Option<ChannelId> {
        self.lanes[lane as usize]
    }

    /// Handles an event of the library.
    ///
    /// Errors: the peer has opened too many channels, or has opened `millrace` unordered or unreliable. The
    /// connection must then be closed.
    pub fn handle_event(&mut self, rtc: &mut Rtc, event: str0m::Event) -> Result<Option<Event>, ConnectionError> {
        Ok(match event {
            str0m::Event::ChannelOpen(id, label) => {
                self.opened += 1;
                if self.opened > CHANNELS_MAX {
                    return Err(ConnectionError::Ended);
                }
                let known = Lane::ALL.into_iter().find(|lane| lane.label() == label);
                let lane = known.filter(|lane| self.lanes[*lane as usize].is_none());
                if let Some(lane) = lane {
                    let config = rtc.channel(id).and_then(|channel| channel.config().cloned());
                    let is_strict =
                        |config: ChannelConfig| config.ordered && config.reliability == Reliability::Reliable;
                    if lane == Lane::Session && !config.is_none_or(is_strict) {
                        return Err(ConnectionError::Ended);
                    }
                    self.lanes[lane as usize] = Some(id);
                }
                lane.map(Event::Open)
            }
            str0m::Event::ChannelData(data) => self.lane(data.id).map(|lane| Event::Data(lane, data.data)),
            str0m::Event::ChannelBufferedAmountLow(id) => self.lane(id).map(Event::Low),
            str0m::Event::ChannelClose(id) => match self.lane(id) {
                Some(Lane::Session) => Some(Event::Closed),
                Some(Lane::Latest) => {
                    self.lanes[Lane::Latest as usize] = None;
                    None
                }
                None => None,
            },
            str0m::Event::IceConnectionStateChange(IceConnectionState::Disconnected) | str0m::Event::Closed => {
                Some(Event::Closed)
            }
            _ => None,
        })
    }

    fn lane(&self, id: ChannelId) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| self.lanes[*lane as usize] == Some(id))
    }
}

/// Writes one message. Returns false if the buffer is full or the channel does not exist.
pub fn write(rtc: &mut Rtc, id: Option<ChannelId>, is_text: bool, message: &[u8]) -> Result<bool, ConnectionError> {
    match id.and_then(|id| rtc.channel(id)) {
        Some(mut channel) => Ok(channel.write(!is_text, message)?),
        None => Ok(false),
    }
}
