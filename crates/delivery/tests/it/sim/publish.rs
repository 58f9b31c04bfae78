//! Publications: what the engine is asked for, what it must answer, and their way to the hub.

use millrace_delivery::{Appended, Bounds};
use millrace_protocol::{Expected, Kind, NewPublication, Pattern, Position, Publication};

use super::{
    client::Client,
    event::Event,
    truth::Check,
    world::{World, trace},
};

impl World {
    pub(super) fn publish(&mut self, channel: usize, any: bool) -> Check {
        let at = self.truth.top(channel);
        let stamp = format!("#{:08x}:{}#", at.epoch.0, at.offset + 1);
        let bytes = self.dice.between(0, self.payload_bytes) as usize;
        let pad = "x".repeat(bytes);
        let name = &self.names[channel];
        let mut new = match self.dice.index(3) {
            0 => NewPublication::new(
                Kind::Json,
                format!("{{\"in\":\"{name}\",\n\"at\": \"{stamp}\",\r\n\"pad\":[\"{pad}\"]}}"),
            ),
            1 => NewPublication::new(Kind::Text, format!("\"{name}\"\r\n{stamp}\n\r{pad}.")),
            _ => {
                let text = [&[0xff, 0xfe, b'\n'], name.as_str().as_bytes(), stamp.as_bytes(), pad.as_bytes()].concat();
                NewPublication::new(Kind::Binary, text)
            }
        };
        new.key = self.dice.pick(&[None, Some("k1"), Some("k\"2"), Some("k3")]).map(Into::into);
        if any && self.dice.percent(15) {
            new.ttl_ms = Some(self.dice.between(1, 300));
        }
        let bounds = self.bounds(channel);
        if self.states[channel] {
            new = self.keyed(channel, new, any)?;
        }
        let is_admitted = !self.states[channel] || self.predict(channel, &new)?;
        let publication = match self.histories[channel].append(new, self.now_ms, &bounds) {
            Appended::New(publication) if is_admitted => publication,
            Appended::Refused(_) if !is_admitted => return Ok(()),
            outcome => return Err(format!("{outcome:?}, which should be admitted: {is_admitted}")),
        };
        self.hand_over(channel, publication, any);
        Ok(())
    }

    /// Makes a publication one into a state: with a key, sometimes a deletion or with a condition.
    fn keyed(&mut self, channel: usize, mut new: NewPublication, any: bool) -> Check<NewPublication> {
        let key: Box<str> = format!("k{}", self.dice.between(1, 15)).into();
        if !any || self.dice.percent(25) {
            new = NewPublication::deletion(key.clone());
        }
        let top = self.truth.top(channel);
        if any && self.dice.percent(30) {
            let current = self.truth.state(channel, top)?.get(&*key).map(|newest| newest.offset);
            let stale = Position { offset: self.dice.between(0, top.offset), ..top };
            let current = current.map_or(stale, |offset| Position { offset, ..top });
            new.expected = Some(self.dice.pick(&[Expected::Absent, Expected::At(current), Expected::At(stale)]));
        }
        new.key = Some(key);
        Ok(new)
    }

    /// Returns whether the state must admit this publication.
    fn predict(&mut self, channel: usize, new: &NewPublication) -> Check<bool> {
        let top = self.truth.top(channel);
        let state = self.truth.state(channel, top)?;
        let known = state.get(new.key.as_deref().unwrap_or_default());
        let current = known.filter(|newest| !newest.is_expired(self.now_ms)).map(|newest| newest.offset);
        let is_met = match (new.expected, current) {
            (None, _) | (Some(Expected::Absent), None) => true,
            (Some(Expected::At(at)), Some(offset)) => at == Position { offset, ..top },
            _ => false,
        };
        self.counts.conditions_met += u64::from(new.expected.is_some() && is_met);
        self.counts.conditions_failed += u64::from(!is_met);
        Ok(is_met && (known.is_some() || new.is_deletion || state.len() < self.keys_max))
    }

    /// Makes the engine delete the keys whose time to live has ended.
    pub(super) fn expire(&mut self, channel: usize) {
        let bounds = self.bounds(channel);
        while let Some(deletion) = self.histories[channel].expire(self.now_ms, &bounds) {
            self.counts.expired += 1;
            self.hand_over(channel, deletion, false);
        }
    }

    pub(super) fn bounds(&self, channel: usize) -> Bounds {
        Bounds { keys_max: if self.states[channel] { self.keys_max } else { 0 }, ..self.bounds }
    }

    /// Records a publication that the engine has accepted, and sends it to the hub.
    fn hand_over(&mut self, channel: usize, publication: Publication, any: bool) {
        let epoch = self.truth.top(channel).epoch;
        self.counts.deletions += u64::from(publication.is_deletion);
        self.truth.append(channel, &publication);
        self.counts.publications += 1;
        // A lost entry is detected by the engine, or with the next publication.
        let noticed = any && self.dice.percent(2);
        let lost = noticed || any && self.dice.percent(3) && self.may_lose(channel);
        let matches = |pattern: &Pattern| pattern.matches(self.names[channel].as_str());
        let wanted = self.interest[channel] > 0 || self.pattern_interest.iter().any(|(pattern, _)| matches(pattern));
        trace!(
            self,
            "publish {} {} {}",
            self.names[channel],
            self.truth.top(channel),
            if lost { "(lost on its way)" } else { "" }
        );
        if lost && wanted {
            self.counts.lost += 1;
        }
        if !wanted || lost && !noticed {
            return;
        }
        let at_ms = self.last_arrival_ms[channel].max(self.now_ms + self.delay(40));
        self.last_arrival_ms[channel] = at_ms;
        let (life, key) = (self.life, self.keys[channel]);
        let event = match noticed {
            true => Event::Moved { life, channel, key, from: Position { epoch, offset: publication.offset - 1 } },
            false => Event::Deliver { life, channel, key, epoch, publication },
        };
        self.schedule(at_ms - self.now_ms, event);
    }

    /// Returns whether an entry of this channel may be lost. The next entry repairs a lost one, unless the lost one
    /// would have been a pattern's first of the channel.
    fn may_lose(&self, channel: usize) -> bool {
        let is_heard =
            |client: &Client| client.has_heard(channel) || !client.wants_by_pattern(self.names[channel].as_str());
        self.clients.iter().all(is_heard)
    }

    /// Deletes the keys that would still expire, so that the state no longer changes.
    pub(super) fn settle_state(&mut self, channel: usize) -> Check {
        let state = self.truth.state(channel, self.truth.top(channel))?;
        let expiring = state.into_iter().filter(|(_, newest)| self.states[channel] && newest.expires_ms.is_some());
        let keys: Vec<Box<str>> = expiring.map(|(key, _)| key.into()).collect();
        let bounds = self.bounds(channel);
        for key in keys {
            let deleted = self.histories[channel].append(NewPublication::deletion(key), self.now_ms, &bounds);
            let Appended::New(deletion) = deleted else { return Err(format!("a deletion has {deleted:?}")) };
            self.hand_over(channel, deletion, false);
        }
        Ok(())
    }
}
