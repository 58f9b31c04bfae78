//! Tasks of the gateway: one per peer, each with its own socket, and one for the windows of the bundles.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};

use millrace_client::data_channel::{AnswerError, OPEN_TIMEOUT, PeerSocket};
use millrace_rtc::{Event, Lane};
use tokio::{net::TcpListener, sync::Notify, task::LocalSet, time::sleep_until};

use crate::{
    forward::{self, Forwarder, PeerId, PeerOptions, Refused, Stats},
    http,
};

/// Silent peer timeout: a live peer checks the path at least every few seconds.
/// Source: RFC 7675, section 5.1: 30 s.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes sent to a peer but not acknowledged. Further messages wait in the forwarder, which can drop the
/// oldest.
const BUFFERED_MAX: usize = 64 * 1024;

pub struct Config {
    /// Address for offers.
    pub listen: SocketAddr,
    pub forward: forward::Config,
    /// Secret required from every request; `None`: no authentication.
    pub secret: Option<String>,
    /// Origins whose pages may join.
    pub origins: Vec<String>,
    /// Public address announced to peers, if a NAT or a proxy hides the local one.
    pub public: Option<IpAddr>,
}

/// Gateway with a bound listener.
pub struct Gateway {
    listener: TcpListener,
    state: Rc<SharedState>,
}

/// State shared by all tasks.
pub(crate) struct SharedState {
    pub(crate) config: Config,
    forwarder: RefCell<Forwarder>,
    /// Wakes the task of a peer when messages are queued for it.
    wakes: RefCell<HashMap<PeerId, Rc<Notify>>>,
    /// Notified when a window starts and no other window was open.
    window_started: Notify,
}

/// Reason why a peer cannot join.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("{0}")]
    Answer(#[from] AnswerError),
}

impl Gateway {
    /// Binds the listener.
    ///
    /// Errors: the address is in use or not local.
    pub async fn bind(config: Config) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let forwarder = RefCell::new(Forwarder::new(config.forward.clone()));
        let state = SharedState { config, forwarder, wakes: RefCell::default(), window_started: Notify::new() };
        Ok(Self { listener, state: Rc::new(state) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts and serves peers until the future is dropped, which also drops all peers.
    pub async fn run(self) {
        let Self { listener, state } = self;
        let tasks = LocalSet::new();
        let windows = state.clone();
        tasks.spawn_local(async move { windows.run_windows().await });
        tasks.run_until(http::run(state, listener)).await;
    }
}

impl SharedState {
    /// Adds a peer and returns the answer to its offer. `local` is the address at which the request arrived.
    pub(crate) async fn join(
        self: &Rc<Self>,
        options: PeerOptions,
        offer: &str,
        local: IpAddr,
    ) -> Result<String, JoinError> {
        let id = self.forwarder.borrow_mut().join(options)?;
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
        let state = self.clone();
        tokio::task::spawn_local(async move {
            state.serve(id, socket, &wake).await;
            state.wakes.borrow_mut().remove(&id);
            state.forwarder.borrow_mut().leave(id);
        });
        Ok(answer)
    }

    /// Serves one peer until it leaves.
    async fn serve(&self, id: PeerId, mut socket: PeerSocket, wake: &Notify) {
        let open_deadline = Instant::now() + OPEN_TIMEOUT;
        let mut is_open = false;
        while !socket.is_over() {
            while let Some(event) = socket.poll_event() {
                match event {
                    Event::Open(Lane::Session) => is_open = true,
                    Event::Data(lane, message) => self.handle_message(id, lane, message),
                    Event::Closed => return,
                    Event::Open(Lane::Latest) | Event::Low(_) => {}
                }
            }
            while is_open && socket.buffered(Lane::Session) + socket.buffered(Lane::Latest) < BUFFERED_MAX {
                let Some(message) = self.forwarder.borrow_mut().poll_output(id) else { break };
                // A message for a lossy channel that the peer has not opened is dropped, as any message on that channel
                // may be.
                socket.write(message.lane, message.is_text, &message.bytes);
            }
            socket.flush().await;
            let deadline = if is_open { socket.last_received() + SILENCE_MAX } else { open_deadline };
            tokio::select! {
                () = socket.wait() => {}
                () = wake.notified(), if is_open => {}
                () = sleep_until(deadline.into()) => return,
            }
        }
    }

    /// Handles a message from a peer.
    fn handle_message(&self, from: PeerId, lane: Lane, message: Vec<u8>) {
        let mut forwarder = self.forwarder.borrow_mut();
        let had_no_window = forwarder.poll_timeout().is_none();
        forwarder.handle_message(Instant::now(), from, lane, message);
        if had_no_window && forwarder.poll_timeout().is_some() {
            self.window_started.notify_one();
        }
        self.wake(&mut forwarder);
    }

    async fn run_windows(&self) {
        loop {
            let due = self.forwarder.borrow_mut().poll_timeout();
            match due {
                None => self.window_started.notified().await,
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

    pub(crate) fn stats(&self) -> (usize, Stats) {
        let forwarder = self.forwarder.borrow();
        (forwarder.peers(), forwarder.stats())
    }
}
