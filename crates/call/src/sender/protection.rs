use crate::fec::{self, GROUP_MAX};

/// Decides how many packets one packet of forward error correction protects, and collects them.
#[derive(Debug, Default)]
pub struct Protection {
    /// Number of packets that one packet protects. `None`: no protection.
    group: Option<usize>,
    packets: Vec<Vec<u8>>,
}

/// Losses below this are left to retransmissions.
const LOSS_MIN: f64 = 0.01;
/// A group has half a lost packet on average: most groups can be restored.
const LOST_PER_GROUP: f64 = 0.5;
const GROUP_MIN: usize = 2;

impl Protection {
    pub fn set_loss(&mut self, loss: f64) {
        let group = (LOST_PER_GROUP / loss) as usize;
        self.group = (loss >= LOSS_MIN).then_some(group.clamp(GROUP_MIN, GROUP_MAX));
        if self.group.is_none() {
            self.packets.clear();
        }
    }

    /// Adds a packet, and returns the payload of the packet that protects its group once the group is complete.
    pub fn add(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let group = self.group?;
        self.packets.push(packet.to_vec());
        if self.packets.len() < group {
            return None;
        }
        let payload = fec::protect(&self.packets);
        self.packets.clear();
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_loss_makes_smaller_groups() {
        let group = |loss| {
            let mut protection = Protection::default();
            protection.set_loss(loss);
            protection.group
        };
        let groups = [0.0, 0.009, 0.01, 0.05, 0.1, 0.19, 0.4, 1.0, f64::NAN].map(group);
        assert_eq!(groups, [None, None, Some(16), Some(10), Some(5), Some(2), Some(2), Some(2), None]);
    }
}
