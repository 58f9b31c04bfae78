use std::{cell::RefCell, collections::BTreeSet};

use millrace_delivery::ConnId;
use tokio::{sync::Notify, time::Instant};

/// Timers of the connections. Each connection has at most one entry. The entry moves only when it has fired, or if
/// it would fire too late.
#[derive(Default)]
pub(crate) struct ConnectionTimers {
    due: RefCell<BTreeSet<(Instant, ConnId)>>,
    earlier: Notify,
}

impl ConnectionTimers {
    pub fn set(&self, id: ConnId, old: Option<Instant>, at: Instant) {
        let mut due = self.due.borrow_mut();
        if let Some(old) = old {
            due.remove(&(old, id));
        }
        due.insert((at, id));
        if due.first() == Some(&(at, id)) {
            self.earlier.notify_one();
        }
    }

    /// Waits until a connection is due, and returns it. Only one task may call it.
    pub async fn next(&self) -> ConnId {
        loop {
            let first = self.due.borrow().first().copied();
            let Some((at, id)) = first else {
                self.earlier.notified().await;
                continue;
            };
            if at <= Instant::now() {
                self.due.borrow_mut().remove(&(at, id));
                return id;
            }
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = self.earlier.notified() => {}
            }
        }
    }
}
