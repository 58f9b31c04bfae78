use std::{collections::BTreeMap, path::Path};

use toml::{Table, de::DeTable};

use super::{
    Config, InvalidSetting,
    faults::{self, Fault},
};

/// Prefix of environment variables; `__` separates section and key.
const ENV_PREFIX: &str = "MILLRACE_";
/// Variables with this prefix that are not settings but are used in this repository. Any other unknown variable is an
/// error, so that no setting is ignored silently.
pub const OTHER_VARIABLES: &[&str] = &[
    // Commands.
    "MILLRACE_TOKEN",
    "MILLRACE_UPGRADE",
    "MILLRACE_GATEWAY_SECRET",
    // deploy/: haproxy.cfg, compose.yaml and millrace.service.
    "MILLRACE_AGENT1",
    "MILLRACE_AGENT2",
    "MILLRACE_AGENT3",
    "MILLRACE_ARGS",
    "MILLRACE_BIND",
    "MILLRACE_ENGINE",
    "MILLRACE_FIGURES",
    "MILLRACE_NODE1",
    "MILLRACE_NODE2",
    "MILLRACE_NODE3",
    "MILLRACE_SECRET",
    // Tests, the lab and benchmarks.
    "MILLRACE_ABUSE",
    "MILLRACE_BIN",
    "MILLRACE_CHAOS_SECONDS",
    "MILLRACE_CHAOS_SEED",
    "MILLRACE_DURABLE_STREAMS",
    "MILLRACE_KILLS",
    "MILLRACE_KILL_SEED",
    "MILLRACE_LAB_TEST_CHILD",
    "MILLRACE_REVISION",
    "MILLRACE_SIM_SEED",
    "MILLRACE_SIM_SEEDS",
    "MILLRACE_STORM_CLIENTS",
    "MILLRACE_TARGET",
    "MILLRACE_TEST_FILE",
    "MILLRACE_TEST_PUBLISHER",
    "MILLRACE_URL",
    "MILLRACE_UWS",
    "MILLRACE_WRITE_METRICS",
];
/// Keys whose values are always strings and never shown.
const SECRETS: &[&str] = &["server.secret", "auth.secret", "admin.token", "turn.secret"];

/// Keys of lists of secrets. One secret needs no brackets.
const SECRET_LISTS: &[&str] = &["hooks.secrets", "webhooks.secrets"];

/// An error in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{from}: {message}")]
    Parse { from: String, message: String },
    #[error(transparent)]
    Value(#[from] InvalidSetting),
}

/// A setting from the environment or the command line: `section.key`, its text, and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub key: String,
    pub text: String,
    pub from: String,
}

/// The configuration and where each of its values comes from.
#[derive(Debug)]
pub struct Sources {
    pub config: Config,
    /// Maps the path of a value to its source, for example `file millrace.toml`. Values that are absent have their
    /// default.
    pub from: BTreeMap<String, String>,
}

impl Sources {
    /// Merges the layers; flags override the environment, which overrides the file.
    ///
    /// Errors: an unreadable or malformed file, an unknown key or variable, a value of the wrong type, or a key that
    /// two flags set differently. Each error names its source.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = Value>,
    ) -> Result<Self, ConfigError> {
        let mut table = Table::new();
        let mut from = BTreeMap::new();
        if let Some(path) = file {
            let shown = path.display().to_string();
            let text =
                std::fs::read_to_string(path).map_err(|error| ConfigError::Read { path: shown.clone(), error })?;
            table =
                parse(&text).map_err(|error| ConfigError::Parse { from: shown.clone(), message: error.to_string() })?;
            for key in leaves(&table, "") {
                from.insert(key, format!("file {shown}"));
            }
        }
        for (name, text) in env {
            let Some(key) = name.strip_prefix(ENV_PREFIX) else { continue };
            if key.contains("__") {
                let key = key.to_lowercase().replace("__", ".");
                add(&mut table, &mut from, Value { key, text, from: format!("env {name}") })?;
            } else if !OTHER_VARIABLES.contains(&name.as_str()) && !is_service_link(&name, &text) {
                return Err(unknown_variable(&name));
            }
        }
        let mut given: BTreeMap<String, Value> = BTreeMap::new();
        for value in flags {
            if let Some(other) = given.get(&value.key).filter(|other| other.text != value.text) {
                let (key, from, other) = (&value.key, value.from, &other.from);
                let message = format!("`{key}` is set differently by {other} and by {from}; give only one of them");
                return Err(ConfigError::Parse { from, message });
            }
            given.insert(value.key.clone(), value.clone());
            add(&mut table, &mut from, value)?;
        }
        let parse =
            |error: toml::de::Error| ConfigError::Parse { from: "configuration".into(), message: error.to_string() };
        let config: Config = table.try_into().map_err(parse)?;
        config.check()?;
        Ok(Self { config, from })
    }

    /// Formats every value and its source as commented TOML.
    pub fn effective(&self) -> String {
        let table = Table::try_from(self.config.without_secrets()).unwrap_or_default();
        let mut out = String::new();
        for (section, values) in &table {
            out.push_str(&format!("[{section}]\n"));
            for (key, value) in values.as_table().into_iter().flatten() {
                out.push_str(&format!("{:<46} # {}\n", format!("{key} = {value}"), self.source(section, key)));
            }
            out.push('\n');
        }
        out
    }
}

impl Sources {
    /// Returns the source of a value, or the sources of all keys inside it.
    fn source(&self, section: &str, key: &str) -> String {
        let own = format!("{section}.{key}");
        let is_part = |name: &str| name.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let mut sources: Vec<&str> =
            self.from.iter().filter(|(name, _)| is_part(name)).map(|(_, from)| from.as_str()).collect();
        sources.dedup();
        if sources.is_empty() { "default".into() } else { sources.join(", ") }
    }
}

/// Fault of a file, with its line and column if they are known. The line itself may contain a secret, so it is not
/// shown.
#[derive(Debug, thiserror::Error)]
#[error("{place}{what}")]
struct FileFault {
    /// As [`place`] formats it, or empty.
    place: String,
    what: String,
}

/// Parses a file.
///
/// Errors: the first fault of the file.
fn parse(text: &str) -> Result<Table, FileFault> {
    let fault = |start: Option<usize>, what: &str| FileFault {
        place: start.map(|start| place(text, start)).unwrap_or_default(),
        what: what.to_owned(),
    };
    let at = |error: &toml::de::Error, what: &str| fault(error.span().map(|span| span.start), what);
    DeTable::parse(text).map_err(|error| at(&error, error.message()))?;
    // Valid TOML may contain a number that is too large. The parser's message would show it, so ours replaces it.
    let mut table: Table =
        toml::from_str(text).map_err(|error| at(&error, "a number does not fit into 64 bits; put text in quotes"))?;
    faults::make_lists(&mut table);
    let first = faults::all(&table)
        .into_iter()
        .map(|fault| (faults::start(text, &fault), fault.what))
        .min_by_key(|(start, _)| start.unwrap_or(usize::MAX));
    match first {
        Some((start, what)) => Err(fault(start, &what)),
        None => Ok(table),
    }
}

/// Formats a byte offset as `line 3, column 7: `.
fn place(text: &str, start: usize) -> String {
    let before = text.get(..start).unwrap_or(text);
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {}, column {column}: ", before.matches('\n').count() + 1)
}

/// Sets one value and records its source.
fn add(table: &mut Table, from: &mut BTreeMap<String, String>, value: Value) -> Result<(), ConfigError> {
    // Check the value alone, so that an error names its source.
    let mut alone = Table::new();
    set(&mut alone, &value);
    faults::make_lists(&mut alone);
    if let Some(Fault { what, .. }) = faults::all(&alone).into_iter().next() {
        return Err(ConfigError::Parse { from: value.from, message: what });
    }
    merge(table, alone);
    from.insert(value.key, value.from);
    Ok(())
}

/// Sets one value: parsed as TOML if possible, otherwise as a string.
fn set(table: &mut Table, value: &Value) {
    let mut path: Vec<&str> = value.key.split('.').collect();
    let last = path.pop().unwrap_or_default();
    let parsed = toml::from_str::<Table>(&format!("x = {}", value.text)).ok().and_then(|mut table| table.remove("x"));
    // A string needs no quotes.
    let is_text = faults::is_text(&value.key);
    let parsed = parsed.filter(|parsed| !is_text || parsed.is_str());
    let parsed = parsed.filter(|_| !SECRETS.contains(&value.key.as_str()));
    let parsed = parsed.filter(|parsed| !SECRET_LISTS.contains(&value.key.as_str()) || parsed.is_array());
    let mut at = table;
    for section in path {
        let entry = at.entry(section.to_owned()).or_insert_with(|| Table::new().into());
        at = entry.as_table_mut().expect("the table has nothing but this path");
    }
    at.insert(last.to_owned(), parsed.unwrap_or_else(|| value.text.clone().into()));
}

/// Merges `over` into `table`; values of `over` take precedence.
fn merge(table: &mut Table, over: Table) {
    for (key, value) in over {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

/// Returns whether Kubernetes set this variable. It sets MILLRACE_SERVICE_HOST, MILLRACE_PORT_8080_TCP_ADDR and similar
/// ones in every pod for a service named `millrace` or `millrace-x`.
fn is_service_link(name: &str, text: &str) -> bool {
    let is_port = |rest: &str| {
        let mut parts = rest.split('_');
        let number = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
        number && parts.next().is_some_and(|protocol| ["TCP", "UDP", "SCTP"].contains(&protocol))
    };
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && text.contains("://"))
        || name.split("_PORT_").skip(1).any(is_port)
}

fn unknown_variable(name: &str) -> ConfigError {
    let settings = faults::keys().into_iter().map(|key| ENV_PREFIX.to_owned() + &key.to_uppercase().replace('.', "__"));
    let known = settings.chain(OTHER_VARIABLES.iter().map(|name| (*name).to_owned()));
    let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(name, known)).unwrap_or_default();
    let message = format!(
        "there is no such variable; the nearest is {nearest}. Two underscores separate section and key; \
         `millrace config default` prints all keys"
    );
    ConfigError::Parse { from: format!("env {name}"), message }
}

/// Returns the path of each value, for example `namespaces.cars.count_max`.
fn leaves(table: &Table, prefix: &str) -> Vec<String> {
    let path = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    let leaf = |(key, value): (&String, &toml::Value)| match value.as_table() {
        Some(inner) => leaves(inner, &path(key)),
        None => vec![path(key)],
    };
    table.iter().flat_map(leaf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, time::Duration};

    fn flag(key: &str, text: &str) -> Value {
        Value { key: key.into(), text: text.into(), from: "--set".into() }
    }

    fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect::<Vec<_>>().into_iter()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn later_layers_override_earlier() {
        let file = file(
            "[limits]\nheartbeat = \"5s\"\ngrace = \"3s\"\n[server]\nshards = 3\n[namespaces.cars]\ncount_max = 7\n",
        );
        let env = env(&[("MILLRACE_LIMITS__GRACE", "4s"), ("MILLRACE_SERVER__SHARDS", "5"), ("MILLRACE_BIN", "x")]);
        let sources = Sources::load(Some(file.path()), env, [flag("server.shards", "9")]).unwrap();
        let config = &sources.config;
        assert_eq!((config.limits.heartbeat, config.limits.grace), (Duration::from_secs(5), Duration::from_secs(4)));
        assert_eq!((config.server.shards, config.namespaces["cars"].count_max), (9, Some(7)));
        assert_eq!(config.limits.hold_max, Duration::from_secs(60));
        assert!(sources.effective().lines().any(|line| line.starts_with("shards = 9") && line.ends_with("# --set")));
        assert!(sources.effective().contains("# env MILLRACE_LIMITS__GRACE"));
        let acme = [flag("tls.acme.domains", "[\"app.example\"]"), flag("tls.acme.accept_terms", "true")];
        let acme = Sources::load(None, std::iter::empty(), acme).unwrap().effective();
        assert!(acme.lines().any(|line| line.starts_with("acme = ") && line.ends_with("# --set")), "{acme}");
        let secret = "00000000000000001234";
        let sources = Sources::load(None, [("MILLRACE_SERVER__SECRET".into(), secret.into())].into_iter(), []).unwrap();
        assert_eq!(sources.config.server.secret.as_bytes(), secret.as_bytes(), "digits, too, are text");
        assert!(sources.effective().contains("secret = \"(hidden)\""), "{}", sources.effective());
        assert!(!format!("{}{sources:?}", sources.effective()).contains(secret));
    }

    #[test]
    fn error_names_source_and_hides_secrets() {
        for line in [
            "secret = 7341902586173420",
            "secret = 73419025861734207341902586173420",
            "secret = s7341902586173420",
            "secret = \"7341902586173420",
            "secret = [7341902586173420]",
        ] {
            let file = file(&format!("[server]\nshards = 1\n{line}\n"));
            let error = Sources::load(Some(file.path()), env(&[]), []).unwrap_err().to_string();
            assert!(error.contains("line 3, column") && !error.contains("7341902586173420"), "{line}: {error}");
        }
    }

    #[test]
    fn unknown_keys_are_errors_everywhere() {
        let message = |result: Result<Sources, ConfigError>| result.unwrap_err().to_string();
        let file = file("[server]\nlisten = \"127.0.0.1:0\"\nprot = 1\n");
        let error = message(Sources::load(Some(file.path()), env(&[]), []));
        assert!(error.contains("prot") && error.contains("line 3"), "{error}");
        let error = message(Sources::load(None, env(&[("MILLRACE_SERVER__PROT", "1")]), []));
        assert!(error.contains("MILLRACE_SERVER__PROT") && error.contains("prot"), "{error}");
        let error = message(Sources::load(None, env(&[]), [flag("limits.heartbeat", "soon")]));
        assert!(error.contains("limits.heartbeat"), "{error}");
        assert!(message(Sources::load(None, env(&[]), [flag("shards", "1")])).contains("unknown key"));
    }
}
