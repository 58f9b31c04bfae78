//! Millrace, really started, on a cable of our own: the model and a capture agree with what the kernel counts.

use std::{thread, time::Duration};

use millrace_lab::{
    targets::{Endpoint, Options, Server, Transport, find},
    wire::{
        Line, Unit,
        capture::{Capture, Flow, Seen},
        difference_percent,
        measure::{Measured, Plan, measure},
        model::predict,
        namespace::{FAR, across},
    },
};

fn server(listen: &str) -> anyhow::Result<Server> {
    let listen = format!("server.listen={listen}:0");
    let set = ["--set", &listen, "--set", "limits.heartbeat=2s", "--set", "limits.hold_max=2s"];
    let arguments = set.map(str::to_owned).to_vec();
    find("millrace")?.start(&Options { arguments, ..Options::default() })
}

fn measure_all(server: &Server, plan: &Plan) -> anyhow::Result<Vec<Measured>> {
    let target = find("millrace")?;
    thread::scope(|scope| {
        let started = Transport::ALL.map(|transport| {
            scope.spawn(move || {
                let endpoint = Endpoint { target, transport, server, poll_every: Duration::from_secs(3600) };
                measure(transport, &endpoint, plan).map_err(|error| error.context(transport))
            })
        });
        started.into_iter().map(|one| one.join().expect("measured")).collect()
    })
}

#[test]
fn wire_model_and_capture_agree_with_the_kernel() {
    let plan = Plan::default();
    let both = across(
        || server(&FAR.to_string()),
        |server| {
            let capture = Capture::start()?;
            let measured = measure_all(server, &plan)?;
            Ok((measured, capture.stop()?, server.address))
        },
    );
    let (measured, flows, far) = both.unwrap();
    for measured in &measured {
        for line in predict(measured, &plan).unwrap() {
            eprintln!("{:?} {:?} {} {:+.2} %", line.side, line.unit, line.transport, line.difference_percent);
            eprintln!(
                "   up   {:?}\n        {:?}\n   down {:?}\n        {:?}",
                line.measured.up, line.model.up, line.measured.down, line.model.down
            );
        }
    }
}
