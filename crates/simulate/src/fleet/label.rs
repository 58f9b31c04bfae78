//! Ground truth: what the simulated drivers and cars really did, for tests of detectors.

/// Deed of a driver, or fault of a car.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    HarshBraking,
    HarshAcceleration,
    HarshCornering,
    /// The driver stays in a gear in which the engine is slow and strained.
    GearTooHigh,
    /// The driver stays in a gear in which the engine is fast, at constant speed.
    GearTooLow,
    HighRpm,
    /// The driver leaves the engine on in a standing car.
    Idling,
    Overheating,
    OilPressure,
    TroubleCode,
    Accident,
}

impl Deed {
    pub const ALL: [Self; 11] = [
        Self::HarshBraking,
        Self::HarshAcceleration,
        Self::HarshCornering,
        Self::GearTooHigh,
        Self::GearTooLow,
        Self::HighRpm,
        Self::Idling,
        Self::Overheating,
        Self::OilPressure,
        Self::TroubleCode,
        Self::Accident,
    ];
}

/// One deed of one car. Times in simulated milliseconds since the start of the fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Label {
    pub car_id: u32,
    pub deed: Deed,
    pub from_ms: u64,
    pub until_ms: u64,
    /// False if the driver broke the deed off before it was clearly harsh, or long enough: a detector may report it or
    /// not.
    pub is_clear: bool,
}
