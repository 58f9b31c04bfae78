//! Errors that the server reports.

use serde::Deserialize;

/// Error reported by the server (RFC 9457, or the error of a session).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Problem {
    pub code: String,
    #[serde(default)]
    pub detail: String,
    /// True if the same request may succeed later.
    #[serde(default)]
    pub retry: bool,
    /// Code of the application's back end, if the back end refused.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Problem {
    /// Decodes the problem of an unsuccessful response. A response without problem details is classified by its
    /// status.
    pub fn of(status: u16, body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_else(|_| Self {
            code: format!("status {status}"),
            detail: String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned(),
            retry: matches!(status, 408 | 429 | 500..),
            reason: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_decoded_or_classified_by_status() {
        let body = br#"{"type":"urn:millrace:error:unavailable","title":"x","status":503,"detail":"drains","code":"unavailable","retry":true}"#;
        let problem = Problem::of(503, body);
        assert_eq!((problem.to_string().as_str(), problem.retry), ("unavailable: drains", true));
        assert!(Problem::of(502, b"<html>").retry);
        assert!(!Problem::of(404, b"").retry);
    }
}
