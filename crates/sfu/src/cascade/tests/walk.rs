//! Random walk of three nodes: loss, reordering, partitions, death, and members that move.

use std::time::Duration;

use super::world::World;
use crate::cascade::NodeId;

const SEEDS: u64 = 12;
const EVENTS: usize = 12;

#[test]
fn tracks_converge_after_faults() {
    for seed in 0..SEEDS {
        walk(seed);
    }
}

fn walk(seed: u64) {
    println!("seed {seed}");
    let mut world = World::new(seed);
    (world.loss, world.jitter) = (0.05, Duration::from_millis(20));
    let mut generation = 0;
    let mut names = 0;
    for at in 0..3 {
        world.add_node(&format!("{at}"));
        names += 1;
    }
    for at in 0..3 {
        generation += 1;
        world.join(&World::node(&format!("{at}")), &format!("m{at}"), generation);
    }
    world.run(Duration::from_secs(2));
    for _ in 0..EVENTS {
        let nodes: Vec<NodeId> = world.nodes.keys().cloned().collect();
        let mut pick = || nodes[world.random(nodes.len() as u64) as usize].clone();
        let (one, other) = (pick(), pick());
        generation += 1;
        match world.random(6) {
            0 => {
                world.cut.insert((one, other));
            }
            1 => world.cut.clear(),
            2 => {
                // A node dies, its members join another one at once, and a new node begins.
                let members = world.kill(&one);
                names += 1;
                world.add_node(&format!("{names}"));
                let to = world.nodes.keys().next().unwrap().clone();
                members.iter().for_each(|member| world.join(&to, member, generation));
            }
            3 if one != other => {
                // A member moves. Its old node notices that late, or the move comes back.
                let member = world.nodes[&one].members.keys().next().cloned();
                if let Some(member) = member {
                    world.join(&other, &member, generation);
                    let late = world.random(2000);
                    world.run(Duration::from_millis(late));
                    world.leave(&one, &member);
                }
            }
            4 => {
                let loss = world.random(20);
                world.loss = loss as f64 / 100.0;
            }
            _ => world.join(&one, &format!("n{generation}"), generation),
        }
        let pause = world.random(4000);
        world.run(Duration::from_millis(pause));
    }
    world.cut.clear();
    world.loss = 0.05;
    world.run(Duration::from_secs(12));
    let nodes: Vec<NodeId> = world.nodes.keys().cloned().collect();
    for node in &nodes {
        assert_eq!(world.seen(node), world.expected(node), "seed {seed}, node {node:?}");
        world.take_received(node);
    }
    world.run(Duration::from_secs(1));
    for node in &nodes {
        let received = world.take_received(node);
        for (member, track, _) in world.expected(node) {
            let count = received.get(&(member.clone(), track, 0)).copied().unwrap_or(0);
            assert!(count >= 40, "seed {seed}: {node:?} received {count} of 50 packets of {member}, track {track}");
        }
    }
}
