//! Two TUN devices with a link between them.

use std::{
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, ensure};
use millrace_link::{Config, Traces};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::{
    congestion,
    emulator::{Emulator, End, Ends, Records, Report},
};
use crate::wire::namespace::{
    BYPASS_FAR, BYPASS_NEAR, Cable, DEVICES, FAR, FAR_DEVICE, FAR_PEERS, NEAR, NEAR_DEVICE, across, ip, up,
};

/// Packets that the kernel holds for the emulator. More are dropped, which
/// [`namespace::drops`](crate::wire::namespace::drops) counts. A scenario opens thousands of connections at once: 2,800
/// publishers and as many subscribers overflowed a queue of 1,000 packets.
const QUEUE_PACKETS: &str = "10000";

/// A cable that is an emulated link.
pub struct TunCable {
    config: Config,
    traces: Traces,
    seed: u64,
    records: Records,
    /// TCP congestion control of both ends. `None`: the default of this machine.
    congestion: Option<String>,
    near: Mutex<Option<SyncDevice>>,
    emulator: Mutex<Option<Emulator>>,
}

impl TunCable {
    /// With a `log`, all packets that leave the link are written to this file.
    pub fn new(config: Config, traces: Traces, seed: u64, log: Option<PathBuf>) -> Self {
        let (near, emulator) = Default::default();
        Self { config, traces, seed, records: Records { log, ..Records::default() }, congestion: None, near, emulator }
    }

    /// Lets all TCP connections between the ends use this congestion control. See
    /// [`congestion_control`](super::congestion_control) for its name.
    pub fn with_congestion(self, algorithm: String) -> Self {
        Self { congestion: Some(algorithm), ..self }
    }

    /// Returns the congestion control that was set. Empty: the default of this machine.
    pub fn congestion(&self) -> &str {
        self.congestion.as_deref().unwrap_or_default()
    }

    /// Records the packets of each device at the near end.
    pub fn with_activity(mut self) -> Self {
        self.records.activity = true;
        self
    }

    /// Checks whether links between namespaces work on this machine.
    ///
    /// Errors: no root, no `/dev/net/tun`, or no `ip`.
    pub fn check() -> anyhow::Result<()> {
        let cable = Self::new(Config::default(), Traces::default(), 0, None);
        across(&cable, || Ok(()), |()| Ok(()))
    }

    /// Stops the link.
    ///
    /// Errors: the link was never plugged, or a device failed.
    pub fn finish(self) -> anyhow::Result<Report> {
        let emulator = self.emulator.into_inner().unwrap_or_else(PoisonError::into_inner);
        emulator.context("the link was not plugged")?.stop()
    }
}

impl Cable for TunCable {
    fn plug_near(&self, _: i32) -> anyhow::Result<()> {
        let device = open(NEAR_DEVICE, &NEAR.to_string())?;
        ip(&["addr", "add", &format!("{BYPASS_NEAR}/24"), "dev", NEAR_DEVICE])?;
        // All addresses of the network belong to this end.
        ip(&["route", "add", "local", DEVICES, "dev", "lo"])?;
        if let Some(algorithm) = &self.congestion {
            congestion::route(&network(NEAR), NEAR_DEVICE, NEAR, algorithm)?;
        }
        *self.near.lock().unwrap_or_else(PoisonError::into_inner) = Some(device);
        Ok(())
    }

    fn plug_far(&self) -> anyhow::Result<()> {
        let far = open(FAR_DEVICE, &FAR.to_string())?;
        reach_loopback(FAR_DEVICE)?;
        ip(&["addr", "add", &format!("{FAR_PEERS}/24"), "dev", FAR_DEVICE])?;
        ip(&["addr", "add", &format!("{BYPASS_FAR}/24"), "dev", FAR_DEVICE])?;
        ip(&["route", "add", DEVICES, "dev", FAR_DEVICE, "src", &FAR.to_string()])?;
        if let Some(algorithm) = &self.congestion {
            congestion::route(&network(NEAR), FAR_DEVICE, FAR, algorithm)?;
            congestion::route(DEVICES, FAR_DEVICE, FAR, algorithm)?;
        }
        let near =
            self.near.lock().unwrap_or_else(PoisonError::into_inner).take().context("the near end is missing")?;
        let emulator = Emulator::start(
            self.config.clone(),
            &self.traces,
            self.seed,
            Ends {
                near: End::Tun(near),
                far: End::Tun(far),
                far_address: Some(FAR),
                bypass: Some((BYPASS_NEAR, BYPASS_FAR)),
            },
            self.records.clone(),
        )?;
        *self.emulator.lock().unwrap_or_else(PoisonError::into_inner) = Some(emulator);
        Ok(())
    }
}

/// Returns the network of 256 addresses that contains an address.
fn network(address: Ipv4Addr) -> String {
    let [a, b, c, _] = address.octets();
    format!("{a}.{b}.{c}.0/24")
}

/// Opens a TUN device in the network namespace of this thread.
pub(super) fn open(name: &str, address: &str) -> anyhow::Result<SyncDevice> {
    let device = create(name, Layer::L3)?;
    ip(&["addr", "add", &format!("{address}/24"), "dev", name])?;
    up(name)?;
    Ok(device)
}

/// Opens a TAP device in the network namespace of this thread, as a port of a bridge.
pub(super) fn open_port(name: &str, bridge: &str) -> anyhow::Result<SyncDevice> {
    let device = create(name, Layer::L2)?;
    ip(&["link", "set", name, "master", bridge])?;
    up(name)?;
    Ok(device)
}

fn create(name: &str, layer: Layer) -> anyhow::Result<SyncDevice> {
    ensure!(std::path::Path::new("/dev/net/tun").exists(), "an emulated link needs /dev/net/tun");
    let device = DeviceBuilder::new()
        .name(name)
        .layer(layer)
        .inherit_enable_state()
        .with(|builder| {
            builder.offload(false);
        })
        .build_sync()
        .with_context(|| format!("cannot open the device {name}"))?;
    // Otherwise the kernel sends packets of its own, such as router solicitations.
    ip(&["link", "set", name, "addrgenmode", "none"])?;
    ip(&["link", "set", name, "txqueuelen", QUEUE_PACKETS])?;
    Ok(device)
}

/// Lets packets of a device reach servers that listen on 127.0.0.1. Only this device is affected.
pub(super) fn reach_loopback(device: &str) -> anyhow::Result<()> {
    let file = format!("/proc/sys/net/ipv4/conf/{device}/route_localnet");
    std::fs::write(&file, "1").with_context(|| format!("cannot write {file}"))
}
