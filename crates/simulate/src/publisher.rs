//! Publisher of the records of cars: over HTTP, retried until the server has each record exactly once and in order,
//! or over UDP, without retries.

use std::time::Duration;

use millrace_client::backoff::FailedAttempt;
use millrace_client::problem::Problem;
use millrace_client::publish::{AttemptError, HttpPublisher, PublishError, Stats};
use millrace_client::server::{Server, Token};
use serde::Deserialize;
use tokio::net::UdpSocket;

use crate::record::Record;

/// Maximum records of one request; the server accepts 1,000 lines.
const BATCH_MAX: usize = 500;

/// Reason why records were not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The server rejects the request, or did not accept it in time.
    #[error(transparent)]
    Http(#[from] PublishError),
    /// The host of `udp://HOST:PORT` has no address; the second text is the reason.
    #[error("udp://{0}: {1}")]
    NoHost(String, String),
    #[error("udp: {0}")]
    Udp(#[from] std::io::Error),
}

/// Publisher that sends one request or datagram at a time, so a car's records never overtake each other.
pub struct Publisher {
    to: Target,
    sent: u64,
}

enum Target {
    Http(Server, HttpPublisher),
    Udp(UdpSocket),
}

impl Publisher {
    /// Creates a publisher. `to` is `http://HOST:PORT` or `https://HOST:PORT`, which receives the token, or
    /// `udp://HOST:PORT`. A request fails after `retry_for`; until then `on_retry` is called for each failed
    /// attempt.
    pub async fn new(
        to: &str,
        token: Option<Token>,
        retry_for: Duration,
        on_retry: fn(&FailedAttempt),
    ) -> Result<Self, SendError> {
        let to = match to.strip_prefix("udp://") {
            Some(address) => Target::Udp(udp(address).await?),
            None => {
                let server = Server::parse(to).map_err(PublishError::from)?.with_token(token);
                Target::Http(server, HttpPublisher::new(retry_for, on_retry)?)
            }
        };
        Ok(Self { to, sent: 0 })
    }

    /// Sends records and returns when the server has all of them (UDP: when each is on its way).
    ///
    /// Errors: [`PublishError::Refused`] and [`PublishError::GaveUp`]; earlier records may have arrived.
    pub async fn send(&mut self, records: &[Record]) -> Result<(), SendError> {
        for batch in batches(records) {
            match &mut self.to {
                Target::Udp(socket) => {
                    for record in batch {
                        datagram(socket, json(record).as_bytes()).await?;
                    }
                }
                Target::Http(server, http) => {
                    let (content_type, text) = encode(batch);
                    let headers = [("Content-Type", content_type)];
                    let count = batch.len();
                    let check = |answer: &[u8]| if count == 1 { Ok(()) } else { decode(answer, count) };
                    http.post(server, "/rest/input", &headers, text.into_bytes(), check).await?;
                }
            }
            self.sent += batch.len() as u64;
        }
        Ok(())
    }

    /// Returns the number of records that the server has (UDP: that were sent to the network).
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the statistics; `None` over UDP, which has no responses.
    pub fn stats(&self) -> Option<Stats> {
        match &self.to {
            Target::Http(_, http) => Some(http.stats),
            Target::Udp(_) => None,
        }
    }
}

/// Sends a datagram. A refused connection is not an error: datagrams may always get lost, and the receiver may
/// return.
async fn datagram(socket: &UdpSocket, bytes: &[u8]) -> Result<(), SendError> {
    match socket.send(bytes).await {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => Err(error.into()),
        _ => Ok(()),
    }
}

async fn udp(address: &str) -> Result<UdpSocket, SendError> {
    let no_host = |reason: String| SendError::NoHost(address.to_owned(), reason);
    let to = tokio::net::lookup_host(address).await.map_err(|error| no_host(error.to_string()))?.next();
    let to = to.ok_or_else(|| no_host("no such host".into()))?;
    let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(from).await?;
    socket.connect(to).await?;
    Ok(socket)
}

/// Splits records so that no batch has two records of one car. If one batch had two, the first could be retried
/// after the second arrived.
fn batches(records: &[Record]) -> Vec<&[Record]> {
    let mut batches = Vec::new();
    let mut start = 0;
    let mut cars = std::collections::HashSet::new();
    for (index, record) in records.iter().enumerate() {
        if index - start == BATCH_MAX || !cars.insert(record.car_id) {
            batches.push(&records[start..index]);
            start = index;
            cars.clear();
            cars.insert(record.car_id);
        }
    }
    if start < records.len() {
        batches.push(&records[start..]);
    }
    batches
}

fn json(record: &Record) -> String {
    serde_json::to_string(record).expect("a record is JSON")
}

fn encode(batch: &[Record]) -> (&'static str, String) {
    match batch {
        [one] => ("application/json", json(one)),
        many => ("application/x-ndjson", many.iter().map(|record| json(record) + "\n").collect()),
    }
}

/// Decodes `{"results": [{"position"} | {"error": {..}}]}`, one result per record. One retryable line makes the
/// whole batch retryable, unless another line was refused permanently.
fn decode(answer: &[u8], count: usize) -> Result<(), AttemptError> {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Line>,
    }
    #[derive(Deserialize)]
    struct Line {
        error: Option<Problem>,
    }
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|error| AttemptError::Retryable(format!("unexpected response: {error}")))?;
    if answer.results.len() != count {
        return Err(AttemptError::Retryable(format!("{} results for {count} records", answer.results.len())));
    }
    let mut errors: Vec<Problem> = answer.results.into_iter().filter_map(|line| line.error).collect();
    errors.sort_by_key(|problem| problem.retry);
    errors.into_iter().next().map_or(Ok(()), |problem| Err(problem.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(car_id: u32, seq: u64) -> Record {
        Record {
            car_id,
            timestamp: 1,
            gps_latitude: 47.5,
            gps_longitude: 19.1,
            speed: 0.0,
            rpm: 820,
            coolant_temperature: 20,
            seq: Some(seq),
            ..Record::default()
        }
    }

    #[test]
    fn batches_keep_order_and_have_each_car_once() {
        let records: Vec<Record> = (0..1300).map(|i| record(i % 600 + 1, u64::from(i))).collect();
        let batches = batches(&records);
        assert_eq!(batches.iter().map(|b| b.len()).collect::<Vec<_>>(), [500, 100 + 400, 200 + 100]);
        assert_eq!(batches.concat(), records);
        assert_eq!(super::batches(&[record(1, 1), record(1, 2)]).len(), 2);
        assert!(super::batches(&[]).is_empty());
    }

    #[test]
    fn one_record_is_json_and_many_are_lines() {
        assert_eq!(encode(&[record(1, 1)]).0, "application/json");
        let (content_type, text) = encode(&[record(1, 1), record(2, 1)]);
        assert_eq!(content_type, "application/x-ndjson");
        let ids: Vec<u32> =
            text.lines().map(|line| serde_json::from_str::<Record>(line).expect("a record").car_id).collect();
        assert_eq!(ids, [1, 2]);
        assert!(encode(&[record(u32::MAX, u64::MAX)]).1.len() < 1472, "a record fits a datagram");
    }

    #[test]
    fn an_answer_is_read_line_by_line() {
        assert!(decode(br#"{"results":[{"position":"a:1"},{"position":"a:2"}]}"#, 2).is_ok());
        assert!(matches!(decode(br#"{"results":[{"position":"a:1"}]}"#, 2), Err(AttemptError::Retryable(_))));
        assert!(matches!(decode(b"<html>", 1), Err(AttemptError::Retryable(_))));
        let busy = r#"{"error":{"code":"unavailable","detail":"","retry":true}}"#;
        let wrong = r#"{"error":{"code":"bad_json","detail":"no","retry":false}}"#;
        let answer = |lines: &[&str]| decode(format!(r#"{{"results":[{}]}}"#, lines.join(",")).as_bytes(), lines.len());
        assert!(matches!(answer(&[busy, r#"{"position":"a:1"}"#]), Err(AttemptError::Retryable(_))));
        assert!(matches!(answer(&[busy, wrong]), Err(AttemptError::Refused(p)) if p.code == "bad_json"));
    }
}
