//! The cost of CarCare: bytes per message, request and connection on every transport, a car's day, and the energy of
//! its phone.
//!
//! Reproduces Somogyi's tables 5 to 7, 10 and 12 to 14, and Thorsen's and Muller's overheads (rows S-04, S-05, T-08,
//! M-09). Shows the printed and the corrected figures beside Millrace's. The measurement is shorter than in the
//! theses: silence is measured on a server with short heartbeats, and a day is calculated from the measured parts.

mod energy;
pub mod published;

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::{
    energy::Radios,
    judged::{MODEL_PERCENT_MAX, judged},
    load::payload::BYTES_MIN,
    sweep::{Bench, Experiment},
    targets::{Options, Server, Target, Transport, check_over_tcp, find},
    wire::{
        capture::{Capture, Flow, FlowCounters},
        measure::{Batch, Counted, Measured, Plan, batch, each},
        model::{predict, predict_secured},
        namespace,
    },
    wire_cost::{Line, Path, Side, Unit, WireCostReport},
};

/// Entry in the list of scenarios.
pub struct CarcareWire;

impl Experiment for CarcareWire {
    fn check(&self, parameters: &toml::Table) -> anyhow::Result<()> {
        Radios::load(Choice::read(parameters)?.radios()).map(drop)
    }

    fn estimate_s(&self, parameters: &toml::Table) -> f64 {
        // The messages are sent one after the other, twice. Then follow three heartbeats of two to three seconds.
        Choice::read(parameters).map_or(0.0, |choice| 20.0 + 0.7 * choice.messages as f64)
    }

    fn run(&self, parameters: &toml::Table, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        if bench.has_wire_cost() {
            return Ok(());
        }
        bench.go_on()?;
        let (choice, options) = (Choice::read(parameters)?, bench.options(TARGET, &[]));
        let mut wire_cost = run(&choice, &options)?;
        for _ in 1..TRIES {
            if judged(Some(&wire_cost), &[]).iter().all(|judged| judged.failed.is_empty()) {
                break;
            }
            bench.note("a figure is off the model, as when the machine was too busy to answer before an ACK was due: once more");
            bench.go_on()?;
            wire_cost = run(&choice, &options)?;
        }
        bench.note(&wire_cost.to_string());
        bench.set_wire_cost(wire_cost)
    }
}

const TARGET: &str = "millrace";
const SECURED: &str = "millrace-tls";
/// Maximum number of measurements. If a response takes longer than the delayed-ACK timeout (40 ms), a separate ACK
/// precedes it. This happens on a busy machine.
const TRIES: usize = 3;
/// Maximum message size: with any head and envelope it stays below 1,448 bytes. For several segments, the number of
/// ACKs depends on their timing.
const BYTES_MAX: usize = 1000;

/// The parameters of `scenario.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Only Millrace is possible: the model knows its envelopes.
    pub targets: Vec<String>,
    pub transports: Vec<Transport>,
    /// Messages per transport; each takes a third of a second.
    pub messages: u64,
    /// Message size in bytes.
    pub bytes: usize,
    /// A file that replaces `energy/radios.toml`. Empty: the built-in file.
    pub radios: String,
    pub battery_wh: f64,
}

impl Choice {
    /// Errors: an unknown parameter, or a value out of range.
    pub fn read(parameters: &toml::Table) -> anyhow::Result<Choice> {
        let choice: Choice = parameters.clone().try_into()?;
        ensure!(choice.targets == [TARGET], "targets: {TARGET} alone, whose envelopes the model knows");
        ensure!(!choice.transports.is_empty(), "transports: one at least");
        check_over_tcp(&choice.transports)?;
        ensure!((1..=10_000).contains(&choice.messages), "messages: 1 to 10,000");
        let of_one_segment = (BYTES_MIN..=BYTES_MAX).contains(&choice.bytes);
        ensure!(of_one_segment, "bytes: {BYTES_MIN} to {BYTES_MAX}, so that a message is one segment");
        ensure!(choice.battery_wh > 0.0 && choice.battery_wh.is_finite(), "battery_wh: more than 0");
        Ok(choice)
    }

    fn radios(&self) -> Option<&std::path::Path> {
        (!self.radios.is_empty()).then(|| std::path::Path::new(&self.radios))
    }
}

/// Measures the traffic and calculates the wire cost report. As root, the traffic goes over a virtual Ethernet pair of
/// its own, and a packet capture checks it. Otherwise the traffic goes over loopback without a capture, as the report
/// notes. Takes 20 seconds, plus a third of a second per message.
///
/// Errors: Millrace does not start or violates its protocol; the radios file is invalid.
pub fn run(choice: &Choice, options: &Options) -> anyhow::Result<WireCostReport> {
    let radios = Radios::load(choice.radios())?;
    let (mut wire_cost, batch, handshakes) = bytes(choice, options)?;
    wire_cost.published = published::all(&wire_cost, batch, handshakes);
    energy::add(&mut wire_cost, &radios, choice.battery_wh);
    wire_cost.notes.extend(NOTES.map(str::to_owned));
    Ok(wire_cost)
}

const NOTES: [&str; 5] = [
    "Bytes are IP packets with TCP timestamps. Only the rows of the theses include Ethernet, as the theses counted.",
    "TLS: 1.3 with AES-128-GCM or AES-256-GCM; messages only, one record each. Published results show the handshake.",
    "The clients of the lab send the minimum that the protocol requires; a browser adds headers to each request.",
    "A WebSocket is pinged while its client is silent, even if it receives messages; other streams get a heartbeat only if nothing else was sent.",
    "The radios are handsets and networks of 2010 to 2013: their intervals are more lasting results than their joules. To use other radios: --set radios=FILE.",
];

/// Returns the wire cost report with all lines and their path, Muller's batch, and the bytes of a TLS handshake.
fn bytes(choice: &Choice, options: &Options) -> anyhow::Result<(WireCostReport, Batch, Option<f64>)> {
    let target = find(TARGET)?;
    let plan = Plan { messages: choice.messages, payload_bytes: choice.bytes, ..Plan::default() };
    let cable = namespace::check();
    let mut wire_cost = WireCostReport { payload_bytes: choice.bytes as u64, ..WireCostReport::default() };
    let (measured, batch, audit) = if cable.is_ok() {
        let start = || Servers::start(target, options, &namespace::FAR.to_string());
        namespace::across(&namespace::Veth, start, |servers| {
            let capture = Capture::start()?;
            let (measured, batch) = servers.measure(target, choice, &plan)?;
            let audit = audit(&measured, &capture.stop()?)?;
            Ok((measured, batch, Some(audit)))
        })?
    } else {
        let note =
            "Not root: measured on loopback, whose MTU of 65536 never splits a message, and not checked by a capture.";
        wire_cost.notes.push(note.into());
        let (measured, batch) = Servers::start(target, options, "127.0.0.1")?.measure(target, choice, &plan)?;
        (measured, batch, None)
    };
    let (link, mtu) = match cable {
        Ok(()) => ("veth", namespace::MTU),
        Err(error) => {
            let why = format!("{error:#}");
            wire_cost.notes.push(format!(
                "On loopback, whose MTU of 65536 never splits a message, and not checked by a capture: {why}."
            ));
            ("loopback", 65_536)
        }
    };
    let (captured_bytes, counted_bytes) = audit.unzip();
    let header_bytes =
        measured.first().map(|one| one.measured.subscriber.info()).transpose()?.map_or(0, |info| info.header_bytes);
    let ethernet_bytes = published::ETHERNET_BYTES;
    wire_cost.path = Path { link: link.into(), mtu, header_bytes, ethernet_bytes, captured_bytes, counted_bytes };
    let (secured, measured): (Vec<_>, Vec<_>) = measured.into_iter().partition(|one| one.is_secured);
    wire_cost.lines = lines(&measured, &secured)?;
    let handshake = handshake_bytes(&measured, &secured, header_bytes + ethernet_bytes);
    if wire_cost.lines.iter().any(|line| line.retransmitted_bytes > 0.0) {
        wire_cost.notes
            .push("Packets were retransmitted because the machine was busy, so the figures are too large. Run the scenario again.".into());
    }
    let off = wire_cost.lines.iter().filter(|line| line.difference_percent.abs() >= MODEL_PERCENT_MAX).count();
    if off > 0 {
        let of = wire_cost.lines.len();
        let why = "on a busy machine, a response is later than the delayed ACK (40 ms), so the ACK is a packet of its own; or the model is wrong";
        wire_cost
            .notes
            .push(format!("{off} of {of} lines differ from the model by more than {MODEL_PERCENT_MAX} %: {why}."));
    }
    Ok((wire_cost, batch, handshake))
}

/// Three servers: one without heartbeats while messages are counted, one with frequent heartbeats, and one with TLS.
struct Servers {
    quiet: Server,
    beating: Server,
    secured: Server,
}

/// Measurement of one transport on one server, with its plan.
struct TransportMeasurement {
    measured: Measured,
    plan: Plan,
    is_secured: bool,
}

impl Servers {
    fn start(target: &dyn Target, options: &Options, host: &str) -> anyhow::Result<Servers> {
        let start = |target: &dyn Target, settings: &[&str]| {
            let mut options = options.clone();
            let listen = format!("server.listen={host}:0");
            // The network has no other clients.
            let waived = ["server.insecure_no_tls=true", "server.insecure_no_auth=true"];
            for setting in settings.iter().copied().chain([&listen[..]]).chain(waived) {
                options.arguments.extend(["--set".to_owned(), setting.to_owned()]);
            }
            target.start(&options)
        };
        let beating = ["limits.heartbeat=2s", "limits.hold_max=2s"];
        let secured = start(find(SECURED)?, &[])?;
        Ok(Servers { quiet: start(target, &[])?, beating: start(target, &beating)?, secured })
    }

    fn measure(
        &self,
        target: &'static dyn Target,
        choice: &Choice,
        plan: &Plan,
    ) -> anyhow::Result<(Vec<TransportMeasurement>, Batch)> {
        let silent = Plan { warm_up: 1, messages: 0, silences: 2, ..plan.clone() };
        let of = [(target, &self.quiet, plan), (target, &self.beating, &silent), (find(SECURED)?, &self.secured, plan)];
        let mut all = Vec::new();
        for (target, server, plan) in of {
            let is_secured = target.name() == SECURED;
            let measured = each(target, server, &choice.transports, plan)?;
            all.extend(measured.into_iter().map(|measured| TransportMeasurement {
                measured,
                plan: plan.clone(),
                is_secured,
            }));
        }
        Ok((all, batch(target, &self.quiet, published::BATCH_MESSAGES, published::BATCH_BYTES)?))
    }
}

/// Returns the lines in the order of transports, then those over TLS. The lines of silence come from the server with
/// frequent heartbeats, all others from the quiet server.
fn lines(measured: &[TransportMeasurement], secured: &[TransportMeasurement]) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for TransportMeasurement { measured, plan, .. } in measured {
        let found = predict(measured, plan).with_context(|| format!("the model of {}", measured.transport))?;
        lines.extend(found.into_iter().filter(|line| (line.unit == Unit::Silence) == (plan.silences > 0)));
    }
    let order = |line: &Line| Transport::ALL.iter().position(|transport| transport.name() == line.transport);
    lines.sort_by_key(|line| (order(line), line.side, line.unit));
    for TransportMeasurement { measured: over_tls, plan, .. } in secured {
        let plain = measured.iter().find(|one| one.measured.transport == over_tls.transport && one.plan.messages > 0);
        let plain = plain.context("it was measured in the clear, too")?;
        lines.extend(predict_secured(&plain.measured, over_tls, plan)?);
    }
    Ok(lines)
}

/// Returns the bytes that opening a WebSocket takes in addition over TLS. Counts like Somogyi: with segment headers,
/// without pure ACKs.
fn handshake_bytes(
    measured: &[TransportMeasurement],
    secured: &[TransportMeasurement],
    header_bytes: u64,
) -> Option<f64> {
    let opening = |all: &[TransportMeasurement]| {
        let one = all.iter().find(|one| one.measured.transport == Transport::WebSocket && one.plan.messages > 0)?;
        let is_opening = |counted: &&Counted| (counted.side, counted.unit) == (Side::Deliver, Unit::Connection);
        let bytes = one.measured.counted.iter().find(is_opening)?.bytes.sum();
        let ethernet =
            bytes.headers / (header_bytes - published::ETHERNET_BYTES) as f64 * published::ETHERNET_BYTES as f64;
        Some(bytes.total() - bytes.acks + ethernet)
    };
    Some(opening(secured)? - opening(measured)?)
}

/// Returns the bytes of our connections as captured and as counted by the kernel. All these connections must still be
/// open.
fn audit(measured: &[TransportMeasurement], flows: &BTreeMap<Flow, FlowCounters>) -> anyhow::Result<(u64, u64)> {
    let (mut captured, mut counted) = (0, 0);
    for tap in measured.iter().flat_map(|one| [&one.measured.subscriber, &one.measured.publisher]) {
        let (near, far) = (tap.local.port(), tap.remote.port());
        let ours = flows.iter().filter(|(((_, from), (_, to)), _)| [(near, far), (far, near)].contains(&(*from, *to)));
        captured += ours.map(|(_, seen)| seen.bytes).sum::<u64>();
        counted += tap.info()?.bytes(0, 0).total() as u64;
    }
    Ok((captured, counted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::test_parameters::parameters;

    fn with(key: &str, value: &str) -> anyhow::Result<Choice> {
        let parameters = parameters(include_str!("scenario.toml"), &format!("{key} = {value}"));
        CarcareWire.check(&parameters)?;
        Choice::read(&parameters)
    }

    #[test]
    fn invalid_parameters_are_explained() {
        assert_eq!(with("messages", "5").unwrap().messages, 5);
        for (key, value, says) in [
            ("messages", "0", "1 to 10,000"),
            ("bytes", "5000", "one segment"),
            ("targets", r#"["ws"]"#, "millrace alone"),
            ("transports", "[]", "one at least"),
            ("transports", r#"["pigeon"]"#, "pigeon"),
            ("transports", r#"["data-channel"]"#, "TCP"),
            ("battery_wh", "0.0", "more than 0"),
            ("radios", r#""/nowhere/radios.toml""#, "/nowhere/radios.toml"),
            ("message", "5", "message"),
        ] {
            let error = format!("{:#}", with(key, value).unwrap_err());
            assert!(error.contains(says), "{key} = {value}: {error}");
        }
    }
}
