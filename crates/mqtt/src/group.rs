use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use millrace_protocol::{ChannelName, Position};

/// Maximum number of publications that a member may have been chosen for and not acknowledged. Further ones go to other
/// members.
const CHOSEN_MAX: usize = 10_000;

/// Group of a shared subscription: each publication goes to one member.
///
/// Every member reads the channels itself. The first one that sees a publication chooses the member that sends it, in
/// turns; the others look the choice up. So no publication crosses threads for a group.
#[derive(Debug, Default)]
pub struct Group(Mutex<Members>);

#[derive(Debug, Default)]
struct Members {
    members: Vec<Member>,
    next: usize,
    /// Position up to which members were chosen, per channel.
    heads: HashMap<ChannelName, Position>,
}

#[derive(Debug)]
struct Member {
    id: u64,
    /// Time of its subscription. It has not read publications from before.
    since_ms: u64,
    /// Publications for which it was chosen and that it has not acknowledged.
    chosen: BTreeSet<(ChannelName, u64)>,
    /// Publications of a member that has left, which this member must read from history.
    adopted: Vec<(ChannelName, Position)>,
}

/// Membership of a session. Dropping it leaves the group.
#[derive(Debug)]
pub struct Membership {
    group: Arc<Group>,
    id: u64,
}

impl Group {
    /// Adds a member. `id` must be unique.
    pub fn join(self: &Arc<Self>, id: u64, since_ms: u64) -> Membership {
        let member = Member { id, since_ms, chosen: BTreeSet::new(), adopted: Vec::new() };
        self.lock().members.push(member);
        Membership { group: self.clone(), id }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().members.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Membership {
    /// Records that the member reads publications after this time. Until then, it was chosen for none.
    pub fn begin(&self, since_ms: u64) {
        let mut group = self.group.lock();
        if let Some(own) = group.members.iter_mut().find(|member| member.id == self.id) {
            own.since_ms = since_ms;
        }
    }

    /// Returns true if this member sends the publication. Repeated calls return the same until [`Membership::done`].
    pub fn sends(&self, channel: &ChannelName, position: Position, time_ms: u64) -> bool {
        let mut group = self.group.lock();
        let Members { members, next, heads } = &mut *group;
        let head = heads.get(channel).copied();
        let is_new = head.is_none_or(|head| head.epoch != position.epoch || head.offset < position.offset);
        if is_new {
            heads.insert(channel.clone(), position);
            let takes = |member: &Member| member.since_ms < time_ms && member.chosen.len() < CHOSEN_MAX;
            let turn = (0..members.len()).map(|i| (*next + i) % members.len()).find(|i| takes(&members[*i]));
            let chosen = turn.or_else(|| members.iter().position(|member| member.id == self.id));
            if let Some(chosen) = chosen {
                *next = chosen + 1;
                members[chosen].chosen.insert((channel.clone(), position.offset));
            }
        }
        let own = members.iter().find(|member| member.id == self.id);
        own.is_some_and(|own| own.chosen.contains(&(channel.clone(), position.offset)))
    }

    /// Records that a publication was sent without quality of service, or acknowledged.
    pub fn done(&self, channel: &ChannelName, position: Position) {
        let mut group = self.group.lock();
        if let Some(own) = group.members.iter_mut().find(|member| member.id == self.id) {
            own.chosen.remove(&(channel.clone(), position.offset));
        }
    }

    /// Returns a publication that could not be sent yet, for [`Membership::take_adopted`].
    pub fn adopt_later(&self, channel: ChannelName, position: Position) {
        let mut group = self.group.lock();
        if let Some(own) = group.members.iter_mut().find(|member| member.id == self.id) {
            own.adopted.push((channel, position));
        }
    }

    /// Returns publications of members that have left, which this member must read from history and send.
    pub fn take_adopted(&self) -> Vec<(ChannelName, Position)> {
        let mut group = self.group.lock();
        let own = group.members.iter_mut().find(|member| member.id == self.id);
        own.map(|own| std::mem::take(&mut own.adopted)).unwrap_or_default()
    }
}

impl Drop for Membership {
    /// Leaves the group. Publications that this member has not acknowledged go to the others.
    fn drop(&mut self) {
        let mut group = self.group.lock();
        let Members { members, next, heads } = &mut *group;
        let Some(own) = members.iter().position(|member| member.id == self.id) else { return };
        let left = members.remove(own);
        if members.is_empty() {
            return heads.clear();
        }
        for (channel, offset) in left.chosen {
            let Some(head) = heads.get(&channel) else { continue };
            *next = (*next + 1) % members.len();
            let heir = &mut members[*next];
            heir.adopted.push((channel.clone(), Position { offset, ..*head }));
            heir.chosen.insert((channel, offset));
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::Epoch;

    use super::*;

    fn at(offset: u64) -> Position {
        Position { epoch: Epoch(1), offset }
    }

    #[test]
    fn each_publication_goes_to_one_member() {
        let (group, channel) = (Arc::new(Group::default()), ChannelName::parse("a").unwrap());
        let members = [group.join(1, 0), group.join(2, 0), group.join(3, 0)];
        let mut counts = [0; 3];
        for offset in 1..=9 {
            // The members see a publication at different times.
            let first = offset as usize % 3;
            let sent = [0, 1, 2].map(|i| members[(first + i) % 3].sends(&channel, at(offset), 9));
            assert_eq!(sent.iter().filter(|sent| **sent).count(), 1);
            let one = (0..3).find(|i| members[*i].sends(&channel, at(offset), 9)).unwrap();
            counts[one] += 1;
            members[one].done(&channel, at(offset));
            assert!(!members[one].sends(&channel, at(offset), 9));
        }
        assert_eq!(counts, [3; 3]);
    }

    #[test]
    fn unacknowledged_publications_of_a_member_go_to_others() {
        let (group, channel) = (Arc::new(Group::default()), ChannelName::parse("a").unwrap());
        let (one, two) = (group.join(1, 0), group.join(2, 0));
        let offsets = (1..=4).filter(|offset| one.sends(&channel, at(*offset), 9)).count();
        drop(one);
        assert_eq!(two.take_adopted().len(), offsets);
        assert!((1..=4).all(|offset| two.sends(&channel, at(offset), 9)));
        drop(two);
        assert!(group.is_empty());
    }

    #[test]
    fn new_member_gets_nothing_from_before() {
        let (group, channel) = (Arc::new(Group::default()), ChannelName::parse("a").unwrap());
        let (old, new) = (group.join(1, 0), group.join(2, 50));
        for offset in 1..=4 {
            assert!(old.sends(&channel, at(offset), 50) && !new.sends(&channel, at(offset), 50));
        }
        assert!((5..=6).any(|offset| new.sends(&channel, at(offset), 51)));
    }
}
