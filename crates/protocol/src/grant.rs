use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Code, Error, Pattern, session::Target};

/// Operation that a rule permits on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    Subscribe,
    Publish,
    Presence,
    History,
}

impl Right {
    pub const ALL: [Right; 4] = [Right::Subscribe, Right::Publish, Right::Presence, Right::History];

    /// Returns the name used in claims and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Right::Subscribe => "subscribe",
            Right::Publish => "publish",
            Right::Presence => "presence",
            Right::History => "history",
        }
    }
}

/// Permissions of a client, with its identity. An operation that no rule permits is forbidden.
///
/// Source: docs/reference/tokens.md.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Grant {
    /// Subject of the token (`sub`).
    pub subject: Option<Arc<str>>,
    /// Identifier for revocation: the token's `jti`, or the API key's name.
    pub id: Option<Arc<str>>,
    /// Expiry time, in seconds since 1970.
    pub expires_s: Option<u64>,
    /// Issue time, in seconds since 1970. All earlier grants of a subject can be revoked together.
    pub issued_s: Option<u64>,
    /// Permitted operations with the channels they apply to. A plain name is a pattern that matches itself.
    pub rules: Vec<(Right, Pattern)>,
}

impl Grant {
    pub fn everything() -> Self {
        let all = Pattern::parse("#").expect("`#` is a pattern");
        Self { rules: Right::ALL.map(|right| (right, all.clone())).into(), ..Self::default() }
    }

    pub fn nothing() -> Self {
        Self::default()
    }

    /// Adds a permission on all channels that match the pattern.
    pub fn allow(&mut self, right: Right, pattern: Pattern) {
        self.rules.push((right, pattern));
    }

    pub fn rules(&self) -> &[(Right, Pattern)] {
        &self.rules
    }

    /// Checks that this grant permits an operation on a channel or pattern. A pattern is permitted if a single rule
    /// covers everything that it matches.
    ///
    /// Cost: O(rules). Errors: [`Code::Forbidden`], with the permission and the target.
    pub fn check(&self, right: Right, target: &Target) -> Result<(), Error> {
        let target = target.as_str();
        if self.rules.iter().any(|rule| rule.0 == right && rule.1.covers(target)) {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, format!("you have no right `{}` on `{target}`", right.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(grant: &Grant, right: Right, target: &str) -> bool {
        grant.check(right, &Target::parse(target).unwrap()).is_ok()
    }

    #[test]
    fn everything_and_nothing_are_what_they_say() {
        for right in Right::ALL {
            for target in ["a", "a/b/c", "a/+", "#", "+/#"] {
                assert!(allows(&Grant::everything(), right, target), "{right:?} {target}");
                assert!(!allows(&Grant::nothing(), right, target), "{right:?} {target}");
            }
        }
    }

    #[test]
    fn a_right_is_no_other_right() {
        let mut grant = Grant::nothing();
        grant.allow(Right::Publish, Pattern::parse("cars/7/#").unwrap());
        grant.allow(Right::Subscribe, Pattern::parse("news").unwrap());
        assert!(allows(&grant, Right::Publish, "cars/7/telemetry") && allows(&grant, Right::Subscribe, "news"));
        for right in [Right::Subscribe, Right::Presence, Right::History] {
            assert!(!allows(&grant, right, "cars/7/telemetry"), "{right:?}");
        }
        let error = grant.check(Right::Publish, &Target::parse("cars/8/telemetry").unwrap()).unwrap_err();
        assert_eq!(error.code, Code::Forbidden);
        assert!(error.detail.contains("publish") && error.detail.contains("cars/8/telemetry"), "{error}");
    }

    #[test]
    fn two_rules_together_are_not_one() {
        let mut grant = Grant::nothing();
        grant.allow(Right::Subscribe, Pattern::parse("a").unwrap());
        grant.allow(Right::Subscribe, Pattern::parse("a/+/#").unwrap());
        assert!(
            !allows(&grant, Right::Subscribe, "a/#"),
            "what no single rule covers is refused, even if all of them would"
        );
    }
}
