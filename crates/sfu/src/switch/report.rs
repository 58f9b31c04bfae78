//! Statistics of members.

use std::time::Instant;

use str0m::media::MediaKind;

use super::{allocate::LayerSwitch, member::Member, mix::MIX, state::Switch};
use crate::member_id::MemberId;

/// Statistics of one member's connection.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Report {
    pub name: String,
    pub is_connected: bool,
    /// The member is the active speaker, or was the last one.
    pub has_floor: bool,
    /// Name of the congestion control algorithm of the path to the member.
    pub congestion_control: Option<&'static str>,
    /// Bandwidth estimate of the path to the member in kbit/s.
    pub estimate_kbps: Option<u64>,
    /// Round-trip time to the member.
    pub rtt_ms: Option<u64>,
    /// Packets to the member that were lost lately, in percent.
    pub loss_percent: Option<f64>,
    pub sends: Vec<Sends>,
    pub receives: Vec<Receives>,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Sends {
    pub kind: &'static str,
    /// Bit rate of each layer, in the order of their first packets.
    pub layers_kbps: Vec<u64>,
    /// A moderator has muted this track: it is not forwarded.
    pub is_muted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Receives {
    pub from: String,
    pub kind: &'static str,
    /// Index of the source's layer that is being sent.
    pub layer: Option<usize>,
    pub layer_switches: u64,
    /// Last change of the selected layer.
    pub last_switch: Option<LayerSwitch>,
    /// The receiver waits for a keyframe.
    pub is_waiting: bool,
    pub packets: u64,
    pub bytes: u64,
}

impl Switch {
    /// Returns the reports of all members of a room, in the order of joining.
    pub fn reports(&self, room: &str, now: Instant) -> Vec<Report> {
        let Some(room) = self.rooms_by_name.get(room) else { return Vec::new() };
        let members = self.rooms[*room as usize].members.iter().filter_map(|id| self.members.get(id.slot as usize));
        members.map(|member| self.report(member, now)).collect()
    }

    /// Returns the report of one member. `None`: the member does not exist.
    pub fn report_of(&self, id: MemberId, now: Instant) -> Option<Report> {
        let member = self.members.get(id.slot as usize).filter(|member| member.id == id)?;
        Some(self.report(member, now))
    }

    fn report(&self, member: &Member, now: Instant) -> Report {
        let sends = member.tracks.iter().map(|track| Sends {
            kind: kind_name(track.kind),
            layers_kbps: track.layers.iter().map(|layer| layer.bits_per_s(now) / 1000).collect(),
            is_muted: track.is_muted,
        });
        let receives = member.slots.iter().filter_map(|slot| {
            let from = match slot.source?.member {
                MemberId::MIXER => MIX,
                from => &*self.members.get(from.slot as usize)?.name,
            };
            Some(Receives {
                from: from.to_owned(),
                kind: kind_name(slot.kind),
                layer: slot.rewriter.layer(),
                layer_switches: slot.rewriter.switches,
                last_switch: slot.switched.map(|(switch, at)| LayerSwitch {
                    ago_ms: now.saturating_duration_since(at).as_millis() as u64,
                    ..switch
                }),
                is_waiting: slot.rewriter.is_waiting(),
                packets: slot.sent_packets,
                bytes: slot.sent_bytes,
            })
        });
        let egress = member.egress.as_deref();
        Report {
            name: member.name.to_string(),
            is_connected: member.is_connected,
            has_floor: self.holder(member.room).is_some_and(|holder| holder.member == member.id),
            congestion_control: egress.map(|egress| egress.congestion_control()),
            estimate_kbps: member.estimate.map(|estimate| estimate / 1000),
            rtt_ms: egress.and_then(|egress| egress.round_trip_time()).map(|rtt| rtt.as_millis() as u64),
            loss_percent: egress.and_then(|egress| egress.loss()).map(|share| (share * 1000.0).round() / 10.0),
            sends: sends.collect(),
            receives: receives.collect(),
        }
    }
}

fn kind_name(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Audio => "audio",
        MediaKind::Video => "video",
    }
}
