//! A generator process: makes one load, as [`Generators`](super::Generators) assigns it.

use std::{
    cell::RefCell,
    io::{BufRead, Write},
    sync::mpsc::{Receiver, channel},
    thread,
};

use anyhow::Context;

use super::message::{Assignment, Message};
use crate::{
    load::{Hooks, Milestone, Sample, run_with},
    targets::{Endpoint, Options, find},
};

/// Makes the load that standard input assigns, and reports to standard output. Ends the process when standard input
/// ends: the process that reads the report has then ended.
///
/// Errors: the assignment is malformed, or the report cannot be written. Failures of the load itself are reported.
pub fn serve() -> anyhow::Result<()> {
    let (send_line, lines) = channel();
    thread::Builder::new().name("lab-input".into()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = send_line.send(line);
        }
        std::process::exit(1);
    })?;
    let mut out = std::io::stdout().lock();
    let mut report = move |message: &Message| -> anyhow::Result<()> {
        serde_json::to_writer(&mut out, message)?;
        out.write_all(b"\n")?;
        Ok(out.flush()?)
    };
    let assignment = lines.recv().context("no assignment")?;
    let assignment = serde_json::from_str(&assignment).context("an assignment is one line of JSON")?;
    let end = match make(&assignment, &lines, &mut report) {
        Ok(done) => done,
        Err(error) => Message::Failed(format!("{error:#}")),
    };
    report(&end)
}

fn make(
    assignment: &Assignment,
    lines: &Receiver<String>,
    report: &mut dyn FnMut(&Message) -> anyhow::Result<()>,
) -> anyhow::Result<Message> {
    let Assignment { plan, target, transport, server, sources, poll_every, publisher } = assignment;
    let target = find(target)?;
    target.prepare_clients(&Options::default())?;
    let endpoint = Endpoint::at(target, *transport, *server, *poll_every).with_publisher(*publisher);
    let endpoint = endpoint.with_sources(sources.clone());
    let report = RefCell::new(report);
    // Starts of the seconds that were reported while they were complete.
    let reported = RefCell::new(Vec::new());
    let hooks = Hooks {
        // The server is observed by the process that has started it.
        observe: &mut || Ok(Sample::default()),
        // A report that cannot be written fails at the next milestone.
        see: &mut |second| {
            reported.borrow_mut().push(second.at_s);
            drop((report.borrow_mut())(&Message::Second(Box::new(second.clone()))));
        },
        reach: &mut |milestone| {
            (report.borrow_mut())(&Message::Reached(milestone))?;
            // The servers are sampled while all connections are open.
            if matches!(milestone, Milestone::Connected | Milestone::Drained) {
                lines.recv().context("the process that has assigned this load has ended")?;
            }
            Ok(())
        },
    };
    let outcome = run_with(plan, &endpoint, hooks)?;
    // The last seconds are complete only at the end of the run.
    for second in outcome.seconds.into_iter().filter(|second| !reported.borrow().contains(&second.at_s)) {
        (report.borrow_mut())(&Message::Second(Box::new(second)))?;
    }
    Ok(Message::Done { phases: outcome.phases, validity: outcome.validity })
}
