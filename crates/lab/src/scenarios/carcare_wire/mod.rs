//! What CarCare costs: bytes per message, request and connection on every transport, the day of a car and its phone's energy.
//!
//! Somogyi's tables 5 to 7, 10 and 12 to 14, Thorsen's and Muller's overheads (rows S-04, S-05, T-08, M-09), printed and corrected, beside
//! what Millrace sends. Nothing lasts as long as it did: silence is measured on a server with short heartbeats, and a day is added up.

mod energy;
mod published;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, ensure};

use crate::{
    energy::Radios,
    targets::{Options, Server, Target, Transport, find},
    wire::{
        Bill, Line, Path, Unit,
        capture::{Capture, Flow, Seen},
        measure::{Batch, Measured, Plan, batch, each},
        model::predict,
        namespace,
    },
};

/// What may be chosen.
#[derive(Clone, Debug)]
pub struct Choice {
    pub target: Options,
    pub transports: Vec<Transport>,
    /// Messages per transport; each takes a third of a second.
    pub messages: u64,
    pub payload_bytes: usize,
    /// Instead of `energy/radios.toml`.
    pub radios: Option<PathBuf>,
    pub battery_wh: f64,
}

impl Default for Choice {
    /// Somogyi's record (134 bytes of JSON), Karadogan's battery.
    fn default() -> Self {
        let transports = Transport::ALL.to_vec();
        Self { target: Options::default(), transports, messages: 12, payload_bytes: 134, radios: None, battery_wh: 8.0 }
    }
}

/// Measures, and adds up. As root on a cable of our own, with a capture beside; else on loopback, which the bill says. Lasts about 25 seconds.
///
/// Errors: Millrace does not start or does not keep its protocol; the radios' file is bad.
pub fn run(choice: &Choice) -> anyhow::Result<Bill> {
    ensure!(choice.battery_wh > 0.0, "a battery of {} Wh", choice.battery_wh);
    let radios = Radios::load(choice.radios.as_deref())?;
    let (mut bill, batch) = bytes(choice)?;
    bill.published = published::all(&bill, batch);
    energy::add(&mut bill, &radios, choice.battery_wh);
    bill.notes.extend(NOTES.map(str::to_owned));
    Ok(bill)
}

const NOTES: [&str; 5] = [
    "Bytes are those of IP packets with TCP timestamps; Ethernet is in the rows of the theses only, as they counted it.",
    "No TLS yet: its column is 0, and the published figures with TLS stand alone.",
    "Our clients say the least that the protocol asks for; a browser adds about 400 bytes of headers to each request.",
    "A WebSocket is pinged as long as its client says nothing, messages or not; other streams only when nothing was sent.",
    "Radios are handsets and networks of 2010 to 2013: what they say about intervals lasts longer than their joules. Your own: --radios FILE.",
];

/// All lines, what they went over, and Muller's batch.
fn bytes(choice: &Choice) -> anyhow::Result<(Bill, Batch)> {
    let target = find("millrace")?;
    let plan = Plan { messages: choice.messages, payload_bytes: choice.payload_bytes, ..Plan::default() };
    let is_root = rustix::process::geteuid().is_root();
    let mut bill = Bill { payload_bytes: choice.payload_bytes as u64, ..Bill::default() };
    let (measured, batch, audit) = if is_root {
        let start = || Servers::start(target, choice, &namespace::FAR.to_string());
        namespace::across(start, |servers| {
            let capture = Capture::start()?;
            let (measured, batch) = servers.measure(target, choice, &plan)?;
            let audit = audit(&measured, &capture.stop()?)?;
            Ok((measured, batch, Some(audit)))
        })?
    } else {
        let note =
            "Not root: measured on loopback, whose MTU of 65536 never splits a message, and not checked by a capture.";
        bill.notes.push(note.into());
        let (measured, batch) = Servers::start(target, choice, "127.0.0.1")?.measure(target, choice, &plan)?;
        (measured, batch, None)
    };
    let (link, mtu) = if is_root { ("veth", namespace::MTU) } else { ("loopback", 65_536) };
    let (captured_bytes, counted_bytes) = audit.unzip();
    let header_bytes =
        measured.first().map(|(one, _)| one.subscriber.info()).transpose()?.map_or(0, |info| info.header_bytes);
    let ethernet_bytes = published::ETHERNET_BYTES;
    bill.path = Path { link: link.into(), mtu, header_bytes, ethernet_bytes, captured_bytes, counted_bytes };
    bill.lines = lines(&measured)?;
    if bill.lines.iter().any(|line| line.retransmitted_bytes > 0.0) {
        bill.notes
            .push("Something was sent twice: the machine was busy, and figures are too large. Run it again.".into());
    }
    Ok((bill, batch))
}

/// One that keeps quiet while messages are counted, and one that beats often.
struct Servers {
    quiet: Server,
    beating: Server,
}

impl Servers {
    fn start(target: &dyn Target, choice: &Choice, host: &str) -> anyhow::Result<Servers> {
        let start = |settings: &[&str]| {
            let mut options = choice.target.clone();
            let listen = format!("server.listen={host}:0");
            for setting in settings.iter().copied().chain([&listen[..]]) {
                options.arguments.extend(["--set".to_owned(), setting.to_owned()]);
            }
            target.start(&options)
        };
        let beating = ["limits.heartbeat=2s", "limits.hold_max=2s"];
        Ok(Servers { quiet: start(&[])?, beating: start(&beating)? })
    }

    /// With the plan that each was measured by.
    fn measure(
        &self,
        target: &'static dyn Target,
        choice: &Choice,
        plan: &Plan,
    ) -> anyhow::Result<(Vec<(Measured, Plan)>, Batch)> {
        let silent = Plan { warm_up: 1, messages: 0, silences: 2, ..plan.clone() };
        let mut all = Vec::new();
        for (server, plan) in [(&self.quiet, plan), (&self.beating, &silent)] {
            let measured = each(target, server, &choice.transports, plan)?;
            all.extend(measured.into_iter().map(|one| (one, plan.clone())));
        }
        Ok((all, batch(target, &self.quiet, published::BATCH_MESSAGES, published::BATCH_BYTES)?))
    }
}

/// Everything but the silence is the quiet server's; in the order of transports.
fn lines(measured: &[(Measured, Plan)]) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (measured, plan) in measured {
        let found = predict(measured, plan).with_context(|| format!("the model of {}", measured.transport))?;
        lines.extend(found.into_iter().filter(|line| (line.unit == Unit::Silence) == (plan.silences > 0)));
    }
    let order = |line: &Line| Transport::ALL.iter().position(|transport| transport.name() == line.transport);
    lines.sort_by_key(|line| (order(line), line.side, line.unit));
    Ok(lines)
}

/// Bytes of our connections, which are all still open, as the capture saw them and as the kernel has counted them.
fn audit(measured: &[(Measured, Plan)], flows: &BTreeMap<Flow, Seen>) -> anyhow::Result<(u64, u64)> {
    let (mut captured, mut counted) = (0, 0);
    for tap in measured.iter().flat_map(|(one, _)| [&one.subscriber, &one.publisher]) {
        let (near, far) = (tap.local.port(), tap.remote.port());
        let ours = flows.iter().filter(|(((_, from), (_, to)), _)| [(near, far), (far, near)].contains(&(*from, *to)));
        captured += ours.map(|(_, seen)| seen.bytes).sum::<u64>();
        counted += tap.info()?.bytes(0, 0).total() as u64;
    }
    Ok((captured, counted))
}
