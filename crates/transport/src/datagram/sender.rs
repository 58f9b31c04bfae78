use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use millrace_node::Metrics;
use tokio::{net::UdpSocket, sync::Notify};

use super::{batch::SendQueue, framed::Outgoing};
use crate::SocketMetrics;

/// Counts the datagrams of a port.
pub trait PortMetrics {
    fn received(&self, datagrams: u64);
    /// Counts datagrams that were not sent, belong to no peer, or are not valid.
    fn dropped(&self, datagrams: u64);
    /// Sets the number of TCP streams that carry datagrams.
    fn streams(&self, open: u64);
}

impl PortMetrics for SocketMetrics {
    fn received(&self, datagrams: u64) {
        Metrics::add(&self.rtc_received, datagrams);
    }

    fn dropped(&self, datagrams: u64) {
        Metrics::add(&self.rtc_dropped, datagrams);
    }

    fn streams(&self, open: u64) {
        self.rtc_streams.store(open, Relaxed);
    }
}

/// Sends the datagrams of all protocols of a port. Each protocol holds an `Rc` of it.
pub struct DatagramSender {
    pub(super) socket: Rc<UdpSocket>,
    is_ipv6: bool,
    queue: RefCell<SendQueue>,
    pub(super) metrics: Arc<dyn PortMetrics>,
    /// Reports work that neither the socket nor a timer reports.
    pub(super) work: Notify,
}

impl DatagramSender {
    pub(super) fn new(socket: Rc<UdpSocket>, is_ipv6: bool, metrics: Arc<dyn PortMetrics>) -> Rc<Self> {
        Rc::new(Self { socket, is_ipv6, queue: RefCell::default(), metrics, work: Notify::new() })
    }

    /// Queues a datagram. A full batch is sent at once, the rest at the end of the turn.
    pub fn send(&self, to: SocketAddr, datagram: Vec<u8>) {
        let mut queue = self.queue.borrow_mut();
        queue.push(to, datagram);
        if queue.is_due() {
            queue.send(&*self.socket);
        }
    }

    /// Sends a datagram at once, without the queue. Returns false if the socket has no room for it.
    pub fn try_send(&self, to: SocketAddr, datagram: &[u8]) -> bool {
        self.socket.try_send_to(datagram, self.on_the_wire(to)).is_ok()
    }

    /// Makes the port run a turn, because a protocol has work that the port cannot see.
    pub fn wake(&self) {
        self.work.notify_one();
    }

    /// Sends the queued datagrams, or as many as the socket accepts.
    pub(super) fn flush(&self) {
        let mut queue = self.queue.borrow_mut();
        queue.send(&*self.socket);
        self.metrics.dropped(std::mem::take(&mut queue.lost));
    }

    /// Returns true if the socket accepts no datagrams at the moment.
    pub(super) fn is_blocked(&self) -> bool {
        self.queue.borrow().is_blocked()
    }

    /// Registers a TCP stream for this remote address and returns its send queue. Returns `None` if another stream
    /// uses the address.
    pub(super) fn connect_stream(&self, from: SocketAddr) -> Option<Rc<Outgoing>> {
        let streams = &mut self.queue.borrow_mut().streams;
        if streams.contains_key(&from) {
            return None;
        }
        let stream = streams.entry(from).or_default().clone();
        self.metrics.streams(streams.len() as u64);
        Some(stream)
    }

    pub(super) fn disconnect_stream(&self, from: SocketAddr) {
        let streams = &mut self.queue.borrow_mut().streams;
        streams.remove(&from);
        self.metrics.streams(streams.len() as u64);
    }

    /// Converts an IPv4 address to an IPv4-mapped one if the socket is dual-stack IPv6.
    fn on_the_wire(&self, to: SocketAddr) -> SocketAddr {
        match to.ip() {
            IpAddr::V4(ip) if self.is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        }
    }
}
