//! A router in user space: forwards IPv4 packets between two devices of a network namespace.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, anyhow};
use nix::{
    libc::{AF_PACKET, sockaddr_ll},
    net::if_::if_nametoindex,
    sys::socket::{LinkAddr, SockaddrLike, bind},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::packet::IpPacket;

/// IPv4. A socket for one protocol receives only incoming packets. Source: if_ether.h.
const ETH_P_IP: u16 = 0x0800;
const BUFFER_BYTES: usize = 64 * 1024;
/// Packets that are read from one device before the other one has its turn.
const READS_MAX: usize = 64;
/// Time after which the thread looks whether it must stop.
const LOOK: Duration = Duration::from_millis(20);

/// A running forwarder.
pub struct PacketForwarder {
    thread: JoinHandle<anyhow::Result<Forwarded>>,
    stop: Arc<AtomicBool>,
}

/// Packets and bytes that were forwarded, and packets that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    pub packets: u64,
    pub bytes: u64,
    /// Packets whose time to live was used up.
    pub expired: u64,
    /// Packets that a device refused.
    pub refused: u64,
}

impl PacketForwarder {
    /// Starts forwarding between two devices in the network namespace of this thread. Packets to `own` addresses of
    /// this namespace are left to the kernel.
    ///
    /// Errors: no root privileges, or no such device.
    pub fn start(devices: [&str; 2], own: [Ipv4Addr; 2]) -> anyhow::Result<Self> {
        let [one, other] = devices;
        let sockets = [socket(one)?, socket(other)?];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || run(&sockets, own, &stopped);
        Ok(Self { thread: thread::Builder::new().name("forwarder".into()).spawn(body)?, stop })
    }

    /// Errors: a socket failed.
    pub fn stop(self) -> anyhow::Result<Forwarded> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread of the forwarder died"))?
    }
}

/// Opens a socket for the IPv4 packets of a device. It removes link headers, so a packet begins with its IP header.
fn socket(device: &str) -> anyhow::Result<Socket> {
    let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
    let socket =
        Socket::new(Domain::from(AF_PACKET), Type::DGRAM, Some(protocol)).context("forwarding packets needs root")?;
    let index = if_nametoindex(device).with_context(|| format!("no device {device}"))?;
    let address = sockaddr_ll {
        sll_family: AF_PACKET as u16,
        sll_protocol: ETH_P_IP.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: `address` is a valid address of the family that its first field names, and has this length.
    let link = unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(size_of_val(&address) as u32)) };
    let link = link.context("an address of a device")?;
    bind(socket.as_raw_fd(), &link).with_context(|| format!("cannot receive packets of {device}"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn run(sockets: &[Socket; 2], own: [Ipv4Addr; 2], stop: &AtomicBool) -> anyhow::Result<Forwarded> {
    let (mut forwarded, mut buffer) = (Forwarded::default(), vec![0; BUFFER_BYTES]);
    let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    while !stop.load(Relaxed) {
        let mut waiting = [&sockets[0], &sockets[1]].map(|socket| PollFd::new(socket, PollFlags::IN));
        match poll(&mut waiting, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (from, to) in [(&sockets[0], &sockets[1]), (&sockets[1], &sockets[0])] {
            for _ in 0..READS_MAX {
                match io::Read::read(&mut &*from, &mut buffer) {
                    Ok(length) => forward(&buffer[..length], to, own, &mut forwarded),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(forwarded)
}

fn forward(bytes: &[u8], to: &Socket, own: [Ipv4Addr; 2], forwarded: &mut Forwarded) {
    let Some(mut packet) = IpPacket::parse(bytes).filter(|packet| !own.contains(&packet.destination())) else { return };
    if !packet.hop() {
        forwarded.expired += 1;
    } else if to.send(packet.as_bytes()).is_ok() {
        forwarded.packets += 1;
        forwarded.bytes += packet.as_bytes().len() as u64;
    } else {
        forwarded.refused += 1;
    }
}
