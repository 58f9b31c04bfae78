use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::{
    Candidate, IceCreds, Input, Output, Rtc, RtcConfig, RtcError,
    net::{Protocol, Receive, TcpType},
};

use crate::{contain::contain, crypto, egress::Exported};

/// Where an end can be reached.
#[derive(Clone, Debug)]
pub struct Candidates {
    pub addresses: Vec<SocketAddr>,
    /// By TCP, too: a stream that comes in there carries datagrams (RFC 6544). Here it stands for the address that it comes from, as if they
    /// came by themselves.
    pub take_streams: bool,
}

impl From<SocketAddr> for Candidates {
    fn from(address: SocketAddr) -> Self {
        Self { addresses: vec![address], take_streams: false }
    }
}

impl Candidates {
    /// Where what comes from there is said to have come to: the first of its family.
    pub fn local(&self, from: SocketAddr) -> Option<SocketAddr> {
        self.addresses.iter().find(|address| address.is_ipv4() == from.is_ipv4()).copied()
    }

    fn all(&self) -> impl Iterator<Item = Candidate> {
        let datagrams = |address: &SocketAddr| Candidate::builder().udp().host(*address).build().ok();
        let stream =
            |address: &SocketAddr| Candidate::builder().tcp().host(*address).tcptype(TcpType::Passive).build().ok();
        let streams = self.addresses.iter().filter(|_| self.take_streams).filter_map(stream);
        self.addresses.iter().filter_map(datagrams).chain(streams)
    }
}

/// The library, kept to its rule: after anything was done to it, all that it asks for is done before it is touched again. What it panics
/// about is an error, after which it is not touched any more.
pub(crate) struct Connection {
    pub rtc: Rtc,
    /// Where its clock and ours are the same.
    born: Instant,
    /// So much faster does time pass for the library.
    haste: u32,
    ufrag: String,
    timeout: Instant,
    /// The library's time when it was last told it.
    told: Instant,
    /// The newest; kept where the library would take it for old too soon.
    consent: Option<Consent>,
    keeps_consent: bool,
    is_over: bool,
    /// Where the library has sent last what is no STUN: the way that was found.
    remote: Option<SocketAddr>,
    has_moved: bool,
    exported: Option<Exported>,
    /// Until the other end has shown that it receives what is sent to it: what it has been sent for what it has sent.
    unproven: Option<Unproven>,
}

/// Bytes to and from an address that may be forged: whoever made the offer knows the password, and can send from anybody's address.
#[derive(Default)]
struct Unproven {
    received: usize,
    sent: usize,
}

/// An unproven end is sent so many times what it has sent, its offer included, at most. A handshake fits, and two repetitions of its longest
/// flight. Source: RFC 9000, section 8.1, has the same rule.
const AMPLIFICATION_MAX: usize = 3;

/// The other end has asked by STUN whether this one is there, and so lets it send.
struct Consent {
    request: Vec<u8>,
    from: SocketAddr,
    to: SocketAddr,
    /// When it came, by the library's time.
    came: Instant,
    /// When the library heard it last.
    told: Instant,
}

/// By our time. Browsers ask every 2.5 to 6 s, and one request may be lost. Source: RFC 7675, section 5.1.
const CONSENT: Duration = Duration::from_secs(30);
/// An end that is lite takes a way for lost after 15 s of the library's time: before that it is told again what still holds.
const CONSENT_AGAIN: Duration = Duration::from_secs(12);

/// What is due so soon is done at once: a timer would cost more than it waits.
const SOON: Duration = Duration::from_micros(50);
/// By the library's own time; its shortest wait for an acknowledgement is a second.
const BEHIND_MAX: Duration = Duration::from_millis(50);
/// First byte of what is no STUN. Source: RFC 7983.
const NO_STUN: u8 = 4;
/// How a STUN message begins that asks for an answer. Source: RFC 8489, section 5.
const BINDING_REQUEST: [u8; 2] = [0, 1];
/// So often in a row, at most: then others get their turn.
const ROUNDS_MAX: u32 = 64;

/// What the library asks for, or tells.
#[expect(clippy::large_enum_variant, reason = "a packet of media is an event, and is not to be allocated")]
pub(crate) enum Said {
    Datagram(SocketAddr, Vec<u8>),
    Event(str0m::Event),
}

/// The peer is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("{0}")]
    Failed(#[from] RtcError),
    #[error("the library has panicked")]
    Panicked,
    #[error("it is over")]
    Over,
}

impl Connection {
    /// `configure` says what it is for.
    pub fn new(
        is_lite: bool,
        candidates: &Candidates,
        haste: u32,
        now: Instant,
        configure: impl FnOnce(RtcConfig) -> RtcConfig,
    ) -> Self {
        let creds = IceCreds { ufrag: random::<6>(), pass: random::<16>() };
        let ufrag = creds.ufrag.clone();
        let mut rtc = configure(RtcConfig::new().set_crypto_provider(crypto::provider()))
            .set_dtls_cert(crypto::certificate())
            .set_ice_lite(is_lite)
            .set_local_ice_credentials(creds)
            .build(now);
        for candidate in candidates.all() {
            rtc.add_local_candidate(candidate);
        }
        let (consent, keeps_consent) = (None, is_lite && haste > 1);
        Self {
            rtc,
            born: now,
            haste,
            ufrag,
            timeout: now,
            told: now,
            consent,
            keeps_consent,
            is_over: false,
            remote: None,
            has_moved: false,
            exported: None,
            unproven: is_lite.then(Unproven::default),
        }
    }

    /// What the other end calls this one in its STUN requests.
    pub fn ufrag(&self) -> &str {
        &self.ufrag
    }

    /// Where the other end is, once a way to it was found.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// The same, once after each time that it has become another.
    pub fn take_moved(&mut self) -> Option<SocketAddr> {
        std::mem::take(&mut self.has_moved).then_some(self.remote).flatten()
    }

    /// The keys of media, once, when the handshake has agreed on them.
    pub fn take_exported(&mut self) -> Option<Exported> {
        self.exported.take()
    }

    /// The other end has sent so many bytes by another way: its offer.
    pub fn add_received(&mut self, bytes: usize) {
        if let Some(unproven) = &mut self.unproven {
            unproven.received += bytes;
        }
    }

    /// When [`Connection::handle_timeout`] wants to be called.
    pub fn timeout(&self) -> Instant {
        self.timeout
    }

    /// True if it was one of this peer's: a STUN message with its password, or from an address that has shown it.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        datagram: &[u8],
        tell: impl FnMut(&mut Rtc, Said) -> Result<(), Broken>,
    ) -> Result<bool, Broken> {
        let now = self.tell_time(now);
        self.add_received(datagram.len());
        let work = |rtc: &mut Rtc| {
            // What is no STUN, DTLS or RTP is nobody's.
            let Ok(receive) = Receive::new(Protocol::Udp, from, to, datagram) else { return Ok(false) };
            let input = Input::Receive(now, receive);
            if !rtc.accepts(&input) {
                return Ok(false);
            }
            rtc.handle_input(input)?;
            Ok(true)
        };
        let is_its_own = self.run(work, tell)?;
        if is_its_own && self.keeps_consent && datagram.starts_with(&BINDING_REQUEST) {
            let (request, now) = (datagram.into(), self.told);
            self.consent = Some(Consent { request, from, to, came: now, told: now });
        }
        Ok(is_its_own)
    }

    pub fn handle_timeout(
        &mut self,
        now: Instant,
        tell: impl FnMut(&mut Rtc, Said) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let at = self.tell_time(now);
        self.run(|rtc| Ok(rtc.handle_input(Input::Timeout(at))?), tell)
    }

    /// Says good-bye; nothing comes after it.
    pub fn close(&mut self, tell: impl FnMut(&mut Rtc, Said) -> Result<(), Broken>) {
        let _ = self.run(|rtc| Ok(rtc.close()?), tell);
        self.is_over = true;
    }

    /// Does something to the library, and then all that it asks for.
    ///
    /// Errors: the connection is to be forgotten.
    pub fn run<T>(
        &mut self,
        work: impl FnOnce(&mut Rtc) -> Result<T, Broken>,
        mut tell: impl FnMut(&mut Rtc, Said) -> Result<(), Broken>,
    ) -> Result<T, Broken> {
        if self.is_over {
            return Err(Broken::Over);
        }
        let done = contain(|| {
            self.remind_of_consent(&mut tell)?;
            let done = work(&mut self.rtc)?;
            self.drain(&mut tell)?;
            Ok(done)
        });
        let done = done.unwrap_or(Err(Broken::Panicked));
        self.exported = crypto::take_exported().or(self.exported.take());
        self.is_over |= done.is_err();
        done
    }

    /// Tells the library again what it would forget sooner than the other end takes it back. Of the newest alone: an end that has moved is to be
    /// looked for no longer where it was.
    fn remind_of_consent(&mut self, tell: &mut impl FnMut(&mut Rtc, Said) -> Result<(), Broken>) -> Result<(), Broken> {
        let (now, lasts) = (self.told, CONSENT * self.haste);
        let is_due = |consent: &&mut Consent| now >= consent.told + CONSENT_AGAIN && now < consent.came + lasts;
        let Some(Consent { request, from, to, told, .. }) = self.consent.as_mut().filter(is_due) else { return Ok(()) };
        let Ok(receive) = Receive::new(Protocol::Udp, *from, *to, request) else { return Ok(()) };
        *told = now;
        self.rtc.handle_input(Input::Receive(now, receive))?;
        // The answer has been given.
        let is_stun = |said: &Said| matches!(said, Said::Datagram(_, datagram) if datagram.first() < Some(&NO_STUN));
        self.drain(&mut |rtc, said| if is_stun(&said) { Ok(()) } else { tell(rtc, said) })
    }

    /// The library's time, if it was told an older one: timers that it sets by that one would end too soon.
    pub fn behind(&mut self, now: Instant) -> Option<Instant> {
        let is_behind = self.hastened(now) > self.told + BEHIND_MAX;
        is_behind.then(|| self.tell_time(now))
    }

    fn tell_time(&mut self, now: Instant) -> Instant {
        self.told = self.hastened(now);
        self.told
    }

    /// When it is, for the library.
    fn hastened(&self, now: Instant) -> Instant {
        self.born + now.saturating_duration_since(self.born) * self.haste
    }

    fn drain(&mut self, tell: &mut impl FnMut(&mut Rtc, Said) -> Result<(), Broken>) -> Result<(), Broken> {
        let mut rounds = 0;
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(at) if at <= self.told + SOON && rounds < ROUNDS_MAX => {
                    rounds += 1;
                    self.rtc.handle_input(Input::Timeout(at))?;
                }
                Output::Timeout(at) => {
                    self.timeout = self.untold(at);
                    return Ok(());
                }
                Output::Transmit(transmit) => {
                    if let Some(unproven) = &mut self.unproven {
                        if unproven.sent + transmit.contents.len() > AMPLIFICATION_MAX * unproven.received {
                            continue;
                        }
                        unproven.sent += transmit.contents.len();
                    }
                    if transmit.contents.first() >= Some(&NO_STUN) {
                        self.has_moved |= self.remote.replace(transmit.destination) != Some(transmit.destination);
                    }
                    tell(&mut self.rtc, Said::Datagram(transmit.destination, transmit.contents.into()))?;
                }
                Output::Event(str0m::Event::Connected) => {
                    // It has answered with what was sent to it: the handshake is done.
                    self.unproven = None;
                    tell(&mut self.rtc, Said::Event(str0m::Event::Connected))?;
                }
                Output::Event(event) => tell(&mut self.rtc, Said::Event(event))?,
            }
        }
    }

    /// When it is, here, so late for the library: a little later rather than a little too soon, which would be for nothing.
    fn untold(&self, at: Instant) -> Instant {
        self.born + at.saturating_duration_since(self.born) / self.haste + Duration::from_micros(1)
    }
}

/// Parses a description by one of the library's parsers, without its candidates.
///
/// Errors: [`NO_DESCRIPTION`]. The library's own words are for nobody else: they quote the input, and show addresses of memory.
pub(crate) fn read<T, E>(description: &str, by: impl FnOnce(&str) -> Result<T, E>) -> Result<T, &'static str> {
    parse(&without_candidates(description), by)
}

/// The same with its candidates, which the end that makes an offer needs.
pub(crate) fn parse<T, E>(description: &str, by: impl FnOnce(&str) -> Result<T, E>) -> Result<T, &'static str> {
    contain(|| by(description).ok()).flatten().ok_or(NO_DESCRIPTION)
}

const NO_DESCRIPTION: &str = "expected SDP as browsers write it, with `a=mid` in each `m=` section";

/// Why the library refuses a description that it could parse, in fixed words.
pub(crate) fn reason(broken: &Broken) -> &'static str {
    let Broken::Failed(RtcError::RemoteSdp(what)) = broken else { return "it does not fit this connection" };
    match &**what {
        "missing a=fingerprint" => "it has no `a=fingerprint`",
        "missing a=ice-ufrag/pwd" => "it has no `a=ice-ufrag` or no `a=ice-pwd`",
        "No m-lines in offer" => "it has no `m=` section",
        "Both peers being ICE-Lite not supported" => {
            "it has `a=ice-lite`, and so has this server: one end must be a full ICE agent"
        }
        _ => "its `m=` sections do not fit this connection",
    }
}

/// An end that is lite answers to whoever knows its password, so what a description says of where its sender may be is not looked at.
fn without_candidates(description: &str) -> String {
    let lines = description.lines().filter(|line| !line.starts_with("a=candidate:"));
    lines.flat_map(|line| [line, "\r\n"]).collect()
}

/// So many random bytes in hexadecimal digits, which ICE lets stand in names and passwords.
fn random<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
