//! Decoders, one file per sender. Each turns a request or datagram into reports with the units of the device record.
//! Network input never causes a panic, and every list has a limit.

pub mod csv;
pub mod gpx;
pub mod nmea;
pub mod osmand;
pub mod overland;
pub mod owntracks;
pub mod torque;

use std::borrow::Cow;

/// Knots in meters per second.
const KNOT: f64 = 1852.0 / 3600.0;

/// Decoded parameters of a query or form, in their order.
pub type Parameters<'a> = [(Cow<'a, str>, Cow<'a, str>)];

/// Parses a query, or a form in a body.
pub fn parameters(text: &[u8]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(text).collect()
}

/// Returns the first value of a parameter that is not empty.
pub fn get<'p>(parameters: &'p Parameters<'_>, name: &str) -> Option<&'p str> {
    parameters.iter().find(|(other, value)| other == name && !value.is_empty()).map(|(_, value)| &**value)
}
