use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;

/// Error codes that a client can receive, on every transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Code {
    BadRequest,
    BadChannel,
    BadPosition,
    BadJson,
    BadTicket,
    Unauthorized,
    Forbidden,
    /// The app's back end refused, through a hook.
    Refused,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    Timeout,
    AlreadySubscribed,
    NotSubscribed,
    Conflict,
    PreconditionFailed,
    TooLarge,
    Unsupported,
    TooMany,
    Congested,
    RateLimited,
    Internal,
    NotImplemented,
    Unavailable,
    /// The app's back end received a remote procedure call and did not answer it.
    NoAnswer,
}

/// Code, name on the wire, HTTP status, whether a later retry may succeed, and title.
pub const CODES: &[(Code, &str, u16, bool, &str)] = &[
    (Code::BadRequest, "bad_request", 400, false, "Bad request"),
    (Code::BadChannel, "bad_channel", 400, false, "Bad channel name"),
    (Code::BadPosition, "bad_position", 400, false, "Bad position"),
    (Code::BadJson, "bad_json", 400, false, "Malformed JSON or unknown command"),
    (Code::BadTicket, "bad_ticket", 400, false, "Bad resume ticket"),
    (Code::Unauthorized, "unauthorized", 401, false, "Missing or invalid token"),
    (Code::Forbidden, "forbidden", 403, false, "Forbidden"),
    (Code::Refused, "refused", 403, false, "Refused by the application"),
    (Code::NotFound, "not_found", 404, false, "Not found"),
    (Code::MethodNotAllowed, "method_not_allowed", 405, false, "Method not allowed"),
    (Code::NotAcceptable, "not_acceptable", 406, false, "Not acceptable"),
    (Code::Timeout, "timeout", 408, true, "Timeout"),
    (Code::AlreadySubscribed, "already_subscribed", 409, false, "Already subscribed"),
    (Code::NotSubscribed, "not_subscribed", 409, false, "Not subscribed"),
    (Code::Conflict, "conflict", 409, false, "Conflict"),
    (Code::PreconditionFailed, "precondition_failed", 412, false, "Precondition failed"),
    (Code::TooLarge, "too_large", 413, false, "Too large"),
    (Code::Unsupported, "unsupported", 415, false, "Unsupported content type"),
    (Code::TooMany, "too_many", 429, true, "Limit reached"),
    (Code::Congested, "congested", 429, true, "Too many publications are waiting"),
    (Code::RateLimited, "rate_limited", 429, true, "Rate limit exceeded"),
    (Code::Internal, "internal", 500, true, "Internal error"),
    (Code::NotImplemented, "not_implemented", 501, false, "Not implemented"),
    (Code::Unavailable, "unavailable", 503, true, "Unavailable"),
    (Code::NoAnswer, "no_answer", 504, false, "No answer from the application"),
];

impl Code {
    fn row(self) -> &'static (Code, &'static str, u16, bool, &'static str) {
        CODES.iter().find(|row| row.0 == self).expect("every code has a row, see the test below")
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub fn status(self) -> u16 {
        self.row().2
    }

    pub fn may_retry(self) -> bool {
        self.row().3
    }
}

/// Error for a client: a code and an explanation for the person who must act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub struct Error {
    pub code: Code,
    pub detail: String,
    /// Seconds until a retry may succeed, at least 1; `None` if unknown.
    pub retry_s: Option<u64>,
    /// Code of the app's back end, if the back end refused ([`Code::Refused`]).
    pub reason: Option<Box<str>>,
}

impl Error {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), retry_s: None, reason: None }
    }

    /// Creates the error of a refusal by the app's back end, with the back end's own code and text.
    pub fn refused(reason: Option<&str>, detail: impl Into<String>) -> Self {
        Self { reason: reason.map(Into::into), ..Self::new(Code::Refused, detail) }
    }

    /// Sets the time after which a retry may succeed.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_s = Some((wait.as_millis().div_ceil(1000) as u64).max(1));
        self
    }

    /// Returns the JSON object used in a session's reply or a batch's result: `{"code", "detail", "retry"}`,
    /// `"retry_s"` if it is known, and `"reason"` if the app's back end refused.
    pub fn to_json(&self) -> serde_json::Value {
        let mut error = json!({ "code": self.code.name(), "detail": self.detail, "retry": self.code.may_retry() });
        if let Some(retry_s) = self.retry_s {
            error["retry_s"] = retry_s.into();
        }
        self.with_reason(error)
    }

    /// Returns the HTTP body. Source: RFC 9457, section 3.
    pub fn to_problem(&self) -> serde_json::Value {
        let (_, name, status, retry, title) = self.code.row();
        self.with_reason(json!({
            "type": format!("urn:millrace:error:{name}"), "title": title, "status": status,
            "detail": self.detail, "code": name, "retry": retry,
        }))
    }

    fn with_reason(&self, mut error: serde_json::Value) -> serde_json::Value {
        if let Some(reason) = &self.reason {
            error["reason"] = (&**reason).into();
        }
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_row() {
        assert_eq!(CODES.len(), Code::NoAnswer as usize + 1);
        assert!(CODES.iter().enumerate().all(|(i, row)| row.0 as usize == i));
    }

    #[test]
    fn problem_contains_code_and_status() {
        let problem = Error::new(Code::BadPosition, "x").to_problem();
        assert_eq!(problem["status"], 400);
        assert_eq!(problem["type"], "urn:millrace:error:bad_position");
        assert_eq!(problem.get("reason"), None);
    }

    #[test]
    fn refusal_has_the_reason_of_the_back_end() {
        let refused = Error::refused(Some("no_credit"), "your credit is used up");
        let expected = json!({
            "code": "refused", "detail": "your credit is used up", "retry": false, "reason": "no_credit",
        });
        assert_eq!(refused.to_json(), expected);
        assert_eq!((&refused.to_problem()["reason"], refused.code.status()), (&json!("no_credit"), 403));
    }
}
