//! Gearbox, engine and consumption of one car, computed from its speed and acceleration.

/// Engine turns per wheel turn, gears 1 to 5.
const RATIOS: [f64; 5] = [13.5, 7.6, 5.0, 3.7, 2.95];
const WHEEL_CIRCUMFERENCE_M: f64 = 1.885;
const IDLE_RPM: f64 = 820.0;
/// A driver shifts up at `UP_RPM` and down below `DOWN_RPM`.
const UP_RPM: f64 = 2150.0;
const DOWN_RPM: f64 = 1150.0;
/// Minimum seconds between two gear changes.
const CHANGE_S: f64 = 1.0;
/// Temperature in degrees Celsius at which the thermostat opens.
const THERMOSTAT_C: f64 = 87.0;
const MASS_KG: f64 = 1300.0;
/// Rolling resistance in N, and air resistance in N per (m/s)2.
const ROLLING_N: f64 = 150.0;
const AIR: f64 = 0.39;
/// Maximum torque of the engine in Nm, over its useful range.
const TORQUE_NM: f64 = 160.0;
const TANK_L: f64 = 45.0;
/// Liters per hour at idle, and per kW of power.
const IDLE_L_PER_H: f64 = 0.7;
const L_PER_KWH: f64 = 0.29;
/// Grams of CO2 per liter of petrol.
const CO2_G_PER_L: f64 = 2392.0;

/// Inputs of the engine: the driver's, and the faults of the car.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Controls {
    /// Highest gear that the driver uses.
    pub gear_max: Option<u8>,
    /// Gear that the driver keeps.
    pub gear: Option<u8>,
    pub is_off: bool,
    pub has_no_cooling: bool,
    pub has_no_oil: bool,
}

#[derive(Clone, Debug)]
pub struct Drivetrain {
    /// 0 is neutral.
    gear: u8,
    rpm: f64,
    /// Fraction of the engine's torque, 0 to 1.
    load: f64,
    ambient_c: f64,
    block_c: f64,
    coolant_c: f64,
    since_change_s: f64,
    fuel_l: f64,
    l_per_h: f64,
    oil_kpa: f64,
}

impl Drivetrain {
    /// `fuel`: fraction of a full tank.
    pub fn new(ambient_c: f64, coolant_c: f64, fuel: f64) -> Self {
        Self {
            gear: 0,
            rpm: IDLE_RPM,
            load: 0.0,
            ambient_c,
            block_c: coolant_c,
            coolant_c,
            since_change_s: CHANGE_S,
            fuel_l: fuel * TANK_L,
            l_per_h: 0.0,
            oil_kpa: 0.0,
        }
    }

    /// Advances by `dt` seconds (at most about 1) at `speed` m/s and `acceleration` m/s2.
    pub fn advance(&mut self, dt: f64, speed: f64, acceleration: f64, controls: Controls) {
        self.since_change_s += dt;
        self.change_gear(speed, controls);
        let wheel = self.rpm_in(self.gear, speed);
        // Below 1,300 rpm in first gear the clutch slips while the car starts.
        let slip = if self.gear == 1 && speed > 0.1 { 1300.0 } else { IDLE_RPM };
        let target = if controls.is_off { 0.0 } else { wheel.max(slip) };
        self.rpm += (target - self.rpm) * (1.0 - (-dt / 0.25).exp());
        if controls.is_off && self.rpm < 30.0 {
            self.rpm = 0.0;
        }
        self.burn(dt, speed, acceleration, controls);
        self.warm(dt, controls);
        let regulated = (90.0 + 0.13 * self.rpm).min(420.0);
        let wanted = if self.rpm < 100.0 { 0.0 } else { regulated * if controls.has_no_oil { 0.15 } else { 1.0 } };
        self.oil_kpa += (wanted - self.oil_kpa) * (1.0 - (-dt / 0.8).exp());
    }

    pub fn gear(&self) -> u8 {
        self.gear
    }

    pub fn rpm(&self) -> f64 {
        self.rpm
    }

    pub fn coolant_c(&self) -> f64 {
        self.coolant_c
    }

    /// Returns the engine load in percent.
    pub fn load(&self) -> f64 {
        100.0 * self.load
    }

    /// Returns the position of the accelerator in percent. An engine at low speed needs more of it for its torque.
    pub fn throttle(&self) -> f64 {
        if self.load <= 0.0 { 0.0 } else { (12.0 + 88.0 * self.load).min(100.0) }
    }

    /// Returns the fuel in percent of a full tank.
    pub fn fuel(&self) -> f64 {
        100.0 * self.fuel_l / TANK_L
    }

    /// Fills the tank if it is nearly empty.
    pub fn refuel_if_empty(&mut self) {
        if self.fuel() < 7.0 {
            self.fuel_l = 0.96 * TANK_L;
        }
    }

    pub fn oil_kpa(&self) -> f64 {
        self.oil_kpa
    }

    /// Returns the emission in g/km; `None` below walking speed, where it has no meaning.
    pub fn co2(&self, speed: f64) -> Option<f64> {
        (speed > 2.0).then(|| self.l_per_h * CO2_G_PER_L / (speed * 3.6))
    }

    pub fn rpm_in(&self, gear: u8, speed: f64) -> f64 {
        match gear {
            0 => 0.0,
            gear => speed / WHEEL_CIRCUMFERENCE_M * 60.0 * RATIOS[usize::from(gear) - 1],
        }
    }

    fn change_gear(&mut self, speed: f64, controls: Controls) {
        if speed < 0.1 || controls.is_off {
            self.gear = 0;
        } else if let Some(gear) = controls.gear {
            self.gear = gear;
        } else if let Some(max) = controls.gear_max.filter(|max| self.gear > *max) {
            (self.gear, self.since_change_s) = (max, 0.0);
        } else if self.gear == 0 {
            let easy = (1..=5u8).find(|&gear| self.rpm_in(gear, speed) < UP_RPM);
            self.gear = easy.unwrap_or(5);
        } else if self.since_change_s >= CHANGE_S {
            let wheel = self.rpm_in(self.gear, speed);
            if wheel > UP_RPM && self.gear < controls.gear_max.unwrap_or(5) {
                (self.gear, self.since_change_s) = (self.gear + 1, 0.0);
            } else if wheel < DOWN_RPM && self.gear > 1 {
                (self.gear, self.since_change_s) = (self.gear - 1, 0.0);
            }
        }
    }

    /// Updates load and fuel from the force that the car needs.
    fn burn(&mut self, dt: f64, speed: f64, acceleration: f64, controls: Controls) {
        let resistance = if speed > 0.1 { ROLLING_N + AIR * speed * speed } else { 0.0 };
        let force = MASS_KG * acceleration + resistance;
        let available = match self.gear {
            0 => f64::INFINITY,
            gear => TORQUE_NM * RATIOS[usize::from(gear) - 1] / (WHEEL_CIRCUMFERENCE_M / std::f64::consts::TAU),
        };
        let load = (force / available).clamp(0.0, 1.0);
        self.load += (load - self.load) * (1.0 - (-dt / 0.2).exp());
        let kw = (force * speed / 1000.0).max(0.0);
        let idle = IDLE_L_PER_H * (self.rpm / IDLE_RPM).min(3.0);
        self.l_per_h = if controls.is_off { 0.0 } else { idle + L_PER_KWH * kw };
        self.fuel_l = (self.fuel_l - self.l_per_h * dt / 3600.0).max(0.0);
    }

    /// Updates the temperatures. The engine heats its block, the thermostat holds the block near 90 C, and the
    /// coolant follows with a time constant of 30 s.
    fn warm(&mut self, dt: f64, controls: Controls) {
        let heat = if controls.is_off { 0.0 } else { 0.13 + 0.14 * (self.rpm - IDLE_RPM) / 2000.0 };
        let cooling = 0.05 * (self.block_c - THERMOSTAT_C).max(0.0);
        // Without cooling, little of the heat leaves the engine.
        let (heat, cooling) = if controls.has_no_cooling { (heat * 3.0, 0.0) } else { (heat, cooling) };
        let loss = 0.0012 * (self.block_c - self.ambient_c) + cooling;
        self.block_c = (self.block_c + (heat - loss) * dt).min(124.0);
        self.coolant_c += (self.block_c - self.coolant_c) * dt / 30.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Controls =
        Controls { gear_max: None, gear: None, is_off: false, has_no_cooling: false, has_no_oil: false };

    #[test]
    fn gears_follow_speed_and_rpm_follows_both() {
        let mut car = Drivetrain::new(15.0, 15.0, 0.5);
        let mut gears = Vec::new();
        for tick in 0..300 {
            car.advance(0.1, f64::from(tick) * 0.05, 0.5, NONE);
            assert!((IDLE_RPM - 1.0..2700.0).contains(&car.rpm()), "{}", car.rpm());
            gears.push(car.gear());
        }
        assert!(gears.windows(2).all(|p| p[1] == p[0] || p[1] == p[0] + 1), "{gears:?}");
        assert_eq!((gears[0], gears[299]), (0, 4));
    }

    #[test]
    fn a_driver_in_first_gear_revs_high() {
        let mut car = Drivetrain::new(15.0, 90.0, 0.5);
        let top = (0..80).map(|tick| {
            car.advance(0.1, f64::from(tick) * 0.15, 1.5, Controls { gear_max: Some(1), ..NONE });
            car.rpm()
        });
        assert!(top.fold(0.0, f64::max) > 4000.0);
    }

    #[test]
    fn coolant_warms_to_ninety_with_delay() {
        let mut car = Drivetrain::new(12.0, 12.0, 0.5);
        let minute = |car: &mut Drivetrain| {
            (0..600).for_each(|_| car.advance(0.1, 11.0, 0.0, NONE));
            car.coolant_c()
        };
        let after: Vec<f64> = (0..20).map(|_| minute(&mut car)).collect();
        assert!(after[0] < 22.0 && after[0] - 12.0 < after[1] - after[0], "the first minute lags: {after:?}");
        assert!(after.windows(2).all(|p| p[1] > p[0] - 0.01), "{after:?}");
        assert!(after[3] < 80.0 && (86.0..94.0).contains(&after[19]), "{after:?}");
    }

    #[test]
    fn consumption_and_emission_are_those_of_a_small_car() {
        let mut car = Drivetrain::new(12.0, 90.0, 0.5);
        // 100 km at 50 km/h without a stop.
        (0..72_000).for_each(|_| car.advance(0.1, 50.0 / 3.6, 0.0, NONE));
        let liters = (50.0 - car.fuel()) / 100.0 * TANK_L;
        assert!((3.0..6.0).contains(&liters), "{liters} l per 100 km");
        let co2 = car.co2(50.0 / 3.6).expect("an emission");
        assert!((70.0..150.0).contains(&co2), "{co2} g/km");
        assert!((150.0..350.0).contains(&car.oil_kpa()) && car.throttle() < 40.0, "{} %", car.throttle());
    }
}
