use std::{rc::Rc, sync::PoisonError, time::Duration};

use millrace_delivery::{ConnId, PageLimit};
use millrace_mqtt::{Reason, Session};
use millrace_protocol::{ChannelName, Position, Since, encoding::record, session::Policy};
use tokio::{sync::mpsc, time::sleep};

use super::Host;
use crate::connection::mqtt::Node;

/// Interval of the check whether clients are silent.
const TICK: Duration = Duration::from_secs(1);
/// Page of the state of retained publications.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 1 << 20 };
/// One publication of history.
const ONE: PageLimit = PageLimit { count: 1, bytes: usize::MAX };
/// Pause after a failed read of the retained publications.
const RETRY: Duration = Duration::from_secs(1);

impl Host {
    /// Runs the work of the shard beside its connections. Never returns.
    pub async fn run(self: Rc<Self>) {
        let closing = self.node.take_closing(self.event_loop.shard().id);
        let is_first = self.event_loop.shard().id == 0;
        tokio::join!(self.close_silent(), self.close_taken_over(closing), async {
            // One shard works for the whole node.
            if is_first {
                tokio::join!(self.publish_wills(), self.follow_retained());
            }
        });
    }

    /// Closes the connections whose clients were silent for too long.
    async fn close_silent(&self) {
        loop {
            sleep(TICK).await;
            let now_s = self.now_s();
            let mut due = Vec::new();
            while let Some(first) = self.silence.borrow_mut().first_entry().filter(|first| *first.key() <= now_s) {
                let at_s = *first.key();
                due.extend(first.remove().into_iter().map(|id| (id, at_s)));
            }
            for (id, at_s) in due {
                self.check_silence(id, at_s, now_s);
            }
            self.send_adopted().await;
        }
    }

    /// Sends publications of members that have left a group of a shared subscription, out of history.
    async fn send_adopted(&self) {
        let connections: Vec<ConnId> = self.shared.borrow().iter().copied().collect();
        for id in connections {
            let link = self.link(id).filter(|link| link.borrow().session.as_ref().is_some_and(Session::shares));
            let Some(link) = link else {
                self.shared.borrow_mut().remove(&id);
                continue;
            };
            let adopted = link.borrow().session.as_ref().map(Session::take_adopted).unwrap_or_default();
            for (channel, position) in adopted {
                let before = Since::Position(Position { offset: position.offset - 1, ..position });
                let page = self.event_loop.shard().engine.page(&channel, before, Policy::Every, ONE).await;
                let publication = page.ok().and_then(|page| page.publications.into_iter().next());
                // It may have left history meanwhile.
                let Some(publication) = publication.filter(|found| found.offset == position.offset) else { continue };
                let mut bytes = Vec::new();
                record::encode_publication(&mut bytes, &channel, position.epoch, &publication);
                let mut link = link.borrow_mut();
                let was_behind = link.is_behind;
                if link.take_records(&bytes) == 0
                    && let Some(session) = &link.session
                {
                    session.adopt_later(&channel, position);
                }
                link.is_behind = was_behind;
            }
            self.event_loop.shard().sockets().flush_mqtt(id);
        }
    }

    /// Handles the entry of a connection that was due at `at_s`.
    fn check_silence(&self, id: ConnId, at_s: u32, now_s: u32) {
        let Some(link) = self.link(id).filter(|link| link.borrow().check_s == at_s) else { return };
        let (heard_s, max_s, is_connected) = {
            let link = link.borrow();
            (link.heard_s, link.silence_max_s, link.session.is_some())
        };
        match max_s {
            // A client without keep alive is never checked again.
            0 => {}
            _ if now_s.saturating_sub(heard_s) > max_s || (!is_connected && now_s.saturating_sub(heard_s) >= max_s) => {
                if !is_connected {
                    self.event_loop.admission().limits.count(crate::admission::limits::Limit::HeaderTimeout);
                }
                self.close(id, Reason::KEEP_ALIVE_TIMEOUT);
            }
            _ => self.check_silence_at(id, (heard_s + max_s + 1).max(now_s + 1)),
        }
    }

    /// Closes the connections whose sessions were taken over.
    async fn close_taken_over(&self, closing: Option<mpsc::UnboundedReceiver<ConnId>>) {
        let Some(mut closing) = closing else { return };
        while let Some(id) = closing.recv().await {
            self.close(id, Reason::SESSION_TAKEN_OVER);
        }
    }

    async fn publish_wills(&self) {
        loop {
            let (due, next_ms) = {
                let mut registry = self.node.registry();
                (registry.take_due(millrace_engine::unix_ms()), registry.next_will_ms())
            };
            for will in due {
                self.publish_will(will).await;
            }
            let wait = next_ms.map_or(60_000, |at_ms| at_ms.saturating_sub(millrace_engine::unix_ms()).min(60_000));
            let _ = tokio::time::timeout(Duration::from_millis(wait), self.node.has_will.notified()).await;
        }
    }

    /// Keeps the copy of the retained publications current.
    async fn follow_retained(&self) {
        let (channel, mut since) = (Node::retained_channel(), Since::State);
        let shard = self.event_loop.shard();
        loop {
            let waiting = shard.wait(std::slice::from_ref(&channel));
            loop {
                match shard.engine.page(&channel, since, Policy::Every, PAGE).await {
                    Ok(page) => {
                        let is_anew = since != Since::State && page.gap.is_some();
                        let mut retained = self.node.retained.write().unwrap_or_else(PoisonError::into_inner);
                        if is_anew {
                            retained.clear();
                        }
                        for publication in &page.publications {
                            let name = publication.key.as_deref().map(ChannelName::parse);
                            if let Some(Ok(name)) = name {
                                let position = Position { epoch: page.end.epoch, offset: publication.offset };
                                retained.apply(&name, publication.clone(), position);
                            }
                        }
                        since = match page.next() {
                            Since::Position(at) => Since::StateOr(at),
                            place => place,
                        };
                        if matches!(since, Since::StateOr(_)) && !page.has_more() {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the retained publications cannot be read; trying again");
                        sleep(RETRY).await;
                    }
                }
            }
            self.node.has_retained.send_replace(true);
            waiting.woken().await;
        }
    }
}
