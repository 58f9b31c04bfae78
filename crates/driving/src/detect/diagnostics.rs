use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Event, Kind, Sample, Severity, Thresholds, trouble};

use super::sustained::{Hold, Sustained};

/// Time after which a code that only events report is reported again.
const CODE_REPEAT_MS: u64 = 10 * 60 * 1000;
const CODES_MAX: usize = 64;
/// Degrees Celsius by which the coolant must cool before it can overheat again.
const COOLANT_HYSTERESIS_C: f64 = 5.0;
/// Percent of a tank that must be added before the fuel can run low again.
const FUEL_HYSTERESIS: f64 = 5.0;
/// Engine speed from which the oil pressure has a minimum, in rpm.
const OIL_FROM_RPM: f64 = 1500.0;

/// Detects what the car itself reports: trouble codes, the lamp, temperature, oil and fuel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Diagnostics {
    /// Codes that were reported, with the time of their last occurrence.
    codes: BTreeMap<String, u64>,
    lamp: bool,
    is_low: bool,
    hot: Sustained,
    is_severe: bool,
    oil: Sustained,
}

impl Diagnostics {
    pub fn advance(&mut self, sample: &Sample, limits: &Thresholds) -> Vec<Event> {
        let now_ms = sample.time_ms;
        let mut events = self.codes(sample);
        if let Some(lamp) = sample.lamp {
            if lamp && !self.lamp {
                events.push(Event::new(Kind::Lamp, Severity::Severe, now_ms, None, sample));
            }
            self.lamp = lamp;
        }
        if let Some(fuel) = sample.fuel {
            if fuel < limits.fuel_low && !self.is_low {
                self.is_low = true;
                events.push(Event::new(Kind::LowFuel, Severity::Info, now_ms, Some(fuel), sample));
            }
            self.is_low &= fuel < limits.fuel_low + FUEL_HYSTERESIS;
        }
        if let Some(coolant_c) = sample.coolant_c {
            let hold = Hold { hold_ms: (limits.coolant_s * 1000.0) as u64, cool_down_ms: 0 };
            let (warn, stays) = (limits.coolant_warn_c, limits.coolant_warn_c - COOLANT_HYSTERESIS_C);
            if let Some((since_ms, peak)) =
                self.hot.advance(coolant_c > warn, coolant_c > stays, coolant_c, now_ms, hold)
            {
                self.is_severe = peak > limits.coolant_severe_c;
                let severity = if self.is_severe { Severity::Severe } else { Severity::Warn };
                events.push(Event::new(Kind::Overheating, severity, since_ms, Some(peak), sample));
            } else if self.hot.is_on() && !self.is_severe && coolant_c > limits.coolant_severe_c {
                self.is_severe = true;
                events.push(Event::new(Kind::Overheating, Severity::Severe, now_ms, Some(coolant_c), sample));
            }
        }
        if let (Some(oil_kpa), Some(rpm)) = (sample.oil_kpa, sample.rpm) {
            let is_low = oil_kpa < limits.oil_kpa && rpm > OIL_FROM_RPM;
            let hold = Hold { hold_ms: 3000, cool_down_ms: 60_000 };
            if let Some((since_ms, _)) = self.oil.advance(is_low, oil_kpa < limits.oil_kpa * 1.2, 0.0, now_ms, hold) {
                events.push(Event::new(Kind::OilPressure, Severity::Severe, since_ms, Some(oil_kpa), sample));
            }
        }
        events
    }

    /// Reports each code once. A code that the car no longer stores can be reported again.
    fn codes(&mut self, sample: &Sample) -> Vec<Event> {
        let now_ms = sample.time_ms;
        let mut events = Vec::new();
        let mut add = |code: &str| {
            let found = trouble::lookup(code);
            let mut event = Event::new(Kind::TroubleCode, found.severity, now_ms, None, sample);
            event.code = Some(code.to_owned());
            event.meaning = Some(found.meaning.into_owned());
            event.advice = found.advice.to_owned();
            events.push(event);
        };
        if let Some(stored) = &sample.codes {
            self.codes.retain(|code, _| stored.contains(code));
            for code in stored {
                if self.codes.insert(code.clone(), now_ms).is_none() {
                    add(code);
                }
            }
        }
        let announced = sample.code.as_ref().filter(|_| sample.event.as_deref().is_none_or(|e| e == "trouble_code"));
        if let Some(code) = announced {
            let before_ms = self.codes.insert(code.clone(), now_ms);
            if before_ms.is_none_or(|before_ms| before_ms < now_ms && now_ms - before_ms > CODE_REPEAT_MS) {
                add(code);
            }
        }
        while self.codes.len() > CODES_MAX {
            let oldest = self.codes.iter().min_by_key(|(_, at_ms)| **at_ms).map(|(code, _)| code.clone());
            self.codes.remove(&oldest.unwrap_or_default());
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Sample {
        Sample { time_ms: second * 1000, rpm: Some(2000.0), ..Sample::default() }
    }

    fn run(samples: impl IntoIterator<Item = Sample>) -> Vec<(Kind, Severity)> {
        let (mut car, limits) = (Diagnostics::default(), Thresholds::default());
        let events = samples.into_iter().flat_map(|sample| car.advance(&sample, &limits));
        events.map(|event| (event.kind, event.severity)).collect()
    }

    #[test]
    fn stored_code_is_reported_once_until_it_is_cleared() {
        let stored = |codes: &[&str]| Some(codes.iter().map(|code| (*code).to_owned()).collect::<Vec<_>>());
        let codes =
            [stored(&["P0301"]), stored(&["P0301"]), stored(&["P0301", "P0420"]), stored(&[]), stored(&["P0301"])];
        let samples = codes.into_iter().zip(1..).map(|(codes, s)| Sample { codes, ..at(s) });
        assert_eq!(run(samples).len(), 3);
    }

    #[test]
    fn announced_code_is_repeated_after_ten_minutes() {
        let announce = |s| Sample { event: Some("trouble_code".into()), code: Some("P0128".into()), ..at(s) };
        assert_eq!(run([announce(1), announce(60), announce(700)]).len(), 2);
    }

    #[test]
    fn overheating_becomes_severe_once() {
        let temperatures = [100.0, 111.0, 112.0, 109.0, 112.0, 119.0, 120.0, 107.0, 111.0, 104.0];
        let samples = temperatures.into_iter().zip(1..).map(|(c, s)| Sample { coolant_c: Some(c), ..at(s * 3) });
        let expected = [(Kind::Overheating, Severity::Warn), (Kind::Overheating, Severity::Severe)];
        assert_eq!(run(samples), expected);
    }

    #[test]
    fn lamp_fuel_and_oil_are_reported_once() {
        let samples = (1..30).map(|s| Sample { lamp: Some(s > 3), fuel: Some(12.0 - s as f64 * 0.2), ..at(s) });
        assert_eq!(run(samples), [(Kind::Lamp, Severity::Severe), (Kind::LowFuel, Severity::Info)]);
        let samples = (1..30).map(|s| Sample { oil_kpa: Some(if s > 5 { 60.0 } else { 300.0 }), ..at(s) });
        assert_eq!(run(samples), [(Kind::OilPressure, Severity::Severe)]);
    }
}
