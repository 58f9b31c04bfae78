use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::{
    Input, Rtc,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    channel::{ChannelConfig, Reliability},
};

use crate::{
    channels::{self, BUFFERED_MAX, Channels, Event, Lane},
    connection::{Candidates, Connection, ConnectionError, LibraryOutput},
    contain::contain,
    crypto,
    sdp::{self, BadOffer},
};

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

/// An offer and the peer that made it, while the answer is pending.
pub struct Offer {
    peer: Peer,
    pending: SdpPendingOffer,
    pub sdp: String,
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
        let offer = sdp::read(offer, SdpOffer::from_sdp_string).map_err(BadOffer::new)?;
        let made = contain(|| {
            let mut peer = Self::new(true, candidates, now);
            peer.connection.add_received(offer_bytes);
            let answer = peer.connection.rtc.sdp_api().accept_offer(offer)?;
            Ok((peer, answer.to_sdp_string()))
        });
        made.unwrap_or(Err(ConnectionError::Panicked)).map_err(|error| BadOffer::new(sdp::reason(&error)))
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
    ) -> Result<bool, ConnectionError> {
        let Self { connection, channels } = self;
        connection.handle_datagram(now, from, to, datagram, |rtc, output| handle_output(channels, rtc, output, out))
    }

    pub fn handle_timeout(&mut self, now: Instant, out: &mut impl Output) -> Result<(), ConnectionError> {
        let Self { connection, channels } = self;
        connection.handle_timeout(now, |rtc, output| handle_output(channels, rtc, output, out))
    }

    /// Sends one message. Returns false if the buffer is full or the channel does not exist.
    pub fn write(
        &mut self,
        now: Instant,
        lane: Lane,
        is_text: bool,
        message: &[u8],
        out: &mut impl Output,
    ) -> Result<bool, ConnectionError> {
        // The retransmission timer must start now, not at the time of the last input.
        let late = self.connection.catch_up(now);
        let Self { connection, channels } = self;
        let id = channels.id(lane);
        let work = |rtc: &mut Rtc| {
            if let Some(now) = late {
                rtc.handle_input(Input::Timeout(now))?;
            }
            channels::write(rtc, id, is_text, message)
        };
        connection.run(work, |rtc, output| handle_output(channels, rtc, output, out))
    }

    /// Returns the number of bytes that were written but not yet acknowledged.
    pub fn buffered(&mut self, lane: Lane) -> usize {
        self.channels.buffered(&mut self.connection.rtc, lane)
    }

    /// Sets the threshold of buffered bytes below which [`Event::Low`] is reported.
    pub fn set_low(&mut self, lane: Lane, threshold: usize, out: &mut impl Output) -> Result<(), ConnectionError> {
        let id = self.channels.id(lane);
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
        connection.close(|rtc, output| handle_output(channels, rtc, output, out));
    }

    fn run<T>(
        &mut self,
        out: &mut impl Output,
        work: impl FnOnce(&mut Rtc) -> Result<T, ConnectionError>,
    ) -> Result<T, ConnectionError> {
        let Self { connection, channels } = self;
        connection.run(work, |rtc, output| handle_output(channels, rtc, output, out))
    }
}

fn handle_output(
    channels: &mut Channels,
    rtc: &mut Rtc,
    output: LibraryOutput,
    out: &mut impl Output,
) -> Result<(), ConnectionError> {
    match output {
        LibraryOutput::Datagram(to, datagram) => out.send(to, datagram),
        LibraryOutput::Event(event) => {
            if let Some(event) = channels.handle_event(rtc, event)? {
                out.event(event);
            }
        }
    }
    Ok(())
}

impl Offer {
    /// Accepts the answer to this offer, and returns the peer.
    ///
    /// Errors: the reason why the answer cannot be used.
    pub fn accept(self, answer: &str) -> Result<Peer, BadOffer> {
        let Self { mut peer, pending, .. } = self;
        let bad = |error: ConnectionError| BadOffer::answer(sdp::reason(&error));
        let answer = sdp::parse(answer, SdpAnswer::from_sdp_string).map_err(BadOffer::answer)?;
        peer.connection.rtc.sdp_api().accept_answer(pending, answer).map_err(|error| bad(error.into()))?;
        Ok(peer)
    }
}

#[cfg(test)]
mod tests;
