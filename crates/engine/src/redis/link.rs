use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisError, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

use super::url::{Kind, Url};

/// Timeout for a response. After it the connection is given up.
const ANSWER: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(2);
/// Retries of the client library within a cluster, for a slot or node that has moved. Batch tokens make the retries
/// safe.
const CLUSTER_RETRIES: u32 = 3;

/// A connection to one server, or one connection to each node of a cluster. Many requests can be in flight at once.
#[derive(Clone)]
pub enum Link {
    Single(MultiplexedConnection),
    Cluster(Box<ClusterConnection>),
}

/// Callback for push messages of the server.
pub type OnPush = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Link {
    /// Connects. With `on_push` the connection may subscribe.
    pub async fn open(url: &Url, on_push: Option<OnPush>) -> RedisResult<Self> {
        let settings = || {
            let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(url.database);
            let settings = match &url.user {
                Some(user) => settings.set_username(user),
                None => settings,
            };
            match &url.password {
                Some(password) => settings.set_password(password),
                None => settings,
            }
        };
        let addresses = url.hosts.iter().map(|(host, port)| ConnectionAddr::Tcp(host.clone(), *port));
        let infos = addresses.clone().map(|address| Ok(address.into_connection_info()?.set_redis_settings(settings())));
        let config = || {
            let config = AsyncConnectionConfig::new();
            let config = config.set_response_timeout(Some(ANSWER)).set_connection_timeout(Some(CONNECT));
            match &on_push {
                Some(on_push) => config.set_push_sender(sender(on_push.clone())),
                None => config,
            }
        };
        match &url.kind {
            Kind::Single => {
                let info = infos.into_iter().next().expect("a URL has a host")?;
                let connection = Client::open(info)?.get_multiplexed_async_connection_with_config(&config()).await?;
                Ok(Link::Single(connection))
            }
            Kind::Sentinel(service) => {
                let mut builder = SentinelClientBuilder::new(addresses, service, SentinelServerType::Master)?
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                    .set_client_to_redis_db(url.database);
                if let Some(user) = &url.user {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = &url.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                let connection = builder.build()?.get_async_connection_with_config(&config()).await?;
                Ok(Link::Single(connection))
            }
            Kind::Cluster => {
                let infos = infos.collect::<RedisResult<Vec<ConnectionInfo>>>()?;
                let mut builder = ClusterClientBuilder::new(infos)
                    .use_protocol(ProtocolVersion::RESP3)
                    .connection_timeout(CONNECT)
                    .response_timeout(ANSWER)
                    .retries(CLUSTER_RETRIES);
                if let Some(on_push) = on_push {
                    builder = builder.push_sender(sender(on_push));
                }
                Ok(Link::Cluster(Box::new(builder.build()?.get_async_connection().await?)))
            }
        }
    }

    pub async fn query(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Link::Single(connection) => connection.req_packed_command(command).await,
            Link::Cluster(connection) => connection.req_packed_command(command).await,
        }
    }

    /// Checks that every node that may hold a channel responds.
    pub async fn ping(&mut self) -> RedisResult<()> {
        self.query(&redis::cmd("PING")).await?.extract_error().map(drop)
    }
}

fn sender(on_push: OnPush) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> + Send + Sync + 'static {
    move |info| {
        on_push(info);
        Ok(())
    }
}

/// The shared connection for commands, opened on demand.
pub struct Commands {
    url: Url,
    open: tokio::sync::Mutex<Option<Current>>,
}

struct Current {
    link: Link,
    is_good: Arc<AtomicBool>,
}

/// A connection in use. A caller that finds it broken calls [`InUse::give_up`].
pub struct InUse {
    pub link: Link,
    is_good: Arc<AtomicBool>,
}

impl InUse {
    /// Discards this connection: the next command opens a new one.
    pub fn give_up(&self) {
        self.is_good.store(false, SeqCst);
    }
}

impl Commands {
    pub fn new(url: Url) -> Self {
        Self { url, open: tokio::sync::Mutex::default() }
    }

    /// Returns the current connection, or opens a new one. `prepare` runs once per new connection.
    pub async fn link(&self, prepare: impl AsyncFnOnce(&mut Link) -> RedisResult<()>) -> RedisResult<InUse> {
        let mut open = self.open.lock().await;
        if let Some(Current { link, is_good }) = &*open
            && is_good.load(SeqCst)
        {
            return Ok(InUse { link: link.clone(), is_good: is_good.clone() });
        }
        *open = None;
        let mut link = Link::open(&self.url, None).await?;
        prepare(&mut link).await?;
        let is_good = Arc::new(AtomicBool::new(true));
        *open = Some(Current { link: link.clone(), is_good: is_good.clone() });
        Ok(InUse { link, is_good })
    }
}

/// Returns true if the error is a response of the server and the connection is still usable.
pub fn is_answer(error: &RedisError) -> bool {
    error.code().is_some_and(|code| !matches!(code, "READONLY" | "MASTERDOWN" | "LOADING")) && !error.is_io_error()
}
