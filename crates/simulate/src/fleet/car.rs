//! Model of one car. An invisible leader drives along the path within every speed and acceleration limit. The car
//! moves with the leader's speed averaged over [`SMOOTH_TICKS`]. Because the leader's acceleration is bounded, the
//! averaged speed has a bounded jerk.

use std::{collections::VecDeque, time::Duration};

use crate::record::{Event, Record};
use crate::town::geo::{Point, round_to};
use crate::town::{Class, Graph, RoadId};
use millrace_client::random::Random;

use super::Drivetrain;
use super::path::Path;

/// Length of a simulation step, independent of the caller's steps.
pub const TICK: Duration = Duration::from_millis(100);
/// Maximum acceleration, m/s2.
pub const ACCELERATION_MAX: f64 = 1.6;
/// Normal braking, m/s2.
pub const BRAKING_MAX: f64 = 2.0;
/// Hard braking, m/s2. Braking harder than [`HARSH_EVENT`] is reported as an event.
pub const HARSH_BRAKING: f64 = 4.8;
const HARSH_EVENT: f64 = 3.5;
const SMOOTH_TICKS: usize = 12;
/// Maximum jerk, m/s3: the change from full acceleration to hard braking within the averaging time.
pub const JERK_MAX: f64 = (ACCELERATION_MAX + HARSH_BRAKING) / (SMOOTH_TICKS as f64 * DT);
const HIGH_RPM: f64 = 3500.0;
/// Generic OBD-II codes: misfire, catalyst, thermostat, lean mixture, evaporation leak.
const TROUBLE_CODES: [&str; 5] = ["P0301", "P0420", "P0128", "P0171", "P0442"];

const DT: f64 = TICK.as_millis() as f64 / 1000.0;
/// Minimum speed of a moving leader, so that it reaches its stops.
const CREEP_MPS: f64 = ACCELERATION_MAX * DT;

pub struct Car {
    id: u32,
    random: Random,
    road: RoadId,
    path: Path,
    leader: Leader,
    /// Meters along the path.
    metres: f64,
    /// Last speeds of the leader, newest last.
    speeds: VecDeque<f64>,
    speed: f64,
    drivetrain: Drivetrain,
    incident: Incident,
    /// Seconds of driving until the next incident.
    quiet_s: f64,
    event: Option<(Event, Option<&'static str>)>,
    seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Leader {
    metres: f64,
    speed: f64,
    next_stop: usize,
    waits_s: f64,
}

/// Current behavior of the driver.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Incident {
    None,
    WillBrake,
    Brakes,
    /// Holds the gear until the engine speed is very high.
    Hastes,
}

impl Car {
    pub(super) fn new(id: u32, graph: &Graph, mut random: Random) -> Self {
        let road = pick_road(graph, &mut random);
        let (path, road) = plan(graph, road, &mut random);
        let ambient_c = random.between(8.0, 22.0);
        let coolant_c = if random.happens(0.5) { ambient_c } else { random.between(ambient_c, 90.0) };
        let quiet_s = random.between(20.0, 150.0);
        Self {
            id,
            road,
            path,
            leader: Leader { metres: 0.0, speed: 0.0, next_stop: 0, waits_s: random.between(0.0, 3.0) },
            metres: 0.0,
            speeds: VecDeque::from([0.0; SMOOTH_TICKS]),
            speed: 0.0,
            drivetrain: Drivetrain::new(ambient_c, coolant_c),
            incident: Incident::None,
            quiet_s,
            event: None,
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

    pub(super) fn tick(&mut self, graph: &Graph) {
        self.behave();
        let before = self.speed;
        let led = self.lead();
        self.speeds.pop_front();
        self.speeds.push_back(led);
        self.speed = self.speeds.iter().sum::<f64>() / SMOOTH_TICKS as f64;
        self.metres += self.speed * DT;
        self.drivetrain.advance(DT, self.speed, self.incident == Incident::Hastes);
        if (before - self.speed) / DT > HARSH_EVENT {
            self.event = Some((Event::HarshBraking, None));
        }
        if self.drivetrain.rpm() > HIGH_RPM {
            self.event = Some((Event::HighRpm, None));
            self.incident = Incident::None;
        }
        let arrived = self.leader.next_stop == self.path.stops.len() && self.leader.waits_s <= 0.0;
        if arrived && self.speed == 0.0 {
            (self.path, self.road) = plan(graph, self.road, &mut self.random);
            self.leader = Leader { metres: 0.0, speed: 0.0, next_stop: 0, waits_s: 0.0 };
            self.metres = 0.0;
        }
    }

    /// Returns the record at `now_ms`. An event is reported once.
    pub(super) fn report(&mut self, now_ms: u64) -> Record {
        self.seq += 1;
        let (place, way) = self.path.place(self.metres);
        let at = place.lat_lon().rounded();
        let clockwise_from_north = (90.0 - way.angle().to_degrees()).rem_euclid(360.0);
        let event = self.event.take();
        Record {
            car_id: self.id,
            timestamp: now_ms,
            gps_latitude: at.lat,
            gps_longitude: at.lon,
            speed: round_to(self.speed, 2),
            rpm: self.drivetrain.rpm().round() as u32,
            coolant_temperature: self.drivetrain.coolant_c().round() as i32,
            heading: Some(round_to(clockwise_from_north, 1) % 360.0),
            gear: Some(self.drivetrain.gear()),
            seq: Some(self.seq),
            event: event.map(|(event, _)| event),
            code: event.and_then(|(_, code)| code).map(str::to_owned),
        }
    }

    /// Starts an incident from time to time: the driver brakes hard or holds a gear too long, or the engine control
    /// unit detects a fault.
    fn behave(&mut self) {
        if self.speed > 0.0 {
            self.quiet_s -= DT;
        }
        if self.quiet_s > 0.0 || self.incident != Incident::None {
            return;
        }
        self.quiet_s = self.random.between(60.0, 200.0);
        let kind = self.random.unit();
        if kind < 0.45 {
            self.incident = Incident::WillBrake;
        } else if kind < 0.8 {
            self.incident = Incident::Hastes;
        } else {
            let code = TROUBLE_CODES[self.random.index(TROUBLE_CODES.len())];
            self.event = Some((Event::TroubleCode, Some(code)));
        }
    }

    /// Moves the leader one tick. Returns its speed over that tick.
    fn lead(&mut self) -> f64 {
        let leader = &mut self.leader;
        if leader.waits_s > 0.0 || leader.next_stop == self.path.stops.len() {
            leader.waits_s -= DT;
            return 0.0;
        }
        let (stop, waits_s) = self.path.stops[leader.next_stop];
        let ahead = leader.metres + leader.speed * DT;
        let to_stop = (2.0 * BRAKING_MAX * (stop - ahead).max(0.0)).sqrt();
        let wanted = self.path.cap(ahead).min(to_stop);
        let slower = leader.speed - BRAKING_MAX * DT;
        let mut speed = wanted.clamp(slower, leader.speed + ACCELERATION_MAX * DT);
        // Hard braking needs a minimum speed; until then the driver waits.
        if self.incident == Incident::WillBrake && leader.speed > 9.5 {
            self.incident = Incident::Brakes;
        }
        if self.incident == Incident::Brakes {
            speed = speed.min(leader.speed - HARSH_BRAKING * DT);
            if speed < 3.0 {
                self.incident = Incident::None;
            }
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
fn plan(graph: &Graph, from: RoadId, random: &mut Random) -> (Path, RoadId) {
    let here = graph.points[graph.roads[from].to];
    loop {
        let to = pick_road(graph, random);
        if graph.points[graph.roads[to].to].distance(here) < 600.0 {
            continue;
        }
        let route = graph.route(from, to);
        if route.len() > 2 {
            return (Path::new(graph, &route, random), to);
        }
    }
}
