//! Members without transport-wide congestion control: the SFU reports its estimate to them, and obeys theirs.

use super::*;

/// Removes the transport-wide sequence numbers from an offer, as if the client did not know them.
fn without_numbers(offer: String) -> String {
    let is_kept = |line: &&str| !line.contains("transport-wide-cc") && !line.ends_with(" transport-cc\r\n");
    offer.split_inclusive('\n').filter(is_kept).collect()
}

/// Removes absolute send times, too.
fn without_send_times(offer: String) -> String {
    without_numbers(offer).split_inclusive('\n').filter(|line| !line.contains("abs-send-time")).collect()
}

impl Net {
    /// Returns the estimates in bit/s that a client has received, and forgets them.
    fn take_estimates(&mut self, at: usize) -> Vec<u64> {
        let mut estimates = Vec::new();
        self.clients[at].out.events.retain(|event| match event {
            MediaEvent::Estimate { bits_per_s, .. } => {
                estimates.push(*bits_per_s);
                false
            }
            _ => true,
        });
        estimates
    }

    /// Sends video frames of one packet each, 20 ms apart, over a path that carries one datagram per `carry_ms`.
    fn talk_slowly(&mut self, from: usize, frames: u64, carry_ms: u64) {
        let mut queue = VecDeque::new();
        for ms in 0..frames * 20 {
            if ms.is_multiple_of(20) {
                self.clients[from].out.events.retain(|event| !matches!(event, MediaEvent::KeyframeWanted { .. }));
                let client = &mut self.clients[from];
                let payload: Arc<[u8]> = [&[0x10, 0][..], &[7; 500]].concat().into();
                // The library takes the send time from its newest input.
                client.end.handle_timeout(self.now, &mut client.out).unwrap();
                client.end.send(0, (ms as u32 * 90, true, payload), self.now, &mut client.out).unwrap();
                queue.extend(client.out.datagrams.drain(..));
            }
            if ms.is_multiple_of(carry_ms) {
                self.clients[from].out.datagrams.extend(queue.pop_front());
            }
            if ms.is_multiple_of(5) {
                self.run(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn publisher_without_numbers_receives_estimate_each_second() {
    let changes: [fn(String) -> String; 3] = [without_numbers, without_send_times, |offer| offer];
    for (change, is_reported) in changes.into_iter().zip([true, true, false]) {
        let mut net = Net::new();
        let publisher = net.join_with("a", Role::Publisher, (VIDEO, &[]), change);
        net.join("b", Role::Viewer, &[], VIDEO);
        net.run(SETTLED);
        assert_eq!(net.take_estimates(publisher), [0; 0], "nothing was sent");
        net.talk_slowly(publisher, 500, 10);
        let estimates = net.take_estimates(publisher);
        if !is_reported {
            assert_eq!(estimates, [0; 0], "this client measures the path itself");
            continue;
        }
        assert!((9..=11).contains(&estimates.len()), "{estimates:?}");
        assert!(estimates.iter().all(|estimate| *estimate >= 990_000), "the path is wide: {estimates:?}");
    }
}

#[test]
fn fall_of_estimate_is_reported_at_once() {
    for change in [without_numbers, without_send_times] {
        let mut net = Net::new();
        let publisher = net.join_with("a", Role::Member, (VIDEO, &[]), change);
        net.run(SETTLED);
        net.talk_slowly(publisher, 250, 10);
        net.take_estimates(publisher);
        // 500 bytes each 40 ms: the path carries half of what is sent.
        net.talk_slowly(publisher, 150, 40);
        let estimates = net.take_estimates(publisher);
        assert!(estimates.iter().any(|estimate| *estimate < 100_000), "{estimates:?}");
        assert!(estimates.iter().all(|estimate| *estimate >= 30_000), "{estimates:?}");
    }
}

#[test]
fn viewer_without_numbers_is_limited_by_its_estimate() {
    let mut net = Net::new();
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    let viewer = net.join_with("b", Role::Viewer, (&[], VIDEO), without_numbers);
    net.run(SETTLED);
    net.talk(publisher, 50);
    let estimate = |net: &Net| net.switch.reports("room", net.now)[1].estimate_kbps;
    assert_eq!(estimate(&net), None);
    let client = &mut net.clients[viewer];
    client.end.report_estimate(0, 123_000, &mut client.out).unwrap();
    net.talk(publisher, 5);
    assert_eq!(estimate(&net), Some(123));
    assert_eq!(net.seen(viewer).0.len(), 55);
}
