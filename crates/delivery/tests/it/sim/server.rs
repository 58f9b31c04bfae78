//! The part of a transport around a hub: handshakes, commands and long polls, in the order that `Hub` requires.

use millrace_delivery::{ConnId, FirstPage, Page, WaiterId};
use millrace_protocol::{
    Code, Encoding, Error, Pattern, Since, encoding::Envelope, session, session::Policy, websocket,
};
use serde_json::{Value, json};

use super::{
    event::{Asker, Event},
    request::{Command, Job, Kind, Poll},
    truth::Check,
    world::{World, trace},
};

impl World {
    /// Opens a connection of this encoding. The first bytes follow when the pages of the connection have been read.
    pub fn open_stream(
        &mut self,
        client: usize,
        encoding: Encoding,
        reads: Vec<(usize, Since)>,
        policy: Policy,
    ) -> Check<ConnId> {
        let conn = self.open(client, encoding);
        self.start_job(conn, Kind::Stream { encoding }, policy, reads)?;
        Ok(conn)
    }

    pub fn open_session(&mut self, client: usize) -> Check<ConnId> {
        let conn = self.open(client, Encoding::Session);
        let mut hello = b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec();
        let connected = session::encode_connected("1-0-1-1", 25_000, 1 << 20, self.now_ms, None, None);
        websocket::encode(&mut hello, websocket::TEXT, connected.as_bytes());
        self.hub.send(conn, &hello, &mut self.wires);
        self.drain()?;
        Ok(conn)
    }

    fn open(&mut self, client: usize, encoding: Encoding) -> ConnId {
        let conn = self.hub.connect(encoding);
        let capacity = self.capacity();
        self.wires.open(conn, client, capacity);
        conn
    }

    pub fn command(&mut self, client: usize, conn: ConnId, id: u64, command: Command) -> Check {
        self.hub.heard(conn);
        match command {
            Command::Subscribe { channel, since, policy } => {
                self.start_job(conn, Kind::Named { id }, policy, vec![(channel, since)])?;
            }
            Command::SubscribePattern { pattern, since, positions, policy } => {
                if let Err(error) = self.hub.subscribe_pattern(conn, &pattern, policy, self.now_ms) {
                    return self.refuse(conn, id, &error);
                }
                self.drain()?;
                self.promise(client, |name| pattern.matches(name));
                let mut reads: Vec<_> =
                    positions.iter().map(|(channel, at)| (*channel, Since::Position(*at))).collect();
                for channel in 0..self.names.len() {
                    let is_known = positions.iter().any(|(known, _)| *known == channel);
                    if let Some(since) = since.filter(|_| !is_known && pattern.matches(self.names[channel].as_str())) {
                        reads.push((channel, Since::Time(since)));
                    }
                }
                let kind = Kind::Pattern { id, pattern, time_ms: self.now_ms };
                self.start_job(conn, kind, policy, reads)?;
            }
            Command::Unsubscribe { target } => match self.hub.unsubscribe(conn, &target) {
                Ok(()) => self.reply(conn, id, Ok(json!({})))?,
                Err(error) => self.refuse(conn, id, &error)?,
            },
        }
        Ok(())
    }

    fn start_job(&mut self, conn: ConnId, kind: Kind, policy: Policy, reads: Vec<(usize, Since)>) -> Check {
        self.counts.jobs += 1;
        let job = self.counts.jobs;
        for (channel, _) in &reads {
            self.hub.watch(&self.names[*channel]);
        }
        self.drain()?;
        for (read, (channel, since)) in reads.iter().enumerate() {
            self.ask(Asker::Job { job, read }, *channel, *since, policy);
        }
        let reads = reads.into_iter().map(|(channel, since)| (channel, since, None)).collect();
        self.jobs.insert(job, Job { conn, kind, policy, reads });
        self.finish_job(job)
    }

    pub fn job_page(&mut self, job: u64, read: usize, page: Page) -> Check {
        if let Some(waiting) = self.jobs.get_mut(&job) {
            waiting.reads[read].2 = Some(page);
        }
        self.finish_job(job)
    }

    fn finish_job(&mut self, job: u64) -> Check {
        if self.jobs.get(&job).is_none_or(|job| job.reads.iter().any(|(.., page)| page.is_none())) {
            return Ok(());
        }
        let Some(Job { conn, kind, policy, reads }) = self.jobs.remove(&job) else { return Ok(()) };
        let first = |(channel, since, page): (usize, Since, Option<Page>)| {
            Some(FirstPage { channel: self.names[channel].clone(), since, page: page? })
        };
        let pages: Vec<FirstPage> = reads.into_iter().filter_map(first).collect();
        match kind {
            Kind::Stream { encoding } => self.finish_stream(conn, encoding, policy, pages),
            Kind::Named { id } => self.finish_named(conn, id, policy, pages),
            Kind::Pattern { id, pattern, time_ms } => self.finish_pattern(conn, id, &pattern, time_ms, pages),
        }
    }

    fn finish_stream(&mut self, conn: ConnId, encoding: Encoding, policy: Policy, pages: Vec<FirstPage>) -> Check {
        let many = matches!(encoding, Encoding::SseMany | Encoding::NdjsonMany);
        // A stream starts before its gap, so that a client that is cut before it receives the gap requests it again.
        let starts: Vec<_> = pages.iter().map(|first| (&first.channel, first.start())).collect();
        let list: Vec<_> =
            starts.iter().map(|(name, at)| if many { format!("{name}@{at}") } else { at.to_string() }).collect();
        let list = list.join(",");
        let mut head = format!("HTTP/1.1 200 OK\r\nMillrace-Position: {list}\r\n\r\n").into_bytes();
        match encoding {
            Encoding::Sse | Encoding::SseState | Encoding::SseMany => {
                head.extend_from_slice(format!("retry: 2000\nid: {list}\n\n").as_bytes())
            }
            Encoding::NdjsonMany => head.extend(Envelope::many(starts.into_iter()).into_line()),
            _ => {}
        }
        self.hub.send(conn, &head, &mut self.wires);
        if let Err(error) = self.hub.attach(conn, policy, &pages, &mut self.wires) {
            self.expect_gone(conn, &error)?;
        }
        self.drain().map(|_| ())
    }

    fn finish_named(&mut self, conn: ConnId, id: u64, policy: Policy, pages: Vec<FirstPage>) -> Check {
        let Some(first) = pages.into_iter().next() else { return Ok(()) };
        let name = first.channel.clone();
        if let Err(error) = self.hub.check_attach(conn, &name, 0) {
            self.hub.release(&name);
            self.drain()?;
            return self.refuse(conn, id, &error);
        }
        let (position, recovered) = (first.start().to_string(), first.page.gap.is_none());
        let ok = json!({ "channel": name.as_str(), "position": position, "recovered": recovered, "time": self.now_ms });
        self.reply(conn, id, Ok(ok))?;
        self.hub.attach(conn, policy, &[first], &mut self.wires).map_err(|error| error.to_string())?;
        self.drain().map(|_| ())
    }

    /// Sends the pages, then the reply. A client with the reply has received everything before its `time`.
    fn finish_pattern(
        &mut self,
        conn: ConnId,
        id: u64,
        pattern: &Pattern,
        time_ms: u64,
        pages: Vec<FirstPage>,
    ) -> Check {
        for first in pages {
            match self.hub.attach_matching(conn, pattern, &first, &mut self.wires) {
                Err(error) if error.code != Code::AlreadySubscribed => self.expect_gone(conn, &error)?,
                _ => {}
            }
            self.drain()?;
        }
        self.hub.attach_open_channels(conn, pattern);
        self.reply(conn, id, Ok(json!({ "channel": pattern.as_str(), "time": time_ms })))
    }

    /// Checks the only valid reason in this world to refuse a stream or a pattern: its connection or pattern no longer
    /// exists.
    fn expect_gone(&self, conn: ConnId, error: &Error) -> Check {
        let alive = self.hub.conns().any(|(other, _)| other == conn);
        if alive && error.code != Code::NotSubscribed { Err(format!("refused: {error}")) } else { Ok(()) }
    }

    fn refuse(&mut self, conn: ConnId, id: u64, error: &Error) -> Check {
        self.reply(conn, id, Err(error.clone()))
    }

    fn reply(&mut self, conn: ConnId, id: u64, result: Result<Value, Error>) -> Check {
        let mut frame = Vec::new();
        websocket::encode(&mut frame, websocket::TEXT, session::encode_reply(id, &result).as_bytes());
        self.hub.send(conn, &frame, &mut self.wires);
        self.drain().map(|_| ())
    }

    pub fn start_poll(&mut self, client: usize, reads: Vec<(usize, Since)>, many: bool, policy: Policy) -> Check<u64> {
        self.counts.polls += 1;
        let poll = self.counts.polls;
        let reads = reads.into_iter().map(|(channel, since)| (channel, since, None)).collect();
        self.polls.insert(poll, Poll { client, policy, round: 0, many, reads });
        let after = self.dice.between(50, 600);
        self.schedule(after, Event::Timeout { life: self.life, poll });
        self.poll_round(poll)?;
        Ok(poll)
    }

    /// Registers the waiter before it reads, so that no publication is missed in between.
    fn poll_round(&mut self, id: u64) -> Check {
        let Some(poll) = self.polls.get_mut(&id) else { return Ok(()) };
        poll.round += 1;
        let (round, policy) = (poll.round, poll.policy);
        poll.reads.iter_mut().for_each(|(_, _, page)| *page = None);
        let reads: Vec<_> = poll.reads.iter().map(|(channel, since, _)| (*channel, *since)).collect();
        let names: Vec<_> = reads.iter().map(|(channel, _)| self.names[*channel].clone()).collect();
        self.hub.wait(WaiterId::Task(id), &names);
        self.drain()?;
        for (read, (channel, since)) in reads.into_iter().enumerate() {
            self.ask(Asker::Poll { poll: id, round, read }, channel, since, policy);
        }
        Ok(())
    }

    pub fn wake(&mut self, waiter: WaiterId) -> Check {
        trace!(self, "wake {waiter:?}");
        match waiter {
            WaiterId::Task(id) => self.poll_round(id),
            WaiterId::Conn(id) => Err(format!("{id:?} was woken and never waited")),
        }
    }

    pub fn poll_reads(&mut self, asker: Asker, channel: usize, since: Since) {
        let Asker::Poll { poll: id, round, .. } = asker else { return };
        if let Some(poll) = self.polls.get(&id).filter(|poll| since == Since::Now && poll.round == round) {
            self.promise_now(poll.client, id, channel);
        }
    }

    pub fn poll_page(&mut self, id: u64, round: u32, read: usize, channel: usize, page: Page) -> Check {
        let Some(poll) = self.polls.get_mut(&id).filter(|poll| poll.round == round) else { return Ok(()) };
        assert_eq!(poll.reads[read].0, channel);
        poll.reads[read].2 = Some(page);
        if poll.reads.iter().any(|(_, _, page)| page.is_none()) {
            return Ok(());
        }
        let pages = poll.reads.iter().filter_map(|(_, _, page)| page.as_ref());
        // A state is complete when it has been read, even if it is empty.
        let is_inside = |since: &Since| matches!(since, Since::State | Since::StateAfter { .. });
        let reads_state = poll.reads.iter().any(|(_, since, _)| is_inside(since));
        if reads_state || pages.clone().any(|page| page.gap.is_some() || !page.publications.is_empty()) {
            return self.answer(id);
        }
        for (_, since, page) in &mut poll.reads {
            let was = *since;
            *since = match page.as_ref().map(Page::next) {
                Some(Since::Position(at)) if was.is_state() => Since::StateOr(at),
                Some(next) => next,
                None => was,
            };
        }
        Ok(())
    }

    pub fn time_out(&mut self, id: u64) -> Check {
        let is_read = |poll: &Poll| poll.reads.iter().all(|(_, _, page)| page.is_some());
        if self.polls.get(&id).is_some_and(is_read) { self.answer(id) } else { Ok(()) }
    }

    fn answer(&mut self, id: u64) -> Check {
        let Some(poll) = self.polls.remove(&id) else { return Ok(()) };
        self.hub.forget(WaiterId::Task(id));
        self.drain()?;
        let pages: Vec<_> =
            poll.reads.iter().filter_map(|(c, _, page)| Some((&self.names[*c], page.as_ref()?))).collect();
        let body = if poll.many {
            let gaps = pages.iter().filter_map(|(name, page)| Some((*name, page.gap?)));
            let messages = pages.iter().flat_map(|(name, page)| {
                page.publications.iter().map(|publication| (*name, page.end.epoch, publication))
            });
            Envelope::many(pages.iter().map(|(name, page)| (*name, page.next()))).finish(
                pages.iter().any(|(_, page)| page.has_more()),
                gaps,
                messages,
            )
        } else {
            let page = pages[0].1;
            Envelope::answer(page.next(), page.has_more(), page.gap, page.end.epoch, &page.publications)
        };
        let after = self.delay(20);
        self.schedule(after, Event::Answer { client: poll.client, poll: id, body });
        Ok(())
    }

    pub fn forget_poll(&mut self, id: u64) -> Check {
        self.polls.remove(&id);
        self.hub.forget(WaiterId::Task(id));
        self.drain().map(|_| ())
    }
}
