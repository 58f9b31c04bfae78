//! Deeds of one driver and faults of one car: when they begin, what they change, and the labels that they leave.
//!
//! A label follows from what the driver decided and from the true state of the car, which no record contains: the
//! pedals, the gear that the driver keeps, the turns of the path. A deed that was broken off leaves an unclear
//! label.

use millrace_client::random::Random;

use crate::record::Event;

use super::Car;
use super::car::{DT, Pace};
use super::driver::{Plan, SPURT_MPS};
use super::drivetrain::Controls;
use super::label::{Deed, Label};

/// Trouble codes: misfire, catalyst, thermostat, lean mixture, evaporation leak.
const TROUBLE_CODES: [&str; 5] = ["P0301", "P0420", "P0128", "P0171", "P0442"];
/// Seconds after which a driver gives a plan up that no situation allows.
const PATIENCE_S: f64 = 90.0;
/// Seconds until a stored code is erased.
const CODE_S: f64 = 400.0;
/// Lateral acceleration that is harsh beyond doubt, and one that is not, m/s2.
const SIDEWAYS_CLEAR: f64 = 4.3;
const SIDEWAYS_UNCLEAR: f64 = 2.8;
/// Speed below which no bend is labeled, and from which a harsh bend is clear, m/s.
const BEND_MPS: f64 = 7.8;
const BEND_CLEAR_MPS: f64 = 8.6;

/// Conduct of one driver.
#[derive(Debug)]
pub struct Conduct {
    /// Ticks since the start of the fleet.
    ticks: u64,
    /// Seconds of driving until the next plan.
    quiet_s: f64,
    /// Plan that waits for its situation, and for how long it has waited.
    wanted: Option<(Plan, f64)>,
    current: Option<Current>,
    bend: Option<Bend>,
    codes: Vec<(&'static str, f64)>,
    is_off: bool,
    pub labels: Vec<Label>,
}

/// Plan in progress.
#[derive(Clone, Copy, Debug)]
struct Current {
    plan: Plan,
    began: u64,
    /// Speed at the begin, m/s.
    speed: f64,
    /// Gear that the driver keeps.
    gear: Option<u8>,
    /// Seconds in which the engine was truly fast, too fast at constant speed, strained, hot, or without oil.
    high_s: f64,
    cruise_s: f64,
    lug_s: f64,
    fault_s: f64,
    stood_s: f64,
}

/// Bend that the car is in.
#[derive(Clone, Copy, Debug)]
struct Bend {
    began: u64,
    peak: f64,
    hard_s: f64,
}

impl Conduct {
    pub fn new(random: &mut Random) -> Self {
        Self {
            ticks: 0,
            quiet_s: random.between(20.0, 150.0),
            wanted: None,
            current: None,
            bend: None,
            codes: Vec::new(),
            is_off: false,
            labels: Vec::new(),
        }
    }

    pub fn codes(&self) -> Vec<&'static str> {
        self.codes.iter().map(|(code, _)| *code).collect()
    }

    pub fn clear_codes(&mut self) {
        self.codes.clear();
    }

    pub fn controls(&self) -> Controls {
        let plan = self.current.map(|current| current.plan);
        Controls {
            gear_max: match plan {
                Some(Plan::StayLow { gear, .. }) => Some(gear),
                _ => None,
            },
            gear: self.current.and_then(|current| current.gear),
            is_off: self.is_off,
            has_no_cooling: plan == Some(Plan::Overheat),
            has_no_oil: plan == Some(Plan::LoseOil),
        }
    }

    fn now_ms(&self) -> u64 {
        ms(self.ticks)
    }
}

fn ms(ticks: u64) -> u64 {
    ticks * super::TICK.as_millis() as u64
}

impl Car {
    /// Begins and ends plans. Returns the limits of this tick.
    pub(super) fn decide(&mut self) -> Pace {
        self.conduct.ticks += 1;
        self.conduct.codes.iter_mut().for_each(|(_, left_s)| *left_s -= DT);
        self.conduct.codes.retain(|(_, left_s)| *left_s > 0.0);
        if self.driver.has_deeds {
            self.choose();
        }
        let normal = Pace { acceleration: self.driver.acceleration, brakes: None };
        let Some(current) = self.conduct.current else { return normal };
        match current.plan {
            Plan::Brake(brakes) if self.leader.speed > 2.0 => Pace { brakes: Some(brakes), ..normal },
            Plan::Spurt(acceleration) if self.leader.speed < current.speed + SPURT_MPS => {
                Pace { acceleration, ..normal }
            }
            // A strained engine accelerates slowly.
            Plan::Lug => Pace { acceleration: 0.7, ..normal },
            Plan::Brake(_) | Plan::Spurt(_) => {
                self.finish();
                normal
            }
            _ => normal,
        }
    }

    fn choose(&mut self) {
        if self.conduct.current.is_some() {
            return;
        }
        if self.speed > 0.0 {
            self.conduct.quiet_s -= DT;
        }
        if self.conduct.quiet_s > 0.0 {
            return;
        }
        let (plan, waited_s) = match self.conduct.wanted {
            Some(wanted) => wanted,
            None => (Plan::pick(&mut self.random), 0.0),
        };
        if self.may_begin(plan) {
            self.begin(plan);
        } else if waited_s > PATIENCE_S {
            self.conduct.wanted = None;
        } else {
            self.conduct.wanted = Some((plan, waited_s + DT));
        }
    }

    /// Returns true if the situation allows the plan.
    fn may_begin(&self, plan: Plan) -> bool {
        let (speed, led) = (self.speed, self.leader.speed);
        let waits = self.leader.waits_s > 0.0 && speed == 0.0;
        let in_bend = self.sideways() > 1.0;
        match plan {
            Plan::Brake(_) => led > 10.5 && !in_bend,
            Plan::Spurt(acceleration) => {
                (1.5..6.0).contains(&led) && !in_bend && self.is_free_for(led + SPURT_MPS, acceleration)
            }
            Plan::StayLow { gear: 2, .. } => speed > 10.9 && self.is_free_for(led.max(10.9), 1.0),
            Plan::StayLow { .. } => (9.3..12.5).contains(&speed) && self.is_free_for(led, 1.0),
            Plan::Lug => (5.5..7.5).contains(&speed) && (led - speed).abs() < 1.0 && self.is_free_for(led + 4.5, 0.7),
            Plan::Idle(_) => waits,
            Plan::Park(_) => waits && self.leader.next_stop == self.path.stops.len(),
            Plan::Crash => speed > 11.6 && (led - speed).abs() < 0.5,
            Plan::Overheat => self.drivetrain.coolant_c() > 80.0,
            Plan::LoseOil | Plan::StoreCode => speed > 3.0,
        }
    }

    fn begin(&mut self, plan: Plan) {
        self.conduct.wanted = None;
        let mut gear = None;
        match plan {
            Plan::Idle(seconds) => self.leader.waits_s += seconds,
            Plan::Park(seconds) => {
                self.leader.waits_s += seconds;
                self.conduct.is_off = true;
            }
            Plan::Lug => {
                gear = (3..=5).rev().find(|&gear| self.drivetrain.rpm_in(gear, self.speed) > 620.0).or(Some(3))
            }
            Plan::StoreCode => {
                let code = TROUBLE_CODES[self.random.index(TROUBLE_CODES.len())];
                if !self.conduct.codes.iter().any(|(stored, _)| *stored == code) {
                    self.conduct.codes.push((code, CODE_S));
                    self.event = Some((Event::TroubleCode, Some(code)));
                    self.label(Deed::TroubleCode, self.conduct.ticks, true);
                }
                return self.rest();
            }
            _ => {}
        }
        let (began, speed) = (self.conduct.ticks, self.leader.speed);
        let zero = 0.0;
        self.conduct.current = Some(Current {
            plan,
            began,
            speed,
            gear,
            high_s: zero,
            cruise_s: zero,
            lug_s: zero,
            fault_s: zero,
            stood_s: zero,
        });
    }

    /// Executes a planned crash.
    pub(super) fn crash_if_planned(&mut self) {
        let Some(Current { plan: Plan::Crash, stood_s: 0.0, .. }) = self.conduct.current else { return };
        if self.speed > 11.3 {
            let waits_s = self.random.between(90.0, 150.0);
            self.stop_dead(waits_s);
            self.conduct.is_off = true;
        }
    }

    /// Follows the deed in progress and the bends, and labels what has ended.
    pub(super) fn observe_deeds(&mut self) {
        self.observe_bend();
        let (speed, along, rpm) = (self.speed, self.along, self.drivetrain.rpm());
        let (coolant_c, oil_kpa) = (self.drivetrain.coolant_c(), self.drivetrain.oil_kpa());
        let waits = self.leader.waits_s > 0.0;
        let throttle = self.drivetrain.throttle();
        let Some(current) = &mut self.conduct.current else { return };
        let count = |seconds: &mut f64, holds: bool| *seconds += if holds { DT } else { 0.0 };
        count(&mut current.high_s, rpm > 3750.0);
        count(&mut current.cruise_s, (2600.0..3420.0).contains(&rpm) && along.abs() < 0.5);
        count(&mut current.lug_s, rpm < 1150.0 && throttle > 45.0 && speed > 4.3);
        count(&mut current.stood_s, speed == 0.0);
        let is_over = match current.plan {
            Plan::StayLow { seconds, .. } => {
                ms(self.conduct.ticks - current.began) as f64 > seconds * 1000.0 || speed < 6.0
            }
            Plan::Lug => {
                let has_begun = self.conduct.ticks - current.began > 15;
                current.lug_s > 6.0 || (has_begun && (along < 0.1 || rpm > 1180.0))
            }
            Plan::Idle(_) | Plan::Park(_) | Plan::Crash => !waits,
            Plan::Overheat => {
                count(&mut current.fault_s, coolant_c > 112.0);
                current.fault_s > 20.0
            }
            Plan::LoseOil => {
                count(&mut current.fault_s, oil_kpa < 80.0 && rpm > 1650.0);
                ms(self.conduct.ticks - current.began) > 60_000
            }
            // The pedals decide; see `decide`.
            Plan::Brake(_) | Plan::Spurt(_) | Plan::StoreCode => false,
        };
        if is_over {
            self.finish();
        }
    }

    /// Labels the deed in progress, and ends it.
    fn finish(&mut self) {
        let Some(current) = self.conduct.current.take() else { return };
        self.conduct.is_off = false;
        for &deed in current.plan.deeds() {
            let clear = match deed {
                // Both are begun only when the road allows them, and then executed to the end.
                Deed::HarshBraking | Deed::HarshAcceleration | Deed::Accident | Deed::TroubleCode => Some(true),
                Deed::GearTooLow => Some(current.cruise_s >= 4.5 && current.high_s == 0.0),
                Deed::HighRpm => Some(current.high_s >= 4.2),
                Deed::GearTooHigh => Some(current.lug_s >= 3.4),
                Deed::Idling => Some(current.stood_s > 125.0),
                Deed::Overheating => Some(current.fault_s > 8.0),
                Deed::OilPressure => Some(current.fault_s > 8.0),
                Deed::HarshCornering => None,
            };
            if let Some(is_clear) = clear {
                self.label(deed, current.began, is_clear);
            }
        }
        self.rest();
    }

    fn observe_bend(&mut self) {
        let sideways = self.sideways();
        let began = self.conduct.ticks;
        if sideways > SIDEWAYS_UNCLEAR && self.speed > BEND_MPS {
            let bend = self.conduct.bend.get_or_insert(Bend { began, peak: 0.0, hard_s: 0.0 });
            bend.peak = bend.peak.max(sideways);
            bend.hard_s += if sideways > SIDEWAYS_CLEAR && self.speed > BEND_CLEAR_MPS { DT } else { 0.0 };
        } else if let Some(bend) = self.conduct.bend.take() {
            self.label(Deed::HarshCornering, bend.began, bend.hard_s >= 0.9);
        }
    }

    fn label(&mut self, deed: Deed, began: u64, is_clear: bool) {
        let until_ms = self.conduct.now_ms();
        self.conduct.labels.push(Label { car_id: self.id, deed, from_ms: ms(began), until_ms, is_clear });
    }

    /// Waits until the next plan.
    fn rest(&mut self) {
        self.conduct.quiet_s = self.random.between(60.0, 200.0);
    }
}
