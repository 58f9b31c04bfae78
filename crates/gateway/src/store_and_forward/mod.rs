//! Store and forward: takes messages of local publishers over HTTP or from lines of input, keeps them in files, and
//! sends them to a server until the server has accepted them.
//!
//! - [`config`]: directory, limits, server
//! - [`files`]: the journal and its neighbors in a directory
//! - [`store`]: the thread that owns the buffer (`millrace-buffer` decides)
//! - [`sender`]: requests to the server
//! - [`http`]: requests of local publishers
//! - [`input`]: lines of local publishers

mod config;
mod files;
mod http;
mod input;
mod sender;
mod store;

use std::{future, io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use millrace_buffer::Stats;
use tokio::{io::AsyncRead, net::TcpListener};

pub use config::Config;
pub use files::{Files, FilesError};
pub use input::InputError;
pub use millrace_buffer::{Config as BufferConfig, Urgent};
pub use store::{Store, StoreError};

/// Time between two lines about a buffer that drops messages.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Reason why store and forward cannot start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no HTTP client: {0}")]
    Client(String),
    #[error(transparent)]
    Input(#[from] InputError),
}

/// A gateway with an open buffer and a bound listener.
pub struct StoreAndForward {
    store: Store,
    listener: Option<TcpListener>,
    config: Rc<Config>,
}

impl StoreAndForward {
    /// Opens the buffer, and binds `listen` if it is given.
    ///
    /// Errors: another gateway uses the directory, or it cannot be written.
    pub fn open(config: Config) -> Result<Self, ForwardError> {
        let (store, torn_bytes) = Store::open(&config.directory, config.buffer.clone())?;
        if torn_bytes > 0 {
            (config.note)(&format_args!(
                "{}: the last stop left {torn_bytes} incomplete bytes in the journal; they were removed, and no \
                 confirmed message was in them",
                config.directory.display()
            ));
        }
        Ok(Self { store, listener: None, config: Rc::new(config) })
    }

    /// Binds a listener for local publishers. Errors: the address is in use or not local.
    pub async fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        self.listener = Some(listener);
        Ok(address)
    }

    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().await
    }

    /// Serves until an error occurs, or until `input` has ended and every message has left the buffer.
    pub async fn run(self, input: Option<impl AsyncRead + Unpin>) -> Result<(), ForwardError> {
        let Self { store, listener, config } = self;
        let store = Arc::new(store);
        let sender = sender::Sender::new(config.clone(), store.clone()).map_err(ForwardError::Client)?;
        let serve = async {
            match listener {
                Some(listener) => http::serve(listener, store.clone(), config.clone()).await,
                None => future::pending().await,
            }
        };
        let read = async {
            match input {
                Some(input) => {
                    input::read(input, &store, config.note).await?;
                    store.drained().await?;
                    Ok(())
                }
                None => future::pending::<Result<(), ForwardError>>().await,
            }
        };
        tokio::select! {
            ended = sender.run() => match ended? {},
            ended = report(&store, &config) => ended?,
            () = serve => {}
            ended = read => ended?,
        }
        Ok(())
    }
}

/// Reports dropped messages, while there are some.
async fn report(store: &Store, config: &Config) -> Result<(), StoreError> {
    let lost = |stats: &Stats| {
        let counters = stats.counters;
        [counters.dropped, counters.expired, counters.refused, counters.damaged]
    };
    let mut before = lost(&store.stats().await?);
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let stats = store.stats().await?;
        let now = lost(&stats);
        if now != before {
            let [dropped, expired, refused, damaged] = [0, 1, 2, 3].map(|i| now[i] - before[i]);
            (config.note)(&format_args!(
                "{}: within {} s, {dropped} messages dropped (buffer full), {expired} expired, {refused} refused by \
                 the server, {damaged} damaged; {} messages wait",
                config.directory.display(),
                REPORT_EVERY.as_secs(),
                stats.waiting
            ));
            before = now;
        }
    }
}
