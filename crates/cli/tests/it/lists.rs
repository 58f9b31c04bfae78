//! The lists for operators against a real server: connections, slow readers, channels, publications, rooms, hooks and
//! settings, over real connections.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{Answer, BOUND, Process, Server, ask, millrace};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const ADMIN: &str = "sixteen-bytes-or-more";
/// Requests of this module with parameters that are valid.
const REQUESTS: [&str; 10] = [
    "connections?sort=behind",
    "slow",
    "channels",
    "channel?channel=cars/1",
    "tail?channel=cars/1",
    "page?channel=cars/1",
    "rooms",
    "relays?limit=5",
    "hooks",
    "config?sources=true",
];

/// An open server with an admin listener.
struct Operated {
    server: Server,
    /// `HOST:PORT` of the admin listener.
    admin: String,
}

impl Operated {
    fn start(settings: &[&str]) -> Self {
        let flags = settings.iter().flat_map(|setting| ["--set", setting]);
        let args = ["serve", "--listen", "127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0"];
        let args: Vec<&str> = args.into_iter().chain(flags).collect();
        let mut command = millrace(&args);
        let mut server = Server::start_from(command.env("MILLRACE_ADMIN__TOKEN", ADMIN));
        let line = server.process.out.wait_for("admin on ");
        Self { server, admin: line.rsplit('/').next().expect("an address").to_owned() }
    }

    fn ask(&self, path: &str) -> Answer {
        ask_operator(&self.admin, path)
    }

    /// Sends a request that must succeed.
    fn get(&self, path: &str) -> Value {
        let answer = self.ask(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    }

    /// Repeats a request until the answer is as wanted.
    fn get_until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + BOUND;
        loop {
            let answer = self.get(path);
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{path}: not in time: {answer}");
        }
    }
}

/// Sends a request to an admin listener.
fn ask_operator(address: &str, path: &str) -> Answer {
    ask(address, "GET", &format!("/v1/admin/{path}"), &[&format!("Authorization: Bearer {ADMIN}")], "")
}

/// Publishes the numbers of a range, as lines of batches.
fn publish_numbers(address: &str, channel: impl Fn(usize) -> String, numbers: std::ops::Range<usize>) {
    let all: Vec<usize> = numbers.collect();
    for part in all.chunks(1000) {
        let line = |n: &usize| format!("{{\"channel\":\"{}\",\"data\":{n}}}\n", channel(*n));
        let lines: String = part.iter().map(line).collect();
        let answer = ask(address, "POST", "/v1/publish", &["Content-Type: application/x-ndjson"], &lines);
        assert!(answer.status == 200 && !answer.body.contains("error"), "{answer:?}");
    }
}

/// A reader over a raw connection, which reads only when asked to.
struct Reader(TcpStream);

impl Reader {
    /// Opens an event stream, and waits for its head.
    fn open(server: &Server, channel: &str) -> Self {
        let mut stream = TcpStream::connect(&server.address).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a time that is not 0");
        write!(stream, "GET /v1/channels/{channel} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            .expect("sent");
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("the head of an answer");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        Self(stream)
    }

    /// Reads until the stream contains `part`.
    fn read_to(&mut self, part: &str) {
        let (mut seen, mut bytes) = (String::new(), vec![0; 1 << 20]);
        while !seen.contains(part) {
            let count = self.0.read(&mut bytes).expect("more of the stream");
            assert!(count > 0, "the stream has ended without {part}");
            let rest = seen.len().saturating_sub(part.len());
            let rest = (rest..=seen.len()).find(|at| seen.is_char_boundary(*at)).unwrap_or_default();
            seen = seen.split_off(rest);
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().unwrap_or_else(|| panic!("no {name}: {answer}"))
}

#[test]
fn reader_that_does_not_read_is_listed_until_it_has_caught_up() {
    let operated = Operated::start(&["server.shards=2"]);
    let server = &operated.server;
    let mut slow = Reader::open(server, "cars/1");
    let mut fast = Reader::open(server, "cars/1");
    let address = slow.0.local_addr().expect("an address").to_string();
    assert_eq!(operated.get("slow"), json!({ "readers": [], "total": 0 }));

    // The buffers of the kernel take some megabytes.
    let (deadline, mut number) = (Instant::now() + BOUND, 0);
    let listed = loop {
        number += 1;
        let payload = format!("{}, number {number}.", "x".repeat(60_000));
        assert_eq!(server.post("/v1/channels/cars/1", &payload).status, 200);
        fast.read_to(&format!(", number {number}."));
        let listed = operated.get("slow");
        if rows(&listed, "readers").iter().any(|row| row["address"] == address.as_str() && row["behind"] != 0) {
            break listed;
        }
        assert!(Instant::now() < deadline, "the reader is not listed: {listed}");
    };
    let row = rows(&listed, "readers").iter().find(|row| row["address"] == address.as_str()).expect("it was there");
    let (behind, bytes) = (row["behind"].as_u64().unwrap_or(0), row["behind_bytes"].as_u64().unwrap_or(0));
    assert!(bytes >= 60_000 * behind && bytes < 60_200 * (behind + 2), "{row}");
    for (field, expected) in [
        ("transport", json!("sse")),
        ("channel", json!("cars/1")),
        ("channels", json!(1)),
        ("policy", json!("every")),
        ("blocked", json!(true)),
        ("gaps", json!(0)),
    ] {
        assert_eq!(row[field], expected, "{field}: {row}");
    }
    let id = row["id"].as_str().expect("an id");
    let same = operated.get(&format!("slow?id={id}&transport=sse&address=127.0.0.1&channel=cars/1"));
    assert_eq!((&rows(&same, "readers")[0]["id"], &same["total"]), (&json!(id), &json!(1)), "{same}");
    for other in ["channel=cars/2", "transport=websocket", "subject=ann", "address=127.0.0.2"] {
        assert_eq!(operated.get(&format!("slow?{other}")), json!({ "readers": [], "total": 0 }), "{other}");
    }
    // The time grows, also while nothing is published.
    let since = |answer: &Value| rows(answer, "readers").iter().map(|row| row["since_ms"].as_u64()).max().flatten();
    operated.get_until("slow", |answer| since(answer) >= Some(1000));

    let sorted = operated.get("connections?sort=behind&limit=1&transport=sse");
    let first = &rows(&sorted, "connections")[0];
    assert_eq!((&first["address"], &sorted["total"], &sorted["more"]), (&json!(address), &json!(2), &json!(true)));
    assert!(first["behind"].as_u64() >= Some(1) && first["blocked_ms"].is_u64(), "{first}");
    assert!(first["bytes_out"].as_u64() > Some(60_000), "{first}");

    assert_eq!(server.post("/v1/channels/cars/1", "the end").status, 200);
    slow.read_to("the end");
    fast.read_to("the end");
    operated.get_until("slow", |answer| *answer == json!({ "readers": [], "total": 0 }));
    let after = operated.get("connections?transport=sse");
    let is_level = |row: &Value| row["behind"] == 0 && row["behind_bytes"] == 0 && row.get("blocked_ms").is_none();
    assert!(rows(&after, "connections").iter().all(is_level), "{after}");
}

#[test]
fn connections_are_sorted_counted_and_cut() {
    let operated = Operated::start(&["server.shards=2"]);
    let mut readers: Vec<Reader> = (0..5).map(|n| Reader::open(&operated.server, &format!("cars/{n}"))).collect();
    let data = "y".repeat(5000);
    assert_eq!(operated.server.post("/v1/channels/cars/3", &data).status, 200);
    readers[3].read_to(&data);
    let address = |n: usize| json!(readers[n].0.local_addr().expect("an address").to_string());

    let by_bytes = operated.get("connections?sort=bytes&limit=2");
    assert_eq!((rows(&by_bytes, "connections").len(), &by_bytes["total"]), (2, &json!(5)), "{by_bytes}");
    assert_eq!(rows(&by_bytes, "connections")[0]["address"], address(3), "{by_bytes}");
    let by_time = operated.get("connections?sort=opened");
    let opened: Vec<u64> =
        rows(&by_time, "connections").iter().map(|row| row["opened_ms"].as_u64().expect("a time")).collect();
    assert!(opened.len() == 5 && opened.is_sorted_by(|a, b| a >= b), "newest first: {opened:?}");
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later").as_millis() as u64;
    assert!(opened.iter().all(|at_ms| now_ms - at_ms < 120_000), "{opened:?} at {now_ms}");

    // The order of ids has pages, and each counts all that match.
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = operated.get(&format!("connections?limit=2{after}"));
        assert_eq!(page["total"], 5, "{page}");
        seen.extend(rows(&page, "connections").iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
        if page["more"] == false {
            break;
        }
        after = format!("&after={}", seen.last().expect("a row"));
    }
    assert!(seen.len() == 5 && seen.iter().collect::<std::collections::BTreeSet<_>>().len() == 5, "{seen:?}");
    let one = operated.get("connections?channel=cars/2&sort=behind");
    assert_eq!((rows(&one, "connections").len(), &one["total"]), (1, &json!(1)), "{one}");
    assert_eq!(rows(&one, "connections")[0]["subscriptions"], json!(["cars/2"]));
}

#[test]
fn tail_of_a_busy_channel_is_a_sample_that_says_so() {
    const COUNT: usize = 100_000;
    let operated = Operated::start(&["history.count_max=1000"]);
    let tail = |parameters: &str| operated.get(&format!("tail?channel=cars/1{parameters}"));
    let none = tail("");
    let shown = |answer: &Value| (answer["since_last"].clone(), answer["shown"].clone(), answer["sampled"].clone());
    assert_eq!(shown(&none), (json!(0), json!(0), json!(false)), "{none}");

    publish_numbers(&operated.server.address, |_| "cars/1".into(), 1..4);
    let first = tail("");
    assert_eq!(shown(&first), (json!(3), json!(3), json!(false)), "{first}");
    let texts: Vec<&Value> = rows(&first, "publications").iter().map(|row| &row["text"]).collect();
    assert_eq!(texts, ["1", "2", "3"], "{first}");

    let began = Instant::now();
    publish_numbers(&operated.server.address, |_| "cars/1".into(), 0..COUNT);
    let took = began.elapsed();
    let answered = Instant::now();
    let busy = tail("");
    println!("{COUNT} publications in {took:?}; the tail took {:?}", answered.elapsed());
    // The request before may be too long ago on a slow machine. Then the tail counts the last second.
    if took < Duration::from_secs(9) {
        assert_eq!(shown(&busy), (json!(COUNT), json!(50), json!(true)), "{busy}");
    }
    let offsets: Vec<u64> = rows(&busy, "publications").iter().filter_map(|row| row["offset"].as_u64()).collect();
    let newest = COUNT as u64 + 3;
    assert_eq!(offsets, (newest - 49..=newest).collect::<Vec<u64>>(), "the newest, in order");
    assert_eq!(shown(&tail("")), (json!(0), json!(50), json!(false)), "nothing new");
    // Another number of publications is another request, with its own count.
    assert_eq!(tail("&count=2")["shown"], 2);

    // History is read backwards, page by page, to where it begins.
    let (mut read, mut before) = (Vec::new(), String::new());
    loop {
        let page = operated.get(&format!("page?channel=cars/1&count=200{before}"));
        let offsets: Vec<u64> = rows(&page, "publications").iter().filter_map(|row| row["offset"].as_u64()).collect();
        assert_eq!(page["oldest"], newest - 999, "{page}");
        before = format!("&before={}", offsets[0]);
        read.splice(0..0, offsets);
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(read, (newest - 999..=newest).collect::<Vec<u64>>());
    let past = operated.get(&format!("page?channel=cars/1&before={}", newest - 999));
    assert_eq!((rows(&past, "publications").len(), &past["more"]), (0, &json!(false)), "{past}");

    let channel = operated.get("channel?channel=cars/1");
    assert_eq!(
        (&channel["kind"], &channel["namespace"], &channel["readers"]),
        (&json!("log"), &json!("cars"), &json!(0))
    );
    assert_eq!(
        (&channel["history"]["count"], &channel["history"]["oldest"]["offset"]),
        (&json!(1000), &json!(newest - 999))
    );
    assert!(channel["newest_ms"].as_u64() >= channel["history"]["oldest"]["time_ms"].as_u64(), "{channel}");
}

#[test]
fn payloads_and_names_are_plain_json() {
    let operated = Operated::start(&["namespaces.fleet.state=true", "history.roster=true"]);
    let html = "<img src=x onerror=alert(1)>";
    let publish = |channel: &str, headers: &[&str], body: &str| {
        let answer = operated.server.ask("POST", &format!("/v1/channels/{channel}"), headers, body);
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    publish("fleet/all", &[&format!("Millrace-Key: {html}"), "Content-Type: text/html"], html);
    publish("fleet/all", &["Millrace-Key: long", "Content-Type: text/plain"], &"ü".repeat(4000));
    let answer = operated.ask("tail?channel=fleet/all");
    assert!(answer.head.contains("content-type: application/json"), "{}", answer.head);
    let tail: Value = serde_json::from_str(&answer.body).expect("JSON");
    let [first, long] = rows(&tail, "publications") else { panic!("two publications: {tail}") };
    assert_eq!((&first["key"], &first["truncated"]), (&json!(html), &json!(false)), "{tail}");
    assert!(first["text"] == html || first["base64"].is_string(), "{tail}");
    assert_eq!(
        (&long["bytes"], &long["truncated"], &long["text"]),
        (&json!(8000), &json!(true), &json!("ü".repeat(2048)))
    );
    let deleted = operated.server.ask("DELETE", "/v1/channels/fleet/all?key=long", &[], "");
    assert_eq!(deleted.status, 200, "{deleted:?}");
    let tail = operated.get("tail?channel=fleet/all&count=1");
    let row = &rows(&tail, "publications")[0];
    assert!(row["deleted"] == true && row.get("text").is_none() && row["key"] == "long", "{row}");
    let channel = operated.get("channel?channel=fleet/all");
    assert_eq!((&channel["kind"], &channel["roster"]), (&json!("state"), &json!(true)), "{channel}");

    let joined = operated.server.post("/v1/rooms/kitchen/participants", &json!({ "name": html }).to_string());
    assert_eq!(joined.status, 201, "{joined:?}");
    operated.server.post("/v1/rooms/attic/participants", "{}");
    let listed = operated.get("rooms?limit=1");
    assert_eq!((&listed["total"], &listed["more"]), (&json!(2), &json!(true)), "{listed}");
    assert_eq!(
        (&rows(&listed, "rooms")[0]["room"], &rows(&listed, "rooms")[0]["participants"]),
        (&json!("attic"), &json!(1))
    );
    let second = operated.get("rooms?limit=1&after=attic");
    assert_eq!((&rows(&second, "rooms")[0]["room"], &second["more"]), (&json!("kitchen"), &json!(false)), "{second}");
    let room = operated.get("rooms?room=kitchen");
    assert_eq!(rows(&room, "rooms")[0]["participants"][0]["name"], html, "{room}");
    assert!(!room.to_string().contains("secret"), "the secrets of participants stay secret: {room}");
    assert_eq!(operated.get("rooms?room=cellar"), json!({ "rooms": [] }));
}

#[test]
fn rooms_are_filtered_sorted_and_cut() {
    let operated = Operated::start(&["server.shards=2"]);
    for room in ["attic", "kitchen", "kitchen", "Kitchen-2"] {
        assert_eq!(operated.server.post(&format!("/v1/rooms/{room}/participants"), "{}").status, 201, "{room}");
    }
    let shown = |request: &str| {
        let answer = operated.get(request);
        let names = rows(&answer, "rooms").iter().map(|row| row["room"].as_str().expect("a name").to_owned());
        (names.collect::<Vec<_>>(), answer["total"].clone(), answer["more"].clone())
    };
    let expected = |names: &[&str], total: u64, more: bool| {
        (names.iter().map(ToString::to_string).collect::<Vec<_>>(), json!(total), json!(more))
    };
    assert_eq!(shown("rooms"), expected(&["Kitchen-2", "attic", "kitchen"], 3, false));
    assert_eq!(shown("rooms?sort=participants&limit=2"), expected(&["kitchen", "Kitchen-2"], 3, true));
    assert_eq!(shown("rooms?contains=KITCH"), expected(&["Kitchen-2", "kitchen"], 2, false));
    assert_eq!(shown("rooms?contains=kitchen&limit=1"), expected(&["Kitchen-2"], 2, true));
    assert_eq!(shown("rooms?contains=kitchen&limit=1&after=Kitchen-2"), expected(&["kitchen"], 2, false));
    assert_eq!(shown("rooms?contains=t&sort=participants&limit=1"), expected(&["kitchen"], 3, true));
    assert_eq!(shown("rooms?contains=%3Cb%3E"), expected(&[], 0, false));
}

#[test]
fn hooks_and_settings_are_shown_without_secrets() {
    // Nothing listens at this address.
    let file = crate::support::file("lists.toml", "[limits]\ngrace = \"7s\"\n[namespaces.cars]\ncount_max = 7\n");
    let args = ["serve", "--listen", "127.0.0.1:0", "--config", &file, "--set", "admin.listen=127.0.0.1:0"];
    let mut command = millrace(&args);
    command.args(["--set", "hooks.publish=http://127.0.0.1:1/hook?key=s3cr3t"]);
    command.env("MILLRACE_ADMIN__TOKEN", ADMIN).env("MILLRACE_HOOKS__SECRETS", SECRET);
    let mut server = Server::start_from(&mut command);
    let line = server.process.out.wait_for("admin on ");
    let operated = Operated { server, admin: line.rsplit('/').next().expect("an address").to_owned() };

    assert_eq!(operated.server.post("/v1/channels/cars/1", "hello").status, 503);
    let hooks = operated.get_until("hooks", |answer| answer["hooks"][0]["failures_total"] == 1);
    let row = &rows(&hooks, "hooks")[0];
    assert_eq!((&row["hook"], &row["url"]), (&json!("publish"), &json!("http://127.0.0.1:1/hook")), "{hooks}");
    assert_eq!(
        (&row["requests_total"], &row["breaker"], &row["cache_hits_total"]),
        (&json!(1), &json!("closed"), &json!(0))
    );
    assert!(row["latency_p99_ms"].is_number() && row["node"].is_string(), "{hooks}");

    let shown = operated.get("config?sources=true");
    let setting = |key: &str| {
        let found = rows(&shown, "settings").iter().find(|row| row["key"] == key);
        found.unwrap_or_else(|| panic!("no {key}"))
    };
    for (key, value, source, from) in [
        ("limits.grace", json!("7s"), "file", Some(file.as_str())),
        ("namespaces.cars.count_max", json!(7), "file", Some(file.as_str())),
        ("admin.listen", json!("127.0.0.1:0"), "flag", Some("--set")),
        ("admin.token", json!("(hidden)"), "environment", Some("MILLRACE_ADMIN__TOKEN")),
        ("hooks.publish", json!("http://127.0.0.1:1/hook?(hidden)"), "flag", Some("--set")),
        ("hooks.secrets", json!(["(hidden)"]), "environment", Some("MILLRACE_HOOKS__SECRETS")),
        ("log.level", json!("info"), "default", None),
    ] {
        let row = setting(key);
        assert_eq!((&row["value"], &row["source"], row["from"].as_str()), (&value, &json!(source), from), "{row}");
    }
    assert_eq!(setting("limits.grace")["default"], "10s");
    for secret in [ADMIN, SECRET, "s3cr3t"] {
        assert!(!shown.to_string().contains(secret) && !hooks.to_string().contains(secret), "{secret}");
    }
    assert_eq!(operated.get("config")["limits"]["grace"], "7s", "the other form of the answer");
}

#[test]
fn users_and_bad_parameters_are_refused() {
    let operated = Operated::start(&[]);
    for (request, says) in [
        ("connections?sort=size", "id, behind, bytes, opened"),
        ("connections?sort=behind&after=ab-1-2-3", "omit `sort`"),
        ("connections?limit=0", "`limit` is 1 to 1000"),
        ("connections?sortt=behind", "unknown parameter `sortt`"),
        ("slow?limit=1001", "`limit` is 1 to 1000"),
        ("slow?sort=behind", "unknown parameter"),
        ("slow?address=127.0.0.1:80", "`address` is an IP address"),
        ("slow?transport=pigeon", "unknown `transport`"),
        ("channel", "name the channel"),
        ("channel?channel=a//b", "channel"),
        ("channel?channel=:millrace/revocations", "belongs to the server"),
        ("tail?channel=:millrace/revocations", "belongs to the server"),
        ("page?channel=:millrace/revocations", "belongs to the server"),
        ("tail?channel=%3Cb%3E", "channel"),
        ("tail?channel=cars/1&count=201", "`count` is 1 to 200"),
        ("tail?channel=cars/1&channel=cars/2", "given twice"),
        ("page?channel=cars/1&before=0", "`before` is an offset"),
        ("page?channel=cars/1&before=-1", "`before` is an offset"),
        ("rooms?room=a/b", "room"),
        ("rooms?limit=x", "`limit`"),
        ("rooms?sort=size", "name, participants"),
        ("rooms?sort=participants&after=a", "omit `sort`"),
        ("hooks?limit=5", "no parameters"),
        ("config?sources=yes", "`sources` is `true` or `false`"),
    ] {
        let refused = operated.ask(request);
        assert!([400, 403].contains(&refused.status) && refused.body.contains(says), "{request}: {refused:?}");
    }
    let server =
        Server::start_from(millrace(&["serve", "--listen", "127.0.0.1:0"]).env("MILLRACE_AUTH__SECRET", SECRET));
    let token = |flags: &[&str]| {
        let mut command = millrace(&[&["token", "create", "--sub", "ann"], flags].concat());
        Process::start(command.env("MILLRACE_AUTH__SECRET", SECRET)).finish().out.trim().to_owned()
    };
    let (user, operator) = (token(&["--subscribe", "#", "--history", "#"]), token(&["--admin"]));
    for request in REQUESTS {
        let path = format!("/v1/admin/{request}");
        let status = |headers: &[&str], method: &str| server.ask(method, &path, headers, "").status;
        assert_eq!(status(&[], "GET"), 401, "{request}");
        assert_eq!(status(&["Authorization: Bearer a.b.c"], "GET"), 401, "{request}");
        assert_eq!(status(&[&format!("Authorization: Bearer {user}")], "GET"), 403, "{request}");
        assert_eq!(status(&[&format!("Authorization: Bearer {operator}")], "GET"), 200, "{request}");
        assert_eq!(status(&[&format!("Authorization: Bearer {operator}")], "POST"), 405, "{request}");
    }
}

#[test]
fn million_channels_are_listed_page_by_page() {
    const COUNT: usize = 1_000_000;
    let settings = ["engine.channels_max=2000000", "engine.history_bytes_max=4294967296", "history.count_max=1"];
    let operated = Operated::start(&settings);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in 0..2 {
            let numbers = part * COUNT / 2..(part + 1) * COUNT / 2;
            let address = &operated.server.address;
            scope.spawn(move || publish_numbers(address, |n| format!("cars/{n:06}"), numbers));
        }
    });
    println!("{COUNT} channels created in {:?}", began.elapsed());
    let mut reader = Reader::open(&operated.server, "news");
    let asked = Instant::now();
    let first = operated.get("channels?limit=100");
    let took = asked.elapsed();
    let names = |answer: &Value| -> Vec<String> {
        rows(answer, "channels").iter().map(|row| row["channel"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&first), (0..100).map(|n| format!("cars/{n:06}")).collect::<Vec<_>>());
    assert_eq!(first["more"], true);
    let asked = Instant::now();
    let last = operated.get("channels?limit=100&after=cars/999950");
    println!("first page of {COUNT} channels in {took:?}, last page in {:?}", asked.elapsed());
    assert_eq!((names(&last).len(), &last["more"]), (49, &json!(false)));
    assert!(took < Duration::from_secs(5), "{took:?}");
    // A list that is repeated does not stop the deliveries.
    let longest = std::thread::scope(|scope| {
        let admin = &operated.admin;
        let lists = scope
            .spawn(move || (0..10).for_each(|_| assert_eq!(ask_operator(admin, "channels?limit=100").status, 200)));
        let (mut n, mut longest) = (0, Duration::ZERO);
        while !lists.is_finished() {
            let published = Instant::now();
            assert_eq!(operated.server.post("/v1/channels/news", &format!("number {n}.")).status, 200);
            reader.read_to(&format!("number {n}."));
            longest = longest.max(published.elapsed());
            n += 1;
        }
        longest
    });
    println!("longest delivery beside ten lists: {longest:?}");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}
