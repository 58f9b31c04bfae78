//! Habits of a driver, and the deeds that a driver decides to do.

use millrace_client::random::Random;

use super::label::Deed;

/// Limits that a driver keeps in normal driving, m/s2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Driver {
    pub acceleration: f64,
    pub braking: f64,
    /// Lateral acceleration in bends.
    pub sideways: f64,
    /// Probability of taking a suitable bend without slowing down.
    pub daring: f64,
    /// False for a driver who never does a deed.
    pub has_deeds: bool,
}

/// Manners of all drivers of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manners {
    /// All drivers drive gently, and no car has a fault.
    Calm,
    /// Each driver has own habits. From time to time a driver does a deed, or a car has a fault.
    #[default]
    Mixed,
}

impl Driver {
    pub fn new(manners: Manners, random: &mut Random) -> Self {
        match manners {
            Manners::Calm => Self { acceleration: 1.6, braking: 2.0, sideways: 2.0, daring: 0.0, has_deeds: false },
            Manners::Mixed => Self {
                acceleration: random.between(1.3, 2.1),
                braking: random.between(1.7, 2.5),
                sideways: random.between(1.6, 2.4),
                daring: 0.2,
                has_deeds: true,
            },
        }
    }
}

/// Deed that a driver wants to do as soon as the situation allows it, and the deed in progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plan {
    /// Brake with this deceleration, m/s2.
    Brake(f64),
    /// Accelerate with this acceleration by [`SPURT_MPS`].
    Spurt(f64),
    /// Stay in this gear or below for a while.
    StayLow {
        gear: u8,
        seconds: f64,
    },
    /// Accelerate in a gear that is too high.
    Lug,
    /// Leave the engine on for this time after the next stop, seconds.
    Idle(f64),
    /// Switch the engine off for this time after the next drive, seconds.
    Park(f64),
    Crash,
    /// The cooling fails.
    Overheat,
    /// The oil pressure fails.
    LoseOil,
    StoreCode,
}

/// Increase of speed by a spurt, m/s.
pub const SPURT_MPS: f64 = 8.0;

impl Plan {
    pub fn pick(random: &mut Random) -> Self {
        let kind = random.unit();
        match kind {
            _ if kind < 0.22 => Self::Brake(random.between(5.2, 7.2)),
            _ if kind < 0.42 => Self::Spurt(random.between(4.3, 5.2)),
            _ if kind < 0.56 => Self::StayLow { gear: 2, seconds: random.between(12.0, 20.0) },
            _ if kind < 0.68 => Self::StayLow { gear: 1, seconds: random.between(12.0, 18.0) },
            _ if kind < 0.81 => Self::Lug,
            _ if kind < 0.84 => Self::Idle(random.between(150.0, 320.0)),
            _ if kind < 0.87 => Self::Park(random.between(200.0, 420.0)),
            _ if kind < 0.88 => Self::Crash,
            _ if kind < 0.90 => Self::Overheat,
            _ if kind < 0.92 => Self::LoseOil,
            _ => Self::StoreCode,
        }
    }

    /// Returns the deeds that a begun plan may amount to.
    pub fn deeds(self) -> &'static [Deed] {
        match self {
            Self::Brake(_) => &[Deed::HarshBraking],
            Self::Spurt(_) => &[Deed::HarshAcceleration],
            Self::StayLow { .. } => &[Deed::GearTooLow, Deed::HighRpm],
            Self::Lug => &[Deed::GearTooHigh],
            Self::Idle(_) => &[Deed::Idling],
            Self::Crash => &[Deed::Accident],
            Self::Overheat => &[Deed::Overheating],
            Self::LoseOil => &[Deed::OilPressure],
            Self::StoreCode => &[Deed::TroubleCode],
            Self::Park(_) => &[],
        }
    }
}
