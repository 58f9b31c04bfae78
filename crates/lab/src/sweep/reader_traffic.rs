//! Computes the traffic of the readers of a run, and the energy of their radios, from the packets of an emulated link.

use std::{collections::HashMap, net::Ipv4Addr, time::Duration};

use millrace_link::Direction;

use crate::{
    energy::{self, Packet, Radio, State},
    path::activity::DevicePacket,
    recording::{ReaderEnergy, ReaderTraffic},
};

/// Part of a run, as times since the start of the link.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub start: Duration,
    /// End of publishing.
    pub end: Duration,
    /// Time of the last delivery.
    pub drained: Duration,
}

/// Returns the traffic of these readers until the last delivery, and the energy of their radios until the end of
/// publishing.
///
/// Each reader has a radio of its own.
pub fn traffic(
    packets: &[DevicePacket],
    readers: impl IntoIterator<Item = Ipv4Addr>,
    window: Window,
    radio: Option<&Radio>,
) -> ReaderTraffic {
    let devices: HashMap<Ipv4Addr, usize> =
        readers.into_iter().enumerate().map(|(index, device)| (device, index)).collect();
    let mut traffic = ReaderTraffic {
        readers: devices.len() as u64,
        seconds: window.drained.saturating_sub(window.start).as_secs_f64(),
        ..ReaderTraffic::default()
    };
    let mut of_radios: Vec<Vec<Packet>> = vec![Vec::new(); devices.len()];
    for packet in packets {
        let at = Duration::from_nanos(packet.at.ns());
        let Some(index) = devices.get(&packet.device).filter(|_| (window.start..window.drained).contains(&at)) else {
            continue;
        };
        let bytes = u64::from(packet.bytes);
        let (direction, packets, sum) = match packet.direction {
            Direction::Up => (energy::Direction::Up, &mut traffic.up_packets, &mut traffic.up_bytes),
            Direction::Down => (energy::Direction::Down, &mut traffic.down_packets, &mut traffic.down_bytes),
        };
        *packets += 1;
        *sum += bytes;
        if radio.is_some() && at < window.end {
            of_radios[*index].push(Packet { at_s: (at - window.start).as_secs_f64(), direction, bytes });
        }
    }
    let seconds = window.end.saturating_sub(window.start).as_secs_f64();
    traffic.energy = radio.filter(|_| seconds > 0.0).map(|radio| {
        let mut energy = ReaderEnergy { radio: radio.name.clone(), seconds, ..ReaderEnergy::default() };
        for packets in &of_radios {
            let (joules, promotions) = steady(radio, packets, seconds);
            energy.joules += joules;
            energy.promotions += promotions;
        }
        energy
    });
    traffic
}

/// Returns the joules and promotions of one repetition of these packets, after they have been repeated for so long that
/// the state in which the radio began has no effect. A test is often shorter than the timers of a radio.
fn steady(radio: &Radio, packets: &[Packet], seconds: f64) -> (f64, u64) {
    let state_s =
        |state: &State| state.lasts_s.unwrap_or(0.0) + state.promotion.map_or(0.0, |promotion| promotion.lasts_s);
    let memory_s: f64 = radio.state.iter().map(state_s).sum();
    let before = (memory_s / seconds).ceil() as u32 + 1;
    let all = || {
        (0..=before).flat_map(|repetition| {
            packets.iter().map(move |packet| Packet { at_s: packet.at_s + f64::from(repetition) * seconds, ..*packet })
        })
    };
    let until = |repetitions: u32| radio.spend(all(), f64::from(repetitions) * seconds);
    let (first, whole) = (until(before), until(before + 1));
    (whole.total_j() - first.total_j(), whole.promotions - first.promotions)
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

    fn window(start_s: u64, end_s: u64, drained_s: u64) -> Window {
        let [start, end, drained] = [start_s, end_s, drained_s].map(Duration::from_secs);
        Window { start, end, drained }
    }

    /// Returns the energy of one reader with packets at these times of a test that begins at second 10.
    fn energy(radio: &str, ms: &[u64], bytes: u16, end_s: u64) -> ReaderEnergy {
        let packets: Vec<_> = ms.iter().map(|ms| packet(10_000 + ms, READER, Direction::Down, bytes)).collect();
        let radios = Radios::load(None).unwrap();
        let window = window(10, 10 + end_s, 10 + end_s);
        traffic(&packets, [READER], window, Some(radios.find(radio).unwrap())).energy.unwrap()
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
        let traffic = traffic(&packets, [READER, OTHER], window(1, 2, 3), None);
        assert_eq!((traffic.readers, traffic.seconds, traffic.energy.clone()), (2, 2.0, None));
        assert_eq!((traffic.up_packets, traffic.up_bytes), (1, 100));
        assert_eq!((traffic.down_packets, traffic.down_bytes), (2, 700));
    }

    /// The Wi-Fi radio needs 0.403 W for 0.25 s after each packet, and 0.02 W otherwise.
    #[test]
    fn each_reader_has_a_radio_of_its_own() {
        let radios = Radios::load(None).unwrap();
        let packets = [packet(2000, READER, Direction::Down, 100), packet(2100, OTHER, Direction::Up, 100)];
        let traffic = traffic(&packets, [READER, OTHER], window(1, 11, 12), Some(radios.find("wifi").unwrap()));
        let by_hand = 0.5 * 0.403 + (20.0 - 0.5) * 0.02;
        let energy = traffic.energy.unwrap();
        assert!((energy.joules - by_hand).abs() < 1e-9, "{energy:?}, by hand {by_hand} J");
        assert_eq!((energy.radio.as_str(), energy.seconds, energy.promotions), ("wifi", 10.0, 0));
    }

    #[test]
    fn energy_of_a_short_test_is_that_of_a_long_one() {
        for (radio, bytes) in [("3g", 300), ("3g", 900), ("lte", 300), ("wifi", 300)] {
            let short = energy(radio, &[0, 250, 500, 750], bytes, 1);
            let long = energy(radio, &(0..400).map(|n| n * 250).collect::<Vec<_>>(), bytes, 100);
            assert!((short.joules - long.joules / 100.0).abs() < 1e-6, "{radio}: {short:?} {long:?}");
            assert_eq!(short.promotions, 0, "the radio never becomes idle");
        }
    }

    /// FACH of the 3G radio (0.3 W) carries up to 475 bytes. DCH (1.3 W) lasts 4 s, its promotion 1.5 s at 0.8 W.
    #[test]
    fn small_packets_leave_a_3g_radio_in_its_middle_state() {
        let small = energy("3g", &[0, 5000], 475, 10);
        assert!((small.joules - 10.0 * 0.3).abs() < 1e-9 && small.promotions == 0, "{small:?}");
        let large = energy("3g", &[0, 10_000], 476, 20);
        let by_hand = 2.0 * (1.5 * 0.8 + 4.0 * 1.3 + 4.5 * 0.3);
        assert!((large.joules - by_hand).abs() < 1e-9 && large.promotions == 2, "{large:?}, by hand {by_hand} J");
    }

    #[test]
    fn silent_reader_needs_the_power_of_the_last_state() {
        let silent = energy("wifi", &[], 0, 10);
        assert!((silent.joules - 0.2).abs() < 1e-9, "{silent:?}");
    }
}
