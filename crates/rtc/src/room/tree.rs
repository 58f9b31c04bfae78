//! Who is whose child. Only those who have come, or whose parent has gone, get another parent: nobody else's way is touched.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use super::{ParticipantId as Id, Role};

/// What a participant has measured of its own link.
pub struct Quality {
    pub uplink_kbps: f64,
    pub rtt_ms: f64,
}

pub struct Tree {
    children_max: usize,
    root: Option<Id>,
    /// Of everybody but the root.
    parents: BTreeMap<Id, Id>,
}

impl Tree {
    pub fn new(children_max: usize) -> Self {
        Self { children_max: children_max.max(1), root: None, parents: BTreeMap::new() }
    }

    pub fn parents(&self) -> impl Iterator<Item = (&Id, &Id)> {
        self.parents.iter()
    }

    /// Takes out who has gone, and gives a parent to whoever has none.
    ///
    /// Shape: afterwards everybody but one root has a parent, from everybody the parents lead to the root, and nobody has more than
    /// `children_max` children. Cost: O(n²) of those who need a parent times those who are there.
    pub fn settle<'a>(&mut self, all: impl Iterator<Item = (&'a Id, Role)>, quality: impl Fn(&Id) -> Quality) {
        let all: BTreeMap<&Id, Role> = all.collect();
        self.parents.retain(|id, parent| all.contains_key(id) && all.contains_key(parent));
        if self.root.as_ref().is_none_or(|root| !all.contains_key(root)) {
            self.root = self.next_root(&all, &quality);
            if let Some(root) = &self.root {
                self.parents.remove(root);
            }
        }
        let Some(root) = self.root.clone() else { return };
        // Everybody below the root, with how far that is. Whoever is placed brings its own children along.
        let mut depths = BTreeMap::from([(root.clone(), 0)]);
        self.descend(&root, &mut depths);
        let orphans: Vec<Id> =
            all.keys().filter(|id| **id != &root && !self.parents.contains_key(**id)).map(|id| (*id).clone()).collect();
        for orphan in orphans {
            let has_place = |id: &&Id| self.children(id).count() < self.children_max;
            let parent = depths.keys().filter(has_place).min_by(|a, b| {
                let depth = depths[*a].cmp(&depths[*b]);
                depth.then_with(|| better(&quality(a), &quality(b))).then_with(|| a.cmp(b))
            });
            let parent = parent.expect("a tree ends in those without children").clone();
            depths.insert(orphan.clone(), depths[&parent] + 1);
            self.parents.insert(orphan.clone(), parent);
            self.descend(&orphan, &mut depths);
        }
    }

    /// Of those who were nearest to the last one: who wants to be, then who would do best.
    fn next_root(&self, all: &BTreeMap<&Id, Role>, quality: &impl Fn(&Id) -> Quality) -> Option<Id> {
        let rank = |role: Role| match role {
            Role::Hub => 0,
            Role::Member => 1,
            Role::Viewer => 2,
        };
        let best = all.iter().min_by(|(a, a_role), (b, b_role)| {
            let key = |id: &Id, role: Role| (rank(role), self.parents.contains_key(id));
            let nearer = key(a, **a_role).cmp(&key(b, **b_role));
            nearer.then_with(|| better(&quality(a), &quality(b))).then_with(|| a.cmp(b))
        });
        best.map(|(id, _)| (*id).clone())
    }

    fn children(&self, of: &Id) -> impl Iterator<Item = &Id> {
        self.parents.iter().filter(move |(_, parent)| *parent == of).map(|(id, _)| id)
    }

    fn descend(&self, from: &Id, depths: &mut BTreeMap<Id, usize>) {
        let mut next = vec![from.clone()];
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            for child in self.children(&id).filter(|child| seen.insert((*child).clone())) {
                depths.insert(child.clone(), depths[&id] + 1);
                next.push(child.clone());
            }
        }
    }
}

/// More uplink, then a shorter way.
fn better(a: &Quality, b: &Quality) -> Ordering {
    b.uplink_kbps.total_cmp(&a.uplink_kbps).then(a.rtt_ms.total_cmp(&b.rtt_ms))
}
