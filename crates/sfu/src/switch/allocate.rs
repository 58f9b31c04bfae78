//! Chooses the layer of each video that a member receives, within its bandwidth estimate.

/// One video that a member receives: the bit rates of its layers in bit/s. The rate of a layer that is not being sent
/// is 0.
#[derive(Clone, Debug)]
pub struct VideoDemand {
    pub rates: Vec<u64>,
    /// Index of the layer that is selected now.
    pub current: usize,
    /// The video belongs to the active speaker, which has priority.
    pub has_priority: bool,
}

/// Reason for a change of the selected layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The publisher stopped sending the previous layer.
    Gone,
    /// The bandwidth estimate fell, or other videos take more of it.
    Narrower,
    /// The bandwidth estimate rose, or a better layer became available.
    Wider,
    /// The active speaker changed.
    Floor,
}

/// Change of the selected layer of one video.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LayerSwitch {
    pub from: usize,
    pub to: usize,
    pub why: Reason,
    pub ago_ms: u64,
}

/// Reserve required for a better layer: the estimate must be at least this factor above the total bit rate. Small
/// variations of the estimate therefore switch nothing.
const HEADROOM: f64 = 1.15;

/// Returns the selected layer of each video.
///
/// First, every video gets its lowest layer. Then the active speaker's video gets the best layer that still fits. Then
/// the videos take turns to get the next better layer.
///
/// Units: `estimate` in bit/s, with the bit rate of audio already subtracted.
pub fn allocate(demands: &[VideoDemand], estimate: u64) -> Vec<usize> {
    let ranked: Vec<Vec<usize>> = demands.iter().map(|demand| by_rate(&demand.rates)).collect();
    let mut chosen = vec![0; demands.len()];
    let rate = |video: usize, rank: usize| ranked[video].get(rank).map_or(0, |layer| demands[video].rates[*layer]);
    let mut used: u64 = (0..demands.len()).map(|video| rate(video, 0)).sum();
    let mut first_only = true;
    loop {
        let mut moved = false;
        for video in (0..demands.len()).filter(|video| !first_only || demands[*video].has_priority) {
            let next = chosen[video] + 1;
            if next >= ranked[video].len() {
                continue;
            }
            let wanted = used - rate(video, chosen[video]) + rate(video, next);
            let had = ranked[video].iter().position(|layer| *layer == demands[video].current);
            let is_kept = had.is_some_and(|had| next <= had);
            let needed = if is_kept { wanted } else { (wanted as f64 * HEADROOM) as u64 };
            if needed <= estimate {
                (chosen[video], used, moved) = (next, wanted, true);
            }
        }
        if !moved && !std::mem::take(&mut first_only) {
            break;
        }
    }
    let layer = |(video, rank): (usize, usize)| ranked[video].get(rank).copied().unwrap_or(demands[video].current);
    chosen.into_iter().enumerate().map(layer).collect()
}

/// Returns the reason why `layer` replaces the previous layer of this video.
pub fn reason(demands: &[VideoDemand], estimate: u64, video: usize, layer: usize) -> Reason {
    let rate = |layer: usize| demands[video].rates.get(layer).copied().unwrap_or(0);
    let (was, is) = (rate(demands[video].current), rate(layer));
    let silent: Vec<VideoDemand> =
        demands.iter().map(|demand| VideoDemand { has_priority: false, ..demand.clone() }).collect();
    match () {
        () if was == 0 => Reason::Gone,
        () if allocate(&silent, estimate).get(video) != Some(&layer) => Reason::Floor,
        () if is < was => Reason::Narrower,
        () => Reason::Wider,
    }
}

/// Returns the layers that are being sent, lowest bit rate first.
fn by_rate(rates: &[u64]) -> Vec<usize> {
    let mut layers: Vec<usize> = (0..rates.len()).filter(|layer| rates[*layer] > 0).collect();
    layers.sort_by_key(|layer| rates[*layer]);
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(rates: &[u64], current: usize) -> VideoDemand {
        VideoDemand { rates: rates.to_vec(), current, has_priority: false }
    }

    #[test]
    fn every_video_gets_lowest_layer_first() {
        let demands = [demand(&[900, 300, 100], 2), demand(&[100, 300, 900], 0)];
        assert_eq!(allocate(&demands, 0), [2, 0], "the least in any case");
        assert_eq!(allocate(&demands, 500), [1, 0]);
        assert_eq!(allocate(&demands, 700), [1, 1]);
        assert_eq!(allocate(&demands, 10_000), [0, 2]);
    }

    #[test]
    fn current_layer_is_kept_while_it_fits() {
        assert_eq!(allocate(&[demand(&[100, 900], 0)], 1000), [0], "too little room to begin");
        assert_eq!(allocate(&[demand(&[100, 900], 1)], 1000), [1], "and enough to go on");
        assert_eq!(allocate(&[demand(&[100, 900], 1)], 899), [0]);
    }

    #[test]
    fn active_speaker_gets_best_fitting_layer() {
        let mut demands = vec![demand(&[100, 300, 900], 0); 3];
        demands[1].has_priority = true;
        assert_eq!(allocate(&demands, 0), [0, 0, 0]);
        assert_eq!(allocate(&demands, 600), [0, 1, 0]);
        assert_eq!(
            allocate(&demands, 1300),
            [0, 2, 0],
            "the others stay at the lowest layer until the speaker has the best"
        );
        assert_eq!(allocate(&demands, 1550), [1, 2, 0]);
        assert_eq!(allocate(&demands, 10_000), [2, 2, 2]);
    }

    #[test]
    fn layer_switch_has_reason() {
        let mut demands = vec![demand(&[100, 300, 900], 1), demand(&[100, 300, 900], 1)];
        let why = |demands: &[VideoDemand], estimate| {
            let layer = allocate(demands, estimate)[0];
            (layer, reason(demands, estimate, 0, layer))
        };
        assert_eq!(why(&demands, 250), (0, Reason::Narrower));
        assert_eq!(why(&demands, 10_000), (2, Reason::Wider));
        demands[0].has_priority = true;
        assert_eq!(why(&demands, 1200), (2, Reason::Floor), "it is the speaker");
        (demands[0].has_priority, demands[1].has_priority) = (false, true);
        assert_eq!(why(&demands, 1180), (0, Reason::Floor), "another is the speaker");
        demands[0].rates[1] = 0;
        assert_eq!(why(&demands, 400), (0, Reason::Gone));
    }

    #[test]
    fn inactive_layer_is_not_chosen() {
        assert_eq!(allocate(&[demand(&[0, 300], 0)], 10), [1]);
        assert_eq!(allocate(&[demand(&[0, 0], 1)], 10), [1], "nothing comes: as it was");
        assert_eq!(allocate(&[demand(&[], 0)], 10), [0]);
    }
}
