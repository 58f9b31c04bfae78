//! Tests certificate requests against a real ACME server, Pebble, which validates on the server's own port.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{BOUND, Ended, Process, file, free_port, millrace, repository, run};

const NINETY_DAYS_S: u32 = 90 * 24 * 60 * 60;

/// Returns the path of Pebble. Prints a message and returns `None` without Pebble.
fn pebble() -> Option<PathBuf> {
    let found = Process::start(&mut Command::new(repository("scripts/pebble.sh"))).finish();
    if found.code != Some(0) {
        eprintln!("skipped: there is no Pebble here, and scripts/pebble.sh cannot build it: {}", found.err);
        return None;
    }
    Some(found.out.trim().into())
}

/// Starts a DNS server that resolves every name to 127.0.0.1.
///
/// Source: RFC 1035, section 4.
fn dns() -> SocketAddr {
    fn answer(mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let mut query = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut query)?;
            let name = query[12..].iter().position(|byte| *byte == 0).expect("a name");
            let question = &query[12..12 + name + 5];
            let is_ipv4 = question[name + 1..name + 3] == [0, 1];
            let mut answer = [&query[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0], question].concat();
            if is_ipv4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
            }
            stream.write_all(&[&(answer.len() as u16).to_be_bytes()[..], &answer].concat())?;
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

/// ACME test environment: a Pebble configuration, a DNS server and a folder for keys and certificates.
struct World {
    pebble: PathBuf,
    folder: PathBuf,
    dns: SocketAddr,
    directory: u16,
    management: u16,
}

impl World {
    /// Creates an empty folder for the test, with a certificate authority for the HTTPS of the ACME server.
    fn new(name: &str) -> Option<Self> {
        let pebble = pebble()?;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("acme-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("the target directory is writable");
        let made = run(&["cert", "dev", "--dir", folder.to_str().expect("UTF-8")]);
        assert_eq!(made.code, Some(0), "{made:?}");
        Some(Self { pebble, folder, dns: dns(), directory: free_port(), management: free_port() })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Starts an ACME server that validates domains on port `validates_at` and issues certificates valid for
    /// `lasts_s` seconds.
    fn sign(&self, validates_at: u16, lasts_s: u32) -> Process {
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.directory),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": self.path("cert.pem"), "privateKey": self.path("key.pem"),
            "httpPort": 1, "tlsPort": validates_at, "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "the only one", "validityPeriod": lasts_s } },
        }});
        fs::write(self.path("pebble.json"), config.to_string()).expect("written");
        let mut command = Command::new(&self.pebble);
        command.args(["-config", &self.path("pebble.json"), "-dnsserver", &self.dns.to_string()]);
        let process = Process::start(command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0"));
        let deadline = Instant::now() + BOUND;
        for port in [self.directory, self.management] {
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(Instant::now() < deadline, "Pebble does not listen");
                std::thread::yield_now();
            }
        }
        let root = format!("https://127.0.0.1:{}/roots/0", self.management);
        let root = Process::start(&mut curl(&["--cacert", &self.path("ca.pem"), &root])).finish();
        assert!(root.out.starts_with("-----BEGIN CERTIFICATE"), "{root:?}");
        fs::write(self.path("root.pem"), root.out).expect("written");
        process
    }

    fn serve(&self, domain: &str, port: u16) -> Process {
        let mut command = millrace(&["serve", "--shards", "1", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--tls-acme", domain, "--tls-acme-accept-terms"]);
        command.args([
            "--set",
            "log.level=trace,instant_acme=trace,reqwest=trace,hyper=trace,hyper_util=trace,rustls=trace",
        ]);
        command.args(["--set", "drain.window=0s", "--set", r#"tls.acme.contact=["ops@app.example"]"#]);
        let directory = format!("https://127.0.0.1:{}/dir", self.directory);
        for (key, value) in [("directory", directory), ("ca", self.path("ca.pem")), ("cache", self.path("cache"))] {
            command.args(["--set", &format!("tls.acme.{key}={value}")]);
        }
        Process::start(command.env("NO_PROXY", "127.0.0.1"))
    }

    /// Requests `path` by HTTPS and trusts only certificates of this ACME server.
    fn get(&self, domain: &str, port: u16, path: &str) -> Ended {
        let (root, there) = (self.path("root.pem"), format!("{domain}:{port}:127.0.0.1"));
        let url = format!("https://{domain}:{port}{path}");
        Process::start(&mut curl(&["--cacert", &root, "--resolve", &there, &url])).finish()
    }

    fn metric(&self, domain: &str, port: u16, name: &str) -> u64 {
        let metrics = self.get(domain, port, "/metrics").out;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().expect("a number")
    }
}

fn curl(args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "--max-time", "10"]).args(args);
    command
}

/// Returns all files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is there").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn certificate_survives_acme_errors_and_a_restart() {
    const NAME: &str = "millrace.test";
    let Some(world) = World::new("got") else { return };
    let port = free_port();

    // This ACME server validates on a port where no server listens.
    let lost = world.sign(free_port(), NINETY_DAYS_S);
    let mut server = world.serve(NAME, port);
    server.out.wait_for("listening on https://");
    let error = server.err.wait_for("certificate request failed");
    assert!(
        error.contains("millrace.test: ") && error.contains("Failed to connect") && error.contains("again_in_s"),
        "{error}"
    );
    let refused = world.get(NAME, port, "/healthz");
    assert_ne!(refused.code, Some(0), "{refused:?}");
    server.err.wait_for("no certificate yet");
    drop(lost);

    // A new ACME server does not know the account that the first one created.
    let pebble = world.sign(port, NINETY_DAYS_S);
    server.signal(Signal::HUP);
    let error = server.err.wait_for("certificate request failed");
    assert!(error.contains("no longer knows our account"), "{error}");
    server.signal(Signal::HUP);
    server.err.wait_for("new certificate issued");
    let alive = world.get(NAME, port, "/healthz");
    assert_eq!((alive.code, alive.out.as_str()), (Some(0), "alive\n"), "{alive:?}");
    assert_eq!(world.metric(NAME, port, "millrace_acme_errors_total"), 2);
    assert_eq!(world.metric(NAME, port, "millrace_acme_certificates_total"), 1);
    assert!(world.metric(NAME, port, "millrace_acme_expires_seconds") > 1_700_000_000);

    // A client other than the ACME server gets no challenge response.
    let ask = ["s_client", "-connect", &format!("127.0.0.1:{port}"), "-servername", NAME, "-alpn", "acme-tls/1"];
    let stranger = Process::start(Command::new("openssl").args(ask)).finish();
    assert!(stranger.err.contains("no application protocol"), "{stranger:?}");

    // Reloads the configuration; the certificate stays in use.
    server.signal(Signal::HUP);
    server.err.wait_for("configuration reloaded");
    assert_eq!(world.get(NAME, port, "/healthz").code, Some(0));

    let kept = files(&world.folder.join("cache"));
    assert_eq!(kept.len(), 2, "{kept:?}");
    server.signal(Signal::TERM);
    let log = server.finish().err;
    for path in &kept {
        assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o777, 0o600, "{path:?}");
        let secret = fs::read_to_string(path).expect("text");
        let secret = secret.split(['"', '\n']).find(|part| part.len() >= 60).expect("a key");
        assert!(!log.contains(secret), "a key is in the log");
    }
    assert!(!log.contains("PRIVATE KEY"));

    // Without an ACME server, the cached certificate is used.
    drop(pebble);
    let mut server = world.serve(NAME, port);
    server.err.wait_for("using the cached certificate");
    server.out.wait_for("listening on https://");
    let alive = world.get(NAME, port, "/healthz");
    assert_eq!((alive.code, alive.out.as_str()), (Some(0), "alive\n"), "{alive:?}");
}

/// Waits for a new certificate. On a busy machine an order may fail; SIGHUP then retries at once instead of after a
/// minute.
fn certificate(server: &mut Process) {
    let deadline = Instant::now() + 2 * BOUND;
    while Instant::now() < deadline {
        let line = server.err.next().expect("the server goes on");
        if line.contains("new certificate issued") {
            return;
        }
        if line.contains("again_in_s") {
            server.signal(Signal::HUP);
        }
    }
    panic!("no certificate in time");
}

#[test]
fn renewal_of_a_certificate_keeps_connections() {
    const NAME: &str = "localhost";
    let Some(world) = World::new("renewed") else { return };
    let port = free_port();
    let _pebble = world.sign(port, 12);
    let mut server = world.serve(NAME, port);
    certificate(&mut server);
    let (url, root) = (format!("https://localhost:{port}"), world.path("root.pem"));
    let publish = |data: &str| {
        let said = Process::start(&mut millrace(&["pub", "news", data, "--to", &url, "--ca", &root])).finish();
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    publish("\"first\"");
    let mut reader =
        Process::start(&mut millrace(&["sub", "news", "--since", "earliest", "--to", &url, "--ca", &root]));
    assert_eq!(reader.out.next().as_deref(), Some("first"));
    let ends = world.metric(NAME, port, "millrace_acme_expires_seconds");
    certificate(&mut server);
    assert!(world.metric(NAME, port, "millrace_acme_expires_seconds") > ends);
    publish("\"with another certificate\"");
    assert_eq!(reader.out.next().as_deref(), Some("with another certificate"), "on the connection from before");
}

#[test]
fn unusable_acme_settings_fail_at_start() {
    let blocked = file("acme-no-folder", "a file");
    let cache = format!("tls.acme.cache={blocked}/cache");
    let acme = ["serve", "--listen", "127.0.0.1:0", "--tls-acme", "app.example"];
    for (more, code, words) in [
        (&[][..], 78, &["tls.acme.accept_terms", "--tls-acme-accept-terms"][..]),
        (&["--tls-acme-accept-terms", "--set", &cache], 1, &["tls.acme.cache", &blocked, "cannot create"]),
        (&["--tls-acme-accept-terms", "--set", "tls.cert=a.pem", "--set", "tls.key=b.pem"], 78, &["not both"]),
        (&["--tls-dev"], 2, &["--tls-acme", "cannot be used with"]),
    ] {
        let ended = run(&[&acme, more].concat());
        assert_eq!(ended.code, Some(code), "{more:?} {ended:?}");
        assert!(words.iter().all(|word| ended.err.contains(word)), "{more:?} {ended:?}");
    }
}
