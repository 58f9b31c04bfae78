//! Answers of simulated cars to the requests of applications, also to those that were stored while the simulator did
//! not run. Source: docs/how-to/ask-a-device.md, "What a simulated car answers".

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet, VecDeque},
    io::Cursor,
    ops::ControlFlow,
    rc::Rc,
    time::Duration,
};

use millrace_client::{
    backoff::FailedAttempt,
    file::{self, Assembler, FILE_BYTES_MAX, FileError, Manifest, Piece, SendError},
    http::query_value,
    publish::{HttpPublisher, PublishError},
    server::Server,
    subscription::{Message, Options, SubscriptionError, Transport, Update, read},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::{record::Record, replay::to_csv};

/// Number of cars that answer: each is one subscription.
pub const CARS_MAX: usize = 100;
/// Records that a car keeps as its log of the drive.
const LOG_MAX: usize = 3600;
/// Names of the files that a car has.
const FILES: [&str; 2] = ["drive.csv", "car.json"];
/// Time after which a file that does not arrive is given up.
const FILE_WAIT: Duration = Duration::from_secs(60);

/// Reason why no car answers any longer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Subscription(#[from] SubscriptionError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("the server ended the subscription")]
    Ended,
}

/// Holds the newest records of the cars, from which they answer.
#[derive(Default)]
pub struct Garage {
    cars: BTreeMap<u32, VecDeque<Record>>,
    started: Rc<Notify>,
    cleared: Vec<u32>,
}

/// Task of a car after a request.
#[derive(Debug, PartialEq)]
enum Task {
    Answer(Value),
    Send { name: String, content: Vec<u8> },
    Receive { channel: String, sha256: Option<String> },
}

/// Entry of the state `requests/{car}`.
#[derive(Deserialize)]
struct Entry {
    id: String,
    state: String,
    #[serde(default)]
    request: Value,
}

struct Request {
    car: u32,
    id: String,
    request: Value,
}

impl Garage {
    /// Returns the signal that the first records were taken.
    pub fn started(&self) -> Rc<Notify> {
        self.started.clone()
    }

    /// Takes the newest records of the cars. Further cars than [`CARS_MAX`] are left out.
    pub fn take(&mut self, records: &[Record]) {
        for record in records {
            if self.cars.len() >= CARS_MAX && !self.cars.contains_key(&record.car_id) {
                continue;
            }
            let log = self.cars.entry(record.car_id).or_default();
            if log.len() == LOG_MAX {
                log.pop_front();
            }
            log.push_back(record.clone());
        }
        if !self.cars.is_empty() {
            self.started.notify_one();
        }
    }

    /// Returns the cars whose trouble codes were cleared since the last call.
    pub fn take_cleared(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.cleared)
    }

    fn task(&mut self, car: u32, request: &Value) -> Task {
        let text = |name: &str| request.get(name).and_then(Value::as_str);
        let refuse = |why: &str| Task::Answer(json!({ "error": why }));
        let Some(log) = self.cars.get_mut(&car) else { return refuse("the car has not started yet") };
        let Some(newest) = log.back_mut() else { return refuse("the car has not started yet") };
        match (text("ask"), text("do")) {
            (Some("fuel"), _) => match newest.fuel {
                Some(fuel) => Task::Answer(json!({ "fuel": fuel })),
                None => refuse("the car has no fuel sensor"),
            },
            (Some("trouble-codes"), _) => match &newest.trouble_codes {
                Some(codes) => Task::Answer(json!({ "troubleCodes": codes })),
                None => refuse("the car reads no trouble codes"),
            },
            (Some("position"), _) => Task::Answer(json!({
                "gpsLatitude": newest.gps_latitude,
                "gpsLongitude": newest.gps_longitude,
                "speed": newest.speed,
                "heading": newest.heading,
                "timestamp": newest.timestamp,
            })),
            (_, Some("clear-trouble-codes")) => match newest.trouble_codes.as_mut() {
                Some(codes) => {
                    let cleared = std::mem::take(codes);
                    newest.lamp = Some(false);
                    self.cleared.push(car);
                    Task::Answer(json!({ "cleared": cleared }))
                }
                None => refuse("the car reads no trouble codes"),
            },
            _ => match (text("send"), text("read")) {
                (Some("drive.csv"), _) => {
                    let content = to_csv(log.make_contiguous()).into_bytes();
                    Task::Send { name: "drive.csv".into(), content }
                }
                (Some("car.json"), _) => {
                    let content = serde_json::to_vec_pretty(newest).unwrap_or_default();
                    Task::Send { name: "car.json".into(), content }
                }
                (Some(_), _) => refuse(&format!("the car has only these files: {}", FILES.join(", "))),
                (_, Some(channel)) => {
                    Task::Receive { channel: channel.to_owned(), sha256: text("sha256").map(str::to_owned) }
                }
                _ => refuse("the car does not understand this request"),
            },
        }
    }
}

/// Answers the requests to the cars of the garage until the server refuses.
///
/// The cars are those that the garage has at the first poll, at most [`CARS_MAX`]. A lost connection is resumed, and
/// the requests that were stored meanwhile follow. Needs the permissions `subscribe` on `requests/{car}`, `publish` on
/// `requests/{car}/answers`, and both on `files/{car}/#`.
pub async fn answer(
    server: &Server,
    garage: &RefCell<Garage>,
    retry_for: Duration,
    on_retry: fn(&FailedAttempt),
) -> Result<(), AnswerError> {
    let channels: Vec<String> = garage.borrow().cars.keys().map(|car| format!("requests/{car}")).collect();
    let mut publisher = HttpPublisher::new(retry_for, on_retry)?;
    // The server bounds the queue: a state has at most `keys_max` requests.
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut known = HashSet::new();
    let mut sink = |update: Update| {
        if let Update::Message(message) = update
            && let Some(request) = request_of(&message, &mut known)
        {
            let _ = sender.send(request);
        }
        ControlFlow::Continue(())
    };
    let options = options(server, channels, "state");
    let reading = async { read(&options, &mut sink).await.map_err(AnswerError::from).and(Err(AnswerError::Ended)) };
    let answering = async {
        while let Some(request) = receiver.recv().await {
            perform(server, garage, &mut publisher, request).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = answering => ended,
    }
}

fn options(server: &Server, channels: Vec<String>, since: &str) -> Options {
    Options {
        server: server.clone(),
        channels,
        transport: Transport::WebSocket,
        since: Some(since.to_owned()),
        policy: "every".into(),
        poll_interval: Duration::from_secs(1),
        retry_for: None,
    }
}

/// Returns the request of a message, unless it is known or answered.
fn request_of(message: &Message, known: &mut HashSet<String>) -> Option<Request> {
    let car = message.channel.strip_prefix("requests/")?.parse().ok()?;
    let entry = serde_json::from_str::<Entry>(message.data.get()).ok().filter(|_| !message.deleted);
    let Some(Entry { id, state, request }) = entry.filter(|entry| entry.state != "answered") else {
        message.key.as_deref().map(|key| known.remove(key));
        return None;
    };
    // A request that was confirmed before the simulator ended is answered now.
    let is_open = state == "queued" || state == "sent";
    (is_open && known.insert(id.clone())).then_some(Request { car, id, request })
}

/// Confirms a request, does what it asks for, and answers it.
///
/// Errors: the server does not answer, or refuses for another reason than that the request has ended.
async fn perform(
    server: &Server,
    garage: &RefCell<Garage>,
    publisher: &mut HttpPublisher,
    Request { car, id, request }: Request,
) -> Result<(), AnswerError> {
    let path = format!("/v1/requests/{car}/{}", query_value(&id));
    if !post(server, publisher, &format!("{path}?state=sent"), Vec::new()).await? {
        return Ok(());
    }
    let task = garage.borrow_mut().task(car, &request);
    let answer = match task {
        Task::Answer(answer) => answer,
        Task::Send { name, content } => {
            let channel = format!("files/{car}/from-car");
            let sent = file::send_from(publisher, server, &channel, name, Cursor::new(content), |_, _| {}).await;
            match sent {
                Ok(manifest) => described(&manifest, &channel),
                Err(SendError::Publish(error @ PublishError::GaveUp(_))) => return Err(error.into()),
                Err(error) => json!({ "error": error.to_string() }),
            }
        }
        Task::Receive { channel, sha256 } => match receive(server, &channel, sha256).await {
            Ok(manifest) => described(&manifest, &channel),
            Err(why) => json!({ "error": why }),
        },
    };
    post(server, publisher, &path, answer.to_string().into_bytes()).await.map(drop)
}

/// Posts. Returns false if the request has expired, or has another answer.
async fn post(server: &Server, publisher: &mut HttpPublisher, path: &str, body: Vec<u8>) -> Result<bool, AnswerError> {
    match publisher.post(server, path, &[("Content-Type", "application/json")], body, |_| Ok(())).await {
        Ok(_) => Ok(true),
        Err(PublishError::Refused(problem)) if ["conflict", "not_found"].contains(&&*problem.code) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn described(Manifest { name, bytes, sha256, .. }: &Manifest, channel: &str) -> Value {
    json!({ "channel": channel, "name": name, "bytes": bytes, "sha256": sha256 })
}

/// Receives a file and checks it. A simulated car has no disk: the content is dropped.
///
/// Errors: the reason in words, which is the answer to the request.
async fn receive(server: &Server, channel: &str, sha256: Option<String>) -> Result<Manifest, String> {
    let mut assembler = Assembler::new(FILE_BYTES_MAX).only(sha256);
    let (mut begun, mut result) = (None, None);
    let mut sink = |update: Update| {
        let Update::Message(message) = update else { return ControlFlow::Continue(()) };
        match assembler.handle(&message) {
            Ok(Piece::Begin(manifest)) => begun = Some(manifest),
            Ok(Piece::Data(_) | Piece::Ignored) => {}
            Ok(Piece::Last(_)) => result = Some(Ok(())),
            Err(error) => result = Some(Err(error)),
        }
        if result.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = options(server, vec![channel.to_owned()], "earliest");
    let ended = tokio::time::timeout(FILE_WAIT, read(&options, &mut sink)).await;
    match (result, begun, ended) {
        (Some(Ok(())), Some(manifest), _) => Ok(manifest),
        (Some(Err(error)), ..) => Err(FileError::to_string(&error)),
        (.., Ok(Err(error))) => Err(error.to_string()),
        _ => Err(format!("the file did not arrive on {channel} within {} s", FILE_WAIT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn garage() -> Garage {
        let mut garage = Garage::default();
        let codes = Some(vec!["P0301".to_owned()]);
        garage.take(&[Record { car_id: 7, fuel: Some(61.0), trouble_codes: codes, speed: 3.0, ..Record::default() }]);
        garage
    }

    #[test]
    fn car_answers_about_itself() {
        let mut garage = garage();
        assert_eq!(garage.task(7, &json!({"ask": "fuel"})), Task::Answer(json!({"fuel": 61.0})));
        assert_eq!(garage.task(7, &json!({"ask": "trouble-codes"})), Task::Answer(json!({"troubleCodes": ["P0301"]})));
        let Task::Answer(place) = garage.task(7, &json!({"ask": "position"})) else { panic!("an answer") };
        assert_eq!(place["speed"], 3.0);
        for odd in [json!({"ask": "weather"}), json!({}), json!(7), json!({"send": "/etc/passwd"})] {
            let Task::Answer(answer) = garage.task(7, &odd) else { panic!("{odd} is refused") };
            assert!(answer["error"].is_string(), "{odd}: {answer}");
        }
        let Task::Answer(unknown) = garage.task(8, &json!({"ask": "fuel"})) else { panic!("an answer") };
        assert!(unknown["error"].is_string());
    }

    #[test]
    fn cleared_codes_stay_cleared() {
        let mut garage = garage();
        assert_eq!(garage.task(7, &json!({"do": "clear-trouble-codes"})), Task::Answer(json!({"cleared": ["P0301"]})));
        assert_eq!(garage.task(7, &json!({"ask": "trouble-codes"})), Task::Answer(json!({"troubleCodes": []})));
        assert_eq!((garage.take_cleared(), garage.take_cleared()), (vec![7], vec![]));
    }

    #[test]
    fn request_is_performed_once() {
        let message = |state: &str| {
            let data = json!({"id": "a", "state": state, "request": {"ask": "fuel"}});
            let text = json!({"channel": "requests/7", "position": "e:1", "time": 1, "key": "a", "data": data});
            serde_json::from_value::<Message>(text).expect("a message")
        };
        let mut known = HashSet::new();
        let mut is_new = |state: &str| request_of(&message(state), &mut known).is_some();
        assert!(is_new("queued") && !is_new("sent") && !is_new("answered"));
        assert!(is_new("sent"), "a request that was confirmed before a restart is answered");
    }
}
