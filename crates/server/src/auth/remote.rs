//! Key set that is fetched from a URL: periodically, and when a token names a key that is missing. The last set stays
//! in use while the URL cannot be reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::key::{Key, KeyError, Secrets, from_set};

/// Timeout of one fetch, and of a token that waits for a fetch.
const FETCH: Duration = Duration::from_secs(5);
/// Maximum size of a key set, in bytes.
const SET_BYTES_MAX: usize = 1 << 20;

/// Reasons why a key set cannot be fetched. No message contains the URL, because its query may contain a secret.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{}", causes(.0))]
    Http(reqwest::Error),
    #[error("the server responded with {0}")]
    Status(reqwest::StatusCode),
    #[error("the response is larger than {SET_BYTES_MAX} bytes")]
    TooLarge,
    #[error("no response within {} s", FETCH.as_secs())]
    Timeout,
    #[error(transparent)]
    Keys(#[from] KeyError),
}

impl From<reqwest::Error> for FetchError {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error.without_url())
    }
}

/// Formats an error and its causes.
fn causes(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Keys that a thread of its own fetches. The thread ends when this value is dropped.
pub struct RemoteKeys {
    state: watch::Receiver<State>,
    wanted: Arc<Notify>,
    pause: Duration,
}

#[derive(Clone)]
struct State {
    keys: Arc<[Key]>,
    /// Number of the current key set; increases with every set that differs from the previous one. 0: no set yet.
    version: u64,
    is_fetching: bool,
    /// Number of completed fetches, successful or not.
    ended: u64,
    last: Option<Instant>,
}

impl RemoteKeys {
    /// Starts the thread that fetches the key set.
    ///
    /// Units: `refresh` is the time between two fetches, `pause` the minimum time between them.
    /// Errors: the system refuses a thread.
    pub fn start(url: String, refresh: Duration, pause: Duration) -> std::io::Result<Self> {
        let state = State { keys: Arc::new([]), version: 0, is_fetching: true, ended: 0, last: None };
        let (sender, state) = watch::channel(state);
        let wanted = Arc::new(Notify::new());
        let fetcher = Fetcher { url, refresh, pause, state: sender, wanted: wanted.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("key-set".into()).spawn(move || runtime.block_on(fetcher.run()))?;
        Ok(Self { state, wanted, pause })
    }

    /// Returns the keys, and the version of their set.
    pub fn keys(&self) -> (Arc<[Key]>, u64) {
        let state = self.state.borrow();
        (state.keys.clone(), state.version)
    }

    /// Waits for a newer set, unless the pause after the last fetch is not over yet. One fetch serves all callers that
    /// wait.
    pub async fn newer(&self) {
        let mut state = self.state.clone();
        let ended = {
            let now = state.borrow();
            let may_ask = now.last.is_none_or(|last| last.elapsed() >= self.pause);
            if !now.is_fetching && !may_ask {
                return;
            }
            if !now.is_fetching {
                self.wanted.notify_one();
            }
            now.ended
        };
        let _ = timeout(FETCH, state.wait_for(|state| state.ended > ended)).await;
    }

    /// Requests a fetch as soon as the pause allows.
    pub fn refresh(&self) {
        self.wanted.notify_one();
    }
}

struct Fetcher {
    url: String,
    refresh: Duration,
    pause: Duration,
    state: watch::Sender<State>,
    wanted: Arc<Notify>,
}

impl Fetcher {
    async fn run(self) {
        let client = match client() {
            Ok(client) => client,
            Err(error) => return tracing::error!(%error, "the JWKS cannot be fetched: no HTTP client"),
        };
        // The query of the URL may contain a secret.
        let shown = self.url.split('?').next().unwrap_or_default();
        let mut last: Vec<u8> = Vec::new();
        let mut failures = 0;
        loop {
            self.state.send_modify(|state| state.is_fetching = true);
            let fetched = timeout(FETCH, fetch(&client, &self.url)).await.unwrap_or(Err(FetchError::Timeout));
            let fetched = fetched.and_then(|json| {
                let keys = from_set(&json, &format!("key set {shown}"), Secrets::Refused)?;
                Ok((json, keys))
            });
            failures = if fetched.is_ok() { 0 } else { failures + 1 };
            match &fetched {
                Ok((json, keys)) if *json != last => {
                    tracing::info!(url = shown, keys = keys.len(), "JWKS changed")
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(url = shown, %error, "cannot fetch the JWKS; the last one stays in use"),
            }
            self.state.send_modify(|state| {
                if let Ok((json, keys)) = fetched
                    && json != last
                {
                    (state.keys, state.version) = (keys.into(), state.version + 1);
                    last = json;
                }
                (state.is_fetching, state.ended, state.last) = (false, state.ended + 1, Some(Instant::now()));
            });
            let next = match failures {
                0 => self.refresh,
                failures => self.pause.saturating_mul(1 << failures.min(10)).min(self.refresh),
            };
            tokio::select! {
                () = tokio::time::sleep(self.pause) => {}
                () = self.state.closed() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(next.saturating_sub(self.pause)) => {}
                () = self.wanted.notified() => {}
                () = self.state.closed() => return,
            }
        }
    }
}

fn client() -> Result<reqwest::Client, FetchError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // reqwest uses the provider of the process. It does not matter if another provider was installed first.
    let _ = rustls::crypto::CryptoProvider::install_default((*provider).clone());
    // A redirect could lead to plain HTTP, or to addresses that only this machine can reach.
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(FETCH);
    Ok(client.build()?)
}

/// Fetches the key set.
///
/// Errors: no response, another status than 200, or a response that is too large.
async fn fetch(client: &reqwest::Client, url: &str) -> Result<Vec<u8>, FetchError> {
    let mut response = client.get(url).header("accept", "application/json").send().await?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > SET_BYTES_MAX {
            return Err(FetchError::TooLarge);
        }
    }
    Ok(body)
}
