//! Computes the traffic of the readers of a run, and the energy of their radios, from the packets of an emulated link.

use std::{collections::HashMap, net::Ipv4Addr, time::Duration};

use millrace_link::Direction;

use crate::{
    energy::{self, Packet, Radio},
    path::activity::DevicePacket,
    recording::{ReaderEnergy, ReaderTraffic},
};

/// Returns the traffic of these readers from `start` to `end`, both since the start of the link.
///
/// Each reader has a radio of its own. The packets before `start` decide about the state of its radio at `start`, and
/// are not counted.
pub fn traffic(
    packets: &[DevicePacket],
    readers: impl IntoIterator<Item = Ipv4Addr>,
    (start, end): (Duration, Duration),
    radio: Option<&Radio>,
) -> ReaderTraffic {
    let devices: HashMap<Ipv4Addr, usize> =
        readers.into_iter().enumerate().map(|(index, device)| (device, index)).collect();
    let mut traffic = ReaderTraffic {
        readers: devices.len() as u64,
        seconds: end.saturating_sub(start).as_secs_f64(),
        ..ReaderTraffic::default()
    };
    let mut of_radios: Vec<Vec<Packet>> = vec![Vec::new(); devices.len()];
    for packet in packets {
        let Some(index) = devices.get(&packet.device) else { continue };
        let at = Duration::from_nanos(packet.at.ns());
        if at >= end {
            break;
        }
        let bytes = u64::from(packet.bytes);
        if radio.is_some() {
            let direction = match packet.direction {
                Direction::Up => energy::Direction::Up,
                Direction::Down => energy::Direction::Down,
            };
            of_radios[*index].push(Packet { at_s: at.as_secs_f64(), direction, bytes });
        }
        if at < start {
            continue;
        }
        let (packets, sum) = match packet.direction {
            Direction::Up => (&mut traffic.up_packets, &mut traffic.up_bytes),
            Direction::Down => (&mut traffic.down_packets, &mut traffic.down_bytes),
        };
        *packets += 1;
        *sum += bytes;
    }
    traffic.energy = radio.map(|radio| {
        let mut energy = ReaderEnergy { radio: radio.name.clone(), ..ReaderEnergy::default() };
        for packets in &of_radios {
            let until = |time: Duration| radio.spend(packets.iter().copied(), time.as_secs_f64());
            let (before, all) = (until(start), until(end));
            energy.joules += all.total_j() - before.total_j();
            energy.promotions += all.promotions - before.promotions;
        }
        energy
    });
    traffic
}

#[cfg(test)]
mod tests {
    use millrace_link::Time;

    use super::*;
    use crate::energy::Radios;

    const READER: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 1);
    const OTHER: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 2);
    const PUBLISHER: Ipv4Addr = Ipv4Addr::new(10, 214, 0, 3);

    fn packet(ms: u64, device: Ipv4Addr, direction: Direction, bytes: u16) -> DevicePacket {
        DevicePacket { at: Time::ZERO + Duration::from_millis(ms), device, direction, bytes }
    }

    fn seconds(from: u64, to: u64) -> (Duration, Duration) {
        (Duration::from_secs(from), Duration::from_secs(to))
    }

    #[test]
    fn only_packets_of_readers_in_the_test_are_counted() {
        let packets = [
            packet(500, READER, Direction::Up, 60),
            packet(1000, READER, Direction::Up, 100),
            packet(1500, PUBLISHER, Direction::Up, 1000),
            packet(1500, OTHER, Direction::Down, 400),
            packet(2999, READER, Direction::Down, 300),
            packet(3000, READER, Direction::Down, 5000),
        ];
        let traffic = traffic(&packets, [READER, OTHER], seconds(1, 3), None);
        assert_eq!((traffic.readers, traffic.seconds, traffic.energy.clone()), (2, 2.0, None));
        assert_eq!((traffic.up_packets, traffic.up_bytes), (1, 100));
        assert_eq!((traffic.down_packets, traffic.down_bytes), (2, 700));
    }

    /// The Wi-Fi radio needs 0.403 W for 0.25 s after each packet, and 0.02 W otherwise.
    #[test]
    fn each_reader_has_a_radio_that_remembers_its_last_packet() {
        let radios = Radios::load(None).unwrap();
        let packets = [
            packet(900, READER, Direction::Down, 100),
            packet(2000, READER, Direction::Down, 100),
            packet(2100, OTHER, Direction::Up, 100),
        ];
        let traffic = traffic(&packets, [READER, OTHER], seconds(1, 11), Some(radios.find("wifi").unwrap()));
        // The reader is active for 0.15 s after the packet before the test, then for 0.25 s; the other one for 0.25 s.
        let active_s = 0.15 + 0.25 + 0.25;
        let by_hand = active_s * 0.403 + (20.0 - active_s) * 0.02;
        let energy = traffic.energy.unwrap();
        assert!((energy.joules - by_hand).abs() < 1e-9, "{energy:?}, by hand {by_hand} J");
        assert_eq!((energy.radio.as_str(), energy.promotions), ("wifi", 0));
    }

    #[test]
    fn promotions_before_the_test_are_not_counted() {
        let radios = Radios::load(None).unwrap();
        let packets = [packet(0, READER, Direction::Up, 60), packet(20_000, READER, Direction::Up, 60)];
        let of = |window| traffic(&packets, [READER], window, Some(radios.find("lte").unwrap())).energy.unwrap();
        assert_eq!(
            (of(seconds(0, 30)).promotions, of(seconds(1, 30)).promotions, of(seconds(1, 20)).promotions),
            (2, 1, 0)
        );
    }
}
