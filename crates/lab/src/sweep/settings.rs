//! Reads the settings of a run from a scenario file, with its forms and parts, and from `--set` options.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use toml::{Table, Value};

use super::{Kind, Parameters, Scenario};
use crate::{nearest::nearest, path::PathSettings, recording::Form};

/// All parameters of a scenario, by part. A scenario without parts has one part with an empty name.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub parts: BTreeMap<String, Table>,
}

/// Parameter whose value is a table, so that single keys of it can be set.
const PATH: &str = "path";

/// Key of a form, and of `--set`: the parts that are run. Without it, all parts are run.
const ONLY: &str = "only";

/// Allowed top-level keys of a scenario file. The first five are read by [`About`](super::About).
const TABLES: [&str; 10] =
    ["title", "summary", "source", "rows", "needs", "parameters", "parts", "quick", "full", "thesis"];

impl Settings {
    /// Reads the settings of a scenario. `sets`: keys and values as typed.
    ///
    /// Errors: an unknown part or key, with the most similar name; an invalid value.
    pub fn read(scenario: &Scenario, form: Form, sets: &[(String, String)]) -> anyhow::Result<Settings> {
        let file: Table = scenario.toml.parse().with_context(|| scenario.name.to_owned())?;
        let settings = Settings::of(&file, &scenario.kind, form, sets)?;
        settings.check(&scenario.kind)?;
        Ok(settings)
    }

    fn of(file: &Table, kind: &Kind, form: Form, sets: &[(String, String)]) -> anyhow::Result<Settings> {
        for key in file.keys() {
            ensure!(TABLES.contains(&key.as_str()), "unknown key {key}{}", nearest(key, TABLES));
        }
        let mut base = match kind {
            Kind::Sweep(_) => Table::try_from(Parameters::default()).expect("parameters are a table"),
            Kind::Experiment(_) => table(file, "parameters")?,
        };
        let form_table = table(file, form.name())?;
        let values = |mut table: Table| {
            table.remove("parts");
            table.remove(ONLY);
            table
        };
        let (file_parts, form_parts) = (table(file, "parts")?, table(&form_table, "parts")?);
        overlay(&mut base, &table(file, "parameters")?)?;
        let names: Vec<String> =
            if file_parts.is_empty() { vec![String::new()] } else { file_parts.keys().cloned().collect() };
        known_part(form_parts.keys(), &names)?;
        let only = parts_to_run(&form_table, sets, &names)?;
        let mut parts = BTreeMap::new();
        for name in &names {
            let mut all = base.clone();
            overlay(&mut all, &table(&file_parts, name)?)?;
            overlay(&mut all, &values(form_table.clone()))?;
            overlay(&mut all, &table(&form_parts, name)?)?;
            parts.insert(name.clone(), all);
        }
        for (key, text) in sets.iter().filter(|(key, _)| key != ONLY) {
            let (chosen, key) = chosen(key, &names)?;
            if let [name] = chosen {
                ensure!(only.contains(name), "part {name} is not run here; --set {ONLY}={name} chooses it");
            }
            let below = path_key(key);
            let parameter = below.map_or(key, |_| PATH);
            for name in chosen {
                let all = parts.get_mut(name).expect("it was just put in");
                let now =
                    all.get(parameter).with_context(|| format!("no parameter {key}{}", nearest(key, keys(all))))?;
                let value = match below {
                    Some(below) => path_with(now, below, text),
                    None => typed(text, now),
                };
                all.insert(parameter.to_owned(), value.with_context(|| format!("{key}={text}"))?);
            }
        }
        parts.retain(|name, _| only.contains(name));
        Ok(Settings { parts })
    }

    fn check(&self, kind: &Kind) -> anyhow::Result<()> {
        match kind {
            Kind::Sweep(_) => self.sweep().map(drop),
            Kind::Experiment(experiment) => self.parts.values().try_for_each(|part| experiment.check(part)),
        }
    }

    /// Returns the parameters of each part of a sweep.
    pub fn sweep(&self) -> anyhow::Result<BTreeMap<String, Parameters>> {
        let read = |(name, table): (&String, &Table)| {
            let parameters: Parameters = table.clone().try_into()?;
            parameters.check()?;
            Ok((name.clone(), parameters))
        };
        self.parts.iter().map(read).collect()
    }

    /// Returns the settings in the form in which recordings contain them.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(&self.parts).expect("tables of TOML are objects of JSON")
    }

    /// Errors: the JSON value is not a settings object.
    pub fn from_json(json: &serde_json::Value) -> anyhow::Result<Settings> {
        Ok(Settings { parts: serde_json::from_value(json.clone())? })
    }
}

/// Returns the parts that are run: those of the last `--set only=A,B`, of the form, or all.
fn parts_to_run(form: &Table, sets: &[(String, String)], names: &[String]) -> anyhow::Result<Vec<String>> {
    let typed = sets.iter().rev().find(|(key, _)| key == ONLY);
    let only: Vec<String> = match (typed, form.get(ONLY)) {
        (Some((_, text)), _) => text.split(',').map(|name| name.trim().to_owned()).collect(),
        (None, Some(list)) => list.clone().try_into().with_context(|| format!("{ONLY} is a list of parts"))?,
        (None, None) => return Ok(names.to_vec()),
    };
    ensure!(!only.is_empty(), "{ONLY} has no part");
    known_part(&only, names).context(ONLY)?;
    Ok(only)
}

/// Splits `PART.KEY`. Without a part, all parts are chosen. A key below [`PATH`] contains dots itself.
fn chosen<'a, 'k>(key: &'k str, names: &'a [String]) -> anyhow::Result<(&'a [String], &'k str)> {
    match key.split_once('.') {
        Some((part, _)) if part == PATH && !names.iter().any(|name| name == PATH) => Ok((names, key)),
        Some((part, key)) => {
            known_part([&part.to_owned()], names)?;
            let index = names.iter().position(|name| name == part).expect("the part is known");
            Ok((&names[index..=index], key))
        }
        None => Ok((names, key)),
    }
}

/// Returns what follows [`PATH`]: nothing for the path itself, or a key of its link.
fn path_key(key: &str) -> Option<&str> {
    key.strip_prefix(PATH).and_then(|rest| if rest.is_empty() { Some("") } else { rest.strip_prefix('.') })
}

fn path_with(path: &Value, key: &str, text: &str) -> anyhow::Result<Value> {
    let mut path: PathSettings = path.clone().try_into()?;
    path.set(key, text)?;
    Ok(Value::Table(path.into()))
}

fn keys(table: &Table) -> impl Iterator<Item = &str> {
    table.keys().map(String::as_str)
}

fn table(of: &Table, key: &str) -> anyhow::Result<Table> {
    match of.get(key) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table.clone()),
        Some(_) => bail!("{key} is to be a table"),
    }
}

/// Overwrites values in `below` with those of `above`.
///
/// Errors: a key that `below` does not have.
fn overlay(below: &mut Table, above: &Table) -> anyhow::Result<()> {
    for (key, value) in above {
        ensure!(below.contains_key(key), "no parameter {key}{}", nearest(key, keys(below)));
        below.insert(key.clone(), value.clone());
    }
    Ok(())
}

fn known_part<'a>(asked: impl IntoIterator<Item = &'a String>, names: &[String]) -> anyhow::Result<()> {
    for part in asked {
        let others = names.iter().map(String::as_str).filter(|name| !name.is_empty());
        ensure!(!part.is_empty() && names.contains(part), "no part {part}{}", nearest(part, others));
    }
    Ok(())
}

/// Parses a value with the same type as `like`. A list has its values separated by commas.
fn typed(text: &str, like: &Value) -> anyhow::Result<Value> {
    Ok(match like {
        Value::Integer(_) => Value::Integer(text.parse().context("not a whole number")?),
        Value::Float(_) => Value::Float(text.parse().context("not a number")?),
        Value::Boolean(_) => Value::Boolean(text.parse().context("true or false")?),
        Value::Array(levels) => {
            let like = levels.first().cloned().unwrap_or(Value::String(String::new()));
            Value::Array(text.split(',').map(|part| typed(part.trim(), &like)).collect::<Result<_, _>>()?)
        }
        _ => Value::String(text.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWEEP: Kind = Kind::Sweep(crate::sweep::scenario::Sweep::PLAIN);
    const FILE: &str = r#"
        title = "t"
        [parameters]
        bytes = [100]
        clients = [1, 2]
        each_per_s = [4.0]
        [parts.a]
        bytes = [200]
        [parts.b]
        [quick]
        clients = [9]
        [quick.parts.b]
        clients = [8]
    "#;

    fn read(form: Form, sets: &[(&str, &str)]) -> anyhow::Result<BTreeMap<String, Parameters>> {
        let sets: Vec<_> = sets.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Settings::of(&FILE.parse().unwrap(), &SWEEP, form, &sets)?.sweep()
    }

    #[test]
    fn later_values_override_earlier_ones() {
        let full = read(Form::Full, &[]).unwrap();
        assert_eq!((&full["a"].clients, &full["a"].bytes, &full["b"].bytes), (&vec![1, 2], &vec![200], &vec![100]));
        let quick = read(Form::Quick, &[("each_per_s", "1,2.5"), ("b.clients", "7")]).unwrap();
        assert_eq!((&quick["a"].clients, &quick["b"].clients), (&vec![9], &vec![7]));
        assert_eq!(quick["b"].each_per_s, [1.0, 2.5]);
        assert_eq!(read(Form::Quick, &[]).unwrap()["b"].clients, [8]);
    }

    #[test]
    fn form_and_user_choose_the_parts_that_are_run() {
        let file = FILE.replace("[quick]", "[quick]\nonly = [\"b\"]").parse().unwrap();
        let read = |form, sets: &[(&str, &str)]| {
            let sets: Vec<_> = sets.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let settings = Settings::of(&file, &SWEEP, form, &sets)?;
            anyhow::Ok(settings.parts.into_keys().collect::<Vec<_>>().join(","))
        };
        assert_eq!(read(Form::Full, &[]).unwrap(), "a,b");
        assert_eq!(read(Form::Quick, &[("b.clients", "3")]).unwrap(), "b");
        assert_eq!(read(Form::Quick, &[("only", "b"), ("only", "a"), ("a.clients", "3")]).unwrap(), "a");
        assert_eq!(read(Form::Full, &[("only", "b, a")]).unwrap(), "a,b");
        for (sets, says) in [
            (("only", "c"), "only: no part c"),
            (("only", ""), "only: no part "),
            (("a.clients", "3"), "part a is not run here; --set only=a chooses it"),
        ] {
            let error = format!("{:#}", read(Form::Quick, &[sets]).unwrap_err());
            assert!(error.contains(says), "{sets:?}: {error}");
        }
    }

    #[test]
    fn unknown_key_suggests_the_nearest() {
        for (key, value, says) in [
            ("client", "1", "did you mean clients?"),
            ("c.clients", "1", "no part c"),
            ("clients", "many", "not a whole number"),
            ("clients", "0.5", "not a whole number"),
            ("shape", "chatt", "chatt"),
            ("repeats", "0", "1 to 1,000"),
            ("test", "soon", "soon"),
        ] {
            let error = format!("{:#}", read(Form::Full, &[(key, value)]).unwrap_err());
            assert!(error.contains(says), "{key}={value}: {error}");
        }
    }

    #[test]
    fn settings_round_trip_through_a_recording() {
        let settings = Settings::of(&FILE.parse().unwrap(), &SWEEP, Form::Full, &[]).unwrap();
        assert_eq!(Settings::from_json(&settings.to_json()).unwrap(), settings);
    }
}
