//! One room on several nodes: each node has its SFU, with its own clients, and links to all others.

use super::*;
use crate::cascade::{
    Announcement, ChannelEvent, Channels, NodeId, Roster, fingerprint,
    frame::{VERSION, is_frame},
};

struct Nodes {
    nets: Vec<Net>,
    names: Vec<NodeId>,
}

const STEP: Duration = Duration::from_millis(5);

impl Nodes {
    fn new(count: usize) -> Self {
        let names: Vec<NodeId> = (0..count).map(|at| NodeId::new(&format!("{at}")).unwrap()).collect();
        let mut nets: Vec<Net> = (0..count).map(|_| Net::new()).collect();
        let now = nets[0].now;
        let roster = Roster { nodes: names.iter().cloned().collect(), ..Roster::default() };
        for (net, name) in nets.iter_mut().zip(&names) {
            net.now = now;
            net.switch.set_cascade(name.clone(), 1, now);
            for other in names.iter().filter(|other| *other != name) {
                net.switch.add_link(other.clone(), 1, now, &mut |_, _| {});
            }
            net.switch.set_roster("room", roster.clone(), now, &mut |_, _| {});
        }
        Self { nets, names }
    }

    fn run(&mut self, span: Duration) {
        let mut left = span;
        while left >= STEP {
            left -= STEP;
            self.nets.iter_mut().for_each(|net| net.run(STEP));
            for from in 0..self.nets.len() {
                while let Some((to, frame)) = self.nets[from].switch.poll_link_frame() {
                    let Some(to) = self.names.iter().position(|name| *name == to) else { continue };
                    let Net { switch, in_flight, now, .. } = &mut self.nets[to];
                    let send = &mut |to, datagram| in_flight.push((to, datagram));
                    switch.handle_link_frame(&self.names[from], &frame, *now, send);
                }
            }
        }
    }

    /// As [`Net::talk`].
    fn talk(&mut self, node: usize, from: usize, frames: std::ops::Range<u32>) {
        let mut key = frames.start == 0;
        for n in frames {
            let Net { clients, now, .. } = &mut self.nets[node];
            let client = &mut clients[from];
            key |= client.out.events.iter().any(|event| matches!(event, MediaEvent::KeyframeWanted { .. }));
            client.out.events.retain(|event| !matches!(event, MediaEvent::KeyframeWanted { .. }));
            let payload: Arc<[u8]> = [&[0x10, u8::from(!key)], n.to_be_bytes().as_slice(), &[7; 500]].concat().into();
            client.end.send(0, (n * 1800, true, payload), *now, &mut client.out).unwrap();
            key = false;
            self.run(Duration::from_millis(20));
        }
    }

    /// Returns the number of packets that a node has sent to another one.
    fn crossed(&self, from: usize, to: usize) -> u64 {
        let mut links = self.nets[from].switch.mesh().unwrap().links();
        links.find(|(node, _)| **node == self.names[to]).map_or(0, |(_, link)| link.counters().sent_packets)
    }

    fn froms(&self, node: usize) -> Vec<Vec<String>> {
        let reports = self.nets[node].switch.reports("room", self.nets[node].now);
        reports.iter().map(|report| report.receives.iter().map(|track| track.from.clone()).collect()).collect()
    }
}

#[test]
fn viewers_on_other_node_receive_one_copy() {
    let mut nodes = Nodes::new(2);
    let publisher = nodes.nets[0].join("a", Role::Publisher, VIDEO, &[]);
    let viewers = ["b", "c"].map(|name| nodes.nets[1].join(name, Role::Viewer, &[], VIDEO));
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 0..100);
    for viewer in viewers {
        assert_eq!(nodes.nets[1].seen(viewer).0, (0..100).collect::<Vec<u32>>());
    }
    assert_eq!((nodes.crossed(0, 1), nodes.crossed(1, 0)), (100, 0));
    assert_eq!(nodes.froms(1), [["a"], ["a"]]);
}

#[test]
fn packets_take_one_hop() {
    let mut nodes = Nodes::new(3);
    let members = [0, 1, 2].map(|node| nodes.nets[node].join(&format!("m{node}"), Role::Member, VIDEO, &[]));
    nodes.run(SETTLED);
    nodes.talk(0, members[0], 0..50);
    for node in [1, 2] {
        assert_eq!(nodes.nets[node].seen(members[node]).0, (0..50).collect::<Vec<u32>>());
    }
    let crossed = |from: usize, to: usize| nodes.crossed(from, to);
    assert_eq!([crossed(0, 1), crossed(0, 2)], [50, 50]);
    assert_eq!([crossed(1, 0), crossed(1, 2), crossed(2, 0), crossed(2, 1)], [0; 4]);
    assert_eq!(nodes.froms(1)[0].iter().collect::<std::collections::BTreeSet<_>>().len(), 2);
}

#[test]
fn late_viewer_gets_keyframe_from_other_node() {
    let mut nodes = Nodes::new(2);
    let publisher = nodes.nets[0].join("a", Role::Publisher, VIDEO, &[]);
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 0..20);
    assert_eq!(nodes.crossed(0, 1), 0, "no member of the other node wants it");
    let viewer = nodes.nets[1].join("b", Role::Viewer, &[], VIDEO);
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 20..60);
    let (numbers, keys) = nodes.nets[1].seen(viewer);
    assert_eq!(numbers.last(), Some(&59));
    assert!(numbers.len() >= 38 && (1..=2).contains(&keys), "{numbers:?}, {keys} keyframes");
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

#[test]
fn tracks_end_with_their_member_or_its_node() {
    let mut nodes = Nodes::new(2);
    let [one, other] = ["a", "b"].map(|name| nodes.nets[0].join(name, Role::Publisher, VIDEO, &[]));
    let member = nodes.nets[1].join("c", Role::Member, VIDEO, &[]);
    nodes.run(SETTLED);
    assert_eq!(nodes.froms(1)[0].len(), 2);
    let id = nodes.nets[0].clients[one].id;
    let Net { switch, in_flight, now, .. } = &mut nodes.nets[0];
    switch.leave(id, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    nodes.run(SETTLED);
    assert_eq!(nodes.froms(1), [["b"]]);
    nodes.talk(0, other, 0..10);
    assert_eq!(nodes.nets[1].seen(member).0, (0..10).collect::<Vec<u32>>());
    // The other node dies abruptly.
    let mut alone = Nodes { nets: vec![nodes.nets.pop().unwrap()], names: vec![nodes.names.pop().unwrap()] };
    alone.run(Duration::from_secs(7));
    assert_eq!(alone.froms(0), [[""; 0]]);
    assert_eq!(alone.nets[0].switch.mesh().unwrap().links().count(), 0);
}

#[test]
fn muted_track_does_not_cross_the_link() {
    let mut nodes = Nodes::new(2);
    let publisher = nodes.nets[0].join("a", Role::Publisher, VIDEO, &[]);
    let viewer = nodes.nets[1].join("b", Role::Viewer, &[], VIDEO);
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 0..10);
    let id = nodes.nets[0].clients[publisher].id;
    let mute = |nodes: &mut Nodes, video| {
        let Net { switch, in_flight, now, .. } = &mut nodes.nets[0];
        let send = &mut |to, datagram| in_flight.push((to, datagram));
        switch.mute(id, Muted { audio: false, video }, *now, send);
    };
    mute(&mut nodes, true);
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 10..20);
    assert_eq!(nodes.crossed(0, 1), 10);
    mute(&mut nodes, false);
    nodes.run(SETTLED);
    nodes.talk(0, publisher, 20..40);
    let (numbers, _) = nodes.nets[1].seen(viewer);
    assert_eq!(numbers[..10], (0..10).collect::<Vec<u32>>());
    assert!(numbers[10] >= 20 && numbers.last() == Some(&39), "{numbers:?}");
}

#[test]
fn speaker_on_other_node_is_active_speaker() {
    let mut nodes = Nodes::new(2);
    let speaker = nodes.nets[0].join("a", Role::Member, AUDIO, &[]);
    let listener = nodes.nets[1].join("b", Role::Member, AUDIO, &[]);
    nodes.run(SETTLED);
    let speak = |nodes: &mut Nodes, levels: [i8; 2]| {
        for n in 0..75 {
            for (node, (at, level)) in [speaker, listener].into_iter().zip(levels).enumerate() {
                let Net { clients, now, .. } = &mut nodes.nets[node];
                let client = &mut clients[at];
                client.end.set_audio_level(0, level);
                client.end.send(0, (n * 960, false, [7; 80].into()), *now, &mut client.out).unwrap();
            }
            nodes.run(Duration::from_millis(20));
        }
        let has_floor = |net: &Net| net.switch.reports("room", net.now)[0].has_floor;
        [has_floor(&nodes.nets[0]), has_floor(&nodes.nets[1])]
    };
    assert_eq!(speak(&mut nodes, [-80, -25]), [false, true]);
    assert_eq!(speak(&mut nodes, [-25, -80]), [true, false], "both nodes agree");
}

#[test]
fn publishers_with_one_name_are_different_members() {
    let mut nodes = Nodes::new(3);
    let publishers = [0, 0, 1].map(|node| (node, nodes.nets[node].join("whip", Role::Publisher, VIDEO, &[])));
    let viewer = nodes.nets[2].join("b", Role::Viewer, &[], &[MediaKind::Video; 3]);
    nodes.run(SETTLED);
    assert_eq!(nodes.froms(2), [["whip"; 3]]);
    for (node, publisher) in publishers {
        nodes.talk(node, publisher, 0..10);
    }
    assert_eq!(nodes.nets[2].seen(viewer).0.len(), 30);
}

#[test]
fn participant_that_moved_is_shown_once() {
    let mut nodes = Nodes::new(3);
    nodes.nets[0].join("a", Role::Member, VIDEO, &[]);
    let watcher = nodes.nets[1].join("b", Role::Member, VIDEO, &[]);
    nodes.run(SETTLED);
    // Its old node has not noticed yet that the participant has left.
    let moved = nodes.nets[2].join("a", Role::Member, VIDEO, &[]);
    nodes.run(SETTLED);
    assert_eq!(nodes.froms(1), [["a"]]);
    nodes.talk(2, moved, 0..10);
    assert_eq!(nodes.nets[1].seen(watcher).0, (0..10).collect::<Vec<u32>>());
    assert_eq!(nodes.crossed(0, 1), 0);
}

/// A node that offers the track of a participant which is on another node, by the roster of the owner.
#[test]
fn track_of_false_node_is_refused() {
    let mut nodes = Nodes::new(3);
    let names = nodes.names.clone();
    let members = [("a".into(), names[0].clone()), ("b".into(), names[1].clone())];
    let roster = Roster { nodes: names.iter().cloned().collect(), members: members.into_iter().collect() };
    for net in &mut nodes.nets {
        net.switch.set_roster("room", roster.clone(), net.now, &mut |_, _| {});
    }
    let true_one = nodes.nets[0].join("a", Role::Member, VIDEO, &[]);
    let watcher = nodes.nets[1].join("b", Role::Member, VIDEO, &[]);
    nodes.run(SETTLED);
    let false_one = nodes.nets[2].join("a", Role::Member, VIDEO, &[]);
    nodes.run(SETTLED);
    nodes.talk(2, false_one, 100..110);
    assert_eq!(nodes.crossed(2, 1), 0);
    nodes.talk(0, true_one, 0..10);
    assert_eq!(nodes.nets[1].seen(watcher).0, (0..10).collect::<Vec<u32>>());
}

#[test]
fn shared_screen_is_marked_on_other_nodes() {
    let mut nodes = Nodes::new(2);
    nodes.nets[1].join("b", Role::Member, VIDEO, &[]);
    let Net { switch, in_flight, now, clients, .. } = &mut nodes.nets[0];
    let address = "127.0.0.1:2000".parse().unwrap();
    let (mut end, offer) = MediaClient::offer(address, VIDEO, &[], *now);
    let offer = format!("{offer}a=content:slides\r\n");
    let send = &mut |to, datagram| in_flight.push((to, datagram));
    let (id, answer) = switch.join("room", ("a", Role::Member), &offer, *now, send).unwrap();
    end.accept(&answer).unwrap();
    clients.push(Client { id, end, address, out: Out::default() });
    nodes.run(2 * SETTLED);
    let remotes = nodes.nets[1].switch.remotes.as_ref().unwrap();
    assert_eq!(remotes.tracks_of(0).map(|track| track.name).collect::<Vec<_>>(), ["a.screen"]);
}

/// Two nodes as a host runs them: a link begins when its encrypted channel opens. `disturb` changes the datagrams
/// between them. Returns the numbers of the frames that each of two members has received of the other one.
fn exchange_over_channels(mut disturb: impl FnMut(usize, Vec<Vec<u8>>) -> Vec<Vec<u8>>) -> (Nodes, [Vec<u32>; 2]) {
    let mut nodes = Nodes::new(2);
    let names = nodes.names.clone();
    let address = |at: usize| SocketAddr::from(([127, 0, 0, 1], 3000 + at as u16));
    let announcements = [0, 1].map(|at| Announcement {
        node: names[at].clone(),
        address: address(at),
        fingerprint: fingerprint(),
        version: VERSION,
    });
    let mut channels = names.clone().into_iter().map(Channels::new).collect::<Vec<_>>();
    for at in [0, 1] {
        let now = nodes.nets[at].now;
        nodes.nets[at].switch.remove_link(&names[1 - at], now, &mut |_, _| {});
        channels[at].set_nodes(&announcements, now);
        channels[at].open(&names[1 - at], now);
    }
    let mut run = |nodes: &mut Nodes, span: Duration| {
        for _ in 0..span.as_millis() / STEP.as_millis() {
            for at in [0, 1] {
                nodes.nets[at].run(STEP);
                let Net { switch, in_flight, now, .. } = &mut nodes.nets[at];
                let send = &mut |to, datagram| in_flight.push((to, datagram));
                channels[at].handle_timeout(*now);
                while let Some(ChannelEvent::Opened(node)) = channels[at].poll_event() {
                    switch.add_link(node, 1, *now, send);
                }
                while let Some((to, frame)) = switch.poll_link_frame() {
                    channels[at].send(&to, frame);
                }
                let mut datagrams = Vec::new();
                while let Some((to, datagram)) = channels[at].poll_datagram() {
                    assert_eq!(to, address(1 - at));
                    datagrams.push(datagram);
                }
                for datagram in disturb(at, datagrams) {
                    let Net { switch, in_flight, now, .. } = &mut nodes.nets[1 - at];
                    let send = &mut |to, datagram| in_flight.push((to, datagram));
                    if let Some((from, frame)) = channels[1 - at].handle_datagram(address(at), &datagram, *now) {
                        switch.handle_link_frame(&from, &frame, *now, send);
                    }
                }
            }
        }
    };
    let members = [0, 1].map(|at| nodes.nets[at].join(&format!("m{at}"), Role::Member, VIDEO, &[]));
    run(&mut nodes, 2 * SETTLED);
    for n in 0..50_u32 {
        for (at, member) in members.into_iter().enumerate() {
            let Net { clients, now, .. } = &mut nodes.nets[at];
            let client = &mut clients[member];
            let payload = [&[0x10, u8::from(n > 0)], n.to_be_bytes().as_slice(), &[7; 500]].concat().into();
            client.end.send(0, (n * 1800, true, payload), *now, &mut client.out).unwrap();
        }
        run(&mut nodes, Duration::from_millis(20));
    }
    run(&mut nodes, SETTLED);
    let seen = [0, 1].map(|at| nodes.nets[at].seen(members[at]).0);
    (nodes, seen)
}

#[test]
fn members_receive_over_encrypted_channels() {
    let (nodes, seen) = exchange_over_channels(|_, datagrams| datagrams);
    assert_eq!(seen, [(); 2].map(|()| (0..50).collect::<Vec<u32>>()));
    assert_eq!([nodes.crossed(0, 1), nodes.crossed(1, 0)], [50, 50]);
}

/// Every frame also arrives cut and changed, most arrive twice, and every fifth one late, behind the next frames.
#[test]
fn damaged_and_reordered_datagrams_lose_no_packet() {
    let (mut late, mut count) = ([Vec::new(), Vec::new()], 0_usize);
    let (_, seen) = exchange_over_channels(|at, datagrams| {
        let late: &mut Vec<(usize, Vec<u8>)> = &mut late[at];
        let mut out = Vec::new();
        late.retain_mut(|(steps, datagram)| {
            *steps -= 1;
            if *steps == 0 {
                out.push(std::mem::take(datagram));
            }
            *steps > 0
        });
        for datagram in datagrams {
            count += 1;
            let mut changed = datagram.clone();
            let middle = changed.len() / 2;
            changed[middle] ^= 0x55;
            // Only frames: a damaged handshake is repeated, which other tests show.
            if !is_frame(&datagram) {
                out.push(datagram);
                continue;
            }
            out.extend([datagram[..middle].to_vec(), changed]);
            match count.is_multiple_of(5) {
                true => late.push((6, datagram)),
                false => out.extend([datagram.clone(), datagram]),
            }
        }
        out
    });
    for mut numbers in seen {
        numbers.sort_unstable();
        assert_eq!(numbers, (0..50).collect::<Vec<u32>>());
    }
}
