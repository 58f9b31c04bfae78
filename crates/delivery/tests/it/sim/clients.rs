//! Steps of clients: what they subscribe to, how they resume, and how they check what they receive.

use std::collections::BTreeMap;

use millrace_delivery::ConnId;
use millrace_protocol::{Encoding, Position, Since, session::Target};
use serde_json::Value;

use super::{
    client::{Link, LinkKind, Sub, Want},
    event::Event,
    reading::{Message, Reading, Received, answer},
    request::Command,
    truth::{At, Check},
    world::{World, trace},
};

impl World {
    pub fn connect(&mut self, index: usize) -> Check {
        let client = &mut self.clients[index];
        client.connecting = false;
        if client.link.is_some() {
            return Ok(());
        }
        let policy = client.policy;
        let channels: Vec<usize> =
            client.wants.iter().filter_map(|w| if let Want::Channel(c) = w { Some(*c) } else { None }).collect();
        let by_name = channels.len() == client.wants.len();
        let reads: Vec<_> = channels.iter().map(|c| (*c, client.since(*c))).collect();
        let reads_states = client.views.is_some();
        // A bare WebSocket carries no keys, and an empty payload for a deletion.
        let has_states = channels.iter().any(|channel| self.states[*channel]);
        let encodings = match (by_name, channels.len()) {
            (true, 1) if has_states => vec![
                None,
                Some(Encoding::Session),
                Some(if reads_states { Encoding::SseState } else { Encoding::Sse }),
                Some(Encoding::SseMany),
                Some(Encoding::Ndjson),
                Some(Encoding::NdjsonMany),
            ],
            (false, _) => vec![Some(Encoding::Session)],
            (true, 1) => vec![
                None,
                Some(Encoding::Bare),
                Some(Encoding::Session),
                Some(Encoding::Sse),
                Some(Encoding::SseMany),
                Some(Encoding::Ndjson),
                Some(Encoding::NdjsonMany),
            ],
            (true, _) => vec![None, Some(Encoding::Session), Some(Encoding::SseMany), Some(Encoding::NdjsonMany)],
        };
        let encoding = self.dice.pick(&encodings);
        // A session chooses its starts when it subscribes.
        let reads = if encoding == Some(Encoding::Session) { reads } else { self.begin_states(index, reads) };
        trace!(self, "client {index} connects by {encoding:?} from {reads:?}");
        let wants = self.clients[index].wants.len();
        let link = |kind, sub| Link {
            kind,
            is_session: encoding == Some(Encoding::Session),
            subscribed: vec![sub; wants],
            asked: BTreeMap::new(),
            next_id: 1,
            promised: BTreeMap::new(),
        };
        match encoding {
            None => {
                let many = channels.len() > 1 || self.dice.percent(30);
                let poll = self.start_poll(index, reads, many, policy)?;
                self.clients[index].link = Some(link(LinkKind::Poll(poll), Sub::On));
            }
            Some(Encoding::Session) => {
                let conn = self.open_session(index)?;
                let kind = LinkKind::Conn(conn, Reading::new(Encoding::Session));
                self.clients[index].link = Some(link(kind, Sub::Off));
                (0..wants).for_each(|want| self.subscribe(index, want));
                if self.rough && self.dice.percent(50) {
                    let after = self.dice.between(10, 400);
                    self.schedule(after, Event::Act { client: index });
                }
            }
            Some(encoding) => {
                let conn = self.open_stream(index, encoding, reads, policy)?;
                self.clients[index].link = Some(link(LinkKind::Conn(conn, Reading::new(encoding)), Sub::On));
            }
        }
        if self.rough && self.dice.percent(60) {
            let after = self.dice.between(1, 800);
            self.schedule(after, Event::Cut { client: index });
        }
        Ok(())
    }

    /// Records that this client must not lose any later publication on these channels.
    pub fn promise(&mut self, index: usize, of: impl Fn(&str) -> bool) {
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return };
        for (channel, name) in self.names.iter().enumerate() {
            if of(name.as_str()) && !client.heard.contains_key(&channel) {
                link.promised.entry(channel).or_insert(self.truth.top(channel));
            }
        }
    }

    /// Records the start of a poll without `since`: the moment at which its history is read. A poll that was cut makes
    /// no promise to the next one.
    pub fn promise_now(&mut self, index: usize, poll: u64, channel: usize) {
        let is_it = |link: &&mut Link| matches!(link.kind, LinkKind::Poll(id) if id == poll);
        if let Some(link) = self.clients[index].link.as_mut().filter(is_it) {
            link.promised.insert(channel, self.truth.top(channel));
        }
    }

    /// Replaces the starts of a client that reads states, each by one from which it may continue.
    fn begin_states(&mut self, index: usize, reads: Vec<(usize, Since)>) -> Vec<(usize, Since)> {
        let Self { clients, dice, truth, .. } = self;
        let Some(views) = &mut clients[index].views else { return reads };
        let begin = |(channel, _): (usize, Since)| {
            let view = views.get_mut(&channel).expect("a client has a view of each channel that it reads");
            let starts = view.starts();
            let since = starts[dice.index(starts.len())];
            view.begin(since, truth.top(channel));
            (channel, since)
        };
        reads.into_iter().map(begin).collect()
    }

    fn subscribe(&mut self, index: usize, want: usize) {
        if let Want::Channel(channel) = self.clients[index].wants[want]
            && self.clients[index].views.is_some()
        {
            let (since, policy) =
                (self.begin_states(index, vec![(channel, Since::Now)])[0].1, self.clients[index].policy);
            return self.send(index, want, Sub::Asked, Command::Subscribe { channel, since, policy }, None);
        }
        let client = &self.clients[index];
        let policy = client.policy;
        let (command, floor) = match &client.wants[want] {
            Want::Channel(channel) => {
                let since = client.since(*channel);
                let floor = (since == Since::Now).then(|| self.truth.top(*channel));
                (Command::Subscribe { channel: *channel, since, policy }, floor)
            }
            Want::Pattern(pattern) => {
                let known = client
                    .heard
                    .iter()
                    .filter_map(|(c, at)| if let At::Known(at) = at { Some((*c, *at)) } else { None });
                let positions = known.filter(|(c, _)| pattern.matches(self.names[*c].as_str())).collect();
                let since = client.time();
                (Command::SubscribePattern { pattern: pattern.clone(), since, positions, policy }, None)
            }
        };
        self.send(index, want, Sub::Asked, command, floor);
    }

    fn send(&mut self, index: usize, want: usize, sub: Sub, command: Command, floor: Option<Position>) {
        let Some(link) = &mut self.clients[index].link else { return };
        let LinkKind::Conn(conn, ..) = link.kind else { return };
        link.subscribed[want] = sub;
        let id = link.next_id;
        link.next_id += 1;
        link.asked.insert(id, (want, floor));
        let after = self.delay(10);
        self.schedule(after, Event::Command { life: self.life, client: index, conn, id, command });
    }

    /// Makes a session unsubscribe one of its wants, or subscribe to it again.
    pub fn act(&mut self, index: usize) {
        let client = &self.clients[index];
        let Some(link) = client.link.as_ref().filter(|link| link.is_session) else { return };
        let off: Vec<_> = (0..client.wants.len()).filter(|want| link.subscribed[*want] == Sub::Off).collect();
        if !off.is_empty() {
            off.into_iter().for_each(|want| self.subscribe(index, want));
        } else if self.rough && link.subscribed.iter().all(|sub| *sub == Sub::On) {
            let want = self.dice.index(client.wants.len());
            let target = match &self.clients[index].wants[want] {
                Want::Channel(channel) => Target::Channel(self.names[*channel].clone()),
                Want::Pattern(pattern) => Target::Pattern(pattern.clone()),
            };
            trace!(self, "client {index} leaves {target:?}");
            self.counts.leaves += 1;
            self.send(index, want, Sub::Leaving, Command::Unsubscribe { target }, None);
        }
    }

    /// Breaks the link. Bytes in flight are lost, and the server learns of the cut some time later.
    pub fn cut(&mut self, index: usize) {
        let Some(link) = self.clients[index].link.take() else { return };
        trace!(self, "client {index} is cut");
        self.counts.cuts += 1;
        let life = self.life;
        let after = self.delay(200);
        match link.kind {
            LinkKind::Conn(conn, ..) => {
                self.wires.cut(conn);
                self.schedule(after, Event::Disconnect { life, conn });
            }
            LinkKind::Poll(poll) => self.schedule(after, Event::Forget { life, poll }),
        }
        self.come_back(index);
    }

    fn come_back(&mut self, index: usize) {
        self.clients[index].link = None;
        if !self.clients[index].connecting {
            self.clients[index].connecting = true;
            let after = self.dice.between(0, 100);
            self.schedule(after, Event::Connect { client: index });
        }
    }

    /// Disconnects the client for good.
    pub fn hang_up(&mut self, index: usize) -> Check {
        match self.clients[index].link.take().map(|link| link.kind) {
            Some(LinkKind::Conn(conn, ..)) => {
                self.hub.disconnect(conn);
            }
            Some(LinkKind::Poll(poll)) => self.forget_poll(poll)?,
            None => {}
        }
        Ok(())
    }

    pub fn receive(&mut self, conn: ConnId) -> Check {
        let Some(index) = self.wires.client(conn) else { return Ok(()) };
        let part = !self.rough || self.dice.percent(70);
        let dice = &mut self.dice;
        let (bytes, end) =
            self.wires.receive(conn, |len| if part { len } else { dice.between(0, len as u64) as usize });
        let mine = |link: &Link| matches!(link.kind, LinkKind::Conn(other, ..) if other == conn);
        if !self.clients[index].link.as_ref().is_some_and(mine) {
            return Ok(());
        }
        let mut all = Vec::new();
        if let Some(Link { kind: LinkKind::Conn(_, reading), .. }) = &mut self.clients[index].link {
            let fed = reading.feed(&bytes, |heard| {
                all.push(heard);
                Ok(())
            });
            fed.map_err(|why| format!("client {index}: {why}"))?;
        }
        for heard in all {
            self.handle(index, heard).map_err(|why| format!("client {index}: {why}"))?;
        }
        if end {
            self.wires.forget(conn);
            self.come_back(index);
        }
        self.drain().map(|_| ())
    }

    pub fn answered(&mut self, index: usize, poll: u64, body: &[u8]) -> Check {
        let mine = |link: &Link| matches!(link.kind, LinkKind::Poll(other) if other == poll);
        if !self.clients[index].link.as_ref().is_some_and(mine) {
            return Ok(());
        }
        answer(body, |heard| self.handle(index, heard))
            .map_err(|why| format!("client {index}: {why} in {:.300}", String::from_utf8_lossy(body)))?;
        self.come_back(index);
        Ok(())
    }

    fn handle(&mut self, index: usize, heard: Received) -> Check {
        match heard {
            Received::Nothing => {}
            Received::Ping => self.pong(index),
            Received::Reply { id, result } => self.receive_reply(index, id, result)?,
            Received::Message(message) => self.receive_message(index, &message)?,
            Received::Gap { channel, from, to } => {
                let channel = self.expected(index, channel.as_deref())?;
                trace!(self, "client {index} hears of a gap in {} from {from:?} to {to}", self.names[channel]);
                self.counts.gaps += 1;
                if let Some(view) = self.clients[index].views.as_mut().and_then(|views| views.get_mut(&channel)) {
                    self.counts.restarts_of_states += 1;
                    let from = from.ok_or("a gap without its start")?;
                    return view.hear_gap(&self.truth, channel, (from, to), self.now_ms);
                }
                let at = self.stands(index, channel)?;
                let at = self.truth.hear_gap(channel, at, self.clients[index].policy, from, to, self.now_ms)?;
                self.clients[index].heard.insert(channel, at);
            }
            Received::StateEnd { channel, position } => {
                let channel = self.expected(index, channel.as_deref())?;
                trace!(self, "client {index} has the state of {} as of {position}", self.names[channel]);
                self.counts.states += 1;
                let view = self.clients[index].views.as_mut().and_then(|views| views.get_mut(&channel));
                let view = view.ok_or("the end of a state came to a reader of the log")?;
                view.hear_end(&self.truth, channel, position, self.now_ms)?;
            }
            Received::Positions(list) => {
                for (name, at) in list {
                    self.hear_position(index, name.as_deref(), at, false)?;
                }
            }
            Received::Ends(list) => {
                for (name, at) in list {
                    self.hear_position(index, name.as_deref(), at, true)?;
                }
            }
        }
        Ok(())
    }

    fn pong(&mut self, index: usize) {
        let Some(Link { kind: LinkKind::Conn(conn, ..), .. }) = &self.clients[index].link else { return };
        let conn = *conn;
        self.counts.pings += 1;
        let after = self.delay(10);
        self.schedule(after, Event::Received { life: self.life, conn });
    }

    fn receive_message(&mut self, index: usize, message: &Message) -> Check {
        let channel = self.expected(index, message.channel.as_deref())?;
        let position = message.position.map_or_else(|| message.stamp(), Ok)?;
        trace!(self, "client {index} hears {} {position}", self.names[channel]);
        if !message.is(self.truth.publication(channel, position)?) {
            return Err(format!("not what was published at {position}: {message:?}"));
        }
        let (truth, policy) = (&self.truth, self.clients[index].policy);
        if let Some(view) = self.clients[index].views.as_mut().and_then(|views| views.get_mut(&channel)) {
            let publication = truth.publication(channel, position)?;
            self.counts.messages += 1;
            return view.hear_message(truth, channel, policy, publication, (position, message.place), self.now_ms);
        }
        let at = self.stands(index, channel)?;
        let at = self.truth.receive_message(channel, at, policy, position, self.now_ms)?;
        self.clients[index].heard.insert(channel, at);
        self.counts.messages += 1;
        Ok(())
    }

    /// Handles the start position of a stream or the end position of an answer. A client with a known position keeps
    /// it, because a gap may follow.
    fn hear_position(&mut self, index: usize, name: Option<&str>, to: Since, is_answer: bool) -> Check {
        let channel = self.expected(index, name)?;
        let policy = self.clients[index].policy;
        if let Some(view) = self.clients[index].views.as_mut().and_then(|views| views.get_mut(&channel)) {
            return view.hear_position(&self.truth, channel, policy, to, is_answer, self.now_ms);
        }
        let Since::Position(to) = to else { return Err(format!("{to} came to a reader of the log")) };
        let at = match self.stands(index, channel) {
            Ok(at) => self.truth.hear_position(channel, at, self.clients[index].policy, to, self.now_ms)?,
            Err(_) => At::Known(to),
        };
        self.clients[index].heard.insert(channel, at);
        Ok(())
    }

    fn receive_reply(&mut self, index: usize, id: u64, result: Result<Value, String>) -> Check {
        let Some(link) = &mut self.clients[index].link else { return Ok(()) };
        let Some((want, floor)) = link.asked.remove(&id) else {
            return Err(format!("a reply to {id}, but no command has this id"));
        };
        trace!(self, "client {index} hears the reply {result:?}");
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return Ok(()) };
        if link.subscribed[want] == Sub::Leaving {
            result?;
            link.subscribed[want] = Sub::Off;
            let after = self.dice.between(0, 200);
            self.schedule(after, Event::Act { client: index });
            return Ok(());
        }
        let by_pattern = matches!(&client.wants[want], Want::Channel(c) if client.wants.iter().any(|other| {
            matches!(other, Want::Pattern(pattern) if pattern.matches(self.names[*c].as_str()))
        }));
        let ok = match result {
            Err(code) if code == "already_subscribed" && by_pattern => {
                link.subscribed[want] = Sub::Off;
                return Ok(());
            }
            result => result?,
        };
        link.subscribed[want] = Sub::On;
        if client.views.is_some() {
            return Ok(());
        }
        match &client.wants[want] {
            Want::Channel(channel) => {
                let position: Position = ok["position"].as_str().unwrap_or("").parse().map_err(|e| format!("{e}"))?;
                let is_known = matches!(client.heard.get(channel), Some(At::Known(_)));
                if let Some(floor) = floor.filter(|_| !is_known) {
                    if !self.truth.is_up_to(*channel, floor, position)? {
                        return Err(format!(
                            "requested publications after {floor}, but the subscription starts at {position}"
                        ));
                    }
                    link.promised.remove(channel);
                    client.heard.insert(*channel, At::Known(position));
                }
            }
            Want::Pattern(pattern) => {
                client.times[want] = ok["time"].as_u64();
                for (channel, at) in std::mem::take(&mut link.promised) {
                    if pattern.matches(self.names[channel].as_str()) {
                        client.heard.entry(channel).or_insert(At::AtMost(at));
                    } else {
                        link.promised.insert(channel, at);
                    }
                }
            }
        }
        Ok(())
    }

    fn stands(&self, index: usize, channel: usize) -> Check<At> {
        let at = self.clients[index].stands(channel);
        at.ok_or_else(|| format!("a message of {} before its start was told", self.names[channel]))
    }

    /// Returns the named channel, or the only one. Errors: the client does not read that channel now.
    fn expected(&self, index: usize, name: Option<&str>) -> Check<usize> {
        let client = &self.clients[index];
        let channel = match (name, client.wants.as_slice()) {
            (Some(name), _) => self.channel(name)?,
            (None, [Want::Channel(channel)]) => *channel,
            (None, _) => return Err("a message that does not name its channel".into()),
        };
        if !client.expects(channel, &self.names[channel]) {
            return Err(format!("a message of {}, which it does not read", self.names[channel]));
        }
        Ok(channel)
    }
}
