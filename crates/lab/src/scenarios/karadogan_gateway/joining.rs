//! Connects peers to a gateway, over loopback or over emulated links.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use super::traffic::{Joining, Side};
use crate::{
    load::peers::NativePeer,
    path::gateway::{GATEWAY_FAR, GATEWAY_NEAR, GatewayNetwork},
    targets::{self, Options, Server},
};

/// All peers join a gateway on this machine.
pub fn over_loopback(gateway: SocketAddr) -> Joining {
    Arc::new(move |_, query| NativePeer::join(gateway, query))
}

/// Devices and servers join the gateway of a network, each over its own link.
pub fn over(network: &GatewayNetwork, port: u16) -> Joining {
    let (devices, servers) = (network.devices.clone(), network.servers.clone());
    Arc::new(move |side, query| {
        let query = query.to_owned();
        match side {
            Side::Devices => devices.run(move || NativePeer::join((GATEWAY_NEAR, port).into(), &query)),
            Side::Servers => servers.run(move || NativePeer::join((GATEWAY_FAR, port).into(), &query)),
        }
    })
}

/// Starts `millrace gateway` between the links of a network.
pub fn start_gateway(network: &GatewayNetwork, mut options: Options) -> anyhow::Result<Server> {
    // Only this process can reach the gateway: its links are private.
    options.arguments.extend(["--insecure-no-tls", "--insecure-no-auth"].map(str::to_owned));
    network.gateway.run(move || targets::start_gateway(Ipv4Addr::UNSPECIFIED, &options))
}
