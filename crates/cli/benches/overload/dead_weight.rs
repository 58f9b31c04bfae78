//! Effect of readers that never read on many readers that do.

use std::{io::Write, net::TcpStream, time::Duration};

use crate::{
    Args, Transport,
    crowd::{Crowd, Load, Outcome},
    median, prime, publisher, start,
    wire::upgrade,
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
    let mut pss_kb = [Vec::new(), Vec::new()];
    for pass in 1..=args.passes {
        for (index, dead) in [0, DEAD].into_iter().enumerate() {
            let outcome = once(args.seconds, dead)?;
            let all = outcome.ages.after(FILLED_S);
            p99_ms[index].push(all.quantile_ms(0.99));
            pss_kb[index].push(outcome.pss_kb[1] as f64);
            println!(
                "  pass {pass}, {dead:3} dead: age p50 {:.2} p99 {:.2} ms; {}; {}",
                all.quantile_ms(0.5),
                all.quantile_ms(0.99),
                outcome.costs(),
                outcome.losses()?
            );
            println!("         {}", outcome.ages.by_slice());
        }
    }
    let [without, with] = p99_ms.map(median);
    let [without_kb, with_kb] = pss_kb.map(median);
    println!(
        "  medians: p99 {without:.2} -> {with:.2} ms ({:+.1} %), PSS {:+.2} MB",
        (with / without - 1.0) * 100.0,
        (with_kb - without_kb) / 1024.0
    );
    Ok(())
}

fn once(seconds: f64, dead: usize) -> anyhow::Result<Outcome> {
    let server = start(1, &[0])?;
    let wish = prime(&server, Transport::WebSocket)?;
    let path = format!("/v1/channels/{}?since={}", wish.channel, wish.since);
    let mut never_read = Vec::with_capacity(dead);
    for _ in 0..dead {
        let mut stream = TcpStream::connect(server.address)?;
        // A small buffer, so that these readers fall behind after a second and not after a minute.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096)?;
        stream.write_all(upgrade(&path, "").as_bytes())?;
        never_read.push(stream);
    }
    let crowd = Crowd::new(&server, READERS, &wish)?;
    let load = Load { per_s: PER_S, seconds, slice: Duration::from_secs(1), stall: None };
    crowd.open_loop(&server, &mut publisher(&server, false)?, &load)
}
