//! One topology: its network, its processes and its connections, and what the movements cost.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::Context;
use millrace_link::{Config, Traces};

use super::{
    Choice,
    connections::{self, PeerConnections},
    movements::{self, Connections, Deliveries},
    topology::Topology,
};
use crate::{
    load::{ClientGroup, peers::bind},
    path::{
        TunCable, congestion_control,
        gateway::{Forwarding, GatewayNetwork},
    },
    recording::{Finding, LinkRun},
    scenarios::karadogan_gateway::joining,
    targets::{self, Endpoint, Options, Server, Transport},
    wire::namespace::{self, FAR, FAR_DEVICE, FAR_PEERS, NEAR, NEAR_DEVICE, carried_bytes},
};

const CHANNEL: &str = "arm-probe";
/// Poll interval of a client. No client of this scenario polls.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Parameters of one measurement.
pub struct Setting<'a> {
    pub choice: &'a Choice,
    /// `None`: loopback.
    pub link: Option<Config>,
    pub seed: u64,
    /// Program of the server and the gateway.
    pub options: Options,
    pub go_on: &'a (dyn Fn() -> anyhow::Result<()> + Sync),
}

/// Deliveries of all movements in one topology.
pub struct Measured {
    pub topology: Topology,
    pub deliveries: Deliveries,
    /// Costs while the wearers moved.
    pub cost: Cost,
    pub link: Option<LinkRun>,
    pub findings: Vec<Finding>,
}

/// Costs of the movements. `None`: there is no such process or link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// CPU time of the server or the gateway.
    pub cpu_ns: Option<u64>,
    /// Bytes at IP level over the link, in both directions.
    pub bytes: Option<u64>,
}

impl Cost {
    fn since(self, earlier: Cost) -> Cost {
        let difference = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Cost { cpu_ns: difference(self.cpu_ns, earlier.cpu_ns), bytes: difference(self.bytes, earlier.bytes) }
    }
}

type Worn = (Deliveries, Cost);

/// Connects all wearers and lets them move.
///
/// Errors: a process does not start, a connection does not open or breaks, or the run was stopped.
pub fn measure(topology: Topology, setting: &Setting<'_>) -> anyhow::Result<Measured> {
    let ((deliveries, cost), links) = match topology {
        Topology::Mesh | Topology::Star => directly(topology, setting)?,
        Topology::Server | Topology::ServerWebsocket => through_server(topology.transport(), setting)?,
        Topology::Relay | Topology::RelayUrgent => through_gateway(topology == Topology::RelayUrgent, setting)?,
    };
    let findings = links.iter().flat_map(LinkRun::findings).collect();
    Ok(Measured { topology, deliveries, cost, link: links.into_iter().next(), findings })
}

/// Lets the wearers move. `cost`: costs since the start of the connections.
fn wear(
    connections: &mut dyn Connections,
    setting: &Setting<'_>,
    cost: impl Fn() -> anyhow::Result<Cost>,
) -> anyhow::Result<Worn> {
    let before = cost()?;
    let deliveries = movements::run(connections, &setting.choice.plan(setting.seed), setting.go_on)?;
    Ok((deliveries, cost()?.since(before)))
}

/// One end of each connection is near the link, the other one far.
fn directly(topology: Topology, setting: &Setting<'_>) -> anyhow::Result<(Worn, Vec<LinkRun>)> {
    let (wearers, go_on) = (setting.choice.clients, setting.go_on);
    let (connect, pairs): (fn(_, _, &dyn Fn() -> _) -> _, _) = match topology {
        Topology::Mesh => (PeerConnections::mesh, connections::mesh(wearers)),
        _ => (PeerConnections::star, connections::star(wearers)),
    };
    let sockets = |address: Ipv4Addr| pairs.iter().map(|_| bind(address.into())).collect::<anyhow::Result<Vec<_>>>();
    let Some(link) = &setting.link else {
        let sockets = [sockets(Ipv4Addr::LOCALHOST)?, sockets(Ipv4Addr::LOCALHOST)?];
        let worn = wear(&mut connect(wearers, sockets, go_on)?, setting, || Ok(Cost::default()))?;
        return Ok((worn, Vec::new()));
    };
    let cable = TunCable::new(link.clone(), Traces::default(), setting.seed, None);
    // The sockets keep the far namespace alive.
    let (worn, drops) = namespace::across(
        &cable,
        || sockets(FAR_PEERS),
        |far| {
            let cost = || Ok(Cost { bytes: Some(carried_bytes(NEAR_DEVICE)?), ..Cost::default() });
            let worn = wear(&mut connect(wearers, [sockets(NEAR)?, far], go_on)?, setting, cost)?;
            Ok((worn, namespace::drops(None, NEAR_DEVICE)?))
        },
    )?;
    let link = cable.finish()?.link_run(setting.choice.path.name(), String::new(), drops);
    Ok((worn, vec![link]))
}

/// All wearers are near the link, the server is at the far end.
fn through_server(transport: Transport, setting: &Setting<'_>) -> anyhow::Result<(Worn, Vec<LinkRun>)> {
    let target = targets::find("millrace")?;
    let wear_at = |server: &Server, is_far: bool| -> anyhow::Result<Worn> {
        let mut endpoint = Endpoint::new(target, transport, server, POLL_EVERY);
        if is_far {
            endpoint = endpoint.with_devices(namespace::device);
        }
        let cost = || {
            let bytes = if is_far { Some(carried_bytes(NEAR_DEVICE)?) } else { None };
            Ok(Cost { cpu_ns: Some(server.scheduling_time()?.cpu_ns), bytes })
        };
        let clients = ClientGroup::connect(&endpoint, CHANNEL, setting.choice.clients)?;
        let worn = connections::open(clients, setting.go_on).and_then(|mut clients| wear(&mut clients, setting, cost));
        worn.with_context(|| format!("the server's log ends:\n{}", server.log_tail()))
    };
    let mut options = setting.options.clone();
    let Some(link) = &setting.link else {
        return Ok((wear_at(&target.start(&options)?, false)?, Vec::new()));
    };
    options.public_address = Some(FAR);
    let cable = TunCable::new(link.clone(), Traces::default(), setting.seed, None);
    let start = || target.start(&options);
    let (worn, drops) = namespace::across(&cable, start, |mut server| {
        server.move_to(FAR, FAR);
        let worn = wear_at(&server, true)?;
        let far = server.root_pids().first().and_then(|pid| namespace::drops(Some(*pid), FAR_DEVICE).ok());
        Ok((worn, namespace::drops(None, NEAR_DEVICE)? + far.unwrap_or_default()))
    })?;
    let congestion = if transport == Transport::DataChannel { String::new() } else { congestion_control("")? };
    Ok((worn, vec![cable.finish()?.link_run(setting.choice.path.name(), congestion, drops)]))
}

/// All wearers are near the link, the gateway is at the far end. The distributor is beside the gateway.
fn through_gateway(is_urgent: bool, setting: &Setting<'_>) -> anyhow::Result<(Worn, Vec<LinkRun>)> {
    let Choice { clients: wearers, window, path, .. } = setting.choice;
    let mut options = setting.options.clone();
    options.arguments = vec!["--mode".into(), "both".into(), "--window".into(), format!("{}ms", window.as_millis())];
    let network = match &setting.link {
        Some(link) => Some(GatewayNetwork::new(Forwarding::Gateway, [link.clone(), Config::default()], setting.seed)?),
        None => None,
    };
    let (gateway, joining) = match &network {
        Some(network) => {
            let gateway = joining::start_gateway(network, options)?;
            let joining = joining::over(network, gateway.address.port());
            (gateway, joining)
        }
        None => {
            let gateway = targets::start_gateway(Ipv4Addr::LOCALHOST, &options)?;
            let joining = joining::over_loopback(gateway.address);
            (gateway, joining)
        }
    };
    let cost = || {
        let bytes = network.as_ref().map(GatewayNetwork::device_bytes).transpose()?;
        Ok(Cost { cpu_ns: Some(gateway.scheduling_time()?.cpu_ns), bytes })
    };
    let wearing = PeerConnections::relay(*wearers, is_urgent, &joining, setting.go_on)
        .and_then(|mut connections| wear(&mut connections, setting, cost));
    let worn = wearing.with_context(|| format!("the gateway's log ends:\n{}", gateway.log_tail()))?;
    drop((joining, gateway));
    let Some(network) = network else { return Ok((worn, Vec::new())) };
    let report = network.finish()?;
    let [wearers_drops, distributor_drops] = report.kernel_drops;
    let links = vec![
        report.wifi.link_run(path.name(), String::new(), wearers_drops),
        report.mobile.link_run(path.name(), String::new(), distributor_drops),
    ];
    Ok((worn, links))
}
