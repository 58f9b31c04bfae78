//! Cars that drive through a town. The simulation does no I/O: time is an input and every choice comes from the
//! seed.

mod car;
mod conduct;
mod driver;
mod drivetrain;
mod label;
mod path;

use std::time::Duration;

pub use car::{ACCELERATION_MAX, BRAKING_MAX, Car, HARSH_BRAKING, JERK_MAX, TICK};
pub use driver::{Driver, Manners};
pub use drivetrain::{Controls, Drivetrain};
pub use label::{Deed, Label};

use crate::record::Record;
use crate::town::Town;
use millrace_client::random::Random;

pub struct Fleet {
    town: Town,
    cars: Vec<Car>,
    /// Time passed by the caller that does not fill a tick yet.
    rest: Duration,
}

impl Fleet {
    /// Creates `cars` cars with drivers of all manners, numbered from 1. The route of a car does not depend on the
    /// number of other cars.
    pub fn new(town: Town, cars: u32, seed: u64) -> Self {
        Self::with_manners(town, cars, seed, Manners::Mixed)
    }

    /// Creates cars like [`Fleet::new`], with drivers of these manners.
    pub fn with_manners(town: Town, cars: u32, seed: u64, manners: Manners) -> Self {
        let cars = (1..=cars)
            .map(|id| {
                let random = Random::from_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(id)));
                Car::new(id, &town.graph, manners, random)
            })
            .collect();
        Self { town, cars, rest: Duration::ZERO }
    }

    /// Advances the simulation by `dt`. Returns one record per car with the time `now_ms` (milliseconds since
    /// 1970).
    pub fn step(&mut self, now_ms: u64, dt: Duration) -> Vec<Record> {
        self.rest += dt;
        while self.rest >= TICK {
            self.rest -= TICK;
            for car in &mut self.cars {
                car.tick(&self.town.graph);
            }
        }
        self.cars.iter_mut().map(|car| car.report(now_ms)).collect()
    }

    /// Returns what the drivers and cars have done since the last call: the truth that a detector should find. Deeds in
    /// progress follow when they end.
    pub fn take_labels(&mut self) -> Vec<Label> {
        self.cars.iter_mut().flat_map(Car::take_labels).collect()
    }

    /// Erases the stored trouble codes of a car. A fault that lasts is stored again when the car next detects it.
    pub fn clear_codes(&mut self, car: u32) {
        self.cars.iter_mut().filter(|each| each.id() == car).for_each(|each| each.conduct.clear_codes());
    }

    pub fn town(&self) -> &Town {
        &self.town
    }

    pub fn cars(&self) -> &[Car] {
        &self.cars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Event;

    fn drive(cars: u32, seed: u64, seconds: u64) -> Vec<Record> {
        let mut fleet = Fleet::new(Town::default(), cars, seed);
        (1..=seconds).flat_map(|s| fleet.step(s * 1000, Duration::from_secs(1))).collect()
    }

    #[test]
    fn the_same_seed_drives_the_same_way() {
        assert_eq!(drive(3, 7, 120), drive(3, 7, 120));
        assert_ne!(drive(3, 7, 120), drive(3, 8, 120));
    }

    #[test]
    fn car_is_independent_of_others_and_step_size() {
        let first_of = |records: Vec<Record>| records.into_iter().filter(|r| r.car_id == 1).collect::<Vec<_>>();
        assert_eq!(first_of(drive(1, 7, 60)), first_of(drive(4, 7, 60)));
        let mut coarse = Fleet::new(Town::default(), 1, 7);
        let mut fine = Fleet::new(Town::default(), 1, 7);
        let late = coarse.step(9, Duration::from_secs(30)).remove(0);
        let last = (0..4000).map(|_| fine.step(9, Duration::from_micros(7500))).last().expect("steps").remove(0);
        assert_eq!((late.gps_latitude, late.rpm), (last.gps_latitude, last.rpm));
    }

    #[test]
    fn calm_cars_drive_smoothly_on_the_streets() {
        let mut fleet = Fleet::with_manners(Town::default(), 8, 7, Manners::Calm);
        let mut before = vec![(0.0, 0.0); 8];
        let (mut top, mut stood) = (0.0f64, 0);
        for tick in 0..9000 {
            fleet.step(0, TICK);
            for (car, before) in fleet.cars().iter().zip(&mut before) {
                let dt = TICK.as_secs_f64();
                let acceleration = (car.speed() - before.0) / dt;
                let jerk = (acceleration - before.1) / dt;
                assert!(car.speed() >= 0.0);
                assert!(acceleration <= ACCELERATION_MAX + 1e-6, "{acceleration} m/s2");
                assert!(acceleration >= -BRAKING_MAX - 1e-6, "{acceleration} m/s2");
                assert!(jerk.abs() <= JERK_MAX + 1e-6, "{jerk} m/s3");
                assert!(car.speed() <= car.limit() + 1.0, "{} over {}", car.speed(), car.limit());
                // Check every half second, in which a car drives at most 7 m, because the distance to all streets
                // is slow to compute.
                let at_home = tick % 5 != 0 || fleet.town().graph.distance(car.place()) < 6.0;
                assert!(at_home, "car {} left the street", car.id());
                *before = (car.speed(), acceleration);
                top = top.max(car.speed());
                stood += u32::from(car.speed() == 0.0);
            }
        }
        assert!(top > 12.0, "nobody ever drives at {top} m/s on an avenue");
        assert!((1000..40_000).contains(&stood), "{stood} of 72,000 ticks at rest");
    }

    #[test]
    fn calm_cars_slow_down_for_corners() {
        let mut fleet = Fleet::with_manners(Town::default(), 4, 7, Manners::Calm);
        let mut rides: Vec<Vec<Record>> = vec![Vec::new(); 4];
        for _ in 0..1800 {
            for record in fleet.step(0, Duration::from_millis(500)) {
                rides[record.car_id as usize - 1].push(record);
            }
        }
        let mut corners = 0;
        for window in rides.iter().flat_map(|ride| ride.windows(7)) {
            let heading = |record: &Record| record.heading.expect("a heading");
            let turn = (heading(&window[6]) - heading(&window[0]) + 540.0).rem_euclid(360.0) - 180.0;
            if turn.abs() > 60.0 && window.iter().all(|record| record.speed > 0.5) {
                corners += 1;
                let slowest = window.iter().map(|record| record.speed).fold(f64::INFINITY, f64::min);
                assert!(slowest < 6.5, "{turn} degrees at {slowest} m/s");
            }
        }
        assert!(corners > 20, "only {corners} windows with a corner");
    }

    #[test]
    fn records_have_numbers_temperature_and_events() {
        let records = drive(12, 7, 900);
        for id in 1..=12 {
            let of_car: Vec<&Record> = records.iter().filter(|r| r.car_id == id).collect();
            assert!(of_car.iter().enumerate().all(|(i, r)| r.seq == Some(i as u64 + 1)));
            assert!(of_car.iter().all(|r| (0.0..360.0).contains(&r.heading.expect("heading"))));
            let last = of_car[of_car.len() - 1].coolant_temperature;
            assert!((80..=122).contains(&last), "car {id} at {last} C after 15 minutes");
            let jump = of_car.windows(2).map(|p| (p[1].coolant_temperature - p[0].coolant_temperature).abs()).max();
            assert!(jump <= Some(2), "coolant jumps by {jump:?} C in a second");
            assert!(of_car.windows(2).all(|p| p[1].fuel <= p[0].fuel || p[1].fuel > Some(90.0)), "fuel from nowhere");
        }
        assert!(records.iter().take(12).any(|r| r.coolant_temperature < 30), "nobody starts cold");
        let has = |event| records.iter().filter(|r| r.event == Some(event)).count();
        let counts =
            [has(Event::HarshBraking), has(Event::HarshAcceleration), has(Event::HighRpm), has(Event::TroubleCode)];
        assert!(counts.iter().all(|&n| (2..200).contains(&n)), "{counts:?}");
        assert!(records.iter().all(|r| (r.event == Some(Event::TroubleCode)) == r.code.is_some()));
        assert!(records.iter().all(|r| r.rpm < 6000));
        assert!(records.iter().filter(|r| r.event == Some(Event::HighRpm)).all(|r| r.rpm > 2000));
    }

    #[test]
    fn drivers_leave_labels_of_every_deed() {
        let mut fleet = Fleet::new(Town::default(), 60, 7);
        let mut labels = Vec::new();
        let mut hardest = 0.0f64;
        for _ in 0..36_000 {
            let before: Vec<f64> = fleet.cars().iter().map(Car::speed).collect();
            fleet.step(0, TICK);
            let changes = fleet.cars().iter().zip(before).map(|(car, before)| (car.speed() - before) / 0.1);
            hardest = changes.filter(|along| *along > -40.0).fold(hardest, |hardest, along| hardest.max(-along));
            labels.extend(fleet.take_labels());
        }
        assert!((6.0..=HARSH_BRAKING + 1e-6).contains(&hardest), "{hardest} m/s2");
        for deed in Deed::ALL {
            let clear = labels.iter().filter(|label| label.deed == deed && label.is_clear).count();
            assert!(clear > 0, "no clear {deed:?}");
        }
        let unclear = labels.iter().filter(|label| !label.is_clear).count();
        assert!(unclear * 2 < labels.len(), "{unclear} of {} labels are unclear", labels.len());
        let mut calm = Fleet::with_manners(Town::default(), 10, 7, Manners::Calm);
        (0..18_000).for_each(|_| drop(calm.step(0, TICK)));
        assert_eq!(calm.take_labels(), []);
    }
}
