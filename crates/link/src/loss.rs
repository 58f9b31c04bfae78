//! Loss on the channel: packets vanish, whatever the queue does.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Probability, Time, random::Random};

/// Two-state model of losses in bursts (Gilbert-Elliott).
///
/// Mean loss: (r x e_g + a x e_b) / (a + r). Mean length of a bad run: 1 / r packets, or 1 / r steps of time.
/// Source: Lozano 2013, section 4.2; Hasslinger and Hohlfeld 2008.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GilbertElliott {
    /// Probability of a step from good to bad.
    pub a: Probability,
    /// Probability of a step from bad to good.
    pub r: Probability,
    /// Probability of loss in the good state.
    #[serde(default)]
    pub e_g: Probability,
    /// Probability of loss in the bad state.
    #[serde(default = "certain")]
    pub e_b: Probability,
    /// Time of one step. `None`: each packet is a step. With a time, the length of a burst does not depend on how many
    /// packets are sent.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub step: Option<Duration>,
}

fn certain() -> Probability {
    Probability::ONE
}

impl GilbertElliott {
    /// Returns the model with a mean loss and a mean burst, in packets. Every packet of a burst is lost.
    ///
    /// Shape: `burst` of at least 1; `mean` below burst / (burst + 1), because a good state lasts at least one packet.
    pub fn of_bursts(mean: Probability, burst: f64) -> Option<Self> {
        let r = 1.0 / burst;
        let a = r * mean.get() / (1.0 - mean.get());
        Some(Self {
            a: Probability::new(a).ok()?,
            r: Probability::new(r).ok()?,
            e_g: Probability::ZERO,
            e_b: Probability::ONE,
            step: None,
        })
    }

    pub fn mean_loss(&self) -> f64 {
        let (a, r) = (self.a.get(), self.r.get());
        if a + r == 0.0 { self.e_g.get() } else { (r * self.e_g.get() + a * self.e_b.get()) / (a + r) }
    }
}

/// Model of loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// Each packet is lost with the same probability.
    Independent(Probability),
    Bursts(GilbertElliott),
}

/// Decides which packets are lost.
#[derive(Clone, Debug)]
pub struct Loss {
    model: Model,
    is_bad: bool,
    /// Time of the last transition, for a model by time.
    changed: Time,
    random: Random,
}

impl Loss {
    pub fn new(model: Model, seed: u64, cell: &str) -> Self {
        Self { model, is_bad: false, changed: Time::ZERO, random: Random::new(seed, cell) }
    }

    /// Changes the model. The state of the channel stays.
    pub fn set_model(&mut self, model: Model) {
        self.model = model;
    }

    /// Returns true if the next packet is lost.
    pub fn loses(&mut self, now: Time) -> bool {
        match self.model {
            Model::Independent(probability) => probability.happens(&mut self.random),
            Model::Bursts(model) => {
                match model.step {
                    None => self.is_bad ^= self.leaves(&model).happens(&mut self.random),
                    Some(step) => self.pass_time(&model, step, now),
                }
                let loss = if self.is_bad { model.e_b } else { model.e_g };
                loss.happens(&mut self.random)
            }
        }
    }

    fn leaves(&self, model: &GilbertElliott) -> Probability {
        if self.is_bad { model.r } else { model.a }
    }

    /// Changes the state for all transitions until `now`. The number of steps in one state is geometric.
    fn pass_time(&mut self, model: &GilbertElliott, step: Duration, now: Time) {
        let step_ns = crate::time::ns(step).max(1);
        loop {
            let leaves = self.leaves(model).get();
            let steps = match leaves {
                0.0 => return,
                1.0 => 1.0,
                _ => (self.random.positive().ln() / (1.0 - leaves).ln()).ceil().max(1.0),
            };
            let until = self.changed.add_ns((steps * step_ns as f64) as u64);
            if until > now {
                // A geometric distribution has no memory: the rest may be drawn again at the next packet.
                let passed = now.ns().saturating_sub(self.changed.ns()) / step_ns;
                self.changed = self.changed.add_ns(passed * step_ns);
                return;
            }
            self.is_bad = !self.is_bad;
            self.changed = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 100_000;

    fn probability(value: f64) -> Probability {
        Probability::new(value).expect("a probability")
    }

    /// Returns which packets are lost, one packet per millisecond.
    fn losses(model: Model, seed: u64) -> Vec<bool> {
        let mut loss = Loss::new(model, seed, "loss");
        (0..PACKETS as u64).map(|index| loss.loses(Time::from_ns(index * 1_000_000))).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    fn mean_burst(lost: &[bool]) -> f64 {
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() + usize::from(lost[0]);
        share(lost) * lost.len() as f64 / bursts as f64
    }

    #[test]
    fn independent_loss_is_within_three_sigma() {
        for p in [0.01, 0.05, 0.1, 0.2] {
            let sigma = (p * (1.0 - p) / PACKETS as f64).sqrt();
            let share = share(&losses(Model::Independent(probability(p)), 7));
            assert!((share - p).abs() < 3.0 * sigma, "{p}: {share}");
        }
    }

    #[test]
    fn lossy_link_that_is_passed_twice_loses_more() {
        // A packet that is relayed passes the lossy link twice: 1 - (1 - p)^2.
        for (p, relayed) in [(0.01, 0.0199), (0.05, 0.0975), (0.1, 0.19), (0.2, 0.36)] {
            let model = Model::Independent(probability(p));
            let (first, second) = (losses(model, 7), losses(model, 8));
            let both: Vec<bool> = first.iter().zip(&second).map(|(first, second)| *first || *second).collect();
            let sigma = (relayed * (1.0 - relayed) / PACKETS as f64).sqrt();
            assert!((share(&both) - relayed).abs() < 3.0 * sigma, "{p}: {}", share(&both));
        }
    }

    #[test]
    fn bursts_have_their_mean_loss_and_length_by_packet_and_by_time() {
        let by_packet = GilbertElliott {
            a: probability(1.0 / 90.0),
            r: probability(1.0 / 3.0),
            e_g: Probability::ZERO,
            e_b: Probability::ONE,
            step: None,
        };
        for model in [by_packet, GilbertElliott { step: Some(Duration::from_millis(1)), ..by_packet }] {
            let lost = losses(Model::Bursts(model), 3);
            let mean = model.mean_loss();
            assert!((mean - 0.032_26).abs() < 1e-5);
            // Losses depend on each other, so sigma is larger than the binomial one.
            let rho = 1.0 - model.a.get() - model.r.get();
            let sigma = (mean * (1.0 - mean) / PACKETS as f64).sqrt() * ((1.0 + rho) / (1.0 - rho)).sqrt();
            assert!((share(&lost) - mean).abs() < 3.0 * sigma, "{:?}: {}", model.step, share(&lost));
            assert!((mean_burst(&lost) - 3.0).abs() < 0.2, "{:?}: {}", model.step, mean_burst(&lost));
        }
    }

    #[test]
    fn bursts_by_time_do_not_depend_on_the_number_of_packets() {
        let model = GilbertElliott {
            a: probability(0.01),
            r: probability(0.1),
            e_g: Probability::ZERO,
            e_b: Probability::ONE,
            step: Some(Duration::from_millis(10)),
        };
        // One packet per second: almost every burst is over before the next packet.
        let mut loss = Loss::new(Model::Bursts(model), 5, "loss");
        let sparse: Vec<bool> = (0..PACKETS as u64).map(|s| loss.loses(Time::from_ns(s * 1_000_000_000))).collect();
        assert!((share(&sparse) - model.mean_loss()).abs() < 0.004, "{}", share(&sparse));
        assert!(mean_burst(&sparse) < 1.2, "{}", mean_burst(&sparse));
        // One packet per millisecond: a burst of 10 steps of 10 ms has 100 packets.
        assert!((mean_burst(&losses(Model::Bursts(model), 5)) - 100.0).abs() < 20.0);
    }

    #[test]
    fn model_of_a_mean_and_a_burst() {
        let model = GilbertElliott::of_bursts(probability(0.01), 3.0).expect("a model");
        assert!((model.mean_loss() - 0.01).abs() < 1e-12);
        assert!(GilbertElliott::of_bursts(probability(0.9), 1.0).is_none(), "a good state lasts at least one packet");
        assert!(GilbertElliott::of_bursts(probability(0.1), 0.5).is_none());
    }

    #[test]
    fn same_seed_loses_the_same_packets() {
        let model = Model::Independent(probability(0.05));
        assert_eq!(losses(model, 42), losses(model, 42));
        assert_ne!(losses(model, 42), losses(model, 43));
    }
}
