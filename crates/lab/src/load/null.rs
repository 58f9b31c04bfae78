//! Null server: accepts the WebSocket upgrade and forwards messages without reading their content. What is measured
//! is then only the kernel and the generator, so a run shows the maximum rate of the generator. With deliberate
//! faults, a run shows whether the generator's accounting detects them.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
        mpsc::channel,
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Context;
use memchr::memmem;
use rustix::{
    event::{Timespec, epoll},
    net::{RecvFlags, SendFlags},
    thread::{CpuSet, sched_setaffinity},
};
use socket2::{Domain, Socket, Type};

use super::{
    dialect::{Dialect, LoadTarget, Role},
    websocket::{ACCEPT, Bare},
};

/// Handling of messages, with the deliberate faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// True if messages are discarded instead of forwarded.
    pub discards: bool,
    /// True if all messages of one read are written at once. Otherwise each message is written on its own, as most
    /// servers do.
    pub batches: bool,
    /// Every n-th delivery is dropped, duplicated, swapped with the next one, or changed. Zero disables the fault.
    pub drop_every: u64,
    pub double_every: u64,
    pub swap_every: u64,
    pub change_every: u64,
    /// Number of deliveries after which the server stalls once, and the length of the stall.
    pub stall: Option<(u64, Duration)>,
}

/// A running null server. It stops when this value is dropped.
pub struct Null {
    address: SocketAddr,
    thread: u32,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Null {
    /// Starts the server on a free port, and on the given CPU if there is one.
    pub fn start(behaviour: Behaviour, cpu: Option<usize>) -> anyhow::Result<Null> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.set_nonblocking(true)?;
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        listener.listen(8192)?;
        let address = listener.local_addr()?.as_socket().context("no address")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (begun, thread) = channel();
        let stopped = stop.clone();
        let body = move || {
            if let Some(cpu) = cpu {
                let mut set = CpuSet::new();
                set.set(cpu);
                sched_setaffinity(None, &set).context("no such CPU")?;
            }
            let _ = begun.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            Server::new(listener, behaviour)?.run(&stopped)
        };
        let handle = std::thread::Builder::new().name("lab-null".into()).spawn(body)?;
        let thread = thread.recv().context("the null server did not start")?;
        Ok(Null { address, thread, stop, handle: Some(handle) })
    }

    /// Returns the CPU time of the server thread since its start.
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.thread))?;
        let ns: f64 = text.split(' ').next().context("no schedstat")?.parse()?;
        Ok(ns / 1e9)
    }
}

impl LoadTarget for Null {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn is_duplex(&self) -> bool {
        true
    }

    fn dialect(&self, role: Role, channel: &str) -> Box<dyn Dialect> {
        let query = if role.subscribes() { "" } else { "?subscribe=no" };
        Box::new(Bare::new(format!("/{channel}{query}")))
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

struct Server {
    listener: Socket,
    epoll: OwnedFd,
    behaviour: Behaviour,
    clients: Vec<Option<Client>>,
    /// Indices of the subscribers of each path.
    channels: HashMap<String, Vec<usize>>,
    deliveries: u64,
}

struct Client {
    socket: Socket,
    /// Path of the channel; empty until the upgrade.
    path: String,
    partial: Vec<u8>,
    waiting: Vec<u8>,
    /// A message that is sent after the next one (fault `swap_every`).
    held: Vec<u8>,
}

const LISTENER: u64 = u64::MAX;

impl Server {
    fn new(listener: Socket, behaviour: Behaviour) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self { listener, epoll, behaviour, clients: Vec::new(), channels: HashMap::new(), deliveries: 0 })
    }

    fn run(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut scratch = vec![0; 256 * 1024];
        let mut events = Vec::with_capacity(1024);
        let nap = Duration::from_millis(20);
        while !stop.load(Acquire) {
            events.clear();
            let wait = Timespec { tv_sec: 0, tv_nsec: nap.as_nanos() as _ };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let flags = event.flags;
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    index if flags == epoll::EventFlags::OUT => self.write(index as usize, &[])?,
                    index => self.read(index as usize, &mut scratch)?,
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> anyhow::Result<()> {
        for _ in 0..256 {
            let Ok((socket, _)) = self.listener.accept() else { break };
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            let key = epoll::EventData::new_u64(self.clients.len() as u64);
            epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN)?;
            let (path, partial, waiting, held) = Default::default();
            self.clients.push(Some(Client { socket, path, partial, waiting, held }));
        }
        Ok(())
    }

    fn read(&mut self, index: usize, scratch: &mut [u8]) -> anyhow::Result<()> {
        let Some(client) = &mut self.clients[index] else { return Ok(()) };
        let length = match rustix::net::recv(client.socket.as_fd(), &mut *scratch, RecvFlags::DONTWAIT) {
            Ok((_, length)) if length > 0 => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            _ => {
                let gone = self.clients[index].take().map(|client| client.path).unwrap_or_default();
                if let Some(subscribers) = self.channels.get_mut(&gone) {
                    subscribers.retain(|other| *other != index);
                }
                return Ok(());
            }
        };
        client.partial.extend_from_slice(&scratch[..length]);
        if client.path.is_empty() {
            return self.upgrade(index);
        }
        // Turns complete client frames into server frames: removes the mask, which is zero, so the payload stays the
        // same.
        let bytes = std::mem::take(&mut client.partial);
        let (mut frames, mut ends, mut at) = (Vec::with_capacity(bytes.len()), Vec::new(), 0);
        while let Some((header, payload, end)) = client_frame(&bytes, at) {
            if bytes[at] & 0x0f == 1 && !self.behaviour.discards {
                frames.push(bytes[at]);
                frames.push(bytes[at + 1] & 0x7f);
                frames.extend_from_slice(&bytes[at + 2..header]);
                frames.extend_from_slice(&bytes[payload..end]);
                ends.push(frames.len());
            }
            at = end;
        }
        let client = self.clients[index].as_mut().expect("was there above");
        client.partial.extend_from_slice(&bytes[at..]);
        let path = std::mem::take(&mut client.path);
        let subscribers = self.channels.get(&path).cloned().unwrap_or_default();
        self.clients[index].as_mut().expect("was there above").path = path;
        if self.behaviour.batches && !frames.is_empty() {
            return subscribers.into_iter().try_for_each(|subscriber| self.write(subscriber, &frames));
        }
        let mut start = 0;
        for end in ends {
            for subscriber in &subscribers {
                self.deliver(*subscriber, &frames[start..end])?;
            }
            start = end;
        }
        Ok(())
    }

    fn upgrade(&mut self, index: usize) -> anyhow::Result<()> {
        let client = self.clients[index].as_mut().expect("asked by its reader");
        if memmem::find(&client.partial, b"\r\n\r\n").is_none() {
            return Ok(());
        }
        let head = String::from_utf8_lossy(&client.partial);
        let target = head.split(' ').nth(1).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (path, subscribes) = (path.to_owned(), query != "subscribe=no");
        client.partial.clear();
        client.path = path.clone();
        if subscribes {
            self.channels.entry(path).or_default().push(index);
        }
        let answer = format!(
            "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
        );
        self.write(index, answer.as_bytes())
    }

    /// Delivers one message to one subscriber, with the faults of the behavior.
    fn deliver(&mut self, index: usize, frame: &[u8]) -> anyhow::Result<()> {
        self.deliveries += 1;
        let count = self.deliveries;
        if let Some((_, lasts)) = self.behaviour.stall.filter(|(at, _)| *at == count) {
            std::thread::sleep(lasts);
        }
        let is_due = |every: u64| every > 0 && count.is_multiple_of(every);
        if is_due(self.behaviour.drop_every) {
            return Ok(());
        }
        if is_due(self.behaviour.change_every) {
            let mut changed = frame.to_vec();
            let last = changed.len() - 3;
            changed[last] ^= 1;
            return self.write(index, &changed);
        }
        let Some(client) = &mut self.clients[index] else { return Ok(()) };
        if is_due(self.behaviour.swap_every) && client.held.is_empty() {
            client.held.extend_from_slice(frame);
            return Ok(());
        }
        let held = std::mem::take(&mut client.held);
        self.write(index, frame)?;
        if is_due(self.behaviour.double_every) {
            self.write(index, frame)?;
        }
        if held.is_empty() { Ok(()) } else { self.write(index, &held) }
    }

    fn write(&mut self, index: usize, bytes: &[u8]) -> anyhow::Result<()> {
        let Some(client) = &mut self.clients[index] else { return Ok(()) };
        let was_waiting = !client.waiting.is_empty();
        let offered = if was_waiting {
            client.waiting.extend_from_slice(bytes);
            &client.waiting[..]
        } else {
            bytes
        };
        let taken = match rustix::net::send(client.socket.as_fd(), offered, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(taken) => taken,
            Err(rustix::io::Errno::AGAIN) => 0,
            // The next read detects the broken connection.
            Err(_) => return Ok(()),
        };
        if was_waiting {
            client.waiting.drain(..taken);
        } else {
            client.waiting.extend_from_slice(&bytes[taken..]);
        }
        if was_waiting == client.waiting.is_empty() {
            let room = if was_waiting { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
            let key = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &client.socket, key, epoll::EventFlags::IN | room)?;
        }
        Ok(())
    }
}

/// Returns the offsets of the mask, the payload and the end of a client's frame.
fn client_frame(bytes: &[u8], at: usize) -> Option<(usize, usize, usize)> {
    let (mask, length) = match bytes.get(at + 1)? & 0x7f {
        126 => (at + 4, usize::from(u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?))),
        127 => (at + 10, u64::from_be_bytes(bytes.get(at + 2..at + 10)?.try_into().ok()?) as usize),
        length => (at + 2, usize::from(length)),
    };
    (bytes.len() >= mask + 4 + length).then_some((mask, mask + 4, mask + 4 + length))
}
