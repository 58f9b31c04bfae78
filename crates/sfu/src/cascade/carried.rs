//! Choice of the layers that cross a link, within its bandwidth estimate: a narrow link loses layers, not packets.

use super::{LAYERS_MAX, Layers};

/// One video that the other node wants.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Bit rates of the layers in bit/s; 0 for a layer that is not being sent.
    pub rates: [u64; LAYERS_MAX],
    pub wanted: Layers,
    /// Layers that cross the link now.
    pub carried: Layers,
    pub has_priority: bool,
}

/// Reserve required for another layer: the estimate must be at least this factor above the total bit rate. Small
/// variations of the estimate therefore change nothing.
const HEADROOM: f64 = 1.15;

/// Returns the layers of each video that cross the link.
///
/// First, every video gets the lowest of its wanted layers, whatever the estimate is. Then the videos with priority get
/// their wanted layers, from low to high, while they fit. Then the other videos take turns. A wanted layer that is not
/// being sent costs nothing and is carried, so that it begins without delay.
///
/// Units: `estimate` in bit/s, with the bit rate of audio already subtracted.
pub fn choose(demands: &[Demand], estimate: u64) -> Vec<Layers> {
    let mut carried = vec![Layers::NONE; demands.len()];
    let mut waiting: Vec<std::collections::VecDeque<usize>> = Vec::new();
    let mut used = 0;
    for (demand, carried) in demands.iter().zip(&mut carried) {
        let (mut layers, idle): (Vec<usize>, Vec<usize>) =
            demand.wanted.iter().partition(|layer| demand.rates[*layer] > 0);
        layers.sort_by_key(|layer| demand.rates[*layer]);
        idle.into_iter().for_each(|layer| carried.insert(layer));
        if let Some(least) = layers.first() {
            carried.insert(*least);
            used += demand.rates[*least];
        }
        waiting.push(layers.into_iter().skip(1).collect());
    }
    for is_first_round in [true, false] {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for (at, demand) in demands.iter().enumerate().filter(|(_, demand)| !is_first_round || demand.has_priority)
            {
                let Some(layer) = waiting[at].front().copied() else { continue };
                let wanted = used + demand.rates[layer];
                let is_kept = demand.carried.contains(layer);
                let needed = if is_kept { wanted } else { (wanted as f64 * HEADROOM) as u64 };
                if needed <= estimate {
                    carried[at].insert(layer);
                    used = wanted;
                }
                // A higher layer may still fit: a carried layer needs no reserve.
                waiting[at].pop_front();
                moved = true;
            }
        }
    }
    carried
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(wanted: u8, carried: u8) -> Demand {
        let rates = [100, 300, 900, 0];
        Demand { rates, wanted: Layers(wanted), carried: Layers(carried), has_priority: false }
    }

    #[test]
    fn every_video_gets_its_lowest_wanted_layer() {
        let high = demand(0b110, 0);
        let none = demand(0, 0b111);
        assert_eq!(choose(&[high, none, high], 0), [Layers(0b010), Layers(0), Layers(0b010)]);
        let turned = Demand { rates: [900, 300, 100, 0], ..demand(0b111, 0) };
        assert_eq!(choose(&[turned], 0), [Layers(0b100)], "the order of the layers is the publisher's");
    }

    #[test]
    fn layers_are_added_while_they_fit() {
        for (estimate, expected) in [
            (199, [0b001, 0b001]),
            (800, [0b011, 0b001]),
            (920, [0b011, 0b011]),
            (2000, [0b111, 0b011]),
            (2990, [0b111, 0b111]),
        ] {
            let demands = [demand(0b111, 0); 2];
            assert_eq!(
                choose(&demands, estimate).iter().map(|layers| layers.0).collect::<Vec<_>>(),
                expected,
                "{estimate}"
            );
        }
    }

    #[test]
    fn carried_layer_needs_no_reserve() {
        assert_eq!(choose(&[demand(0b011, 0)], 400), [Layers(0b001)]);
        assert_eq!(choose(&[demand(0b011, 0b011)], 400), [Layers(0b011)]);
        assert_eq!(choose(&[demand(0b011, 0b011)], 399), [Layers(0b001)]);
    }

    #[test]
    fn active_speaker_comes_first() {
        let speaker = Demand { has_priority: true, ..demand(0b111, 0) };
        assert_eq!(choose(&[demand(0b111, 0), speaker], 1700), [Layers(0b001), Layers(0b111)]);
    }

    #[test]
    fn layer_that_is_not_sent_is_carried() {
        assert_eq!(choose(&[demand(0b1110, 0)], 0), [Layers(0b1010)]);
        let unknown = Demand { rates: [0; 4], ..demand(0b111, 0) };
        assert_eq!(choose(&[unknown], 0), [Layers(0b111)], "nothing is measured yet");
    }
}
