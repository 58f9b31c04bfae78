use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{ChannelName, Code, Error, Pattern, session::Target};

/// Operation that a rule permits on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    Subscribe,
    Publish,
    Presence,
    History,
}

impl Permission {
    pub const ALL: [Permission; 4] =
        [Permission::Subscribe, Permission::Publish, Permission::Presence, Permission::History];

    /// Returns the name used in claims and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Permission::Subscribe => "subscribe",
            Permission::Publish => "publish",
            Permission::Presence => "presence",
            Permission::History => "history",
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
    /// True if the client may send operator requests (docs/reference/admin.md).
    pub is_admin: bool,
    /// Permitted operations with the channels they apply to. A plain name is a pattern that matches itself.
    pub rules: Vec<(Permission, Pattern)>,
    /// Information about the client for other members of a channel, as JSON.
    pub info: Option<Arc<str>>,
    /// Channels that a session of this client reads from its start. The client has the permission to read them.
    pub channels: Vec<ChannelName>,
}

impl Grant {
    /// Returns a grant of every operation on every channel. It does not include operator requests.
    pub fn everything() -> Self {
        let all = Pattern::parse("#").expect("`#` is a pattern");
        Self { rules: Permission::ALL.map(|permission| (permission, all.clone())).into(), ..Self::default() }
    }

    pub fn nothing() -> Self {
        Self::default()
    }

    /// Adds a permission on all channels that match the pattern.
    pub fn allow(&mut self, permission: Permission, pattern: Pattern) {
        self.rules.push((permission, pattern));
    }

    pub fn rules(&self) -> &[(Permission, Pattern)] {
        &self.rules
    }

    /// Checks that this grant permits an operation on a channel or pattern. A pattern is permitted if a single rule
    /// covers everything that it matches.
    ///
    /// Cost: O(rules). Errors: [`Code::Forbidden`], with the permission and the target.
    pub fn check(&self, permission: Permission, target: &Target) -> Result<(), Error> {
        let target = target.as_str();
        if self.rules.iter().any(|rule| rule.0 == permission && rule.1.covers(target)) {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, format!("the token does not permit `{}` on `{target}`", permission.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(grant: &Grant, permission: Permission, target: &str) -> bool {
        grant.check(permission, &Target::parse(target).unwrap()).is_ok()
    }

    #[test]
    fn everything_permits_all_and_nothing_permits_none() {
        for permission in Permission::ALL {
            for target in ["a", "a/b/c", "a/+", "#", "+/#"] {
                assert!(allows(&Grant::everything(), permission, target), "{permission:?} {target}");
                assert!(!allows(&Grant::nothing(), permission, target), "{permission:?} {target}");
            }
        }
    }

    #[test]
    fn permissions_are_independent() {
        let mut grant = Grant::nothing();
        grant.allow(Permission::Publish, Pattern::parse("cars/7/#").unwrap());
        grant.allow(Permission::Subscribe, Pattern::parse("news").unwrap());
        assert!(
            allows(&grant, Permission::Publish, "cars/7/telemetry") && allows(&grant, Permission::Subscribe, "news")
        );
        for permission in [Permission::Subscribe, Permission::Presence, Permission::History] {
            assert!(!allows(&grant, permission, "cars/7/telemetry"), "{permission:?}");
        }
        let error = grant.check(Permission::Publish, &Target::parse("cars/8/telemetry").unwrap()).unwrap_err();
        assert_eq!(error.code, Code::Forbidden);
        assert!(error.detail.contains("publish") && error.detail.contains("cars/8/telemetry"), "{error}");
    }

    #[test]
    fn one_rule_must_cover_the_whole_pattern() {
        let mut grant = Grant::nothing();
        grant.allow(Permission::Subscribe, Pattern::parse("a").unwrap());
        grant.allow(Permission::Subscribe, Pattern::parse("a/+/#").unwrap());
        assert!(
            !allows(&grant, Permission::Subscribe, "a/#"),
            "what no single rule covers is refused, even if all of them would"
        );
    }
}
