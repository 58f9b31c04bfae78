//! Who is whose child. Only those who have come, or whose parent has gone or is lost to them, get another parent: nobody else's way is
//! touched.
//!
//! A child that hears nothing of its parent says so, and is moved, alone and with all that are below it. What it says moves nobody else: a
//! parent is taken out only if most of its children have lost it and it is silent itself.

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
    /// Whom somebody has lost as its parent: each parent once, so that nobody can be moved for ever.
    lost: BTreeMap<Id, BTreeSet<Id>>,
    /// Who has lost this parent since that was heard of last.
    orphans: BTreeMap<Id, BTreeSet<Id>>,
    /// In the room, but not in the tree, until they are heard of.
    absent: BTreeSet<Id>,
}

impl Tree {
    pub fn new(children_max: usize) -> Self {
        Self {
            children_max: children_max.max(1),
            root: None,
            parents: BTreeMap::new(),
            lost: BTreeMap::new(),
            orphans: BTreeMap::new(),
            absent: BTreeSet::new(),
        }
    }

    pub fn parents(&self) -> impl Iterator<Item = (&Id, &Id)> {
        self.parents.iter()
    }

    /// In the room, but in no place.
    #[cfg(test)]
    pub fn absent(&self) -> &BTreeSet<Id> {
        &self.absent
    }

    /// Takes out who has gone, and gives a parent to whoever has none.
    ///
    /// Shape: afterwards everybody who is not absent, but for one root, has a parent, from everybody the parents lead to the root, and nobody
    /// has more than `children_max` children. Cost: O(n²) of those who need a parent times those who are there.
    pub fn settle<'a>(&mut self, all: impl Iterator<Item = (&'a Id, Role)>, quality: impl Fn(&Id) -> Quality) {
        let mut all: BTreeMap<&Id, Role> = all.collect();
        for map in [&mut self.lost, &mut self.orphans] {
            map.retain(|id, others| {
                others.retain(|other| all.contains_key(other));
                all.contains_key(id) && !others.is_empty()
            });
        }
        self.absent.retain(|id| all.contains_key(id));
        all.retain(|id, _| !self.absent.contains(*id));
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
            let parent = self.best_parent(&orphan, &depths, &quality);
            let parent = parent.expect("a tree ends in those without children").clone();
            depths.insert(orphan.clone(), depths[&parent] + 1);
            self.parents.insert(orphan.clone(), parent);
            self.descend(&orphan, &mut depths);
        }
    }

    /// A child has lost its parent: it gets another one, if there is one that is not below the one that it has lost. True if it has moved.
    pub fn lose(&mut self, child: &Id, parent: &Id, quality: impl Fn(&Id) -> Quality) -> bool {
        if self.parents.get(child) != Some(parent) {
            return false;
        }
        self.orphans.entry(parent.clone()).or_default().insert(child.clone());
        if !self.lost.entry(child.clone()).or_default().insert(parent.clone()) {
            return false;
        }
        let Some(root) = &self.root else { return false };
        let mut below = BTreeMap::from([(parent.clone(), 0)]);
        self.descend(parent, &mut below);
        let mut depths = BTreeMap::from([(root.clone(), 0)]);
        self.descend(root, &mut depths);
        depths.retain(|id, _| !below.contains_key(id));
        let next = self.best_parent(child, &depths, &quality).filter(|next| !self.has_lost(child, next)).cloned();
        next.is_some_and(|next| self.parents.insert(child.clone(), next).is_some())
    }

    /// Somebody lives. True if it was absent, and is to be given a place.
    pub fn heard(&mut self, id: &Id) -> bool {
        self.orphans.remove(id);
        self.absent.remove(id)
    }

    /// Parents that most of their children have lost, those that were moved included.
    pub fn doubted(&self) -> impl Iterator<Item = &Id> {
        self.orphans.keys().filter(|id| self.is_doubted(id) && !self.absent.contains(*id))
    }

    /// It has no place until it is heard of.
    pub fn take_out(&mut self, id: &Id) {
        self.absent.insert(id.clone());
    }

    fn is_doubted(&self, id: &Id) -> bool {
        let Some(orphans) = self.orphans.get(id) else { return false };
        orphans.len() > self.children(id).filter(|child| !orphans.contains(*child)).count()
    }

    fn has_lost(&self, child: &Id, parent: &Id) -> bool {
        self.lost.get(child).is_some_and(|lost| lost.contains(parent))
    }

    /// Of these the one with a place that is nearest to the root, then would do best; one that is of no use only where there is no other.
    fn best_parent<'a>(
        &self,
        of: &Id,
        depths: &'a BTreeMap<Id, usize>,
        quality: &impl Fn(&Id) -> Quality,
    ) -> Option<&'a Id> {
        let key = |id: &Id| (self.has_lost(of, id), self.is_doubted(id), depths[id]);
        let has_place = |id: &&Id| self.children(id).count() < self.children_max;
        depths
            .keys()
            .filter(has_place)
            .min_by(|a, b| key(a).cmp(&key(b)).then_with(|| better(&quality(a), &quality(b))).then_with(|| a.cmp(b)))
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
