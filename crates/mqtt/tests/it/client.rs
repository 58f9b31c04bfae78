//! A client of MQTT 5 that follows the rules of the standard, and records what it has received.

use std::collections::{BTreeSet, VecDeque};

/// Client with a session that outlives its connections.
#[derive(Default)]
pub struct Client {
    /// Identifiers of quality of service 2 for which PUBREL has not come.
    unreleased: BTreeSet<u16>,
    /// Payloads in the order in which the application received them.
    pub received: Vec<u64>,
    /// Answers that the network has not carried.
    pub answers: VecDeque<Vec<u8>>,
    /// Number of publications that came again with DUP.
    pub repeated: usize,
    /// Unacknowledged publications of this connection, and the largest number of them.
    pub open: BTreeSet<u16>,
    pub open_max: usize,
}

impl Client {
    /// Loses the connection, with all packets that the network has not carried.
    pub fn cut(&mut self) {
        self.answers.clear();
        self.open.clear();
    }

    /// Handles a packet of the server.
    pub fn handle(&mut self, packet: &[u8]) {
        let head = 1 + packet[1..].iter().position(|byte| byte & 0x80 == 0).expect("a length") + 1;
        let body = &packet[head..];
        match packet[0] >> 4 {
            3 => self.publish(packet[0] & 0x0f, body),
            6 => {
                let id = u16::from_be_bytes([body[0], body[1]]);
                self.unreleased.remove(&id);
                self.open.remove(&id);
                self.answers.push_back(vec![0x70, 2, body[0], body[1]]);
            }
            other => panic!("unexpected packet {other}"),
        }
    }

    fn publish(&mut self, flags: u8, body: &[u8]) {
        let qos = flags >> 1 & 3;
        let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
        let mut rest = &body[2 + topic..];
        let id = if qos > 0 { u16::from_be_bytes([rest[0], rest[1]]) } else { 0 };
        rest = if qos > 0 { &rest[2..] } else { rest };
        assert_eq!(rest[0], 0, "no properties");
        let payload = std::str::from_utf8(&rest[1..]).expect("text").parse().expect("a number");
        self.repeated += usize::from(flags & 8 != 0);
        if qos > 0 {
            self.open.insert(id);
            self.open_max = self.open_max.max(self.open.len());
        }
        let [high, low] = id.to_be_bytes();
        match qos {
            0 => self.received.push(payload),
            1 => {
                self.received.push(payload);
                self.open.remove(&id);
                self.answers.push_back(vec![0x40, 2, high, low]);
            }
            _ => {
                if self.unreleased.insert(id) {
                    self.received.push(payload);
                }
                self.answers.push_back(vec![0x50, 2, high, low]);
            }
        }
    }
}
