use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use str0m::{
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    format::{CodecSpec, PayloadParams},
    media::{Direction, MediaKind, Mid, Pt},
    rtp::RtpPacket,
};

use super::{
    LayerSwitch, MemberId, Role, Source,
    feed::{Feed, Renumbered},
    track::Track,
};
use crate::{
    BadOffer, Broken,
    connection::{self, Candidates, Connection, Said},
    egress::{Egress, Heard, Line as Way, Packet, is_report},
    peer::{BUFFERED_MAX, Channels},
    room::Muted,
};

/// An estimate that has changed by less than this part of it is the same.
const ESTIMATE_STEP: u64 = 50;

/// One connection to the switch, and what goes over it.
pub struct Member {
    pub id: MemberId,
    pub room: u32,
    /// Whose tracks these are, to the others.
    pub name: Box<str>,
    pub role: Role,
    pub muted: Muted,
    pub connection: Connection,
    pub channels: Channels,
    /// How packets leave for it; `None`: there are no keys yet, or nothing is sent to it.
    pub egress: Option<Box<Egress>>,
    /// What its other end calls it in its requests; another name after each restart of ICE.
    pub ufrag: Box<str>,
    /// What it sends.
    pub tracks: Vec<Track>,
    /// What it is sent.
    pub slots: Vec<Slot>,
    pub pending: Option<Pending>,
    /// Something has changed since its last offer.
    pub wants_offer: bool,
    /// The last offer of a member that is offered nothing itself: an ICE restart is that offer with other names.
    pub offer: Option<Box<str>>,
    /// What its way carried, in bits per second, when its layers were chosen; `None`: nothing was known, and nothing limited.
    pub estimate: Option<u64>,
    pub is_connected: bool,
    pub addresses: Vec<SocketAddr>,
    pub queued: Option<Instant>,
    pub heard: Instant,
    /// It ends then, unless its way is found before.
    pub ends: Option<Instant>,
}

/// One line of its description over which it is sent a track.
pub struct Slot {
    pub mid: Mid,
    pub kind: MediaKind,
    /// Whose track.
    pub source: Option<Source>,
    pub feed: Feed,
    /// What a format of the source is called here; `None`: this member does not take it.
    format: Option<(Pt, Option<Format>)>,
    /// Why another layer was chosen last, and when.
    pub switched: Option<(LayerSwitch, Instant)>,
    pub sent_packets: u64,
    pub sent_bytes: u64,
}

#[derive(Clone, Copy)]
struct Format {
    name: u8,
    resend_name: Option<u8>,
    /// Which of the member's lines.
    line: usize,
}

/// An offer of ours that is not answered yet, and the lines in it that are new.
pub struct Pending {
    offer: SdpPendingOffer,
    lines: Vec<Line>,
}

/// One of the lines: what it is for.
pub struct Line {
    pub mid: Mid,
    pub kind: MediaKind,
    pub source: Source,
}

/// A track that a member is not sent yet.
pub struct Missing {
    pub kind: MediaKind,
    pub source: Source,
    /// Whose it is.
    pub name: String,
}

/// What is sent of a packet, wherever it comes from.
#[derive(Clone, Copy)]
pub struct Media<'a> {
    pub payload: &'a Arc<[u8]>,
    pub clock_hz: u32,
    pub marker: bool,
    /// Decibels below the loudest that there is, and whether somebody speaks. Source: RFC 6464.
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

/// Everything that a call has brought, to be looked at when the member is free again.
#[derive(Default)]
pub struct Brought {
    pub datagrams: Vec<(SocketAddr, Vec<u8>)>,
    pub events: Vec<str0m::Event>,
}

impl Brought {
    pub fn tell(&mut self, said: Said) {
        match said {
            Said::Datagram(to, datagram) => self.datagrams.push((to, datagram)),
            Said::Event(event) => self.events.push(event),
        }
    }
}

impl Member {
    /// The server's end for an offer, and the answer.
    ///
    /// Errors: what is wrong with the offer.
    pub fn answer(
        (id, room, name, role): (MemberId, u32, &str, Role),
        offer: &str,
        candidates: &Candidates,
        now: Instant,
        brought: &mut Brought,
    ) -> Result<(Self, String), BadOffer> {
        let connection = Connection::new(true, candidates, 1, now, |config| {
            let config = config.clear_codecs().enable_opus(true, false).enable_vp8(true).enable_h264(true);
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
            ufrag: "".into(),
            tracks: Vec::new(),
            slots: Vec::new(),
            pending: None,
            wants_offer: false,
            offer: None,
            estimate: None,
            is_connected: false,
            addresses: Vec::new(),
            queued: None,
            heard: now,
            ends: Some(now + super::OPEN_TIMEOUT),
        };
        let answer = member.accept_offer(offer, brought)?;
        Ok((member, answer))
    }

    /// Errors: what is wrong with the offer.
    pub fn accept_offer(&mut self, offer: &str, brought: &mut Brought) -> Result<String, BadOffer> {
        let read = connection::read(offer, SdpOffer::from_sdp_string).map_err(BadOffer::new)?;
        self.connection.add_received(offer.len());
        let work = |rtc: &mut str0m::Rtc| Ok(rtc.sdp_api().accept_offer(read)?.to_sdp_string());
        // Ours is taken back: it is made again.
        self.wants_offer |= self.pending.take().is_some();
        let answer = self.run(brought, work).map_err(|broken| BadOffer::new(connection::reason(&broken)))?;
        self.ufrag = self.connection.rtc.direct_api().local_ice_credentials().ufrag.into();
        if self.role != Role::Member {
            self.offer = Some(offer.into());
        }
        Ok(answer)
    }

    /// An offer with these tracks in lines of their own, and without the slots whose sources have gone; `None`: nothing is to be said, or
    /// an earlier offer has to be answered first.
    pub fn make_offer(&mut self, wanted: &[Missing], brought: &mut Brought) -> Result<Option<String>, Broken> {
        if self.pending.is_some() {
            return Ok(None);
        }
        let gone: Vec<Mid> = self.slots.iter().filter(|slot| slot.source.is_none()).map(|slot| slot.mid).collect();
        let Self { connection, egress, pending, slots, wants_offer, .. } = self;
        *wants_offer = false;
        let work = |rtc: &mut str0m::Rtc| {
            let mut api = rtc.sdp_api();
            gone.iter().for_each(|mid| api.stop_media(*mid));
            let line = |Missing { kind, source, name }: &Missing| {
                let track = format!("{name}-{}", source.track);
                let mid = api.add_media(*kind, Direction::SendOnly, Some(name.clone()), Some(track), None);
                Line { mid, kind: *kind, source: *source }
            };
            let added: Vec<_> = wanted.iter().map(line).collect();
            Ok(api.apply().map(|(offer, made)| (offer.to_sdp_string(), made, added)))
        };
        let made = connection.run(work, |_, said| {
            brought.tell(said);
            Ok(())
        })?;
        slots.retain(|slot| slot.source.is_some());
        if let Some(egress) = egress {
            egress.retain(|mid| slots.iter().any(|slot| slot.mid == mid));
            slots.iter_mut().for_each(|slot| slot.format = None);
        }
        Ok(made.map(|(sdp, offer, lines)| {
            *pending = Some(Pending { offer, lines });
            sdp
        }))
    }

    /// The answer to [`Member::make_offer`]; gives the lines that are new, in the order of their slots, which are the last. One that nobody has asked for any more changes nothing.
    ///
    /// Errors: what is wrong with it.
    pub fn accept_answer(&mut self, answer: &str, brought: &mut Brought) -> Result<Vec<Line>, BadOffer> {
        let bad = |broken: Broken| BadOffer::answer(connection::reason(&broken));
        let read = connection::read(answer, SdpAnswer::from_sdp_string).map_err(BadOffer::answer)?;
        let Some(Pending { offer, lines }) = self.pending.take() else { return Ok(Vec::new()) };
        self.run(brought, |rtc| Ok(rtc.sdp_api().accept_answer(offer, read)?)).map_err(bad)?;
        self.slots.extend(lines.iter().map(|line| Slot::new(line.mid, line.kind)));
        Ok(lines)
    }

    pub fn run<T>(
        &mut self,
        brought: &mut Brought,
        work: impl FnOnce(&mut str0m::Rtc) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        self.connection.run(work, |_, said| {
            brought.tell(said);
            Ok(())
        })
    }

    /// The datagram of one packet over a slot, under the number and the format that it has there, and where it goes. `None`: this member does
    /// not take it, or cannot yet.
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
            format: format.name,
            resend_format: format.resend_name.filter(|_| slot.kind == MediaKind::Video),
            sequence: sent.sequence,
            time: sent.time,
            clock_hz: media.clock_hz,
            marker: media.marker,
            audio_level: media.audio_level,
            orientation: media.orientation,
            patch: sent.patch,
            payload: media.payload.clone(),
        };
        let datagram = egress.write(format.line, &outgoing, now)?;
        slot.sent_packets += 1;
        slot.sent_bytes += media.payload.len() as u64;
        Some((egress.to(), datagram))
    }

    /// True if it was one of this member's. A report is looked at here before the library hears it, if it has to.
    ///
    /// Errors: the member is to be forgotten; as with every call of the library.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        (from, to): (SocketAddr, SocketAddr),
        datagram: &[u8],
        brought: &mut Brought,
    ) -> Result<bool, Broken> {
        if let Some(egress) = self.egress.as_mut().filter(|_| is_report(datagram)) {
            let heard = egress.hear(datagram, now, |datagram| brought.datagrams.push((from, datagram)));
            if heard != Heard::Spurious {
                // From an address that has shown its password: it has moved there.
                egress.set_to(from);
            }
            if heard == Heard::All {
                return Ok(true);
            }
        }
        self.connection.handle_datagram(now, from, to, datagram, |_, said| {
            brought.tell(said);
            Ok(())
        })
    }

    /// When [`Member::handle_timeout`] wants to be called.
    pub fn timeout(&self) -> Instant {
        let timeout = self.connection.timeout();
        let egress = self.egress.as_ref().and_then(|egress| egress.timeout());
        egress.map_or(timeout, |egress| egress.min(timeout))
    }

    pub fn handle_timeout(&mut self, now: Instant, brought: &mut Brought) -> Result<(), Broken> {
        if let Some(egress) = &mut self.egress {
            let to = egress.to();
            egress.handle_timeout(now, |datagram| brought.datagrams.push((to, datagram)));
        }
        if self.connection.timeout() > now {
            return Ok(());
        }
        self.connection.handle_timeout(now, |_, said| {
            brought.tell(said);
            Ok(())
        })
    }

    /// What the library has made is to leave. False: it need not.
    pub fn correct(&mut self, datagram: &mut Vec<u8>, now: Instant) -> bool {
        match &mut self.egress {
            Some(egress) if is_report(datagram) => egress.correct(datagram, now),
            _ => true,
        }
    }

    /// What its way carries is not what its layers were chosen by.
    pub fn has_another_estimate(&self) -> bool {
        let estimate = self.egress.as_ref().and_then(|egress| egress.bits_per_s());
        let (Some(now), Some(then)) = (estimate, self.estimate) else { return estimate.is_some() };
        now.abs_diff(then) * ESTIMATE_STEP > then
    }

    /// Once the handshake is done, packets can leave; and they leave to where its other end is now.
    pub fn settle(&mut self, now: Instant) {
        if let (Some(to), Some(egress)) = (self.connection.take_moved(), &mut self.egress) {
            egress.set_to(to);
        }
        let exported = self.connection.take_exported().filter(|_| self.role != Role::Publisher);
        if let (Some(exported), Some(to)) = (exported, self.connection.remote()) {
            self.egress = Egress::new(&exported, to, now).map(Box::new);
        }
    }

    pub fn is_muted(&self, kind: MediaKind) -> bool {
        match kind {
            MediaKind::Audio => self.muted.audio,
            MediaKind::Video => self.muted.video,
        }
    }

    pub fn deadline(&self, silence_max: Duration) -> Instant {
        self.ends.unwrap_or(self.heard + silence_max).min(self.heard + silence_max)
    }
}

impl Slot {
    pub fn new(mid: Mid, kind: MediaKind) -> Self {
        Self {
            mid,
            kind,
            source: None,
            feed: Feed::default(),
            format: None,
            switched: None,
            sent_packets: 0,
            sent_bytes: 0,
        }
    }

    /// A name of a format is never another's while a connection lasts (RFC 3264, section 8.3.2).
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
        let (ssrc, resends) = (*stream.ssrc(), stream.rtx().map(|ssrc| *ssrc));
        let line = egress.line(self.mid, || Way::new(self.mid, &extensions, ssrc, resends, now));
        Some(Format { name: *ours.pt(), resend_name: ours.resend().map(|name| *name), line })
    }

    pub fn is_mix(&self) -> bool {
        self.source == Some(Source::MIX)
    }

    /// The source has changed: its formats may be others.
    pub fn attach(&mut self, source: Option<Source>) {
        self.source = source;
        self.format = None;
        self.switched = None;
        self.feed.detach();
    }
}

fn is_same_codec(one: CodecSpec, other: CodecSpec) -> bool {
    one.codec == other.codec && one.clock_rate == other.clock_rate
}
