use std::{
    io,
    net::TcpListener as BoundTcp,
    rc::Rc,
    sync::{Arc, mpsc as thread_mpsc},
    time::Duration,
};

use millrace_engine::Answer;
use millrace_protocol::{Code, Error};
use serde_json::Value;
use tokio::{
    net::TcpListener,
    runtime::{Builder, LocalOptions},
    sync::{Semaphore, mpsc, oneshot},
    task::spawn_local,
};

use super::{Admin, requests::Request};

/// Maximum number of requests and questions that wait, and that are handled at the same time.
const JOBS_MAX: usize = 64;
/// Time in which a client of the admin listener must accept bytes of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Work for the admin thread.
enum Job {
    /// A request on the client port.
    Request(Request, oneshot::Sender<Result<Value, Error>>),
    /// A question of another node.
    Question(String, oneshot::Sender<String>),
}

/// Queue of the admin thread.
#[derive(Clone)]
pub struct Jobs(mpsc::Sender<Job>);

/// Receiving end of [`Jobs`].
pub struct JobReceiver(mpsc::Receiver<Job>);

impl Jobs {
    pub fn new() -> (Self, JobReceiver) {
        let (sender, receiver) = mpsc::channel(JOBS_MAX);
        (Self(sender), JobReceiver(receiver))
    }

    /// Answers a request on the admin thread.
    ///
    /// Errors: those of [`Admin::handle`]; [`Code::Unavailable`] if too many requests wait.
    pub async fn ask(&self, request: Request) -> Result<Value, Error> {
        let busy = || Error::new(Code::Unavailable, "too many operator requests are waiting; try again");
        let (sender, receiver) = oneshot::channel();
        self.0.try_send(Job::Request(request, sender)).map_err(|_| busy())?;
        receiver.await.unwrap_or_else(|_| Err(busy()))
    }

    /// Answers the question of another node on the admin thread. Returns `None` if too many questions wait.
    fn answer_node(&self, question: String) -> Answer<Option<String>> {
        let (sender, receiver) = oneshot::channel();
        match self.0.try_send(Job::Question(question, sender)) {
            Ok(()) => Answer::Later(Box::pin(async move { receiver.await.ok() })),
            Err(_) => Answer::now(None),
        }
    }
}

/// Handles operator requests until `stop` completes. They have a thread of their own: operators are answered while the
/// shards are busy, and the shards serve clients while a long list is made. `read` is notified once the stored
/// revocations apply. The listener is closed when `closes` completes.
///
/// Errors: the runtime cannot be created, or cannot watch the listener.
pub fn run(
    admin: Admin,
    (jobs, JobReceiver(mut receiver)): (Jobs, JobReceiver),
    (listener, closes): (Option<BoundTcp>, impl Future<Output = ()> + 'static),
    read: thread_mpsc::Sender<()>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let admin = Rc::new(admin);
    let rooms = admin.rooms.clone();
    let answer = move |question: String| {
        // Questions about rooms go to their shards.
        let about_room = millrace_conference::cluster::answer_question(&rooms, &question);
        about_room.unwrap_or_else(|| jobs.answer_node(question))
    };
    admin.engine.set_answerer(Arc::new(answer));
    runtime.block_on(async move {
        let listener = listener.map(TcpListener::from_std).transpose()?;
        if let Some(listener) = listener {
            let answering = admin.clone();
            let answer = move |parts, body| {
                let admin = answering.clone();
                async move { admin.answer(parts, body).await }
            };
            let arrivals = admin.arrivals.clone();
            // A connection that the shard has no time for is closed.
            let hand_over = move |arrival| drop(arrivals.try_send(arrival));
            let patience = (admin.site.limits.clone(), WRITE_TIMEOUT);
            let serving = millrace_transport::admin::serve(listener, patience, answer, hand_over);
            spawn_local(async move {
                tokio::select! {
                    () = serving => {}
                    () = closes => {}
                }
            });
        }
        spawn_local(admin.clone().record());
        spawn_local(admin.clone().watch_state());
        let following = admin.clone();
        spawn_local(async move { following.follow_revocations(|| _ = read.send(())).await });
        let handle = async {
            let places = Arc::new(Semaphore::new(JOBS_MAX));
            while let (Ok(place), Some(job)) = (places.clone().acquire_owned().await, receiver.recv().await) {
                let admin = admin.clone();
                spawn_local(async move {
                    match job {
                        Job::Request(request, answer) => drop(answer.send(admin.handle(request).await)),
                        Job::Question(question, answer) => drop(answer.send(admin.answer_node(&question).await)),
                    }
                    drop(place);
                });
            }
        };
        tokio::select! {
            () = handle => {}
            () = stop => {}
        }
        Ok(())
    })
}
