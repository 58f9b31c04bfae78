use std::{collections::BTreeMap, path::Path};

use toml::Table;

use super::Config;

/// Prefix of environment variables; `__` separates section and key.
const ENV_PREFIX: &str = "MILLRACE_";
/// Keys whose values are text whatever they look like, and are never shown.
const SECRETS: &[&str] = &["server.secret", "auth.secret", "admin.token"];

/// What is wrong with a configuration, in words for whoever wrote it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{from}: {message}")]
    Parse { from: String, message: String },
    #[error("`{key}` {what}")]
    Value { key: String, what: String },
}

/// A setting from the environment or the command line: `section.key` and its text.
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
    /// `section.key` to a word such as `file millrace.toml`; keys that are not here have their default.
    pub from: BTreeMap<String, String>,
}

impl Sources {
    /// Puts the layers on top of each other.
    ///
    /// Errors: a file that cannot be read or parsed, an unknown key, a value of the wrong kind; each names its place.
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
            // Once on its own, so that an error points at its line.
            let parse = |error| ConfigError::Parse { from: shown.clone(), message: located(&error, &text) };
            toml::from_str::<Config>(&text).map_err(parse)?;
            table = toml::from_str(&text).map_err(parse)?;
            for key in leaves(&table, "") {
                from.insert(key, format!("file {shown}"));
            }
        }
        let env = env.filter_map(|(name, text)| {
            let key = name.strip_prefix(ENV_PREFIX)?;
            // Only names with a section are settings; `MILLRACE_BIN` and the like belong to scripts.
            key.contains("__").then(|| Value {
                key: key.to_lowercase().replace("__", "."),
                text,
                from: format!("env {name}"),
            })
        });
        for value in env.chain(flags) {
            set(&mut table, &value)?;
            from.insert(value.key.clone(), value.from.clone());
            // Each on its own, so that an error names its source.
            let message = |error: toml::de::Error| ConfigError::Parse {
                from: format!("{} ({})", value.from, value.key),
                message: error.message().to_owned(),
            };
            Config::deserialize_from(table.clone()).map_err(message)?;
        }
        let parse =
            |error: toml::de::Error| ConfigError::Parse { from: "configuration".into(), message: error.to_string() };
        let config = Config::deserialize_from(table).map_err(parse)?;
        config.check()?;
        Ok(Self { config, from })
    }

    /// Every value with where it comes from, as commented TOML.
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
    /// Where a value comes from; one with keys of its own, from everywhere that these come from.
    fn source(&self, section: &str, key: &str) -> String {
        let own = format!("{section}.{key}");
        let is_part = |name: &str| name.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let mut sources: Vec<&str> =
            self.from.iter().filter(|(name, _)| is_part(name)).map(|(_, from)| from.as_str()).collect();
        sources.dedup();
        if sources.is_empty() { "default".into() } else { sources.join(", ") }
    }
}

impl Config {
    fn deserialize_from(table: Table) -> Result<Config, toml::de::Error> {
        table.try_into()
    }
}

/// Sets one value; text is read as TOML if it is some, else it is a string.
fn set(table: &mut Table, value: &Value) -> Result<(), ConfigError> {
    let mut path: Vec<&str> = value.key.split('.').collect();
    let unknown = || ConfigError::Parse { from: value.from.clone(), message: format!("unknown key `{}`", value.key) };
    let last = path.pop().filter(|_| !path.is_empty()).ok_or_else(unknown)?;
    let parsed = toml::from_str::<Table>(&format!("x = {}", value.text)).ok().and_then(|mut table| table.remove("x"));
    let mut at = table;
    for section in path {
        let entry = at.entry(section.to_owned()).or_insert_with(|| Table::new().into());
        at = entry.as_table_mut().ok_or_else(unknown)?;
    }
    let parsed = parsed.filter(|_| !SECRETS.contains(&value.key.as_str()));
    at.insert(last.to_owned(), parsed.unwrap_or_else(|| value.text.clone().into()));
    Ok(())
}

/// What is wrong and where. Not the line itself, as the parser would show it: a secret may stand there.
fn located(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let place = before.map(|before| {
        let (line, column) =
            (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
        format!("line {line}, column {column}: ")
    });
    format!("{}{}", place.unwrap_or_default(), error.message())
}

fn leaves(table: &Table, prefix: &str) -> Vec<String> {
    let path = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    let leaf = |(key, value): (&String, &toml::Value)| match value.as_table() {
        Some(inner) if prefix.is_empty() => leaves(inner, &path(key)),
        _ => vec![path(key)],
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
    fn later_layers_win() {
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
    fn an_error_says_where_and_shows_no_secret() {
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
