//! The network between clients and a server: an emulated link with a NAT, or a middlebox in user space where links are
//! not possible.

use std::{net::SocketAddr, time::Duration};

use millrace_link::{Config, Nat, Traces};

use crate::{
    middlebox::{Behaviour, Middlebox},
    path::TunCable,
    recording::{Finding, Form, LinkRun},
    targets::Server,
    wire::namespace::{self, FAR_DEVICE, NEAR_DEVICE},
};

/// Networks of one scenario: all are equal but for their NAT.
pub struct Networks {
    /// Link to which the NAT is added. `None`: links are not possible here.
    link: Option<Config>,
    name: String,
    seed: u64,
    /// Why there are no links.
    why_not: String,
}

/// Addresses of the server.
#[derive(Clone, Copy)]
pub struct Ends {
    /// For connections whose silence is measured: through the NAT.
    pub through_nat: SocketAddr,
    /// For publishers and observers. On a link, this is the same network.
    pub server: SocketAddr,
}

impl Networks {
    /// `link` has no NAT of its own. `name`: of the path.
    pub fn new(link: Config, name: String, seed: u64) -> Self {
        match TunCable::check() {
            Ok(()) => Self { link: Some(link), name, seed, why_not: String::new() },
            Err(error) => Self { link: None, name, seed, why_not: format!("{error:#}") },
        }
    }

    pub fn are_emulated(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the delay of both directions.
    pub fn round_trip(&self) -> Duration {
        self.link.as_ref().map_or(Duration::ZERO, |link| link.up.delay + link.down.delay)
    }

    /// Returns what speaks against results without links.
    pub fn finding(&self, form: Form) -> Option<Finding> {
        (!self.are_emulated()).then(|| Finding {
            code: "no_link".into(),
            detail: format!(
                "through a middlebox on loopback, which acknowledges what it discards, instead of an emulated link: {}",
                self.why_not
            ),
            invalidates: form != Form::Quick,
        })
    }

    /// Starts a server and measures through a NAT; `None` is a network without one. In user space, a NAT never resets.
    ///
    /// Errors: those of `start` and `measure`; the link failed.
    pub fn through<T: Send>(
        &self,
        nat: Option<Nat>,
        start: impl FnOnce() -> anyhow::Result<Server> + Send,
        measure: impl FnOnce(Ends) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<(T, Option<LinkRun>)> {
        let Some(link) = &self.link else {
            let server = start()?;
            let idle = nat.map_or(Duration::MAX, |nat| nat.idle);
            let middlebox = Middlebox::start(server.address, Behaviour::Nat { idle })?;
            let ends = Ends { through_nat: middlebox.address, server: server.address };
            return Ok((measure(ends)?, None));
        };
        let cable = TunCable::new(Config { nat, ..link.clone() }, Traces::default(), self.seed, None);
        let (measured, drops) = namespace::across(&cable, start, |mut server| {
            server.move_to(namespace::FAR);
            let measured = measure(Ends { through_nat: server.address, server: server.address })?;
            let far = server.root_pids().first().and_then(|pid| namespace::drops(Some(*pid), FAR_DEVICE).ok());
            Ok((measured, namespace::drops(None, NEAR_DEVICE)? + far.unwrap_or_default()))
        })?;
        Ok((measured, Some(cable.finish()?.link_run(self.name.clone(), drops))))
    }
}

/// Describes the cost of the emulator over several links, for the notes of a table. Empty: there were no links.
pub fn cost(links: &[LinkRun]) -> Vec<String> {
    let packets: u64 = links.iter().map(|link| link.up.received + link.down.received).sum();
    let discarded: u64 = links.iter().map(|link| link.up.lost + link.down.lost).sum();
    let worst = |of: fn(&LinkRun) -> f64| links.iter().map(of).fold(0.0, f64::max);
    if links.is_empty() {
        return Vec::new();
    }
    vec![
        format!(
            "Emulator: {} links, {packets} packets, {discarded} discarded or lost; at most {:.1} us of CPU per packet, {:.3} cores.",
            links.len(),
            worst(|link| link.cpu_us_per_packet),
            worst(|link| link.cpu_cores)
        ),
        format!(
            "Packets left the links late by at most {:.0} us (p50) and {:.0} us (p99).",
            worst(|link| link.late_p50_us),
            worst(|link| link.late_p99_us)
        ),
    ]
}

/// Returns the findings against links. Each code appears once, for the link with the latest packets.
pub fn findings(links: &[LinkRun]) -> Vec<Finding> {
    let mut links: Vec<&LinkRun> = links.iter().collect();
    links.sort_by(|a, b| b.late_p99_us.total_cmp(&a.late_p99_us));
    let mut findings: Vec<Finding> = Vec::new();
    for finding in links.into_iter().flat_map(LinkRun::findings) {
        if findings.iter().all(|known| known.code != finding.code) {
            findings.push(finding);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_that_of_the_worst_link() {
        let link = |us: f64| LinkRun { cpu_us_per_packet: us, late_p99_us: us * 100.0, ..LinkRun::default() };
        let text = cost(&[link(3.0), link(9.5), link(4.0)]).join(" ");
        assert!(text.contains("3 links") && text.contains("9.5 us") && text.contains("950 us (p99)"), "{text}");
        assert!(cost(&[]).is_empty());
    }

    #[test]
    fn slow_links_are_one_finding() {
        let link = |late_p99_us: f64| LinkRun { late_p99_us, ..LinkRun::default() };
        let found = findings(&[link(10.0), link(4000.0), link(3000.0)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].code == "link_late" && found[0].detail.contains("4000"), "{found:?}");
        assert!(found[0].invalidates);
    }

    #[test]
    fn networks_without_links_mark_their_results() {
        let networks = Networks { link: None, name: "own".into(), seed: 1, why_not: "no root".into() };
        let of = |form| networks.finding(form).expect("a finding");
        assert!(of(Form::Full).invalidates && !of(Form::Quick).invalidates);
        assert!(of(Form::Full).detail.contains("no root"));
        assert!(!networks.are_emulated());
    }
}
