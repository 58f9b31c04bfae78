//! The configuration for operators.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::Config;

/// The configuration in effect without its secrets, and where each value comes from.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub config: Config,
    /// See [`Sources::from`](super::Sources).
    from: BTreeMap<String, String>,
}

/// One value of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Section and key, for example `limits.heartbeat`.
    pub key: String,
    pub value: Value,
    /// `default`, `file`, `environment` or `flag`.
    pub source: &'static str,
    /// File, variable or flag that sets the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The value without any source; absent for a namespace, which has no default of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
}

impl Shown {
    pub fn new(config: &Config, from: BTreeMap<String, String>) -> Self {
        Self { config: config.without_secrets(), from }
    }

    /// Returns the configuration as JSON.
    pub fn json(&self) -> Value {
        self.config.shown()
    }

    /// Returns all values, in order of their sections and keys.
    pub fn settings(&self) -> Vec<Setting> {
        let (mut values, mut defaults) = (BTreeMap::new(), BTreeMap::new());
        flatten(&self.json(), String::new(), &mut values);
        flatten(&Config::default().shown(), String::new(), &mut defaults);
        let setting = |(key, value): (String, Value)| {
            let (source, from) = self.source(&key);
            Setting { default: defaults.get(&key).cloned(), key, value, source, from }
        };
        values.into_iter().map(setting).collect()
    }

    /// Returns the kind and the name of the source of a value. A source of a whole section applies to its values.
    fn source(&self, key: &str) -> (&'static str, Option<String>) {
        let mut path = key;
        let from = loop {
            if let Some(from) = self.from.get(path) {
                break from;
            }
            match path.rsplit_once('.') {
                Some((section, _)) => path = section,
                None => return ("default", None),
            }
        };
        let named = |prefix: &str| from.strip_prefix(prefix).map(str::to_owned);
        match (named("file "), named("env ")) {
            (Some(file), _) => ("file", Some(file)),
            (_, Some(variable)) => ("environment", Some(variable)),
            _ => ("flag", Some(from.clone())),
        }
    }
}

/// Collects the values of nested objects by their paths. A setting that is not set has no value.
fn flatten(value: &Value, path: String, values: &mut BTreeMap<String, Value>) {
    let inner = |object: &Map<String, Value>, values: &mut _| {
        for (key, value) in object {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            flatten(value, path, values);
        }
    };
    match value {
        Value::Object(object) => inner(object, values),
        Value::Null => {}
        value => drop(values.insert(path.clone(), value.clone())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::config::{Sources, layers};

    #[test]
    fn every_value_names_its_source_and_secrets_are_hidden() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(
            b"[limits]\ngrace = \"3s\"\n[namespaces.cars]\ncount_max = 7\n[tls.acme]\ncontact = \"ann@app.example\"\n",
        )
        .unwrap();
        let env = [("MILLRACE_SERVER__SECRET".to_owned(), "0123456789abcdef".to_owned())];
        let flag = layers::Value { key: "server.shards".into(), text: "3".into(), from: "--shards".into() };
        let sources = Sources::load(Some(file.path()), env.into_iter(), [flag]).unwrap();
        let settings = Shown::new(&sources.config, sources.from).settings();
        let find = |key: &str| {
            let found = settings.iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("no {key}"));
            (found.value.clone(), found.source, found.from.clone(), found.default.clone())
        };
        let path = Some(file.path().display().to_string());
        assert_eq!(find("limits.grace"), ("3s".into(), "file", path.clone(), Some("10s".into())));
        assert_eq!(find("namespaces.cars.count_max"), (7.into(), "file", path.clone(), None));
        let contact = (json!(["ann@app.example"]), "file", path, Some(json!([])));
        assert_eq!(find("tls.acme.contact"), contact);
        let secret = Some("MILLRACE_SERVER__SECRET".to_owned());
        assert_eq!(find("server.secret"), ("(hidden)".into(), "environment", secret, Some("".into())));
        assert_eq!(find("server.shards"), (3.into(), "flag", Some("--shards".into()), Some(0.into())));
        assert_eq!(find("log.level"), ("info".into(), "default", None, Some("info".into())));
        assert!(settings.iter().all(|setting| setting.key.contains('.')), "each value is in a section");
        assert!(!format!("{settings:?}").contains("0123456789abcdef"));
    }
}
