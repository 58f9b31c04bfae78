//! Effect of readers that never read on many readers that do.

use std::{io::Write, net::TcpStream, time::Duration};

use millrace_lab::load::websocket::WebSocket;

use crate::{
    args::Args,
    figures::{median, quantile_ms},
    reader::Transport,
    reader_group::{Load, Outcome, ReaderGroup},
    setup::{prime, publisher, start},
};

const READERS: usize = 1000;
const DEAD: usize = 100;
const PER_S: f64 = 200.0;
/// Seconds until the sockets of the readers that never read are full. Until then these readers are like the others.
const FILLED_S: usize = 2;

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!(
        "\ndead-weight: {READERS} WebSockets at {PER_S} messages/s, without and with {DEAD} that never read, in turns; ages from second {FILLED_S} on"
    );
    let mut p99_ms = [Vec::new(), Vec::new()];
    let mut pss_bytes = [Vec::new(), Vec::new()];
    for pass in 1..=args.passes {
        for (index, dead) in [0, DEAD].into_iter().enumerate() {
            let outcome = once(args.seconds, dead)?;
            let all = outcome.ages.after(FILLED_S);
            p99_ms[index].push(quantile_ms(&all, 0.99));
            pss_bytes[index].push(outcome.pss_bytes[1] as f64);
            println!(
                "  pass {pass}, {dead:3} dead: age p50 {:.2} p99 {:.2} ms; {}; {}",
                quantile_ms(&all, 0.5),
                quantile_ms(&all, 0.99),
                outcome.costs(),
                outcome.losses()?
            );
            println!("         {}", outcome.ages.by_slice());
        }
    }
    let [without, with] = p99_ms.map(median);
    let [without_bytes, with_bytes] = pss_bytes.map(median);
    println!(
        "  medians: p99 {without:.2} -> {with:.2} ms ({:+.1} %), PSS {:+.2} MB",
        (with / without - 1.0) * 100.0,
        (with_bytes - without_bytes) / 1024.0 / 1024.0
    );
    Ok(())
}

fn once(seconds: f64, dead: usize) -> anyhow::Result<Outcome> {
    let server = start(1, &[0])?;
    let options = prime(&server, Transport::WebSocket)?;
    let path = format!("/v1/channels/{}?since={}", options.channel, options.since);
    let mut never_read = Vec::with_capacity(dead);
    for _ in 0..dead {
        let mut stream = TcpStream::connect(server.address)?;
        // A small buffer, so that these readers fall behind after a second and not after a minute.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096)?;
        let mut request = Vec::new();
        WebSocket::new(path.clone(), None).open(&mut request);
        stream.write_all(&request)?;
        never_read.push(stream);
    }
    let group = ReaderGroup::new(&server, READERS, &options)?;
    let load = Load { per_s: PER_S, seconds, slice: Duration::from_secs(1), stall: None };
    group.open_loop(&server, &mut publisher(&server, false)?, &load)
}
