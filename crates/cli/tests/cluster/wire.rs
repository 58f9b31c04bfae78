//! Proxy between the nodes and their broker that simulates network faults: connections are cut, or traffic stops in
//! one or both directions.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// Direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Broker,
    Nodes,
}

/// Proxy that forwards connections to the broker.
pub struct FaultyProxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    broker: u16,
    /// True for each direction in which traffic is held.
    held: Mutex<[bool; 2]>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    is_over: AtomicBool,
}

impl FaultyProxy {
    pub fn start(broker: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            broker,
            held: Mutex::default(),
            changed: Condvar::new(),
            open: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let wire = Self { port, shared: shared.clone() };
        thread::spawn(move || {
            for node in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(SeqCst) {
                    return;
                }
                shared.carry(node);
            }
        });
        wire
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops the traffic in this direction. Data that is sent waits.
    pub fn hold(&self, towards: Direction) {
        lock(&self.shared.held)[towards as usize] = true;
    }

    pub fn release(&self, towards: Direction) {
        lock(&self.shared.held)[towards as usize] = false;
        self.shared.changed.notify_all();
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        self.release(Direction::Broker);
        self.release(Direction::Nodes);
        self.cut();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, node: TcpStream) {
        // If the broker is down, the connection of the node is closed as well.
        let Ok(broker) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.broker)) else { return };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle");
        lock(&self.open).extend([copy(&node), copy(&broker)]);
        for (from, into, towards) in [(copy(&node), copy(&broker), Direction::Broker), (broker, node, Direction::Nodes)]
        {
            let _ = into.set_nodelay(true);
            let shared = self.clone();
            thread::spawn(move || shared.copy(from, into, towards));
        }
    }

    fn copy(&self, mut from: TcpStream, mut into: TcpStream, towards: Direction) {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let held = lock(&self.held);
            drop(self.changed.wait_while(held, |held| held[towards as usize]));
            if into.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), into.shutdown(Shutdown::Both));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
