use millrace_link::{Flow, Packet, Time};

use super::IpPacket;

/// A packet with the time at which it was handed to the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    pub packet: IpPacket,
    pub arrival: Time,
}

impl Packet for Stamped {
    fn bytes(&self) -> usize {
        self.packet.bytes()
    }

    fn flow(&self) -> Option<Flow> {
        self.packet.flow()
    }

    fn is_opening(&self) -> bool {
        self.packet.is_opening()
    }

    fn corrupt(&mut self, bit: usize) {
        self.packet.corrupt(bit);
    }

    fn reset(&self) -> Option<Self> {
        Some(Self { packet: self.packet.reset()?, arrival: self.arrival })
    }
}
