//! Data channels on the same connection as a member's media. They carry a session, as those of a [`millrace_rtc::Peer`]
//! do.

use std::time::Instant;

use millrace_rtc::{Event as Data, Lane, channels};

use super::{
    member::Member,
    state::{Send, Switch},
};
use crate::member_id::MemberId;

impl Switch {
    /// Returns the next event of the members' data channels.
    pub fn poll_data(&mut self) -> Option<(MemberId, Data)> {
        self.data.pop_front()
    }

    /// Sends one message. Returns false if the send buffer is full, or if the channel or the member does not exist.
    pub fn write_data(
        &mut self,
        id: MemberId,
        (lane, is_text, message): (Lane, bool, &[u8]),
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) -> bool {
        let written = self.work(id, now, send, |member, collected| {
            let channel = member.channels.id(lane);
            member.run(collected, |rtc| channels::write(rtc, channel, is_text, message))
        });
        written.unwrap_or(false)
    }

    /// Returns the number of bytes written but not yet acknowledged.
    pub fn buffered_data(&mut self, id: MemberId, lane: Lane) -> usize {
        let Some(member) = self.member(id) else { return 0 };
        let Member { connection, channels, .. } = member;
        channels.buffered(&mut connection.rtc, lane)
    }

    /// Closes the member's data channels; its media continue.
    pub fn close_data(&mut self, id: MemberId, now: Instant, send: &mut (impl Send + ?Sized)) {
        self.work(id, now, send, |member, collected| {
            let ids = Lane::ALL.map(|lane| member.channels.id(lane));
            member.run(collected, |rtc| {
                ids.into_iter().flatten().for_each(|id| rtc.direct_api().close_data_channel(id));
                Ok(())
            })
        });
    }

    pub(super) fn handle_data(
        &mut self,
        id: MemberId,
        event: str0m::Event,
        now: Instant,
        send: &mut (impl Send + ?Sized),
    ) {
        let Some(member) = self.member(id) else { return };
        let Member { connection, channels, .. } = member;
        match channels.handle_event(&mut connection.rtc, event) {
            Ok(Some(event)) => self.data.push_back((id, event)),
            Ok(None) => {}
            Err(_) => self.leave(id, now, send),
        }
    }
}
