//! Waits for the next publication of channels, without a subscription: the waits of long polls.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use millrace_delivery::{ConnId, WaiterId};
use millrace_protocol::ChannelName;
use tokio::sync::Notify;

use super::{Shard, Sockets};

/// Waits of one shard in progress, and those that have ended but are not reported yet.
#[derive(Default)]
pub(super) struct Waits {
    /// Wakers of the waiting tasks. `None` until the task is polled.
    wakers: RefCell<HashMap<u64, Option<Waker>>>,
    next: Cell<u64>,
    /// Connections that waited and were woken; see [`Shard::woken`].
    woken: RefCell<Vec<Woken>>,
    has_woken: Notify,
}

impl Waits {
    /// Ends a wait. `since`: the time at which the publication that ends it was accepted, if any.
    pub(super) fn end(&self, id: WaiterId, since: Option<Instant>) {
        match id {
            WaiterId::Task(id) => {
                if let Some(waker) = self.wakers.borrow_mut().remove(&id).flatten() {
                    waker.wake();
                }
            }
            WaiterId::Conn(conn) => {
                let mut woken = self.woken.borrow_mut();
                if woken.is_empty() {
                    self.has_woken.notify_one();
                }
                woken.push(Woken { conn, since });
            }
        }
    }
}

/// A connection whose wait has ended; see [`Shard::woken`].
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    pub conn: ConnId,
    /// Time at which the oldest publication of the turn was accepted. `None` if no publication ended the wait.
    pub since: Option<Instant>,
}

/// A wait for a publication. Dropping it ends the wait.
pub struct Waiting<S: Sockets> {
    shard: Rc<Shard<S>>,
    id: u64,
}

impl<S: Sockets> Waiting<S> {
    /// Returns when a publication has arrived since [`Shard::wait`], or the server drains.
    pub async fn woken(&self) {
        poll_fn(|cx: &mut Context<'_>| match self.shard.waits.wakers.borrow_mut().get_mut(&self.id) {
            None => Poll::Ready(()),
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }
}

impl<S: Sockets> Drop for Waiting<S> {
    fn drop(&mut self) {
        self.shard.waits.wakers.borrow_mut().remove(&self.id);
        self.shard.with(|hub, _| hub.forget(WaiterId::Task(self.id)));
    }
}

impl<S: Sockets> Shard<S> {
    /// Starts a wait for the next publication of any of these channels. Read the history after this call, never
    /// before.
    pub fn wait(self: &Rc<Self>, names: &[ChannelName]) -> Waiting<S> {
        let id = self.waits.next.replace(self.waits.next.get() + 1);
        self.waits.wakers.borrow_mut().insert(id, None);
        self.with(|hub, _| hub.wait(WaiterId::Task(id), names));
        Waiting { shard: self.clone(), id }
    }

    /// Starts a wait for a connection without a task. [`Shard::woken`] returns its id after the next publication of
    /// any of these channels. Read the history after this call, never before. The wait ends with `Hub::forget` or
    /// `Hub::disconnect`.
    pub fn wait_conn(self: &Rc<Self>, conn: ConnId, names: &[ChannelName]) {
        self.with(|hub, _| {
            // A pending wake-up may belong to an earlier wait.
            hub.forget(WaiterId::Conn(conn));
            hub.wait(WaiterId::Conn(conn), names);
        });
    }

    /// Returns the connections woken since the last call; waits while there are none. Only one task of the shard may
    /// call it.
    pub async fn woken(&self) -> Vec<Woken> {
        loop {
            let woken = self.waits.woken.take();
            if !woken.is_empty() {
                return woken;
            }
            self.waits.has_woken.notified().await;
        }
    }

    /// Returns every waiter of the shard.
    pub fn waiters(&self) -> Vec<WaiterId> {
        self.hub.borrow().waiters().collect()
    }

    /// Ends a wait as a publication would. An unknown waiter is ignored.
    pub fn wake(self: &Rc<Self>, id: WaiterId) {
        self.with(|hub, _| hub.forget(id));
        self.waits.end(id, self.accepted.get());
    }
}
