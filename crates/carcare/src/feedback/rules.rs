use std::collections::{BTreeMap, HashMap};

use millrace_driving::{Geofence, Thresholds, VehicleClass};

use super::config::{Config, class_of};

/// Maximum number of geofences that count.
const GEOFENCES_MAX: usize = 1000;

/// Rules that apply to each car: its thresholds, its groups and its geofences.
pub struct Rules {
    pub cars_max: usize,
    class: VehicleClass,
    classes: HashMap<String, VehicleClass>,
    thresholds: BTreeMap<VehicleClass, Thresholds>,
    groups: HashMap<String, Vec<String>>,
    geofences: BTreeMap<String, Geofence>,
}

impl Rules {
    /// `config`: without a [`Config::fault`].
    pub fn new(config: &Config) -> Self {
        let none = BTreeMap::new();
        let of = |class| {
            let own =
                config.thresholds.iter().find(|(name, _)| class_of(name) == Some(class)).map_or(&none, |own| own.1);
            (class, Thresholds::overridden(class, own).unwrap_or_else(|_| Thresholds::of(class)))
        };
        let mut groups: HashMap<String, Vec<String>> = HashMap::new();
        for (group, cars) in &config.groups {
            cars.iter().for_each(|car| groups.entry(car.clone()).or_default().push(group.clone()));
        }
        let named = config.classes.iter().filter_map(|(class, cars)| Some((class_of(class)?, cars)));
        let classes = named.flat_map(|(class, cars)| cars.iter().map(move |car| (car.clone(), class)));
        Self {
            cars_max: config.cars_max,
            class: config.class,
            classes: classes.collect(),
            thresholds: VehicleClass::ALL.into_iter().map(of).collect(),
            groups,
            geofences: BTreeMap::new(),
        }
    }

    pub fn thresholds(&self, car: &str) -> &Thresholds {
        &self.thresholds[self.classes.get(car).unwrap_or(&self.class)]
    }

    pub fn groups(&self, car: &str) -> &[String] {
        self.groups.get(car).map_or(&[], Vec::as_slice)
    }

    /// Returns the geofences that count for a car.
    pub fn geofences(&self, car: &str) -> Vec<&Geofence> {
        let groups = self.groups(car);
        let counts = |geofence: &&Geofence| {
            geofence.groups.is_empty() || geofence.groups.iter().any(|group| groups.contains(group))
        };
        self.geofences.values().filter(counts).collect()
    }

    /// Takes an entry of the state of geofences. An invalid one does not count.
    pub fn set_geofence(&mut self, key: &str, json: Option<&[u8]>) {
        self.geofences.remove(key);
        let Some(json) = json else { return };
        let geofence = serde_json::from_slice::<Geofence>(json).ok();
        let valid = geofence.filter(|geofence| geofence.name == key && geofence.check().is_ok());
        if let Some(geofence) = valid.filter(|_| self.geofences.len() < GEOFENCES_MAX) {
            self.geofences.insert(key.to_owned(), geofence);
        }
    }

    /// Forgets all geofences, before the whole state is read again.
    pub fn clear_geofences(&mut self) {
        self.geofences.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_group_and_geofences_apply_to_their_cars() {
        let config: Config = serde_json::from_str(
            r#"{"classes":{"truck":["7"]},"groups":{"north":["7","8"]},"thresholds":{"truck":{"braking_warn":3}}}"#,
        )
        .expect("a config");
        let mut rules = Rules::new(&config);
        assert_eq!((rules.thresholds("7").braking_warn, rules.thresholds("8").braking_warn), (3.0, 3.5));
        assert_eq!(rules.groups("8"), ["north"]);
        let circle = r#""area":{"circle":{"center":{"lat":47.5,"lon":19.0},"radiusM":100}}"#;
        rules.set_geofence("all", Some(format!(r#"{{"name":"all",{circle}}}"#).as_bytes()));
        rules.set_geofence("depot", Some(format!(r#"{{"name":"depot",{circle},"groups":["north"]}}"#).as_bytes()));
        rules.set_geofence("bad", Some(br#"{"name":"bad","area":{"polygon":[]}}"#));
        assert_eq!((rules.geofences("7").len(), rules.geofences("9").len()), (2, 1));
        rules.set_geofence("all", None);
        assert_eq!((rules.geofences("7").len(), rules.geofences("9").len()), (1, 0));
    }
}
