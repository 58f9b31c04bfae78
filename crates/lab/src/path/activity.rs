//! Times and sizes of the packets that the devices at the near end of a link have sent and received.

use std::net::Ipv4Addr;

use millrace_link::{Direction, Time};

/// Maximum number of packets, which take 32 MB.
pub const PACKETS_MAX: usize = 2_000_000;

/// Packet of a device: one that it sent (up), or one that it received (down).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePacket {
    pub at: Time,
    pub device: Ipv4Addr,
    pub direction: Direction,
    /// Size at IP level.
    pub bytes: u16,
}

/// Log of packets in time order. It never has more than [`PACKETS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct Activity {
    packets: Vec<DevicePacket>,
    is_cut: bool,
}

impl Activity {
    pub(super) fn record(&mut self, packet: DevicePacket) {
        if self.packets.len() < PACKETS_MAX {
            self.packets.push(packet);
        } else {
            self.is_cut = true;
        }
    }

    /// Returns all packets, or `None` if there were more than [`PACKETS_MAX`].
    pub fn packets(&self) -> Option<&[DevicePacket]> {
        (!self.is_cut).then_some(&self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_that_is_cut_has_no_packets() {
        let packet = DevicePacket { at: Time::ZERO, device: Ipv4Addr::LOCALHOST, direction: Direction::Up, bytes: 40 };
        let mut activity = Activity::default();
        (0..PACKETS_MAX).for_each(|_| activity.record(packet));
        assert_eq!(activity.packets().map(<[_]>::len), Some(PACKETS_MAX));
        activity.record(packet);
        assert_eq!((activity.packets(), activity.packets.len()), (None, PACKETS_MAX));
    }
}
