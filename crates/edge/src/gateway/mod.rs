//! A native peer that forwards between the data channels of its peers: each comes by an offer, says whom its messages are for, and what
//! becomes of them is decided by [`millrace_rtc::forward`].
//!
//! - this file: one task for each peer, with a socket of its own, and one for the windows
//! - [`http`]: offers, answers, and what was counted
//!
//! Source: docs/gateway.md.

mod http;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_rtc::{
    Event, Lane,
    forward::{Config as Forward, Forwarder, PeerId, Refused, Stats, Ticket},
};
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::LocalSet,
    time::{sleep, sleep_until},
};

use crate::data_channel::{AnswerError, OPEN_TIMEOUT, PeerSocket};

/// Whoever says nothing for so long has gone: a living peer asks at least every few seconds whether the way is still there.
/// Source: RFC 7675, section 5.1: 30 s.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// So much may be on its way to a peer; the rest waits where the oldest can give way.
const BUFFERED_MAX: usize = 64 * 1024;
/// After an error that one connection cannot be blamed for, such as too few descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub struct Config {
    /// Where offers come in.
    pub listen: SocketAddr,
    pub forward: Forward,
    /// What a request has to show. None: nobody is asked.
    pub secret: Option<String>,
    /// Pages of these origins may join.
    pub origins: Vec<String>,
    /// Where peers are told to send to, if a NAT or a proxy hides it.
    pub public: Option<IpAddr>,
}

/// A gateway that listens.
pub struct Gateway {
    listener: TcpListener,
    hall: Rc<Hall>,
}

/// What all tasks share.
struct Hall {
    config: Config,
    forwarder: RefCell<Forwarder>,
    /// By which the task of a peer learns that something waits for it.
    wakes: RefCell<HashMap<PeerId, Rc<Notify>>>,
    /// A window has begun before which there was none.
    begun: Notify,
}

/// Why a peer does not come.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("{0}")]
    Answer(#[from] AnswerError),
}

impl Gateway {
    /// Errors: the address is taken, or not ours.
    pub async fn bind(config: Config) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let forwarder = RefCell::new(Forwarder::new(config.forward.clone()));
        let hall = Hall { config, forwarder, wakes: RefCell::default(), begun: Notify::new() };
        Ok(Self { listener, hall: Rc::new(hall) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Forwards until it is dropped, with all its peers.
    pub async fn run(self) {
        let Self { listener, hall } = self;
        let tasks = LocalSet::new();
        let windows = hall.clone();
        tasks.spawn_local(async move { windows.keep_windows().await });
        tasks
            .run_until(async move {
                let room = Arc::new(tokio::sync::Semaphore::new(http::CONNECTIONS_MAX));
                loop {
                    let Ok(permit) = room.clone().acquire_owned().await else { return };
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            let hall = hall.clone();
                            tokio::task::spawn_local(async move {
                                http::serve(hall, stream).await;
                                drop(permit);
                            });
                        }
                        Err(_) => sleep(PAUSE).await,
                    }
                }
            })
            .await;
    }
}

impl Hall {
    /// The answer to an offer; from here on the peer is there. `local`: where the request came in.
    async fn join(self: &Rc<Self>, ticket: Ticket, offer: &str, local: IpAddr) -> Result<String, JoinError> {
        let id = self.forwarder.borrow_mut().join(ticket)?;
        let public = self.config.public.unwrap_or(local);
        let (socket, answer) = match PeerSocket::answer(offer, local, public).await {
            Ok(answered) => answered,
            Err(error) => {
                self.forwarder.borrow_mut().leave(id);
                return Err(error.into());
            }
        };
        let wake = Rc::<Notify>::default();
        self.wakes.borrow_mut().insert(id, wake.clone());
        let hall = self.clone();
        tokio::task::spawn_local(async move {
            hall.serve(id, socket, &wake).await;
            hall.wakes.borrow_mut().remove(&id);
            hall.forwarder.borrow_mut().leave(id);
        });
        Ok(answer)
    }

    /// One peer, until it goes.
    async fn serve(&self, id: PeerId, mut socket: PeerSocket, wake: &Notify) {
        let opens_by = Instant::now() + OPEN_TIMEOUT;
        let mut is_open = false;
        while !socket.is_over() {
            while let Some(event) = socket.poll_event() {
                match event {
                    Event::Open(Lane::Session) => is_open = true,
                    Event::Data(lane, message) => self.take(id, lane, message),
                    Event::Closed => return,
                    Event::Open(Lane::Latest) | Event::Low(_) => {}
                }
            }
            while is_open && socket.buffered(Lane::Session) + socket.buffered(Lane::Latest) < BUFFERED_MAX {
                let Some(message) = self.forwarder.borrow_mut().poll_output(id) else { break };
                // There is room; what is for a lossy channel that the peer does not have is lost like anything on it.
                socket.write(message.lane, message.is_text, &message.bytes);
            }
            socket.flush().await;
            let ends = if is_open { socket.heard() + SILENCE_MAX } else { opens_by };
            tokio::select! {
                () = socket.wait() => {}
                () = wake.notified(), if is_open => {}
                () = sleep_until(ends.into()) => return,
            }
        }
    }

    /// A message has come.
    fn take(&self, from: PeerId, lane: Lane, message: Vec<u8>) {
        let mut forwarder = self.forwarder.borrow_mut();
        let is_quiet = forwarder.poll_timeout().is_none();
        forwarder.handle_message(Instant::now(), from, lane, message);
        if is_quiet && forwarder.poll_timeout().is_some() {
            self.begun.notify_one();
        }
        self.wake(&mut forwarder);
    }

    async fn keep_windows(&self) {
        loop {
            let due = self.forwarder.borrow_mut().poll_timeout();
            match due {
                None => self.begun.notified().await,
                Some(due) => {
                    sleep_until(due.into()).await;
                    let mut forwarder = self.forwarder.borrow_mut();
                    forwarder.handle_timeout(Instant::now());
                    self.wake(&mut forwarder);
                }
            }
        }
    }

    fn wake(&self, forwarder: &mut Forwarder) {
        let wakes = self.wakes.borrow();
        while let Some(id) = forwarder.poll_ready() {
            wakes.get(&id).into_iter().for_each(|wake| wake.notify_one());
        }
    }

    fn stats(&self) -> (usize, Stats) {
        let forwarder = self.forwarder.borrow();
        (forwarder.peers(), forwarder.stats())
    }
}
