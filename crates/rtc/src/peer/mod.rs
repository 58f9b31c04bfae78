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

/// Channels that one peer may open, whatever they are called.
const CHANNELS_MAX: usize = 4;
/// What the library may hold of a peer that takes nothing; whoever writes asks [`Peer::buffered`] before, and stays below.
pub(crate) const BUFFERED_MAX: usize = 1 << 20;

/// So much faster does time pass for the library. It waits at least a second before it sends again what SCTP has lost, and three for the
/// first answer, and lets nobody change that; so a fifth: as long as TCP waits here. What shall not be shortened is set five times as long.
const HASTE: u32 = 5;
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
/// After every call what there is to send and to tell is given to the caller's [`Output`], and [`Peer::timeout`] says when to call again.
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

/// The channels that are known by their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// `millrace`: ordered and reliable.
    Session,
    /// `latest`: as its opener has asked for; what is lost is not sent again.
    Latest,
}

/// Where what a peer has to say goes.
pub trait Output {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>);
    fn event(&mut self, event: Event);
}

/// Keeps all of it until somebody takes it.
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
    /// A channel can be written to.
    Open(Lane),
    /// One message.
    Data(Lane, Vec<u8>),
    /// Less than the threshold is buffered now.
    Low(Lane),
    /// It is over: the other end has closed, or has not been heard of for too long.
    Closed,
}

/// An offer and the peer that has made it, until there is an answer.
pub struct Offer {
    peer: Peer,
    pending: SdpPendingOffer,
    pub sdp: String,
}

/// Why no peer came of an offer: always one of a few fixed sentences, since a remote peer is told them.
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
    /// The server's end for an offer, and the answer.
    ///
    /// The candidates of the offer are not looked at: this end is lite, and answers to whoever knows the password.
    ///
    /// Errors: what is wrong with the offer.
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

    /// A client's end, reachable at `local`, with both channels.
    pub fn offer(local: SocketAddr, now: Instant) -> Offer {
        Self::offer_with(local, now, false, Reliability::MaxRetransmits { retransmits: 0 })
    }

    /// The same, with [`Lane::Latest`] as a browser may ask for it.
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
        let connection = Connection::new(is_lite, candidates, HASTE, now, |mut config| {
            config.set_initial_stun_rto(STUN_RTO * HASTE);
            config.set_max_stun_rto(STUN_RTO_MAX * HASTE);
            let config = config.set_crypto_provider(crypto::provider_without_media());
            config.clear_codecs().set_sctp_max_buffered_amount(BUFFERED_MAX)
        });
        Self { connection, channels: Channels::default() }
    }

    /// What the other end calls this one in its STUN requests.
    pub fn ufrag(&self) -> &str {
        self.connection.ufrag()
    }

    /// When [`Peer::handle_timeout`] wants to be called.
    pub fn timeout(&self) -> Instant {
        self.connection.timeout()
    }

    /// A datagram has come from `from` to the candidate `to`. True if it was one of this peer's: a STUN message with its password, or
    /// from an address that has shown it.
    ///
    /// Errors: then the peer is to be forgotten, as after every call below.
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

    /// Sends one message. False if there is no room, or no such channel.
    pub fn write(
        &mut self,
        now: Instant,
        lane: Lane,
        is_text: bool,
        message: &[u8],
        out: &mut impl Output,
    ) -> Result<bool, Broken> {
        // The acknowledgement is waited for from now on, not from when something happened last.
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

    /// Bytes that were written and have not been acknowledged.
    pub fn buffered(&mut self, lane: Lane) -> usize {
        self.channels.buffered(&mut self.connection.rtc, lane)
    }

    /// [`Event::Low`] comes when less than this is buffered.
    pub fn set_low(&mut self, lane: Lane, threshold: usize, out: &mut impl Output) -> Result<(), Broken> {
        let id = self.channels.lanes[lane as usize];
        self.run(out, |rtc| {
            if let Some(mut channel) = id.and_then(|id| rtc.channel(id)) {
                channel.set_buffered_amount_low_threshold(threshold);
            }
            Ok(())
        })
    }

    /// Says good-bye; nothing comes after it.
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

    /// Bytes that were written and have not been acknowledged.
    pub(crate) fn buffered(&self, rtc: &mut Rtc, lane: Lane) -> usize {
        self.id(lane).and_then(|id| rtc.channel(id)).map_or(0, |mut channel| channel.buffered_amount())
    }

    pub(crate) fn id(&self, lane: Lane) -> Option<ChannelId> {
        self.lanes[lane as usize]
    }

    /// Errors: the connection is to be ended; it has opened too many, or not as they have to be.
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

/// False if there is no room, or no such channel.
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
    /// Errors: what is wrong with the answer.
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
