use millrace_protocol::{Epoch, Publication};
use serde::{Deserialize, Serialize};

use super::History;
use crate::{
    idempotency::{IdempotencyKeys, SavedKey},
    state::State,
};

/// A history as plain data, with which another process continues it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedHistory {
    epoch: Epoch,
    top: u64,
    top_time_ms: u64,
    trimmed_before_ms: u64,
    /// Oldest first; the last one has the offset `top`.
    log: Vec<Publication>,
    /// Oldest first.
    idempotency_keys: Vec<SavedKey>,
    state: Option<SavedState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedState {
    lost_deletions: u64,
    /// Entries that the log no longer holds, in the order of offsets.
    old: Vec<Publication>,
}

impl History {
    /// Returns the contents of this history. Cost: O(publications); payloads are not copied.
    pub fn save(&self) -> SavedHistory {
        let first = self.first();
        let state = self.state.as_deref().map(|state| SavedState {
            lost_deletions: state.lost_deletions(),
            old: state.entries_before(first).cloned().collect(),
        });
        SavedHistory {
            epoch: self.epoch,
            top: self.top,
            top_time_ms: self.top_time_ms,
            trimmed_before_ms: self.trimmed_before_ms,
            log: self.log.iter().cloned().collect(),
            idempotency_keys: self.keys.iter().flat_map(|keys| keys.save()).collect(),
            state,
        }
    }

    /// Continues a saved history. Returns `None` if the offsets of the log do not end at the top without a hole.
    pub fn restore(saved: SavedHistory) -> Option<Self> {
        let SavedHistory { epoch, top, top_time_ms, trimmed_before_ms, log, idempotency_keys, state } = saved;
        let first = (top + 1).checked_sub(log.len() as u64)?;
        if !log.iter().map(|publication| publication.offset).eq(first..=top) {
            return None;
        }
        let state = state.map(|SavedState { lost_deletions, old }| {
            let mut state = State::new(lost_deletions);
            for publication in &old {
                state.put(publication, 0);
                state.trimmed(publication);
            }
            log.iter().for_each(|publication| state.put(publication, first));
            Box::new(state)
        });
        let keys = (!idempotency_keys.is_empty()).then(|| Box::new(IdempotencyKeys::restore(idempotency_keys)));
        let mut history = Self { trimmed_before_ms, keys, state, ..Self::new(epoch) };
        log.into_iter().for_each(|publication| history.push(publication));
        (history.top, history.top_time_ms) = (top, top_time_ms);
        Some(history)
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{Kind, NewPublication, Since, session::Policy};

    use super::*;
    use crate::{Appended, Bounds, PageLimit};

    const BOUNDS: Bounds = Bounds { count_max: 5, bytes_max: 1000, age_max_ms: 1000, keys_max: 100 };
    const LIMIT: PageLimit = PageLimit { count: 100, bytes: 1 << 20 };

    fn keyed(key: &str, data: &str) -> NewPublication {
        NewPublication { key: Some(key.into()), ..NewPublication::new(Kind::Text, data) }
    }

    /// Returns a state with entries inside and outside of its log, a deletion, a time to live and an idempotency key.
    fn state() -> History {
        let mut history = History::new(Epoch(7));
        let mut append = |new: NewPublication| assert!(matches!(history.append(new, 10, &BOUNDS), Appended::New(_)));
        for i in 0..6 {
            append(keyed(&format!("key {i}"), "value"));
        }
        append(NewPublication::deletion("key 1".into()));
        append(NewPublication { ttl_ms: Some(50), ..keyed("key 2", "short") });
        append(NewPublication { idempotency_key: Some("once".into()), ..keyed("key 3", "value") });
        history
    }

    #[test]
    fn restored_history_continues_like_the_saved_one() {
        let mut one = state();
        let mut other = History::restore(one.save()).unwrap();
        assert_eq!((other.memory_bytes(), other.state_keys()), (one.memory_bytes(), one.state_keys()));
        let script: &[(u64, NewPublication)] = &[
            (11, NewPublication { idempotency_key: Some("once".into()), ..keyed("key 3", "again") }),
            (12, keyed("key 0", "new")),
            (13, NewPublication::deletion("key 4".into())),
            (14, keyed("key 9", "new")),
        ];
        for (now_ms, new) in script {
            let results =
                [&mut one, &mut other].map(|history| format!("{:?}", history.append(new.clone(), *now_ms, &BOUNDS)));
            assert_eq!(results[0], results[1]);
            for since in [Since::Earliest, Since::State, Since::Now, Since::Time(10)] {
                let pages =
                    [&mut one, &mut other].map(|history| history.page(since, Policy::Every, LIMIT, *now_ms, &BOUNDS));
                assert_eq!(pages[0], pages[1], "{since:?}");
            }
            assert_eq!(other.save(), one.save());
        }
        let expired = [&mut one, &mut other].map(|history| history.expire(100, &BOUNDS));
        assert!(expired[0].is_some() && expired[0] == expired[1]);
        assert_eq!(other.memory_bytes(), one.memory_bytes());
    }

    #[test]
    fn empty_history_keeps_its_top() {
        let mut one = History::new(Epoch(7));
        one.append(NewPublication::new(Kind::Text, "gone"), 5, &Bounds { keys_max: 0, ..BOUNDS });
        one.shrink(0);
        let other = History::restore(one.save()).unwrap();
        assert_eq!((other.top(), other.top_time_ms(), other.save()), (one.top(), 5, one.save()));
    }

    #[test]
    fn log_with_a_hole_is_refused() {
        let mut saved = state().save();
        saved.log.remove(1);
        assert_eq!(History::restore(saved).map(|history| history.top()), None);
        let saved = SavedHistory { top: 0, ..state().save() };
        assert_eq!(History::restore(saved).map(|history| history.top()), None);
    }
}
