use std::collections::VecDeque;

use millrace_mqtt::{Action, Connect, Filter, Frame, Options, Saved, Session, Settings, Version};
use millrace_protocol::{
    ChannelName, Epoch, Position,
    encoding::record::{PublicationRecord, QOS_ANY},
};
use rand_pcg::{Pcg32, rand_core::Rng};

use crate::client::Client;

const SETTINGS: Settings = Settings { packet_bytes_max: 4096, session_expiry_max_s: 60, publisher: 1 };
const RECEIVE_MAX: u16 = 5;

/// One session over many connections, beside the log of its channel.
struct World {
    random: Pcg32,
    qos: u8,
    session: Session,
    client: Client,
    /// Packets of the server that the network has not carried.
    packets: VecDeque<Vec<u8>>,
    log: u64,
    /// Next offset that the hub offers.
    cursor: u64,
}

impl World {
    fn new(seed: u64, qos: u8) -> Self {
        let mut world = Self {
            random: Pcg32::new(seed, 1),
            qos,
            session: session(None),
            client: Client::default(),
            packets: VecDeque::new(),
            log: 0,
            cursor: 1,
        };
        let options = Options { qos, ..Options::default() };
        world.session.subscribe(&Filter::parse("a").expect("a filter"), options, 0);
        world.session.begin_at(&channel(), at(0));
        world
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.next_u32() % bound
    }

    /// The hub offers what follows the cursor, until the session takes nothing more.
    fn deliver(&mut self) {
        while self.cursor <= self.log {
            let payload = self.cursor.to_string();
            let record = PublicationRecord {
                channel: "a",
                position: at(self.cursor),
                time_ms: 1,
                expires_ms: None,
                qos: QOS_ANY,
                is_retained: false,
                publisher: 0,
                properties: &[],
                trace: &[],
                payload: payload.as_bytes(),
            };
            let mut out = Vec::new();
            if !self.session.deliver(&record, 0, &mut out) {
                return;
            }
            self.cursor += 1;
            self.send(&out);
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(frame) = Frame::decode(rest, 4096).expect("the server sends whole packets") {
            self.packets.push_back(rest[..frame.bytes].to_vec());
            rest = &rest[frame.bytes..];
        }
        assert!(rest.is_empty());
    }

    fn carry_down(&mut self) {
        if let Some(packet) = self.packets.pop_front() {
            self.client.handle(&packet);
        }
    }

    fn carry_up(&mut self) {
        if let Some(answer) = self.client.answers.pop_front() {
            let mut out = Vec::new();
            let frame = Frame::decode(&answer, 4096).expect("a packet").expect("a whole packet");
            let action = self.session.handle(frame, &mut out).expect("a regular client");
            assert!(matches!(action, Action::Nothing | Action::Continue));
            self.send(&out);
        }
    }

    /// Loses the connection, with all packets that the network has not carried, and reconnects.
    fn cut(&mut self) {
        let ended = std::mem::replace(&mut self.session, session(None));
        let saved = ended.end().expect("the session outlives its connection");
        self.session = session(Some(saved));
        self.packets.clear();
        self.client.cut();
        self.cursor = self.session.position(&channel()).expect("a position").offset + 1;
        let mut out = Vec::new();
        self.session.resend(&mut out);
        self.send(&out);
    }

    fn run(&mut self) {
        for _ in 0..400 {
            match self.below(20) {
                0..=5 => self.log += 1,
                6..=11 => self.carry_down(),
                12..=17 => self.carry_up(),
                18 => self.cut(),
                _ => {}
            }
            self.deliver();
        }
        while !self.packets.is_empty() || !self.client.answers.is_empty() {
            self.carry_down();
            self.carry_up();
            self.deliver();
        }
    }
}

fn session(saved: Option<Saved>) -> Session {
    let connect = Connect {
        version: Version::V5,
        client_id: "c".into(),
        is_clean: false,
        keep_alive_s: 0,
        session_expiry_s: 60,
        receive_max: RECEIVE_MAX,
        packet_bytes_max: u32::MAX,
        alias_max: 0,
        user_name: None,
        password: None,
        will: None,
    };
    Session::new(&connect, SETTINGS, saved)
}

fn channel() -> ChannelName {
    ChannelName::parse("a").expect("a name")
}

fn at(offset: u64) -> Position {
    Position { epoch: Epoch(1), offset }
}

#[test]
fn every_publication_arrives_as_its_quality_promises() {
    let (mut repeated, mut cut_short) = (0, 0);
    for seed in 0..3000 {
        for qos in [1, 2] {
            let mut world = World::new(seed, qos);
            world.run();
            let Client { received, repeated: retransmitted, open_max, .. } = &world.client;
            let expected: Vec<u64> = (1..=world.log).collect();
            match world.qos {
                2 => assert_eq!(*received, expected, "seed {seed}: exactly once, in order"),
                _ => {
                    let mut first = received.clone();
                    let mut seen = std::collections::BTreeSet::new();
                    first.retain(|offset| seen.insert(*offset));
                    assert_eq!(first, expected, "seed {seed}: at least once, in order");
                }
            }
            assert!(*open_max <= RECEIVE_MAX.into(), "seed {seed}: {open_max} unacknowledged publications");
            repeated += retransmitted;
            cut_short += usize::from(received.len() > expected.len());
        }
    }
    assert!(repeated > 1000 && cut_short > 100, "the cuts had an effect: {repeated} {cut_short}");
}
