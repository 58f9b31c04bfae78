//! Checks that every client received all messages. Compares the received messages with the publishers'
//! acknowledgments. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

/// `epoch:offset`
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub epoch: String,
    pub offset: u64,
}

/// Identity of a publication: its publisher and a sequence number. The number increases with publication order and is
/// used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub publisher: u32,
    pub number: u32,
}

/// Item that a client with positions received on a channel.
#[derive(Clone, Debug)]
pub enum ReceivedItem {
    Message(Position, Id),
    Gap(Position, Position),
}

/// Messages of one bare WebSocket connection. `after` is set if the client requested messages after a position.
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub after: Option<Position>,
    pub ids: Vec<Id>,
}

/// Results of one channel: the messages of each client, and the end of the channel.
#[derive(Debug, Default)]
pub struct Channel {
    /// Acknowledgments that publishers received.
    pub acknowledged: Vec<(Position, Id)>,
    /// Items by client name. Each client has read from the beginning.
    pub clients: Vec<(String, Vec<ReceivedItem>)>,
    pub bare: Vec<(String, Vec<Run>)>,
    /// Newest position at the end of the test.
    pub top: Option<Position>,
}

/// Returns all errors of a channel. The list is empty if every client received every message once and in order.
///
/// With `history_lost`, the engine lost its data at least once. Then a gap is correct if it starts exactly at the
/// client's position and ends at the beginning of another epoch. A publication that was not acknowledged before the
/// loss may be repeated in the next epoch.
///
/// Without `history_lost`, no gap is correct. All epochs then belong to one log, so an offset identifies one
/// publication whatever the epoch is called.
pub fn judge(name: &str, channel: &Channel, history_lost: bool) -> Vec<String> {
    let channel = &channel.placed(history_lost);
    let mut wrong = Wrong { channel: name, found: Vec::new() };
    let mut log: HashMap<&Position, Id> = HashMap::new();
    let heard = channel.clients.iter().flat_map(|(_, heard)| heard).filter_map(|heard| match heard {
        ReceivedItem::Message(position, id) => Some((position, *id)),
        ReceivedItem::Gap(..) => None,
    });
    for (position, id) in heard.chain(channel.acknowledged.iter().map(|(position, id)| (position, *id))) {
        if *log.entry(position).or_insert(id) != id {
            wrong.add("a position", format!("{position} is {id} and {}", log[position]));
        }
    }
    judge_answers(channel, &mut wrong);
    for (client, heard) in &channel.clients {
        judge_client(client, heard, channel, history_lost, &mut wrong);
    }
    let mut positions: HashMap<Id, Vec<&Position>> = HashMap::new();
    for (position, id) in &log {
        positions.entry(*id).or_default().push(position);
    }
    for (client, runs) in &channel.bare {
        runs.iter().for_each(|run| judge_run(client, run, &positions, &mut wrong));
    }
    wrong.found
}

impl Channel {
    fn placed(&self, history_lost: bool) -> Self {
        let place = |position: &Position| position.place(history_lost);
        let heard = |heard: &ReceivedItem| match heard {
            ReceivedItem::Message(position, id) => ReceivedItem::Message(place(position), *id),
            ReceivedItem::Gap(from, to) => ReceivedItem::Gap(place(from), place(to)),
        };
        let run = |run: &Run| Run { after: run.after.as_ref().map(place), ids: run.ids.clone() };
        Self {
            acknowledged: self.acknowledged.iter().map(|(position, id)| (place(position), *id)).collect(),
            clients: self.clients.iter().map(|(name, all)| (name.clone(), all.iter().map(heard).collect())).collect(),
            bare: self.bare.iter().map(|(name, runs)| (name.clone(), runs.iter().map(run).collect())).collect(),
            top: self.top.as_ref().map(place),
        }
    }
}

/// Checks that no publication was acknowledged twice and no position was assigned twice.
fn judge_answers(channel: &Channel, wrong: &mut Wrong) {
    let (mut ids, mut positions) = (BTreeSet::new(), BTreeSet::new());
    for (position, id) in &channel.acknowledged {
        if !ids.insert(id) {
            wrong.add("the publisher", format!("{id} was acknowledged twice"));
        }
        if !positions.insert(position) {
            wrong.add("the publisher", format!("{position} was given twice"));
        }
    }
}

fn judge_client(client: &str, heard: &[ReceivedItem], channel: &Channel, history_lost: bool, wrong: &mut Wrong) {
    let acknowledged: HashMap<Id, &Position> =
        channel.acknowledged.iter().map(|(position, id)| (*id, position)).collect();
    let mut at: Option<Position> = None;
    let mut newest: BTreeMap<u32, (u32, String)> = BTreeMap::new();
    let mut got: BTreeSet<Position> = BTreeSet::new();
    for heard in heard {
        match heard {
            ReceivedItem::Message(position, id) => {
                let follows = match &at {
                    None => position.offset == 1,
                    Some(at) => position.epoch == at.epoch && position.offset == at.offset + 1,
                };
                if !follows {
                    let from = at.as_ref().map_or("the beginning".into(), ToString::to_string);
                    wrong.add(client, format!("{position} came after {from}"));
                }
                // Messages follow the publisher's order. A publication without acknowledgment before its epoch was
                // lost is repeated in the next epoch.
                let last = newest.insert(id.publisher, (id.number, position.epoch.clone()));
                if let Some((number, epoch)) = last {
                    let unanswered = acknowledged.get(id).is_none_or(|position| position.epoch != epoch);
                    let again = history_lost && epoch != position.epoch && id.number == number && unanswered;
                    if id.number <= number && !again {
                        wrong.add(client, format!("{id} at {position} came after {}.{number}", id.publisher));
                    }
                }
                got.insert(position.clone());
                at = Some(position.clone());
            }
            ReceivedItem::Gap(from, to) => {
                let named = at.as_ref().map_or(from.offset == 0, |at| at == from);
                let lost = history_lost && from.epoch != to.epoch && to.offset == 0;
                if !named || !lost {
                    let at = at.as_ref().map_or("the beginning".into(), ToString::to_string);
                    wrong.add(client, format!("at {at} it was told a gap from {from} to {to}"));
                }
                at = Some(to.clone());
            }
        }
    }
    if at != channel.top && !(at.as_ref().is_none_or(|at| at.offset == 0) && channel.top.is_none()) {
        wrong.add(client, format!("it ended at {at:?}, the channel at {:?}", channel.top));
    }
    let gaps: Vec<&Position> = heard
        .iter()
        .filter_map(|heard| match heard {
            ReceivedItem::Gap(from, _) => Some(from),
            ReceivedItem::Message(..) => None,
        })
        .collect();
    for (position, id) in &channel.acknowledged {
        // Messages covered by a gap, and epochs that began and ended while the client was disconnected.
        let excused = || {
            let named = gaps.iter().any(|from| from.epoch == position.epoch && from.offset < position.offset);
            let unseen = || got.iter().all(|got| got.epoch != position.epoch) && !gaps.is_empty();
            history_lost && (named || unseen())
        };
        if !got.contains(position) && !excused() {
            wrong.add(client, format!("{id} was acknowledged as {position} and never came"));
        }
    }
}

/// Checks that the messages of one connection form one contiguous range of the log.
fn judge_run(client: &str, run: &Run, positions: &HashMap<Id, Vec<&Position>>, wrong: &mut Wrong) {
    let mut at: Vec<&Position> = Vec::new();
    for (i, id) in run.ids.iter().enumerate() {
        let mut next = positions.get(id).cloned().unwrap_or_default();
        let follows =
            |position: &&Position, last: &Position| position.epoch == last.epoch && position.offset == last.offset + 1;
        match (i, &run.after) {
            (0, None) => {}
            (0, Some(after)) => next.retain(|position| follows(position, after)),
            _ => next.retain(|position| at.iter().any(|last| follows(position, last))),
        }
        if next.is_empty() {
            wrong.add(client, format!("message {i} of a connection, {id}, does not follow what came before"));
            return;
        }
        at = next;
    }
}

struct Wrong<'a> {
    channel: &'a str,
    found: Vec<String>,
}

impl Wrong<'_> {
    fn add(&mut self, who: &str, what: String) {
        self.found.push(format!("{}: {who}: {what}", self.channel));
    }
}

impl Position {
    /// Returns the position for comparison. Without a loss the epoch is ignored, because an offset alone identifies a
    /// publication.
    pub fn place(&self, history_lost: bool) -> Self {
        let epoch = if history_lost { self.epoch.clone() } else { String::new() };
        Self { epoch, offset: self.offset }
    }

    /// Parses a position.
    ///
    /// Panics if the text is not a position.
    pub fn parse(text: &str) -> Self {
        let (epoch, offset) = text.rsplit_once(':').unwrap_or_else(|| panic!("not a position: {text}"));
        Self { epoch: epoch.to_owned(), offset: offset.parse().unwrap_or_else(|_| panic!("not a position: {text}")) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.offset)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.publisher, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses items: `a:1=1.1` is a message, `a:1>b:0` a gap.
    fn heard(text: &str) -> Vec<ReceivedItem> {
        let one = |word: &str| match word.split_once('>') {
            Some((from, to)) => ReceivedItem::Gap(Position::parse(from), Position::parse(to)),
            None => ReceivedItem::Message(entry(word).0, entry(word).1),
        };
        text.split_whitespace().map(one).collect()
    }

    fn entry(word: &str) -> (Position, Id) {
        let (position, id) = word.split_once('=').expect("POSITION=ID");
        (Position::parse(position), self::id(id))
    }

    fn id(text: &str) -> Id {
        let (publisher, number) = text.split_once('.').expect("PUBLISHER.NUMBER");
        Id { publisher: publisher.parse().expect("a number"), number: number.parse().expect("a number") }
    }

    /// Returns the errors for the given acknowledgments and the items that one client received (`said`).
    fn verdict(acknowledged: &str, said: &str, top: &str, history_lost: bool) -> Vec<String> {
        let channel = Channel {
            acknowledged: acknowledged.split_whitespace().map(entry).collect(),
            clients: vec![("client".into(), heard(said))],
            bare: Vec::new(),
            top: Some(Position::parse(top)),
        };
        judge("channel", &channel, history_lost)
    }

    const ACKNOWLEDGED: &str = "a:1=1.1 a:2=2.1 a:3=1.2";

    #[test]
    fn judge_accepts_each_message_once_in_order() {
        assert_eq!(verdict(ACKNOWLEDGED, ACKNOWLEDGED, "a:3", false), [""; 0]);
        // A restart without data loss starts another epoch of the same log.
        assert_eq!(verdict("a:1=1.1 a:2=2.1 b:3=1.2", "a:1=1.1 b:2=2.1 b:3=1.2", "b:3", false), [""; 0]);
        // The acknowledgment was lost, but the publication is in the log.
        assert_eq!(verdict("a:1=1.1 a:3=1.2", ACKNOWLEDGED, "a:3", false), [""; 0]);
        assert_eq!(verdict(ACKNOWLEDGED, "a:1=1.1 a:2=2.1 a:2>b:0 b:1=1.3", "b:1", true), [""; 0]);
        // The acknowledgment was lost with the epoch, so the publication is repeated.
        assert_eq!(verdict("a:1=1.1 b:1=1.2", "a:1=1.1 a:2=1.2 a:2>b:0 b:1=1.2", "b:1", true), [""; 0]);
    }

    #[test]
    fn judge_reports_every_deviation() {
        for (said, top, why) in [
            ("a:1=1.1 a:2=2.1", "a:3", "the end is missing"),
            ("a:1=1.1 a:3=1.2", "a:3", "a hole"),
            ("a:2=2.1 a:3=1.2", "a:3", "the beginning is missing"),
            ("a:1=1.1 a:2=2.1 a:2=2.1 a:3=1.2", "a:3", "twice at one position"),
            ("a:1=1.1 a:2=2.1 a:3=1.2 a:4=1.2", "a:4", "twice at two positions"),
            ("a:2=2.1 a:1=1.1 a:3=1.2", "a:3", "out of order"),
            ("a:1=1.1 a:2=2.1 a:3=1.9", "a:3", "another payload"),
            ("a:1=1.1 a:2=2.1 a:3=1.2 a:4=1.4 a:5=1.3", "a:5", "a publisher's order is broken"),
            ("a:1=1.1 a:1>a:2 a:3=1.2", "a:3", "a gap, though nothing was lost"),
            ("a:1=1.1 a:2=2.1 a:3=1.2 b:1=1.3", "b:1", "another epoch without a word"),
            ("a:1=1.1 a:2=2.1 b:2=2.1 b:3=1.2", "b:3", "once more in another epoch"),
            ("a:1=1.1 b:3=1.2", "b:3", "a hole between two epochs"),
            ("", "a:3", "nothing came"),
        ] {
            assert!(!verdict(ACKNOWLEDGED, said, top, false).is_empty(), "{why}");
        }
    }

    #[test]
    fn gap_must_name_exactly_the_missing_messages() {
        for (said, top, why) in [
            ("a:1=1.1 a:2>b:0 b:1=1.3", "b:1", "it begins too late"),
            ("a:1=1.1 a:2=2.1 a:1>b:0 b:1=1.3", "b:1", "it begins too early"),
            ("a:1=1.1 a:2=2.1 a:2>b:1 b:2=1.4", "b:2", "it goes on too far"),
            ("a:1=1.1 a:2=2.1 b:1=1.3", "b:1", "it is missing"),
            ("a:1=1.1 a:2=2.1 a:2>b:0 b:1=1.1", "b:1", "an acknowledged publication came again"),
        ] {
            assert!(!verdict(ACKNOWLEDGED, said, top, true).is_empty(), "{why}");
        }
        assert!(!verdict("a:1=1.1 a:1=1.2", "a:1=1.1", "a:1", true).is_empty(), "a position was given twice");
    }

    #[test]
    fn bare_connection_receives_one_range_of_the_log() {
        let verdict = |after: Option<&str>, ids: &str| {
            let run = Run { after: after.map(Position::parse), ids: ids.split_whitespace().map(id).collect() };
            let channel = Channel {
                acknowledged: ACKNOWLEDGED.split_whitespace().map(entry).collect(),
                clients: vec![("client".into(), heard(ACKNOWLEDGED))],
                bare: vec![("bare".into(), vec![run])],
                top: Some(Position::parse("a:3")),
            };
            judge("channel", &channel, false)
        };
        for (after, ids) in [(None, ""), (None, "2.1 1.2"), (Some("a:1"), "2.1 1.2"), (Some("a:0"), "1.1")] {
            assert_eq!(verdict(after, ids), [""; 0]);
        }
        for (after, ids) in
            [(None, "1.1 1.2"), (None, "2.1 1.1"), (Some("a:1"), "1.2"), (None, "1.1 1.1"), (None, "7.7")]
        {
            assert!(!verdict(after, ids).is_empty(), "{after:?} {ids}");
        }
    }
}
