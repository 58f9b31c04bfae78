//! Members that lose their connection and join again, as a page does that is reloaded.

use str0m::media::Mid;

use super::*;

/// A room in which `b` receives the video of `a`.
struct Pair {
    net: Net,
    a: usize,
    b: usize,
}

impl Pair {
    fn new() -> Self {
        let mut net = Net::new();
        let (a, b) = (net.join("a", Role::Member, VIDEO, &[]), net.join("b", Role::Member, VIDEO, &[]));
        net.run(SETTLED);
        net.talk(a, 10);
        assert_eq!(net.seen(b).0.len(), 10);
        net.clients[b].out.events.clear();
        // From now on, an offer to `b` stays unanswered, so the test sees it.
        net.unanswering = Some(net.clients[b].id);
        Self { net, a, b }
    }

    /// Ends the connection of `a`. `returns`: whether the SFU expects another one.
    fn end(&mut self, returns: bool) {
        let id = self.net.clients[self.a].id;
        let Net { switch, in_flight, now, .. } = &mut self.net;
        let send = &mut |to, datagram| in_flight.push((to, datagram));
        if returns {
            switch.disconnect(id, *now, send)
        } else {
            switch.leave(id, *now, send)
        }
        self.net.run(Duration::from_millis(100));
    }

    fn lines(&mut self) -> Vec<Mid> {
        self.net.switch.member(self.net.clients[self.b].id).unwrap().slots.iter().map(|slot| slot.mid).collect()
    }

    fn has_offer(&mut self) -> bool {
        self.net.switch.member(self.net.clients[self.b].id).unwrap().pending.is_some()
    }
}

#[test]
fn line_is_used_again_without_offer() {
    let mut pair = Pair::new();
    let before = pair.lines();
    pair.end(true);
    let a = pair.net.join("a", Role::Member, VIDEO, &[]);
    pair.net.run(SETTLED);
    assert_eq!((pair.has_offer(), pair.lines()), (false, before), "no offer, and the same line");
    pair.net.talk(a, 30);
    let (numbers, keys) = pair.net.seen(pair.b);
    assert_eq!(numbers, (0..30).collect::<Vec<u32>>());
    assert!(keys >= 1);
    // The other direction: the new connection receives b.
    pair.net.talk(pair.b, 10);
    assert_eq!(pair.net.seen(a).0.len(), 10);
}

#[test]
fn line_ends_when_member_leaves() {
    let mut pair = Pair::new();
    pair.end(false);
    assert!(pair.has_offer());
    let mut pair = Pair::new();
    pair.end(true);
    assert!(!pair.has_offer());
    let Net { switch, in_flight, now, .. } = &mut pair.net;
    switch.release("room", "a", *now, &mut |to, datagram| in_flight.push((to, datagram)));
    assert!(pair.has_offer() && pair.lines().is_empty(), "it left while it was away");
}

#[test]
fn line_ends_after_15_seconds() {
    let mut pair = Pair::new();
    pair.end(true);
    pair.net.run(Duration::from_secs(14));
    assert!(!pair.has_offer());
    pair.net.run(Duration::from_secs(3));
    assert!(pair.has_offer() && pair.lines().is_empty());
}

#[test]
fn line_of_another_kind_or_owner_is_not_used() {
    let mut pair = Pair::new();
    pair.end(true);
    let before = pair.lines();
    pair.net.join("c", Role::Member, VIDEO, &[]);
    pair.net.run(SETTLED);
    assert!(pair.has_offer() && pair.lines() == before, "a line for c is offered, and that of a is kept");
    let mut pair = Pair::new();
    pair.end(true);
    pair.net.join("a", Role::Member, AUDIO, &[]);
    pair.net.run(Duration::from_secs(4));
    let slots = &pair.net.switch.member(pair.net.clients[pair.b].id).unwrap().slots;
    assert!(slots[0].is_unused(), "a has returned without its video");
}
