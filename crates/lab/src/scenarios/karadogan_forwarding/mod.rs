//! Devices on Wi-Fi, servers on 3G, and a gateway that forwards between them: as a router, as a bridge, as a router in
//! user space, and as an application (row K-09). The thesis has the figures of its phone as a router.
//!
//! Each device sends to one server over a data channel. The gateway forwards the packets of this data channel, or, as
//! an application, ends it and sends each message on another one. So the messages and their bytes are the same.
//!
//! - this file: parameters, one network per forwarding and repeat
//! - [`tables`]: figures of the thesis and ours

mod tables;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use millrace_link::Config;
use serde::Deserialize;

use super::karadogan_gateway::{
    joining, load,
    mode::Mode,
    traffic::{BYTES_MIN, Joining, Plan, Side, Step},
};
use crate::{
    load::peers::{NativePeer, bind},
    path::{
        PathSettings, TunCable,
        gateway::{DEVICES, Forwarding, GatewayNetwork, SERVERS},
    },
    recording::{Form, LinkRun, Placement},
    sweep::{Bench, Experiment},
};

/// Entry in the list of scenarios.
pub struct KaradoganForwarding;

const PEERS_MAX: usize = 200;
/// Estimated time for joining, and for the start of a step, in seconds.
const STEP_S: f64 = 2.5;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// Only Millrace is possible: no other target has a gateway.
    targets: Vec<String>,
    forwarding: Vec<Forwarding>,
    peers: Vec<usize>,
    #[serde(with = "humantime_serde")]
    test: Duration,
    each_per_s: f64,
    bytes: usize,
    repeats: u32,
    wifi: PathSettings,
    path: PathSettings,
}

impl Choice {
    fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == ["millrace"], "targets: millrace alone, which has a gateway");
        ensure!(!choice.forwarding.is_empty(), "forwarding: one at least");
        let rising = choice.peers.windows(2).all(|pair| pair[0] < pair[1]);
        ensure!(rising && !choice.peers.is_empty(), "peers: one at least, each more than the one before");
        let in_bounds = choice.peers.iter().all(|peers| (1..=PEERS_MAX).contains(peers));
        ensure!(in_bounds, "peers: 1 to {PEERS_MAX}");
        ensure!((Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&choice.test), "test: 500ms to 1h");
        ensure!((0.1..=1000.0).contains(&choice.each_per_s), "each_per_s: 0.1 to 1,000");
        ensure!((BYTES_MIN..=8192).contains(&choice.bytes), "bytes: {BYTES_MIN} to 8,192");
        ensure!((1..=100).contains(&choice.repeats), "repeats: 1 to 100");
        choice.links()?;
        Ok(choice)
    }

    fn links(&self) -> anyhow::Result<[Config; 2]> {
        let [wifi, path] = [self.wifi.config_without_trace().context("wifi")?, self.path.config_without_trace()?];
        Ok([wifi.unwrap_or_default(), path.unwrap_or_default()])
    }
}

/// All steps over one network, and what passed its links.
struct Repeat {
    forwarding: Forwarding,
    steps: Vec<Step>,
    wifi: LinkRun,
    mobile: LinkRun,
}

impl Experiment for KaradoganForwarding {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Choice::read(parameters).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        let of = |choice: Choice| {
            let networks = choice.forwarding.len() as f64 * f64::from(choice.repeats);
            networks * choice.peers.len() as f64 * (choice.test.as_secs_f64() + STEP_S)
        };
        Choice::read(parameters).map_or(0.0, of)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let choice = Choice::read(parameters)?;
        if bench.has_table(tables::DELAY) {
            return Ok(());
        }
        if let Err(error) = TunCable::check() {
            ensure!(bench.form == Form::Quick, "no emulated links on this machine: {error:#}");
            bench.note(&format!("skipped: karadogan-forwarding needs emulated links: {error:#}"));
            return Ok(());
        }
        let placement = bench.machine.place(1, 1);
        let mut repeats = Vec::new();
        // All ways take turns, so that a change of the machine affects each of them.
        for repeat in 0..choice.repeats {
            for &forwarding in &choice.forwarding {
                bench.go_on()?;
                let seed = bench.seed.wrapping_add(u64::from(repeat));
                let measured = measure(&choice, forwarding, seed, &placement, bench).context(forwarding.name())?;
                measured.steps.iter().for_each(|step| bench.note(&tables::describe(forwarding, step)));
                repeats.push(measured);
            }
        }
        let judges = bench.form != Form::Quick && !placement.is_shared;
        let links = choice.links()?;
        tables::tables(&choice, &links, &repeats, judges).into_iter().try_for_each(|table| bench.table(table))
    }
}

fn measure(
    choice: &Choice,
    forwarding: Forwarding,
    seed: u64,
    placement: &Placement,
    bench: &Bench<'_>,
) -> anyhow::Result<Repeat> {
    let network = GatewayNetwork::new(forwarding, choice.links()?, seed)?;
    let gateway = match forwarding {
        Forwarding::Gateway => {
            let mut options = bench.options("millrace", &placement.server_cpus);
            options.arguments = ["--mode", "forward", "--peers", "10000"].map(str::to_owned).to_vec();
            Some(joining::start_gateway(&network, options)?)
        }
        _ => None,
    };
    let joining = match &gateway {
        Some(gateway) => joining::over(&network, gateway.address.port()),
        None => joining_directly(&network),
    };
    let plan = Plan {
        mode: Mode::Forward,
        period: Duration::from_secs_f64(1.0 / choice.each_per_s),
        bytes: choice.bytes,
        window: Duration::ZERO,
        fan_out: 1,
    };
    let steps = load(plan, joining, (&choice.peers, choice.test), placement, Instant::now(), bench);
    let log = || gateway.map_or_else(String::new, |gateway| format!("the gateway's log ends:\n{}", gateway.log_tail()));
    let steps = steps.with_context(log)?;
    let report = network.finish()?;
    let [wifi_drops, mobile_drops] = report.kernel_drops;
    Ok(Repeat {
        forwarding,
        steps,
        wifi: report.wifi.link_run(choice.wifi.name(), String::new(), wifi_drops),
        mobile: report.mobile.link_run(choice.path.name(), String::new(), mobile_drops),
    })
}

/// Each device connects to a server. The receiver of a pair joins first.
fn joining_directly(network: &GatewayNetwork) -> Joining {
    let (devices, servers) = (network.devices.clone(), network.servers.clone());
    let waiting = Mutex::new(VecDeque::new());
    Arc::new(move |side, _| {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match side {
            Side::Servers => {
                let (device, server) = (devices.run(|| bind(DEVICES.into()))?, servers.run(|| bind(SERVERS.into()))?);
                let [sender, receiver] = NativePeer::pair(device, server)?;
                waiting.push_back(sender);
                Ok(receiver)
            }
            Side::Devices => waiting.pop_front().context("a receiver joins before its sender"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    fn choice(text: &str) -> anyhow::Result<Choice> {
        Choice::read(&parameters(include_str!("scenario.toml"), text))
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert!(choice("").is_ok());
        for refused in [
            "targets = [\"ws\"]",
            "forwarding = []",
            "forwarding = [\"pigeon\"]",
            "peers = []",
            "peers = [10, 5]",
            "peers = [201]",
            "test = \"1ms\"",
            "bytes = 5",
            "repeats = 0",
            "wifi = \"wify\"",
            "path = \"3gg\"",
            "path = { down = { trace = \"x\" } }",
            "other = 1",
        ] {
            assert!(choice(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn estimate_grows_with_repeats() {
        let of = |text: &str| KaradoganForwarding.estimate_s(&parameters(include_str!("scenario.toml"), text));
        assert!(of("repeats = 6") == 2.0 * of("repeats = 3") && of("") > 60.0);
    }
}
