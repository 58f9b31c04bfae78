//! A hundred honest clients that open new channels and rooms during an attack.

use std::{
    cell::RefCell,
    io,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use millrace_lab::histogram::Histogram;
use tokio::net::{TcpSocket, TcpStream};

use crate::attack::post;

pub const CLIENTS: usize = 100;
/// New channels per client.
const CHANNELS: u32 = 5;
/// Timeout of a response. A later response counts as a refusal.
const ANSWER: Duration = Duration::from_secs(2);

/// Responses that the clients received.
#[derive(Default)]
pub struct Opened {
    pub channels: u64,
    pub rooms: u64,
    pub took_us: Histogram,
    /// One line for each request that failed.
    pub refused: Vec<String>,
}

impl Opened {
    pub fn p99_ms(&self) -> f64 {
        self.took_us.quantile_us(0.99).map_or(f64::INFINITY, |us| us as f64 / 1e3)
    }
}

/// Opens a room and then the channels of each client, spread evenly over `lasts`. Each client has its own source
/// address. Blocks.
pub fn open(server: SocketAddr, lasts: Duration) -> Opened {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (opened, began) = (RefCell::new(Opened::default()), tokio::time::Instant::now());
    let step = lasts / (CLIENTS as u32 * (CHANNELS + 1));
    let client = async |number: usize| {
        for turn in 0..=CHANNELS {
            tokio::time::sleep_until(began + step * (turn * CLIENTS as u32 + number as u32)).await;
            let path = match turn {
                0 => format!("/v1/rooms/honest-{number}/participants"),
                _ => format!("/v1/channels/newcomers/{number}/{turn}"),
            };
            let asked = Instant::now();
            let answer = tokio::time::timeout(ANSWER, ask(server, number, &path)).await;
            let mut opened = opened.borrow_mut();
            opened.took_us.record_us(asked.elapsed().as_micros() as u64);
            match answer {
                Ok(Ok(200)) => opened.channels += 1,
                Ok(Ok(201)) => opened.rooms += 1,
                Ok(other) => opened.refused.push(format!("{path}: {other:?}")),
                Err(_) => opened.refused.push(format!("{path}: no answer within {ANSWER:?}")),
            }
        }
    };
    runtime.block_on(join_all((0..CLIENTS).map(client)));
    opened.into_inner()
}

async fn ask(server: SocketAddr, number: usize, path: &str) -> io::Result<u16> {
    let mut stream = connect(server, Ipv4Addr::new(127, 0, 67, 1 + number as u8)).await?;
    post(&mut stream, path, "", b"{}").await
}

async fn connect(server: SocketAddr, source: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    socket.set_zero_linger()?;
    let stream = socket.connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
