//! `--live` of a link: publishes its state to a Millrace server, whose page `/link` shows it, and applies the commands
//! of the page.

use std::{
    ops::ControlFlow,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::{Instant, SystemTime},
};

use anyhow::Context;
use millrace_client::{
    random::Random,
    server::Server,
    subscription::{Options, Transport, Update, read},
};
use millrace_lab::path::{
    Emulator, PathSettings,
    knobs::{Answer, Knobs},
    live::{CHANNEL, COMMANDS, INTERVAL, KEPT_S, LiveLink},
};
use millrace_link::Traces;
use tokio::sync::oneshot;

use super::feed::{Entry, Feed, Topic};
use crate::output;

const TOPIC: Topic = Topic { subject: "state of this link", channel: CHANNEL, page: "/link" };
/// Commands that wait until the link is looked at. More are dropped; the page reports that they were not answered.
const COMMANDS_MAX: usize = 64;

/// The live page of a link.
pub struct LinkPage {
    link: LiveLink,
    commands: Receiver<Received>,
    published: Instant,
    feed: Feed,
    _subscription: Subscription,
}

/// Item of the subscription to the commands.
enum Received {
    Command(String),
    /// The subscription has ended for this reason.
    Refused(String),
}

impl LinkPage {
    /// Publishes to `server`. Without one, starts a server and publishes to that.
    ///
    /// Errors: the settings are no link; the server cannot be started, does not answer, or refuses the first message.
    pub fn start(
        server: Option<Server>,
        settings: PathSettings,
        traces: Traces,
        seed: u64,
        program: Vec<String>,
    ) -> anyhow::Result<Self> {
        let run = format!("{:016x}", Random::from_system().bits());
        let mut link = LiveLink::new(Knobs::new(run, settings, traces)?, SystemTime::now(), seed, program);
        let feed = Feed::start(server, TOPIC, entry(&mut link, None))?;
        let (sender, commands) = sync_channel(COMMANDS_MAX);
        let subscription = Subscription::start(feed.server().clone(), sender)?;
        Ok(Self { link, commands, published: Instant::now(), feed, _subscription: subscription })
    }

    /// The URL of the page.
    pub fn page(&self) -> &str {
        self.feed.page()
    }

    /// Applies the commands that have arrived, and publishes the state if it is time.
    pub fn look(&mut self, emulator: &Emulator) {
        self.link.observe(emulator.live());
        while let Ok(received) = self.commands.try_recv() {
            match received {
                Received::Command(command) => self.apply(&command, emulator),
                Received::Refused(why) => {
                    let note = format!(
                        "commands of the page do not arrive: {why}; reading {COMMANDS} needs the permission subscribe"
                    );
                    output::note(format_args!("live: {note}"));
                    self.link.set_commands_error(note);
                }
            }
        }
        if self.published.elapsed() >= INTERVAL {
            self.published = Instant::now();
            self.feed.offer(entry(&mut self.link, None));
        }
    }

    fn apply(&mut self, command: &str, emulator: &Emulator) {
        let Some(answer) = self.link.knobs.handle(command) else { return };
        if answer.error.is_none() {
            emulator.configure(self.link.knobs.config(), self.link.knobs.traces().clone());
        }
        self.feed.offer(entry(&mut self.link, Some(&answer)));
    }

    /// Publishes the last message. `code`: exit code of the program; `None` if the link failed.
    pub fn end(mut self, code: Option<u8>) {
        self.feed.finish(Entry { message: self.link.ended(code), ttl_s: None });
    }
}

fn entry(link: &mut LiveLink, answer: Option<&Answer>) -> Entry {
    Entry { message: link.message(answer), ttl_s: Some(KEPT_S) }
}

/// Thread that reads the commands. Dropping it ends the thread.
struct Subscription {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Subscription {
    fn start(server: Server, commands: SyncSender<Received>) -> anyhow::Result<Self> {
        let options = Options {
            server,
            channels: vec![COMMANDS.to_owned()],
            transport: Transport::WebSocket,
            since: Some("now".to_owned()),
            policy: "every".to_owned(),
            poll_interval: INTERVAL,
            retry_for: None,
        };
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || {
            let sender = commands.clone();
            let mut sink = move |update: Update| {
                if let Update::Message(message) = update {
                    // A full queue drops the command.
                    let _ = sender.try_send(Received::Command(message.data.get().to_owned()));
                }
                ControlFlow::Continue(())
            };
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = read(&options, &mut sink) => Some(ended),
                    _ = stopped => None,
                }
            });
            if let Some(Err(error)) = ended {
                // The link may have ended.
                let _ = commands.try_send(Received::Refused(error.to_string()));
            }
        };
        let thread = thread::Builder::new().name("commands".into()).spawn(work).context("cannot start a thread")?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
