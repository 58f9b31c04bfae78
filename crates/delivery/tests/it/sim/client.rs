//! State of one client: its subscriptions, the position of each channel, and what it expects.

use std::collections::BTreeMap;

use millrace_delivery::ConnId;
use millrace_protocol::{ChannelName, Pattern, Position, Since, session::Policy};

use super::{
    reading::Reading,
    truth::{At, Check},
    view::View,
};

#[derive(Clone, PartialEq, Debug)]
pub enum Want {
    Channel(usize),
    Pattern(Pattern),
}

pub struct Client {
    pub wants: Vec<Want>,
    pub policy: Policy,
    /// Position of each channel, by channel; survives every cut.
    pub heard: BTreeMap<usize, At>,
    /// The `time` of the last reply to each pattern, by want.
    pub times: Vec<Option<u64>>,
    /// The map of each channel, by channel, if the client reads states; `None` if it reads logs.
    pub views: Option<BTreeMap<usize, View>>,
    pub link: Option<Link>,
    pub connecting: bool,
}

pub struct Link {
    pub kind: LinkKind,
    pub is_session: bool,
    /// Subscription state, by want. Streams and polls are subscribed from the start.
    pub subscribed: Vec<Sub>,
    /// Commands without a reply: the want, and for `since=now` the channel's position when the command was sent.
    pub asked: BTreeMap<u64, (usize, Option<Position>)>,
    pub next_id: u64,
    /// Position after which this link promises everything, for channels of which nothing was received yet, by channel.
    pub promised: BTreeMap<usize, Position>,
}

pub enum LinkKind {
    Conn(ConnId, Reading),
    Poll(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sub {
    Off,
    Asked,
    On,
    Leaving,
}

impl Client {
    pub fn new(wants: Vec<Want>, policy: Policy, reads_states: bool) -> Self {
        let times = vec![None; wants.len()];
        let channel =
            |want: &Want| if let Want::Channel(channel) = want { Some((*channel, View::new())) } else { None };
        let views = reads_states.then(|| wants.iter().filter_map(channel).collect());
        Self { wants, policy, heard: BTreeMap::new(), times, views, link: None, connecting: true }
    }

    pub fn has_heard(&self, channel: usize) -> bool {
        let promised = self.link.as_ref().is_some_and(|link| link.promised.contains_key(&channel));
        !promised && matches!(self.heard.get(&channel), Some(At::Known(_)))
    }

    pub fn wants_by_pattern(&self, name: &str) -> bool {
        self.wants.iter().any(|want| matches!(want, Want::Pattern(pattern) if pattern.matches(name)))
    }

    pub fn covers(&self, index: usize, channel: usize, name: &ChannelName) -> bool {
        match &self.wants[index] {
            Want::Channel(wanted) => *wanted == channel,
            Want::Pattern(pattern) => pattern.matches(name.as_str()),
        }
    }

    /// Returns whether the client expects messages of this channel now.
    pub fn expects(&self, channel: usize, name: &ChannelName) -> bool {
        let Some(link) = &self.link else { return false };
        (0..self.wants.len()).any(|i| link.subscribed[i] != Sub::Off && self.covers(i, channel, name))
    }

    pub fn check_end(&self, channel: usize, name: &ChannelName, top: Position) -> Check {
        if !(0..self.wants.len()).any(|i| self.covers(i, channel, name)) {
            return Ok(());
        }
        match self.stands(channel) {
            Some(At::Known(at) | At::AtMost(at)) if at == top => Ok(()),
            at => Err(format!("stands at {at:?} of {name}, whose top is {top}")),
        }
    }

    pub fn stands(&self, channel: usize) -> Option<At> {
        let promised = self.link.as_ref().and_then(|link| link.promised.get(&channel));
        self.heard.get(&channel).copied().or(promised.map(|at| At::AtMost(*at)))
    }

    pub fn since(&self, channel: usize) -> Since {
        match self.heard.get(&channel) {
            Some(At::Known(at)) => Since::Position(*at),
            Some(At::AtMost(_)) => self.time().map_or(Since::Now, Since::Time),
            None => Since::Now,
        }
    }

    /// Returns the time from which the patterns promise every publication. Of overlapping subscriptions, the first one
    /// attached decides where a channel starts.
    pub fn time(&self) -> Option<u64> {
        self.times.iter().flatten().min().copied()
    }
}
