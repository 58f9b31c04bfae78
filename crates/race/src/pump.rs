//! The pump of a lane: moves units from one end through the link to the other end, and follows the lane's orders.

use std::{collections::HashMap, sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use millrace_link::{ConfigError, Direction, Link, Time, Traces};
use socket2::{SockAddr, SockRef};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use crate::{
    Lane,
    connection::Connection,
    lane::Order,
    unit::{ConnectionId, Destination, Unit},
};

/// Units that wait for the pump; further ones wait with their connection, and datagrams are dropped.
pub const EVENTS_MAX: usize = 256;
/// A datagram that would stay in the queue for longer is dropped.
const QUEUE_MAX: Duration = Duration::from_millis(500);

/// Reports of connections and datagram sockets to the pump.
pub enum Event {
    Opened(ConnectionId, Connection),
    Unit(Direction, Unit),
    Closed(ConnectionId),
}

pub struct Pump {
    lane: Arc<Lane>,
    link: Link<Unit>,
    /// Start of the link's clock.
    start: Instant,
    connections: HashMap<ConnectionId, Connection>,
}

impl Pump {
    /// Errors: an impairment that is no configuration of a link; [`crate::Impairment::check`] prevents this.
    pub fn new(lane: Arc<Lane>) -> Result<Self, ConfigError> {
        let link = Link::new(lane.orders.borrow().impairment.link(), &Traces::default(), 0)?;
        Ok(Self { lane, link, start: Instant::now(), connections: HashMap::new() })
    }

    /// Runs until all senders of events are dropped.
    ///
    /// Errors: see [`Pump::new`].
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>) -> Result<(), ConfigError> {
        let mut orders = self.lane.orders.subscribe();
        let mut order = Order::default();
        loop {
            order = self.follow(order, &mut orders)?;
            if order.impairment.cut {
                self.wait_for_end_of_cut(&mut orders, &mut events).await;
                continue;
            }
            let now = self.now();
            while let Some((direction, _, unit)) = self.link.poll_output(now) {
                self.deliver(direction, unit);
            }
            let next = self.link.poll_timeout().map(|time| self.start + Duration::from_nanos(time.ns()));
            tokio::select! {
                // An order applies to everything that is sent after it.
                biased;
                _ = orders.changed() => {}
                () = async { sleep_until(next.unwrap_or_else(Instant::now)).await }, if next.is_some() => {}
                event = events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Applies a new order to the link.
    fn follow(&mut self, before: Order, orders: &mut watch::Receiver<Order>) -> Result<Order, ConfigError> {
        let order = *orders.borrow_and_update();
        if order.impairment != before.impairment {
            let now = self.now();
            self.link.configure(order.impairment.link(), &Traces::default(), now)?;
        }
        if order.resets != before.resets {
            for (_, connection) in self.connections.drain() {
                let _ = connection.reset.send(());
            }
        }
        Ok(order)
    }

    /// Waits for the next order. What arrives from connections waits for the end of the cut; datagrams are lost.
    async fn wait_for_end_of_cut(&mut self, orders: &mut watch::Receiver<Order>, events: &mut mpsc::Receiver<Event>) {
        let mut held = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = orders.changed() => break,
                // Windows bound what one connection holds, and the lane bounds its connections.
                Some(event) = events.recv() => match event {
                    Event::Unit(_, Unit { destination: Destination::Datagram(..), .. }) => {}
                    event => held.push(event),
                },
            }
        }
        for event in held {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Opened(id, connection) => {
                self.connections.insert(id, connection);
                self.lane.counters.opened.fetch_add(1, Relaxed);
            }
            Event::Closed(id) => drop(self.connections.remove(&id)),
            Event::Unit(direction, unit) => {
                let now = self.now();
                let is_datagram = matches!(unit.destination, Destination::Datagram(..));
                if is_datagram && self.link.pipe(direction).queue_delay(now) > QUEUE_MAX {
                    return;
                }
                self.lane.counters.count(direction, unit.data.len());
                self.link.handle_input(direction, unit, now);
            }
        }
        self.lane.counters.connections.store(self.connections.len() as u64, Relaxed);
    }

    fn deliver(&mut self, direction: Direction, unit: Unit) {
        match &unit.destination {
            Destination::Stream(id) => {
                let Some(connection) = self.connections.get(id) else { return };
                let writer = match direction {
                    Direction::Up => &connection.to_server,
                    Direction::Down => &connection.to_client,
                };
                // The connection has ended if this fails.
                let _ = writer.send(unit);
            }
            // A datagram that the socket does not take is lost. The system is asked without the runtime, which does not
            // know yet whether a new socket is writable.
            Destination::Datagram(socket, None) => drop(SockRef::from(&**socket).send(&unit.data)),
            Destination::Datagram(socket, Some(address)) => {
                drop(SockRef::from(&**socket).send_to(&unit.data, &SockAddr::from(*address)));
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_ns(self.start.elapsed().as_nanos() as u64)
    }
}
