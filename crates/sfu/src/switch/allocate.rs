//! Chooses the layer of each video that a member receives, within its bandwidth estimate.

/// One video that a member receives: the bit rates of its layers in bit/s. The rate of a layer that is not being sent
/// is 0.
#[derive(Clone, Debug)]
pub struct VideoDemand {
    pub rates: Vec<u64>,
    /// Index of the layer that is selected now.
    pub current: usize,
    /// The video belongs to the active speaker, which has priority.
    pub comes_first: bool,
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

/// Reserve required for a better layer: the estimate must be at least this factor above the total bit rate. Small
/// variations of the estimate therefore switch nothing.
const HEADROOM: f64 = 1.15;

/// Returns the selected layer of each video.
///
/// First, every video gets its lowest layer. Then the active speaker's video gets the best layer that still fits. Then
/// the videos take turns to get the next better layer.
///
/// Units: `estimate` in bit/s, with the bit rate of audio already subtracted.
pub fn allocate(wishes: &[VideoDemand], estimate: u64) -> Vec<usize> {
    let ranked: Vec<Vec<usize>> = wishes.iter().map(|wish| by_rate(&wish.rates)).collect();
    let mut chosen = vec![0; wishes.len()];
    let rate = |picture: usize, rank: usize| ranked[picture].get(rank).map_or(0, |layer| wishes[picture].rates[*layer]);
    let mut used: u64 = (0..wishes.len()).map(|picture| rate(picture, 0)).sum();
    let mut first_only = true;
    loop {
        let mut moved = false;
        for picture in (0..wishes.len()).filter(|picture| !first_only || wishes[*picture].comes_first) {
            let next = chosen[picture] + 1;
            if next >= ranked[picture].len() {
                continue;
            }
            let wanted = used - rate(picture, chosen[picture]) + rate(picture, next);
            let had = ranked[picture].iter().position(|layer| *layer == wishes[picture].current);
            let is_kept = had.is_some_and(|had| next <= had);
            let needed = if is_kept { wanted } else { (wanted as f64 * HEADROOM) as u64 };
            if needed <= estimate {
                (chosen[picture], used, moved) = (next, wanted, true);
            }
        }
        if !moved && !std::mem::take(&mut first_only) {
            break;
        }
    }
    let layer = |(picture, rank): (usize, usize)| ranked[picture].get(rank).copied().unwrap_or(wishes[picture].current);
    chosen.into_iter().enumerate().map(layer).collect()
}

/// Returns the reason why `layer` replaces the previous layer of this video.
pub fn reason(wishes: &[VideoDemand], estimate: u64, picture: usize, layer: usize) -> Reason {
    let rate = |layer: usize| wishes[picture].rates.get(layer).copied().unwrap_or(0);
    let (was, is) = (rate(wishes[picture].current), rate(layer));
    let silent: Vec<VideoDemand> =
        wishes.iter().map(|wish| VideoDemand { comes_first: false, ..wish.clone() }).collect();
    match () {
        () if was == 0 => Reason::Gone,
        () if allocate(&silent, estimate).get(picture) != Some(&layer) => Reason::Floor,
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

    fn wish(rates: &[u64], current: usize) -> VideoDemand {
        VideoDemand { rates: rates.to_vec(), current, comes_first: false }
    }

    #[test]
    fn each_gets_the_least_before_anyone_gets_more() {
        let wishes = [wish(&[900, 300, 100], 2), wish(&[100, 300, 900], 0)];
        assert_eq!(allocate(&wishes, 0), [2, 0], "the least in any case");
        assert_eq!(allocate(&wishes, 500), [1, 0]);
        assert_eq!(allocate(&wishes, 700), [1, 1]);
        assert_eq!(allocate(&wishes, 10_000), [0, 2]);
    }

    #[test]
    fn what_is_sent_is_kept_until_it_does_not_fit() {
        assert_eq!(allocate(&[wish(&[100, 900], 0)], 1000), [0], "too little room to begin");
        assert_eq!(allocate(&[wish(&[100, 900], 1)], 1000), [1], "and enough to go on");
        assert_eq!(allocate(&[wish(&[100, 900], 1)], 899), [0]);
    }

    #[test]
    fn who_speaks_gets_the_best_that_fits_once_all_have_the_least() {
        let mut wishes = vec![wish(&[100, 300, 900], 0); 3];
        wishes[1].comes_first = true;
        assert_eq!(allocate(&wishes, 0), [0, 0, 0]);
        assert_eq!(allocate(&wishes, 600), [0, 1, 0]);
        assert_eq!(allocate(&wishes, 1300), [0, 2, 0], "nobody else while there is more to have");
        assert_eq!(allocate(&wishes, 1550), [1, 2, 0]);
        assert_eq!(allocate(&wishes, 10_000), [2, 2, 2]);
    }

    #[test]
    fn why_another_layer_is_sent_is_known() {
        let mut wishes = vec![wish(&[100, 300, 900], 1), wish(&[100, 300, 900], 1)];
        let why = |wishes: &[VideoDemand], estimate| {
            let layer = allocate(wishes, estimate)[0];
            (layer, reason(wishes, estimate, 0, layer))
        };
        assert_eq!(why(&wishes, 250), (0, Reason::Narrower));
        assert_eq!(why(&wishes, 10_000), (2, Reason::Wider));
        wishes[0].comes_first = true;
        assert_eq!(why(&wishes, 1200), (2, Reason::Floor), "it speaks");
        (wishes[0].comes_first, wishes[1].comes_first) = (false, true);
        assert_eq!(why(&wishes, 1180), (0, Reason::Floor), "another speaks");
        wishes[0].rates[1] = 0;
        assert_eq!(why(&wishes, 400), (0, Reason::Gone));
    }

    #[test]
    fn what_does_not_come_is_not_chosen() {
        assert_eq!(allocate(&[wish(&[0, 300], 0)], 10), [1]);
        assert_eq!(allocate(&[wish(&[0, 0], 1)], 10), [1], "nothing comes: as it was");
        assert_eq!(allocate(&[wish(&[], 0)], 10), [0]);
    }
}
