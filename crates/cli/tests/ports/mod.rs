//! Ports for servers that a test starts on a known port, or starts again on the same port.

use std::{
    net::{TcpListener, UdpSocket},
    ops::Range,
    sync::atomic::{AtomicU16, Ordering::Relaxed},
};

/// Returns a port that no process uses, by TCP or UDP. The system does not assign such a port to outgoing
/// connections, so it stays free until a server binds it.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// Returns the first of `count` consecutive ports of this kind.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let Range { start, end } = unassigned();
    let all = end - start - count;
    // Test programs that run at the same time start at different ports.
    let first = (std::process::id() * 61 % u32::from(all)) as u16;
    let candidates = std::iter::repeat_with(|| start + first.wrapping_add(NEXT.fetch_add(count, Relaxed)) % all);
    let is_free =
        |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok();
    candidates.take(usize::from(all)).find(|port| (*port..port + count).all(is_free)).expect("a free port")
}

/// Returns ports below the range of ports that the system assigns.
fn unassigned() -> Range<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let lowest: u16 = range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(32768);
    if lowest > 12_000 { 10_000..lowest } else { 20_000..30_000 }
}
