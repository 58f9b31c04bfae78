use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::{
    Candidate, IceCreds, Input, Output, Rtc, RtcConfig, RtcError,
    net::{Protocol, Receive, TcpType},
};

use crate::{
    contain::contain,
    crypto::{self, KeyingMaterial},
};

/// Addresses at which one end can be reached.
#[derive(Clone, Debug)]
pub struct Candidates {
    pub addresses: Vec<SocketAddr>,
    /// TCP is accepted, too: a TCP stream carries datagrams (RFC 6544). The connection treats these datagrams as if
    /// they came by UDP from the address of the stream.
    pub take_streams: bool,
}

impl From<SocketAddr> for Candidates {
    fn from(address: SocketAddr) -> Self {
        Self { addresses: vec![address], take_streams: false }
    }
}

impl Candidates {
    /// Returns the local address that received a datagram from `from`, for the library: the first one of the same IP
    /// family.
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

/// The WebRTC library (str0m) with its rule of use: after each input, all of its output is processed before the next
/// input. A panic of the library becomes an error, after which the library is not used any more.
pub struct Connection {
    pub rtc: Rtc,
    /// Time at which the library's clock and the real clock are equal.
    created: Instant,
    /// Factor by which the library's clock runs faster.
    clock_factor: u32,
    ufrag: String,
    timeout: Instant,
    /// Time of the last input, by the library's clock.
    last_input: Instant,
    /// Newest consent request. Kept only if the library would expire it too early.
    consent: Option<Consent>,
    keeps_consent: bool,
    is_over: bool,
    /// Destination of the library's last datagram that is not STUN: the address of the selected path.
    remote: Option<SocketAddr>,
    has_moved: bool,
    exported: Option<KeyingMaterial>,
    /// Byte counts until the other end has shown, by the handshake, that it receives what is sent to it. `None`
    /// afterwards.
    unproven: Option<Unproven>,
}

/// Bytes to and from an address that may be forged: the author of the offer knows the password, and can send with any
/// source address.
#[derive(Default)]
struct Unproven {
    received: usize,
    sent: usize,
}

/// Maximum bytes sent to an unproven end, as a multiple of the bytes received from it, its offer included. A handshake
/// fits, with two repetitions of its longest flight. Source: RFC 9000, section 8.1, which has the same rule.
const AMPLIFICATION_MAX: usize = 3;

/// STUN request by which the other end checks this one, and so consents to receive from it.
struct Consent {
    request: Vec<u8>,
    from: SocketAddr,
    to: SocketAddr,
    /// Arrival time, by the library's clock.
    arrived: Instant,
    /// Time at which the library last received the request.
    repeated: Instant,
}

/// Lifetime of a consent in real time. Browsers renew it every 2.5 to 6 s, and one request may be lost. Source: RFC
/// 7675, section 5.1.
const CONSENT: Duration = Duration::from_secs(30);
/// Interval at which a valid consent is repeated to the library. An ICE-lite end treats the path as lost after 15 s of
/// the library's time.
const CONSENT_REPEAT_INTERVAL: Duration = Duration::from_secs(12);

/// A timeout that is due within this time is handled at once: a timer would cost more than the wait.
const TIMEOUT_SLACK: Duration = Duration::from_micros(50);
/// Maximum lag of the library's clock, in the library's time. Its shortest timeout for an acknowledgment is one second.
const CLOCK_LAG_MAX: Duration = Duration::from_millis(50);
/// Lowest first byte of a datagram that is not STUN. Source: RFC 7983.
const FIRST_BYTE_NOT_STUN: u8 = 4;
/// First bytes of a STUN binding request. Source: RFC 8489, section 5.
const BINDING_REQUEST: [u8; 2] = [0, 1];
/// Maximum number of timeouts handled in a row, so that other connections get their turn.
const TIMEOUTS_IN_A_ROW_MAX: u32 = 64;

/// Output of the library.
#[expect(clippy::large_enum_variant, reason = "a packet of media is an event, and is not to be allocated")]
pub enum LibraryOutput {
    Datagram(SocketAddr, Vec<u8>),
    Event(str0m::Event),
}

/// Reason why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("{0}")]
    Failed(#[from] RtcError),
    #[error("the WebRTC library has panicked")]
    Panicked,
    #[error("the connection has ended")]
    Ended,
}

impl Connection {
    /// Creates a connection. `configure` sets the options for its purpose.
    pub fn new(
        is_lite: bool,
        candidates: &Candidates,
        clock_factor: u32,
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
        let (consent, keeps_consent) = (None, is_lite && clock_factor > 1);
        Self {
            rtc,
            created: now,
            clock_factor,
            ufrag,
            timeout: now,
            last_input: now,
            consent,
            keeps_consent,
            is_over: false,
            remote: None,
            has_moved: false,
            exported: None,
            unproven: is_lite.then(Unproven::default),
        }
    }

    /// Returns the local ICE username fragment, which the other end names in its STUN requests.
    pub fn ufrag(&self) -> &str {
        &self.ufrag
    }

    /// Returns the address of the other end, once a path to it was found.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Returns the address of the other end, once after each change.
    pub fn take_moved(&mut self) -> Option<SocketAddr> {
        std::mem::take(&mut self.has_moved).then_some(self.remote).flatten()
    }

    /// Returns the SRTP keys, once after the handshake.
    pub fn take_keying_material(&mut self) -> Option<KeyingMaterial> {
        self.exported.take()
    }

    /// Adds bytes that the other end has sent by another channel: its offer.
    pub fn add_received(&mut self, bytes: usize) {
        if let Some(unproven) = &mut self.unproven {
            unproven.received += bytes;
        }
    }

    /// Returns when [`Connection::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        self.timeout
    }

    /// Handles a datagram. Returns true if it belongs to this peer: a STUN message with the peer's password, or a
    /// datagram from an address that has sent one.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
        datagram: &[u8],
        emit: impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>,
    ) -> Result<bool, ConnectionError> {
        let now = self.advance_clock(now);
        self.add_received(datagram.len());
        let work = |rtc: &mut Rtc| {
            // A datagram that is not STUN, DTLS or RTP belongs to no peer.
            let Ok(receive) = Receive::new(Protocol::Udp, from, to, datagram) else { return Ok(false) };
            let input = Input::Receive(now, receive);
            if !rtc.accepts(&input) {
                return Ok(false);
            }
            rtc.handle_input(input)?;
            Ok(true)
        };
        let is_own = self.run(work, emit)?;
        if is_own && self.keeps_consent && datagram.starts_with(&BINDING_REQUEST) {
            let (request, now) = (datagram.into(), self.last_input);
            self.consent = Some(Consent { request, from, to, arrived: now, repeated: now });
        }
        Ok(is_own)
    }

    pub fn handle_timeout(
        &mut self,
        now: Instant,
        emit: impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let at = self.advance_clock(now);
        self.run(|rtc| Ok(rtc.handle_input(Input::Timeout(at))?), emit)
    }

    /// Closes the connection and notifies the other end. No output follows.
    pub fn close(&mut self, emit: impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>) {
        let _ = self.run(|rtc| Ok(rtc.close()?), emit);
        self.is_over = true;
    }

    /// Runs `work` on the library, then processes all of its output.
    ///
    /// Errors: the connection has ended and must be dropped.
    pub fn run<T>(
        &mut self,
        work: impl FnOnce(&mut Rtc) -> Result<T, ConnectionError>,
        mut emit: impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>,
    ) -> Result<T, ConnectionError> {
        if self.is_over {
            return Err(ConnectionError::Ended);
        }
        let done = contain(|| {
            self.repeat_consent(&mut emit)?;
            let done = work(&mut self.rtc)?;
            self.drain(&mut emit)?;
            Ok(done)
        });
        let done = done.unwrap_or(Err(ConnectionError::Panicked));
        self.exported = crypto::take_keying_material().or(self.exported.take());
        self.is_over |= done.is_err();
        done
    }

    /// Repeats the newest consent request to the library, which would expire it earlier than the other end does. Older
    /// requests are not repeated: nothing must be sent to the old address of an end that has moved.
    fn repeat_consent(
        &mut self,
        emit: &mut impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let (now, lifetime) = (self.last_input, CONSENT * self.clock_factor);
        let is_due = |consent: &&mut Consent| {
            now >= consent.repeated + CONSENT_REPEAT_INTERVAL && now < consent.arrived + lifetime
        };
        let Some(Consent { request, from, to, repeated, .. }) = self.consent.as_mut().filter(is_due) else {
            return Ok(());
        };
        let Ok(receive) = Receive::new(Protocol::Udp, *from, *to, request) else { return Ok(()) };
        *repeated = now;
        self.rtc.handle_input(Input::Receive(now, receive))?;
        // The request was answered when it arrived: drop the new answer.
        let is_stun = |output: &LibraryOutput| matches!(output, LibraryOutput::Datagram(_, datagram) if datagram.first() < Some(&FIRST_BYTE_NOT_STUN));
        self.drain(&mut |rtc, output| if is_stun(&output) { Ok(()) } else { emit(rtc, output) })
    }

    /// Advances the library's clock if it lags, and returns the library's time. Timers set by a lagging clock would
    /// expire too early. `None`: the clock does not lag.
    pub fn catch_up(&mut self, now: Instant) -> Option<Instant> {
        let is_behind = self.to_library_time(now) > self.last_input + CLOCK_LAG_MAX;
        is_behind.then(|| self.advance_clock(now))
    }

    fn advance_clock(&mut self, now: Instant) -> Instant {
        self.last_input = self.to_library_time(now);
        self.last_input
    }

    /// Converts real time to the library's time.
    fn to_library_time(&self, now: Instant) -> Instant {
        self.created + now.saturating_duration_since(self.created) * self.clock_factor
    }

    fn drain(
        &mut self,
        emit: &mut impl FnMut(&mut Rtc, LibraryOutput) -> Result<(), ConnectionError>,
    ) -> Result<(), ConnectionError> {
        let mut rounds = 0;
        loop {
            match self.rtc.poll_output()? {
                Output::Timeout(at) if at <= self.last_input + TIMEOUT_SLACK && rounds < TIMEOUTS_IN_A_ROW_MAX => {
                    rounds += 1;
                    self.rtc.handle_input(Input::Timeout(at))?;
                }
                Output::Timeout(at) => {
                    self.timeout = self.to_real_time(at);
                    return Ok(());
                }
                Output::Transmit(transmit) => {
                    if let Some(unproven) = &mut self.unproven {
                        if unproven.sent + transmit.contents.len() > AMPLIFICATION_MAX * unproven.received {
                            continue;
                        }
                        unproven.sent += transmit.contents.len();
                    }
                    if transmit.contents.first() >= Some(&FIRST_BYTE_NOT_STUN) {
                        self.has_moved |= self.remote.replace(transmit.destination) != Some(transmit.destination);
                    }
                    emit(&mut self.rtc, LibraryOutput::Datagram(transmit.destination, transmit.contents.into()))?;
                }
                Output::Event(str0m::Event::Connected) => {
                    // The handshake is done: the other end has received what was sent to it.
                    self.unproven = None;
                    emit(&mut self.rtc, LibraryOutput::Event(str0m::Event::Connected))?;
                }
                Output::Event(event) => emit(&mut self.rtc, LibraryOutput::Event(event))?,
            }
        }
    }

    /// Converts the library's time to real time, rounded up by 1 µs: a call that is slightly too early would do
    /// nothing.
    fn to_real_time(&self, at: Instant) -> Instant {
        self.created + at.saturating_duration_since(self.created) / self.clock_factor + Duration::from_micros(1)
    }
}

/// Returns random bytes as hexadecimal digits, which are valid in ICE credentials.
fn random<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
