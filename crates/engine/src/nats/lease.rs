//! Leases of the live nodes. Each node has one message in a small stream whose messages expire. The time stamp of that
//! message also gives the server's time.

use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    connection::Nats,
    link::{RequestError, api_answer, code},
    streams::Info,
};
use crate::remote::{BrokerError, Lease};

#[derive(Deserialize)]
struct Ack {
    seq: u64,
}

impl Nats {
    pub(super) async fn renew_lease(&self, lease: Duration) -> Result<Lease, BrokerError> {
        if lease.is_zero() {
            let subject = format!("$JS.API.STREAM.PURGE.{}", self.lease_stream());
            let _: Value = self.link.api(subject, &json!({ "filter": self.lease_subject(&self.node) })).await?;
            return Ok(Lease::default());
        }
        let asked = Instant::now();
        let sequence = match self.publish_lease().await {
            Err(RequestError::NoResponders) => {
                self.make_lease_stream(lease).await?;
                self.publish_lease().await?
            }
            sequence => sequence?,
        };
        // The server stored the message within this round trip.
        let round_trip = asked.elapsed();
        let (stored_ms, nodes) = tokio::try_join!(self.stored_ms(sequence), self.living())?;
        let since_ms = asked.elapsed().saturating_sub(round_trip).as_millis() as u64;
        self.clock.set(stored_ms + since_ms, round_trip);
        // The caller takes `now_ms` for the time in the middle of this call, so half of its duration is subtracted.
        Ok(Lease { now_ms: self.clock.now_ms().saturating_sub(asked.elapsed().as_millis() as u64 / 2), nodes })
    }

    async fn publish_lease(&self) -> Result<u64, RequestError> {
        let answer = self.link.request(self.lease_subject(&self.node), None, Bytes::new()).await?;
        Ok(api_answer::<Ack>(&answer.payload)?.seq)
    }

    async fn make_lease_stream(&self, lease: Duration) -> Result<(), RequestError> {
        let name = self.lease_stream();
        let config = json!({
            "name": name,
            "subjects": [self.lease_subject("*")],
            "retention": "limits",
            "storage": "memory",
            "max_msgs_per_subject": 1,
            "max_age": lease.as_nanos() as u64,
            "discard": "old",
            "num_replicas": 1,
            "allow_direct": true,
        });
        match self.link.api::<Value>(format!("$JS.API.STREAM.CREATE.{name}"), &config).await {
            Err(trouble) if !trouble.is_api(code::STREAM_EXISTS) => Err(trouble),
            _ => Ok(()),
        }
    }

    /// Returns the server's time at which it stored a message.
    async fn stored_ms(&self, sequence: u64) -> Result<u64, RequestError> {
        let subject = format!("$JS.API.DIRECT.GET.{}", self.lease_stream());
        let message = self.link.request(subject, None, json!({ "seq": sequence }).to_string().into()).await?;
        let stamp = message.headers.as_ref().and_then(|headers| headers.get("Nats-Time-Stamp"));
        let at = stamp.and_then(|stamp| humantime::parse_rfc3339(stamp.as_str()).ok());
        let since_1970 = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        since_1970.map(|since| since.as_millis() as u64).ok_or(RequestError::Lost("NATS does not tell the time"))
    }

    async fn living(&self) -> Result<Vec<String>, RequestError> {
        let ask = json!({ "subjects_filter": ">" });
        let info: Info = self.link.api(format!("$JS.API.STREAM.INFO.{}", self.lease_stream()), &ask).await?;
        let start = self.lease_subject("");
        let subjects = info.state.subjects.unwrap_or_default();
        Ok(subjects.into_keys().filter_map(|subject| subject.strip_prefix(&start).map(Into::into)).collect())
    }

    fn lease_stream(&self) -> String {
        format!("{}@@nodes", self.prefix)
    }

    fn lease_subject(&self, node: &str) -> String {
        format!("{}.lease.{node}", self.prefix)
    }
}
