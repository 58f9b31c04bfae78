//! Authentication: verifies tokens and API keys, and returns the permissions of clients with or without them.
//!
//! A grant lists permissions on channels; the transports enforce them. No token is ever logged. Read first: [`Auth`],
//! [`Config`], `jwt`.

mod api_key;
mod cache;
mod config;
mod jwt;
mod key;
mod remote;
mod revocations;
mod sign;

pub use api_key::{encode_hash, generate as generate_api_key, hash as hash_api_key, random_text};
pub use config::{ApiKey, Config, Rights};
pub use jwt::{Claims, Token};
pub use key::{Algorithm, KeyError};
pub use revocations::{RevocationsError, Revoked};
pub use sign::{Pair, SigningError, SigningKey, generate};

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use millrace_protocol::{Code, Error, Grant, Pattern, Permission};
use millrace_transport::access::{Authority, Verdict};
use tokio::sync::watch;

use self::{
    api_key::Hash,
    cache::Cache,
    config::refused,
    key::Key,
    remote::RemoteKeys,
    revocations::{List, Revocations},
};

/// Permissions of clients without a token.
#[derive(Clone, Debug, Default)]
pub struct Anonymous {
    pub namespaces: BTreeMap<String, Vec<Permission>>,
    /// True if the app's back end grants permissions when a client connects. Then a client without a token has only
    /// those of the namespaces besides.
    pub has_connect_hook: bool,
}

/// Function that returns the seconds since 1970.
pub type Clock = fn() -> u64;

/// Reasons why authentication cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Revocations(#[from] RevocationsError),
    #[error("{}", .0.detail)]
    ApiKeyGrant(Error),
    #[error("an API key's `sha256` has 64 hexadecimal digits")]
    ApiKeyHash,
    #[error("namespaces.{namespace}: {error}")]
    Namespace { namespace: String, error: Error },
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Verifies tokens and API keys, and returns their grants. All shards share one; its keys may change at runtime.
pub struct Auth {
    rules: RwLock<Arc<Rules>>,
    revocations: Revocations,
    clock: Clock,
}

/// State built from one configuration.
struct Rules {
    config: Config,
    keys: Vec<Key>,
    remote: Option<Arc<RemoteKeys>>,
    api_keys: Vec<(Hash, Arc<Grant>)>,
    anonymous: Arc<Grant>,
    cache: Cache,
}

/// A verified token.
pub struct Verified {
    pub grant: Arc<Grant>,
    /// Source of the key that verified it, for messages to the operator.
    pub by: String,
}

/// A configuration whose files were read and found valid.
pub struct Prepared {
    rules: Rules,
    revoked: List,
    revoked_max: usize,
}

impl Auth {
    /// Reads all key files and starts fetching the key set.
    ///
    /// Errors: a file that cannot be read or has no key; the message names the file.
    pub fn new(config: &Config, anonymous: &Anonymous, clock: Clock) -> Result<Self, AuthError> {
        let revocations = Revocations::new(config.revoked_max);
        revocations.set_file(read_revoked(config)?, config.revoked_max);
        let rules = Rules::new(config, anonymous, None)?;
        Ok(Self { rules: RwLock::new(rules.into()), revocations, clock })
    }

    /// Prepares another configuration for [`Self::apply`]. Reads all files again even if the configuration is the same.
    ///
    /// Errors: as [`Self::new`].
    pub fn prepare(&self, config: &Config, anonymous: &Anonymous) -> Result<Prepared, AuthError> {
        let revoked = read_revoked(config)?;
        let rules = Rules::new(config, anonymous, Some(&self.rules()))?;
        Ok(Prepared { rules, revoked, revoked_max: config.revoked_max })
    }

    /// Replaces the configuration. Cached tokens are verified again.
    pub fn apply(&self, Prepared { rules, revoked, revoked_max }: Prepared) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules.into();
        self.revocations.set_file(revoked, revoked_max);
    }

    /// Returns the grant of a token or API key.
    ///
    /// Cost: a lookup for a cached token, otherwise a signature; waits only while a key set is fetched.
    /// Errors: [`Code::Unauthorized`], without the token in it; [`Code::Unavailable`] while no key set has been fetched
    /// yet.
    async fn grant(&self, credential: &str) -> Result<Arc<Grant>, Error> {
        let rules = self.rules();
        if credential.len() <= rules.config.token_bytes_max {
            let version = rules.remote.as_ref().map_or(0, |remote| remote.keys().1);
            if let Some(grant) = rules.cache.get(credential, version, (self.clock)()) {
                return self.unless_revoked(grant);
            }
        }
        self.check(&rules, credential).await.map(|verified| verified.grant)
    }

    /// As [`Authority::verify`], but without the cache; also names the key that verified the token.
    pub async fn explain(&self, credential: &str) -> Result<Verified, Error> {
        self.check(&self.rules(), credential).await
    }

    async fn check(&self, rules: &Rules, credential: &str) -> Result<Verified, Error> {
        if !credential.contains('.') {
            let grant = api_key::find(&rules.api_keys, credential)
                .ok_or_else(|| refused("the token is neither a JWT nor a known API key"))?;
            return self.unless_revoked(grant.clone()).map(|grant| Verified { grant, by: "auth.api_keys".into() });
        }
        let token = Token::parse(credential, rules.config.token_bytes_max)?;
        let (key, version) = rules.key(&token).await?;
        let grant = Arc::new(token.claims()?.grant(&rules.config, (self.clock)())?);
        rules.cache.insert(credential, version, grant.clone());
        self.unless_revoked(grant).map(|grant| Verified { grant, by: key.from })
    }

    fn unless_revoked(&self, grant: Arc<Grant>) -> Result<Arc<Grant>, Error> {
        match self.is_revoked(&grant) {
            true => Err(refused("the token was revoked")),
            false => Ok(grant),
        }
    }

    /// Revokes on this node, until `until_s` in seconds since 1970.
    ///
    /// Errors: [`Code::TooMany`].
    pub fn revoke(&self, revoked: Revoked, until_s: u64) -> Result<(), Error> {
        self.revocations.add(revoked, until_s, (self.clock)())
    }

    /// Returns the time until which a revocation must be kept: no token that was issued before now lives longer.
    pub fn revoked_until_s(&self) -> u64 {
        (self.clock)().saturating_add(self.rules().config.revocation_lifetime().as_secs())
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Authority for Auth {
    fn verify<'a>(&'a self, credential: &'a str) -> Verdict<'a> {
        Box::pin(self.grant(credential))
    }

    /// Returns a grant of everything if no authentication is configured.
    fn anonymous(&self) -> Arc<Grant> {
        self.rules().anonymous.clone()
    }

    fn revocations(&self) -> watch::Receiver<u64> {
        self.revocations.changes()
    }

    fn is_revoked(&self, grant: &Grant) -> bool {
        self.revocations.contain(grant)
    }
}

impl Rules {
    fn new(config: &Config, anonymous: &Anonymous, old: Option<&Rules>) -> Result<Self, AuthError> {
        let mut keys = Vec::new();
        if !config.secret.is_empty() {
            keys.push(Key::from_secret(config.secret.as_bytes(), "auth.secret")?);
        }
        for path in &config.keys {
            keys.extend(Key::from_file(path)?);
        }
        let api_key = |(name, key): (&String, &ApiKey)| {
            let mut grant = Grant { id: Some(name.as_str().into()), ..Grant::nothing() };
            key.grants.grant(&mut grant).map_err(AuthError::ApiKeyGrant)?;
            let hash = api_key::decode_hash(&key.sha256).ok_or(AuthError::ApiKeyHash)?;
            Ok::<_, AuthError>((hash, Arc::new(grant)))
        };
        Ok(Self {
            keys,
            remote: remote(config, old)?,
            api_keys: config.api_keys.iter().map(api_key).collect::<Result<_, _>>()?,
            anonymous: Arc::new(anonymous_grant(config, anonymous)?),
            cache: Cache::new(config.cached_max),
            config: config.clone(),
        })
    }

    /// Returns the key that signed the token, and the version of the key set that was searched.
    async fn key(&self, token: &Token<'_>) -> Result<(Key, u64), Error> {
        let unknown = || refused("the token was not signed with any configured key");
        let Some(remote) = &self.remote else {
            let found = token.key(self.keys.iter()).unwrap_or_else(|| Err(unknown()));
            return found.map(|key| (key.clone(), 0));
        };
        for is_last in [false, true] {
            let (set, version) = remote.keys();
            if let Some(found) = token.key(self.keys.iter().chain(set.iter())) {
                return found.map(|key| (key.clone(), version));
            }
            if !is_last {
                remote.newer().await;
            } else if version == 0 {
                return Err(Error::new(
                    Code::Unavailable,
                    "the keys that tokens are checked with could not be fetched yet",
                ));
            }
        }
        Err(unknown())
    }
}

/// Returns the fetcher of the key set. Keeps the previous one with its keys if its settings are the same.
fn remote(config: &Config, old: Option<&Rules>) -> Result<Option<Arc<RemoteKeys>>, AuthError> {
    if config.jwks.is_empty() {
        return Ok(None);
    }
    let is_same = |old: &&Rules| {
        let times = |config: &Config| (config.jwks_refresh, config.jwks_pause);
        old.config.jwks == config.jwks && times(&old.config) == times(config)
    };
    if let Some(remote) = old.filter(is_same).and_then(|old| old.remote.clone()) {
        remote.refresh();
        return Ok(Some(remote));
    }
    let started = RemoteKeys::start(config.jwks.clone(), config.jwks_refresh, config.jwks_pause);
    started.map(|remote| Some(Arc::new(remote))).map_err(AuthError::Thread)
}

fn anonymous_grant(config: &Config, anonymous: &Anonymous) -> Result<Grant, AuthError> {
    let is_closed = config.is_configured() || anonymous.has_connect_hook;
    if !is_closed && anonymous.namespaces.values().all(Vec::is_empty) {
        return Ok(Grant::everything());
    }
    let mut grant = Grant::nothing();
    for (namespace, rights) in &anonymous.namespaces {
        let pattern = Pattern::parse(&format!("{namespace}/#"))
            .map_err(|error| AuthError::Namespace { namespace: namespace.clone(), error })?;
        rights.iter().for_each(|right| grant.allow(*right, pattern.clone()));
    }
    Ok(grant)
}

fn read_revoked(config: &Config) -> Result<List, AuthError> {
    match config.revoked.as_os_str().is_empty() {
        true => Ok(List::default()),
        false => Ok(List::read(&config.revoked, config.revoked_max)?),
    }
}
