//! Certificates from an ACME server (RFC 8555), requested at start and renewed after two thirds of their lifetime.
//!
//! ```text
//!   start ── certificate in the cache ──► resting ── two thirds over ──► ordering ◄── SIGHUP, or end of the pause ──┐
//!     │                                      ▲                             ▲ │ │                                    │
//!     └── no certificate ────────────────────┼─────────────────────────────┘ │ └── error, counted, logged ► pausing ┘
//!                                            └── issued, cached, in use ─────┘
//! ```
//!
//! The `instant-acme` crate implements the protocol. This module decides when to order, what to keep, and how to answer
//! a challenge. Messages of an ACME server are limited in size and may be logged; keys are never logged.

mod challenge;
mod client;
mod config;
mod store;

pub use config::Config;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail, ensure};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use rustls::sign::CertifiedKey;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use self::{
    challenge::Proofs,
    client::Client,
    store::{Issued, Store},
};
use super::state::TlsState;

/// Timeout of an order, from the first request to the certificate.
const ORDER: Duration = Duration::from_secs(5 * 60);
/// Timeout of each step that the ACME server performs between two of our requests.
const STEP: Duration = Duration::from_secs(90);
/// Pause after an error, doubled with each further error. Let's Encrypt allows five failures per domain and hour.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// Maximum time between two checks of the clock: the clock may be set, and a machine may sleep.
const CLOCK_CHECK: Duration = Duration::from_secs(60 * 60);
/// Maximum number of characters of an error in the log.
const ERROR_CHARS_MAX: usize = 1000;

/// ACME account, its cache, and the results of its orders.
pub struct Acme {
    config: Config,
    store: Arc<Store>,
    client: Client,
    issued: Option<Issued>,
    retry_now: Arc<Notify>,
    pub metrics: Arc<Metrics>,
}

/// Metrics of ACME.
#[derive(Default)]
pub struct Metrics {
    pub certificates: AtomicU64,
    pub errors: AtomicU64,
    /// Expiry of the certificate in use, in seconds since 1970; 0: there is none.
    pub expires_s: AtomicU64,
}

impl Acme {
    /// Opens the cache. Also returns the cached certificate, if it covers these domains and has not expired.
    ///
    /// Errors: a cache that cannot be written, or an invalid `ca`.
    pub fn open(config: &Config) -> anyhow::Result<(Self, Option<Arc<CertifiedKey>>)> {
        let store = Store::open(&config.cache(), &config.directory)?;
        let issued = store.certificate(&config.domains).unwrap_or_else(|error| {
            let error = format!("{error:#}");
            tracing::warn!(error, "ignoring the cached certificate");
            None
        });
        let issued = issued.filter(|issued| issued.until > SystemTime::now());
        let identity = issued.as_ref().map(|issued| issued.identity.clone());
        let (client, retry_now, metrics) = (Client::new(&config.ca)?, Arc::default(), Arc::<Metrics>::default());
        if let Some(issued) = &issued {
            metrics.show(issued);
        }
        Ok((Self { config: config.clone(), store: Arc::new(store), client, issued, retry_now, metrics }, identity))
    }

    /// Ends a pause after an error, so that the next order starts at once.
    pub fn retry(&self) {
        self.retry_now.notify_one();
    }

    /// Starts the thread that requests and renews certificates for `tls`, until `stop` completes.
    ///
    /// Errors: the system refuses a thread.
    pub(super) fn start(
        &self,
        tls: Arc<TlsState>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        let keeper = Keeper {
            config: self.config.clone(),
            store: self.store.clone(),
            client: self.client.clone(),
            tls,
            retry_now: self.retry_now.clone(),
            metrics: self.metrics.clone(),
        };
        let issued = self.issued.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("acme".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = keeper.keep(issued) => {}
                    () = stop => {}
                }
            });
            // A task may still wait for a DNS server that does not respond.
            runtime.shutdown_background();
        })
    }
}

impl Metrics {
    fn show(&self, issued: &Issued) {
        self.expires_s.store(issued.until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(), Relaxed);
    }
}

struct Keeper {
    config: Config,
    store: Arc<Store>,
    client: Client,
    tls: Arc<TlsState>,
    retry_now: Arc<Notify>,
    metrics: Arc<Metrics>,
}

impl Keeper {
    async fn keep(&self, mut issued: Option<Issued>) {
        let domains = self.config.domains.join(" ");
        match &issued {
            Some(_) => tracing::info!(domains, "using the cached certificate"),
            None => tracing::info!(
                domains,
                "requesting a certificate; the ACME server will connect to port 443 of each domain, which must reach this server"
            ),
        }
        let mut failures = 0;
        loop {
            if let Some(issued) = &issued {
                self.wait_until(issued.renew_at()).await;
            }
            let ordered =
                timeout(ORDER, self.order()).await.unwrap_or_else(|_| bail!("no certificate within {ORDER:?}"));
            match ordered {
                Ok(new) => {
                    failures = 0;
                    self.metrics.certificates.fetch_add(1, Relaxed);
                    self.metrics.show(&new);
                    let lasts_s = new.until.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
                    tracing::info!(domains, lasts_s, "new certificate issued");
                    issued = Some(new);
                }
                Err(error) => {
                    failures += 1;
                    self.metrics.errors.fetch_add(1, Relaxed);
                    self.pause(failures, &error, issued.as_ref()).await;
                }
            }
        }
    }

    async fn wait_until(&self, until: SystemTime) {
        while let Ok(left) = until.duration_since(SystemTime::now()) {
            // Sleep a little longer, so that the deadline has certainly passed.
            sleep(left.min(CLOCK_CHECK) + Duration::from_millis(10)).await;
        }
        // Discard a retry that was requested while there was nothing to retry.
        let _ = timeout(Duration::ZERO, self.retry_now.notified()).await;
    }

    async fn pause(&self, failures: u32, error: &anyhow::Error, shown: Option<&Issued>) {
        let pause = pause_after(failures, rand_unit());
        let error: String = format!("{error:#}").chars().take(ERROR_CHARS_MAX).collect();
        let again_in_s = pause.as_secs();
        match shown.is_some_and(|issued| issued.until > SystemTime::now()) {
            true => {
                tracing::warn!(error, again_in_s, "certificate renewal failed; the current certificate stays in use")
            }
            false => tracing::error!(
                error,
                again_in_s,
                "certificate request failed; TLS handshakes fail until one succeeds (SIGHUP retries now)"
            ),
        }
        let _ = timeout(pause, self.retry_now.notified()).await;
    }

    /// Orders a certificate and puts it in use.
    ///
    /// Errors: a message for the operator, including the reason given by the ACME server.
    async fn order(&self) -> anyhow::Result<Issued> {
        let account = self.account().await?;
        let names: Vec<_> = self.config.domains.iter().cloned().map(Identifier::Dns).collect();
        let mut order = match account.new_order(&NewOrder::new(&names)).await {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT) => {
                self.store.forget_account();
                bail!("the ACME server no longer knows our account; a new one will be created");
            }
            order => order.context("the ACME server refused the order")?,
        };
        let _guard = ChallengeGuard(&self.tls);
        self.prove(&mut order).await?;
        let retries = RetryPolicy::new().timeout(STEP);
        match order.poll_ready(&retries).await {
            Ok(OrderStatus::Ready) => {}
            Err(error @ Error::Timeout(_)) => {
                return Err(error).context("the ACME server did not validate the domains in time");
            }
            _ => bail!("the ACME server could not validate the domains: {}", validation_errors(&mut order).await),
        }
        let key = order.finalize().await.context("the ACME server refused to issue the certificate")?;
        let chain = order.poll_certificate(&retries).await.context("the ACME server did not return the certificate")?;
        let pem = format!("{key}\n{chain}");
        let issued = Issued::of(&pem, &self.config.domains).context("the certificate cannot be used")?;
        ensure!(
            issued.renew_at() > SystemTime::now(),
            "the new certificate has already expired; check the clock of this machine"
        );
        self.tls.certify(issued.identity.clone())?;
        // If the disk is full, use the certificate anyway: without it the server could not serve TLS.
        if let Err(error) = self.store.keep_certificate(&pem) {
            let error = format!("{error:#}");
            tracing::error!(error, "the new certificate is in use but cannot be written to the cache");
        }
        Ok(issued)
    }

    async fn account(&self) -> anyhow::Result<Account> {
        let builder = Account::builder_with_http(Box::new(self.client.clone()));
        if let Some(kept) = self.store.account()? {
            return builder.from_credentials(kept).await.context("the ACME server does not answer");
        }
        let contact: Vec<String> = self.config.contact.iter().map(|mail| format!("mailto:{mail}")).collect();
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: self.config.accept_terms,
            only_return_existing: false,
        };
        let created = builder.create(&new, self.config.directory.clone(), None).await;
        let (account, credentials) = created.context("the ACME server refused to create an account")?;
        self.store.keep_account(&credentials)?;
        Ok(account)
    }

    /// Proves control of every domain of the order by answering its challenges.
    async fn prove(&self, order: &mut Order) -> anyhow::Result<()> {
        let mut proofs = Proofs::default();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.context("the ACME server did not send an authorization")?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => bail!("the authorization for {} is {status:?}", authorization.identifier()),
            }
            let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
            let mut challenge = challenge.context("the ACME server does not offer TLS-ALPN-01")?;
            let domain = challenge.identifier().to_string();
            proofs.add(&domain, challenge.key_authorization().digest().as_ref())?;
            self.tls.set_challenge(Some(proofs.config()?));
            challenge.set_ready().await.with_context(|| format!("the challenge for {domain} was refused"))?;
        }
        Ok(())
    }
}

/// Error type of an unknown account. Source: RFC 8555, section 6.7.
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Drop guard that removes the challenge certificates when the order ends for any reason.
struct ChallengeGuard<'a>(&'a TlsState);

impl Drop for ChallengeGuard<'_> {
    fn drop(&mut self) {
        self.0.set_challenge(None);
    }
}

/// Returns the errors that the ACME server reports for each domain.
async fn validation_errors(order: &mut Order) -> String {
    let mut errors_by_domain = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_ok() {
            let errors = authorization.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
            let name = authorization.identifier().to_string();
            errors_by_domain.extend(errors.map(|error| format!("{name}: {error}")));
        }
    }
    errors_by_domain.join("; ")
}

/// Returns the pause after an error. It doubles with each failure. `chance` (0 to 1) changes it by up to a quarter, so
/// that nodes that fail together do not retry together.
fn pause_after(failures: u32, chance: f64) -> Duration {
    let doubled = PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
    doubled.mul_f64(0.75 + chance / 2.0)
}

fn rand_unit() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers, use the middle.
    getrandom::fill(&mut bytes).map_or(0.5, |()| f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_maximum() {
        let pauses: Vec<_> = (1..=12).map(|failures| pause_after(failures, 0.5).as_secs()).collect();
        assert_eq!(pauses[..4], [60, 120, 240, 480]);
        assert_eq!(pauses[11], 6 * 60 * 60);
        assert_eq!((pause_after(1, 0.0).as_secs(), pause_after(1, 1.0).as_secs()), (45, 75));
        assert_eq!(pause_after(u32::MAX, 0.5), PAUSE_MAX);
    }
}
