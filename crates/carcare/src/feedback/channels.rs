//! Names of the channels of the driving feedback.

/// Namespace of the channels that this module publishes into, except for the events. They are keyed states.
pub const NAMESPACE: &str = "carcare";
/// State with the newest drive of each car.
pub const DRIVES: &str = "carcare/drives";
/// State with the newest alert of each car and kind.
pub const ALERTS: &str = "carcare/alerts";
/// State with the geofences, which clients write.
pub const GEOFENCES: &str = "carcare/geofences";
/// State whose only key is the node that follows the cars.
pub const LEADER: &str = ":millrace/driving-node";
/// State with the states of the detectors.
pub const STATES: &str = ":millrace/driving";
