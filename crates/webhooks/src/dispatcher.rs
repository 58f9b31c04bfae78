//! Decides which logs are read, when a batch is sent, and what happens after an attempt. It has no clock and does no
//! I/O.
//!
//! ```text
//!              a log may have changed            the batch is full, or batch_wait is over
//!   ┌───────┐ ───────────────────────► ┌────────────┐ ─────────────────────────────► ┌─────────┐
//!   │ Idle  │                          │ Collecting │                                │ Sending │ ◄─┐
//!   └───────┘ ◄── no events ────────── └────────────┘                                └─────────┘   │ pause is over
//!       ▲                                                                              │    │      │
//!       └───── cursors are written ◄── acknowledged, or buried as dead letters ────────┘    └─► Waiting
//! ```
//!
//! A log is read only from its cursor on, and one batch is in flight at a time. So the events of a log arrive in the
//! order of the log, and a cursor moves only past events that were acknowledged or buried.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{ChannelName, Position, Since};
use tokio::time::Instant;

use crate::{Limits, event::Event};

/// Longest pause after the first failed attempt. Later pauses double.
const PAUSE_FIRST: Duration = Duration::from_millis(200);

/// Maximum number of logs in a batch.
const ENDS_MAX: usize = 1000;

/// Cursor into the log of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Up to where events are acknowledged; `None`: the log is read from the beginning of its history.
    pub at: Option<Position>,
    /// Position of the cursor's entry in the state of the cursors; `None` if it has no entry yet.
    pub entry: Option<Position>,
}

/// Events that are sent together, and the cursors after them.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub events: Vec<Event>,
    bytes: usize,
    /// Time of the first event.
    began: Option<Instant>,
    ends: HashMap<ChannelName, Position>,
}

/// Task for the caller of [`Dispatcher::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a page and pass it to [`Dispatcher::on_page`].
    Read { channel: ChannelName, since: Since, limit: PageLimit },
    /// Send [`Dispatcher::batch`] and pass the result to [`Dispatcher::on_attempt`].
    Send,
    /// Write the cursors of [`Dispatcher::take_batch`], which has no events.
    Commit,
    /// Nothing, until this time or until a log may have changed.
    Wait(Option<Instant>),
}

/// Result of an attempt to send a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    Acknowledged,
    /// The back end may accept the batch later.
    Failed,
    /// The back end will never accept the batch.
    Rejected,
}

/// Consequence of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The events are acknowledged: write the cursors of [`Dispatcher::take_batch`].
    Commit,
    /// The events become dead letters; then the cursors are written.
    Bury,
    /// The next attempt follows after this pause.
    Retry(Duration),
}

/// Attempts of the current batch.
#[derive(Clone, Copy, Debug)]
struct Retry {
    first: Instant,
    attempts: u32,
    at: Instant,
}

#[derive(Debug)]
pub struct Dispatcher {
    limits: Limits,
    cursors: HashMap<ChannelName, (Cursor, IsUnread)>,
    unread: VecDeque<ChannelName>,
    batch: Batch,
    retry: Option<Retry>,
}

/// True if the log is in the queue of unread logs.
type IsUnread = bool;

impl Dispatcher {
    pub fn new(limits: Limits) -> Self {
        let (cursors, unread, batch, retry) = Default::default();
        Self { limits, cursors, unread, batch, retry }
    }

    /// Adds a log, unless it is known.
    pub fn add(&mut self, channel: &ChannelName, cursor: Cursor) {
        if !self.cursors.contains_key(channel) {
            self.cursors.insert(channel.clone(), (cursor, false));
            self.notify(channel);
        }
    }

    pub fn cursor(&self, channel: &ChannelName) -> Option<&Cursor> {
        self.cursors.get(channel).map(|(cursor, _)| cursor)
    }

    /// Forgets a log without unsent events.
    pub fn remove(&mut self, channel: &ChannelName) {
        self.cursors.remove(channel);
    }

    /// Returns true if the dispatcher has read everything of this log that it knows of, and sent it.
    pub fn is_idle(&self, channel: &ChannelName) -> bool {
        let is_read = self.cursors.get(channel).is_some_and(|(_, is_unread)| !is_unread);
        is_read && self.batch.end(channel).is_none()
    }

    /// Reports that a log may have changed. Returns false if the log is unknown.
    pub fn notify(&mut self, channel: &ChannelName) -> bool {
        let Some((_, is_unread)) = self.cursors.get_mut(channel) else { return false };
        if !std::mem::replace(is_unread, true) {
            self.unread.push_back(channel.clone());
        }
        true
    }

    pub fn next(&mut self, now: Instant) -> Step {
        if let Some(retry) = self.retry {
            return if now >= retry.at { Step::Send } else { Step::Wait(Some(retry.at)) };
        }
        let Limits { batch_max, batch_bytes_max, batch_wait, .. } = self.limits;
        let due = self.batch.began.map(|began| began + batch_wait);
        let is_full = self.batch.events.len() >= batch_max || self.batch.bytes >= batch_bytes_max;
        if is_full {
            return Step::Send;
        }
        if self.batch.ends.len() >= ENDS_MAX {
            return if due.is_some() { Step::Send } else { Step::Commit };
        }
        while let Some(channel) = self.unread.pop_front() {
            let Some((cursor, is_unread)) = self.cursors.get_mut(&channel) else { continue };
            *is_unread = false;
            let since = self.batch.end(&channel).or(cursor.at).map_or(Since::Earliest, Since::Position);
            let limit =
                PageLimit { count: batch_max - self.batch.events.len(), bytes: batch_bytes_max - self.batch.bytes };
            return Step::Read { channel, since, limit };
        }
        match due {
            Some(due) if now >= due => Step::Send,
            Some(due) => Step::Wait(Some(due)),
            None if self.batch.ends.is_empty() => Step::Wait(None),
            None => Step::Commit,
        }
    }

    /// Takes the page of [`Step::Read`]. `decode` returns the event of a publication, if it is any. Returns the number
    /// of publications that history had dropped before they were read.
    pub fn on_page(
        &mut self,
        channel: &ChannelName,
        page: &Page,
        now: Instant,
        decode: impl Fn(Position, &millrace_protocol::Publication) -> Option<Event>,
    ) -> u64 {
        let Some((cursor, _)) = self.cursors.get(channel) else { return 0 };
        let before = self.batch.end(channel).or(cursor.at);
        let epoch = page.end.epoch;
        let events = page.publications.iter().filter_map(|one| decode(Position { epoch, offset: one.offset }, one));
        for event in events {
            self.batch.bytes += event.json.len() + 1;
            self.batch.began.get_or_insert(now);
            self.batch.events.push(event);
        }
        let dropped = match before {
            Some(before) if before.epoch == epoch => page.end.offset.saturating_sub(before.offset),
            Some(_) => page.end.offset,
            // The first read starts wherever history begins.
            None => page.publications.len() as u64,
        };
        // A log without publications does not exist yet, so its epoch has no meaning.
        if before != Some(page.end) && page.end.offset > 0 {
            self.batch.ends.insert(channel.clone(), page.end);
        }
        if page.has_more() {
            self.notify(channel);
        }
        dropped.saturating_sub(page.publications.len() as u64)
    }

    /// Returns the events that [`Step::Send`] sends.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Takes the result of an attempt. `chance` is a random number from 0 to 1.
    pub fn on_attempt(&mut self, attempt: &Attempt, now: Instant, chance: f64) -> Verdict {
        let Retry { first, attempts, .. } = self.retry.unwrap_or(Retry { first: now, attempts: 0, at: now });
        match attempt {
            Attempt::Acknowledged => Verdict::Commit,
            Attempt::Rejected => Verdict::Bury,
            Attempt::Failed if now.duration_since(first) >= self.limits.give_up => Verdict::Bury,
            Attempt::Failed => {
                let longest = PAUSE_FIRST.saturating_mul(1 << attempts.min(20)).min(self.limits.pause_max);
                let pause = longest.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0));
                self.retry = Some(Retry { first, attempts: attempts + 1, at: now + pause });
                Verdict::Retry(pause)
            }
        }
    }

    /// Ends the current batch and returns it. The caller writes its cursors, and reports each by
    /// [`Dispatcher::committed`].
    pub fn take_batch(&mut self) -> Batch {
        self.retry = None;
        std::mem::take(&mut self.batch)
    }

    /// Reports that a cursor was written into `entry`.
    pub fn committed(&mut self, channel: &ChannelName, at: Position, entry: Position) {
        if let Some((cursor, _)) = self.cursors.get_mut(channel) {
            *cursor = Cursor { at: Some(at), entry: Some(entry) };
        }
    }

    /// Returns the number of logs.
    pub fn logs(&self) -> usize {
        self.cursors.len()
    }

    /// Returns true while a batch waits for its next attempt.
    pub fn is_waiting(&self) -> bool {
        self.retry.is_some()
    }
}

impl Batch {
    /// Returns the cursors after the batch.
    pub fn ends(&self) -> impl Iterator<Item = (&ChannelName, Position)> {
        self.ends.iter().map(|(channel, end)| (channel, *end))
    }

    fn end(&self, channel: &ChannelName) -> Option<Position> {
        self.ends.get(channel).copied()
    }

    /// Returns the body of the request.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(self.bytes + 16);
        json.extend_from_slice(b"{\"events\":[");
        for (at, event) in self.events.iter().enumerate() {
            if at > 0 {
                json.push(b',');
            }
            json.extend_from_slice(&event.json);
        }
        json.extend_from_slice(b"]}");
        json
    }
}

#[cfg(test)]
mod tests {
    use millrace_delivery::Part;
    use millrace_protocol::{Epoch, Gap, Kind, Publication, PublicationHead};

    use super::*;
    use crate::event::{EventType, event_id};

    const MS: Duration = Duration::from_millis(1);

    fn limits() -> Limits {
        Limits {
            batch_max: 5,
            batch_bytes_max: 1000,
            batch_wait: 100 * MS,
            pause_max: Duration::from_secs(30),
            give_up: Duration::from_secs(3600),
        }
    }

    fn at(offset: u64) -> Position {
        Position { epoch: Epoch(1), offset }
    }

    /// A log of `top` publications, whose first `lost` ones have left history.
    struct TestLog {
        lost: u64,
        top: u64,
    }

    impl TestLog {
        fn page(&self, since: Since, limit: PageLimit) -> Page {
            let from = match since {
                Since::Position(at) => at.offset,
                _ => self.lost,
            };
            let first = from.max(self.lost) + 1;
            let last = self.top.min(first + limit.count as u64 - 1);
            let head = |offset| PublicationHead {
                offset,
                time_ms: offset,
                key: None,
                expires_ms: None,
                is_traced: false,
                kind: Kind::Json,
                is_deletion: false,
            };
            let publications = (first..=last).map(|offset| Publication::new(head(offset), b"1")).collect();
            let gap = (from < self.lost).then(|| Gap { from: at(from), to: at(self.lost) });
            Page { gap, publications, end: at(last.max(from)), top: at(self.top), part: Part::Log }
        }
    }

    fn event(channel: &ChannelName, position: Position) -> Event {
        let json = format!("\"{channel} {}\"", position.offset).into();
        let (event_type, time_ms, is_letter) = (EventType::Publication, 0, false);
        Event { id: event_id(channel, position), event_type, time_ms, json, is_letter }
    }

    fn name(name: &str) -> ChannelName {
        ChannelName::parse(name).unwrap()
    }

    /// Reads until the dispatcher wants something else.
    fn collect(dispatcher: &mut Dispatcher, logs: &HashMap<ChannelName, TestLog>, now: Instant) -> (Step, u64) {
        let mut dropped = 0;
        loop {
            match dispatcher.next(now) {
                Step::Read { channel, since, limit } => {
                    let page = logs[&channel].page(since, limit);
                    dropped += dispatcher.on_page(&channel, &page, now, |at, _| Some(event(&channel, at)));
                }
                step => return (step, dropped),
            }
        }
    }

    fn sent(dispatcher: &Dispatcher) -> Vec<String> {
        let json: Vec<String> =
            dispatcher.batch().events.iter().map(|e| String::from_utf8(e.json.clone()).unwrap()).collect();
        json.iter().map(|text| text.trim_matches('"').to_owned()).collect()
    }

    fn commit(dispatcher: &mut Dispatcher) {
        let batch = dispatcher.take_batch();
        for (n, (channel, end)) in batch.ends().enumerate() {
            dispatcher.committed(channel, end, at(1000 + n as u64));
        }
    }

    #[test]
    fn batch_is_sent_when_full_or_after_its_wait() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let mut logs = HashMap::from([(name("a"), TestLog { lost: 0, top: 7 })]);
        assert_eq!(dispatcher.next(now), Step::Wait(None));
        dispatcher.add(&name("a"), Cursor::default());
        assert_eq!(collect(&mut dispatcher, &logs, now), (Step::Send, 0), "five of seven fill the batch");
        assert_eq!(sent(&dispatcher), ["a 1", "a 2", "a 3", "a 4", "a 5"]);
        assert_eq!(dispatcher.on_attempt(&Attempt::Acknowledged, now, 0.0), Verdict::Commit);
        commit(&mut dispatcher);
        let (step, _) = collect(&mut dispatcher, &logs, now);
        assert_eq!(step, Step::Wait(Some(now + 100 * MS)), "two events wait for others");
        logs.insert(name("a"), TestLog { lost: 0, top: 8 });
        assert!(dispatcher.notify(&name("a")));
        assert_eq!(collect(&mut dispatcher, &logs, now + 50 * MS).0, Step::Wait(Some(now + 100 * MS)));
        assert_eq!(collect(&mut dispatcher, &logs, now + 100 * MS).0, Step::Send);
        assert_eq!(sent(&dispatcher), ["a 6", "a 7", "a 8"]);
    }

    #[test]
    fn cursor_moves_only_after_the_acknowledgment() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let logs = HashMap::from([(name("a"), TestLog { lost: 0, top: 5 })]);
        dispatcher.add(&name("a"), Cursor { at: Some(at(2)), entry: Some(at(40)) });
        collect(&mut dispatcher, &logs, now + 100 * MS);
        let before = sent(&dispatcher);
        assert_eq!(before, ["a 3", "a 4", "a 5"]);
        assert_eq!(dispatcher.cursor(&name("a")).unwrap().at, Some(at(2)));
        let Verdict::Retry(pause) = dispatcher.on_attempt(&Attempt::Failed, now, 1.0) else { panic!("a retry") };
        assert_eq!(dispatcher.next(now), Step::Wait(Some(now + pause)));
        assert!(!dispatcher.notify(&name("b")), "an unknown log");
        assert_eq!(dispatcher.next(now + pause), Step::Send);
        assert_eq!(sent(&dispatcher), before, "the same batch is sent again");
        assert_eq!(dispatcher.on_attempt(&Attempt::Acknowledged, now, 0.0), Verdict::Commit);
        commit(&mut dispatcher);
        assert_eq!(dispatcher.cursor(&name("a")), Some(&Cursor { at: Some(at(5)), entry: Some(at(1000)) }));
        assert!(dispatcher.is_idle(&name("a")));
        assert_eq!(dispatcher.next(now), Step::Wait(None));
    }

    #[test]
    fn pauses_double_up_to_their_maximum_until_give_up() {
        let (mut dispatcher, mut now) = (Dispatcher::new(limits()), Instant::now());
        let logs = HashMap::from([(name("a"), TestLog { lost: 0, top: 1 })]);
        dispatcher.add(&name("a"), Cursor::default());
        collect(&mut dispatcher, &logs, now);
        let (began, mut pauses) = (now, Vec::new());
        loop {
            match dispatcher.on_attempt(&Attempt::Failed, now, 1.0) {
                Verdict::Retry(pause) => {
                    pauses.push(pause.as_millis());
                    now += pause;
                }
                verdict => {
                    assert_eq!(verdict, Verdict::Bury);
                    break;
                }
            }
        }
        assert_eq!(pauses[..9], [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        assert!(now - began >= Duration::from_secs(3600) && now - began < Duration::from_secs(3630));
        let mut fresh = Dispatcher::new(limits());
        let halved = fresh.on_attempt(&Attempt::Failed, now, 0.0);
        assert_eq!(halved, Verdict::Retry(100 * MS), "jitter halves a pause at most");
        assert_eq!(fresh.on_attempt(&Attempt::Rejected, now, 0.0), Verdict::Bury);
    }

    #[test]
    fn lost_publications_are_counted() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let logs = HashMap::from([(name("a"), TestLog { lost: 10, top: 12 })]);
        dispatcher.add(&name("a"), Cursor { at: Some(at(4)), entry: None });
        let (_, dropped) = collect(&mut dispatcher, &logs, now);
        assert_eq!((dropped, sent(&dispatcher)), (6, vec!["a 11".to_owned(), "a 12".into()]));
        // The first read of a log begins where its history begins, which is no loss.
        let mut dispatcher = Dispatcher::new(limits());
        dispatcher.add(&name("a"), Cursor::default());
        assert_eq!(collect(&mut dispatcher, &logs, now).1, 0);
    }

    #[test]
    fn busy_log_does_not_starve_others() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let logs =
            HashMap::from([(name("a"), TestLog { lost: 0, top: 100 }), (name("b"), TestLog { lost: 0, top: 1 })]);
        dispatcher.add(&name("a"), Cursor::default());
        dispatcher.add(&name("b"), Cursor::default());
        assert_eq!(collect(&mut dispatcher, &logs, now).0, Step::Send);
        commit(&mut dispatcher);
        collect(&mut dispatcher, &logs, now);
        assert_eq!(sent(&dispatcher)[0], "b 1");
    }

    #[test]
    fn log_without_events_moves_its_cursor_without_a_request() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let log = TestLog { lost: 0, top: 3 };
        dispatcher.add(&name("a"), Cursor::default());
        let Step::Read { channel, since, limit } = dispatcher.next(now) else { panic!("a read") };
        dispatcher.on_page(&channel, &log.page(since, limit), now, |_, _| None);
        assert_eq!(dispatcher.next(now), Step::Commit);
        commit(&mut dispatcher);
        assert_eq!(dispatcher.cursor(&name("a")).unwrap().at, Some(at(3)));
        assert_eq!(dispatcher.next(now), Step::Wait(None));
    }

    #[test]
    fn body_is_a_list_of_events() {
        let (mut dispatcher, now) = (Dispatcher::new(limits()), Instant::now());
        let logs = HashMap::from([(name("a"), TestLog { lost: 0, top: 2 })]);
        dispatcher.add(&name("a"), Cursor::default());
        collect(&mut dispatcher, &logs, now);
        assert_eq!(dispatcher.batch().to_json(), br#"{"events":["a 1","a 2"]}"#);
    }
}
