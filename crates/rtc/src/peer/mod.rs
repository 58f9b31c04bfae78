use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::{
    IceConnectionState, Input, Rtc,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    channel::{ChannelConfig, ChannelId, Reliability},
};

use crate::{
    connection::{self, Broken, Candidates, Connection, Said},
    contain::contain,
    crypto,
};

/// Maximum number of channels that one peer may open in total, whatever their labels.
const CHANNELS_MAX: usize = 4;
/// Maximum number of bytes that the library buffers for a peer that does not read. Writers check
/// [`Peer::buffered`] first, and stay below this limit.
pub(crate) const BUFFERED_MAX: usize = 1 << 20;

/// Factor by which the library's time runs faster than real time.
///
/// SCTP in the library waits at least 1 s before a retransmission, and 3 s for the first answer. These times
/// cannot be configured. With a factor of 5, the minimum is 200 ms, as for TCP on Linux. Timeouts that must not
/// become shorter are set five times as long.
const TIME_FACTOR: u32 = 5;
const STUN_RTO: Duration = Duration::from_millis(250);
const STUN_RTO_MAX: Duration = Duration::from_secs(3);

/// One end of a connection.
///
/// ```text
///   answer(offer) ─┐                         ┌─ Open(Session), Open(Latest), Data .. ─┐
///                  ├─► ICE ─► DTLS ─► SCTP ──┤                                        ├─► Closed
///   offer() .. accept(answer) ─┘             └─ any error, or a panic ────────────────┘
/// ```
///
/// Every call passes its datagrams and events to the caller's [`Output`]. [`Peer::timeout`] returns when to
/// call again.
pub struct Peer {
    connection: Connection,
    channels: Channels,
}

/// The data channels of one connection.
#[derive(Default)]
pub(crate) struct Channels {
    lanes: [Option<ChannelId>; 2],
    opened: usize,
}

/// Data channel with a known label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// `millrace`: ordered and reliable.
    Session,
    /// `latest`: in the mode that its opener requests. [`Peer::offer`] requests no order and no retransmissions.
    Latest,
}

/// Receiver of the datagrams and events of a peer.
pub trait Output {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>);
    fn event(&mut self, event: Event);
}

/// Stores all datagrams and events until the caller takes them.
#[derive(Default)]
pub struct Outputs {
    pub datagrams: VecDeque<(SocketAddr, Vec<u8>)>,
    pub events: VecDeque<Event>,
}

impl Output for Outputs {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push_back((to, datagram));
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }
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

/// An offer and the peer that made it, while the answer is pending.
pub struct Offer {
    peer: Peer,
    pending: SdpPendingOffer,
    pub sdp: String,
}

/// Reason why an offer or an answer cannot be used. The text is always one of a few fixed sentences, because a
/// remote peer receives it.
#[derive(Debug, thiserror::Error)]
#[error("the {kind} cannot be used: {what}")]
pub struct BadOffer {
    kind: &'static str,
    what: &'static str,
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

impl Peer {
    /// Creates the server's end for an offer, and returns it with the answer.
    ///
    /// The candidates of the offer are ignored. This end is ICE lite, and answers any address that knows the ICE
    /// password.
    ///
    /// Errors: the reason why the offer cannot be used.
    pub fn answer(offer: &str, candidates: &Candidates, now: Instant) -> Result<(Self, String), BadOffer> {
        if !offer.lines().skip(1).any(|line| line.starts_with("m=application ")) {
            return Err(BadOffer::new("it has no `m=application`; create a data channel first"));
        }
        let offer_bytes = offer.len();
        let offer = connection::read(offer, SdpOffer::from_sdp_string).map_err(BadOffer::new)?;
        let made = contain(|| {
            let mut peer = Self::new(true, candidates, now);
            peer.connection.add_received(offer_bytes);
            let answer = peer.connection.rtc.sdp_api().accept_offer(offer)?;
            Ok((peer, answer.to_sdp_string()))
        });
        made.unwrap_or(Err(Broken::Panicked)).map_err(|broken| BadOffer::new(connection::reason(&broken)))
    }

    /// Creates a client's end with both channels, reachable at `local`.
    pub fn offer(local: SocketAddr, now: Instant) -> Offer {
        Self::offer_with(local, now, false, Reliability::MaxRetransmits { retransmits: 0 })
    }

    /// Creates a client's end like [`Peer::offer`], with [`Lane::Latest`] in a mode that a browser may request.
    fn offer_with(local: SocketAddr, now: Instant, ordered: bool, reliability: Reliability) -> Offer {
        let mut peer = Self::new(false, &local.into(), now);
        let mut api = peer.connection.rtc.sdp_api();
        api.add_channel(Lane::Session.label().to_owned());
        api.add_channel_with_config(ChannelConfig {
            label: Lane::Latest.label().to_owned(),
            ordered,
            reliability,
            ..ChannelConfig::default()
        });
        let (offer, pending) = api.apply().expect("a first channel is negotiated");
        Offer { peer, pending, sdp: offer.to_sdp_string() }
    }

    fn new(is_lite: bool, candidates: &Candidates, now: Instant) -> Self {
        let connection = Connection::new(is_lite, candidates, TIME_FACTOR, now, |mut config| {
            config.set_initial_stun_rto(STUN_RTO * TIME_FACTOR);
            config.set_max_stun_rto(STUN_RTO_MAX * TIME_FACTOR);
            let config = config.set_crypto_provider(crypto::provider_without_media());
            config.clear_codecs().set_sctp_max_buffered_amount(BUFFERED_MAX)
        });
        Self { connection, channels: Channels::default() }
    }

    /// Returns the ICE username fragment with which the other end addresses this peer in its STUN requests.
    pub fn ufrag(&self) -> &str {
        self.connection.ufrag()
    }

    /// Returns when [`Peer::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        self.connection.timeout()
    }

    /// Handles a datagram from the address `from` to the candidate `to`. Returns true if the datagram belongs to
    /// this peer: a STUN message with its password, or a datagram from an address that has sent one before.
    ///
    /// Errors: the peer must be removed. The same holds for all methods below.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        datagram: &[u8],
        out: &mut impl Output,
    ) -> Result<bool, Broken> {
        let Self { connection, channels } = self;
        connection.handle_datagram(now, from, to, datagram, |rtc, said| channels.tell(rtc, said, out))
    }

    pub fn handle_timeout(&mut self, now: Instant, out: &mut impl Output) -> Result<(), Broken> {
        let Self { connection, channels } = self;
        connection.handle_timeout(now, |rtc, said| channels.tell(rtc, said, out))
    }

    /// Sends one message. Returns false if the buffer is full or the channel does not exist.
    pub fn write(
        &mut self,
        now: Instant,
        lane: Lane,
        is_text: bool,
        message: &[u8],
        out: &mut impl Output,
    ) -> Result<bool, Broken> {
        // The retransmission timer must start now, not at the time of the last input.
        let late = self.connection.behind(now);
        let Self { connection, channels } = self;
        let id = channels.lanes[lane as usize];
        let work = |rtc: &mut Rtc| {
            if let Some(now) = late {
                rtc.handle_input(Input::Timeout(now))?;
            }
            write(rtc, id, is_text, message)
        };
        connection.run(work, |rtc, said| channels.tell(rtc, said, out))
    }

    /// Returns the number of bytes that were written but not yet acknowledged.
    pub fn buffered(&mut self, lane: Lane) -> usize {
        self.channels.buffered(&mut self.connection.rtc, lane)
    }

    /// Sets the threshold of buffered bytes below which [`Event::Low`] is reported.
    pub fn set_low(&mut self, lane: Lane, threshold: usize, out: &mut impl Output) -> Result<(), Broken> {
        let id = self.channels.lanes[lane as usize];
        self.run(out, |rtc| {
            if let Some(mut channel) = id.and_then(|id| rtc.channel(id)) {
                channel.set_buffered_amount_low_threshold(threshold);
            }
            Ok(())
        })
    }

    /// Closes the connection and notifies the other end. The peer produces no output afterwards.
    pub fn close(&mut self, out: &mut impl Output) {
        let Self { connection, channels } = self;
        connection.close(|rtc, said| channels.tell(rtc, said, out));
    }

    fn run<T>(&mut self, out: &mut impl Output, work: impl FnOnce(&mut Rtc) -> Result<T, Broken>) -> Result<T, Broken> {
        let Self { connection, channels } = self;
        connection.run(work, |rtc, said| channels.tell(rtc, said, out))
    }
}

impl Channels {
    fn tell(&mut self, rtc: &mut Rtc, said: Said, out: &mut impl Output) -> Result<(), Broken> {
        match said {
            Said::Datagram(to, datagram) => out.send(to, datagram),
            Said::Event(event) => {
                if let Some(event) = self.handle_event(rtc, event)? {
                    out.event(event);
                }
            }
        }
        Ok(())
    }

    /// Returns the number of bytes that were written but not yet acknowledged.
    pub(crate) fn buffered(&self, rtc: &mut Rtc, lane: Lane) -> usize {
        self.id(lane).and_then(|id| rtc.channel(id)).map_or(0, |mut channel| channel.buffered_amount())
    }

    pub(crate) fn id(&self, lane: Lane) -> Option<ChannelId> {
        self.lanes[lane as usize]
    }

    /// Handles an event of the library.
    ///
    /// Errors: the peer has opened too many channels, or has opened `millrace` unordered or unreliable. The
    /// connection must then be closed.
    pub(crate) fn handle_event(&mut self, rtc: &mut Rtc, event: str0m::Event) -> Result<Option<Event>, Broken> {
        Ok(match event {
            str0m::Event::ChannelOpen(id, label) => {
                self.opened += 1;
                if self.opened > CHANNELS_MAX {
                    return Err(Broken::Over);
                }
                let known = Lane::ALL.into_iter().find(|lane| lane.label() == label);
                let lane = known.filter(|lane| self.lanes[*lane as usize].is_none());
                if let Some(lane) = lane {
                    let config = rtc.channel(id).and_then(|channel| channel.config().cloned());
                    let is_strict =
                        |config: ChannelConfig| config.ordered && config.reliability == Reliability::Reliable;
                    if lane == Lane::Session && !config.is_none_or(is_strict) {
                        return Err(Broken::Over);
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
pub(crate) fn write(rtc: &mut Rtc, id: Option<ChannelId>, is_text: bool, message: &[u8]) -> Result<bool, Broken> {
    match id.and_then(|id| rtc.channel(id)) {
        Some(mut channel) => Ok(channel.write(!is_text, message)?),
        None => Ok(false),
    }
}

impl BadOffer {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { kind: "offer", what }
    }

    pub(crate) fn answer(what: &'static str) -> Self {
        Self { kind: "answer", what }
    }
}

impl Offer {
    /// Accepts the answer to this offer, and returns the peer.
    ///
    /// Errors: the reason why the answer cannot be used.
    pub fn accept(self, answer: &str) -> Result<Peer, BadOffer> {
        let Self { mut peer, pending, .. } = self;
        let bad = |broken: Broken| BadOffer::answer(connection::reason(&broken));
        let answer = connection::parse(answer, SdpAnswer::from_sdp_string).map_err(BadOffer::answer)?;
        peer.connection.rtc.sdp_api().accept_answer(pending, answer).map_err(|error| bad(error.into()))?;
        Ok(peer)
    }
}

#[cfg(test)]
mod tests;
