use crate::{
    Time,
    adc::VCC,
    tca6507::{PORTS, Tca6507},
};

/// Light of one RGB LED: each colour from 0 (dark) to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rgb {
    pub red: f64,
    pub green: f64,
    pub blue: f64,
}

/// Light of the two LEDs of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lamps {
    /// LED on the outputs P1 to P3 of the driver.
    pub a: Rgb,
    /// LED on the outputs P4 to P6 of the driver.
    pub b: Rgb,
}

impl Lamps {
    /// Returns the light of both LEDs at a time. The ports are those of the board (`hw/led-module/README.md`): blue,
    /// green and red of LED A on P1 to P3, and red, green and blue of LED B on P4 to P6.
    pub fn of(driver: &Tca6507, time: Time) -> Self {
        let level: [f64; PORTS] = std::array::from_fn(|port| driver.brightness(time, port));
        let rgb = |[red, green, blue]: [usize; 3]| Rgb { red: level[red], green: level[green], blue: level[blue] };
        Self { a: rgb([3, 2, 1]), b: rgb([4, 5, 6]) }
    }

    /// Returns the light that reaches the sensor, from 0 to 1 with both LEDs white. Green counts most, as in daylight
    /// sensors: the weights are those of luminance (ITU-R BT.709).
    pub fn luminance(&self) -> f64 {
        let of = |rgb: &Rgb| 0.2126 * rgb.red + 0.7152 * rgb.green + 0.0722 * rgb.blue;
        (of(&self.a) + of(&self.b)) / 2.0
    }
}

/// State of the light sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SensorState {
    #[default]
    Working,
    /// The sensor is covered: 0 V.
    Dark,
    /// The sensor is blinded: the supply voltage.
    Saturated,
    /// The sensor is not connected; the pull-down resistor gives 0 V.
    Disconnected,
}

/// A light sensor at the analog input A4. It sees the lamps and the ambient light.
///
/// The voltage follows the light without delay; the pulses of the lamps at 125 Hz are averaged by its low-pass filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LightSensor {
    /// Ambient light, in the unit of [`Lamps::luminance`].
    pub ambient: f64,
    /// Volts per unit of light. 2 V let both lamps at full brightness stay below the supply voltage.
    pub volts_per_light: f64,
    pub state: SensorState,
}

impl Default for LightSensor {
    fn default() -> Self {
        Self { ambient: 0.1, volts_per_light: 2.0, state: SensorState::Working }
    }
}

impl LightSensor {
    /// Returns the output in volts, from 0 to the supply voltage.
    pub fn voltage(&self, lamps: &Lamps) -> f64 {
        match self.state {
            SensorState::Working => (self.volts_per_light * (self.ambient + lamps.luminance())).clamp(0.0, VCC),
            SensorState::Dark | SensorState::Disconnected => 0.0,
            SensorState::Saturated => VCC,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHITE: Rgb = Rgb { red: 1.0, green: 1.0, blue: 1.0 };

    #[test]
    fn voltage_grows_with_the_lamps() {
        let sensor = LightSensor::default();
        let dark = sensor.voltage(&Lamps::default());
        let one = sensor.voltage(&Lamps { a: WHITE, b: Rgb::default() });
        let both = sensor.voltage(&Lamps { a: WHITE, b: WHITE });
        assert!((dark - 0.2).abs() < 1e-9 && (one - 1.2).abs() < 1e-9 && (both - 2.2).abs() < 1e-9);
    }

    #[test]
    fn voltage_is_limited_to_the_supply() {
        let sensor = LightSensor { ambient: 100.0, ..LightSensor::default() };
        assert_eq!(sensor.voltage(&Lamps::default()), VCC);
        let sensor = LightSensor { state: SensorState::Dark, ..sensor };
        assert_eq!(sensor.voltage(&Lamps::default()), 0.0);
    }
}
