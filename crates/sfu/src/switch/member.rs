use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_room::Muted;
use millrace_rtc::{
    BadOffer, Candidates, ConnectionError,
    channels::{BUFFERED_MAX, Channels},
    connection::{Connection, LibraryOutput},
    sdp,
};
use str0m::{
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    format::{CodecSpec, PayloadParams},
    media::{Direction, MediaKind, Mid, Pt},
    rtp::RtpPacket,
};

use super::{
    allocate::LayerSwitch,
    rewriter::{Renumbered, StreamRewriter},
    source::{Role, Source, VideoCodecs},
    track::Track,
};
use crate::{
    compositor::enable_format,
    congestion::{Algorithm, gcc::ReceiverEstimator},
    egress::{Egress, OutgoingStream, Packet, ReportOutcome, is_report},
    member_id::MemberId,
};

/// Maximum time from the answer until the connection is established.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// Part of the URI of the header extension for transport-wide congestion control, in all of its versions.
const TRANSPORT_SEQUENCE_NUMBER: &str = "transport-wide-cc";

/// The estimate counts as changed if it differs by more than one part in this number (2%).
const ESTIMATE_STEP: u64 = 50;

/// One member's connection to the SFU, and its tracks and slots.
pub struct Member {
    pub id: MemberId,
    pub room: u32,
    /// Name of the member as the other members see it.
    pub name: Box<str>,
    pub role: Role,
    pub muted: Muted,
    pub connection: Connection,
    pub channels: Channels,
    /// Sender of media to this member. `None`: there are no keys yet, or the member receives no media.
    pub egress: Option<Box<Egress>>,
    /// Estimates the bandwidth of the path from this member, if it has offered REMB without transport-wide congestion
    /// control.
    pub incoming: Option<Box<ReceiverEstimator>>,
    /// Local ICE username fragment, which the client names in its STUN requests. It changes with each ICE restart.
    pub ufrag: Box<str>,
    /// Tracks that the member sends.
    pub tracks: Vec<Track>,
    /// Lines (`a=mid`) of its last offer that carry a shared screen.
    pub screens: Vec<Box<str>>,
    /// Lines over which the member receives tracks.
    pub slots: Vec<Slot>,
    pub pending: Option<Pending>,
    /// The tracks have changed since the last offer to this member.
    pub wants_offer: bool,
    /// Last offer of a publisher or viewer, which never gets offers itself. An ICE restart repeats it with new ICE
    /// credentials.
    pub offer: Option<Box<str>>,
    /// Bandwidth estimate in bit/s at the last choice of layers. `None`: no estimate existed, so nothing was limited.
    pub estimate: Option<u64>,
    pub is_connected: bool,
    pub addresses: Vec<SocketAddr>,
    pub queued: Option<Instant>,
    pub last_received: Instant,
    /// Deadline after which the member is removed, unless its network path is established first.
    pub ends: Option<Instant>,
}

/// One line of the SDP over which the member receives a track.
pub struct Slot {
    pub mid: Mid,
    pub kind: MediaKind,
    /// Track that is sent over this line.
    pub source: Option<Source>,
    /// Owner of the last track, while its client may connect again. The line is kept for it.
    pub held: Option<Held>,
    pub rewriter: StreamRewriter,
    /// Layer that the member would receive if all layers of the source arrived at this node.
    pub desired: usize,
    /// Payload type of the source, and the matching format of this member. Inner `None`: the member does not support
    /// the codec.
    format: Option<(Pt, Option<Format>)>,
    /// Last change of the selected layer with its reason, and its time.
    pub switched: Option<(LayerSwitch, Instant)>,
    pub sent_packets: u64,
    pub sent_bytes: u64,
}

/// Former track of a line without a source.
pub struct Held {
    /// Name of the owner.
    pub name: Box<str>,
    pub is_screen: bool,
    pub until: Instant,
}

#[derive(Clone, Copy)]
struct Format {
    payload_type: u8,
    rtx_payload_type: Option<u8>,
    /// Index of the stream in the member's [`Egress`].
    stream: usize,
}

/// Offer of the server that is not answered yet, and the tracks that it adds.
pub struct Pending {
    offer: SdpPendingOffer,
    tracks: Vec<OfferedTrack>,
}

/// A track in an offer, and the media section for it.
pub struct OfferedTrack {
    pub mid: Mid,
    pub kind: MediaKind,
    pub source: Source,
}

/// A track that a member does not receive yet.
pub struct WantedTrack {
    pub kind: MediaKind,
    pub source: Source,
    /// Name of the track's owner.
    pub name: String,
}

/// Parts of a packet that are forwarded, whether the packet comes from a publisher or from the mixer.
#[derive(Clone, Copy)]
pub struct Media<'a> {
    pub payload: &'a Arc<[u8]>,
    pub clock_hz: u32,
    pub marker: bool,
    /// Audio level in decibels below the maximum, and whether the packet contains speech. Source: RFC 6464.
    pub audio_level: Option<(u8, bool)>,
    pub orientation: Option<u8>,
}

impl<'a> From<&'a RtpPacket> for Media<'a> {
    fn from(packet: &'a RtpPacket) -> Self {
        let seen = &packet.header.ext_vals;
        Self {
            payload: &packet.payload,
            clock_hz: packet.time.denom(),
            marker: packet.header.marker,
            audio_level: seen.audio_level.map(|level| (level.unsigned_abs(), seen.voice_activity.unwrap_or(false))),
            orientation: seen.video_orientation.map(|orientation| orientation as u8),
        }
    }
}

/// Datagrams and events that a library call has produced. They are handled once the member is no longer borrowed.
#[derive(Default)]
pub struct CollectedOutput {
    pub datagrams: Vec<(SocketAddr, Vec<u8>)>,
    pub events: Vec<str0m::Event>,
}

impl CollectedOutput {
    pub fn push(&mut self, output: LibraryOutput) {
        match output {
            LibraryOutput::Datagram(to, datagram) => self.datagrams.push((to, datagram)),
            LibraryOutput::Event(event) => self.events.push(event),
        }
    }
}

impl Member {
    /// Creates a member for an offer. Returns the member and the SDP answer.
    ///
    /// Errors: [`BadOffer`] if the offer is invalid or does not fit.
    pub fn answer(
        (id, room, name, role): (MemberId, u32, &str, Role),
        (offer, codecs): (&str, VideoCodecs),
        candidates: &Candidates,
        now: Instant,
        collected: &mut CollectedOutput,
    ) -> Result<(Self, String), BadOffer> {
        let connection = Connection::new(true, candidates, 1, now, |config| {
            let config = config.clear_codecs().enable_opus(true, false);
            let config = match codecs {
                VideoCodecs::All => config.enable_vp8(true).enable_h264(true),
                VideoCodecs::Composite => enable_format(config),
            };
            // G.711, which browsers and telephones must support. Source: RFC 7874, section 3.
            let config = config.enable_pcmu(true, false).enable_pcma(true, false);
            config.set_rtp_mode(true).set_sctp_max_buffered_amount(BUFFERED_MAX)
        });
        let mut member = Self {
            id,
            room,
            name: name.into(),
            role,
            muted: Muted::default(),
            connection,
            channels: Channels::default(),
            egress: None,
            incoming: None,
            ufrag: "".into(),
            tracks: Vec::new(),
            screens: Vec::new(),
            slots: Vec::new(),
            pending: None,
            wants_offer: false,
            offer: None,
            estimate: None,
            is_connected: false,
            addresses: Vec::new(),
            queued: None,
            last_received: now,
            ends: Some(now + OPEN_TIMEOUT),
        };
        let answer = member.accept_offer(offer, now, collected)?;
        Ok((member, answer))
    }

    /// Accepts an offer of the client and returns the answer.
    ///
    /// Errors: [`BadOffer`] if the offer is invalid or does not fit.
    pub fn accept_offer(
        &mut self,
        offer: &str,
        now: Instant,
        collected: &mut CollectedOutput,
    ) -> Result<String, BadOffer> {
        let read = sdp::read(offer, SdpOffer::from_sdp_string).map_err(BadOffer::new)?;
        self.connection.add_received(offer.len());
        self.screens = screens(offer);
        let work = |rtc: &mut str0m::Rtc| Ok(rtc.sdp_api().accept_offer(read)?.to_sdp_string());
        // The client's offer rolls back a pending offer of the server, which is then made again.
        self.wants_offer |= self.pending.take().is_some();
        let answer = self.run(collected, work).map_err(|error| BadOffer::new(sdp::reason(&error)))?;
        self.ufrag = self.connection.rtc.direct_api().local_ice_credentials().ufrag.into();
        if self.role != Role::Member {
            self.offer = Some(offer.into());
        }
        let before = self.incoming.take();
        if offers_remb_only(offer) && self.role != Role::Viewer {
            self.incoming = before.or_else(|| Some(Box::new(ReceiverEstimator::new(now))));
        }
        Ok(answer)
    }

    /// Makes an offer with one new line for each wanted track, and removes the unused slots. `None`: nothing has
    /// changed, or an earlier offer is still unanswered.
    pub fn make_offer(
        &mut self,
        wanted: &[WantedTrack],
        collected: &mut CollectedOutput,
    ) -> Result<Option<String>, ConnectionError> {
        if self.pending.is_some() {
            return Ok(None);
        }
        let gone: Vec<Mid> = self.slots.iter().filter(|slot| slot.is_unused()).map(|slot| slot.mid).collect();
        let Self { connection, egress, pending, slots, wants_offer, .. } = self;
        *wants_offer = false;
        let work = |rtc: &mut str0m::Rtc| {
            let mut api = rtc.sdp_api();
            gone.iter().for_each(|mid| api.stop_media(*mid));
            let line = |WantedTrack { kind, source, name }: &WantedTrack| {
                let track = format!("{name}-{}", source.track);
                let mid = api.add_media(*kind, Direction::SendOnly, Some(name.clone()), Some(track), None);
                OfferedTrack { mid, kind: *kind, source: *source }
            };
            let added: Vec<_> = wanted.iter().map(line).collect();
            Ok(api.apply().map(|(offer, made)| (offer.to_sdp_string(), made, added)))
        };
        let made = connection.run(work, |_, output| {
            collected.push(output);
            Ok(())
        })?;
        slots.retain(|slot| !slot.is_unused());
        if let Some(egress) = egress {
            egress.retain(|mid| slots.iter().any(|slot| slot.mid == mid));
            slots.iter_mut().for_each(|slot| slot.format = None);
        }
        Ok(made.map(|(sdp, offer, lines)| {
            *pending = Some(Pending { offer, tracks: lines });
            sdp
        }))
    }

    /// Accepts the answer to [`Member::make_offer`]. Returns the new lines, in the order of their slots, which are the
    /// last slots. An answer without a pending offer changes nothing.
    ///
    /// Errors: [`BadOffer`] if the answer is invalid or does not fit.
    pub fn accept_answer(
        &mut self,
        answer: &str,
        collected: &mut CollectedOutput,
    ) -> Result<Vec<OfferedTrack>, BadOffer> {
        let bad = |error: ConnectionError| BadOffer::answer(sdp::reason(&error));
        let read = sdp::read(answer, SdpAnswer::from_sdp_string).map_err(BadOffer::answer)?;
        let Some(Pending { offer, tracks: lines }) = self.pending.take() else { return Ok(Vec::new()) };
        self.run(collected, |rtc| Ok(rtc.sdp_api().accept_answer(offer, read)?)).map_err(bad)?;
        self.slots.extend(lines.iter().map(|line| Slot::new(line.mid, line.kind)));
        Ok(lines)
    }

    pub fn run<T>(
        &mut self,
        collected: &mut CollectedOutput,
        work: impl FnOnce(&mut str0m::Rtc) -> Result<T, ConnectionError>,
    ) -> Result<T, ConnectionError> {
        self.connection.run(work, |_, output| {
            collected.push(output);
            Ok(())
        })
    }

    /// Builds the datagram of one packet for a slot, with the slot's sequence number and payload type. Returns its
    /// destination and the datagram. `None`: this member does not support the codec, or cannot receive media yet.
    pub fn write(
        &mut self,
        slot: usize,
        (media, params, sent): (Media<'_>, &PayloadParams, Renumbered),
        now: Instant,
    ) -> Option<(SocketAddr, Vec<u8>)> {
        let Self { connection, egress, slots, .. } = self;
        let (slot, egress) = (slots.get_mut(slot)?, egress.as_mut()?);
        let format = slot.format(&mut connection.rtc, egress, params, now)?;
        let outgoing = Packet {
            payload_type: format.payload_type,
            rtx_payload_type: format.rtx_payload_type.filter(|_| slot.kind == MediaKind::Video),
            sequence: sent.sequence,
            time: sent.time,
            clock_hz: media.clock_hz,
            marker: media.marker,
            audio_level: media.audio_level,
            orientation: media.orientation,
            patch: sent.patch,
            payload: media.payload.clone(),
        };
        let datagram = egress.write(format.stream, &outgoing, now)?;
        slot.sent_packets += 1;
        slot.sent_bytes += media.payload.len() as u64;
        Some((egress.to(), datagram))
    }

    /// Handles a datagram and returns true if it belongs to this member. A report (RTCP) goes to [`Egress`] first; the
    /// library gets it only if it contains other feedback.
    ///
    /// Errors: the connection failed, and the member must be removed. This holds for every call of the library.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        (from, to): (SocketAddr, SocketAddr),
        datagram: &[u8],
        collected: &mut CollectedOutput,
    ) -> Result<bool, ConnectionError> {
        if let Some(egress) = self.egress.as_mut().filter(|_| is_report(datagram)) {
            let outcome = egress.handle_report(datagram, now, |datagram| collected.datagrams.push((from, datagram)));
            if outcome != ReportOutcome::Spurious {
                // The report is genuine and its source address has incoming STUN authentication: the client uses this
                // address now.
                egress.set_to(from);
            }
            if outcome == ReportOutcome::All {
                return Ok(true);
            }
        }
        self.connection.handle_datagram(now, from, to, datagram, |_, output| {
            collected.push(output);
            Ok(())
        })
    }

    /// Returns when [`Member::handle_timeout`] must be called.
    pub fn timeout(&self) -> Instant {
        let timeout = self.connection.timeout();
        let egress = self.egress.as_ref().and_then(|egress| egress.timeout());
        egress.map_or(timeout, |egress| egress.min(timeout))
    }

    pub fn handle_timeout(&mut self, now: Instant, collected: &mut CollectedOutput) -> Result<(), ConnectionError> {
        if let Some(egress) = &mut self.egress {
            let to = egress.to();
            egress.handle_timeout(now, |datagram| collected.datagrams.push((to, datagram)));
        }
        if self.connection.timeout() > now {
            return Ok(());
        }
        self.connection.handle_timeout(now, |_, output| {
            collected.push(output);
            Ok(())
        })
    }

    /// Corrects a report that the library has written. Returns false if the datagram need not be sent.
    pub fn correct(&mut self, datagram: &mut Vec<u8>, now: Instant) -> bool {
        match &mut self.egress {
            Some(egress) if is_report(datagram) => egress.correct(datagram, now),
            _ => true,
        }
    }

    /// Returns whether the bandwidth estimate differs from the one that the layers were chosen by.
    pub fn has_estimate_changed(&self) -> bool {
        let estimate = self.egress.as_ref().and_then(|egress| egress.bits_per_s());
        let (Some(now), Some(then)) = (estimate, self.estimate) else { return estimate.is_some() };
        now.abs_diff(then) * ESTIMATE_STEP > then
    }

    /// Creates the [`Egress`] with a congestion control algorithm once the handshake is done, and updates its
    /// destination when the client has moved.
    pub fn update_egress(&mut self, algorithm: Algorithm, now: Instant) {
        if let (Some(to), Some(egress)) = (self.connection.take_moved(), &mut self.egress) {
            egress.set_to(to);
        }
        let material = self.connection.take_keying_material().filter(|_| self.role != Role::Publisher);
        if let (Some(material), Some(to)) = (material, self.connection.remote()) {
            self.egress = Egress::new(&material, to, algorithm, now).map(Box::new);
        }
    }

    pub fn is_muted(&self, kind: MediaKind) -> bool {
        match kind {
            MediaKind::Audio => self.muted.audio,
            MediaKind::Video => self.muted.video,
        }
    }

    pub fn deadline(&self, silent_timeout: Duration) -> Instant {
        self.ends.unwrap_or(self.last_received + silent_timeout).min(self.last_received + silent_timeout)
    }
}

impl Slot {
    pub fn new(mid: Mid, kind: MediaKind) -> Self {
        Self {
            mid,
            kind,
            source: None,
            held: None,
            rewriter: StreamRewriter::default(),
            desired: 0,
            format: None,
            switched: None,
            sent_packets: 0,
            sent_bytes: 0,
        }
    }

    /// Returns this member's format for a format of the source. The result is cached: a payload type keeps its meaning
    /// while a connection lasts. Source: RFC 3264, section 8.3.2.
    fn format(
        &mut self,
        rtc: &mut str0m::Rtc,
        egress: &mut Egress,
        params: &PayloadParams,
        now: Instant,
    ) -> Option<Format> {
        if self.format.is_none_or(|(known, _)| known != params.pt()) {
            self.format = Some((params.pt(), self.find_format(rtc, egress, params, now)));
        }
        self.format.and_then(|(_, ours)| ours)
    }

    fn find_format(
        &self,
        rtc: &mut str0m::Rtc,
        egress: &mut Egress,
        params: &PayloadParams,
        now: Instant,
    ) -> Option<Format> {
        let ours = *rtc.codec_config().match_params(*params)?;
        let media = rtc.media(self.mid)?;
        if !is_same_codec(ours.spec(), params.spec()) || !media.remote_pts().contains(&ours.pt()) {
            return None;
        }
        let extensions = media.remote_extmap().clone();
        let mut api = rtc.direct_api();
        let stream = api.stream_tx_by_mid(self.mid, None)?;
        let (ssrc, rtx) = (*stream.ssrc(), stream.rtx().map(|ssrc| *ssrc));
        let stream = egress.stream(self.mid, || OutgoingStream::new(self.mid, &extensions, ssrc, rtx, now));
        Some(Format { payload_type: *ours.pt(), rtx_payload_type: ours.resend().map(|name| *name), stream })
    }

    /// Returns whether the line has no track and is kept for none.
    pub fn is_unused(&self) -> bool {
        self.source.is_none() && self.held.is_none()
    }

    pub fn is_mix(&self) -> bool {
        self.source == Some(Source::MIX)
    }

    pub fn is_composite(&self) -> bool {
        self.source == Some(Source::COMPOSITE)
    }

    /// Changes the source of this slot and resets its formats, its layer and its last layer switch.
    pub fn attach(&mut self, source: Option<Source>) {
        self.source = source;
        self.held = None;
        self.format = None;
        self.switched = None;
        self.desired = 0;
        self.rewriter.detach();
    }
}

/// Returns whether a video line of an offer has REMB, and no transport-wide sequence numbers, with which the client
/// would estimate the bandwidth itself.
fn offers_remb_only(offer: &str) -> bool {
    let is_remb = |line: &str| line.starts_with("a=rtcp-fb:") && line.trim_end().ends_with(" goog-remb");
    let is_number = |line: &str| line.starts_with("a=extmap:") && line.contains(TRANSPORT_SEQUENCE_NUMBER);
    let mut videos = sections(offer).filter(|section| section.starts_with("video "));
    videos.any(|section| section.lines().any(is_remb) && !section.lines().any(is_number))
}

/// Returns the media sections of an offer, without their first two characters, `m=`.
fn sections(offer: &str) -> impl Iterator<Item = &str> {
    offer.split("\nm=").skip(1)
}

/// Returns the lines of an offer that carry a shared screen: `a=content:slides`.
///
/// Source: RFC 4796, section 5.
fn screens(offer: &str) -> Vec<Box<str>> {
    let attribute = |section: &str, name: &str| -> Option<Box<str>> {
        section
            .lines()
            .find_map(|line| line.trim_end().strip_prefix("a=")?.strip_prefix(name)?.strip_prefix(':').map(Box::from))
    };
    let is_screen = |section: &&str| attribute(section, "content").as_deref() == Some("slides");
    sections(offer).filter(is_screen).filter_map(|section| attribute(section, "mid")).collect()
}

fn is_same_codec(one: CodecSpec, other: CodecSpec) -> bool {
    one.codec == other.codec && one.clock_rate == other.clock_rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_offer_without_arrival_reports_needs_remb() {
        let remb = "v=0\r\nm=audio 9 x\r\nm=video 9 x\r\na=extmap:3 http://www.webrtc.org/experiments/rtp-hdrext/\
            abs-send-time\r\na=rtcp-fb:97 nack\r\na=rtcp-fb:97 goog-remb\r\n";
        let number = "http://www.ietf.org/id/draft-holmer-rmcat-transport-wide-cc-extensions-01";
        assert!(offers_remb_only(remb));
        assert!(!offers_remb_only(&format!("{remb}a=extmap:4 {number}\r\n")), "the client measures the path");
        assert!(!offers_remb_only(&remb.replace("goog-remb", "transport-cc")));
        assert!(!offers_remb_only(&remb.replace("video", "audio")));
        assert!(!offers_remb_only("") && !offers_remb_only("m=video a=rtcp-fb:* goog-remb"));
    }

    #[test]
    fn screens_are_lines_with_slides() {
        let offer = "v=0\r\na=content:slides\r\nm=audio 9 x\r\na=mid:0\r\nm=video 9 x\r\na=content:slides\r\na=mid:1\r\n\
            m=video 9 x\r\na=mid:2\r\na=content:main\r\nm=video 9 x\r\na=content:slides\r\n";
        assert_eq!(screens(offer), [Box::from("1")]);
        assert!(screens("").is_empty() && screens("m=").is_empty());
    }
}
