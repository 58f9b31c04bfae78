//! Tests TLS from the command line: development certificates, clients that trust only them, and a reload while
//! readers are connected.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

use rustix::process::Signal;

use crate::support::{Process, Server, file, millrace};

/// Creates an empty folder for this test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tls-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the target directory is writable");
    folder
}

/// Returns a `millrace` command with `home` as its data folder.
fn at(home: &std::path::Path, args: &[&str]) -> Command {
    let mut command = millrace(args);
    command.env("XDG_DATA_HOME", home);
    command
}

fn text(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn two_commands_start_a_server_with_development_tls() {
    let (home, stranger) = (folder("home"), folder("stranger"));
    let made = Process::start(&mut at(&home, &["cert", "dev", "--name", "cars.test"])).finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(
        made.out.contains("cars.test") && made.out.contains("127.0.0.1") && made.out.contains("is new"),
        "{made:?}"
    );
    let files = home.join("millrace/tls");
    for secret in ["key.pem", "ca.key"] {
        let mode = fs::metadata(files.join(secret)).expect("it was made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let again = Process::start(&mut at(&home, &["cert", "dev"])).finish();
    let fingerprint = |out: &str| out.lines().find(|line| line.starts_with("fingerprint")).map(str::to_owned);
    assert!(fingerprint(&made.out).is_some_and(|one| one.contains(':')), "{made:?}");
    assert_eq!(fingerprint(&made.out), fingerprint(&again.out), "the authority is kept");
    let public = Process::start(&mut at(&home, &["cert", "dev", "--name", "bank.example"])).finish();
    assert_eq!(public.code, Some(1), "{public:?}");
    assert!(public.err.contains("may not sign for bank.example"), "{public:?}");

    let server = Server::start_from(&mut at(&home, &["serve", "--tls-dev", "--listen", "127.0.0.1:0"]));
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    for transport in ["websocket", "sse", "stream", "long-polling", "polling"] {
        let channel = format!("to/{transport}");
        let read =
            ["sub", &channel, "--to", &server.url, "--transport", transport, "--since", "earliest", "--limit", "1"];
        let reader = Process::start(&mut at(&home, &read));
        let said = Process::start(&mut at(&home, &["pub", &channel, "\"secret\"", "--to", &server.url])).finish();
        assert_eq!(said.code, Some(0), "{transport}: {said:?}");
        let heard = reader.finish();
        assert_eq!((heard.code, heard.out.as_str()), (Some(0), "secret\n"), "{transport}: {heard:?}");
    }
    for args in [&["pub", "a", "1"][..], &["sub", "a", "--limit", "1"], &["history", "to/sse"]] {
        let distrusts = Process::start(at(&stranger, args).args(["--to", &server.url])).finish();
        assert_eq!(distrusts.code, Some(1), "{distrusts:?}");
        assert!(distrusts.err.contains("--ca"), "it says what to do: {distrusts:?}");
    }
    let ca = text(files.join("ca.pem"));
    for trust in [&["--ca", &ca][..], &["--insecure-accept-any-certificate"]] {
        let believes = Process::start(at(&stranger, &["pub", "a", "1", "--to", &server.url]).args(trust)).finish();
        assert_eq!(believes.code, Some(0), "{believes:?}");
    }
}

#[test]
fn failed_start_creates_no_certificate_authority() {
    let home = folder("refused");
    let taken = Server::start(&[]);
    for (more, says) in [
        (&["--listen", "0.0.0.0:0"][..], "refusing to start"),
        (&["--listen", &taken.address], "another program may use the address"),
        (&["--listen", "127.0.0.1:0", "--set", "auth.keys=nokey.pub"], "nokey.pub"),
        (&["--listen", "nowhere"], "HOST:PORT"),
    ] {
        let refused = Process::start(&mut at(&home, &[&["serve", "--tls-dev"], more].concat())).finish();
        assert!(refused.code != Some(0) && refused.err.contains(says), "{more:?}: {refused:?}");
        assert!(!home.join("millrace").exists(), "{more:?} has left something behind");
    }
}

#[test]
fn reload_changes_the_certificate_and_keeps_connections() {
    let home = folder("reload");
    let (used, other) = (home.join("used"), home.join("other"));
    for folder in [&used, &other] {
        let made = Process::start(&mut at(&home, &["cert", "dev", "--dir", folder.to_str().expect("UTF-8")])).finish();
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    let old_ca = text(used.join("ca.pem"));
    let [cert, key] = ["cert", "key"].map(|file| text(used.join(format!("{file}.pem"))));
    let tls = format!("[tls]\ncert = {cert:?}\nkey = {key:?}\n");
    let config = file("tls-reload.toml", &tls);
    let mut server = Server::start(&["--config", &config]);
    let url = server.url.clone();
    let publish = |data: &str, ca: &str| {
        Process::start(&mut at(&home, &["pub", "news", data, "--to", &url, "--ca", ca])).finish()
    };
    assert_eq!(publish("\"before\"", &old_ca).code, Some(0));
    let read = ["sub", "news", "--to", &url, "--ca", &old_ca, "--since", "earliest", "--limit", "4"];
    let mut reader = Process::start(&mut at(&home, &read));
    assert_eq!(reader.out.next().as_deref(), Some("before"));

    for file in ["cert.pem", "key.pem"] {
        fs::copy(other.join(file), used.join(file)).expect("copied");
    }
    server.process.signal(Signal::HUP);
    server.process.err.wait_for("configuration reloaded");
    let new_ca = text(other.join("ca.pem"));
    assert_eq!(publish("\"after\"", &new_ca).code, Some(0));
    assert_eq!(publish("\"x\"", &old_ca).code, Some(1), "the old certificate is gone");
    assert_eq!(reader.out.next().as_deref(), Some("after"), "on the connection from before");

    // With an invalid key no other change takes effect: the server still accepts requests without a token.
    fs::write(used.join("key.pem"), "no key").expect("written");
    file("tls-reload.toml", &format!("{tls}[auth]\nsecret = \"01234567890123456789012345678901\"\n"));
    server.process.signal(Signal::HUP);
    let line = server.process.err.wait_for("ERROR");
    assert!(line.contains("key.pem") && line.contains("the old configuration stays"), "{line}");
    assert_eq!(publish("\"still\"", &new_ca).code, Some(0));
    assert_eq!(reader.out.next().as_deref(), Some("still"));
}
