use std::{collections::BTreeMap, time::Duration};

use millrace_client::random::Random;
use millrace_driving::{Car, Event, Kind, Sample, Severity, Thresholds};
use millrace_simulate::{
    fleet::{Deed, Fleet, Label, Manners},
    receiver::{Receiver, TOWN},
    record::Record,
    town::Town,
};

/// Begin of all test drives, in milliseconds since 1970.
const START_MS: u64 = 1_700_000_000_000;
/// An event may begin this time before or after the deed: two records, one of them lost, and a second.
const fn slack_ms(every_s: u64) -> u64 {
    (2 * every_s + 1) * 1000
}

/// Equipment of a device besides its sensors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Device {
    /// Position, speed and the values of the engine only.
    Plain,
    /// Also the events and the shock that its accelerometer has found.
    Smart,
}

/// Events and labels of a fleet, and the distance that it has driven.
struct Run {
    events: Vec<(u32, Event)>,
    labels: Vec<Label>,
    km: f64,
    every_s: u64,
}

/// Drives `cars` cars for `seconds` and passes their noisy records to one detector per car.
fn drive(cars: u32, seed: u64, seconds: u64, every_s: u64, manners: Manners, device: Device) -> Run {
    let mut fleet = Fleet::with_manners(Town::default(), cars, seed, manners);
    let mut receivers: Vec<Receiver> =
        (0..cars).map(|car| Receiver::new(TOWN, Random::from_seed(seed * 1000 + u64::from(car)))).collect();
    let mut detectors: Vec<Car> = (0..cars).map(|_| Car::default()).collect();
    let thresholds = Thresholds::default();
    let mut run = Run { events: Vec::new(), labels: Vec::new(), km: 0.0, every_s };
    for second in (every_s..=seconds).step_by(every_s as usize) {
        let now_ms = START_MS + second * 1000;
        for record in fleet.step(now_ms, Duration::from_secs(every_s)) {
            run.km += record.speed * every_s as f64 / 1000.0;
            let car = record.car_id as usize - 1;
            for mut record in receivers[car].receive(&record) {
                if device == Device::Plain {
                    record = Record { event: None, code: None, acceleration: None, ..record };
                }
                let json = serde_json::to_vec(&record).expect("JSON");
                let sample = Sample::parse(&json).expect("a record");
                let observed = detectors[car].observe(&sample, now_ms, &thresholds, &[]);
                run.events.extend(observed.events.into_iter().map(|event| (record.car_id, event)));
            }
        }
        run.labels.extend(fleet.take_labels());
    }
    // Deeds in progress have no label yet.
    let end_ms = START_MS + seconds.saturating_sub(600) * 1000;
    run.events.retain(|(_, event)| event.time < end_ms);
    run.labels.retain(|label| START_MS + label.from_ms + slack_ms(every_s) < end_ms);
    run
}

fn kind_of(deed: Deed) -> Kind {
    match deed {
        Deed::HarshBraking => Kind::HarshBraking,
        Deed::HarshAcceleration => Kind::HarshAcceleration,
        Deed::HarshCornering => Kind::HarshCornering,
        Deed::GearTooHigh => Kind::GearTooHigh,
        Deed::GearTooLow => Kind::GearTooLow,
        Deed::HighRpm => Kind::HighRpm,
        Deed::Idling => Kind::Idling,
        Deed::Overheating => Kind::Overheating,
        Deed::OilPressure => Kind::OilPressure,
        Deed::TroubleCode => Kind::TroubleCode,
        Deed::Accident => Kind::Accident,
    }
}

/// Counts of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    found: usize,
    missed: usize,
    wrong: usize,
    /// Events that match a deed that was broken off; they count neither way.
    unclear: usize,
}

impl Tally {
    fn precision(self) -> f64 {
        self.found as f64 / (self.found + self.wrong).max(1) as f64
    }

    fn recall(self) -> f64 {
        self.found as f64 / (self.found + self.missed).max(1) as f64
    }
}

/// Compares events with labels. A second event for one deed counts as wrong.
fn compare(run: &Run) -> BTreeMap<Kind, Tally> {
    let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
    let mut is_found = vec![false; run.labels.len()];
    for (car, event) in &run.events {
        // Low fuel follows from the distance, the lamp from the trouble code; an engine that gets hotter is not news.
        let is_hotter = event.kind == Kind::Overheating && event.severity == Severity::Severe;
        if matches!(event.kind, Kind::LowFuel | Kind::Lamp) || is_hotter {
            continue;
        }
        let tally = tallies.entry(event.kind).or_default();
        let matches = |label: &Label| {
            let (from, until) = (START_MS + label.from_ms, START_MS + label.until_ms);
            let slack_ms = slack_ms(run.every_s);
            label.car_id == *car
                && kind_of(label.deed) == event.kind
                && (from - slack_ms..=until + slack_ms).contains(&event.time)
        };
        let mut matching = (0..run.labels.len()).filter(|&i| matches(&run.labels[i]));
        match matching.clone().find(|&i| run.labels[i].is_clear && !is_found[i]) {
            Some(i) => {
                is_found[i] = true;
                tally.found += 1;
            }
            None if matching.any(|i| !run.labels[i].is_clear) => tally.unclear += 1,
            None => {
                if std::env::var_os("SHOW_WRONG").is_some() {
                    println!("wrong: car {car} {event:?}");
                }
                tally.wrong += 1;
            }
        }
    }
    for (label, is_found) in run.labels.iter().zip(is_found) {
        if label.is_clear && !is_found {
            if std::env::var_os("SHOW_WRONG").is_some() {
                println!("missed: {label:?}");
            }
            tallies.entry(kind_of(label.deed)).or_default().missed += 1;
        }
    }
    tallies
}

/// Drives until all cars together have driven `km`, with several seeds.
fn drive_far(km: f64, every_s: u64, device: Device) -> Run {
    let mut all = Run { events: Vec::new(), labels: Vec::new(), km: 0.0, every_s };
    for seed in 1.. {
        let run = drive(10, seed, 3 * 3600, every_s, Manners::Mixed, device);
        // Cars of different seeds are different cars.
        let rename = |car: u32| car + 1000 * seed as u32;
        all.events.extend(run.events.into_iter().map(|(car, event)| (rename(car), event)));
        all.labels.extend(run.labels.into_iter().map(|label| Label { car_id: rename(label.car_id), ..label }));
        all.km += run.km;
        if all.km >= km {
            break;
        }
    }
    all
}

fn show(run: &Run, tallies: &BTreeMap<Kind, Tally>) {
    println!(
        "{:.0} km, {} labels, {} of them clear",
        run.km,
        run.labels.len(),
        run.labels.iter().filter(|l| l.is_clear).count()
    );
    for (kind, tally) in tallies {
        println!(
            "{kind:?}: found {} missed {} wrong {} unclear {}: precision {:.3} recall {:.3}",
            tally.found,
            tally.missed,
            tally.wrong,
            tally.unclear,
            tally.precision(),
            tally.recall()
        );
    }
}

#[test]
fn records_of_one_second_show_every_deed() {
    let run = drive_far(2000.0, 1, Device::Plain);
    let tallies = compare(&run);
    show(&run, &tallies);
    assert!(run.km >= 2000.0);
    for deed in Deed::ALL {
        let tally = tallies.get(&kind_of(deed)).copied().unwrap_or_default();
        assert!(tally.found >= 3, "{deed:?} occurs too rarely for a statement: {tally:?}");
        assert!(tally.precision() >= 0.95, "{deed:?}: {tally:?}");
        assert!(tally.recall() >= 0.95, "{deed:?}: {tally:?}");
    }
}

#[test]
fn records_of_five_seconds_show_what_lasts() {
    let run = drive_far(2000.0, 5, Device::Plain);
    let tallies = compare(&run);
    show(&run, &tallies);
    let of = |deed| tallies.get(&kind_of(deed)).copied().unwrap_or_default();
    for deed in [Deed::Idling, Deed::Overheating, Deed::OilPressure, Deed::TroubleCode] {
        assert!(of(deed).precision() >= 0.95 && of(deed).recall() >= 0.95, "{deed:?}: {:?}", of(deed));
    }
    for deed in [Deed::HarshBraking, Deed::HarshAcceleration, Deed::HarshCornering, Deed::Accident] {
        let Tally { found, wrong, .. } = of(deed);
        assert_eq!((found, wrong), (0, 0), "{deed:?} cannot be seen, so nothing may be reported");
    }
    // Between two records, shorter deeds escape; what is reported is true.
    for (deed, recall) in [(Deed::HighRpm, 0.8), (Deed::GearTooLow, 0.7), (Deed::GearTooHigh, 0.2)] {
        assert!(of(deed).precision() >= 0.95 && of(deed).recall() >= recall, "{deed:?}: {:?}", of(deed));
    }
}

#[test]
fn device_with_accelerometer_shows_maneuvers_at_five_seconds() {
    let run = drive_far(2000.0, 5, Device::Smart);
    let tallies = compare(&run);
    show(&run, &tallies);
    for deed in [Deed::HarshBraking, Deed::HarshAcceleration, Deed::HarshCornering, Deed::Accident] {
        let tally = tallies.get(&kind_of(deed)).copied().unwrap_or_default();
        assert!(tally.found >= 3, "{deed:?}: {tally:?}");
        assert!(tally.precision() >= 0.95 && tally.recall() >= 0.95, "{deed:?}: {tally:?}");
    }
}

#[test]
fn calm_drives_cause_no_alarm() {
    for seed in 11..=16 {
        for every_s in [1, 5] {
            let run = drive(8, seed, 5400, every_s, Manners::Calm, Device::Smart);
            assert!(run.km > 50.0, "{} km", run.km);
            assert_eq!(run.events, [], "seed {seed}, every {every_s} s");
        }
    }
}
