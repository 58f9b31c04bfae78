//! Measures with the lab's generator: each client requests one URL again as soon as the answer arrives.
//! `scripts/lab-check-generator.sh` compares the results with wrk.
//!
//! ```sh
//! cargo run --release -p millrace-lab --example requests -- 127.0.0.1:8080 '/v1/channels/a?since=earliest' PID 64 4
//! ```
//!
//! Prints requests per second, CPU time of process PID per request in us, the median request time in ms, and the CPU
//! share of PID.

use std::{env, net::SocketAddr, time::Duration};

use anyhow::{Context, ensure};
use millrace_lab::{
    load::{
        Dialect, Event, LoadTarget, Plan, Rate, Role, Shape,
        http::{Answer, get},
        run,
    },
    observe::Watch,
    recording::PhaseName,
};

const HEADERS: &str = "Accept: application/json\r\n";

struct Asking {
    address: SocketAddr,
    path: String,
}

impl LoadTarget for Asking {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn is_duplex(&self) -> bool {
        true
    }

    fn dialect(&self, _: Role, _: &str) -> Box<dyn Dialect> {
        Box::new(Asker { path: self.path.clone(), asked: None })
    }
}

/// Sends requests. The lab counts a request as a publication and its answer as the delivery.
struct Asker {
    path: String,
    /// Payload of the pending request.
    asked: Option<Vec<u8>>,
}

impl Dialect for Asker {
    fn open(&mut self, _: &mut Vec<u8>) -> bool {
        self.asked = None;
        true
    }

    fn feed(
        &mut self,
        bytes: &[u8],
        _: u64,
        _: &mut Vec<u8>,
        emit: &mut dyn FnMut(Event<'_>),
    ) -> anyhow::Result<usize> {
        let Some(answer) = Answer::read(bytes)? else { return Ok(0) };
        answer.check()?;
        emit(Event::Message(&self.asked.take().context("a response without a request")?));
        Ok(answer.used)
    }

    fn publish(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        get(&self.path, HEADERS, out);
        self.asked = Some(payload.to_vec());
    }

    fn can_publish(&self) -> bool {
        self.asked.is_none()
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, path, pid, clients, seconds] = &arguments[..] else {
        anyhow::bail!("which? ADDRESS PATH PID CONNECTIONS SECONDS")
    };
    let (clients, test) = (clients.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let plan = Plan {
        shape: Shape::PingPong,
        clients,
        rate: Rate::Closed { in_flight: clients as u64 },
        probe: Duration::ZERO,
        test,
        cpus: vec![1],
        ..Plan::default()
    };
    let mut watch = Watch::start(&[pid.parse()?], None)?;
    let target = Asking { address: address.parse()?, path: path.clone() };
    let outcome = run(&plan, &target, &mut || watch.look())?;
    let phase = outcome.phase(PhaseName::Test).context("no test")?;
    // Findings show that the machine was busy or that the generator was the limit.
    outcome.validity.iter().for_each(|finding| eprintln!("lab: {}: {}", finding.code, finding.detail));
    let answered = phase.counts.delivered;
    ensure!(answered > 0 && phase.counts.lost == 0, "{} requests, {answered} answers", phase.counts.sent);
    let took_s = phase.drained_s - phase.start_s;
    println!(
        "{:.0} {:.3} {:.3} {:.3}",
        answered as f64 / took_s,
        phase.server.cpu_s() * 1e6 / answered as f64,
        phase.service_us.quantile_us(0.5).unwrap_or(0) as f64 / 1000.0,
        phase.server.cpu_s() / took_s,
    );
    Ok(())
}
