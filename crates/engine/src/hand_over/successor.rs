use std::{
    collections::HashMap,
    io::{self, Write as _},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use millrace_delivery::{Page, PageLimit};
use millrace_protocol::{
    ChannelName, Code, Error, NewPublication, Pattern, Position, Since,
    session::{Policy, Target},
};
use tokio::sync::oneshot;

use super::frames::{self, Request, Response, ToPredecessor, ToSuccessor};
use crate::{Answer, Deliver, Engine, Newest};

/// Maximum number of requests that wait to be sent. Further requests are refused.
const WAITING_MAX: usize = 65_536;

/// The engine of the new process, as the old process uses it.
pub struct Successor<D: Deliver> {
    deliver: Arc<D>,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
    requests: SyncSender<Vec<u8>>,
    /// Requests to send once the transfer has ended.
    waiting: Mutex<Option<Receiver<Vec<u8>>>>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    responses: HashMap<u64, oneshot::Sender<Result<Response, Error>>>,
    is_lost: bool,
}

impl<D: Deliver> Successor<D> {
    /// Creates the engine. Its requests wait until [`Successor::start`].
    pub fn new(deliver: Arc<D>, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        let (requests, waiting) = sync_channel(WAITING_MAX);
        let (clock, pending) = (Box::new(clock), Mutex::default());
        Arc::new(Self { deliver, clock, requests, waiting: Mutex::new(Some(waiting)), pending })
    }

    /// Starts the threads that send the requests and receive what the new process sends. They end with the stream.
    ///
    /// Errors: a thread or a file descriptor that the system refuses.
    pub fn start(self: &Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        let Some(waiting) = lock(&self.waiting).take() else { return Ok(()) };
        let (mut sending, mut receiving) = (stream.try_clone()?, stream.try_clone()?);
        thread::Builder::new().name("hand-over-send".into()).spawn(move || {
            while let Ok(request) = waiting.recv() {
                if sending.write_all(&request).is_err() {
                    return;
                }
            }
        })?;
        let successor = self.clone();
        thread::Builder::new().name("hand-over-receive".into()).spawn(move || {
            let end = loop {
                match frames::read(&mut receiving) {
                    Ok(Some(frame)) => successor.on_frame(frame),
                    Ok(None) => break "it has ended".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            successor.lose();
            tracing::debug!(end, "the connection to the new process has ended");
        })?;
        Ok(())
    }

    /// Ends all requests that have no response.
    pub fn lose(&self) {
        let mut pending = lock(&self.pending);
        pending.is_lost = true;
        pending.responses.clear();
        drop(pending);
        drop(lock(&self.waiting).take());
    }

    fn on_frame(&self, frame: ToPredecessor) {
        match frame {
            ToPredecessor::Response { number, response } => {
                if let Some(waiting) = lock(&self.pending).responses.remove(&number) {
                    let _ = waiting.send(response);
                }
            }
            ToPredecessor::Published { channel, epoch, publication } => {
                if let Ok(channel) = ChannelName::parse(&channel) {
                    self.deliver.deliver(&self.deliver.route(&channel), &channel, epoch, &publication);
                }
            }
            ToPredecessor::Moved { channel, from, top } => {
                if let Ok(channel) = ChannelName::parse(&channel) {
                    self.deliver.moved(&self.deliver.route(&channel), &channel, from, top);
                }
            }
        }
    }

    /// Sends a request. `read` takes its result out of the response.
    ///
    /// Errors: those of the new process; [`Code::Unavailable`] if it has ended or too many requests wait.
    fn ask<T: 'static>(
        &self,
        request: Request,
        read: impl FnOnce(Response) -> Option<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        match self.send(request) {
            Err(error) => Answer::now(Err(error)),
            Ok(response) => Answer::Later(Box::pin(async move {
                let response = response.await.unwrap_or_else(|_| Err(lost()))?;
                read(response).ok_or_else(|| Error::new(Code::Internal, "the new process gave another answer"))
            })),
        }
    }

    fn send(&self, request: Request) -> Result<oneshot::Receiver<Result<Response, Error>>, Error> {
        let (sender, receiver) = oneshot::channel();
        // Locked until the request is queued, so that requests are sent in the order of their numbers.
        let mut pending = lock(&self.pending);
        if pending.is_lost {
            return Err(lost());
        }
        let number = pending.next;
        let frame = frames::encode(&ToSuccessor::Request { number, request });
        let frame = frame.map_err(|error| Error::new(Code::TooLarge, error.to_string()))?;
        self.requests.try_send(frame).map_err(|_| {
            Error::new(Code::Unavailable, "too many requests wait while the server is upgraded; try again")
        })?;
        pending.next += 1;
        pending.responses.insert(number, sender);
        Ok(receiver)
    }
}

/// Returns the error for requests that the new process does not answer.
fn lost() -> Error {
    Error::new(Code::Unavailable, "the server is being upgraded; try again")
}

impl<D: Deliver> Engine for Successor<D> {
    fn append(&self, channel: &ChannelName, publication: NewPublication) -> Answer<Result<Position, Error>> {
        let request = Request::Append { channel: channel.to_string(), publication: Box::new(publication) };
        self.ask(request, |response| match response {
            Response::Appended(position) => Some(position),
            _ => None,
        })
    }

    fn page(
        &self,
        channel: &ChannelName,
        since: Since,
        policy: Policy,
        limit: PageLimit,
    ) -> Answer<Result<Page, Error>> {
        self.ask(Request::Page { channel: channel.to_string(), since, policy, limit }, |response| match response {
            Response::Page(page) => Some(*page),
            _ => None,
        })
    }

    fn newest(&self, channel: &ChannelName) -> Answer<Result<Newest, Error>> {
        self.ask(Request::Newest { channel: channel.to_string() }, |response| match response {
            Response::Newest { top, publication } => Some(Newest { top, publication }),
            _ => None,
        })
    }

    fn channels(
        &self,
        pattern: &Pattern,
        after: Option<&ChannelName>,
        max: usize,
    ) -> Answer<Result<Vec<ChannelName>, Error>> {
        let (pattern, after) = (pattern.as_str().to_owned(), after.map(ToString::to_string));
        self.ask(Request::Channels { pattern, after, max }, |response| match response {
            Response::Channels(names) => names.iter().map(|name| ChannelName::parse(name).ok()).collect(),
            _ => None,
        })
    }

    /// Returns the readers of both processes.
    fn presence(&self, channel: &ChannelName) -> Answer<Result<u32, Error>> {
        let own = self.deliver.readers(channel);
        self.ask(Request::Presence { channel: channel.to_string() }, move |response| match response {
            Response::Presence(count) => Some(count.saturating_add(own)),
            _ => None,
        })
    }

    /// Does nothing: every publication of the new process is delivered.
    fn watch(&self, _: &Target, _: bool) {}

    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    fn size(&self) -> (usize, usize) {
        (0, 0)
    }

    fn sweep(&self) {}

    fn is_up(&self) -> bool {
        !lock(&self.pending).is_lost
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
