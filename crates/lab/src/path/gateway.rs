//! A gateway between two emulated links: devices, gateway and servers, each in a network namespace of its own.

use std::{net::Ipv4Addr, thread, time::Duration};

use anyhow::Context;
use millrace_link::{Config, Traces};
use serde::Deserialize;

use super::{
    cable::{open, open_port},
    emulator::{Emulator, End, Ends, Records, Report},
    packet_forwarder::PacketForwarder,
};
use crate::wire::namespace::{Namespace, carried_bytes, drops, ip};

/// Address of the devices, and of the gateway towards them.
pub const DEVICES: Ipv4Addr = Ipv4Addr::new(10, 213, 1, 1);
pub const GATEWAY_NEAR: Ipv4Addr = Ipv4Addr::new(10, 213, 1, 2);
/// Address of the gateway towards the servers, and of the servers.
pub const GATEWAY_FAR: Ipv4Addr = Ipv4Addr::new(10, 213, 2, 1);
pub const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 213, 2, 2);
const DEVICES_NETWORK: &str = "10.213.1.0/24";
const SERVERS_NETWORK: &str = "10.213.2.0/24";
/// Names of the devices at both ends of each link.
const NEAR: &str = "wifi";
const FAR: &str = "mobile";
const BRIDGE: &str = "bridge";
/// Time from the last message until no packet is on its way any more.
const SETTLE: Duration = Duration::from_millis(300);

/// How the gateway forwards between the two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// The kernel, as a router.
    IpForward,
    /// The kernel, as a bridge: the devices and the servers share one Ethernet.
    Bridge,
    /// A router in user space: [`PacketForwarder`].
    PacketForwarder,
    /// `millrace gateway`: it ends the connections of both sides.
    Gateway,
}

impl Forwarding {
    pub fn name(self) -> &'static str {
        match self {
            Forwarding::IpForward => "ip-forward",
            Forwarding::Bridge => "bridge",
            Forwarding::PacketForwarder => "packet-forwarder",
            Forwarding::Gateway => "gateway",
        }
    }
}

/// Two links with a gateway between them. It needs root and `/dev/net/tun`, and disappears with this value.
pub struct GatewayNetwork {
    pub devices: Namespace,
    pub gateway: Namespace,
    pub servers: Namespace,
    wifi: Emulator,
    mobile: Emulator,
    forwarder: Option<PacketForwarder>,
}

/// Counters of both links.
pub struct GatewayReport {
    pub wifi: Report,
    pub mobile: Report,
    /// Packets that the devices of each link dropped. They are not losses of the link.
    pub kernel_drops: [u64; 2],
}

impl GatewayNetwork {
    /// Creates the namespaces, and starts the links and the forwarding. With [`Forwarding::Gateway`], the caller starts
    /// the application. `links`: from the devices to the gateway, and from the gateway to the servers.
    ///
    /// Errors: no root, no `/dev/net/tun`, no `ip`, no bridges in this kernel; an invalid link.
    pub fn new(forwarding: Forwarding, links: [Config; 2], seed: u64) -> anyhow::Result<Self> {
        let [devices, gateway, servers] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let near = devices.run(|| {
            let device = open(NEAR, &DEVICES.to_string())?;
            ip(&["route", "add", SERVERS_NETWORK, "dev", NEAR])?;
            Ok(End::Tun(device))
        })?;
        let far = servers.run(|| {
            let device = open(FAR, &SERVERS.to_string())?;
            ip(&["route", "add", DEVICES_NETWORK, "dev", FAR])?;
            Ok(End::Tun(device))
        })?;
        let [middle_near, middle_far] = gateway.run(move || match forwarding {
            Forwarding::Bridge => {
                ip(&["link", "add", BRIDGE, "type", "bridge", "stp_state", "0", "mcast_snooping", "0"])
                    .context("this kernel may have no bridges")?;
                ip(&["link", "set", BRIDGE, "addrgenmode", "none", "up"])?;
                Ok([End::Tap(open_port(NEAR, BRIDGE)?), End::Tap(open_port(FAR, BRIDGE)?)])
            }
            Forwarding::IpForward | Forwarding::PacketForwarder | Forwarding::Gateway => {
                let is_router = if forwarding == Forwarding::IpForward { "1" } else { "0" };
                std::fs::write("/proc/sys/net/ipv4/ip_forward", is_router).context("cannot set ip_forward")?;
                let near = open(NEAR, &GATEWAY_NEAR.to_string())?;
                Ok([End::Tun(near), End::Tun(open(FAR, &GATEWAY_FAR.to_string())?)])
            }
        })?;
        let forwarder = match forwarding {
            Forwarding::PacketForwarder => {
                Some(gateway.run(|| PacketForwarder::start([NEAR, FAR], [GATEWAY_NEAR, GATEWAY_FAR]))?)
            }
            _ => None,
        };
        let [wifi, mobile] = links;
        let traces = Traces::default();
        let ends = Ends { near, far: middle_near, far_address: None, bypass: None };
        let wifi = Emulator::start(wifi, &traces, seed, ends, Records::default())?;
        let ends = Ends { near: middle_far, far, far_address: None, bypass: None };
        let mobile = Emulator::start(mobile, &traces, seed.wrapping_add(1), ends, Records::default())?;
        Ok(Self { devices, gateway, servers, wifi, mobile, forwarder })
    }

    /// Returns the bytes at IP level that have passed between the devices and their link, in both directions.
    ///
    /// Errors: the counters cannot be read.
    pub fn device_bytes(&self) -> anyhow::Result<u64> {
        self.devices.run(|| carried_bytes(NEAR))
    }

    /// Waits until the packets on their way have arrived, then stops forwarding and both links.
    ///
    /// Errors: a device or a socket failed.
    pub fn finish(self) -> anyhow::Result<GatewayReport> {
        thread::sleep(SETTLE);
        if let Some(forwarder) = self.forwarder {
            forwarder.stop()?;
        }
        let [near, far] = self.gateway.run(|| Ok([drops(None, NEAR)?, drops(None, FAR)?]))?;
        let kernel_drops =
            [near + self.devices.run(|| drops(None, NEAR))?, far + self.servers.run(|| drops(None, FAR))?];
        Ok(GatewayReport { wifi: self.wifi.stop()?, mobile: self.mobile.stop()?, kernel_drops })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn every_forwarding_carries_both_directions() {
        if let Err(error) = super::super::TunCable::check() {
            println!("skipped: {error:#}");
            return;
        }
        for forwarding in [Forwarding::IpForward, Forwarding::Bridge, Forwarding::PacketForwarder] {
            let network =
                GatewayNetwork::new(forwarding, [Config::default(), Config::default()], 1).expect("a network");
            let bind = |address| {
                move || {
                    let socket = UdpSocket::bind((address, 4000))?;
                    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                    Ok(socket)
                }
            };
            let device = network.devices.run(bind(DEVICES)).expect("a socket");
            let server = network.servers.run(bind(SERVERS)).expect("a socket");
            let mut buffer = [0; 1500];
            for n in 0..20_u8 {
                device.send_to(&[n; 1000], (SERVERS, 4000)).expect("sent");
                let (length, from) = server.recv_from(&mut buffer).expect("a datagram within 5 s");
                assert_eq!((length, buffer[0], from.ip()), (1000, n, DEVICES.into()), "{forwarding:?}");
                server.send_to(&[n], from).expect("sent");
                assert_eq!(device.recv(&mut buffer).expect("a datagram within 5 s"), 1, "{forwarding:?}");
            }
            let report = network.finish().expect("a report");
            for link in [&report.wifi, &report.mobile] {
                assert_eq!((link.up.delivered, link.up.delivered_bytes), (20, 20 * 1028), "{forwarding:?}");
                assert_eq!((link.down.delivered, link.down.delivered_bytes), (20, 20 * 29), "{forwarding:?}");
            }
            assert_eq!(report.kernel_drops, [0, 0], "{forwarding:?}");
        }
    }
}
