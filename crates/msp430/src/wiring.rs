use crate::{
    Time,
    bus::I2cBus,
    light::{Lamps, LightSensor},
    serial::SerialLine,
    tca6507::Tca6507,
};

/// Everything that is connected to the pins of the microcontroller.
pub struct Wiring {
    /// P1.6 is SCL and P1.7 is SDA.
    pub bus: I2cBus,
    /// Line to P1.1 (RXD).
    pub uart_in: SerialLine,
    /// Line from P1.2 (TXD).
    pub uart_out: SerialLine,
    /// Sensor at P1.4 (A4).
    pub sensor: LightSensor,
}

impl Wiring {
    /// Analog channel of the light sensor.
    pub const SENSOR_CHANNEL: u8 = 4;

    /// Returns the light of both LEDs.
    pub fn lamps(&self, time: Time) -> Lamps {
        self.bus.slave::<Tca6507>().map_or_else(Lamps::default, |driver| Lamps::of(driver, time))
    }

    /// Returns the voltage of an analog channel. Only A4 is connected.
    pub fn voltage(&self, channel: u8, time: Time) -> f64 {
        if channel == Self::SENSOR_CHANNEL { self.sensor.voltage(&self.lamps(time)) } else { 0.0 }
    }

    /// Sets the level of the driver's EN pin at P1.5. A pull-down resistor makes an open pin low.
    pub fn set_enable(&mut self, time: Time, level: bool) {
        if let Some(driver) = self.bus.slave_mut::<Tca6507>() {
            driver.set_enabled(time, level);
        }
    }
}
