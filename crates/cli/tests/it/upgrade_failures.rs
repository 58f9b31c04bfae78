//! Tests that a new process that crashes, hangs or refuses its configuration leaves the running server as it was: it
//! serves, and has every publication once.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    support::{BOUND, Ended, Process, Server, ask, file, millrace, run},
    upgrade::{CHANNEL, folder, publish, script, upgrade},
};

/// Both engines that have something to hand over.
fn engines(name: &str) -> [String; 2] {
    ["memory".to_owned(), format!("sqlite:{}", folder(name).join("data.db").display())]
}

/// Commands of a shell that report, as a new process does, that it is ready for the engine.
fn say_ready() -> String {
    let reply = r#"{"ready":{"version":"9.9.9"}}"#;
    format!(r"printf '\{:03o}\0\0\0%s' '{reply}' >&0", reply.len())
}

#[track_caller]
fn assert_serves_as_before(ended: &Ended, why: &str) {
    assert_eq!((ended.code, &ended.out[..]), (Some(1), ""), "{ended:?}");
    assert!(ended.err.contains("serves as before") && ended.err.contains(why), "no {why:?} in {ended:?}");
}

/// Returns the numbers of all publications of the channel, in their order, and checks their offsets.
fn numbers(server: &Server) -> Vec<u64> {
    let page: Value =
        serde_json::from_str(&server.get(&format!("/v1/channels/{CHANNEL}?since=earliest")).body).expect("a page");
    let messages = page["messages"].as_array().expect("messages");
    for (i, message) in messages.iter().enumerate() {
        let position = message["position"].as_str().expect("a position");
        assert!(position.ends_with(&format!(":{}", i + 1)), "{page}");
    }
    messages.iter().map(|message| message["data"]["n"].as_u64().expect("a number")).collect()
}

/// Returns whether the process runs whose id a script has written into the file.
fn is_running(pid_file: &Path) -> bool {
    let pid = fs::read_to_string(pid_file).expect("the script has written it");
    Path::new("/proc").join(pid.trim()).exists()
}

#[test]
fn crash_after_the_hand_over_loses_nothing() {
    for engine in engines("upgrade-crash") {
        let server = Server::start(&["--engine", &engine]);
        publish(&server, 1);
        let received = folder("upgrade-crash-received").join("bytes");
        let shown = received.display();
        // The first message has a length of four bytes, and one byte follows with the sockets. The engine comes then.
        let crash = script(
            "crashes-late",
            &format!(
                "{}\nexec 3<&0\n: >{shown}\ncat <&3 >>{shown} &\n\
                 until n=$(od -An -tu4 -N4 {shown}) && [ -n \"$n\" ] && [ $(wc -c <{shown}) -gt $((5 + $n)) ]\n\
                 do sleep 0.05; done\n\
                 kill -KILL $! $$",
                say_ready()
            ),
        );
        let ended = upgrade(&server, &["--binary", &crash]).finish();
        assert_serves_as_before(&ended, "signal: 9");
        let received = fs::read(&received).expect("the script has written it");
        let has_channel = received.windows(CHANNEL.len()).any(|part| part == CHANNEL.as_bytes());
        assert_eq!(has_channel, engine == "memory", "the contents of the engine were handed over");
        publish(&server, 2);
        assert_eq!(numbers(&server), [1, 2], "{engine}");
        // The next upgrade succeeds.
        let ended = upgrade(&server, &[]).finish();
        assert_eq!(ended.code, Some(0), "{engine}: {ended:?}");
        publish(&server, 3);
        assert_eq!(numbers(&server), [1, 2, 3], "{engine}");
    }
}

/// A new process that hangs: before it is ready; after that without reading, so that the engine does not fit into the
/// buffers of the connection; and after it has received everything.
#[test]
fn hanging_process_is_ended_at_its_time_limit() {
    let pid_file = folder("upgrade-hang-pid").join("pid");
    let write_pid = format!("echo $$ >{}", pid_file.display());
    let hangs = [
        (script("hangs-early", &format!("{write_pid}\nexec sleep 1000")), "`upgrade.ready_timeout`"),
        (
            script("hangs-unread", &format!("{write_pid}\n{}\nexec sleep 1000", say_ready())),
            "`upgrade.serving_timeout`",
        ),
        (
            script("hangs-late", &format!("{write_pid}\n{}\nexec cat >/dev/null", say_ready())),
            "`upgrade.serving_timeout`",
        ),
    ];
    for engine in engines("upgrade-hang") {
        let limits = ["--set", "upgrade.ready_timeout=1s", "--set", "upgrade.serving_timeout=1s"];
        let server = Server::start(&[&["--engine", &engine][..], &limits].concat());
        let large = "x".repeat(400_000);
        for i in 0..4 {
            assert_eq!(server.post(&format!("/v1/channels/large/{i}"), &large).status, 200);
        }
        let mut expected = vec![1];
        publish(&server, 1);
        for (n, (binary, why)) in (2..).zip(&hangs) {
            let began = Instant::now();
            let ended = upgrade(&server, &["--binary", binary]).finish();
            assert_serves_as_before(&ended, why);
            assert!(began.elapsed() < BOUND / 2, "{binary}: {:?}", began.elapsed());
            assert!(!is_running(&pid_file), "{binary}");
            publish(&server, n);
            expected.push(n as u64);
            assert_eq!(numbers(&server), expected, "{engine} {binary}");
        }
        for i in 0..4 {
            let page = server.get(&format!("/v1/channels/large/{i}?since=earliest")).body;
            assert!(page.contains(&large), "{engine}: channel large/{i}");
        }
    }
}

/// Publications that arrive during the transfer wait for the new process. If it fails, each is either stored once or
/// refused.
#[test]
fn publications_during_a_failed_hand_over_are_stored_once_or_refused() {
    let hangs = script("hangs-meanwhile", &format!("{}\nexec cat >/dev/null", say_ready()));
    for engine in engines("upgrade-meanwhile") {
        let mut server = Server::start(&["--engine", &engine, "--set", "upgrade.serving_timeout=2s"]);
        publish(&server, 0);
        let upgrading = upgrade(&server, &["--binary", &hangs]);
        server.process.err.wait_for("handing over");
        let path = format!("/v1/channels/{CHANNEL}");
        let stored: BTreeSet<u64> = thread::scope(|scope| {
            let address = &server.address;
            let publishing: Vec<_> = (1..=20)
                .map(|n| {
                    let path = &path;
                    scope.spawn(move || (n, ask(address, "POST", path, &[], &json!({ "n": n }).to_string()).status))
                })
                .collect();
            let outcomes = publishing.into_iter().map(|each| each.join().expect("an answer"));
            outcomes
                .filter_map(|(n, status)| {
                    assert!([200, 503].contains(&status), "{engine}: publication {n}: {status}");
                    (status == 200).then_some(n)
                })
                .collect()
        });
        assert_serves_as_before(&upgrading.finish(), "`upgrade.serving_timeout`");
        publish(&server, 21);
        let numbers = numbers(&server);
        assert_eq!((numbers.first(), numbers.last()), (Some(&0), Some(&21)), "{engine}: {numbers:?}");
        let meanwhile = &numbers[1..numbers.len() - 1];
        assert_eq!(meanwhile.len(), stored.len(), "{engine}: {numbers:?}, {stored:?}");
        assert_eq!(meanwhile.iter().copied().collect::<BTreeSet<_>>(), stored, "{engine}");
    }
}

#[test]
fn refused_configuration_leaves_the_server_as_it_was() {
    let good = "[server]\nshards = 2\n[history]\ncount_max = 100\n";
    let config = file("upgrade-refused.toml", good);
    let server = Server::start(&["--config", &config]);
    let taken = &server.address;
    let database = folder("upgrade-refused").join("data.db");
    let url = format!("[server]\nshards = 2\n[engine]\nurl = \"sqlite:{}\"\n", database.display());
    let in_use = format!("{good}[mqtt]\nlisten = \"{taken}\"\n");
    publish(&server, 1);
    for (n, (text, why)) in (2..).zip([
        ("[server\n", "upgrade-refused.toml"),
        ("[server]\nshards = 2\nnonsense = 1\n", "nonsense"),
        ("[server]\nshards = 2\n[history]\ncount_max = \"many\"\n", "history.count_max"),
        ("[server]\nshards = 2\n[drain]\nwindow = \"2days\"\n", "must have durations of at most 1day"),
        ("[server]\nshards = 2\n[tls]\ncert = \"no-cert.pem\"\nkey = \"no-key.pem\"\n", "no-cert.pem"),
        ("[server]\nshards = 3\n", "`server.shards` has changed from 2 to 3, which needs a restart"),
        (url.as_str(), "the engine has changed from memory to sqlite, which needs a restart"),
        (in_use.as_str(), "cannot serve MQTT on"),
    ]) {
        fs::write(&config, text).expect("it is our file");
        assert_serves_as_before(&upgrade(&server, &[]).finish(), why);
        publish(&server, n);
        assert_eq!(server.get("/readyz").status, 200, "{why}");
    }
    assert_eq!(numbers(&server), (1..=9).collect::<Vec<_>>());
    assert!(!database.exists(), "the refused engine has created no file");
    // A configuration that the new process accepts takes effect.
    fs::write(&config, "[server]\nshards = 2\n[history]\ncount_max = 3\n").expect("it is our file");
    let ended = upgrade(&server, &[]).finish();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    publish(&server, 10);
    let page = server.get(&format!("/v1/channels/{CHANNEL}?since=earliest")).body;
    assert!(!page.contains(r#""n":7}"#) && page.contains(r#""n":8}"#) && page.contains(r#""n":10}"#), "{page}");
}

/// A connection with keep-alive, which stays with the process that has accepted it.
struct KeptConnection(BufReader<TcpStream>);

impl KeptConnection {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
        let mut kept = Self(BufReader::new(stream));
        // The response shows that a process has accepted the connection.
        assert_eq!(kept.ask("GET", "/healthz", "").0, 200);
        kept
    }

    /// Sends a request. Returns the status and the body of the response.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        write!(self.0.get_mut(), "{head}{body}").expect("the server reads");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a status line in time");
        let status =
            line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        let mut length = 0;
        loop {
            line.clear();
            self.0.read_line(&mut line).expect("a header in time");
            match line.trim_end().to_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a length"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("the body");
        (status, String::from_utf8(body).expect("text"))
    }
}

/// Once the new process serves, it has the engine. If it is killed then, clients that have not moved are refused, and
/// the old process ends instead of waiting.
#[test]
fn old_process_ends_if_the_new_one_is_killed_later() {
    for engine in engines("upgrade-killed") {
        let server = Server::start(&["--engine", &engine, "--set", "drain.window=3s"]);
        publish(&server, 1);
        let (mut first, mut second) = (KeptConnection::open(&server.address), KeptConnection::open(&server.address));
        let ended = upgrade(&server, &[]).finish();
        let pid = ended.out.strip_prefix("process ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let pid: i32 = pid.unwrap_or_else(|| panic!("{ended:?}"));
        let path = format!("/v1/channels/{CHANNEL}");
        let answer = first.ask("POST", &path, r#"{"n":2}"#);
        assert_eq!(answer.0, 200, "the old process uses the engine of the new one: {answer:?}");
        kill_process(Pid::from_raw(pid).expect("a process id"), Signal::KILL).expect("the process is there");
        let began = Instant::now();
        let answer = second.ask("POST", &path, r#"{"n":3}"#);
        assert!(answer.0 == 503 && answer.1.contains("unavailable"), "{engine}: {answer:?}");
        let Ended { code, err, .. } = server.process.finish();
        assert_eq!(code, Some(0), "{engine}: {err}");
        assert!(began.elapsed() < BOUND / 2, "{engine}: {:?}", began.elapsed());
        assert!(!err.contains("panicked"), "{err}");
    }
}

/// In containers that share a network namespace, several servers can have the same process id, and so the same name of
/// the control socket.
#[test]
fn server_whose_control_socket_is_taken_serves() {
    let server = millrace(&[]);
    // The process id is known before the server starts.
    let mut command = Command::new("sh");
    command.args(["-c", "read go; exec \"$0\" serve --listen 127.0.0.1:0"]).arg(server.get_program());
    for (name, _) in server.get_envs() {
        command.env_remove(name);
    }
    let mut process = Process::start_with_input(command.stdin(Stdio::piped()));
    let name = format!("millrace-control-{}", process.id());
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    let _taken = UnixListener::bind_addr(&address).expect("the name is free");
    process.close_input();
    let line = process.out.wait_for("listening on ");
    process.err.wait_for("SIGUSR2 upgrades it");
    let address = line.rsplit('/').next().expect("a URL");
    assert_eq!(ask(address, "GET", "/readyz", &[], "").status, 200);
}

#[test]
fn impossible_time_limits_are_refused() {
    for (key, value) in [("ready_timeout", "0s"), ("serving_timeout", "50ms"), ("ready_timeout", "2h")] {
        let setting = format!("upgrade.{key}={value}");
        let ended = run(&["serve", "--listen", "127.0.0.1:0", "--set", &setting]);
        assert!(ended.code == Some(78) && ended.err.contains(&format!("upgrade.{key}")), "{ended:?}");
        assert!(ended.err.contains("from 100ms to 1h"), "{ended:?}");
    }
}
