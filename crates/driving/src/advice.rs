use crate::Kind;

/// Returns the suggestion to the driver. Source: docs/explanation/driving-feedback.md.
pub fn of(kind: Kind) -> &'static str {
    match kind {
        Kind::HarshBraking => {
            "Keep more distance and release the accelerator earlier; then you rarely need to brake hard."
        }
        Kind::HarshAcceleration => "Accelerate more gently: it saves fuel and tires and costs only seconds.",
        Kind::HarshCornering => "Slow down before the bend, not in it.",
        Kind::GearTooHigh => "Shift down: the engine labors at low revolutions.",
        Kind::GearTooLow => "Shift up: a higher gear needs less fuel at this speed.",
        Kind::HighRpm => "Shift up or ease off: the engine runs at high revolutions.",
        Kind::Idling => "Switch the engine off if you wait longer: idling burns fuel for nothing.",
        Kind::Overheating => {
            "The coolant is too hot. Switch the heater to full, stop safely, and let the engine cool. Do not open the hot radiator."
        }
        Kind::OilPressure => {
            "The oil pressure is too low. Stop safely and switch the engine off at once; then check the oil level."
        }
        Kind::LowFuel => "Refuel soon.",
        Kind::TroubleCode => "The car has stored a trouble code. Have it read and repaired.",
        Kind::Lamp => "The engine lamp is lit. If it flashes, reduce speed; have the car checked soon.",
        Kind::Accident => {
            "This looks like an accident. Call the driver; if there is no answer, call the emergency services (112)."
        }
        Kind::GeofenceEnter => "The car has entered the area.",
        Kind::GeofenceExit => "The car has left the area.",
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kind_has_advice_of_its_own() {
        let all: std::collections::HashSet<_> = crate::Kind::ALL.into_iter().map(super::of).collect();
        assert_eq!(all.len(), crate::Kind::ALL.len());
        assert!(all.iter().all(|text| text.ends_with('.') && text.len() < 140));
    }
}
