use std::{
    io,
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::Arc,
    thread,
};

use anyhow::Context as _;
use millrace_engine::hand_over::{Inherited, PROTOCOL, Predecessor};
use millrace_node::{ChannelEvent, Delivery, Mailbox};

use tokio::{runtime::Builder, sync::Notify};

use super::{
    Handed, SocketSet,
    messages::{Hello, Reply, Seed, receive, send},
};

/// Connection to the old process, in the new one.
pub struct Takeover {
    stream: UnixStream,
    hello: Hello,
    sockets: SocketSet,
}

impl Takeover {
    /// Receives the sockets from the process at standard input.
    ///
    /// Errors: the old process speaks another protocol, or has ended.
    pub fn begin() -> anyhow::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let begun = Self::receive(stream.try_clone()?);
        if let Err(error) = &begun {
            fail(&stream, error);
        }
        begun
    }

    fn receive(mut stream: UnixStream) -> anyhow::Result<Self> {
        let hello: Hello = receive(&mut stream).context("no old process is at standard input")?;
        anyhow::ensure!(
            hello.protocol == PROTOCOL,
            "the running server (version {}) hands over by protocol {}, this binary (version {}) by protocol {PROTOCOL}; \
             restart the server instead",
            hello.version,
            hello.protocol,
            env!("CARGO_PKG_VERSION"),
        );
        let sockets = SocketSet::receive(&stream, hello.sockets.clone())?;
        Ok(Self { stream, hello, sockets })
    }

    pub fn seed(&self) -> &Seed {
        &self.hello.seed
    }

    /// Returns the name of the old node.
    pub fn old_node(&self) -> &str {
        &self.hello.node
    }

    pub fn take_sockets(&mut self) -> SocketSet {
        std::mem::take(&mut self.sockets)
    }

    /// Checks the settings that both processes must have in common.
    ///
    /// Errors: the setting that differs.
    pub fn check(&self, engine: &str, shards: usize) -> anyhow::Result<()> {
        let Hello { engine: old_engine, shards: old_shards, .. } = &self.hello;
        anyhow::ensure!(
            engine == old_engine,
            "the engine has changed from {old_engine} to {engine}, which needs a restart"
        );
        anyhow::ensure!(
            shards == *old_shards,
            "`server.shards` has changed from {old_shards} to {shards}, which needs a restart"
        );
        Ok(())
    }

    /// Reports that this process can take over, and receives the contents of the engine.
    ///
    /// Errors: the old process has ended.
    pub fn receive_engine(&mut self) -> io::Result<Inherited> {
        send(&mut self.stream, &Reply::Ready { version: env!("CARGO_PKG_VERSION").into() })?;
        Inherited::read(&mut self.stream)
    }

    /// Reports that this process serves. Serves the engine to the old process, and delivers to its readers, until it
    /// ends.
    ///
    /// Errors: the old process has ended, or the system refuses a thread.
    pub fn serve(mut self, handed: &Handed) -> io::Result<()> {
        let Handed { engine, router, node, presence, .. } = handed;
        let (engine, router, presence) = (engine.clone(), router.clone(), presence.clone());
        send(&mut self.stream, &Reply::Serving { node: node.clone() })?;
        let predecessor = Arc::new(Predecessor::new(self.stream)?);
        let (answering, ended) = (predecessor.clone(), Arc::new(Notify::new()));
        let ends = ended.clone();
        thread::Builder::new().name("old-process".into()).spawn(move || {
            match answering.serve(&engine) {
                Ok(()) => tracing::info!("the old process has ended"),
                // It ended while answers to it were still on their way.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    tracing::info!("the old process has ended");
                }
                Err(error) => tracing::error!(%error, "the connection to the old process failed"),
            }
            presence.iter().for_each(|presence| presence.share_with(None));
            ends.notify_one();
        })?;
        let runtime = Builder::new_current_thread().build()?;
        thread::Builder::new().name("old-readers".into()).spawn(move || {
            if let Some(mailbox) = router.tap() {
                runtime.block_on(async {
                    tokio::select! {
                        _ = deliver(mailbox, &predecessor) => {}
                        () = ended.notified() => {}
                    }
                });
            }
            router.close_tap();
        })?;
        Ok(())
    }

    /// Reports why this process cannot take over.
    pub fn fail(&self, error: &anyhow::Error) {
        fail(&self.stream, error);
    }
}

/// Reports to the old process, if there is one, why this process ends before it takes anything over.
pub fn refuse(error: &anyhow::Error) {
    if super::is_takeover()
        && let Ok(stream) = io::stdin().as_fd().try_clone_to_owned()
    {
        fail(&UnixStream::from(stream), error);
    }
}

fn fail(mut stream: &UnixStream, error: &anyhow::Error) {
    let _ = send(&mut stream, &Reply::Failed { why: format!("{error:#}") });
}

/// Sends all publications to the old process.
///
/// Errors: the old process has ended, or reads nothing.
async fn deliver(mailbox: &Mailbox, predecessor: &Predecessor) -> io::Result<()> {
    loop {
        mailbox.filled().await;
        for Delivery { route, event, .. } in mailbox.take(Vec::new()).0 {
            match event {
                ChannelEvent::Published(epoch, publication) => predecessor.publish(&route.name, epoch, publication)?,
                ChannelEvent::Moved(moved) => predecessor.moved(&route.name, moved.from, moved.top)?,
            }
        }
    }
}
