//! Model of one car. An invisible leader drives along the path within every speed and acceleration limit. The car
//! moves with the leader's speed averaged over [`SMOOTH_TICKS`]. Because the leader's acceleration is bounded, the
//! averaged speed has a bounded jerk.

use std::{collections::VecDeque, time::Duration};

use crate::record::{Event, Record};
use crate::town::geo::{Point, round_to};
use crate::town::{Class, Graph, RoadId};
use millrace_client::random::Random;

use super::conduct::Conduct;
use super::driver::{Driver, Manners};
use super::drivetrain::Drivetrain;
use super::label::Label;
use super::path::Path;

/// Length of a simulation step, independent of the caller's steps.
pub const TICK: Duration = Duration::from_millis(100);
/// Maximum acceleration of a calm driver, m/s2.
pub const ACCELERATION_MAX: f64 = 1.6;
/// Normal braking of a calm driver, m/s2.
pub const BRAKING_MAX: f64 = 2.0;
/// Hardest braking of any driver, m/s2.
pub const HARSH_BRAKING: f64 = 7.2;
pub const SMOOTH_TICKS: usize = 12;
/// Maximum jerk of a calm driver, m/s3: the change from full acceleration to full braking within the averaging time.
pub const JERK_MAX: f64 = (ACCELERATION_MAX + BRAKING_MAX) / (SMOOTH_TICKS as f64 * DT);
/// Time over which the lateral acceleration is averaged, because a body does not follow each kink of the path.
const TURN_TICKS: usize = 5;
/// Limits above which the device reports an event: m/s2, rpm.
const HARSH_EVENT: f64 = 3.5;
const SPURT_EVENT: f64 = 3.0;
const HIGH_RPM: f64 = 3500.0;

pub(super) const DT: f64 = TICK.as_millis() as f64 / 1000.0;
/// Minimum speed of a moving leader, so that it reaches its stops.
const CREEP_MPS: f64 = ACCELERATION_MAX * DT;

pub struct Car {
    pub(super) id: u32,
    pub(super) random: Random,
    road: RoadId,
    pub(super) path: Path,
    pub(super) leader: Leader,
    /// Meters along the path.
    pub(super) metres: f64,
    /// Last speeds of the leader, newest last.
    speeds: VecDeque<f64>,
    pub(super) speed: f64,
    /// Acceleration over the last tick, m/s2.
    pub(super) along: f64,
    /// Directions of the last [`TURN_TICKS`], in radians, newest last.
    headings: VecDeque<f64>,
    /// Strongest acceleration since the last report, m/s2.
    shock: f64,
    pub(super) drivetrain: Drivetrain,
    pub(super) driver: Driver,
    pub(super) conduct: Conduct,
    pub(super) event: Option<(Event, Option<&'static str>)>,
    was_high: bool,
    seq: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Leader {
    pub metres: f64,
    pub speed: f64,
    pub next_stop: usize,
    pub waits_s: f64,
}

/// Limits of one tick that a deed changes, m/s2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub acceleration: f64,
    /// Deceleration that the driver uses whether or not the road requires it.
    pub brakes: Option<f64>,
}

impl Car {
    pub(super) fn new(id: u32, graph: &Graph, manners: Manners, mut random: Random) -> Self {
        let driver = Driver::new(manners, &mut random);
        let road = pick_road(graph, &mut random);
        let (path, road) = plan(graph, road, &driver, &mut random);
        let ambient_c = random.between(8.0, 22.0);
        let coolant_c = if random.happens(0.5) { ambient_c } else { random.between(ambient_c, 90.0) };
        let fuel = random.between(if driver.has_deeds { 0.1 } else { 0.7 }, 0.95);
        let conduct = Conduct::new(&mut random);
        Self {
            id,
            road,
            path,
            leader: Leader { metres: 0.0, speed: 0.0, next_stop: 0, waits_s: random.between(0.0, 3.0) },
            metres: 0.0,
            speeds: VecDeque::from([0.0; SMOOTH_TICKS]),
            speed: 0.0,
            along: 0.0,
            headings: VecDeque::new(),
            shock: 0.0,
            drivetrain: Drivetrain::new(ambient_c, coolant_c, fuel),
            driver,
            conduct,
            event: None,
            was_high: false,
            seq: 0,
            random,
        }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the speed in meters per second.
    pub fn speed(&self) -> f64 {
        self.speed
    }

    pub fn place(&self) -> Point {
        self.path.place(self.metres).0
    }

    /// Returns the speed limit at the current place, m/s.
    pub fn limit(&self) -> f64 {
        self.path.limit(self.metres)
    }

    /// Returns the lateral acceleration, m/s2.
    pub(super) fn sideways(&self) -> f64 {
        let (Some(first), Some(last)) = (self.headings.front(), self.headings.back()) else { return 0.0 };
        let turn = (last - first + std::f64::consts::PI).rem_euclid(std::f64::consts::TAU) - std::f64::consts::PI;
        self.speed * turn.abs() / (self.headings.len().max(2) - 1) as f64 / DT
    }

    /// Returns what the driver and the car have done since the last call.
    pub(super) fn take_labels(&mut self) -> Vec<Label> {
        std::mem::take(&mut self.conduct.labels)
    }

    pub(super) fn tick(&mut self, graph: &Graph) {
        let pace = self.decide();
        let before = self.speed;
        let led = self.lead(pace);
        self.speeds.pop_front();
        self.speeds.push_back(led);
        self.speed = self.speeds.iter().sum::<f64>() / SMOOTH_TICKS as f64;
        self.crash_if_planned();
        self.along = (self.speed - before) / DT;
        self.metres += self.speed * DT;
        if self.headings.len() > TURN_TICKS {
            self.headings.pop_front();
        }
        self.headings.push_back(self.path.place(self.metres).1.angle());
        let sideways = self.sideways();
        self.shock = self.shock.max(self.along.hypot(sideways));
        let controls = self.conduct.controls();
        // Engines answer to the average of a jerky acceleration; a crash is none of the engine's.
        self.drivetrain.advance(DT, self.speed, self.along.max(-10.0), controls);
        self.detect_on_device(sideways);
        self.observe_deeds();
        let arrived = self.leader.next_stop == self.path.stops.len() && self.leader.waits_s <= 0.0;
        if arrived && self.speed == 0.0 {
            self.drivetrain.refuel_if_empty();
            (self.path, self.road) = plan(graph, self.road, &self.driver, &mut self.random);
            self.leader = Leader { metres: 0.0, speed: 0.0, next_stop: 0, waits_s: 0.0 };
            self.metres = 0.0;
            self.headings.clear();
        }
    }

    /// Stops the car at once.
    pub(super) fn stop_dead(&mut self, waits_s: f64) {
        self.speeds.iter_mut().for_each(|speed| *speed = 0.0);
        self.speed = 0.0;
        self.leader = Leader { metres: self.metres, speed: 0.0, waits_s, ..self.leader };
    }

    /// Sets the event that the device reports by itself.
    fn detect_on_device(&mut self, sideways: f64) {
        let is_high = self.drivetrain.rpm() > HIGH_RPM;
        let event = match () {
            () if self.along < -40.0 => Some(Event::Accident),
            () if self.along < -HARSH_EVENT => Some(Event::HarshBraking),
            () if self.along > SPURT_EVENT => Some(Event::HarshAcceleration),
            () if sideways > HARSH_EVENT && self.speed > 30.0 / 3.6 => Some(Event::HarshCornering),
            () if is_high && !self.was_high => Some(Event::HighRpm),
            () => None,
        };
        self.was_high = is_high;
        let is_important = matches!(self.event, Some((Event::Accident | Event::TroubleCode, _)));
        if let Some(event) = event.filter(|_| !is_important) {
            self.event = Some((event, None));
        }
    }

    /// Returns the record at `now_ms`. An event is reported once.
    pub(super) fn report(&mut self, now_ms: u64) -> Record {
        self.seq += 1;
        let (place, way) = self.path.place(self.metres);
        let at = place.lat_lon().rounded();
        let clockwise_from_north = (90.0 - way.angle().to_degrees()).rem_euclid(360.0);
        let event = self.event.take();
        let (engine, codes) = (&self.drivetrain, self.conduct.codes());
        let shock_g = std::mem::take(&mut self.shock) / 9.81;
        Record {
            car_id: self.id,
            timestamp: now_ms,
            gps_latitude: at.lat,
            gps_longitude: at.lon,
            speed: round_to(self.speed, 2),
            rpm: engine.rpm().round() as u32,
            coolant_temperature: engine.coolant_c().round() as i32,
            heading: Some(round_to(clockwise_from_north, 1) % 360.0),
            gear: Some(engine.gear()),
            seq: Some(self.seq),
            accuracy: Some(4.0),
            throttle: Some(round_to(engine.throttle(), 0)),
            engine_load: Some(round_to(engine.load(), 0)),
            fuel: Some(round_to(engine.fuel(), 1)),
            oil_pressure: Some(round_to(engine.oil_kpa(), 0)),
            co2: engine.co2(self.speed).map(|co2| round_to(co2, 0)),
            acceleration: Some(round_to(shock_g, 2)),
            lamp: Some(!codes.is_empty()),
            trouble_codes: Some(codes.iter().map(|code| (*code).to_owned()).collect()),
            event: event.map(|(event, _)| event),
            code: event.and_then(|(_, code)| code).map(str::to_owned),
        }
    }

    /// Moves the leader one tick. Returns its speed over that tick.
    fn lead(&mut self, pace: Pace) -> f64 {
        let braking = self.driver.braking;
        let leader = &mut self.leader;
        if leader.waits_s > 0.0 || leader.next_stop == self.path.stops.len() {
            leader.waits_s -= DT;
            return 0.0;
        }
        let (stop, waits_s) = self.path.stops[leader.next_stop];
        let ahead = leader.metres + leader.speed * DT;
        let to_stop = (2.0 * braking * (stop - ahead).max(0.0)).sqrt();
        let wanted = self.path.cap(ahead).min(to_stop);
        let slower = leader.speed - braking * DT;
        let mut speed = wanted.clamp(slower, leader.speed + pace.acceleration * DT);
        if let Some(brakes) = pace.brakes {
            speed = speed.min(leader.speed - brakes * DT);
        }
        speed = speed.max(CREEP_MPS);
        if leader.metres + speed * DT >= stop - 0.01 {
            let reached = ((stop - leader.metres) / DT).max(0.0);
            *leader = Leader { metres: stop, speed: 0.0, next_stop: leader.next_stop + 1, waits_s };
            return reached;
        }
        leader.metres += speed * DT;
        leader.speed = speed;
        speed
    }

    /// Returns true if the road allows the leader to reach `speed` at `acceleration` without braking for anything.
    pub(super) fn is_free_for(&self, speed: f64, acceleration: f64) -> bool {
        let Leader { metres, speed: now, next_stop, .. } = self.leader;
        let needed = (speed * speed - now * now).max(0.0) / (2.0 * acceleration);
        let Some((stop, _)) = self.path.stops.get(next_stop) else { return false };
        let brakes = speed * speed / (2.0 * self.driver.braking);
        metres + needed + brakes + 10.0 < *stop
            && (0..=20).all(|i| {
                let along = needed * f64::from(i) / 20.0;
                self.path.cap(metres + along + 3.0) >= (now * now + 2.0 * acceleration * along).sqrt()
            })
    }
}

fn pick_road(graph: &Graph, random: &mut Random) -> RoadId {
    loop {
        let road = random.index(graph.roads.len());
        if !matches!(graph.roads[road].class, Class::Roundabout | Class::Bridge) {
            return road;
        }
    }
}

/// Plans a path from the middle of `from` to a place at least 600 m away. Returns the path and the road on which it
/// ends.
fn plan(graph: &Graph, from: RoadId, driver: &Driver, random: &mut Random) -> (Path, RoadId) {
    let here = graph.points[graph.roads[from].to];
    loop {
        let to = pick_road(graph, random);
        if graph.points[graph.roads[to].to].distance(here) < 600.0 {
            continue;
        }
        let route = graph.route(from, to);
        if route.len() > 2 {
            return (Path::new(graph, &route, driver, random), to);
        }
    }
}
