use std::{
    collections::VecDeque,
    net::SocketAddr,
    panic::catch_unwind,
    time::{Duration, Instant},
};

use str0m::{
    IceConnectionState, Input, Rtc,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    channel::{ChannelConfig, ChannelId, Reliability},
};

use crate::connection::{self, Broken, Connection, Said};

/// Channels that one peer may open, whatever they are called.
const CHANNELS_MAX: usize = 4;
/// What the library may hold of a peer that takes nothing; whoever writes asks [`Peer::buffered`] before, and stays below.
const BUFFERED_MAX: usize = 1 << 20;

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

#[derive(Default)]
struct Channels {
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

/// Why no peer came of an offer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadOffer(String);

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
    /// The server's end for an offer, and the answer. `candidates`: where it can be reached, the first of each family being the one that
    /// datagrams are said to come in on.
    ///
    /// The candidates of the offer are not looked at: this end is lite, and answers to whoever knows the password.
    ///
    /// Errors: what is wrong with the offer.
    pub fn answer(offer: &str, candidates: &[SocketAddr], now: Instant) -> Result<(Self, String), BadOffer> {
        let offer = connection::without_candidates(offer);
        if !offer.contains("\r\nm=application ") {
            return Err(BadOffer::new(&"it has no `m=application`; create a data channel first"));
        }
        let made = catch_unwind(|| {
            let offer = SdpOffer::from_sdp_string(&offer).map_err(|error| BadOffer::new(&error))?;
            let mut peer = Self::new(true, candidates, now);
            let answer = peer.connection.rtc.sdp_api().accept_offer(offer).map_err(|error| BadOffer::new(&error))?;
            Ok((peer, answer.to_sdp_string()))
        });
        made.unwrap_or_else(|_| Err(BadOffer::new(&"the library has panicked over it")))
    }

    /// A client's end, reachable at `local`, with both channels.
    pub fn offer(local: SocketAddr, now: Instant) -> Offer {
        let mut peer = Self::new(false, &[local], now);
        let mut api = peer.connection.rtc.sdp_api();
        api.add_channel(Lane::Session.label().to_owned());
        api.add_channel_with_config(ChannelConfig {
            label: Lane::Latest.label().to_owned(),
            ordered: false,
            reliability: Reliability::MaxRetransmits { retransmits: 0 },
            ..ChannelConfig::default()
        });
        let (offer, pending) = api.apply().expect("a first channel is negotiated");
        Offer { peer, pending, sdp: offer.to_sdp_string() }
    }

    fn new(is_lite: bool, candidates: &[SocketAddr], now: Instant) -> Self {
        let connection = Connection::new(is_lite, candidates, HASTE, now, |mut config| {
            config.set_initial_stun_rto(STUN_RTO * HASTE);
            config.set_max_stun_rto(STUN_RTO_MAX * HASTE);
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
        let id = self.channels.lanes[lane as usize];
        // The acknowledgement is waited for from now on, not from when something happened last.
        let late = self.connection.behind(now);
        self.run(out, |rtc| {
            if let Some(now) = late {
                rtc.handle_input(Input::Timeout(now))?;
            }
            match id.and_then(|id| rtc.channel(id)) {
                Some(mut channel) => Ok(channel.write(!is_text, message)?),
                None => Ok(false),
            }
        })
    }

    /// Bytes that were written and have not been acknowledged.
    pub fn buffered(&mut self, lane: Lane) -> usize {
        let id = self.channels.lanes[lane as usize];
        id.and_then(|id| self.connection.rtc.channel(id)).map_or(0, |mut channel| channel.buffered_amount())
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

    fn handle_event(&mut self, rtc: &mut Rtc, event: str0m::Event) -> Result<Option<Event>, Broken> {
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

impl BadOffer {
    pub(crate) fn new(what: &dyn std::fmt::Display) -> Self {
        Self(format!("the offer cannot be taken: {what}"))
    }
}

impl Offer {
    /// Errors: what is wrong with the answer.
    pub fn accept(self, answer: &str) -> Result<Peer, BadOffer> {
        let Self { mut peer, pending, .. } = self;
        let bad = |what: &dyn std::fmt::Display| BadOffer(format!("the answer cannot be taken: {what}"));
        let answer = SdpAnswer::from_sdp_string(answer).map_err(|error| bad(&error))?;
        peer.connection.rtc.sdp_api().accept_answer(pending, answer).map_err(|error| bad(&error))?;
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends on a wire that loses every `lose`th datagram (0: none), with time that is an input.
    struct Pair {
        ends: [Peer; 2],
        addresses: [SocketAddr; 2],
        outs: [Outputs; 2],
        now: Instant,
        lose: usize,
        count: usize,
        /// Where each is for the other.
        seen: [SocketAddr; 2],
        /// No STUN gets through.
        is_stunless: bool,
    }

    impl Pair {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
        fn new(lose: usize) -> Self {
            let now = Instant::now();
            let addresses = ["127.0.0.1:1001", "127.0.0.1:1002"].map(|address| address.parse().unwrap());
            let offer = Peer::offer(addresses[0], now);
            let (server, answer) = Peer::answer(&offer.sdp, &addresses[1..], now).unwrap();
            let ends = [offer.accept(&answer).unwrap(), server];
            Self { ends, addresses, outs: Default::default(), now, lose, count: 0, seen: addresses, is_stunless: false }
        }

        /// Lets both talk until nothing is under way, then time passes; at most `limit` of it, or until the condition holds.
        fn run(&mut self, limit: Duration, mut until: impl FnMut(&Self) -> bool) -> bool {
            let end = self.now + limit;
            while !until(self) {
                let mut moved = false;
                for from in 0..2 {
                    let to = 1 - from;
                    for (target, datagram) in std::mem::take(&mut self.outs[from].datagrams) {
                        moved = true;
                        self.count += 1;
                        let is_lost = self.lose > 0 && self.count.is_multiple_of(self.lose);
                        let is_astray = target != self.seen[to];
                        if is_lost || is_astray || self.is_stunless && datagram[0] < 4 {
                            continue;
                        }
                        let Self { ends, outs, addresses, seen, now, .. } = self;
                        let (source, target) = (seen[from], addresses[to]);
                        ends[to].handle_datagram(*now, source, target, &datagram, &mut outs[to]).unwrap();
                    }
                }
                if !moved {
                    let next =
                        self.ends.iter().map(Peer::timeout).min().unwrap().max(self.now + Duration::from_millis(1));
                    if next > end {
                        self.now = end;
                        return false;
                    }
                    self.now = next;
                    for i in 0..2 {
                        self.ends[i].handle_timeout(self.now, &mut self.outs[i]).unwrap();
                    }
                }
            }
            true
        }
    }

    fn both_open(pair: &Pair) -> bool {
        pair.outs.iter().all(|out| Lane::ALL.iter().all(|lane| out.events.contains(&Event::Open(*lane))))
    }

    #[test]
    fn both_channels_open_and_carry_messages() {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        assert!(pair.ends[1].write(pair.now, Lane::Session, true, b"hello\n", &mut pair.outs[1]).unwrap());
        assert!(pair.ends[0].write(pair.now, Lane::Latest, false, &[0, 255], &mut pair.outs[0]).unwrap());
        assert!(pair.run(Duration::from_secs(1), |pair| {
            pair.outs[0].events.contains(&Event::Data(Lane::Session, b"hello\n".to_vec()))
                && pair.outs[1].events.contains(&Event::Data(Lane::Latest, vec![0, 255]))
        }));
        pair.ends[1].close(&mut pair.outs[1]);
        let datagrams = std::mem::take(&mut pair.outs[1].datagrams);
        for (_, datagram) in datagrams {
            let (from, to) = (pair.addresses[1], pair.addresses[0]);
            let _ = pair.ends[0].handle_datagram(pair.now, from, to, &datagram, &mut pair.outs[0]);
        }
        assert!(pair.outs[0].events.contains(&Event::Closed));
    }

    /// An acknowledgement that is still on its way is not waited for, and nothing is sent twice, however long nothing was said before.
    #[test]
    fn a_message_in_several_datagrams_waits_for_nothing() {
        for (bytes, datagrams) in [(500, 1), (1300, 2), (3000, 3)] {
            let mut pair = Pair::new(0);
            assert!(pair.run(Duration::from_secs(2), both_open));
            pair.run(Duration::from_secs(1), |_| false);
            for round in 0..50 {
                pair.outs[1].events.clear();
                let begin = pair.now;
                let Pair { ends, outs, now, .. } = &mut pair;
                assert!(ends[0].write(*now, Lane::Session, true, &vec![7; bytes], &mut outs[0]).unwrap());
                let sent = outs[0].datagrams.iter().filter(|(_, datagram)| datagram.len() > 200).count();
                assert_eq!(sent, datagrams, "of {bytes} bytes in round {round}");
                assert!(pair.run(Duration::from_secs(5), |pair| !pair.outs[1].events.is_empty()));
                assert_eq!(pair.now, begin, "{bytes} bytes in round {round}");
                pair.run(Duration::from_millis(250), |_| false);
            }
        }
    }

    /// A consent is good for half a minute, however fast the library's time passes: Firefox asks every five seconds.
    #[test]
    fn who_is_silent_by_stun_is_let_go_after_half_a_minute_and_not_before() {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        pair.run(Duration::from_secs(10), |_| false);
        pair.is_stunless = true;
        let began = pair.now;
        let is_closed = |pair: &Pair| pair.outs[1].events.contains(&Event::Closed);
        while !is_closed(&pair) && pair.now < began + Duration::from_secs(60) {
            for i in 0..2 {
                let now = pair.now;
                let _ = pair.ends[i].write(now, Lane::Session, true, b"x\n", &mut pair.outs[i]);
            }
            pair.run(Duration::from_millis(100), is_closed);
        }
        let after = pair.now - began;
        assert!((27..36).contains(&after.as_secs()), "{after:?}");
    }

    /// A NAT gives it another port, or it is in another network.
    #[test]
    fn who_has_moved_is_found_as_soon_as_it_asks_from_there() {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        pair.run(Duration::from_secs(10), |_| false);
        pair.seen[0].set_port(1003);
        let (began, mut found) = (pair.now, None);
        while found.is_none() && pair.now < began + Duration::from_secs(40) {
            pair.outs[0].events.clear();
            let now = pair.now;
            let _ = pair.ends[1].write(now, Lane::Session, true, b"x\n", &mut pair.outs[1]);
            pair.run(Duration::from_millis(100), |_| false);
            let has_heard = pair.outs[0].events.iter().any(|event| matches!(event, Event::Data(..)));
            found = has_heard.then(|| pair.now - began);
        }
        assert!(found.is_some_and(|after| after < Duration::from_secs(8)), "{found:?}");
    }

    #[test]
    fn a_lossy_wire_delays_the_handshake_and_no_more() {
        for lose in [3, 5, 7] {
            let mut pair = Pair::new(lose);
            assert!(pair.run(Duration::from_secs(30), both_open), "every {lose}th is lost");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn bad_offers_are_refused_with_the_reason() {
        let now = Instant::now();
        let good = Peer::offer("127.0.0.1:1001".parse().unwrap(), now).sdp;
        let local = ["127.0.0.1:1002".parse().unwrap()];
        assert!(Peer::answer(&good, &local, now).is_ok());
        for bad in ["", "v=0", "\0\0", &good.replace("m=application", "m=audio"), &good.replace("a=fingerprint", "a=x")]
        {
            assert!(Peer::answer(bad, &local, now).is_err(), "{bad}");
        }
        for cut in (0..good.len()).step_by(7) {
            let _ = Peer::answer(&good[..cut], &local, now);
        }
    }

    /// A stream of numbers that is the same every time.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % n
        }

        /// A byte changed, taken away, put in, or everything behind it cut off.
        fn spoil(&mut self, bytes: &mut Vec<u8>) {
            let at = self.below(bytes.len().max(1));
            match self.below(4) {
                _ if bytes.is_empty() => {}
                0 => bytes[at] = self.below(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, self.below(256) as u8),
                _ => bytes.truncate(at),
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn spoiled_offers_make_a_peer_or_an_error() {
        let now = Instant::now();
        let (good, local) = (Peer::offer("127.0.0.1:1001".parse().unwrap(), now).sdp, ["127.0.0.1:2".parse().unwrap()]);
        let (mut dice, mut taken) = (Dice(7), 0);
        for _ in 0..3000 {
            let mut offer = good.clone().into_bytes();
            (0..=dice.below(4)).for_each(|_| dice.spoil(&mut offer));
            taken += usize::from(Peer::answer(&String::from_utf8_lossy(&offer), &local, now).is_ok());
        }
        assert!((1..3000).contains(&taken), "{taken}");
    }

    #[test]
    fn spoiled_datagrams_end_a_peer_at_most() {
        for seed in 0..60 {
            let (mut pair, mut dice) = (Pair::new(0), Dice(seed));
            let rounds = 200 + dice.below(200);
            for round in 0..rounds {
                for (from, to) in [(0, 1), (1, 0)] {
                    for (_, mut datagram) in std::mem::take(&mut pair.outs[from].datagrams) {
                        if dice.below(6) == 0 {
                            dice.spoil(&mut datagram);
                        }
                        let (source, target) = (pair.addresses[from], pair.addresses[to]);
                        let Pair { ends, outs, now, .. } = &mut pair;
                        let _ = ends[to].handle_datagram(*now, source, target, &datagram, &mut outs[to]);
                    }
                }
                pair.now += Duration::from_millis(20);
                for i in 0..2 {
                    let now = pair.now;
                    let _ = pair.ends[i].handle_timeout(now, &mut pair.outs[i]);
                    let _ = pair.ends[i].write(
                        now,
                        Lane::Session,
                        true,
                        format!("{round}\n").as_bytes(),
                        &mut pair.outs[i],
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_for_a_peer_changes_nothing() {
        let mut pair = Pair::new(0);
        assert!(pair.run(Duration::from_secs(2), both_open));
        let stranger = "127.0.0.1:9".parse().unwrap();
        let mut out = Outputs::default();
        for datagram in [&b""[..], b"\x00", b"\x16\xfe\xfd", &[0x80; 100], &[20; 3000], b"\x00\x01\x00\x00"] {
            let taken = pair.ends[1].handle_datagram(pair.now, stranger, pair.addresses[1], datagram, &mut out);
            assert!(!taken.unwrap(), "{datagram:?}");
        }
        assert!(out.datagrams.is_empty(), "a stranger is told nothing");
    }
}
