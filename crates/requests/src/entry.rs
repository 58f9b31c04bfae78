//! An entry of the keyed state `requests/{device}`, and which changes of its state are possible.

use std::time::Duration;

use millrace_protocol::{Code, Error};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Time for which an answered request stays in the state.
pub const ANSWER_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// State of a request.
///
/// ```text
///   queued ──► sent ──► answered
///     │ └────────┼────────►│
///     └──► expired ◄──┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The request waits for its device.
    Queued,
    /// The device has confirmed that it received the request.
    Sent,
    /// The device has answered.
    Answered,
    /// The time to live ended before the device answered.
    Expired,
}

/// A request with its state. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    pub state: State,
    /// A device that publishes its answer itself may leave out the request.
    pub request: Option<Box<RawValue>>,
    #[serde(default)]
    pub asked_ms: u64,
    #[serde(default)]
    pub expires_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_ms: Option<u64>,
}

/// A change that a device asks for.
#[derive(Clone, Debug)]
pub enum Change {
    Sent,
    Answer(Box<RawValue>),
}

impl Entry {
    pub fn new(id: String, request: Box<RawValue>, now_ms: u64, ttl: Duration) -> Self {
        let expires_ms = now_ms + ttl.as_millis() as u64;
        Self {
            id,
            state: State::Queued,
            request: Some(request),
            asked_ms: now_ms,
            expires_ms,
            answer: None,
            answered_ms: None,
        }
    }

    /// Returns the entry as it is now: a request whose time has ended is expired, also before its key is deleted.
    pub fn at(mut self, now_ms: u64) -> Self {
        if matches!(self.state, State::Queued | State::Sent) && now_ms >= self.expires_ms {
            self.state = State::Expired;
        }
        self
    }

    /// Returns true if the device has to do something.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Queued | State::Sent)
    }

    /// Applies a change. Returns false if the entry is already as asked, so that a repeated change is no error.
    ///
    /// Errors: `conflict` if the request has expired, or has another answer.
    pub fn apply(&mut self, change: Change, now_ms: u64) -> Result<bool, Error> {
        match (self.state, change) {
            (State::Queued, Change::Sent) => self.state = State::Sent,
            (State::Sent | State::Answered, Change::Sent) => return Ok(false),
            (State::Queued | State::Sent, Change::Answer(answer)) => {
                (self.state, self.answer, self.answered_ms) = (State::Answered, Some(answer), Some(now_ms));
            }
            (State::Answered, Change::Answer(answer))
                if self.answer.as_ref().is_some_and(|known| known.get() == answer.get()) =>
            {
                return Ok(false);
            }
            (State::Answered, Change::Answer(_)) => {
                return Err(Error::new(Code::Conflict, "the request has another answer already; it stays"));
            }
            (State::Expired, _) => {
                return Err(Error::new(Code::Conflict, "the request has expired; its sender no longer waits"));
            }
        }
        Ok(true)
    }

    /// Returns the time after which the engine deletes the entry, in milliseconds from now.
    pub fn ttl_ms(&self, now_ms: u64) -> u64 {
        match self.state {
            State::Answered => ANSWER_KEPT.as_millis() as u64,
            _ => self.expires_ms.saturating_sub(now_ms).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.into()).expect("JSON")
    }

    #[test]
    fn changes_lead_to_an_answer_or_expire() {
        let queued = || Entry::new("a".into(), raw("1"), 1000, Duration::from_secs(60));
        let mut entry = queued();
        assert!(entry.apply(Change::Sent, 2000).expect("possible") && entry.state == State::Sent);
        assert!(!entry.apply(Change::Sent, 2000).expect("a repeated change"));
        assert!(entry.apply(Change::Answer(raw("2")), 3000).expect("possible") && !entry.is_open());
        assert_eq!((entry.answered_ms, entry.ttl_ms(3000)), (Some(3000), 86_400_000));
        assert!(!entry.apply(Change::Answer(raw("2")), 4000).expect("a repeated answer"));
        assert_eq!(entry.apply(Change::Answer(raw("3")), 4000).map_err(|error| error.code), Err(Code::Conflict));
        // An answer outlives the time to live of its request.
        assert_eq!(entry.at(90_000).state, State::Answered);

        let mut entry = queued();
        assert!(entry.apply(Change::Answer(raw("2")), 2000).expect("an answer needs no confirmation"));
        let mut expired = queued().at(61_000);
        assert_eq!(expired.state, State::Expired);
        assert_eq!(expired.apply(Change::Sent, 61_000).map_err(|error| error.code), Err(Code::Conflict));
        assert_eq!((queued().at(60_999).state, queued().ttl_ms(60_000)), (State::Queued, 1000));
    }
}
