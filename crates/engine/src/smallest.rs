use std::collections::BinaryHeap;

use millrace_protocol::ChannelName;

/// Selects the first names after a given one, in order, from names that arrive in any order.
///
/// Cost: O(log `max`) per name that is kept, one comparison for the others. Memory: `max` names.
pub(crate) struct Smallest<'a> {
    after: Option<&'a ChannelName>,
    max: usize,
    names: BinaryHeap<ChannelName>,
}

impl<'a> Smallest<'a> {
    pub fn new(after: Option<&'a ChannelName>, max: usize) -> Self {
        Self { after, max, names: BinaryHeap::new() }
    }

    /// Returns true if this name would be kept.
    pub fn wants(&self, name: &str) -> bool {
        self.after.is_none_or(|after| name > after.as_str())
            && (self.names.len() < self.max || self.names.peek().is_some_and(|last| name < last.as_str()))
    }

    pub fn offer(&mut self, name: &ChannelName) {
        if self.wants(name.as_str()) {
            if self.names.len() == self.max {
                self.names.pop();
            }
            self.names.push(name.clone());
        }
    }

    /// Returns the kept names in order.
    pub fn into_names(self) -> Vec<ChannelName> {
        self.names.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> ChannelName {
        ChannelName::parse(&format!("{n:03}")).unwrap()
    }

    #[test]
    fn pages_join_without_hole_or_overlap() {
        let names: Vec<ChannelName> = (0..100).map(|n| name(n * 37 % 100)).collect();
        let (mut seen, mut after) = (Vec::new(), None::<ChannelName>);
        loop {
            let mut page = Smallest::new(after.as_ref(), 7);
            names.iter().for_each(|name| page.offer(name));
            let page = page.into_names();
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            seen.extend(page);
        }
        assert_eq!(seen, (0..100).map(name).collect::<Vec<_>>());
    }

    #[test]
    fn page_of_no_names_is_empty() {
        let mut page = Smallest::new(None, 0);
        page.offer(&name(1));
        assert!(page.into_names().is_empty());
    }
}
