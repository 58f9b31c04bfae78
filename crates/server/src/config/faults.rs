//! Finds unknown keys and invalid values of a configuration, so that each error names its key and the remedy.

use toml::{Table, Value, de::DeTable};

use super::{Config, Namespace};

/// Placeholder for any name, in sections with user-defined names.
const ANY: &str = "*";
const NUMBER: &str = "expected a whole number, 0 or more";
/// Replacements for serde's names of types in error messages.
const WANTED: &[(&str, &str)] = &[
    ("a sequence", "expected a list, for example [\"a\", \"b\"]"),
    ("a boolean", "expected true or false"),
    ("usize", NUMBER),
    ("u64", NUMBER),
    ("u32", NUMBER),
    ("u16", NUMBER),
];

/// An unknown key, or a value of the wrong type.
pub struct Fault {
    path: Vec<String>,
    is_unknown: bool,
    /// The error message: one sentence with the key and the remedy.
    pub what: String,
}

/// Returns every unknown key and every value of the wrong type.
pub fn all(table: &Table) -> Vec<Fault> {
    let mut faults = Vec::new();
    find(table, &schema(), &mut Vec::new(), &mut faults);
    faults
}

fn find(table: &Table, like: &Table, path: &mut Vec<String>, faults: &mut Vec<Fault>) {
    for (key, value) in table {
        path.push(key.clone());
        match (entry(like, key), value) {
            (None, _) => faults.push(Fault { path: path.clone(), is_unknown: true, what: unknown(path) }),
            (Some(Value::Table(like)), Value::Table(inner)) => find(inner, like, path, faults),
            (Some(Value::Table(_)), _) => {
                let what = format!("`{}` is a section, not a value: write [{0}] and its keys below", path.join("."));
                faults.push(Fault { path: path.clone(), is_unknown: false, what });
            }
            (Some(_), value) => {
                let alone = path
                    .iter()
                    .rev()
                    .fold(value.clone(), |inner, key| Value::Table(Table::from_iter([(key.clone(), inner)])));
                if let Err(error) = alone.try_into::<Config>() {
                    let what = wrong(&path.join("."), value, error.message());
                    faults.push(Fault { path: path.clone(), is_unknown: false, what });
                }
            }
        }
        path.pop();
    }
}

/// Returns the byte offset of a fault in its file: that of the key if it is unknown, otherwise that of the value.
pub fn start(text: &str, fault: &Fault) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let (last, sections) = fault.path.split_last()?;
    let mut at = table.get_ref();
    for section in sections {
        at = at.get(section.as_str())?.get_ref().as_table()?;
    }
    let (key, value) = at.get_key_value(last.as_str())?;
    Some(if fault.is_unknown { key.span().start } else { value.span().start })
}

/// Replaces a single string by a list of one where a list is expected.
pub fn make_lists(table: &mut Table) {
    fn within(table: &mut Table, like: &Table) {
        for (key, value) in table {
            match (entry(like, key), &mut *value) {
                (Some(Value::Table(like)), Value::Table(inner)) => within(inner, like),
                (Some(Value::Array(_)), Value::String(text)) => *value = Value::Array(vec![text.as_str().into()]),
                _ => {}
            }
        }
    }
    within(table, &schema());
}

/// Returns whether the value of `section.key` is a string.
pub fn is_text(key: &str) -> bool {
    let mut at = Value::Table(schema());
    for part in key.split('.') {
        let Some(next) = at.as_table().and_then(|table| entry(table, part)) else { return false };
        at = next.clone();
    }
    at.is_str()
}

/// Returns every `section.key`, except those with user-defined names.
pub fn keys() -> Vec<String> {
    fn within(table: &Table, path: &str, keys: &mut Vec<String>) {
        for (key, value) in table.iter().filter(|(key, _)| *key != ANY) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match value {
                Value::Table(inner) => within(inner, &path, keys),
                _ => keys.push(path),
            }
        }
    }
    let mut keys = Vec::new();
    within(&schema(), "", &mut keys);
    keys
}

/// Returns a table with every key and a value of its type.
fn schema() -> Table {
    let mut config = Config::default();
    let namespace = Namespace {
        count_max: Some(0),
        bytes_max: Some(0),
        age_max: Some(std::time::Duration::ZERO),
        durable: Some(false),
        state: Some(false),
        keys_max: Some(0),
        roster: Some(false),
        roster_grace: Some(std::time::Duration::ZERO),
        own_keys: Some(false),
        anonymous: Vec::new(),
        hooks: crate::hooks::NamespaceConfig {
            subscribe: Some(String::new()),
            publish: Some(String::new()),
            rpc: Some(String::new()),
            on_failure: Some(Default::default()),
        },
        webhooks: crate::webhooks::NamespaceConfig { events: Some(Vec::new()) },
    };
    config.namespaces.insert(ANY.into(), namespace);
    config.auth.api_keys.insert(ANY.into(), crate::auth::ApiKey::default());
    config.carcare.groups.insert(ANY.into(), Vec::new());
    config.carcare.classes.insert(ANY.into(), Vec::new());
    config.carcare.thresholds.insert(ANY.into(), [(ANY.into(), 0.0)].into());
    Table::try_from(config).expect("a configuration is made of tables")
}

fn entry<'a>(like: &'a Table, key: &str) -> Option<&'a Value> {
    like.get(key).or_else(|| like.get(ANY))
}

fn unknown(path: &[String]) -> String {
    let key = path.join(".");
    let last = path.last().map_or("", String::as_str);
    // Prefer the same name in another section to another name in the same section.
    let distance = |known: &String| match known.rsplit('.').next() == Some(last) {
        true => 1,
        false => strsim::damerau_levenshtein(&key, known),
    };
    let nearest = keys().into_iter().min_by_key(distance).unwrap_or_default();
    format!("unknown key `{key}`; the nearest is `{nearest}`. `millrace config default` prints all keys")
}

/// Rewrites serde's message in terms of the configuration file.
fn wrong(key: &str, value: &Value, message: &str) -> String {
    let expected = message.rsplit_once("expected ").map_or(message, |(_, expected)| expected).trim();
    if expected.contains("duration") {
        let example = if value.is_integer() { format!("{value}s") } else { "10s".into() };
        return format!("`{key} = {value}`: expected a duration with a unit, for example \"{example}\"");
    }
    if expected.starts_with("HOST:PORT") {
        return format!("`{key} = {value}`: expected {expected}");
    }
    match WANTED.iter().find(|(wanted, _)| expected == *wanted) {
        Some((_, what)) => format!("`{key}`: {what}"),
        None => format!("`{key}`: {message}"),
    }
}
