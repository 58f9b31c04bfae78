use millrace_protocol::session::Target;

use crate::Reason;

/// Start of the filter of a shared subscription: `$share/GROUP/FILTER`.
const SHARE: &str = "$share/";

/// Topic filter of a subscription: a channel or a pattern, and the group that shares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    pub group: Option<Box<str>>,
    pub target: Target,
}

impl Filter {
    /// Parses a topic filter.
    ///
    /// Errors: [`Reason::TOPIC_FILTER_INVALID`] for a filter that is neither a channel nor a pattern, such as
    /// `$SYS/#`.
    pub fn parse(filter: &str) -> Result<Self, Reason> {
        let invalid = Reason::TOPIC_FILTER_INVALID;
        let (group, filter) = match filter.strip_prefix(SHARE) {
            Some(rest) => {
                let (group, filter) = rest.split_once('/').ok_or(invalid)?;
                if group.is_empty() || group.len() > 255 || group.contains(['+', '#']) {
                    return Err(invalid);
                }
                (Some(group.into()), filter)
            }
            None => (None, filter),
        };
        let target = Target::parse(filter).map_err(|_| invalid)?;
        Ok(Self { group, target })
    }

    pub fn matches(&self, channel: &str) -> bool {
        match &self.target {
            Target::Channel(name) => name.as_str() == channel,
            Target::Pattern(pattern) => pattern.matches(channel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_groups_are_parsed() {
        let shared = Filter::parse("$share/g/cars/+").unwrap();
        assert_eq!((shared.group.as_deref(), shared.target.as_str()), (Some("g"), "cars/+"));
        assert!(shared.matches("cars/1") && !shared.matches("cars/1/x"));
        assert!(Filter::parse("#").unwrap().matches("a/b") && Filter::parse("a").unwrap().matches("a"));
        for invalid in
            ["", "/a", "a/", "a//b", "$SYS/#", "$share/g", "$share//a", "$share/+/a", "a#", "#/a", "a b", "ä"]
        {
            assert_eq!(Filter::parse(invalid), Err(Reason::TOPIC_FILTER_INVALID), "{invalid}");
        }
    }
}
