use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use str0m::{
    bwe::Bitrate,
    change::{SdpAnswer, SdpOffer, SdpPendingOffer},
    format::{CodecSpec, PayloadParams},
    media::{Direction, MediaKind, Mid, Pt},
    rtp::{ExtensionValues, RtpPacket, RtpWrite},
};

use super::{
    MemberId, Role, Source,
    feed::{Feed, Renumbered},
    track::Track,
};
use crate::{
    BadOffer, Broken,
    connection::{self, Candidates, Connection, Said},
};

/// What a way is thought to carry until it is known.
const FIRST_ESTIMATE: Bitrate = Bitrate::mbps(1);

/// One connection to the switch, and what goes over it.
pub struct Member {
    pub id: MemberId,
    pub room: u32,
    /// Whose tracks these are, to the others.
    pub name: Box<str>,
    pub role: Role,
    pub connection: Connection,
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
    /// What its way carries, in bits per second; `None`: nothing is known, and nothing limited.
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
    format: Option<(PayloadParams, Option<Pt>)>,
    pub sent_packets: u64,
    pub sent_bytes: u64,
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
            // Whoever is sent nothing needs no estimate of what can be sent: it costs 20 times as much as doing nothing.
            let estimate = (role != Role::Publisher).then_some(FIRST_ESTIMATE);
            let config = config.clear_codecs().enable_opus(true, false).enable_vp8(true).enable_h264(true);
            config.set_rtp_mode(true).enable_bwe(estimate)
        });
        let mut member = Self {
            id,
            room,
            name: name.into(),
            role,
            connection,
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
        let read = connection::read(offer, SdpOffer::from_sdp_string).map_err(|error| BadOffer::new(&error))?;
        let work = |rtc: &mut str0m::Rtc| Ok(rtc.sdp_api().accept_offer(read)?.to_sdp_string());
        // Ours is taken back: it is made again.
        self.wants_offer |= self.pending.take().is_some();
        let answer = self.run(brought, work).map_err(|error| BadOffer::new(&error))?;
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
        let Self { connection, pending, slots, wants_offer, .. } = self;
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
        Ok(made.map(|(sdp, offer, lines)| {
            *pending = Some(Pending { offer, lines });
            sdp
        }))
    }

    /// The answer to [`Member::make_offer`]; gives the lines that are new, in the order of their slots, which are the last. One that nobody has asked for any more changes nothing.
    ///
    /// Errors: what is wrong with it.
    pub fn accept_answer(&mut self, answer: &str, brought: &mut Brought) -> Result<Vec<Line>, BadOffer> {
        let bad = |what: &dyn std::fmt::Display| BadOffer::new(&format!("its answer: {what}"));
        let read = connection::read(answer, SdpAnswer::from_sdp_string).map_err(|error| bad(&error))?;
        let Some(Pending { offer, lines }) = self.pending.take() else { return Ok(Vec::new()) };
        self.run(brought, |rtc| Ok(rtc.sdp_api().accept_answer(offer, read)?)).map_err(|error| bad(&error))?;
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

    /// Sends one packet over a slot, under the number and the format that it has there.
    pub fn send(
        &mut self,
        slot: usize,
        (packet, params, sent): (&RtpPacket, &PayloadParams, Renumbered),
        now: Instant,
        brought: &mut Brought,
    ) -> Result<(), Broken> {
        let Self { connection, slots, .. } = self;
        let Some(slot) = slots.get_mut(slot) else { return Ok(()) };
        let Some(format) = slot.format(&connection.rtc, params) else { return Ok(()) };
        let seen = &packet.header.ext_vals;
        let shown = ExtensionValues {
            audio_level: seen.audio_level,
            voice_activity: seen.voice_activity,
            video_orientation: seen.video_orientation,
            ..ExtensionValues::default()
        };
        let mut write = RtpWrite::new(format, sent.sequence.into(), sent.time, now, packet.payload.clone())
            .marker(packet.header.marker)
            .nackable(slot.kind == MediaKind::Video)
            .ext_vals(shown);
        if let Some(patch) = sent.patch {
            write = write.vp8_patch(patch);
        }
        let mid = slot.mid;
        let work = |rtc: &mut str0m::Rtc| {
            if let Some(stream) = rtc.direct_api().stream_tx_by_mid(mid, None) {
                // Who sent it has paced it: to hold it back here until an estimate has grown would only make it late.
                stream.set_unpaced(true);
                stream.write_rtp(write);
            }
            Ok(())
        };
        slot.sent_packets += 1;
        slot.sent_bytes += packet.payload.len() as u64;
        connection.send(now, work, |_, said| {
            brought.tell(said);
            Ok(())
        })
    }

    pub fn deadline(&self, silence_max: Duration) -> Instant {
        self.ends.unwrap_or(self.heard + silence_max).min(self.heard + silence_max)
    }
}

impl Slot {
    pub fn new(mid: Mid, kind: MediaKind) -> Self {
        Self { mid, kind, source: None, feed: Feed::default(), format: None, sent_packets: 0, sent_bytes: 0 }
    }

    fn format(&mut self, rtc: &str0m::Rtc, params: &PayloadParams) -> Option<Pt> {
        if self.format.as_ref().is_none_or(|(known, _)| known.pt() != params.pt() || known.spec() != params.spec()) {
            let same = |ours: &PayloadParams| is_same_codec(ours.spec(), params.spec());
            let taken = |ours: &&PayloadParams| {
                rtc.media(self.mid).is_some_and(|media| media.remote_pts().contains(&ours.pt()))
            };
            let ours = rtc.codec_config().match_params(*params).filter(|ours| same(ours)).filter(taken);
            self.format = Some((*params, ours.map(PayloadParams::pt)));
        }
        self.format.as_ref().and_then(|(_, ours)| *ours)
    }

    /// The source has changed: its formats may be others.
    pub fn attach(&mut self, source: Option<Source>) {
        self.source = source;
        self.format = None;
        self.feed.detach();
    }
}

fn is_same_codec(one: CodecSpec, other: CodecSpec) -> bool {
    one.codec == other.codec && one.clock_rate == other.clock_rate
}
