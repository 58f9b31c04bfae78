//! The two scenarios of Thorsen's thesis in which latency and memory exploded at saturation: a ticker, and a chat in
//! which every client receives the messages of every client. The chat's upstream is the WebSocket itself, and `POST`
//! for the other transports.

use std::time::Duration;

use crate::{
    args::Args,
    figures::{max_ms, quantile_ms},
    reader::{ReaderOptions, Transport},
    reader_group::{Load, ReaderGroup},
    setup::{CHANNEL, prime, publisher, start},
    upstream::Upstream,
};

const TICKS_PER_S: f64 = 200.0;
const CHAT_BYTES: usize = 71;
/// Interval between two messages of a chat client.
const CHAT_EVERY_S: f64 = 3.0;

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!("\nthorsen: {} clients, one shard; ages in ms; PSS after 4 s and at the end", args.clients);
    let all = [Transport::LongPolling, Transport::Sse, Transport::Stream, Transport::WebSocket];
    for transport in args.transports(&all) {
        for chat in [false, true] {
            let server = start(1, &[0])?;
            let mut options = prime(&server, transport)?;
            if chat {
                options = ReaderOptions { first: 0, sources: args.clients as u64, bytes: CHAT_BYTES, ..options };
            }
            let group = ReaderGroup::new(&server, args.clients, &options)?;
            let mut upstream = match (chat, transport) {
                (false, _) => publisher(&server, false)?,
                (true, Transport::WebSocket) => Upstream::Readers,
                (true, _) => Upstream::posts(server.address, CHANNEL, args.clients)?,
            };
            let per_s = if chat { args.clients as f64 / CHAT_EVERY_S } else { TICKS_PER_S };
            let load = Load { per_s, seconds: args.seconds, slice: Duration::from_secs(1), stall: None };
            let outcome = group.open_loop(&server, &mut upstream, &load)?;
            let all = outcome.ages.all();
            println!(
                "  {transport:?} {}: age p50 {:.1} p99 {:.1} max {:.1} ms; {}; {}",
                if chat { "chat" } else { "ticker" },
                quantile_ms(&all, 0.5),
                quantile_ms(&all, 0.99),
                max_ms(&all),
                outcome.costs(),
                outcome.losses()?
            );
        }
    }
    Ok(())
}
