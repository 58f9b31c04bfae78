use std::{
    collections::HashMap,
    io,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderName;
use millrace_protocol::{ChannelName, Code, Error, NewPublication, RpcCall, TraceContext, session::Target};
use millrace_transport::admission::hooks::{
    self as transport, Asked, ConnectAnswer, ConnectQuestion, Credential, Hook, HookClient,
};
use tokio::time::Instant;

use crate::{
    Config, HookUrl, NamespaceHooks, OnFailure,
    answer::{self, Decision, InvalidAnswer},
    answer_cache::{AnswerCache, Key, key},
    circuit_breaker::BreakerState,
    endpoint::{Endpoint, EndpointConfig, EndpointError, EndpointRequest, Repeat},
    http_client::{CallError, ClientError, HttpClient},
    metrics::{Metrics, Outcome},
    question::Question,
    runtime::HookThread,
    signature::{Signer, event_id},
};

/// Creates the body of a question from the id of its event.
type Body = Box<dyn FnOnce(&str) -> Bytes + Send>;

/// A question, and the trace that it belongs to.
struct Asking {
    body: Body,
    trace: Option<TraceContext>,
}

impl Asking {
    fn new(body: impl FnOnce(&str) -> Bytes + Send + 'static) -> Self {
        Self { body: Box::new(body), trace: None }
    }
}

/// Reasons why hooks cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HooksError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// State of a hook's URL, for operators.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointState {
    pub hook: Hook,
    /// The URL without its query.
    pub url: String,
    pub breaker: BreakerState,
    /// Questions to this URL; answers from the cache are not included.
    pub requests_total: u64,
    /// Questions without a usable answer, or that were not sent.
    pub failures_total: u64,
    pub cached_total: u64,
    /// Quantiles of the time until a question was answered or failed; `None` before the first question.
    pub latency_p50_ms: Option<f64>,
    pub latency_p99_ms: Option<f64>,
}

/// The app's back end: asks it over HTTP.
#[derive(Debug)]
pub struct Hooks {
    thread: HookThread,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    signer: RwLock<Arc<Signer>>,
    connect: Option<Rule>,
    all: Rules,
    namespaces: HashMap<String, Rules>,
    /// Each configured URL once per hook: a hook does not wait for the slots of another, nor for its circuit breaker.
    endpoints: Vec<(Hook, Arc<Endpoint>)>,
    timeout: Duration,
    headers: Vec<HeaderName>,
    opaque_tokens: bool,
    connects: AnswerCache<Result<ConnectAnswer, Error>>,
    /// Answers to `subscribe` and `publish`.
    permits: AnswerCache<Result<(), Error>>,
    metrics: Metrics,
}

/// Hooks of one namespace.
#[derive(Debug, Default)]
struct Rules {
    subscribe: Option<Rule>,
    publish: Option<Rule>,
    rpc: Option<Rule>,
}

/// Endpoint of a question, and what happens while it does not answer.
#[derive(Clone, Debug)]
struct Rule {
    endpoint: Arc<Endpoint>,
    on_failure: OnFailure,
}

/// Reasons why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Answer(#[from] InvalidAnswer),
    #[error("the system has no random numbers")]
    Random,
    #[error("the server is shutting down")]
    Stopped,
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Failure::Endpoint(EndpointError::BreakerOpen { .. }) => Outcome::BreakerOpen,
            Failure::Endpoint(EndpointError::Overloaded) => Outcome::Overloaded,
            Failure::Endpoint(EndpointError::Timeout) => Outcome::Timeout,
            _ => Outcome::Error,
        }
    }

    /// Returns true if the back end may have received the question.
    fn is_sent(&self) -> bool {
        match self {
            Failure::Endpoint(error) => error.is_sent(),
            Failure::Answer(_) => true,
            Failure::Random | Failure::Stopped => false,
        }
    }

    /// Returns the error for the client. It names no address: that is for operators.
    fn to_error(&self) -> Error {
        let why = match self {
            Failure::Endpoint(EndpointError::BreakerOpen { .. }) => "it has not answered the last requests",
            Failure::Endpoint(EndpointError::Overloaded) => "too many requests wait for it",
            Failure::Endpoint(EndpointError::Timeout) => "it has not answered in time",
            Failure::Endpoint(EndpointError::Call(CallError::NotSent(_))) => "it cannot be reached",
            Failure::Endpoint(EndpointError::Call(_)) | Failure::Answer(_) => "it has not answered as it must",
            Failure::Random | Failure::Stopped => "the server is shutting down",
        };
        let error = Error::new(Code::Unavailable, format!("the application cannot be asked: {why}; try again later"));
        match self {
            Failure::Endpoint(EndpointError::BreakerOpen { wait }) => error.retry_after(*wait),
            _ => error,
        }
    }
}

impl Hooks {
    /// Creates the hooks, and starts the thread of their requests.
    ///
    /// Errors: an invalid certificate, or no thread.
    pub fn new(config: Config) -> Result<Self, HooksError> {
        let client = HttpClient::new(config.answer_bytes_max, &config.authorities)?;
        let limits = EndpointConfig { concurrency: config.concurrency, breaker: config.breaker };
        let mut endpoints: HashMap<(Hook, HookUrl), Arc<Endpoint>> = HashMap::new();
        let mut rule = |hook: Hook, url: Option<&HookUrl>, on_failure| {
            let url = url?;
            let endpoint = endpoints
                .entry((hook, url.clone()))
                .or_insert_with(|| Arc::new(Endpoint::new(hook.name(), url.clone(), client.clone(), limits)));
            Some(Rule { endpoint: endpoint.clone(), on_failure })
        };
        let mut rules = |hooks: &NamespaceHooks| Rules {
            subscribe: rule(Hook::Subscribe, hooks.subscribe.as_ref(), hooks.on_failure),
            publish: rule(Hook::Publish, hooks.publish.as_ref(), hooks.on_failure),
            rpc: rule(Hook::Rpc, hooks.rpc.as_ref(), hooks.on_failure),
        };
        let (all, namespaces) =
            (rules(&config.all), config.namespaces.iter().map(|(name, own)| (name.clone(), rules(own))).collect());
        let connect = rule(Hook::Connect, config.connect.as_ref(), config.all.on_failure);
        let mut endpoints: Vec<_> = endpoints.into_iter().map(|((hook, _), endpoint)| (hook, endpoint)).collect();
        endpoints.sort_by(|(a, a_endpoint), (b, b_endpoint)| {
            (*a as usize, a_endpoint.url()).cmp(&(*b as usize, b_endpoint.url()))
        });
        let inner = Inner {
            signer: RwLock::new(Arc::new(config.signer)),
            connect,
            all,
            namespaces,
            endpoints,
            timeout: config.timeout,
            headers: config.headers,
            opaque_tokens: config.opaque_tokens,
            connects: AnswerCache::new(config.cached_max),
            permits: AnswerCache::new(config.cached_max),
            metrics: Metrics::default(),
        };
        Ok(Self { thread: HookThread::start("hooks").map_err(HooksError::Thread)?, inner: Arc::new(inner) })
    }

    /// Replaces the secrets. Requests from now on are signed with the new ones.
    pub fn set_signer(&self, signer: Signer) {
        *self.inner.signer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(signer);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the state of each configured URL, per hook.
    pub fn endpoints(&self) -> Vec<EndpointState> {
        let state = |(hook, endpoint): &(Hook, Arc<Endpoint>)| {
            let metrics = endpoint.metrics();
            EndpointState {
                hook: *hook,
                url: endpoint.url().shown(),
                breaker: endpoint.breaker_state(),
                requests_total: Outcome::ALL.map(|outcome| metrics.outcome(outcome)).iter().sum(),
                failures_total: Outcome::FAILURES.map(|outcome| metrics.outcome(outcome)).iter().sum(),
                cached_total: metrics.cached(),
                latency_p50_ms: metrics.quantile_ms(0.5),
                latency_p99_ms: metrics.quantile_ms(0.99),
            }
        };
        self.inner.endpoints.iter().map(state).collect()
    }

    /// Sends a question from the thread of the hooks. Dropping the future ends the request.
    fn ask<T: Send + 'static>(
        &self,
        hook: Hook,
        rule: &Rule,
        repeat: Repeat,
        timeout: Duration,
        Asking { body, trace }: Asking,
        decode: fn(&[u8]) -> Result<Decision<T>, InvalidAnswer>,
    ) -> impl Future<Output = Result<Decision<T>, Failure>> + Send + use<T> {
        let (inner, endpoint) = (self.inner.clone(), rule.endpoint.clone());
        let running = self.thread.spawn(async move {
            let started = Instant::now();
            let asked = async {
                let id = event_id().map_err(|_| Failure::Random)?;
                let signer = inner.signer.read().unwrap_or_else(PoisonError::into_inner).clone();
                let request = EndpointRequest {
                    body: body(&id),
                    event_id: id,
                    trace,
                    repeat,
                    deadline: started + timeout,
                    is_outage_when_late: timeout >= inner.timeout,
                };
                let answer = endpoint.call(&signer, &request).await?;
                Ok(decode(&answer)?)
            };
            let asked: Result<Decision<T>, Failure> = asked.await;
            let outcome = match &asked {
                Ok(Decision { allowed: Ok(_), .. }) => Outcome::Allowed,
                Ok(Decision { allowed: Err(_), .. }) => Outcome::Refused,
                Err(failure) => {
                    tracing::debug!(hook = hook.name(), url = endpoint.url().shown(), error = %failure, "a hook has failed");
                    failure.outcome()
                }
            };
            let latency = started.elapsed();
            inner.metrics.of(hook).count(outcome, latency);
            endpoint.metrics().count(outcome, latency);
            asked
        });
        async move { running.await.unwrap_or(Err(Failure::Stopped)) }
    }

    /// Asks whether something is permitted, or reuses an earlier answer.
    fn permit<T: Default + Send + 'static>(
        &self,
        hook: Hook,
        rule: &Rule,
        repeat: Repeat,
        key: Key,
        asking: Asking,
        decode: fn(&[u8]) -> Result<Decision<T>, InvalidAnswer>,
    ) -> Asked<T> {
        if let Some(kept) = self.inner.permits.get(&key, Instant::now()) {
            self.inner.metrics.of(hook).count_cached();
            rule.endpoint.metrics().count_cached();
            return Box::pin(std::future::ready(kept.map(|()| T::default())));
        }
        let (inner, on_failure) = (self.inner.clone(), rule.on_failure);
        let asked = self.ask(hook, rule, repeat, self.inner.timeout, asking, decode);
        Box::pin(async move {
            match asked.await {
                Ok(Decision { allowed, ttl }) => {
                    if let Some(ttl) = ttl {
                        let kept = allowed.as_ref().map(|_| ()).map_err(Error::clone);
                        let bytes = size_of::<Result<(), Error>>() + kept.as_ref().err().map_or(0, error_bytes);
                        inner.permits.insert(key, kept, bytes, Instant::now() + ttl);
                    }
                    allowed
                }
                Err(failure) => fail(&failure, on_failure),
            }
        })
    }
}

impl Inner {
    /// Returns the rules that apply to a channel, a pattern or a method. A pattern whose first level is a wildcard
    /// covers all namespaces, so each URL is asked.
    fn rules(&self, name: &str, of: fn(&Rules) -> &Option<Rule>) -> Vec<&Rule> {
        let first = name.split('/').next().unwrap_or_default();
        if !["+", "#"].contains(&first) {
            return of(self.namespaces.get(first).unwrap_or(&self.all)).iter().collect();
        }
        let mut found: Vec<&Rule> = Vec::new();
        for rule in std::iter::once(&self.all).chain(self.namespaces.values()).filter_map(|rules| of(rules).as_ref()) {
            let is_same =
                |other: &&Rule| Arc::ptr_eq(&other.endpoint, &rule.endpoint) && other.on_failure == rule.on_failure;
            if !found.iter().any(is_same) {
                found.push(rule);
            }
        }
        found
    }

    fn rule(&self, hook: Hook, name: &str) -> Option<&Rule> {
        let first = name.split('/').next().unwrap_or_default();
        let rules = self.namespaces.get(first).unwrap_or(&self.all);
        match hook {
            Hook::Connect => self.connect.as_ref(),
            Hook::Subscribe => rules.subscribe.as_ref(),
            Hook::Publish => rules.publish.as_ref(),
            Hook::Rpc => rules.rpc.as_ref(),
        }
    }
}

impl transport::Hooks for Hooks {
    fn asks(&self, hook: Hook, name: &str) -> bool {
        match hook {
            Hook::Subscribe => !self.inner.rules(name, |rules| &rules.subscribe).is_empty(),
            hook => self.inner.rule(hook, name).is_some(),
        }
    }

    fn headers(&self) -> &[HeaderName] {
        &self.inner.headers
    }

    fn takes_opaque_tokens(&self) -> bool {
        self.inner.opaque_tokens
    }

    fn connect(&self, question: ConnectQuestion) -> Asked<ConnectAnswer> {
        let Some(rule) = self.inner.connect.clone() else {
            return Box::pin(std::future::ready(Ok(ConnectAnswer::default())));
        };
        let key = connect_key(&question);
        if let Some(kept) = self.inner.connects.get(&key, Instant::now()) {
            self.inner.metrics.of(Hook::Connect).count_cached();
            rule.endpoint.metrics().count_cached();
            return Box::pin(std::future::ready(kept));
        }
        let ConnectQuestion { client, credential, headers } = question;
        let token = if let Credential::Opaque(token) = credential { Some(token) } else { None };
        // Without an answer, a token that only the back end can verify proves nothing.
        let on_failure = if token.is_some() { OnFailure::Refuse } else { rule.on_failure };
        let asking =
            Asking::new(move |id| Question::new(Hook::Connect, id, &client).connect(token.as_deref(), &headers));
        let asked = self.ask(Hook::Connect, &rule, Repeat::BeforeAnswer, self.inner.timeout, asking, answer::connect);
        let inner = self.inner.clone();
        Box::pin(async move {
            match asked.await {
                Ok(Decision { allowed, ttl }) => {
                    if let Some(ttl) = ttl {
                        let bytes = allowed.as_ref().map_or_else(error_bytes, connect_bytes);
                        inner.connects.insert(key, allowed.clone(), bytes, Instant::now() + ttl);
                    }
                    allowed
                }
                Err(failure) => fail(&failure, on_failure),
            }
        })
    }

    fn subscribe(&self, client: HookClient, target: Target) -> Asked<()> {
        let ask = |rule: &Rule| {
            let name = target.as_str();
            let url = rule.endpoint.url().url().as_str();
            let key = permit_key(Hook::Subscribe, &client, &[url, name]);
            let (client, name) = (client.clone(), name.to_owned());
            let asking = Asking::new(move |id| Question::new(Hook::Subscribe, id, &client).subscribe(&name));
            self.permit(Hook::Subscribe, rule, Repeat::BeforeAnswer, key, asking, answer::subscribe)
        };
        let mut asked: Vec<Asked<()>> =
            self.inner.rules(target.as_str(), |rules| &rules.subscribe).into_iter().map(ask).collect();
        match asked.len() {
            1 => asked.remove(0),
            _ => Box::pin(async move {
                for one in asked {
                    one.await?;
                }
                Ok(())
            }),
        }
    }

    fn publish(&self, client: HookClient, channel: ChannelName, publication: NewPublication) -> Asked<NewPublication> {
        let Some(rule) = self.inner.rule(Hook::Publish, channel.as_str()) else {
            return Box::pin(std::future::ready(Ok(publication)));
        };
        let key = permit_key(Hook::Publish, &client, &[channel.as_str()]);
        let asked = publication.clone();
        let trace = publication.trace();
        let asking = Asking::new(move |id| Question::new(Hook::Publish, id, &client).publish(&channel, &asked));
        let asking = Asking { trace, ..asking };
        let replaced = self.permit(Hook::Publish, rule, Repeat::IfNotSent, key, asking, answer::publish);
        Box::pin(async move { Ok(answer::replace(publication, replaced.await?)) })
    }

    fn rpc(&self, client: HookClient, call: RpcCall) -> Asked<String> {
        let Some(rule) = self.inner.rule(Hook::Rpc, call.method.as_str()) else {
            let error = Error::new(Code::NotFound, "no back end answers this method");
            return Box::pin(std::future::ready(Err(error)));
        };
        let timeout = call.timeout.map_or(self.inner.timeout, |timeout| timeout.min(self.inner.timeout));
        let asking = Asking::new(move |id| Question::new(Hook::Rpc, id, &client).rpc(&call, timeout));
        let asked = self.ask(Hook::Rpc, rule, Repeat::IfNotSent, timeout, asking, answer::rpc);
        Box::pin(async move {
            match asked.await {
                Ok(decision) => decision.allowed,
                Err(failure) if failure.is_sent() => {
                    let detail = "the application has received the call, or may have, and has not answered as it must";
                    Err(Error::new(Code::NoAnswer, detail))
                }
                Err(failure) => Err(failure.to_error()),
            }
        })
    }
}

fn fail<T: Default>(failure: &Failure, on_failure: OnFailure) -> Result<T, Error> {
    match on_failure {
        OnFailure::Refuse => Err(failure.to_error()),
        OnFailure::Allow => Ok(T::default()),
    }
}

/// Returns the key of an answer to `connect`: the credential and the forwarded headers. A client without a token is
/// known by its address.
fn connect_key(ConnectQuestion { client, credential, headers }: &ConnectQuestion) -> Key {
    let address = client.address.map(|address| address.to_string()).unwrap_or_default();
    let (kind, credential) = match credential {
        Credential::None => ("none", address.as_str()),
        Credential::Verified(token) => ("verified", token.as_str()),
        Credential::Opaque(token) => ("opaque", token.as_str()),
    };
    let headers = headers.iter().flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    key([kind.as_bytes(), credential.as_bytes()].into_iter().chain(headers))
}

/// Returns the key of an answer about a client, known by its subject, or else by its address or its connection.
fn permit_key(hook: Hook, client: &HookClient, about: &[&str]) -> Key {
    let (kind, who) = match client {
        HookClient { subject: Some(subject), .. } => ("subject", subject.to_string()),
        HookClient { address: Some(address), .. } => ("address", address.to_string()),
        HookClient { connection, .. } => ("connection", connection.clone().unwrap_or_default()),
    };
    key([hook.name(), kind, &who].into_iter().chain(about.iter().copied()).map(str::as_bytes))
}

fn error_bytes(error: &Error) -> usize {
    size_of::<Error>() + error.detail.len() + error.reason.as_ref().map_or(0, |reason| reason.len())
}

fn connect_bytes(answer: &ConnectAnswer) -> usize {
    let patterns: usize =
        answer.grants.iter().map(|(_, pattern)| pattern.as_str().len() + size_of::<(Hook, Bytes)>()).sum();
    let channels: usize = answer.subscribe.iter().map(|channel| channel.as_str().len() + size_of::<Bytes>()).sum();
    let text = [&answer.subject, &answer.info].into_iter().flatten().map(|text| text.len()).sum::<usize>();
    size_of::<ConnectAnswer>() + patterns + channels + text
}
