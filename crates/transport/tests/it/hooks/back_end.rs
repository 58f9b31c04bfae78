//! A back end as an application would run it: a real HTTP server that records each question and answers as the test
//! decides.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use millrace_hooks::signature::Signer;
use millrace_server::{Config, config::Secret};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::server::{certificates, until};

pub const SECRET: &str = "the secret of the hooks, 32 bytes";

/// A question that the back end has received.
#[derive(Clone, Debug)]
pub struct Question {
    pub path: String,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    pub version: Version,
}

/// Answer to a question.
pub enum Reply {
    Json(Value),
    Status(StatusCode),
    Redirect(String),
    Text(&'static str),
    /// An allowance in a body of this many bytes.
    Large(usize),
    Never,
    /// Part of a body, then the end of the connection.
    Cut,
    /// The end of the connection, without a byte of an answer.
    Hangup,
    /// The reply of a slow back end.
    After(Duration, Value),
    /// The reply, when the semaphore has a permit.
    When(Arc<Semaphore>, Value),
}

type Answer = Arc<dyn Fn(&Question) -> Reply + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub struct BackEnd {
    pub address: SocketAddr,
    is_tls: bool,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    answer: Mutex<Answer>,
    questions: Mutex<Vec<Question>>,
    connections: AtomicUsize,
    in_progress: AtomicUsize,
    in_progress_max: AtomicUsize,
    /// Requests that ended without a response.
    withdrawn: AtomicUsize,
}

/// Counts a request in progress, and whether it was withdrawn.
struct InProgress {
    state: Arc<State>,
    is_answered: bool,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.state.in_progress.fetch_sub(1, SeqCst);
        if !self.is_answered {
            self.state.withdrawn.fetch_add(1, SeqCst);
        }
    }
}

impl Question {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("a question is JSON")
    }

    pub fn hook(&self) -> String {
        self.json()["hook"].as_str().expect("a hook").to_owned()
    }

    /// Checks the signature with a secret, as docs/reference/hooks.md describes.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let header = self.headers["millrace-signature"].to_str().expect("ASCII");
        let now_s = millrace_transport::access::unix_s();
        Signer::new([secret]).verify(header, &self.bytes, now_s, Duration::from_secs(300)).is_ok()
    }
}

pub fn allow() -> Reply {
    Reply::Json(json!({ "allow": true }))
}

/// Returns a refusal as an application would write it.
pub fn refuse() -> Reply {
    Reply::Json(json!({ "allow": false, "code": "no_credit", "detail": "your credit is used up" }))
}

impl BackEnd {
    pub async fn start(answer: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.expect("a free port"), None, answer)
    }

    /// Starts a back end with TLS that offers HTTP/2.
    pub async fn start_http2(answer: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Self {
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
        let files = certificates();
        let chain =
            CertificateDer::pem_file_iter(&files.cert).expect("a file").map(|cert| cert.expect("a certificate"));
        let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config =
            builder.expect("versions").with_no_client_auth().with_single_cert(chain.collect(), key).expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::listen(listener, Some(TlsAcceptor::from(Arc::new(config))), answer)
    }

    /// Starts a back end at the address of one that has stopped.
    pub async fn start_at(address: SocketAddr, answer: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option");
        socket.bind(address).expect("the port is free");
        Self::listen(socket.listen(64).expect("a listener"), None, answer)
    }

    fn listen(
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Question) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let (questions, connections, in_progress, in_progress_max, withdrawn) = Default::default();
        let answer: Mutex<Answer> = Mutex::new(Arc::new(answer));
        let state = Arc::new(State { answer, questions, connections, in_progress, in_progress_max, withdrawn });
        let (address, is_tls) = (listener.local_addr().expect("an address"), tls.is_some());
        let task = tokio::spawn(accept(listener, tls, state.clone()));
        Self { address, is_tls, state, task }
    }

    pub fn url(&self, path: &str) -> String {
        let (scheme, host) = if self.is_tls { ("https", "localhost") } else { ("http", "127.0.0.1") };
        format!("{scheme}://{host}:{}{path}", self.address.port())
    }

    /// Replaces the answers.
    pub fn answer(&self, answer: impl Fn(&Question) -> Reply + Send + Sync + 'static) {
        *self.state.answer.lock().expect("no panic") = Arc::new(answer);
    }

    pub fn questions(&self) -> Vec<Question> {
        self.state.questions.lock().expect("no panic").clone()
    }

    /// Returns the questions of one hook as JSON.
    pub fn asked(&self, hook: &str) -> Vec<Value> {
        self.questions().iter().map(Question::json).filter(|question| question["hook"] == hook).collect()
    }

    pub async fn await_asked(&self, count: usize) {
        until(&format!("{count} questions"), async || self.questions().len() >= count).await;
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(SeqCst)
    }

    pub fn in_progress_max(&self) -> usize {
        self.state.in_progress_max.load(SeqCst)
    }

    pub fn withdrawn(&self) -> usize {
        self.state.withdrawn.load(SeqCst)
    }

    /// Stops the back end and all its connections. Returns its address, which refuses connections from now on.
    pub async fn stop(self) -> SocketAddr {
        let address = self.address;
        self.task.abort();
        until("the port is closed", async || tokio::net::TcpStream::connect(address).await.is_err()).await;
        address
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sets a secret, and the URLs of the given hooks.
pub fn hook(config: &mut Config, back_end: &BackEnd, hooks: &[&str]) {
    config.hooks.secrets = vec![Secret::from(SECRET)];
    for hook in hooks {
        let url = back_end.url(&format!("/{hook}"));
        match *hook {
            "connect" => config.hooks.connect = url,
            "subscribe" => config.hooks.subscribe = url,
            "publish" => config.hooks.publish = url,
            _ => config.hooks.rpc = url,
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    // Aborting this task ends the connections, too.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        state.connections.fetch_add(1, SeqCst);
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            match tls {
                None => serve(stream, state, false).await,
                Some(tls) => {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    serve(stream, state, is_http2).await;
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, state: Arc<State>, is_http2: bool) {
    let service = service_fn(move |request: Request<Incoming>| respond(state.clone(), request));
    let stream = TokioIo::new(stream);
    let _: Result<(), _> = match is_http2 {
        true => hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
        false => hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await,
    };
}

async fn respond(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let now = state.in_progress.fetch_add(1, SeqCst) + 1;
    state.in_progress_max.fetch_max(now, SeqCst);
    let mut in_progress = InProgress { state: state.clone(), is_answered: false };
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let question = Question { path: head.uri.path().to_owned(), headers: head.headers, bytes, version: head.version };
    state.questions.lock().expect("no panic").push(question.clone());
    let answer = state.answer.lock().expect("no panic").clone();
    let reply = answer(&question);
    let response = Response::builder().status(StatusCode::OK);
    let whole = |text: String| full(text.into());
    let response = match reply {
        Reply::Json(json) => response.body(whole(json.to_string())),
        Reply::Status(status) => response.status(status).body(whole(json!({ "allow": true }).to_string())),
        Reply::Redirect(to) => response.status(StatusCode::FOUND).header("location", to).body(whole(String::new())),
        Reply::Text(text) => response.body(whole(text.to_owned())),
        Reply::Large(bytes) => response.body(whole(format!("{}{{\"allow\":true}}", " ".repeat(bytes)))),
        Reply::Never => std::future::pending().await,
        Reply::Cut => {
            // The length is announced, so that a receiver can notice that the rest is missing.
            let first = Ok(Frame::data(Bytes::from_static(b"{\"allow\":")));
            let end = stream::once(async {
                // The first part leaves before the connection ends.
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut"))
            });
            let body = StreamBody::new(stream::iter([first]).chain(end));
            response.header("content-length", 14).body(body.boxed_unsync())
        }
        Reply::Hangup => return Err(std::io::Error::other("hang up")),
        Reply::After(time, json) => {
            tokio::time::sleep(time).await;
            response.body(whole(json.to_string()))
        }
        Reply::When(gate, json) => {
            gate.acquire().await.expect("an open semaphore").forget();
            response.body(whole(json.to_string()))
        }
    };
    in_progress.is_answered = true;
    Ok(response.expect("a response"))
}

fn full(bytes: Bytes) -> Body {
    let never = |never: Infallible| match never {};
    Full::new(bytes).map_err(never).boxed_unsync()
}
