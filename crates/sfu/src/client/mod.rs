//! A client's end of a media connection, for load generators and tests.

mod sink;

use std::{net::SocketAddr, sync::Arc, time::Instant};

use millrace_rtc::{
    BadOffer, ConnectionError,
    connection::{Connection, LibraryOutput},
    sdp,
};
use str0m::{
    IceConnectionState, Rtc,
    bwe::{Bitrate, BweKind},
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    format::Codec,
    media::{Direction, KeyframeRequestKind, MediaKind, Mid},
    rtp::{ExtensionValues, RtpWrite},
};

pub use sink::Sink;

use crate::compositor::enable_format;

/// A client's end of a media connection, packet by packet, for the load generator and the tests. It does not encode or
/// decode.
pub struct MediaClient {
    connection: Connection,
    /// Codec of the video that it sends.
    video: Codec,
    pending: Option<SdpPendingOffer>,
    lines: Vec<MediaLine>,
}

/// One line of the SDP.
struct MediaLine {
    mid: Mid,
    kind: MediaKind,
    sequence: u64,
    /// Audio level that the packets carry.
    audio_level: Option<i8>,
}

/// Event for the user of a client.
#[derive(Debug, PartialEq)]
pub enum MediaEvent {
    Connected,
    /// A packet arrived on this line.
    Packet {
        line: usize,
        sequence: u64,
        time: u32,
        marker: bool,
        payload: Arc<[u8]>,
    },
    /// The receiver of this line requests a keyframe.
    KeyframeWanted {
        line: usize,
    },
    /// The receiver of this line reports its own bandwidth estimate (REMB).
    Estimate {
        line: usize,
        bits_per_s: u64,
    },
    Closed,
}

/// Receiver of a client's datagrams and events.
pub trait MediaOutput {
    fn send(&mut self, to: SocketAddr, datagram: Vec<u8>);
    fn event(&mut self, event: MediaEvent);
}

impl MediaLine {
    fn new(mid: Mid, kind: MediaKind) -> Self {
        Self { mid, kind, sequence: 1, audio_level: None }
    }
}

impl MediaClient {
    /// Creates a client with the address `local`, which waits for an offer.
    pub fn new(local: SocketAddr, now: Instant) -> Self {
        Self::with_video(local, Codec::Vp8, now)
    }

    fn with_video(local: SocketAddr, video: Codec, now: Instant) -> Self {
        let connection = Connection::new(false, &local.into(), 1, now, |config| {
            let config = config.clear_codecs().enable_opus(true, false).set_rtp_mode(true);
            if video == Codec::H264 { enable_format(config) } else { config.enable_vp8(true) }
        });
        Self { connection, video, pending: None, lines: Vec::new() }
    }

    /// Creates a client with the address `local`, and its offer: one line for each kind to send and for each kind to
    /// receive.
    pub fn offer(local: SocketAddr, sends: &[MediaKind], receives: &[MediaKind], now: Instant) -> (Self, String) {
        Self::new(local, now).make_offer(sends, receives)
    }

    /// Creates a client whose video is H.264, and its offer.
    pub fn offer_h264(local: SocketAddr, sends: &[MediaKind], receives: &[MediaKind], now: Instant) -> (Self, String) {
        Self::with_video(local, Codec::H264, now).make_offer(sends, receives)
    }

    fn make_offer(self, sends: &[MediaKind], receives: &[MediaKind]) -> (Self, String) {
        let mut client = self;
        let mut api = client.connection.rtc.sdp_api();
        for (kinds, direction) in [(sends, Direction::SendOnly), (receives, Direction::RecvOnly)] {
            for kind in kinds {
                let mid = api.add_media(*kind, direction, None, None, None);
                client.lines.push(MediaLine::new(mid, *kind));
            }
        }
        let (offer, pending) = api.apply().expect("a client has a line at least");
        client.pending = Some(pending);
        (client, offer.to_sdp_string())
    }

    /// Makes another offer with one more line to send.
    pub fn offer_more(&mut self, kind: MediaKind) -> String {
        let mut api = self.connection.rtc.sdp_api();
        let mid = api.add_media(kind, Direction::SendOnly, None, None, None);
        let (offer, pending) = api.apply().expect("a line more is negotiated");
        self.lines.push(MediaLine::new(mid, kind));
        self.pending = Some(pending);
        offer.to_sdp_string()
    }

    /// Accepts the answer to an offer.
    ///
    /// Errors: [`BadOffer`] if the answer is invalid or does not fit.
    pub fn accept(&mut self, answer: &str) -> Result<(), BadOffer> {
        let answer = sdp::parse(answer, SdpAnswer::from_sdp_string).map_err(BadOffer::answer)?;
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let accepted = self.connection.rtc.sdp_api().accept_answer(pending, answer);
        accepted.map_err(|error| BadOffer::answer(sdp::reason(&error.into())))
    }

    /// Returns the answer to an offer of the other end. New lines are appended to the existing ones.
    ///
    /// Errors: [`BadOffer`] if the offer is invalid or does not fit.
    pub fn answer(&mut self, offer: &str) -> Result<String, BadOffer> {
        let offer = sdp::parse(offer, SdpOffer::from_sdp_string).map_err(BadOffer::new)?;
        let answer = self.connection.rtc.sdp_api().accept_offer(offer);
        let answer = answer.map_err(|error| BadOffer::new(sdp::reason(&error.into())))?;
        Ok(answer.to_sdp_string())
    }

    pub fn timeout(&self) -> Instant {
        self.connection.timeout()
    }

    /// Handles a datagram. Returns true if it is for this client.
    ///
    /// Errors: the connection has ended. This holds for all calls below.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        (from, to): (SocketAddr, SocketAddr),
        datagram: &[u8],
        out: &mut impl MediaOutput,
    ) -> Result<bool, ConnectionError> {
        let Self { connection, lines, .. } = self;
        connection.handle_datagram(now, from, to, datagram, |rtc, output| handle_output(rtc, lines, output, out))
    }

    pub fn handle_timeout(&mut self, now: Instant, out: &mut impl MediaOutput) -> Result<(), ConnectionError> {
        let Self { connection, lines, .. } = self;
        connection.handle_timeout(now, |rtc, output| handle_output(rtc, lines, output, out))
    }

    /// Sets the audio level of all further packets of this line, in decibels relative to the maximum, -127 to 0.
    pub fn set_audio_level(&mut self, line: usize, level: i8) {
        self.lines[line].audio_level = Some(level);
    }

    /// Sends one packet on a line that was offered for sending.
    pub fn send(
        &mut self,
        line: usize,
        (time, marker, payload): (u32, bool, Arc<[u8]>),
        now: Instant,
        out: &mut impl MediaOutput,
    ) -> Result<(), ConnectionError> {
        let Self { connection, lines, video, .. } = self;
        let MediaLine { mid, kind, sequence, audio_level } = &mut lines[line];
        let codec = if *kind == MediaKind::Video { *video } else { Codec::Opus };
        let Some(params) = connection.rtc.codec_config().find(|params| params.spec().codec == codec) else {
            return Ok(());
        };
        let write = RtpWrite::new(params.pt(), (*sequence).into(), time, now, payload)
            .marker(marker)
            .nackable(*kind == MediaKind::Video)
            .ext_vals(ExtensionValues {
                audio_level: *audio_level,
                // The library writes the audio level only together with the voice activity.
                voice_activity: audio_level.map(|_| true),
                ..ExtensionValues::default()
            });
        *sequence += 1;
        let mid = *mid;
        let work = |rtc: &mut Rtc| {
            if let Some(stream) = rtc.direct_api().stream_tx_by_mid(mid, None) {
                stream.write_rtp(write);
            }
            Ok(())
        };
        connection.run(work, |rtc, output| handle_output(rtc, lines, output, out))
    }

    /// Requests a keyframe from the sender of this line.
    pub fn want_keyframe(&mut self, line: usize, out: &mut impl MediaOutput) -> Result<(), ConnectionError> {
        let Self { connection, lines, .. } = self;
        let Some(mid) = lines.get(line).map(|line| line.mid) else { return Ok(()) };
        let work = |rtc: &mut Rtc| {
            if let Some(stream) = rtc.direct_api().stream_rx_by_mid(mid, None) {
                stream.request_keyframe(KeyframeRequestKind::Pli);
            }
            Ok(())
        };
        connection.run(work, |rtc, output| handle_output(rtc, lines, output, out))
    }

    /// Reports a bandwidth estimate in bit/s (REMB) to the sender of this line.
    pub fn report_estimate(
        &mut self,
        line: usize,
        bits_per_s: u64,
        out: &mut impl MediaOutput,
    ) -> Result<(), ConnectionError> {
        let Self { connection, lines, .. } = self;
        let Some(mid) = lines.get(line).map(|line| line.mid) else { return Ok(()) };
        let work = |rtc: &mut Rtc| {
            if let Some(stream) = rtc.direct_api().stream_rx_by_mid(mid, None) {
                stream.request_remb(Bitrate::from(bits_per_s));
            }
            Ok(())
        };
        connection.run(work, |rtc, output| handle_output(rtc, lines, output, out))
    }

    /// Returns a [`Sink`] that takes over a line to receive. Works once, after packets have arrived.
    pub fn sink(&mut self, line: usize, now: Instant) -> Option<Sink> {
        Sink::new(&mut self.connection, self.lines.get(line)?.mid, now)
    }

    pub fn close(&mut self, out: &mut impl MediaOutput) {
        let Self { connection, lines, .. } = self;
        connection.close(|rtc, output| handle_output(rtc, lines, output, out));
    }
}

fn handle_output(
    rtc: &mut Rtc,
    lines: &mut Vec<MediaLine>,
    output: LibraryOutput,
    out: &mut impl MediaOutput,
) -> Result<(), ConnectionError> {
    let event = match output {
        LibraryOutput::Datagram(to, datagram) => {
            out.send(to, datagram);
            return Ok(());
        }
        LibraryOutput::Event(event) => event,
    };
    let line_of = |lines: &[MediaLine], mid: Mid| lines.iter().position(|line| line.mid == mid);
    match event {
        str0m::Event::Connected => out.event(MediaEvent::Connected),
        str0m::Event::MediaAdded(added) if line_of(lines, added.mid).is_none() => {
            lines.push(MediaLine::new(added.mid, added.kind));
        }
        str0m::Event::RtpPacket(packet) => {
            let mid = rtc.direct_api().stream_rx(&packet.header.ssrc).map(|stream| stream.mid());
            if let Some(line) = mid.and_then(|mid| line_of(lines, mid)) {
                let (sequence, time, marker) = (*packet.seq_no, packet.header.timestamp, packet.header.marker);
                out.event(MediaEvent::Packet { line, sequence, time, marker, payload: packet.payload });
            }
        }
        str0m::Event::KeyframeRequest(request) => {
            if let Some(line) = line_of(lines, request.mid) {
                out.event(MediaEvent::KeyframeWanted { line });
            }
        }
        str0m::Event::EgressBitrateEstimate(BweKind::Remb { estimate, mid }) => {
            if let Some(line) = line_of(lines, mid) {
                out.event(MediaEvent::Estimate { line, bits_per_s: estimate.as_u64() });
            }
        }
        str0m::Event::Closed | str0m::Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
            out.event(MediaEvent::Closed);
        }
        _ => {}
    }
    Ok(())
}
