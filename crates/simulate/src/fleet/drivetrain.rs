//! Gearbox, engine speed and coolant temperature of one car, computed from its speed.

/// Engine turns per wheel turn, gears 1 to 5.
const RATIOS: [f64; 5] = [13.5, 7.6, 5.0, 3.7, 2.95];
const WHEEL_CIRCUMFERENCE_M: f64 = 1.885;
const IDLE_RPM: f64 = 820.0;
/// A calm driver shifts up at `UP_RPM`, a hasty one at `HASTY_UP_RPM`; both shift down below `DOWN_RPM`.
const UP_RPM: f64 = 2150.0;
const HASTY_UP_RPM: f64 = 5000.0;
const DOWN_RPM: f64 = 1150.0;
/// Minimum seconds between two gear changes.
const CHANGE_S: f64 = 1.0;
/// Temperature in degrees Celsius at which the thermostat opens.
const THERMOSTAT_C: f64 = 87.0;

#[derive(Clone, Debug)]
pub struct Drivetrain {
    /// 0 is neutral.
    gear: u8,
    rpm: f64,
    ambient_c: f64,
    block_c: f64,
    coolant_c: f64,
    since_change_s: f64,
}

impl Drivetrain {
    pub fn new(ambient_c: f64, coolant_c: f64) -> Self {
        Self { gear: 0, rpm: IDLE_RPM, ambient_c, block_c: coolant_c, coolant_c, since_change_s: CHANGE_S }
    }

    /// Advances by `dt` seconds (at most about 1) at `speed` m/s. A `hasty` driver holds the gear longer.
    pub fn advance(&mut self, dt: f64, speed: f64, hasty: bool) {
        self.since_change_s += dt;
        self.change_gear(speed, hasty);
        let wheel = self.rpm_in(self.gear, speed);
        // Below 1,300 rpm in first gear the clutch slips while the car starts.
        let slip = if self.gear == 1 && speed > 0.1 { 1300.0 } else { IDLE_RPM };
        let target = wheel.max(slip);
        self.rpm += (target - self.rpm) * (1.0 - (-dt / 0.25).exp());
        self.warm(dt);
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

    fn change_gear(&mut self, speed: f64, hasty: bool) {
        if speed < 0.1 {
            self.gear = 0;
        } else if self.gear == 0 {
            let easy = (1..=5u8).find(|&gear| self.rpm_in(gear, speed) < UP_RPM);
            self.gear = easy.unwrap_or(5);
        } else if self.since_change_s >= CHANGE_S {
            let wheel = self.rpm_in(self.gear, speed);
            let up = if hasty { HASTY_UP_RPM } else { UP_RPM };
            if wheel > up && self.gear < 5 {
                (self.gear, self.since_change_s) = (self.gear + 1, 0.0);
            } else if wheel < DOWN_RPM && self.gear > 1 {
                (self.gear, self.since_change_s) = (self.gear - 1, 0.0);
            }
        }
    }

    fn rpm_in(&self, gear: u8, speed: f64) -> f64 {
        match gear {
            0 => 0.0,
            gear => speed / WHEEL_CIRCUMFERENCE_M * 60.0 * RATIOS[usize::from(gear) - 1],
        }
    }

    /// Updates the temperatures. The engine heats its block, the thermostat holds the block near 90 C, and the
    /// coolant follows with a time constant of 30 s.
    fn warm(&mut self, dt: f64) {
        let heat = 0.13 + 0.14 * (self.rpm - IDLE_RPM) / 2000.0;
        let loss = 0.0012 * (self.block_c - self.ambient_c) + 0.05 * (self.block_c - THERMOSTAT_C).max(0.0);
        self.block_c += (heat - loss) * dt;
        self.coolant_c += (self.block_c - self.coolant_c) * dt / 30.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gears_follow_speed_and_rpm_follows_both() {
        let mut car = Drivetrain::new(15.0, 15.0);
        let mut gears = Vec::new();
        for tick in 0..300 {
            car.advance(0.1, f64::from(tick) * 0.05, false);
            assert!((IDLE_RPM - 1.0..2700.0).contains(&car.rpm()), "{}", car.rpm());
            gears.push(car.gear());
        }
        assert!(gears.windows(2).all(|p| p[1] == p[0] || p[1] == p[0] + 1), "{gears:?}");
        assert_eq!((gears[0], gears[299]), (0, 4));
    }

    #[test]
    fn a_hasty_driver_revs_high() {
        let mut car = Drivetrain::new(15.0, 90.0);
        let top = (0..80).map(|tick| {
            car.advance(0.1, f64::from(tick) * 0.15, true);
            car.rpm()
        });
        assert!(top.fold(0.0, f64::max) > 4000.0);
    }

    #[test]
    fn coolant_warms_to_ninety_with_delay() {
        let mut car = Drivetrain::new(12.0, 12.0);
        let minute = |car: &mut Drivetrain| {
            (0..600).for_each(|_| car.advance(0.1, 11.0, false));
            car.coolant_c()
        };
        let after: Vec<f64> = (0..20).map(|_| minute(&mut car)).collect();
        assert!(after[0] < 22.0 && after[0] - 12.0 < after[1] - after[0], "the first minute lags: {after:?}");
        assert!(after.windows(2).all(|p| p[1] > p[0] - 0.01), "{after:?}");
        assert!(after[3] < 80.0 && (86.0..94.0).contains(&after[19]), "{after:?}");
    }
}
