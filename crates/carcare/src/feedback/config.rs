use std::collections::BTreeMap;

use millrace_driving::{Thresholds, VehicleClass};
use serde::{Deserialize, Serialize};

/// Settings of `[carcare]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Reads the records of all cars, and publishes events, drives and alerts.
    pub feedback: bool,
    /// Maximum number of cars that are followed; further cars get no feedback.
    pub cars_max: usize,
    /// Class of all cars that `classes` does not name.
    pub class: VehicleClass,
    /// Cars of each class.
    pub classes: BTreeMap<String, Vec<String>>,
    /// Cars of each group, for geofences and for the list of the fleet.
    pub groups: BTreeMap<String, Vec<String>>,
    /// Thresholds that differ from the defaults of a class.
    pub thresholds: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            feedback: false,
            cars_max: 100_000,
            class: VehicleClass::Car,
            classes: BTreeMap::new(),
            groups: BTreeMap::new(),
            thresholds: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Checks the values. Returns the key of the first invalid one, and what it must be.
    pub fn fault(&self) -> Option<(String, String)> {
        if !(1..=10_000_000).contains(&self.cars_max) {
            return Some(("cars_max".into(), "must be from 1 to 10000000 cars".into()));
        }
        if let Some(name) = self.groups.keys().find(|name| name.is_empty() || name.len() > 64) {
            return Some((format!("groups.{name}"), "must have a name of 1 to 64 bytes".into()));
        }
        let what = "must be a class: car, diesel-car, van, truck or bus";
        if let Some(name) = self.classes.keys().find(|name| class_of(name).is_none()) {
            return Some((format!("classes.{name}"), what.into()));
        }
        self.thresholds.iter().find_map(|(class, own)| {
            let Some(known) = class_of(class) else { return Some((format!("thresholds.{class}"), what.into())) };
            let (name, what) = Thresholds::overridden(known, own).err()?;
            Some((format!("thresholds.{class}.{name}"), what.to_owned()))
        })
    }
}

/// Returns the class with this name.
pub fn class_of(name: &str) -> Option<VehicleClass> {
    serde_json::from_value(name.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_threshold_is_named() {
        let config: Config = serde_json::from_str(r#"{"thresholds":{"van":{"braking_wrn":3}}}"#).expect("a config");
        assert_eq!(config.fault().map(|fault| fault.0).as_deref(), Some("thresholds.van.braking_wrn"));
        let config: Config = serde_json::from_str(r#"{"thresholds":{"van":{"braking_warn":9}}}"#).expect("a config");
        assert_eq!(config.fault().map(|fault| fault.0).as_deref(), Some("thresholds.van.braking_severe"));
        let config: Config = serde_json::from_str(r#"{"classes":{"lorry":["1"]}}"#).expect("a config");
        assert_eq!(config.fault().map(|fault| fault.0).as_deref(), Some("classes.lorry"));
        assert_eq!(Config::default().fault(), None);
    }
}
