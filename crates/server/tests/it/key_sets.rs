//! Key sets from a real HTTP server that changes its keys, fails, and counts the requests.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use millrace_protocol::Code;
use millrace_server::auth::{Algorithm, Auth, Config, SigningKey};
use serde_json::{Value, json};

use crate::{auth, claims, pair, verify};

/// Interval at which a set is never fetched again within a test.
const LONG: Duration = Duration::from_secs(3600);

/// Interval at which a set is fetched again whenever a key is unknown.
const SHORT: Duration = Duration::from_nanos(1);

/// Answers every request with the same bytes until the test changes them.
struct Issuer {
    url: String,
    answer: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Issuer {
    fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/keys?secret=word", listener.local_addr().expect("it is bound"));
        let (answer, asked) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
        let (answers, count) = (answer.clone(), asked.clone());
        // The thread ends with the test process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut head = BufReader::new(&stream).lines().map_while(Result::ok);
                if head.by_ref().take_while(|line| !line.is_empty()).count() > 0 {
                    count.fetch_add(1, SeqCst);
                    let answer = answers.lock().expect("no holder of the lock panics").clone();
                    let _ = (&stream).write_all(answer.as_bytes());
                }
            }
        });
        Self { url, answer, asked }
    }

    fn says(&self, answer: String) {
        *self.answer.lock().expect("no holder of the lock panics") = answer;
    }

    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    fn auth(&self, pause: Duration) -> Auth {
        auth(&Config { jwks: self.url.clone(), jwks_refresh: LONG, jwks_pause: pause, ..Config::default() })
    }
}

fn ok(body: &Value) -> String {
    answer("200 OK", &body.to_string())
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// Returns a signing key and its entry in a key set.
fn key(kid: &str) -> (SigningKey, Value) {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
    let (signing, public) = pair(Algorithm::EdDsa);
    let pem = std::fs::read_to_string(public.path()).expect("it was just written");
    let der = BASE64_STANDARD.decode(pem.lines().nth(1).expect("it has one line")).expect("it is base64");
    let x = BASE64_URL_SAFE_NO_PAD.encode(&der[12..]);
    (signing, json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "alg": "EdDSA", "use": "sig", "x": x }))
}

#[tokio::test]
async fn fetched_keys_rotate_without_restart() {
    let ((first, first_jwk), (second, second_jwk)) = (key("first"), key("second"));
    let issuer = Issuer::start(ok(&json!({ "keys": [first_jwk] })));
    let auth = issuer.auth(SHORT);
    let (by_first, by_second) =
        (first.sign(&claims(), Some("first")).unwrap(), second.sign(&claims(), Some("second")).unwrap());
    assert!(verify(&auth, &by_first).await.is_ok(), "it waits for the first set");
    issuer.says(ok(&json!({ "keys": [first_jwk, second_jwk] })));
    let all = join_all((0..20).map(|_| verify(&auth, &by_second))).await;
    assert!(all.iter().all(Result::is_ok), "all wait for the set that has the new key");
    assert!(issuer.asked() <= 4, "twenty tokens are not twenty fetches: {}", issuer.asked());
    assert!(verify(&auth, &by_first).await.is_ok());
    issuer.says(ok(&json!({ "keys": [second_jwk] })));
    assert!(
        verify(&auth, &first.sign(&claims(), Some("third")).unwrap()).await.is_err(),
        "it makes the set be fetched"
    );
    assert!(verify(&auth, &by_first).await.is_err(), "though it was remembered as good");
    assert!(verify(&auth, &by_second).await.is_ok());
}

#[tokio::test]
async fn unknown_keys_cause_few_fetches() {
    let (signing, jwk) = key("known");
    let issuer = Issuer::start(ok(&json!({ "keys": [jwk] })));
    let auth = issuer.auth(LONG);
    assert!(verify(&auth, &signing.sign(&claims(), Some("known")).unwrap()).await.is_ok());
    for n in 0..500 {
        let error = verify(&auth, &signing.sign(&claims(), Some(&n.to_string())).unwrap()).await.unwrap_err();
        assert_eq!(error.code, Code::Unauthorized);
    }
    assert_eq!(issuer.asked(), 1);
}

#[tokio::test]
async fn last_key_set_stays_while_url_fails() {
    let (signing, jwk) = key("known");
    let good = ok(&json!({ "keys": [jwk] }));
    let issuer = Issuer::start(good.clone());
    let auth = issuer.auth(SHORT);
    let token = signing.sign(&claims(), Some("known")).unwrap();
    assert!(verify(&auth, &token).await.is_ok());
    let bads = [
        answer("500 Internal Server Error", ""),
        answer("302 Found", "").replace("\r\nconnection", "\r\nlocation: /else\r\nconnection"),
        answer("200 OK", "<html>"),
        answer("200 OK", "{\"keys\": []}"),
        answer("200 OK", &" ".repeat((1 << 20) + 1)),
        "nonsense".into(),
    ];
    for bad in bads {
        let (shown, before) = (bad[..bad.len().min(60)].to_owned(), issuer.asked());
        issuer.says(bad);
        // A fetch that began before the issuer changed may answer the first of these requests.
        let deadline = Instant::now() + Duration::from_secs(10);
        while issuer.asked() == before {
            assert!(Instant::now() < deadline, "it was not asked: {shown}");
            assert!(verify(&auth, &signing.sign(&claims(), Some("unknown")).unwrap()).await.is_err());
        }
        assert!(verify(&auth, &token).await.is_ok(), "{shown}");
    }
}

#[tokio::test]
async fn missing_key_set_is_unavailable_not_unauthorized() {
    let (signing, jwk) = key("known");
    let issuer = Issuer::start(answer("503 Service Unavailable", ""));
    let auth = issuer.auth(SHORT);
    let token = signing.sign(&claims(), Some("known")).unwrap();
    let error = verify(&auth, &token).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    assert!(!error.detail.contains("word"), "{error}");
    issuer.says(ok(&json!({ "keys": [jwk] })));
    // A fetch that began before the issuer changed may answer the first of these requests.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = verify(&auth, &token).await {
        assert!(Instant::now() < deadline, "the set was not fetched");
        assert_eq!(error.code, Code::Unavailable, "{error}");
    }
}
