use std::{
    io::{self, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use millrace_protocol::{ChannelName, Epoch, Error, Pattern, Position, Publication};
use tokio::{runtime::Builder, sync::mpsc};

use super::frames::{self, Request, Response, ToPredecessor, ToSuccessor};
use crate::{Answer, Engine, Newest};

/// Maximum number of requests that the engine has not answered yet.
const ANSWERING_MAX: usize = 65_536;
/// Time after which an old process that reads nothing is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The old process, as the new one serves it.
pub struct Predecessor {
    reading: Mutex<UnixStream>,
    writing: Mutex<UnixStream>,
}

type Answering = (u64, Answer<Result<Response, Error>>);

impl Predecessor {
    /// Errors: a file descriptor that the system refuses.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self { writing: Mutex::new(stream.try_clone()?), reading: Mutex::new(stream) })
    }

    /// Sends a publication to the readers of the old process.
    ///
    /// Errors: the old process has ended, or reads nothing.
    pub fn publish(&self, channel: &ChannelName, epoch: Epoch, publication: Publication) -> io::Result<()> {
        self.write(&ToPredecessor::Published { channel: channel.to_string(), epoch, publication })
    }

    /// Reports that the log of a channel has moved; see [`Deliver::moved`](crate::Deliver::moved).
    ///
    /// Errors: the old process has ended, or reads nothing.
    pub fn moved(&self, channel: &ChannelName, from: Position, top: Position) -> io::Result<()> {
        self.write(&ToPredecessor::Moved { channel: channel.to_string(), from, top })
    }

    /// Answers the requests of the old process until it ends. Blocks the thread.
    ///
    /// Errors: a malformed request, or a thread that the system refuses.
    pub fn serve(self: &Arc<Self>, engine: &Arc<dyn Engine>) -> io::Result<()> {
        let (sender, mut answering) = mpsc::channel::<Answering>(ANSWERING_MAX);
        let runtime = Builder::new_current_thread().build()?;
        let predecessor = self.clone();
        let answers = thread::Builder::new().name("hand-over-answer".into()).spawn(move || {
            runtime.block_on(async {
                while let Some((number, answer)) = answering.recv().await {
                    let predecessor = predecessor.clone();
                    tokio::spawn(async move {
                        let _ = predecessor.write(&ToPredecessor::Response { number, response: answer.await });
                    });
                }
            });
        })?;
        let read = self.read(|number, request| {
            // The engine receives the requests in their order. Their answers may come in another order.
            let _ = sender.blocking_send((number, answer(engine, request)));
        });
        drop(sender);
        let _ = answers.join();
        read
    }

    fn read(&self, mut handle: impl FnMut(u64, Request)) -> io::Result<()> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(frame) = frames::read(&mut *reading)? {
            let ToSuccessor::Request { number, request } = frame else {
                return Err(io::Error::other("a part of the transfer came after its end"));
            };
            handle(number, request);
        }
        Ok(())
    }

    fn write(&self, frame: &ToPredecessor) -> io::Result<()> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = writing.write_all(&frames::encode(frame)?);
        if written.is_err() {
            // Part of the frame may have been written, so nothing can follow it.
            let _ = writing.shutdown(Shutdown::Both);
        }
        written
    }
}

/// Passes a request to the engine.
fn answer(engine: &Arc<dyn Engine>, request: Request) -> Answer<Result<Response, Error>> {
    let answer = || {
        Ok(match request {
            Request::Append { channel, publication } => {
                map(engine.append(&ChannelName::parse(&channel)?, *publication), Response::Appended)
            }
            Request::Page { channel, since, policy, limit } => {
                map(engine.page(&ChannelName::parse(&channel)?, since, policy, limit), |page| {
                    Response::Page(Box::new(page))
                })
            }
            Request::Newest { channel } => {
                map(engine.newest(&ChannelName::parse(&channel)?), |Newest { top, publication }| Response::Newest {
                    top,
                    publication,
                })
            }
            Request::Channels { pattern, after, max } => {
                let after = after.map(|after| ChannelName::parse(&after)).transpose()?;
                map(engine.channels(&Pattern::parse(&pattern)?, after.as_ref(), max), |names| {
                    Response::Channels(names.iter().map(ToString::to_string).collect())
                })
            }
            Request::Presence { channel } => map(engine.presence(&ChannelName::parse(&channel)?), Response::Presence),
        })
    };
    answer().unwrap_or_else(|error| Answer::now(Err(error)))
}

fn map<T: Unpin + Send + 'static>(
    answer: Answer<Result<T, Error>>,
    response: impl FnOnce(T) -> Response + Send + 'static,
) -> Answer<Result<Response, Error>> {
    match answer {
        Answer::Now(result) => Answer::now(result.expect("an answer is taken once").map(response)),
        later => Answer::Later(Box::pin(async move { later.await.map(response) })),
    }
}
