//! TCP flows of the kernel over the links of a call, with CUBIC.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use millrace_link::Direction;
use rustix::net::sockopt::set_tcp_congestion;

/// Congestion control of the flows, whatever the default of this machine is.
pub const ALGORITHM: &str = "cubic";
/// Time after which a flow looks whether it must end.
const LOOK: Duration = Duration::from_millis(50);
/// Time in which a flow must connect, and in which its near end must name its direction.
const START_MAX: Duration = Duration::from_secs(10);
const BLOCK_BYTES: usize = 16 * 1024;

/// All flows of a call. They end when this value is dropped.
pub struct Flows {
    state: Arc<State>,
    port: u16,
}

#[derive(Default)]
struct State {
    is_ended: AtomicBool,
    flows: Mutex<Vec<Flow>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Payload that one flow has delivered.
#[derive(Clone, Debug)]
pub struct Flow {
    pub direction: Direction,
    began: Instant,
    /// Of each second since its begin.
    bytes: Vec<u64>,
}

impl Flow {
    /// Returns the rate of each whole second until `end`.
    pub fn kbit_per_s(&self, end: Instant) -> Vec<f64> {
        let seconds = end.saturating_duration_since(self.began).as_secs() as usize;
        let bytes = |second: usize| self.bytes.get(second).copied().unwrap_or_default();
        (0..seconds).map(|second| bytes(second) as f64 * 8.0 / 1000.0).collect()
    }
}

impl Flows {
    /// Listens for the far ends.
    pub fn listen() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for TCP flows")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let accepting = state.clone();
        state.spawn("lab-flows", move || {
            while !accepting.is_ended.load(Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => accept(&accepting, stream),
                    Err(_) => thread::sleep(LOOK),
                }
            }
        })?;
        Ok(Self { state, port })
    }

    /// Starts a flow in each direction. Call this in the namespace of the near end. `host`: address of the far end.
    pub fn open(&self, host: Ipv4Addr) -> anyhow::Result<()> {
        for direction in Direction::BOTH {
            let (state, address) = (self.state.clone(), SocketAddr::from((host, self.port)));
            self.state.spawn("lab-flow", move || {
                let Ok(mut stream) = TcpStream::connect_timeout(&address, START_MAX) else { return };
                let head = [u8::from(direction == Direction::Down)];
                if prepare(&stream).and_then(|()| stream.write_all(&head)).is_ok() {
                    match direction {
                        Direction::Up => send(&state, stream),
                        Direction::Down => receive(&state, stream, direction),
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Ends all flows, and returns what they have delivered.
    pub fn finish(&self) -> Vec<Flow> {
        self.state.end();
        std::mem::take(&mut *self.state.flows())
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.state.end();
    }
}

impl State {
    fn flows(&self) -> MutexGuard<'_, Vec<Flow>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    fn end(&self) {
        self.is_ended.store(true, Relaxed);
        // The lock is not held while joining: the thread that accepts may start another one.
        while let Some(thread) = { self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop() } {
            let _ = thread.join();
        }
    }
}

fn accept(state: &Arc<State>, mut stream: TcpStream) {
    let of = state.clone();
    let serve = move || {
        let mut head = [0; 1];
        let is_ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(START_MAX)));
        if is_ready.and_then(|()| stream.read_exact(&mut head)).and_then(|()| prepare(&stream)).is_err() {
            return;
        }
        match head {
            [0] => receive(&of, stream, Direction::Up),
            _ => send(&of, stream),
        }
    };
    // Without a thread, the flow delivers nothing, which the table shows.
    let _ = state.spawn("lab-flow", serve);
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    set_tcp_congestion(stream, ALGORITHM)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn send(state: &State, mut stream: TcpStream) {
    let block = [0x5a; BLOCK_BYTES];
    while !state.is_ended.load(Relaxed) {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error) if is_late(&error) => {}
            Err(_) => return,
        }
    }
}

fn receive(state: &State, mut stream: TcpStream, direction: Direction) {
    let (began, mut block) = (Instant::now(), [0; BLOCK_BYTES]);
    let place = {
        let mut flows = state.flows();
        flows.push(Flow { direction, began, bytes: Vec::new() });
        flows.len() - 1
    };
    while !state.is_ended.load(Relaxed) {
        match stream.read(&mut block) {
            Ok(0) => break,
            Ok(length) => {
                let (second, mut flows) = (began.elapsed().as_secs() as usize, state.flows());
                let bytes = &mut flows[place].bytes;
                bytes.resize(bytes.len().max(second + 1), 0);
                bytes[second] += length as u64;
            }
            Err(error) if is_late(&error) => {}
            Err(_) => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_deliver_in_both_directions() {
        let flows = Flows::listen().expect("a port");
        flows.open(Ipv4Addr::LOCALHOST).expect("two threads");
        let until = Instant::now() + Duration::from_secs(10);
        let delivers = |flow: &Flow| !flow.bytes.is_empty();
        while flows.state.flows().iter().filter(|flow| delivers(flow)).count() < 2 {
            assert!(Instant::now() < until, "{:?}", flows.state.flows());
            thread::yield_now();
        }
        let ups = flows.finish().iter().filter(|flow| flow.direction == Direction::Up).count();
        assert_eq!(ups, 1, "and one down");
    }

    #[test]
    fn rates_are_those_of_whole_seconds() {
        let began = Instant::now();
        let flow = Flow { direction: Direction::Up, began, bytes: vec![1000, 0, 2000] };
        let rates = |ms: u64| flow.kbit_per_s(began + Duration::from_millis(ms));
        assert_eq!((rates(2900), rates(4000)), (vec![8.0, 0.0], vec![8.0, 0.0, 16.0, 0.0]));
    }
}
