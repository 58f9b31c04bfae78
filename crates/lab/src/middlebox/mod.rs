//! Faulty middleboxes between clients and servers. They run in user space on loopback, so they need no privileges and
//! no kernel module.
//!
//! The faults: a NAT that drops an idle connection without notice to either end; a path that fails when the network
//! changes; a proxy that caches regardless of the headers; a proxy that buffers streams. Read first: [`Middlebox`],
//! [`Behaviour`].

mod behaviour;
mod flow;
mod proxy;

use std::{
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::*},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

pub use behaviour::Behaviour;
use flow::{Flow, lock};

/// Maximum number of connections of one middlebox. Further connections are refused.
const FLOWS_MAX: usize = 1000;

/// Running middlebox. Dropping it closes the middlebox and all its connections.
pub struct Middlebox {
    /// Address that clients connect to instead of the server.
    pub address: SocketAddr,
    inner: Arc<Inner>,
    accepting: Option<JoinHandle<()>>,
}

struct Inner {
    upstream: SocketAddr,
    behaviour: Behaviour,
    stop: AtomicBool,
    flows: Mutex<Vec<Arc<Flow>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cache: proxy::Cache,
    from_cache: AtomicU64,
}

impl Middlebox {
    /// Starts a middlebox in front of `upstream`.
    ///
    /// Errors: no port could be bound, or no thread could be started.
    pub fn start(upstream: SocketAddr, behaviour: Behaviour) -> anyhow::Result<Middlebox> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Inner {
            upstream,
            behaviour,
            stop: AtomicBool::new(false),
            flows: Mutex::default(),
            threads: Mutex::default(),
            cache: proxy::Cache::default(),
            from_cache: AtomicU64::new(0),
        });
        let shared = inner.clone();
        let accept = move || {
            for client in listener.incoming().take_while(|_| !shared.stop.load(Acquire)) {
                // If this fails, the client's connection is closed, which the client notices.
                let _ = client.and_then(|client| Inner::carry(&shared, client));
            }
        };
        let accepting = Some(std::thread::Builder::new().name("lab-middlebox".into()).spawn(accept)?);
        Ok(Middlebox { address, inner, accepting })
    }

    /// Breaks the path of all connections: neither end receives anything from the other after that.
    pub fn forget_all(&self) {
        lock(&self.inner.flows).iter().for_each(|flow| flow.forget());
    }

    /// Returns the number of answers that came from the cache.
    pub fn from_cache(&self) -> u64 {
        self.inner.from_cache.load(Relaxed)
    }
}

impl Drop for Middlebox {
    fn drop(&mut self) {
        self.inner.stop.store(true, Release);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for flow in lock(&self.inner.flows).drain(..) {
            let _ = flow.client.shutdown(Shutdown::Both);
            let _ = flow.server.shutdown(Shutdown::Both);
        }
        let threads = std::mem::take(&mut *lock(&self.inner.threads));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Inner {
    fn carry(shared: &Arc<Inner>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(shared.upstream)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let idle = match shared.behaviour {
            Behaviour::Nat { idle } => idle,
            _ => Duration::MAX,
        };
        let flow = Arc::new(Flow::new(client, server, idle, Instant::now()));
        let mut flows = lock(&shared.flows);
        if flows.len() >= FLOWS_MAX {
            return Err(std::io::Error::other("too many connections"));
        }
        flows.push(flow.clone());
        let spawn = |body: Box<dyn FnOnce() + Send>| -> std::io::Result<()> {
            let thread = std::thread::Builder::new().name("lab-middlebox-flow".into()).spawn(body)?;
            lock(&shared.threads).push(thread);
            Ok(())
        };
        if matches!(shared.behaviour, Behaviour::Nat { .. }) {
            let back = flow.clone();
            spawn(Box::new(move || back.pass(&back.server, &back.client)))?;
            return spawn(Box::new(move || flow.pass(&flow.client, &flow.server)));
        }
        let inner = shared.clone();
        spawn(Box::new(move || {
            // Data that is not HTTP ends the connection, as it would in a real proxy.
            let _ = proxy::serve(&flow, inner.behaviour, &inner.cache, &inner.from_cache);
            let _ = flow.client.shutdown(Shutdown::Both);
            let _ = flow.server.shutdown(Shutdown::Both);
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Returns a middlebox, a client of it, and the server's end of the connection.
    fn ends(behaviour: Behaviour) -> (Middlebox, TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let middlebox = Middlebox::start(listener.local_addr().unwrap(), behaviour).unwrap();
        let client = TcpStream::connect(middlebox.address).unwrap();
        let server = listener.accept().unwrap().0;
        for end in [&client, &server] {
            end.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        }
        (middlebox, client, server)
    }

    fn hears(end: &mut TcpStream) -> std::io::Result<Vec<u8>> {
        let mut bytes = [0; 1000];
        end.read(&mut bytes).map(|length| bytes[..length].to_vec())
    }

    #[test]
    fn nat_forwards_active_flows_and_their_end() {
        let (_middlebox, mut client, mut server) = ends(Behaviour::Nat { idle: Duration::from_secs(60) });
        client.write_all(b"there").unwrap();
        assert_eq!(hears(&mut server).unwrap(), b"there");
        server.write_all(b"back").unwrap();
        assert_eq!(hears(&mut client).unwrap(), b"back");
        drop(server);
        assert_eq!(hears(&mut client).unwrap(), b"", "the end is heard");
    }

    #[test]
    fn expired_flow_is_silent_at_both_ends() {
        let (middlebox, mut client, mut server) = ends(Behaviour::Nat { idle: Duration::from_secs(60) });
        client.write_all(b"there").unwrap();
        assert_eq!(hears(&mut server).unwrap(), b"there");
        middlebox.forget_all();
        client.write_all(b"lost").unwrap();
        server.write_all(b"lost").unwrap();
        let silent = Err(std::io::ErrorKind::WouldBlock);
        assert_eq!(hears(&mut client).map_err(|error| error.kind()), silent);
        assert_eq!(hears(&mut server).map_err(|error| error.kind()), silent);
        drop(server);
        assert_eq!(hears(&mut client).map_err(|error| error.kind()), silent, "not even the end is heard");
    }

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nCache-Control: no-store\r\n\r\n";

    #[test]
    fn cache_repeats_answer_of_the_same_url() {
        let (middlebox, mut client, mut server) = ends(Behaviour::Cache);
        for (path, answer) in [("/a", "1"), ("/b", "2")] {
            client.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
            assert!(hears(&mut server).unwrap().starts_with(format!("GET {path} ").as_bytes()));
            server.write_all(&[ANSWER, answer.as_bytes()].concat()).unwrap();
            assert!(hears(&mut client).unwrap().ends_with(answer.as_bytes()));
        }
        client.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\nCache-Control: no-cache\r\n\r\n").unwrap();
        assert!(hears(&mut client).unwrap().ends_with(b"\r\n\r\n1"), "without asking the server");
        assert_eq!(middlebox.from_cache(), 1);
    }

    #[test]
    fn buffer_delays_streams_but_not_answers() {
        let (_middlebox, mut client, mut server) = ends(Behaviour::Buffer { bytes: 100 });
        client.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        hears(&mut server).unwrap();
        server.write_all(&[ANSWER, b"1"].concat()).unwrap();
        assert!(hears(&mut client).unwrap().ends_with(b"\r\n\r\n1"));
        client.write_all(b"GET /s HTTP/1.1\r\nAccept: text/event-stream\r\n\r\n").unwrap();
        hears(&mut server).unwrap();
        server.write_all(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n").unwrap();
        assert!(hears(&mut client).is_err(), "held back");
        server.write_all(&[b'x'; 100]).unwrap();
        assert!(hears(&mut client).unwrap().starts_with(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n"));
    }
}
