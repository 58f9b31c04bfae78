//! Follows all cars while this node is the one that does so.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use millrace_driving::{Car, Drive, Event, Observed};
use millrace_engine::{Engine, Newest, leads};
use millrace_node::{ChannelEvent, Delivery, Router};
use millrace_protocol::{ChannelName, Error, Pattern, Position, Publication, Since, session::Target};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use super::{
    channels::{ALERTS, DRIVES, GEOFENCES},
    metrics::Metrics,
    notice::{Notify, notice},
    rules::Rules,
    store::{Missed, Store, events_of},
    tracked::{Place, Tracked, is_alert},
};

/// Interval between two looks at the geofences, at silent cars, and at which node follows the cars.
const POLL: Duration = Duration::from_secs(1);
/// Time after which this node checks that it still follows the cars before it publishes an event: the process may have
/// been suspended, and another node may follow them.
const TRUST: Duration = Duration::from_secs(2);
/// Cars whose records are read at the same time when this node begins to follow them.
const READS: usize = 128;
/// Channels that are listed at once.
const CHANNELS: usize = 1000;
/// A car without a stored state is followed from its records of this time on: they may have arrived while no node
/// followed the cars, or just before the death of the node that did.
const FIRST_MS: u64 = 60 * 1000;
/// Time after which a changed car is stored, and its drive in progress is published. After a restart, the records of
/// this time are read again.
const STORE_AFTER: Duration = Duration::from_secs(10);
/// Maximum time that the end takes.
const LEAVE: Duration = Duration::from_secs(2);
/// Time for which drives and alerts are kept.
const DRIVES_MS: u64 = 90 * DAY_MS;
const ALERTS_MS: u64 = DAY_MS;
/// Age from which an event is no longer notified, for example one that a gateway has stored.
const NOTICE_AGE_MAX_MS: u64 = 60 * 60 * 1000;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Follows the cars whenever this node leads, until `stopped`.
pub async fn run(
    mut rules: Rules,
    engine: Arc<dyn Engine>,
    router: Arc<Router>,
    metrics: Arc<Metrics>,
    notify: Option<Arc<dyn Notify>>,
    mut stopped: watch::Receiver<bool>,
) {
    while !*stopped.borrow() {
        if leads(&*engine).await {
            let mut turn = Turn::new(&mut rules, &metrics, engine.clone(), router.clone(), notify.clone());
            metrics.is_following.store(true, Relaxed);
            tracing::info!("this node follows the cars of CarCare");
            let ended = turn.run(&mut stopped).await;
            turn.watch(false);
            metrics.is_following.store(false, Relaxed);
            metrics.cars.store(0, Relaxed);
            if let Err(error) = ended {
                tracing::debug!(%error, "another node follows the cars, or the engine does not answer");
            }
        }
        let _ = timeout(POLL, stopped.wait_for(|stopped| *stopped)).await;
    }
}

/// One period in which this node follows the cars.
struct Turn<'a> {
    rules: &'a mut Rules,
    metrics: &'a Metrics,
    store: Store,
    engine: Arc<dyn Engine>,
    router: Arc<Router>,
    notify: Option<Arc<dyn Notify>>,
    pattern: Pattern,
    cars: HashMap<String, Tracked>,
    drives: ChannelName,
    alerts: ChannelName,
    geofences: ChannelName,
    /// Where the next read of the geofences begins.
    since: Since,
    /// True once a car was left out, because there are too many.
    is_full: bool,
    /// Entry of this node as the one that follows the cars.
    term: Option<Position>,
    /// Time of its last renewal.
    renewed: Instant,
}

impl<'a> Turn<'a> {
    fn new(
        rules: &'a mut Rules,
        metrics: &'a Metrics,
        engine: Arc<dyn Engine>,
        router: Arc<Router>,
        notify: Option<Arc<dyn Notify>>,
    ) -> Self {
        let name = |name| ChannelName::parse(name).expect("a channel name");
        rules.clear_geofences();
        Self {
            rules,
            metrics,
            store: Store::new(engine.clone()),
            engine,
            router,
            notify,
            pattern: Pattern::parse("cars/+/telemetry").expect("a pattern"),
            cars: HashMap::new(),
            drives: name(DRIVES),
            alerts: name(ALERTS),
            geofences: name(GEOFENCES),
            since: Since::State,
            is_full: false,
            term: None,
            renewed: Instant::now(),
        }
    }

    /// Begins or ends the delivery of all records to this node.
    fn watch(&self, is_read: bool) {
        let target = Target::Pattern(self.pattern.clone());
        self.router.set_service_reader(&self.pattern, is_read, |is_read| self.engine.watch(&target, is_read));
    }

    /// Follows all cars until the turn ends.
    ///
    /// Errors: those of the engine; `precondition_failed` if another node follows the cars.
    async fn run(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<(), Error> {
        let Some(mailbox) = self.router.service().cloned() else { return Ok(()) };
        self.term = self.store.begin_term().await?;
        self.renewed = Instant::now();
        self.watch(true);
        self.engine.joined(&self.pattern).await?;
        self.read_geofences().await?;
        self.take_over().await?;
        let (mut looked, mut deliveries) = (Instant::now(), Vec::new());
        loop {
            tokio::select! {
                () = mailbox.filled() => {}
                () = sleep_until(looked + POLL) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {
                    let _ = timeout(LEAVE, self.store_changed(Duration::ZERO)).await;
                    return Ok(());
                }
            }
            // This comes before the deliveries, because the process may have been suspended.
            let is_due = looked.elapsed() >= POLL;
            if is_due {
                looked = Instant::now();
                if !leads(&*self.engine).await {
                    return Ok(());
                }
                self.renew().await?;
            }
            (deliveries, _) = mailbox.take(deliveries);
            for delivery in deliveries.drain(..) {
                self.deliver(&delivery).await?;
            }
            if is_due {
                self.read_geofences().await?;
                self.end_silent().await?;
                self.store_changed(STORE_AFTER).await?;
                self.metrics.cars.store(self.cars.len() as u64, Relaxed);
            }
        }
    }

    /// Checks that this node still follows the cars. Errors: see [`Store::renew_term`].
    async fn renew(&mut self) -> Result<(), Error> {
        self.term = self.store.renew_term(self.term).await?;
        self.renewed = Instant::now();
        Ok(())
    }

    /// Continues with all stored cars, from their first record that the state of the car does not contain.
    async fn take_over(&mut self) -> Result<(), Error> {
        let stored = self.store.cars().await?;
        let store = self.store.clone();
        let mut read = stream::iter(stored)
            .map(|stored| {
                let store = store.clone();
                async move {
                    let missed = store.missed(&stored.id, Since::Position(stored.at)).await?;
                    Ok::<_, Error>((stored, missed))
                }
            })
            .buffered(READS);
        while let Some((stored, missed)) = read.try_next().await? {
            self.cars.insert(stored.id.clone(), Tracked::new(stored.car, stored.at, Some(stored.entry)));
            self.take_missed(&stored.id, missed).await?;
        }
        self.find_new().await
    }

    /// Finds cars whose first records have arrived while no node followed the cars, or were not stored.
    async fn find_new(&mut self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let names = self.engine.channels(&self.pattern, after.as_ref(), CHANNELS).await?;
            let is_new = |name: &&ChannelName| car_of(name).is_some_and(|id| !self.cars.contains_key(id));
            let new: Vec<ChannelName> = names.iter().filter(is_new).cloned().collect();
            let engine = self.engine.clone();
            let mut read = stream::iter(new)
                .map(|name| {
                    let newest = engine.newest(&name);
                    async move { Ok::<_, Error>((name, newest.await?)) }
                })
                .buffered(READS);
            while let Some((name, Newest { top, publication })) = read.try_next().await? {
                let is_recent = |record: &Publication| record.time_ms + FIRST_MS > self.engine.now_ms();
                let (Some(id), Some(record)) = (car_of(&name), publication.filter(is_recent)) else { continue };
                if self.has_room() {
                    let before = Position { offset: top.offset.saturating_sub(1), ..top };
                    self.begin(id, before, &record).await?;
                }
            }
            if names.len() < CHANNELS {
                return Ok(());
            }
            after = names.last().cloned();
        }
    }

    /// Returns true if another car can be followed; logs the first time that none can.
    fn has_room(&mut self) -> bool {
        let has_room = self.cars.len() < self.rules.cars_max;
        if !has_room && !std::mem::replace(&mut self.is_full, true) {
            let max = self.rules.cars_max;
            tracing::warn!(max, "too many cars; further ones get no driving feedback: raise carcare.cars_max");
        }
        has_room
    }

    async fn read_geofences(&mut self) -> Result<(), Error> {
        let (changes, since, _) = self.store.changes(&self.geofences, self.since).await?;
        self.since = since;
        for change in changes {
            let Some(key) = change.key.as_deref() else { continue };
            self.rules.set_geofence(key, (!change.is_deletion).then(|| change.data()));
        }
        Ok(())
    }

    async fn deliver(&mut self, delivery: &Delivery) -> Result<(), Error> {
        let Some(id) = car_of(&delivery.route.name) else { return Ok(()) };
        let (epoch, record) = match &delivery.event {
            ChannelEvent::Published(epoch, record) => (*epoch, record),
            ChannelEvent::Moved(_) => return if self.cars.contains_key(id) { self.catch_up(id).await } else { Ok(()) },
        };
        let position = Position { epoch, offset: record.offset };
        if !self.cars.contains_key(id) {
            if !self.has_room() {
                self.metrics.unfollowed.fetch_add(1, Relaxed);
                return Ok(());
            }
            let before = Position { epoch, offset: record.offset.saturating_sub(1) };
            return self.begin(id, before, record).await;
        }
        match self.cars.get(id).map(|tracked| tracked.place_of(position)) {
            Some(Place::Next) => self.take(id, position, record).await,
            Some(Place::Later) => self.catch_up(id).await,
            Some(Place::Known) | None => Ok(()),
        }
    }

    /// Begins to follow a car, whose log ends at `before` without the record.
    async fn begin(&mut self, id: &str, before: Position, record: &Publication) -> Result<(), Error> {
        self.cars.insert(id.to_owned(), Tracked::new(Car::default(), before, None));
        if before.offset == 0 {
            return self.take(id, Position { offset: record.offset, ..before }, record).await;
        }
        let missed = self.store.missed(id, Since::Time(record.time_ms.saturating_sub(FIRST_MS))).await?;
        self.take_missed(id, missed).await
    }

    /// Reads the records that were not delivered.
    async fn catch_up(&mut self, id: &str) -> Result<(), Error> {
        let Some(at) = self.cars.get(id).map(|tracked| tracked.at) else { return Ok(()) };
        let missed = self.store.missed(id, Since::Position(at)).await?;
        self.take_missed(id, missed).await
    }

    /// Takes records that were not delivered, and reads those after them.
    async fn take_missed(&mut self, id: &str, mut missed: Missed) -> Result<(), Error> {
        loop {
            let Missed { records, end, has_more, published } = missed;
            if let (Some(tracked), Some(published)) = (self.cars.get_mut(id), published) {
                tracked.published = Some(published);
            }
            for record in &records {
                self.take(id, Position { epoch: end.epoch, offset: record.offset }, record).await?;
            }
            if let Some(tracked) = self.cars.get_mut(id) {
                tracked.at = end;
            }
            if !has_more {
                return Ok(());
            }
            missed = self.store.missed(id, Since::Position(end)).await?;
        }
    }

    /// Takes a record and publishes its consequences.
    async fn take(&mut self, id: &str, position: Position, record: &Publication) -> Result<(), Error> {
        let Some(tracked) = self.cars.get_mut(id) else { return Ok(()) };
        let Observed { events, ended } = tracked.take(id, position, record, self.rules, Instant::now());
        self.metrics.records.fetch_add(1, Relaxed);
        if events.is_empty() && ended.is_none() {
            return Ok(());
        }
        if self.renewed.elapsed() > TRUST {
            self.renew().await?;
        }
        self.publish_events(id, position, &events).await?;
        if let Some(drive) = &ended {
            self.publish_ended(id, drive).await?;
        }
        // From here on, a restart does not read this record again.
        self.store_car(id).await
    }

    async fn publish_events(&self, id: &str, position: Position, events: &[Event]) -> Result<(), Error> {
        let to = events_of(id)?;
        for (i, event) in events.iter().enumerate() {
            let mut value = to_value(event);
            value["record"] = json!(position.to_string());
            value["carId"] = json!(id);
            self.store.publish(&to, &value, format!("driving/{position}/{i}")).await?;
            self.metrics.count(event);
            if is_alert(event) {
                let what = event.code.as_deref().or(event.geofence.as_deref());
                let kind = to_value(&event.kind);
                let kind = kind.as_str().unwrap_or_default();
                let key = what.map_or_else(|| format!("{id}/{kind}"), |what| format!("{id}/{kind}/{what}"));
                value["groups"] = json!(self.rules.groups(id));
                self.store.set(&self.alerts, &key, &value, ALERTS_MS).await?;
                let is_new = self.engine.now_ms().saturating_sub(event.time) < NOTICE_AGE_MAX_MS;
                if let Some((notify, notice)) = self.notify.as_ref().filter(|_| is_new).zip(notice(id, event)) {
                    notify.notify(notice);
                }
            }
        }
        Ok(())
    }

    async fn publish_ended(&self, id: &str, drive: &Drive) -> Result<(), Error> {
        let value = self.drive_value(id, drive);
        let of_car = ChannelName::parse(&format!("{DRIVES}/{id}"))?;
        self.store.set(&of_car, &drive.start.to_string(), &value, DRIVES_MS).await?;
        self.metrics.drives.fetch_add(1, Relaxed);
        self.store.set(&self.drives, id, &value, DRIVES_MS).await
    }

    fn drive_value(&self, id: &str, drive: &Drive) -> Value {
        let mut value = to_value(drive);
        (value["carId"], value["groups"]) = (json!(id), json!(self.rules.groups(id)));
        value
    }

    async fn end_silent(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let ended: BTreeMap<String, Drive> =
            self.cars.iter_mut().filter_map(|(id, car)| Some((id.clone(), car.end_if_silent(now)?))).collect();
        for (id, drive) in &ended {
            self.publish_ended(id, drive).await?;
            self.store_car(id).await?;
        }
        Ok(())
    }

    /// Stores the cars that have had changes for `age`, and publishes their drives in progress.
    async fn store_changed(&mut self, age: Duration) -> Result<(), Error> {
        let is_due = |tracked: &Tracked| tracked.changed.is_some_and(|changed| changed.elapsed() >= age);
        let due: Vec<String> = self.cars.iter().filter(|(_, car)| is_due(car)).map(|(id, _)| id.clone()).collect();
        for id in due {
            if let Some(drive) = self.cars.get(&id).and_then(|tracked| tracked.car.current_drive()) {
                self.store.set(&self.drives, &id, &self.drive_value(&id, &drive), DRIVES_MS).await?;
            }
            self.store_car(&id).await?;
        }
        Ok(())
    }

    async fn store_car(&mut self, id: &str) -> Result<(), Error> {
        let Some(tracked) = self.cars.get_mut(id) else { return Ok(()) };
        tracked.changed = None;
        let entry = self.store.write_car(id, tracked.at, &tracked.car, tracked.entry).await?;
        tracked.entry = Some(entry);
        Ok(())
    }
}

/// Returns the id of the car of a channel `cars/{id}/telemetry`.
fn car_of(channel: &ChannelName) -> Option<&str> {
    let id = channel.as_str().strip_prefix("cars/")?.strip_suffix("/telemetry")?;
    (!id.contains('/')).then_some(id)
}

fn to_value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("events and drives are structs, whose fields have names")
}
