use std::{cell::RefCell, rc::Rc, time::Duration};

use millrace_delivery::ConnId;
use millrace_mqtt::{Filter, Options, Reason, encode};
use millrace_protocol::{
    Code, Error, Since,
    session::{Policy, Subscription, Target},
};

use super::Host;
use crate::connection::mqtt::Link;

/// Time that a subscription waits for the retained publications of the engine.
const LOAD: Duration = Duration::from_secs(5);

impl Host {
    /// Handles SUBSCRIBE. Publications may precede the answer, which MQTT allows.
    pub(super) async fn subscribe(
        self: Rc<Self>,
        id: ConnId,
        link: Rc<RefCell<Link>>,
        packet: u16,
        identifier: u32,
        filters: Vec<(String, Options)>,
    ) {
        // After a start, the retained publications may not have arrived from the engine yet.
        let mut loaded = self.node.has_retained.subscribe();
        let _ = tokio::time::timeout(LOAD, loaded.wait_for(|loaded| *loaded)).await;
        let mut outcomes = Vec::with_capacity(filters.len());
        let mut scans = Vec::new();
        for (filter, options) in filters {
            let outcome = match Filter::parse(&filter) {
                Ok(filter) => self.subscribe_one(id, &link, &filter, options, identifier).await.map(|is_new| {
                    scans.push((filter, is_new));
                    options.qos
                }),
                Err(reason) => Err(reason),
            };
            outcomes.push(outcome);
        }
        {
            let mut link = link.borrow_mut();
            let version = link.version;
            encode::sub_ack(link.out(), version, packet, &outcomes);
            if let Some(session) = &mut link.session {
                for (filter, is_new) in scans {
                    let index = session.subscriptions().iter().position(|own| own.filter == filter);
                    index.into_iter().for_each(|index| session.send_retained(index, is_new));
                }
            }
        }
        self.send_more(id, &link, false);
    }

    /// Subscribes, or changes the options of a subscription. Returns whether it is new.
    ///
    /// Errors: the reason of the refusal.
    async fn subscribe_one(
        &self,
        id: ConnId,
        link: &Rc<RefCell<Link>>,
        filter: &Filter,
        options: Options,
        identifier: u32,
    ) -> Result<bool, Reason> {
        if filter.group.is_some() && options.no_local {
            return Err(Reason::PROTOCOL_ERROR);
        }
        self.check(id, &filter.target, Since::Now).await.map_err(|error| refused(&error))?;
        let is_new = {
            let mut link = link.borrow_mut();
            let session = link.session.as_mut().ok_or(Reason::UNSPECIFIED)?;
            // The hub counts its readers only, and several subscriptions may share one.
            let max = self.event_loop.admission().config().subscriptions_max;
            let is_known = session.subscriptions().iter().any(|own| own.filter == *filter);
            if !is_known && session.subscriptions().len() >= max {
                return Err(Reason::QUOTA_EXCEEDED);
            }
            session.subscribe(filter, options, identifier).1
        };
        if is_new {
            self.join(id, link, filter);
            if let Err(error) = self.attach(id, link, filter, false).await {
                if let Some(session) = &mut link.borrow_mut().session {
                    session.unsubscribe(filter);
                }
                return Err(refused(&error));
            }
        }
        Ok(is_new)
    }

    /// Errors: those of the permissions; those of the app's back end.
    async fn check(&self, id: ConnId, target: &Target, since: Since) -> Result<(), Error> {
        let (event_loop, positions) = (&self.event_loop, Default::default());
        let caller = event_loop.shard().sockets().grants.caller(id)?.clone();
        let asked = Subscription { target: target.clone(), since, positions, policy: Policy::Every };
        event_loop.admission().may_subscribe(&caller, || event_loop.client(id), &asked).await
    }

    /// Joins the group of a shared subscription.
    fn join(&self, id: ConnId, link: &Rc<RefCell<Link>>, filter: &Filter) {
        let Some(group) = &filter.group else { return };
        self.shared.borrow_mut().insert(id);
        let membership = self.node.group(group, filter.target.as_str()).join(self.node.next_member(), u64::MAX);
        if let Some(own) = link.borrow_mut().session.as_mut().and_then(|session| session.subscription_mut(filter)) {
            own.membership = Some(membership);
        }
    }

    /// Makes the connection a reader for a subscription, unless it already reads everything that matches.
    ///
    /// Errors: those of the hub and the engine.
    async fn attach(
        &self,
        id: ConnId,
        link: &Rc<RefCell<Link>>,
        filter: &Filter,
        is_resumed: bool,
    ) -> Result<(), Error> {
        let shard = self.event_loop.shard();
        let with = |work: &mut dyn FnMut(&mut millrace_mqtt::Session)| {
            if let Some(session) = &mut link.borrow_mut().session {
                work(session);
            }
        };
        let attached = match &filter.target {
            Target::Channel(channel) => {
                let position = link.borrow().session.as_ref().and_then(|session| session.position(channel));
                let since = position.filter(|_| is_resumed).map_or(Since::Now, Since::Position);
                let preamble = |starts: &[millrace_node::Start]| {
                    for start in starts {
                        if let Since::Position(at) = start.position {
                            with(&mut |session| session.begin_at(&start.channel, at));
                        }
                    }
                    Vec::new()
                };
                shard.subscribe(id, &[(channel.clone(), since)], Policy::Every, preamble).await
            }
            Target::Pattern(pattern) => {
                let (since, positions) = {
                    let link = link.borrow();
                    let own = |session: &millrace_mqtt::Session| {
                        let own = session.subscriptions().iter().find(|own| own.filter == *filter)?;
                        Some((Since::Time(own.since_ms), session.positions(&filter.target)))
                    };
                    let resumed = link.session.as_ref().filter(|_| is_resumed).and_then(own);
                    resumed.unwrap_or((Since::Now, Default::default()))
                };
                let preamble = |since_ms| {
                    with(&mut |session| {
                        if let Some(own) = session.subscription_mut(filter) {
                            own.since_ms = since_ms;
                        }
                    });
                    Vec::new()
                };
                shard.subscribe_pattern(id, pattern, since, positions, Policy::Every, preamble).await
            }
        };
        let is_attached = match attached {
            Ok(()) => true,
            // Another subscription of the session covers this one.
            Err(error) if error.code == Code::AlreadySubscribed => false,
            Err(error) => return Err(error),
        };
        with(&mut |session| {
            let Some(own) = session.subscription_mut(filter) else { return };
            own.is_attached = is_attached;
            own.membership.iter().for_each(|membership| membership.begin(shard.engine.now_ms()));
        });
        Ok(())
    }

    /// Handles UNSUBSCRIBE.
    pub(super) async fn unsubscribe(
        self: Rc<Self>,
        id: ConnId,
        link: Rc<RefCell<Link>>,
        packet: u16,
        filters: Vec<String>,
    ) {
        let mut outcomes = Vec::with_capacity(filters.len());
        for filter in filters {
            let outcome = match Filter::parse(&filter) {
                Ok(filter) => self.unsubscribe_one(id, &link, &filter).await,
                Err(reason) => reason,
            };
            outcomes.push(outcome);
        }
        {
            let mut link = link.borrow_mut();
            let version = link.version;
            encode::unsub_ack(link.out(), version, packet, &outcomes);
        }
        self.event_loop.shard().sockets().flush_mqtt(id);
    }

    async fn unsubscribe_one(&self, id: ConnId, link: &Rc<RefCell<Link>>, filter: &Filter) -> Reason {
        let (left, others) = {
            let mut link = link.borrow_mut();
            let Some(session) = &mut link.session else { return Reason::NO_SUBSCRIPTION_EXISTED };
            let Some(left) = session.unsubscribe(filter) else { return Reason::NO_SUBSCRIPTION_EXISTED };
            let others = session.subscriptions().iter().filter(|own| !own.is_attached);
            (left, others.map(|own| own.filter.clone()).collect::<Vec<_>>())
        };
        if left.is_attached {
            let _ = self.event_loop.shard().with(|hub, _| hub.unsubscribe(id, &filter.target));
            // Subscriptions that this one has covered need readers of their own.
            for other in others {
                if let Err(error) = self.attach(id, link, &other, true).await {
                    tracing::debug!(%error, "cannot continue a subscription of an MQTT client");
                }
            }
        }
        Reason::SUCCESS
    }

    /// Continues the subscriptions of a resumed session. A subscription that the token no longer permits ends.
    pub(super) async fn resubscribe(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>) {
        let filters: Vec<Filter> = {
            let link = link.borrow();
            let of = |session: &millrace_mqtt::Session| {
                session.subscriptions().iter().map(|own| own.filter.clone()).collect()
            };
            link.session.as_ref().map(of).unwrap_or_default()
        };
        for filter in filters {
            let continued = match self.check(id, &filter.target, Since::Now).await {
                Ok(()) => {
                    self.join(id, link, &filter);
                    self.attach(id, link, &filter, true).await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = continued {
                tracing::debug!(%error, "a subscription of a resumed MQTT session ends");
                if let Some(session) = &mut link.borrow_mut().session {
                    session.unsubscribe(&filter);
                }
            }
        }
        self.send_more(id, link, false);
    }
}

fn refused(error: &Error) -> Reason {
    match error.code {
        Code::BadChannel => Reason::TOPIC_FILTER_INVALID,
        _ => Reason::of(error),
    }
}
