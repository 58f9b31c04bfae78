mod cascaded;
mod composed;
mod estimates;
mod mixed;
mod muted;
mod returning;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_room::Muted;
use millrace_rtc::ConnectionError;
use str0m::media::MediaKind;

use super::*;
use crate::{MediaClient, MediaEvent, MediaOutput, congestion::Algorithm, mixer::Input};

/// Clients around an SFU, with simulated time. Every `lose`th datagram from the SFU is lost (0: none).
struct Net {
    switch: Switch,
    clients: Vec<Client>,
    now: Instant,
    lose: usize,
    sent: usize,
    in_flight: Vec<(SocketAddr, Vec<u8>)>,
    /// Member that ignores the offers of the SFU.
    unanswering: Option<MemberId>,
}

struct Client {
    id: MemberId,
    end: MediaClient,
    address: SocketAddr,
    out: Out,
}

#[derive(Default)]
struct Out {
    datagrams: VecDeque<Vec<u8>>,
    events: Vec<MediaEvent>,
}

impl MediaOutput for Out {
    fn send(&mut self, _: SocketAddr, datagram: Vec<u8>) {
        self.datagrams.push_back(datagram);
    }
    fn event(&mut self, event: MediaEvent) {
        self.events.push(event);
    }
}

impl Net {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    fn new() -> Self {
        let switch = Switch::new(switch_address().into(), 100, 20);
        Self {
            switch,
            clients: Vec::new(),
            now: Instant::now(),
            lose: 0,
            sent: 0,
            in_flight: Vec::new(),
            unanswering: None,
        }
    }

    fn join(&mut self, name: &str, role: Role, sends: &[MediaKind], receives: &[MediaKind]) -> usize {
        self.join_with(name, role, (sends, receives), |offer| offer)
    }

    /// Joins with an offer that `change` has changed.
    fn join_with(
        &mut self,
        name: &str,
        role: Role,
        (sends, receives): (&[MediaKind], &[MediaKind]),
        change: impl FnOnce(String) -> String,
    ) -> usize {
        let address = self.next_address();
        let (end, offer) = MediaClient::offer(address, sends, receives, self.now);
        self.admit((name, role), address, (end, change(offer)), VideoCodecs::All)
    }

    /// Joins with a client that sends and receives H.264, as in a room with composite video.
    fn join_h264(&mut self, name: &str, role: Role, sends: &[MediaKind], receives: &[MediaKind]) -> usize {
        let address = self.next_address();
        let offered = MediaClient::offer_h264(address, sends, receives, self.now);
        self.admit((name, role), address, offered, VideoCodecs::Composite)
    }

    fn next_address(&self) -> SocketAddr {
        format!("127.0.0.1:{}", 2000 + self.clients.len()).parse().unwrap()
    }

    fn admit(
        &mut self,
        who: (&str, Role),
        address: SocketAddr,
        (mut end, offer): (MediaClient, String),
        codecs: VideoCodecs,
    ) -> usize {
        let Self { switch, in_flight, now, .. } = self;
        let send = &mut |to, datagram| in_flight.push((to, datagram));
        let (id, answer) = switch.join_with("room", who, (&offer, codecs), *now, send).unwrap();
        end.accept(&answer).unwrap();
        self.clients.push(Client { id, end, address, out: Out::default() });
        self.clients.len() - 1
    }

    /// Runs the network for the time `span`, and answers the SFU's offers.
    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            loop {
                let mut moved = false;
                for at in 0..self.clients.len() {
                    while let Some(datagram) = self.clients[at].out.datagrams.pop_front() {
                        moved = true;
                        let Self { switch, in_flight, now, clients, .. } = self;
                        let send = &mut |to, datagram| in_flight.push((to, datagram));
                        switch.handle_datagram(*now, clients[at].address, &datagram, send);
                    }
                }
                for (to, datagram) in std::mem::take(&mut self.in_flight) {
                    moved = true;
                    self.sent += 1;
                    if self.lose > 0 && self.sent.is_multiple_of(self.lose) {
                        continue;
                    }
                    if let Some(client) = self.clients.iter_mut().find(|client| client.address == to) {
                        let addresses = (switch_address(), client.address);
                        let _ = client.end.handle_datagram(self.now, addresses, &datagram, &mut client.out);
                    }
                }
                while let Some(event) = self.switch.poll_event() {
                    if let Event::Offer(id, offer) = event
                        && self.unanswering != Some(id)
                    {
                        moved = true;
                        let client = self.clients.iter_mut().find(|client| client.id == id).unwrap();
                        let answer = client.end.answer(&offer).unwrap();
                        let Self { switch, in_flight, now, .. } = self;
                        let send = &mut |to, datagram| in_flight.push((to, datagram));
                        switch.accept_answer(id, &answer, *now, send).unwrap();
                    }
                }
                if !moved {
                    break;
                }
            }
            self.now += Duration::from_millis(5);
            let Self { switch, in_flight, now, clients, .. } = self;
            switch.handle_timeouts(*now, &mut |to, datagram| in_flight.push((to, datagram)));
            for client in clients {
                if client.end.timeout() <= *now {
                    let _ = client.end.handle_timeout(*now, &mut client.out);
                }
            }
        }
    }

    /// Sends this number of video frames, one packet each, 20 ms apart. The first frame and each requested one are
    /// keyframes.
    fn talk(&mut self, from: usize, frames: usize) {
        let mut key = true;
        for n in 0..frames {
            key |= self.clients[from].out.events.iter().any(|event| matches!(event, MediaEvent::KeyframeWanted { .. }));
            self.clients[from].out.events.retain(|event| !matches!(event, MediaEvent::KeyframeWanted { .. }));
            let client = &mut self.clients[from];
            // A descriptor without extension, and the header of the frame: its lowest bit is 0 for a keyframe.
            let payload: Arc<[u8]> =
                [&[0x10, u8::from(!key)], (n as u32).to_be_bytes().as_slice(), &[7; 500]].concat().into();
            client.end.send(0, (n as u32 * 1800, true, payload), self.now, &mut client.out).unwrap();
            key = false;
            self.run(Duration::from_millis(20));
        }
    }

    /// Returns the numbers of the frames that a client received, and the number of keyframes among them.
    fn seen(&self, at: usize) -> (Vec<u32>, usize) {
        let packets = self.clients[at].out.events.iter().filter_map(|event| match event {
            MediaEvent::Packet { payload, .. } => Some(payload),
            _ => None,
        });
        let (mut numbers, mut keys) = (Vec::new(), 0);
        for payload in packets {
            numbers.push(u32::from_be_bytes(payload[2..6].try_into().unwrap()));
            keys += usize::from(payload[1] == 0);
        }
        (numbers, keys)
    }
}

fn switch_address() -> SocketAddr {
    "127.0.0.1:1000".parse().unwrap()
}

const VIDEO: &[MediaKind] = &[MediaKind::Video];
const AUDIO: &[MediaKind] = &[MediaKind::Audio];
const SETTLED: Duration = Duration::from_secs(1);

#[test]
fn viewers_receive_packets_once_in_order() {
    let mut net = Net::new();
    net.switch.set_congestion_control(Algorithm::Nada);
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    let viewers = [net.join("b", Role::Viewer, &[], VIDEO), net.join("c", Role::Viewer, &[], VIDEO)];
    net.run(SETTLED);
    net.talk(publisher, 100);
    for viewer in viewers {
        let (numbers, _) = net.seen(viewer);
        assert_eq!(numbers, (0..100).collect::<Vec<u32>>());
    }
    assert_eq!(net.switch.forwarded(), 200);
    let reports = net.switch.reports("room", net.now);
    assert_eq!(reports.iter().map(|report| report.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(reports.iter().all(|report| report.is_connected), "{reports:?}");
    let algorithms = reports.iter().map(|report| report.congestion_control).collect::<Vec<_>>();
    assert_eq!(algorithms, [None, Some("nada"), Some("nada")], "nothing is sent to the publisher");
    assert!(reports[0].sends[0].layers_kbps[0] > 150, "{reports:?}");
    assert_eq!((reports[1].receives[0].from.as_str(), reports[1].receives[0].packets), ("a", 100));
}

#[test]
fn late_viewer_triggers_one_keyframe_request() {
    let mut net = Net::new();
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    net.run(SETTLED);
    net.talk(publisher, 10);
    let viewers = [net.join("b", Role::Viewer, &[], VIDEO), net.join("c", Role::Viewer, &[], VIDEO)];
    net.run(SETTLED);
    net.talk(publisher, 20);
    for viewer in viewers {
        let (numbers, keys) = net.seen(viewer);
        assert_eq!(numbers.last(), Some(&19));
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert!((1..=2).contains(&keys), "{keys} key frames for two who came at once");
    }
}

#[test]
fn members_receive_tracks_until_owner_leaves() {
    let mut net = Net::new();
    let (a, b) = (net.join("a", Role::Member, VIDEO, &[]), net.join("b", Role::Member, VIDEO, &[]));
    net.run(SETTLED);
    let c = net.join("c", Role::Member, VIDEO, &[]);
    net.run(SETTLED);
    net.talk(a, 30);
    for other in [b, c] {
        assert_eq!(net.seen(other).0, (0..30).collect::<Vec<u32>>());
    }
    assert_eq!(net.seen(a).0, [0; 0], "nobody is sent their own");
    let id = net.clients[a].id;
    let Net { switch, in_flight, now, .. } = &mut net;
    switch.leave(id, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    net.run(SETTLED);
    let reports = net.switch.reports("room", net.now);
    let froms: Vec<Vec<&str>> =
        reports.iter().map(|report| report.receives.iter().map(|track| track.from.as_str()).collect()).collect();
    assert_eq!(froms, [["c"], ["b"]]);
    net.clients.iter_mut().for_each(|client| client.out.events.clear());
    net.talk(b, 10);
    assert_eq!(net.seen(c).0, (0..10).collect::<Vec<u32>>());
}

#[test]
fn crossed_offer_is_repeated() {
    let mut net = Net::new();
    let a = net.join("a", Role::Member, VIDEO, &[]);
    net.run(SETTLED);
    // The SFU's offer of b's track is still unanswered when the client makes an offer itself.
    let id = net.clients[a].id;
    net.unanswering = Some(id);
    let b = net.join("b", Role::Member, VIDEO, &[]);
    net.run(SETTLED);
    net.unanswering = None;
    let Net { switch, in_flight, clients, now, .. } = &mut net;
    let crossed = clients[a].end.offer_more(MediaKind::Video);
    let is_pending = |switch: &mut Switch| switch.member(id).unwrap().pending.is_some();
    let send = &mut |to, datagram| in_flight.push((to, datagram));
    assert!(is_pending(switch), "of what b sends");
    let answer = switch.accept_offer(id, &crossed, *now, send).unwrap();
    assert!(is_pending(switch), "made again");
    clients[a].end.accept(&answer).unwrap();
    net.run(SETTLED);
    net.clients[a].out.events.clear();
    net.talk(b, 10);
    assert_eq!(net.seen(a).0, (0..10).collect::<Vec<u32>>());
}

#[test]
fn lost_packet_is_retransmitted() {
    let mut net = Net::new();
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    let viewer = net.join("b", Role::Viewer, &[], VIDEO);
    net.run(SETTLED);
    net.lose = 10;
    net.talk(publisher, 200);
    net.lose = 0;
    net.run(SETTLED);
    let mut numbers = net.seen(viewer).0;
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.len() >= 195, "{} of 200", numbers.len());
}

#[test]
fn room_limits_members_and_ends_when_empty() {
    let mut net = Net::new();
    net.switch.room_members_max = 2;
    let a = net.join("a", Role::Publisher, VIDEO, &[]);
    net.join("b", Role::Viewer, &[], VIDEO);
    let (_, offer) = MediaClient::offer("127.0.0.1:9".parse().unwrap(), &[], VIDEO, net.now);
    let now = net.now;
    let third = net.switch.join("room", ("c", Role::Viewer), &offer, now, &mut |_, _| {});
    assert!(matches!(third, Err(Refused::RoomFull)));
    assert!(matches!(
        net.switch.join("other", ("c", Role::Viewer), "v=0", now, &mut |_, _| {}),
        Err(Refused::Offer(_))
    ));
    let id = net.clients[a].id;
    net.switch.leave(id, now, &mut |_, _| {});
    assert!(matches!(net.switch.accept_offer(id, &offer, now, &mut |_, _| {}), Err(Refused::Gone)));
    // The clients are silent from now on: the SFU removes both members and all their state.
    net.clients.clear();
    for _ in 0..100 {
        net.now += Duration::from_secs(1);
        let now = net.now;
        net.switch.handle_timeouts(now, &mut |_, _| {});
    }
    assert!(net.switch.is_empty() && net.switch.rooms.is_empty() && net.switch.rooms_by_name.is_empty());
    assert!(net.switch.by_ufrag.is_empty() && net.switch.by_address.is_empty());
}

#[test]
fn viewer_restarts_ice_without_rejoining() {
    let mut net = Net::new();
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    let viewer = net.join("b", Role::Viewer, &[], VIDEO);
    net.run(SETTLED);
    let id = net.clients[viewer].id;
    let now = net.now;
    let before = net.switch.member(id).unwrap().ufrag.clone();
    let fragment = net.switch.restart(id, ("abcd", "0123456789012345678901"), now, &mut |_, _| {}).unwrap();
    let after = fragment.lines().find_map(|line| line.strip_prefix("a=ice-ufrag:")).unwrap();
    assert!(fragment.contains("a=ice-pwd:") && fragment.contains("a=candidate:") && fragment.starts_with("a=ice-lite"));
    assert!(after != &*before && fragment.matches("m=").count() == 1, "{fragment}");
    assert!(!net.switch.by_ufrag.contains_key(&before) && net.switch.by_ufrag.contains_key(after));
    net.talk(publisher, 5);
    assert_eq!(net.seen(viewer).0.len(), 5, "until then the old path is used");
}

#[test]
fn library_panic_removes_one_member() {
    let mut net = Net::new();
    let publisher = net.join("a", Role::Publisher, VIDEO, &[]);
    let [broken, whole] = ["b", "c"].map(|name| net.join(name, Role::Viewer, &[], VIDEO));
    net.run(SETTLED);
    net.talk(publisher, 10);
    let id = net.clients[broken].id;
    let Net { switch, in_flight, now, clients, .. } = &mut net;
    let send = &mut |to, datagram| in_flight.push((to, datagram));
    let defect = |_: &mut str0m::Rtc| -> Result<(), ConnectionError> { panic!("a defect, as the test wants it") };
    assert_eq!(switch.work(id, *now, send, |member, collected| member.run(collected, defect)), None);
    assert_eq!(switch.poll_event(), Some(Event::Left { id, panicked: true }));
    clients.iter_mut().for_each(|client| client.out.events.clear());
    net.talk(publisher, 10);
    assert_eq!((net.seen(broken).0.len(), net.seen(whole).0), (0, (0..10).collect::<Vec<u32>>()));
    let reports = net.switch.reports("room", net.now);
    assert_eq!(reports.iter().map(|report| report.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
}

/// The levels come from the header extension of the packets; no audio is decoded.
#[test]
fn active_speaker_changes_when_louder_or_gone() {
    let mut net = Net::new();
    let members = ["a", "b", "c"].map(|name| net.join(name, Role::Member, AUDIO, &[]));
    net.run(SETTLED);
    let floor = |net: &Net| {
        let reports = net.switch.reports("room", net.now).into_iter();
        reports.filter(|report| report.has_floor).map(|report| report.name).collect::<Vec<_>>()
    };
    assert_eq!(floor(&net), [""; 0]);
    let speak = |net: &mut Net, levels: [i8; 3]| {
        for n in 0..75 {
            for (at, level) in members.iter().zip(levels) {
                let client = &mut net.clients[*at];
                client.end.set_audio_level(0, level);
                client.end.send(0, (n * 960, false, [7; 80].into()), net.now, &mut client.out).unwrap();
            }
            net.run(Duration::from_millis(20));
        }
    };
    speak(&mut net, [-80, -25, -80]);
    assert_eq!(floor(&net), ["b"]);
    speak(&mut net, [-80, -80, -30]);
    assert_eq!(floor(&net), ["c"]);
    let id = net.clients[members[2]].id;
    let Net { switch, in_flight, now, .. } = &mut net;
    switch.leave(id, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    assert_eq!(floor(&net), [""; 0]);
    speak(&mut net, [-30, -80, -80]);
    assert_eq!(floor(&net), ["a"]);
}
