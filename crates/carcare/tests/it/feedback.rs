use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_carcare::feedback::{ALERTS, Config, DRIVES, Feedback, GEOFENCES, Notice, Notify};
use millrace_delivery::PageLimit;
use millrace_engine::{Engine, HistoryConfig, open, unix_ms};
use millrace_node::Router;
use millrace_protocol::{ChannelName, Kind, NewPublication, Since, session::Policy};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const WAIT: Duration = Duration::from_secs(20);

/// A node without sockets.
struct Node {
    engine: Arc<dyn Engine>,
    router: Arc<Router>,
}

impl Node {
    fn open(url: &str) -> Self {
        let state = HistoryConfig { state: true, keys_max: 10_000, ..HistoryConfig::default() };
        let config = millrace_engine::Config {
            namespaces: BTreeMap::from([("carcare".into(), state)]),
            internal_states: Some(state),
            ..millrace_engine::Config::default()
        };
        let router = Arc::new(Router::new(1).with_service());
        let engine = open(url, config, router.clone(), unix_ms).expect("an engine");
        Self { engine, router }
    }

    fn feedback(&self) -> Feedback {
        let config = Config { groups: BTreeMap::from([("north".into(), vec!["7".into()])]), ..Config::default() };
        Feedback::start(&config, self.engine.clone(), self.router.clone()).expect("a thread")
    }

    async fn publish(&self, to: &str, key: Option<&str>, data: &Value) {
        let mut publication = NewPublication::new(Kind::Json, data.to_string());
        publication.key = key.map(Into::into);
        self.engine.append(&channel(to), publication).await.expect("published");
    }

    async fn send(&self, car: &str, records: &[Value]) {
        for record in records {
            self.publish(&format!("cars/{car}/telemetry"), None, record).await;
        }
    }

    /// Returns the publications of a channel.
    async fn read(&self, from: &str, since: Since) -> Vec<(Option<String>, Value)> {
        let limit = PageLimit { count: 1000, bytes: 1 << 20 };
        let page = self.engine.page(&channel(from), since, Policy::Every, limit).await.expect("a page");
        let value = |data: &[u8]| serde_json::from_slice(data).expect("JSON");
        page.publications.iter().map(|one| (one.key.as_deref().map(Into::into), value(one.data()))).collect()
    }

    /// Waits until a channel has a publication that fits.
    async fn wait(&self, from: &str, since: Since, what: &str, fits: impl Fn(&[(Option<String>, Value)]) -> bool) {
        let until = Instant::now() + WAIT;
        loop {
            let found = self.read(from, since).await;
            if fits(&found) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {found:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn events(&self, car: &str) -> Vec<(String, u64)> {
        let events = self.read(&format!("cars/{car}/events"), Since::Earliest).await;
        let event = |(_, event): &(_, Value)| {
            (event["type"].as_str().expect("a type").to_owned(), event["time"].as_u64().expect("a time"))
        };
        events.iter().map(event).collect()
    }
}

fn channel(name: &str) -> ChannelName {
    ChannelName::parse(name).expect("a channel name")
}

/// Returns a drive of `rounds` times 40 s, each with one harsh braking. The engine is off at the end.
fn drive(start_ms: u64, rounds: u64) -> Vec<Value> {
    let mut records = Vec::new();
    for second in 0..rounds * 40 + 80 {
        let is_over = second >= rounds * 40;
        let speed = match second % 40 {
            _ if is_over => 0.0,
            n @ 0..=13 => n as f64,
            14..=29 => 14.0,
            30 => 9.0,
            31 => 4.0,
            _ => 4.0 - (second % 40 - 31) as f64 * 0.4,
        };
        records.push(json!({
            "carId": 7, "timestamp": start_ms + second * 1000, "speed": speed, "rpm": if is_over { 0 } else { 1500 },
            "gpsLatitude": 47.5 + second as f64 * 1e-4, "gpsLongitude": 19.0, "accuracy": 4, "heading": 0,
        }));
    }
    records
}

fn start_ms() -> u64 {
    unix_ms() - 3_600_000
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}

#[tokio::test]
async fn records_become_events_alerts_and_a_scored_drive() {
    let node = Node::open("memory");
    let circle = json!({ "name": "Depot", "area": { "circle": { "center": { "lat": 47.505, "lon": 19.0 }, "radiusM": 200 } }, "groups": ["north"] });
    node.publish(GEOFENCES, Some("Depot"), &circle).await;
    let feedback = node.feedback();
    let mut records = drive(start_ms(), 5);
    records[50]["troubleCodes"] = json!(["P0301"]);
    // The first record is delivered once the service has begun to read.
    node.wait(GEOFENCES, Since::State, "the geofence", |found| found.len() == 1).await;
    let until = Instant::now() + WAIT;
    while node.read(":millrace/driving", Since::State).await.is_empty() {
        assert!(Instant::now() < until, "the service does not begin");
        node.send("probe", &[json!({ "timestamp": unix_ms(), "speed": 9, "event": "harsh_braking" })]).await;
        sleep(Duration::from_millis(20)).await;
    }
    node.send("7", &records).await;
    let of_car = format!("{DRIVES}/7");
    node.wait(&of_car, Since::State, "the drive", |found| found.len() == 1).await;
    let kinds: Vec<String> = node.events("7").await.into_iter().map(|event| event.0).collect();
    let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
    assert_eq!(count("harsh-braking"), 5, "{kinds:?}");
    assert_eq!((count("geofence-enter"), count("geofence-exit"), count("trouble-code")), (1, 1, 1), "{kinds:?}");
    let (key, ended) = &node.read(&of_car, Since::State).await[0];
    assert_eq!(key.as_deref(), ended["start"].as_u64().map(|start| start.to_string()).as_deref());
    assert_eq!((ended["isOpen"].clone(), ended["groups"].clone()), (json!(false), json!(["north"])));
    assert_eq!(ended["events"]["harsh-braking"], 5);
    // Five severe events of 4 points on less than 10 km.
    assert_eq!((ended["points"].as_f64(), ended["score"].as_u64()), (Some(20.0), Some(0)), "{ended}");
    let newest = node.read(DRIVES, Since::State).await;
    assert!(newest.iter().any(|(key, _)| key.as_deref() == Some("7")));
    let alerts = node.read(ALERTS, Since::State).await;
    let alert = alerts.iter().find(|(key, _)| key.as_deref() == Some("7/trouble-code/P0301")).expect("an alert");
    assert_eq!(alert.1["meaning"], "Cylinder 1 misfires");
    feedback.stop();
}

#[tokio::test]
async fn crash_and_restart_neither_lose_nor_double_an_event() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let url = |i: usize| format!("sqlite:{}", folders[i].path().join("cars.db").display());
    let records = drive(start_ms(), 12);
    let (first, second) = records.split_at(262);
    let expected: Vec<u64> =
        (0..12u64).map(|round| records[(round * 40 + 29) as usize]["timestamp"].as_u64().expect("a time")).collect();

    let node = Node::open(&url(0));
    let feedback = node.feedback();
    let until = Instant::now() + WAIT;
    while node.read(":millrace/driving", Since::State).await.is_empty() {
        assert!(Instant::now() < until, "the service does not begin");
        node.send("probe", &[json!({ "timestamp": unix_ms(), "speed": 9, "event": "harsh_braking" })]).await;
        sleep(Duration::from_millis(20)).await;
    }
    node.send("7", first).await;
    node.wait("cars/7/events", Since::Earliest, "the first events", |found| found.len() == 6).await;
    // These are the files that a crash at this moment would leave behind.
    copy_files(folders[0].path(), folders[1].path());
    feedback.stop();
    node.engine.close();

    // One database after the crash, and one after the ordered end.
    for i in [1, 0] {
        let node = Node::open(&url(i));
        // These records arrive while no service runs.
        node.send("7", second).await;
        let feedback = node.feedback();
        node.wait(&format!("{DRIVES}/7"), Since::State, "the drive", |found| found.len() == 1).await;
        let events = node.events("7").await;
        let times: Vec<u64> = events.iter().map(|event| event.1).collect();
        assert_eq!(times, expected, "database {i}: {events:?}");
        let ended = &node.read(&format!("{DRIVES}/7"), Since::State).await[0].1;
        assert_eq!(ended["events"]["harsh-braking"], 12);
        feedback.stop();
        node.engine.close();
    }
}

#[tokio::test]
async fn nonsense_in_telemetry_stops_nothing() {
    let node = Node::open("memory");
    let feedback = node.feedback();
    let until = Instant::now() + WAIT;
    while node.events("9").await.is_empty() {
        assert!(Instant::now() < until, "the event follows");
        for nonsense in [json!(7), json!("x"), json!({}), json!({ "timestamp": u64::MAX, "speed": 1e300 }), json!([[]])]
        {
            node.send("9", &[nonsense]).await;
        }
        node.send("9", &[json!({ "timestamp": unix_ms(), "speed": 9, "event": "harsh_braking" })]).await;
        sleep(Duration::from_millis(20)).await;
    }
    feedback.stop();
}

#[derive(Default)]
struct Notices(Mutex<Vec<Notice>>);

impl Notify for Notices {
    fn notify(&self, notice: Notice) {
        self.0.lock().expect("no panic").push(notice);
    }
}

#[tokio::test]
async fn trouble_of_now_is_notified_once() {
    let node = Node::open("memory");
    let notices = Arc::new(Notices::default());
    let notify: Arc<dyn Notify> = notices.clone();
    let feedback = Feedback::start_with(&Config::default(), node.engine.clone(), node.router.clone(), Some(notify));
    let feedback = feedback.expect("a thread");
    let with_code = |start_ms: u64| {
        let mut records = drive(start_ms, 1);
        records.iter_mut().skip(20).for_each(|record| record["troubleCodes"] = json!(["P0301"]));
        records
    };
    // Records that a gateway had stored for hours are published, but not notified.
    node.send("8", &with_code(unix_ms() - 10 * 3_600_000)).await;
    node.send("7", &with_code(unix_ms() - 200_000)).await;
    node.wait(ALERTS, Since::State, "both alerts", |alerts| {
        ["7/trouble-code/P0301", "8/trouble-code/P0301"]
            .iter()
            .all(|key| alerts.iter().any(|(k, _)| k.as_deref() == Some(*key)))
    })
    .await;
    feedback.stop();
    let found = notices.0.lock().expect("no panic");
    let [notice] = &found[..] else { panic!("one notice: {found:?}") };
    assert_eq!((notice.subject.as_str(), notice.is_urgent), ("car-7", true));
    assert_eq!(notice.message["title"], "Car 7: Trouble code P0301");
}
