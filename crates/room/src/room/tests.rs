//! Tests with a virtual clock and seeded random numbers.

use std::collections::BTreeSet;

use rand_pcg::{
    Pcg64Mcg,
    rand_core::{Rng as _, SeedableRng as _},
};
use serde_json::json;

use super::*;

struct Bench {
    room: Room,
    now: Instant,
    random: Pcg64Mcg,
    config: Config,
}

impl Bench {
    fn new(topology: Topology) -> Self {
        Self::with(topology, Config::default())
    }

    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn with(topology: Topology, config: Config) -> Self {
        let room = Room::new(config.clone(), Some(topology)).expect("a room");
        Self { room, now: Instant::now(), random: Pcg64Mcg::seed_from_u64(7), config }
    }

    fn join(&mut self, role: Role) -> Result<Joined, Refused> {
        let mut random = [[0; 16]; 3];
        random.iter_mut().for_each(|bytes| self.random.fill_bytes(bytes));
        self.room.join(self.now, Join { name: "ann".into(), role, random, ..Join::default() })
    }

    fn member(&mut self) -> Joined {
        self.join(Role::Member).expect("room for one more")
    }

    fn wait_ms(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        if self.room.poll_timeout().is_some_and(|due| due <= self.now) {
            self.room.handle_timeout(self.now);
        }
    }

    fn resume(&mut self, joined: &Joined, subject: Option<&str>) -> Result<Joined, Refused> {
        let mut random = [[0; 16]; 2];
        random.iter_mut().for_each(|bytes| self.random.fill_bytes(bytes));
        let (id, ticket) = (joined.id.to_string(), joined.ticket.clone());
        self.room.resume(self.now, &Resume { id, ticket, subject: subject.map(str::to_owned), random })
    }

    fn report(&mut self, of: &Joined, report: Value) -> Result<(), Refused> {
        let Value::Object(report) = report else { panic!("an object") };
        self.room.report(self.now, of.id.as_str(), &of.secret, report)
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.room.poll_output()).collect()
    }

    fn parents(&self) -> BTreeMap<String, String> {
        serde_json::from_value(self.room.state()["parents"].clone()).expect("parents")
    }

    /// Asserts the invariants that hold after any sequence of events.
    fn check(&self, seed: u64) {
        let state = self.room.state();
        let there: BTreeSet<&str> = self.room.ids().map(ParticipantId::as_str).collect();
        let shown = state["participants"].as_array().expect("a list");
        let shown: BTreeSet<&str> = shown.iter().map(|one| one["id"].as_str().expect("an id")).collect();
        assert_eq!(there, shown, "seed {seed}");
        assert!(there.len() <= self.room.participants_max(), "seed {seed}");
        let due = self.room.poll_timeout();
        assert!(due.is_none_or(|due| due > self.now), "seed {seed}: something is overdue");
        match self.room.topology {
            Topology::Star => {
                assert_eq!(state["hub"].as_str().is_some_and(|hub| there.contains(hub)), !there.is_empty(), "{seed}");
            }
            Topology::Tree => {
                let parents = self.parents();
                let absent = self.room.tree.absent();
                let placed = there.len() - absent.len();
                assert_eq!(parents.len(), placed.saturating_sub(1), "seed {seed}: everybody but the root");
                for id in absent {
                    let is_placed = parents.iter().any(|(child, parent)| [child, parent].contains(&&id.to_string()));
                    assert!(!is_placed, "seed {seed}: absent, and in the tree");
                }
                for id in &there {
                    let children = parents.values().filter(|parent| parent.as_str() == *id).count();
                    assert!(children <= self.config.children_max, "seed {seed}: {children} children");
                    let mut at = *id;
                    let mut steps = 0;
                    while let Some(parent) = parents.get(at) {
                        at = parent;
                        steps += 1;
                        assert!(steps <= there.len(), "seed {seed}: a circle");
                        assert!(there.contains(at), "seed {seed}: a parent that has gone");
                    }
                }
            }
            Topology::Auto if self.config.has_switch && there.len() > 2 => {
                assert_eq!(self.room.topology(), Topology::Switch, "seed {seed}");
            }
            _ => {}
        }
    }
}

#[test]
fn state_lists_present_participants() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    assert!(ann.id < bob.id && ann.secret != bob.secret && ann.secret.len() == 32);
    assert_eq!(
        bench.outputs(),
        [Output::Joined(ann.id.clone()), Output::State, Output::Joined(bob.id.clone()), Output::State]
    );
    let state = bench.room.state();
    assert_eq!((&state["version"], &state["topology"]), (&json!(2), &json!("mesh")));
    assert!(!state.to_string().contains(&ann.secret), "a secret is nobody else's");
    bench.room.leave(bench.now, ann.id.as_str());
    bench.room.leave(bench.now, ann.id.as_str());
    assert_eq!(bench.outputs(), [Output::Left(ann.id), Output::State], "once");
    assert_eq!(bench.room.state()["participants"].as_array().map(Vec::len), Some(1));
}

#[test]
fn room_keeps_topology_of_first_participant() {
    let mut bench = Bench::new(Topology::P2p);
    let other = Join { topology: Some(Topology::Mesh), ..Join::default() };
    assert_eq!(bench.room.join(bench.now, other), Err(Refused::OtherTopology(Topology::P2p)));
    bench.member();
    bench.member();
    assert_eq!(bench.join(Role::Member), Err(Refused::Full(Topology::P2p, 2)));
    assert_eq!(Room::new(Config::default(), Some(Topology::Switch)).err(), Some(Refused::NoSwitch));
}

#[test]
fn silent_participant_is_removed() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    bench.wait_ms(15_000);
    bench.report(&ann, json!({ "rtt_ms": 3 })).expect("a heartbeat");
    bench.outputs();
    bench.wait_ms(4_999);
    assert_eq!(bench.outputs(), []);
    bench.wait_ms(1);
    assert_eq!(bench.outputs(), [Output::Left(bob.id.clone()), Output::State]);
    assert_eq!(bench.room.reports(), json!({ ann.id.as_str(): { "rtt_ms": 3 } }));
    assert_eq!(bench.report(&bob, json!({})), Err(Refused::NotFound));
}

#[test]
fn signal_requires_secret_and_receiver() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    let (a, b) = (ann.id.as_str(), bob.id.as_str());
    let now = bench.now;
    assert_eq!(bench.room.check_signal(now, a, &ann.secret, b), Ok(()));
    assert_eq!(bench.room.check_signal(now, a, &bob.secret, b), Err(Refused::WrongSecret));
    assert_eq!(bench.room.check_signal(now, a, "", b), Err(Refused::WrongSecret));
    for to in ["x", "", a, SWITCH] {
        assert_eq!(bench.room.check_signal(now, a, &ann.secret, to), Err(Refused::NotFound), "{to}");
    }
}

#[test]
fn signals_are_rate_limited() {
    let mut bench = Bench::with(Topology::Mesh, Config { signals_per_s: 2, ..Config::default() });
    let (ann, bob) = (bench.member(), bench.member());
    let sent = |bench: &mut Bench| {
        let one = |_: &i32| bench.room.check_signal(bench.now, ann.id.as_str(), &ann.secret, bob.id.as_str()).is_ok();
        (0..100).filter(one).count()
    };
    assert_eq!(sent(&mut bench), 10, "at once what comes in five seconds");
    bench.now += Duration::from_secs(1);
    assert_eq!(sent(&mut bench), 2);
}

#[test]
fn star_always_has_a_hub() {
    let mut bench = Bench::new(Topology::Star);
    let hub = |bench: &Bench| bench.room.state()["hub"].as_str().map(str::to_owned);
    let viewer = bench.join(Role::Viewer).expect("room");
    assert_eq!(hub(&bench).as_deref(), Some(viewer.id.as_str()), "nobody else is there");
    let (ann, bob) = (bench.member(), bench.member());
    assert_eq!(hub(&bench).as_deref(), Some(ann.id.as_str()));
    let wants = bench.join(Role::Hub).expect("room");
    assert_eq!(hub(&bench).as_deref(), Some(wants.id.as_str()));
    bench.join(Role::Hub).expect("room");
    assert_eq!(hub(&bench).as_deref(), Some(wants.id.as_str()), "it stays");
    bench.room.leave(bench.now, ann.id.as_str());
    bench.room.leave(bench.now, wants.id.as_str());
    assert!(hub(&bench).is_some_and(|hub| hub != bob.id.as_str()), "the other one who wants to be");
}

#[test]
fn tree_is_shallow_and_prefers_uplink() {
    let mut bench = Bench::new(Topology::Tree);
    let root = bench.member();
    let first: Vec<Joined> = (0..3).map(|_| bench.member()).collect();
    assert!(first.iter().all(|one| bench.parents()[one.id.as_str()] == root.id.as_str()));
    bench.report(&first[1], json!({ "uplink_kbps": 900, "rtt_ms": 5 })).expect("taken");
    bench.report(&first[2], json!({ "uplink_kbps": 900, "rtt_ms": 4 })).expect("taken");
    let fifth = bench.member();
    assert_eq!(bench.parents()[fifth.id.as_str()], first[2].id.as_str());
    bench.member();
    bench.member();
    let before = bench.parents();
    bench.room.leave(bench.now, first[2].id.as_str());
    let after = bench.parents();
    assert_eq!(after[fifth.id.as_str()], root.id.as_str(), "the place has become free");
    let moved = after.iter().filter(|(id, parent)| before.get(*id) != Some(parent)).count();
    assert_eq!(moved, 3, "only its children have moved");
    bench.room.leave(bench.now, root.id.as_str());
    assert!(!bench.parents().contains_key(first[1].id.as_str()), "of the root's children the one with most uplink");
}

#[test]
fn only_child_that_lost_parent_moves() {
    let mut bench = Bench::new(Topology::Tree);
    let root = bench.member();
    let [one, two, _] = [(); 3].map(|()| bench.member());
    let children: Vec<Joined> = (0..6).map(|_| bench.member()).collect();
    let of = |bench: &Bench, parent: &Joined| -> Vec<String> {
        let parents = bench.parents();
        parents.into_iter().filter(|(_, of)| of == parent.id.as_str()).map(|(id, _)| id).collect()
    };
    let orphan = children.iter().find(|child| of(&bench, &one).contains(&child.id.to_string())).expect("a child");
    let accuse = |bench: &mut Bench, who: &Joined, whom: &Joined| {
        bench.report(who, json!({ "parent_lost": whom.id.as_str() })).expect("taken");
    };
    bench.outputs();
    let before = bench.parents();
    accuse(&mut bench, orphan, &two);
    accuse(&mut bench, &two, &one);
    assert_eq!((bench.parents(), bench.outputs()), (before.clone(), vec![]), "whose child it is not it cannot lose");
    accuse(&mut bench, orphan, &one);
    assert_eq!(bench.outputs(), [Output::State], "it is moved, and all are told");
    let after = bench.parents();
    let moved: Vec<&String> = after.keys().filter(|id| before.get(*id) != after.get(*id)).collect();
    assert_eq!(moved, [&orphan.id.to_string()], "one participant's word moves nobody else");
    assert_ne!(after[orphan.id.as_str()], one.id.as_str());
    // The tree stays unchanged for all other participants, even if the parent is silent, until most of its
    // children have lost it.
    bench.wait_ms(8_000);
    assert_eq!(bench.parents(), after);
    for id in of(&bench, &one) {
        let child = children.iter().find(|child| child.id.as_str() == id).expect("one of them");
        accuse(&mut bench, child, &one);
    }
    let parents = bench.parents();
    assert!(!parents.contains_key(one.id.as_str()) && !parents.values().any(|parent| parent == one.id.as_str()));
    assert_eq!(bench.room.ids().count(), 10, "it is in the room all the same");
    bench.report(&one, json!({})).expect("taken");
    assert!(bench.parents().contains_key(one.id.as_str()), "who reports has a place again");
    assert_eq!(of(&bench, &root).len(), 3);
}

#[test]
fn silent_root_is_replaced_before_timeout() {
    let mut bench = Bench::new(Topology::Tree);
    let root = bench.member();
    let children = [(); 2].map(|()| bench.member());
    let accuse = |bench: &mut Bench| {
        for child in &children {
            bench.report(child, json!({ "parent_lost": root.id.as_str() })).expect("taken");
        }
    };
    bench.wait_ms(3_000);
    accuse(&mut bench);
    assert_eq!(bench.parents().len(), 2, "it may have said something to the room since");
    bench.wait_ms(3_000);
    bench.report(&root, json!({})).expect("taken");
    bench.wait_ms(4_000);
    assert_eq!(bench.parents()[children[1].id.as_str()], root.id.as_str(), "it lives, whatever they say");
    bench.wait_ms(2_000);
    accuse(&mut bench);
    bench.outputs();
    bench.wait_ms(1_000);
    assert_eq!(bench.outputs(), [Output::State]);
    let expected = (children[1].id.to_string(), children[0].id.to_string());
    assert_eq!(bench.parents().into_iter().collect::<Vec<_>>(), [expected]);
}

#[test]
fn child_moves_end_eventually() {
    let mut bench = Bench::new(Topology::Tree);
    let all: Vec<Joined> = (0..12).map(|_| bench.member()).collect();
    let restless = &all[11];
    bench.outputs();
    let mut moves = 0;
    for _ in 0..60 {
        let parent = bench.parents()[restless.id.as_str()].clone();
        bench.now += Duration::from_millis(100);
        bench.report(restless, json!({ "parent_lost": parent })).expect("taken");
        moves += bench.outputs().len();
    }
    assert!(moves < all.len(), "{moves} moves");
}

#[test]
fn auto_uses_switch_from_three_participants() {
    let mut bench = Bench::with(Topology::Auto, Config { has_switch: true, ..Config::default() });
    let (ann, bob) = (bench.member(), bench.member());
    assert_eq!(bench.room.topology(), Topology::Mesh);
    let eve = bench.member();
    assert_eq!(bench.room.topology(), Topology::Switch);
    let alive = |bench: &mut Bench| {
        for one in [&ann, &bob] {
            bench.report(one, json!({})).expect("it is there");
        }
    };
    bench.room.leave(bench.now, eve.id.as_str());
    bench.wait_ms(9_000);
    alive(&mut bench);
    assert_eq!(bench.room.topology(), Topology::Switch, "somebody may come back");
    let eve = bench.member();
    bench.room.leave(bench.now, eve.id.as_str());
    bench.wait_ms(9_000);
    alive(&mut bench);
    assert_eq!(bench.room.topology(), Topology::Switch);
    bench.outputs();
    bench.wait_ms(1_000);
    assert_eq!((bench.room.topology(), bench.outputs()), (Topology::Mesh, vec![Output::State]));
    assert_eq!(bench.room.state()["auto"], true);
}

#[test]
fn reload_keeps_seat_and_settings() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    bench.report(&ann, json!({ "muted": true, "hand": true, "screen": true })).expect("taken");
    bench.room.mute(ann.id.as_str(), None, Some(true)).expect("it is there");
    bench.outputs();
    bench.room.set_away(bench.now, ann.id.as_str(), &ann.secret).expect("it is there");
    assert_eq!(bench.outputs(), [Output::State]);
    assert_eq!(bench.room.state()["participants"][0]["away"], true);
    bench.wait_ms(14_999);
    assert_eq!(bench.outputs(), []);
    let again = bench.resume(&ann, None).expect("its seat");
    assert_eq!(again.id, ann.id);
    assert!(again.secret != ann.secret && again.ticket != ann.ticket && again.ticket.len() == 32);
    assert_eq!(bench.outputs(), [Output::Resumed(ann.id.clone()), Output::State]);
    let shown = bench.room.state()["participants"][0].clone();
    assert_eq!(
        (&shown["muted"], &shown["hand"], &shown["muted_by_host"], &shown["resumed"], shown.get("away")),
        (&json!(true), &json!(1), &json!(["video"]), &json!(1), None)
    );
    assert_eq!(bench.room.host(), Some(&ann.id), "it is the host as before");
    bench.report(&again, json!({ "screen": false })).expect("taken");
    assert_eq!((&shown["screen"], bench.room.state()["participants"][0].get("screen")), (&json!(true), None));
    assert_eq!(bench.outputs(), [Output::State]);
    // The old page can do nothing more, and the old ticket is used: a copied tab joins as another participant.
    assert_eq!(bench.report(&ann, json!({})), Err(Refused::WrongSecret));
    assert_eq!(bench.room.set_away(bench.now, ann.id.as_str(), &ann.secret), Err(Refused::WrongSecret));
    assert_eq!(bench.resume(&ann, None), Err(Refused::TicketUsed));
    assert_eq!(bench.outputs(), []);
    // The new page can reload, too. A request may overtake the farewell of the old page.
    let third = bench.resume(&again, None).expect("its seat");
    bench.report(&third, json!({})).expect("it is there");
    bench.report(&bob, json!({})).expect("it is there");
    assert_eq!(bench.room.state()["participants"][0]["resumed"], 2);
}

#[test]
fn seat_ends_after_fifteen_seconds() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    bench.room.set_away(bench.now, ann.id.as_str(), &ann.secret).expect("it is there");
    bench.wait_ms(10_000);
    // A report that was under way keeps the seat no longer, and the time is not counted again.
    bench.report(&ann, json!({})).expect("taken");
    bench.room.set_away(bench.now, ann.id.as_str(), &ann.secret).expect("it is there");
    bench.report(&bob, json!({})).expect("taken");
    bench.outputs();
    bench.wait_ms(4_999);
    assert_eq!(bench.outputs(), []);
    bench.wait_ms(1);
    assert_eq!(bench.outputs(), [Output::Left(ann.id.clone()), Output::State]);
    assert_eq!(bench.resume(&ann, None), Err(Refused::TicketUsed));
    // A participant that leaves voids its ticket.
    bench.room.leave(bench.now, bob.id.as_str());
    assert_eq!(bench.resume(&bob, None), Err(Refused::TicketUsed));
}

#[test]
fn ticket_is_bound_to_its_subject() {
    let mut bench = Bench::new(Topology::Mesh);
    let join = Join { subject: Some("ann".into()), random: [[1; 16], [2; 16], [3; 16]], ..Join::default() };
    let ann = bench.room.join(bench.now, join).expect("room");
    assert_eq!(bench.resume(&ann, Some("eve")), Err(Refused::TicketUsed));
    assert_eq!(bench.resume(&ann, None), Err(Refused::TicketUsed));
    let wrong = Joined { ticket: ann.secret.clone(), ..ann.clone() };
    assert_eq!(bench.resume(&wrong, Some("ann")), Err(Refused::TicketUsed), "the secret is no ticket");
    assert!(bench.resume(&ann, Some("ann")).is_ok());
}

#[test]
fn locked_room_admits_only_resumed_participants() {
    let mut bench = Bench::new(Topology::Mesh);
    let ann = bench.member();
    bench.outputs();
    bench.room.lock(true);
    bench.room.lock(true);
    assert_eq!(bench.outputs(), [Output::State]);
    assert_eq!(bench.room.state()["locked"], true);
    assert_eq!(bench.join(Role::Member), Err(Refused::Locked));
    assert!(bench.resume(&ann, None).is_ok());
    bench.room.lock(false);
    assert!(bench.join(Role::Member).is_ok());
}

#[test]
fn removed_participant_is_named_in_the_state() {
    let mut bench = Bench::new(Topology::Mesh);
    bench.member();
    let gone: Vec<Joined> = (0..20)
        .map(|_| {
            let one = bench.join(Role::Member).expect("room");
            bench.room.remove(bench.now, one.id.as_str()).expect("it is there");
            one
        })
        .collect();
    assert!(bench.outputs().contains(&Output::Left(gone[0].id.clone())));
    let expected: Vec<&str> = gone[4..].iter().map(|one| one.id.as_str()).collect();
    assert_eq!(bench.room.state()["removed"], json!(expected), "the newest");
    assert_eq!(bench.room.remove(bench.now, gone[0].id.as_str()), Err(Refused::NotFound));
}

#[test]
fn hands_are_numbered_in_the_order_of_raising() {
    let mut bench = Bench::new(Topology::Mesh);
    let (ann, bob) = (bench.member(), bench.member());
    let hands = |bench: &Bench| {
        let state = bench.room.state();
        [0_usize, 1].map(|at| state["participants"][at]["hand"].as_u64())
    };
    bench.report(&bob, json!({ "hand": true })).expect("taken");
    bench.report(&ann, json!({ "hand": true })).expect("taken");
    bench.report(&bob, json!({ "hand": true })).expect("taken");
    assert_eq!(hands(&bench), [Some(2), Some(1)]);
    bench.report(&bob, json!({})).expect("taken");
    assert_eq!(hands(&bench), [Some(2), Some(1)], "a report without a hand changes nothing");
    bench.report(&bob, json!({ "hand": false })).expect("taken");
    bench.report(&bob, json!({ "hand": true })).expect("taken");
    assert_eq!(hands(&bench), [Some(2), Some(3)]);
}

#[test]
fn random_walk_keeps_invariants() {
    let seeds: u64 = std::env::var("MILLRACE_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let topologies =
            [Topology::P2p, Topology::Mesh, Topology::Star, Topology::Relay, Topology::Tree, Topology::Auto];
        let topology = topologies[random.next_u32() as usize % topologies.len()];
        let config = Config {
            participants_max: 1 + random.next_u32() as usize % 20,
            children_max: 1 + random.next_u32() as usize % 3,
            has_switch: random.next_u32() % 2 == 0,
            ..Config::default()
        };
        let mut bench = Bench::with(topology, config);
        let mut there: Vec<Joined> = Vec::new();
        let mut ids = BTreeSet::new();
        let mut version = 0;
        for _ in 0..200 {
            match random.next_u32() % 10 {
                0..4 => {
                    let role = [Role::Member, Role::Hub, Role::Viewer][random.next_u32() as usize % 3];
                    if let Ok(joined) = bench.join(role) {
                        assert!(ids.last().is_none_or(|last| *last < joined.id), "seed {seed}: ids rise");
                        ids.insert(joined.id.clone());
                        there.push(joined);
                    }
                }
                4 if !there.is_empty() && random.next_u32() % 2 == 0 => {
                    let at = random.next_u32() as usize % there.len();
                    let _ = bench.room.set_away(bench.now, there[at].id.as_str(), &there[at].secret);
                    if let Ok(again) = bench.resume(&there[at].clone(), None) {
                        assert_eq!(again.id, there[at].id, "seed {seed}");
                        there[at] = again;
                    }
                }
                4 | 5 if !there.is_empty() => {
                    let gone = there.swap_remove(random.next_u32() as usize % there.len());
                    bench.room.leave(bench.now, gone.id.as_str());
                }
                6..9 if !there.is_empty() => {
                    let one = &there[random.next_u32() as usize % there.len()];
                    let uplink = random.next_u32() % 1000;
                    let mut report = json!({ "uplink_kbps": uplink, "rtt_ms": uplink % 7 });
                    let parent = bench.room.state()["parents"][one.id.as_str()].as_str().map(str::to_owned);
                    if let Some(parent) = parent.filter(|_| uplink % 2 == 0) {
                        report["parent_lost"] = parent.into();
                    }
                    let _ = bench.report(one, report);
                }
                _ => bench.wait_ms(u64::from(random.next_u32() % 6_000)),
            }
            let changes = bench.outputs().iter().filter(|output| **output == Output::State).count() as u64;
            version += changes;
            assert_eq!(bench.room.version, version, "seed {seed}: each change is told once");
            bench.check(seed);
        }
    }
}

#[test]
fn room_is_rebuilt_from_announced_participants() {
    let mut old = Bench::new(Topology::Auto);
    let joined: Vec<Joined> = (0..4).map(|_| old.member()).collect();
    old.room.mute(joined[1].id.as_str(), Some(true), None).unwrap();
    let before = old.room.state();
    let mut new = Bench::new(Topology::Auto);
    new.room.continue_versions(1_000_000);
    // The nodes announce in any order, and some more than once.
    for at in [2, 0, 3, 1, 2] {
        let announced = old.room.announce(joined[at].id.as_str()).unwrap();
        new.room.restore(new.now, announced).unwrap();
    }
    let after = new.room.state();
    assert_eq!(after["participants"], before["participants"]);
    assert_eq!((&after["host"], &after["topology"]), (&before["host"], &before["topology"]));
    assert!(after["version"].as_u64() > Some(1_000_000), "{after}");
    assert_eq!(new.room.check_secret(joined[3].id.as_str(), &joined[3].secret), Ok(()));
    assert_eq!(new.room.muted_by_host(joined[1].id.as_str()), Muted { audio: true, video: false });
    let next = new.member();
    assert!(joined.iter().all(|known| known.id < next.id), "ids still sort in the order of joining");
    let mut named = old.room.announce(joined[0].id.as_str()).unwrap();
    named.name = "x".repeat(NAME_BYTES_MAX + 1);
    assert_eq!(new.room.restore(new.now, named), Err(Refused::BadName));
}

#[test]
fn announced_id_is_checked() {
    for (id, is_good) in [("00000102030405ff", true), ("", false), ("00001", false), ("00000102030405zz", false)] {
        assert_eq!(ParticipantId::parse(id).is_some(), is_good, "{id}");
    }
    assert!(ParticipantId::parse(&"0".repeat(33)).is_none());
}

#[test]
fn state_has_layout_of_composite_video() {
    let mut bench = Bench::new(Topology::Mesh);
    let ann = bench.member();
    bench.outputs();
    assert_eq!(bench.room.state().get("composite"), None);
    let cell = Cell { participant: ann.id.to_string(), x: 0, y: 0, width: 640, height: 480 };
    let composite = Composite { width: 640, height: 480, cells: vec![cell] };
    assert!(bench.room.set_composite(composite.clone()));
    assert_eq!(bench.outputs(), [Output::State]);
    let cells = json!([{ "participant": ann.id, "x": 0, "y": 0, "width": 640, "height": 480 }]);
    assert_eq!(bench.room.state()["composite"], json!({ "width": 640, "height": 480, "cells": cells }));
    assert!(!bench.room.set_composite(composite), "unchanged");
    assert!(bench.outputs().is_empty());
}
