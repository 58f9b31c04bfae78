//! Parents and children in the tree topology. A participant gets a new parent only if it has joined, or if its
//! old parent has left or is lost to it. No other participant is moved.
//!
//! A child that receives nothing from its parent reports this, and is moved together with its subtree. Its
//! report moves no other participant: a parent is taken out only if most of its children have lost it and it is
//! silent to the room.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use serde_json::{Map, Value};

use super::participant::{ParticipantId as Id, Role};

/// Uplink that is assumed for a participant whose browser reports none and that sends without loss: the initial
/// estimate of Chromium, which a Chromium that sends nothing reports, too.
const UPLINK_ASSUMED_KBPS: f64 = 300.0;
/// Share of lost packets from which the sent rate is the limit of the uplink.
const LOSS_OF_FULL_UPLINK: f64 = 0.02;

/// Measurements that a participant has reported for its own link.
pub struct Quality {
    pub uplink_kbps: f64,
    pub rtt_ms: f64,
}

impl Quality {
    /// Takes the measurements from a report.
    ///
    /// Firefox, and Safari from 16.2 on, do not know their uplink. Then the rate that arrived at others stands for it:
    /// it is a lower bound while no packets are lost, and the limit otherwise.
    /// Source: docs/reference/rooms.md, "Topologies".
    pub fn from_report(report: &Map<String, Value>) -> Self {
        let figure = |of: &Map<String, Value>, name: &str| of.get(name).and_then(Value::as_f64);
        let lists = |of: &Map<String, Value>, name: &str| of.get(name).and_then(Value::as_array).cloned();
        let uplink_kbps = figure(report, "uplink_kbps").unwrap_or_else(|| {
            let (mut sent, mut arrived) = (0.0, 0.0);
            let links = lists(report, "links").unwrap_or_default();
            let streams = links.iter().filter_map(|link| lists(link.as_object()?, "streams")).flatten();
            for stream in streams.filter(|stream| stream["direction"] == "out") {
                let rate = stream["rate_kbps"].as_f64().unwrap_or(0.0);
                sent += rate;
                arrived += rate * (1.0 - stream["loss"].as_f64().unwrap_or(0.0));
            }
            let is_full = sent - arrived > sent * LOSS_OF_FULL_UPLINK;
            if is_full { arrived } else { arrived.max(UPLINK_ASSUMED_KBPS) }
        });
        Self { uplink_kbps, rtt_ms: figure(report, "rtt_ms").unwrap_or(f64::INFINITY) }
    }
}

pub struct Tree {
    children_max: usize,
    root: Option<Id>,
    /// Parent of every participant in the tree except the root.
    parents: BTreeMap<Id, Id>,
    /// Parents that each child has lost. A child can lose each parent only once, so it cannot be moved forever.
    lost: BTreeMap<Id, BTreeSet<Id>>,
    /// For each parent, the children that have lost it since its last sign of life.
    orphans: BTreeMap<Id, BTreeSet<Id>>,
    /// Participants that are in the room but not in the tree, until their next sign of life.
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

    /// Returns the participants that are in the room but have no place in the tree.
    #[cfg(test)]
    pub fn absent(&self) -> &BTreeSet<Id> {
        &self.absent
    }

    /// Removes participants that have left, and gives a parent to every participant that has none.
    ///
    /// Shape: afterwards every participant that is not absent has a parent, except the root. Each chain of parents
    /// ends at the root, and no participant has more than `children_max` children.
    ///
    /// Cost: O(n²) for n participants, plus O(n²) for each one that needs a parent.
    pub fn update<'a>(&mut self, all: impl Iterator<Item = (&'a Id, Role)>, quality: impl Fn(&Id) -> Quality) {
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
        // Depth of every participant below the root. A participant that gets a parent brings its own subtree along.
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

    /// Records that a child has lost its parent, and looks for another parent outside the lost parent's subtree. A
    /// parent that this child has lost before is not chosen. Returns true if the child has moved.
    pub fn report_lost(&mut self, child: &Id, parent: &Id, quality: impl Fn(&Id) -> Quality) -> bool {
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

    /// Records a sign of life. Returns true if the participant was absent and now needs a place in the tree.
    pub fn record_activity(&mut self, id: &Id) -> bool {
        self.orphans.remove(id);
        self.absent.remove(id)
    }

    /// Returns the parents that most of their children have lost. Children that were moved away are counted too.
    pub fn suspected(&self) -> impl Iterator<Item = &Id> {
        self.orphans.keys().filter(|id| self.is_suspected(id) && !self.absent.contains(*id))
    }

    /// Marks a participant as absent until its next sign of life. The next [`Tree::update`] removes it from the
    /// tree.
    pub fn mark_absent(&mut self, id: &Id) {
        self.absent.insert(id.clone());
    }

    fn is_suspected(&self, id: &Id) -> bool {
        let Some(orphans) = self.orphans.get(id) else { return false };
        orphans.len() > self.children(id).filter(|child| !orphans.contains(*child)).count()
    }

    fn has_lost(&self, child: &Id, parent: &Id) -> bool {
        self.lost.get(child).is_some_and(|lost| lost.contains(parent))
    }

    /// Returns the best parent among the participants in `depths` that have room for another child.
    ///
    /// Participants come last if this child has lost them before, or if most of their own children have lost them.
    /// Otherwise the nearest to the root wins, then the one with the best link.
    fn best_parent<'a>(
        &self,
        of: &Id,
        depths: &'a BTreeMap<Id, usize>,
        quality: &impl Fn(&Id) -> Quality,
    ) -> Option<&'a Id> {
        let key = |id: &Id| (self.has_lost(of, id), self.is_suspected(id), depths[id]);
        let has_capacity = |id: &&Id| self.children(id).count() < self.children_max;
        depths
            .keys()
            .filter(has_capacity)
            .min_by(|a, b| key(a).cmp(&key(b)).then_with(|| better(&quality(a), &quality(b))).then_with(|| a.cmp(b)))
    }

    /// Returns the next root. The best role wins, then participants without a parent, such as children of the old
    /// root, then the one with the best link.
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

/// Orders by higher uplink bandwidth, then by shorter round-trip time.
fn better(a: &Quality, b: &Quality) -> Ordering {
    b.uplink_kbps.total_cmp(&a.uplink_kbps).then(a.rtt_ms.total_cmp(&b.rtt_ms))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_uplink_is_the_rate_that_arrived() {
        let uplink = |report: Value| Quality::from_report(report.as_object().expect("an object")).uplink_kbps;
        let sends = |streams: Value| json!({ "links": [{ "to": "1", "streams": streams }] });
        let out = |rate: u32, loss: f64| json!({ "direction": "out", "rate_kbps": rate, "loss": loss });
        for (report, expected) in [
            (json!({ "uplink_kbps": 120 }), 120.0),
            (json!({ "uplink_kbps": 0 }), 0.0),
            // Nothing is known: as a browser that has sent nothing yet.
            (json!({}), 300.0),
            (json!({ "links": [7] }), 300.0),
            (sends(json!([out(50, 0.0)])), 300.0),
            (sends(json!([{ "direction": "in", "rate_kbps": 5_000 }])), 300.0),
            // It sends without loss: the uplink is at least so wide.
            (sends(json!([out(900, 0.01), { "direction": "out", "rate_kbps": 100 }])), 991.0),
            // It loses packets: the uplink is not wider.
            (sends(json!([out(200, 0.5)])), 100.0),
        ] {
            assert_eq!(uplink(report.clone()), expected, "{report}");
        }
    }
}
