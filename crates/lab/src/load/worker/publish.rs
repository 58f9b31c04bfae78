//! Publishes the messages whose scheduled time has come.

use std::sync::atomic::Ordering::*;

use super::Worker;
use crate::load::{link::State, payload::Stamp, plan::Rate, thread_stats::PROBE};

/// Maximum number of bytes queued for one socket. Above it, further publications are not encoded yet.
const OUT_BYTES_MAX: usize = 256 * 1024;

impl Worker<'_> {
    pub(super) fn publish_due(&mut self, now: u64) {
        let start = self.shared.test_at_ns.load(Relaxed);
        if !self.storm_is_over && now >= start + self.plan.test.as_nanos() as u64 / 2 {
            self.storm(now);
        }
        if let Rate::Closed { in_flight } = self.plan.rate {
            return self.publish_more(in_flight, start, now);
        }
        let streams = self.plan.streams() as u64;
        while let Some((k, at)) = self.schedule.peek().copied().filter(|(_, at)| start + at <= now) {
            self.schedule.next();
            let stream = k % streams;
            if stream % self.threads == self.index {
                self.stats.page.lateness.record_ns(now - (start + at));
                self.publish(stream, start + at, now);
            }
        }
    }

    /// Publishes in a closed loop: keeps `in_flight` publications outstanding. If none completes within a quarter of
    /// the patience, the outstanding ones are written off.
    fn publish_more(&mut self, in_flight: u64, start: u64, now: u64) {
        if self.index != 0 || now < start || now >= start + self.plan.test.as_nanos() as u64 {
            return;
        }
        let complete = self.shared.ledger.complete();
        if complete != self.moved.0 {
            self.moved = (complete, now);
        } else if now.saturating_sub(self.moved.1.max(start)) > self.plan.patience.as_nanos() as u64 / 4 {
            self.written_off = self.closed_sent.saturating_sub(complete);
            self.moved.1 = now;
        }
        let mine = self.publishers.len() as u64;
        while mine > 0 && self.closed_sent < complete + self.written_off + in_flight {
            let stream = self.closed_sent % mine * self.threads;
            self.closed_sent += 1;
            self.publish(stream, now, now);
        }
    }

    /// Schedules one more publication of this stream and sends it if possible.
    fn publish(&mut self, stream: u64, due: u64, now: u64) {
        let index = self.publishers[(stream / self.threads) as usize] as usize;
        let publisher = self.links[index].publisher.as_mut().expect("a publisher publishes");
        self.stats.counts.scheduled += 1;
        // The publisher is too far behind for the ledger, so the publication is skipped. It counts in `scheduled` but
        // not in `sent`.
        if publisher.scheduled - publisher.sent >= self.shared.ledger.backlog_max() {
            return;
        }
        self.shared.ledger.begin(publisher.stream, publisher.scheduled, due);
        publisher.scheduled += 1;
        self.speak(index, now);
    }

    /// Encodes and sends the scheduled publications of a connection, as far as it can take them.
    pub(super) fn speak(&mut self, index: usize, now: u64) {
        let link = &mut self.links[index];
        let Some(publisher) = &mut link.publisher else { return };
        while publisher.spoken < publisher.scheduled
            && link.state == State::Live
            && link.out.len() < OUT_BYTES_MAX
            && link.dialect.can_publish()
        {
            let due_ns = match publisher.stream {
                PROBE => self.probe_from_ns + u64::from(publisher.spoken) * self.plan.probe.as_nanos() as u64,
                stream => self.shared.ledger.due_ns(stream, publisher.spoken),
            };
            let sequence = u64::from(publisher.spoken);
            self.payload.clear();
            Stamp { stream: publisher.stream, sequence, due_ns }.write(self.plan.bytes, &mut self.payload);
            link.dialect.publish(&self.payload, &mut link.out);
            publisher.spoken += 1;
        }
        self.flush(index, now);
    }

    pub(super) fn flush(&mut self, index: usize, now: u64) {
        let link = &mut self.links[index];
        if let Some(publisher) = link.publisher.filter(|publisher| publisher.stream != PROBE) {
            // Record the send time before the system call: another thread may receive the message before the call
            // returns.
            (publisher.sent..publisher.spoken)
                .for_each(|sequence| self.shared.ledger.sent(publisher.stream, sequence, now));
        }
        let is_done = match link.flush() {
            Ok(is_done) => is_done,
            Err(error) => return self.broken(index, now, error.to_string()),
        };
        if is_done && let Some(publisher) = &mut link.publisher {
            if publisher.stream != PROBE && publisher.sent != publisher.spoken {
                self.stats.counts.sent += u64::from(publisher.spoken - publisher.sent);
                self.shared.published[publisher.stream as usize].store(publisher.spoken, Relaxed);
            }
            publisher.sent = publisher.spoken;
        }
        if link.awaits_room == is_done {
            link.awaits_room = !is_done;
            self.watch(index);
        }
    }
}
