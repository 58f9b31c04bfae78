use std::collections::HashMap;

use crate::{
    Pattern,
    channel::{is_internal, roster_of},
};

/// Map from patterns to values. A lookup by channel name finds all patterns that match.
///
/// Cost of a lookup for a name of n levels: at most 2^(n+1) steps, and at most the number of levels in all
/// patterns. The number of patterns that do not match does not matter.
#[derive(Debug)]
pub struct PatternMap<V> {
    root: Level<V>,
    len: usize,
}

/// Node of the map: the patterns that share the same leading levels.
#[derive(Debug)]
struct Level<V> {
    named: HashMap<Box<str>, Level<V>>,
    /// Patterns that continue with `+`.
    any: Option<Box<Level<V>>>,
    /// Pattern that ends at this level, with its value.
    here: Option<(Pattern, V)>,
    /// Pattern that ends here with `#`, with its value.
    rest: Option<(Pattern, V)>,
}

impl<V> Default for Level<V> {
    fn default() -> Self {
        Self { named: HashMap::new(), any: None, here: None, rest: None }
    }
}

impl<V> Default for PatternMap<V> {
    fn default() -> Self {
        Self { root: Level::default(), len: 0 }
    }
}

impl<V> PatternMap<V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, pattern: &Pattern) -> Option<&V> {
        let mut at = &self.root;
        for level in pattern.as_str().split('/') {
            at = match level {
                "#" => return at.rest.as_ref().map(|(_, value)| value),
                "+" => at.any.as_ref()?,
                name => at.named.get(name)?,
            };
        }
        at.here.as_ref().map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, pattern: &Pattern) -> Option<&mut V> {
        self.get(pattern)?;
        Some(self.get_or_insert_with(pattern, || unreachable!("it is there")))
    }

    pub fn get_or_insert_with(&mut self, pattern: &Pattern, value: impl FnOnce() -> V) -> &mut V {
        let mut at = &mut self.root;
        let mut ends_open = false;
        for level in pattern.as_str().split('/') {
            at = match level {
                "#" => {
                    ends_open = true;
                    break;
                }
                "+" => at.any.get_or_insert_default(),
                name => at.named.entry(name.into()).or_default(),
            };
        }
        let place = if ends_open { &mut at.rest } else { &mut at.here };
        self.len += usize::from(place.is_none());
        &mut place.get_or_insert_with(|| (pattern.clone(), value())).1
    }

    pub fn remove(&mut self, pattern: &Pattern) -> Option<V> {
        let levels: Vec<&str> = pattern.as_str().split('/').collect();
        let removed = self.root.remove(&levels);
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// Calls `on` for each pattern that matches, in unspecified order, until `on` returns false.
    pub fn matching<'a>(&'a self, name: &str, mut on: impl FnMut(&'a Pattern, &'a V) -> bool) {
        // Most maps are empty, and callers look up every channel.
        if !self.is_empty() && !is_internal(name) {
            match roster_of(name) {
                None => self.root.matching(Some(name), &mut on),
                Some(_) => {
                    self.root.matching(Some(name), &mut |pattern, value| !pattern.may_match(name) || on(pattern, value))
                }
            };
        }
    }

    /// Returns true if at least one pattern matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut found = false;
        self.matching(name, |_, _| {
            found = true;
            false
        });
        found
    }
}

impl<V> Level<V> {
    fn is_empty(&self) -> bool {
        self.named.is_empty() && self.any.is_none() && self.here.is_none() && self.rest.is_none()
    }

    fn remove(&mut self, levels: &[&str]) -> Option<V> {
        let Some((first, further)) = levels.split_first() else { return self.here.take().map(|(_, value)| value) };
        match *first {
            "#" => self.rest.take().map(|(_, value)| value),
            "+" => {
                let removed = self.any.as_mut()?.remove(further);
                if self.any.as_ref().is_some_and(|any| any.is_empty()) {
                    self.any = None;
                }
                removed
            }
            name => {
                let level = self.named.get_mut(name)?;
                let removed = level.remove(further);
                if level.is_empty() {
                    self.named.remove(name);
                }
                removed
            }
        }
    }

    /// Visits the matching patterns. `name` holds the levels that are left, `None` after the last one. Returns
    /// false once `on` returned false.
    fn matching<'a>(&'a self, name: Option<&str>, on: &mut impl FnMut(&'a Pattern, &'a V) -> bool) -> bool {
        if let Some((pattern, value)) = &self.rest
            && !on(pattern, value)
        {
            return false;
        }
        let Some(name) = name else { return self.here.as_ref().is_none_or(|(pattern, value)| on(pattern, value)) };
        let (level, further) = name.split_once('/').map_or((name, None), |(level, further)| (level, Some(further)));
        let mut next = |level: Option<&'a Level<V>>| level.is_none_or(|level| level.matching(further, on));
        next(self.named.get(level)) && next(self.any.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    /// Returns all texts of one to three levels made of these levels.
    fn texts(levels: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut last: Vec<String> = vec![String::new()];
        for _ in 0..3 {
            let longer = last.iter().flat_map(|text| levels.iter().map(move |level| format!("{text}/{level}")));
            last = longer.collect();
            all.extend(last.iter().map(|text| text[1..].to_owned()));
        }
        all
    }

    #[test]
    fn pattern_map_finds_exactly_the_matches() {
        let patterns: Vec<Pattern> =
            texts(&["a", "b", "+", "#"]).iter().filter_map(|text| Pattern::parse(text).ok()).collect();
        let mut map = PatternMap::default();
        for (i, pattern) in patterns.iter().enumerate() {
            *map.get_or_insert_with(pattern, || 0) = i;
        }
        assert_eq!(map.len(), patterns.len());
        for gone in 0..=patterns.len() {
            for name in texts(&["a", "b", "c"]) {
                let mut found = Vec::new();
                map.matching(&name, |_, i| {
                    found.push(*i);
                    true
                });
                found.sort_unstable();
                let expected: Vec<usize> = (gone..patterns.len()).filter(|i| patterns[*i].matches(&name)).collect();
                assert_eq!(found, expected, "{name}");
                assert_eq!(map.matches(&name), !expected.is_empty());
            }
            if let Some(pattern) = patterns.get(gone) {
                assert_eq!(map.get(pattern), Some(&gone));
                assert_eq!(map.remove(pattern), Some(gone));
                assert_eq!(map.get(pattern), None);
                assert_eq!(map.remove(pattern), None);
            }
        }
        assert!(map.is_empty() && map.root.is_empty(), "nothing is left behind");
    }

    #[test]
    fn lookup_without_match_is_cheap() {
        let mut map = PatternMap::default();
        for i in 0..100_000 {
            map.get_or_insert_with(&pattern(&format!("users/{i}/+/#")), || ());
        }
        // Each lookup takes a few steps; 10^10 pattern comparisons would take minutes.
        let found = (0..100_000).filter(|i| map.matches(&format!("users/{i}/inbox"))).count();
        assert_eq!(found, 100_000);
        assert!(!map.matches("cars/1/telemetry"));
    }
}
