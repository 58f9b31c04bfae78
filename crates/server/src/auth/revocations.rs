//! Revocations: single tokens and API keys by id, and all tokens of a subject issued before a given time.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{PoisonError, RwLock},
    time::UNIX_EPOCH,
};

use millrace_protocol::{Code, Error, Grant};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Revocations by the admin API, kept in memory for as long as a token may live, and those listed in the file.
pub struct Revocations {
    lists: RwLock<Lists>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Lists {
    by_api: List,
    file: List,
    entries_max: usize,
}

#[derive(Default, Debug, PartialEq)]
pub struct List {
    /// Expiry time of each revocation by id, in seconds since 1970.
    ids: HashMap<String, u64>,
    /// By subject: the time before which tokens are revoked, and the expiry time of the revocation, in seconds since
    /// 1970.
    subjects: HashMap<String, (u64, u64)>,
}

/// A revocation. Nodes send it to each other in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Revoked {
    /// Revokes the token with this `jti`, or the API key of this name.
    #[serde(rename = "jti")]
    Id(String),
    /// Revokes every token of the subject whose `iat` is before this time, in seconds since 1970, or missing.
    #[serde(rename = "sub")]
    Subject { subject: String, before_s: u64 },
}

impl Revocations {
    pub fn new(entries_max: usize) -> Self {
        Self { lists: RwLock::new(Lists { entries_max, ..Lists::default() }), changes: watch::Sender::new(0) }
    }

    /// Adds a revocation. One that the list already contains changes nothing, and nothing is notified.
    ///
    /// Units: `until_s`, by when all tokens that the revocation concerns have expired, and `now_s` in seconds since
    /// 1970.
    ///
    /// Errors: [`Code::TooMany`] if the list is full of revocations that have not expired; none of them is evicted.
    pub fn add(&self, revoked: Revoked, until_s: u64, now_s: u64) -> Result<(), Error> {
        {
            let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
            if lists.by_api.includes(&revoked, until_s) {
                return Ok(());
            }
            let max = lists.entries_max;
            if lists.by_api.len() >= max {
                lists.by_api.drop_expired(now_s);
            }
            if lists.by_api.len() >= max {
                return Err(Error::new(
                    Code::TooMany,
                    format!(
                        "the maximum of {max} revocations is reached (`auth.revoked_max`); replace the key that signed the tokens instead"
                    ),
                ));
            }
            lists.by_api.add(revoked, until_s);
        }
        self.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Replaces the list from the file. Entries that are no longer listed are no longer revoked.
    pub fn set_file(&self, file: List, entries_max: usize) {
        let has_changed = {
            let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
            lists.entries_max = entries_max;
            std::mem::replace(&mut lists.file, file) != lists.file
        };
        if has_changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn contain(&self, grant: &Grant) -> bool {
        let lists = self.lists.read().unwrap_or_else(PoisonError::into_inner);
        lists.by_api.contains(grant) || lists.file.contains(grant)
    }
}

/// Reasons why a file of revocations cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RevocationsError {
    #[error("cannot read {}: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}, line {line}: expected `id ID` or `sub SUBJECT 2026-11-20T10:00:00Z`", .path.display())]
    Line { path: PathBuf, line: usize },
    #[error("{} has more than {entries_max} entries (`auth.revoked_max`)", .path.display())]
    TooMany { path: PathBuf, entries_max: usize },
}

impl List {
    /// Reads lines of `id ID` and `sub SUBJECT TIME` (RFC 3339); `#` begins a comment.
    ///
    /// Errors: a malformed line, or more than `entries_max` entries.
    pub fn read(path: &Path, entries_max: usize) -> Result<Self, RevocationsError> {
        let path = path.to_owned();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => return Err(RevocationsError::Read { path, error }),
        };
        let mut list = Self::default();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let before = |time: &str| humantime::parse_rfc3339(time).ok()?.duration_since(UNIX_EPOCH).ok();
            match words[..] {
                [] => continue,
                ["id", id] => list.add(Revoked::Id(id.into()), u64::MAX),
                ["sub", subject, time] if before(time).is_some() => {
                    let before_s = before(time).unwrap_or_default().as_secs();
                    list.add(Revoked::Subject { subject: subject.into(), before_s }, u64::MAX);
                }
                _ => return Err(RevocationsError::Line { path, line: number + 1 }),
            }
            if list.len() > entries_max {
                return Err(RevocationsError::TooMany { path, entries_max });
            }
        }
        Ok(list)
    }

    fn add(&mut self, revoked: Revoked, until_s: u64) {
        match revoked {
            Revoked::Id(id) => {
                let until = self.ids.entry(id).or_default();
                *until = until_s.max(*until);
            }
            Revoked::Subject { subject, before_s } => {
                let entry = self.subjects.entry(subject).or_default();
                *entry = (before_s.max(entry.0), until_s.max(entry.1));
            }
        }
    }

    /// Returns true if the list contains this revocation, or one that covers it.
    fn includes(&self, revoked: &Revoked, until_s: u64) -> bool {
        match revoked {
            Revoked::Id(id) => self.ids.get(id).is_some_and(|until| *until >= until_s),
            Revoked::Subject { subject, before_s } => {
                self.subjects.get(subject).is_some_and(|(before, until)| before >= before_s && *until >= until_s)
            }
        }
    }

    fn len(&self) -> usize {
        self.ids.len() + self.subjects.len()
    }

    fn drop_expired(&mut self, now_s: u64) {
        self.ids.retain(|_, until| *until > now_s);
        self.subjects.retain(|_, (_, until)| *until > now_s);
    }

    fn contains(&self, grant: &Grant) -> bool {
        let by_id = || grant.id.as_deref().is_some_and(|id| self.ids.contains_key(id));
        let is_early = |subject: &str| {
            self.subjects.get(subject).is_some_and(|(before, _)| grant.issued_s.is_none_or(|issued| issued < *before))
        };
        by_id() || grant.subject.as_deref().is_some_and(is_early)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn grant(subject: &str, id: &str, issued_s: Option<u64>) -> Grant {
        Grant { subject: Some(subject.into()), id: Some(id.into()), issued_s, ..Grant::nothing() }
    }

    #[test]
    fn ids_and_earlier_tokens_of_subject_are_revoked() {
        let revocations = Revocations::new(10);
        let changes = revocations.changes();
        revocations.add(Revoked::Id("a".into()), 500, 0).unwrap();
        revocations.add(Revoked::Subject { subject: "bob".into(), before_s: 100 }, 500, 0).unwrap();
        assert_eq!(*changes.borrow(), 2);
        revocations.add(Revoked::Id("a".into()), 400, 0).unwrap();
        revocations.add(Revoked::Subject { subject: "bob".into(), before_s: 99 }, 500, 0).unwrap();
        assert_eq!(*changes.borrow(), 2, "the list contains both already");
        assert!(revocations.contain(&grant("x", "a", Some(1000))));
        assert!(revocations.contain(&grant("bob", "b", Some(99))) && revocations.contain(&grant("bob", "b", None)));
        assert!(
            !revocations.contain(&grant("bob", "b", Some(100))) && !revocations.contain(&grant("eve", "b", Some(1)))
        );
        assert!(!revocations.contain(&Grant::everything()));
    }

    #[test]
    fn full_list_drops_only_expired_revocations() {
        let revocations = Revocations::new(2);
        let add = |id: &str, until_s, now_s| revocations.add(Revoked::Id(id.into()), until_s, now_s);
        add("a", 100, 0).unwrap();
        add("b", 200, 0).unwrap();
        assert_eq!(add("c", 300, 99).unwrap_err().code, Code::TooMany);
        assert!(revocations.contain(&grant("", "a", None)), "many revocations do not lift an earlier one");
        add("c", 300, 100).unwrap();
        assert!(!revocations.contain(&grant("", "a", None)) && revocations.contain(&grant("", "c", None)));
    }

    #[test]
    fn file_adds_and_removes_revocations() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# lost phones\nid a1 # hers\n\nsub bob 1970-01-01T00:01:40Z\n").unwrap();
        let revocations = Revocations::new(10);
        revocations.set_file(List::read(file.path(), 10).unwrap(), 10);
        assert!(revocations.contain(&grant("x", "a1", None)) && revocations.contain(&grant("bob", "x", Some(99))));
        revocations.set_file(List::default(), 10);
        assert!(!revocations.contain(&grant("x", "a1", None)));
        assert_eq!(*revocations.changes().borrow(), 2);
        assert!(List::read(file.path(), 1).unwrap_err().to_string().contains("revoked_max"));
        file.write_all(b"sub eve yesterday\n").unwrap();
        assert!(List::read(file.path(), 10).unwrap_err().to_string().contains("line 5"));
    }
}
