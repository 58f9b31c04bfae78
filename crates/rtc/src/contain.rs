use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which calls a library that may panic on the input of a remote peer. `None`: it panicked. State that
/// `work` has changed must not be used any more after a panic.
pub fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    let outer = IS_CONTAINED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(outer);
    done.ok()
}

/// Returns whether a panic of this thread would be caught now and end only one peer. A panic hook checks this before it
/// prints; otherwise a remote peer could fill the log.
pub fn is_contained() -> bool {
    IS_CONTAINED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contained_panic_is_visible_during_call() {
        assert!(!is_contained());
        assert_eq!(contain(is_contained), Some(true));
        assert_eq!(contain(|| contain(|| 1).map(|one| (one, is_contained()))), Some(Some((1, true))));
        assert_eq!(contain(|| panic!("a test of what a panic leaves behind")), None::<()>);
        assert!(!is_contained());
    }
}
