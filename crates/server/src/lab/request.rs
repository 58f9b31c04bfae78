//! Bodies of operators. All values become arguments of a child process without a shell. They are limited to the
//! characters that scenarios need, so that no value is a path outside of the folder of the reports.

use std::collections::BTreeMap;

use millrace_protocol::{Code, Error};
use serde::{Deserialize, Serialize};

const NAME_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 200;
const SETS_MAX: usize = 32;
/// Maximum length of the id of a report: a scenario, a time, and a number.
const ID_BYTES_MAX: usize = 100;

/// Length of a run. Source: `recording::Form` of the lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    #[default]
    Quick,
    Full,
    Thesis,
}

/// Body of a start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    pub scenario: String,
    #[serde(default)]
    pub form: Form,
    /// Parameters, as `--set` takes them.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

impl Start {
    /// Checks the form of all values. The lab itself checks their meaning.
    ///
    /// Errors: `bad_request` with the value.
    pub fn check(&self) -> Result<(), Error> {
        if !is_name(&self.scenario) {
            return Err(bad("`scenario` is the name of a scenario, as GET /v1/admin/lab/scenarios lists them"));
        }
        if self.set.len() > SETS_MAX {
            return Err(bad(format!("`set` has at most {SETS_MAX} parameters")));
        }
        for (key, value) in &self.set {
            if !is_name(key) {
                return Err(bad(format!("`set` has a key {key:?}; a key has letters, digits and . _ - only")));
            }
            let is_value = |byte: u8| byte.is_ascii_alphanumeric() || b" ,.:%+_@=-".contains(&byte);
            if value.is_empty() || value.len() > VALUE_BYTES_MAX || !value.bytes().all(is_value) {
                let expected = "1 to 200 letters, digits, spaces and , . : % + _ @ = -";
                return Err(bad(format!("`set` has a value {value:?} of {key}; a value has {expected}")));
            }
        }
        Ok(())
    }

    /// Returns the arguments of `millrace lab run`.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["lab".into(), "run".into(), self.scenario.clone()];
        match self.form {
            Form::Quick => arguments.push("--quick".into()),
            Form::Full => {}
            Form::Thesis => arguments.push("--thesis".into()),
        }
        for (key, value) in &self.set {
            arguments.extend(["--set".into(), format!("{key}={value}")]);
        }
        arguments
    }
}

/// Returns whether a text can be the name of a scenario, or a key. It cannot be taken for a flag.
fn is_name(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(is_part)
}

/// Checks the id of a report, which is the name of a folder: no separator and no dot, so that it names nothing else.
///
/// Errors: `bad_request`.
pub fn check_id(id: &str) -> Result<(), Error> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match (1..=ID_BYTES_MAX).contains(&id.len()) && !id.starts_with('-') && id.bytes().all(is_part) {
        true => Ok(()),
        false => Err(bad("the id of a report has letters, digits and - only, as the list of reports shows it")),
    }
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(Code::BadRequest, detail.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(scenario: &str, set: &[(&str, &str)]) -> Start {
        let set = set.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Start { scenario: scenario.into(), form: Form::Quick, set }
    }

    #[test]
    fn values_cannot_be_flags_paths_or_commands() {
        assert!(start("storm", &[("clients", "1,50"), ("path.down.loss", "1%"), ("test", "10s")]).check().is_ok());
        for scenario in ["", "--out", "-x", "a/b", "storm;id", "störm", &"a".repeat(65)] {
            assert!(start(scenario, &[]).check().is_err(), "{scenario}");
        }
        for (key, value) in [
            ("", "1"),
            ("--out", "x"),
            ("a b", "1"),
            ("a", ""),
            ("a", "../x"),
            ("a", "/etc/passwd"),
            ("a", "$(id)"),
            ("a", "x\ny"),
            ("a", "<b>"),
            ("a", &"1".repeat(201)),
        ] {
            assert!(start("storm", &[(key, value)]).check().is_err(), "{key}={value}");
        }
        let many: BTreeMap<_, _> = (0..33).map(|i| (format!("k{i}"), "1".to_owned())).collect();
        assert!(Start { set: many, ..start("storm", &[]) }.check().is_err());
    }

    #[test]
    fn start_becomes_arguments_without_a_shell() {
        let mut start = start("storm", &[("b", "2 x"), ("a", "1")]);
        assert_eq!(start.arguments(), ["lab", "run", "storm", "--quick", "--set", "a=1", "--set", "b=2 x"]);
        (start.form, start.set) = (Form::Full, BTreeMap::new());
        assert_eq!(start.arguments(), ["lab", "run", "storm"]);
    }

    #[test]
    fn ids_name_one_folder() {
        assert!(check_id("storm-20261126T071000Z").is_ok());
        for id in ["", ".", "..", "a/b", "../x", "-rf", "a.b", "a\0b", "ä", &"a".repeat(101)] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }
}
