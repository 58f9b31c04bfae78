//! Packet capture that counts bytes, as an independent check of the kernel's counters.
//!
//! Limited by AF_PACKET: with segmentation offload, one captured packet stands for several segments and lacks their
//! headers; see [`super::namespace`]. Needs root.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, anyhow};
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, Socket, Type};

/// All protocols. A socket for one protocol would receive only incoming packets.
const ETH_P_ALL: u16 = 3;
const TCP: u8 = 6;
const LOOK: Duration = Duration::from_millis(20);
const BUFFER_BYTES: usize = 4 << 20;

/// Address and port of sender and receiver.
pub type Flow = ((Ipv4Addr, u16), (Ipv4Addr, u16));

/// IP bytes and packets of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    pub bytes: u64,
    pub packets: u64,
}

/// Running capture of all TCP over IPv4, in the network namespace of the thread that started it.
pub struct Capture {
    thread: JoinHandle<anyhow::Result<BTreeMap<Flow, FlowCounters>>>,
    stop: Arc<AtomicBool>,
}

impl Capture {
    /// Starts the capture thread.
    ///
    /// Errors: the process does not have root privileges.
    pub fn start() -> anyhow::Result<Capture> {
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        // The datagram socket removes link headers, so a packet begins with its IP header.
        let socket = Socket::new(Domain::from(nix::libc::AF_PACKET), Type::DGRAM, Some(protocol))
            .context("a capture needs root")?;
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
        socket.set_read_timeout(Some(LOOK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let body = move || {
            let (mut flows, mut packet) = (BTreeMap::<Flow, FlowCounters>::new(), [0; 256]);
            loop {
                match rustix::net::recv(&socket, &mut packet[..], RecvFlags::empty()) {
                    Ok((taken, _)) => {
                        if let Some((flow, bytes)) = read(&packet[..taken]) {
                            let seen = flows.entry(flow).or_default();
                            seen.bytes += bytes;
                            seen.packets += 1;
                        }
                    }
                    // No packet within the timeout: all packets sent before the stop request have been read.
                    Err(rustix::io::Errno::AGAIN) if stopped.load(Relaxed) => return Ok(flows),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        };
        Ok(Capture { thread: thread::Builder::new().name("lab-capture".into()).spawn(body)?, stop })
    }

    pub fn stop(self) -> anyhow::Result<BTreeMap<Flow, FlowCounters>> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the capture died"))?
    }
}

/// Returns the flow and the IP length of a packet, or `None` if it is not TCP over IPv4.
fn read(packet: &[u8]) -> Option<(Flow, u64)> {
    let (version, words) = (packet.first()? >> 4, packet.first()? & 15);
    (version == 4 && *packet.get(9)? == TCP).then_some(())?;
    let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let number = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let tcp = usize::from(words) * 4;
    let flow = ((address(12)?, number(tcp)?), (address(16)?, number(tcp + 2)?));
    Some((flow, number(2)?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_attributed_and_measured() {
        let mut packet = [0; 44];
        packet[..4].copy_from_slice(&[0x46, 0, 0x05, 0xdc]);
        packet[9] = TCP;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[24..28].copy_from_slice(&[0x1f, 0x90, 0, 80]);
        let flow = (([10, 0, 0, 1].into(), 8080), ([10, 0, 0, 2].into(), 80));
        assert_eq!(read(&packet), Some((flow, 1500)));
        assert_eq!(read(&packet[..26]), None);
        packet[9] = 17;
        assert_eq!(read(&packet), None);
        assert_eq!(read(&[]), None);
    }
}
