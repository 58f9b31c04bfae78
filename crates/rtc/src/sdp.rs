//! Reading of session descriptions (SDP), and the reasons why one is rejected.

use str0m::RtcError;

use crate::{connection::ConnectionError, contain::contain};

/// Reason why an offer or an answer cannot be used. The text is always one of a few fixed sentences, because a
/// remote peer receives it.
#[derive(Debug, thiserror::Error)]
#[error("the {kind} cannot be used: {what}")]
pub struct BadOffer {
    kind: &'static str,
    what: &'static str,
}

impl BadOffer {
    pub fn new(what: &'static str) -> Self {
        Self { kind: "offer", what }
    }

    pub fn answer(what: &'static str) -> Self {
        Self { kind: "answer", what }
    }
}

/// Parses an SDP description with a parser of the library, without its candidates.
///
/// Errors: [`NO_DESCRIPTION`]. The library's own messages are not shown, because they quote the input and contain
/// memory addresses.
pub fn read<T, E>(description: &str, by: impl FnOnce(&str) -> Result<T, E>) -> Result<T, &'static str> {
    parse(&without_candidates(description), by)
}

/// Parses an SDP description with its candidates, which the end that makes an offer needs.
pub fn parse<T, E>(description: &str, by: impl FnOnce(&str) -> Result<T, E>) -> Result<T, &'static str> {
    contain(|| by(description).ok()).flatten().ok_or(NO_DESCRIPTION)
}

const NO_DESCRIPTION: &str = "expected SDP as browsers write it, with `a=mid` in each `m=` section";

/// Returns a fixed text for the reason why the library rejects a description that it could parse.
pub fn reason(error: &ConnectionError) -> &'static str {
    let ConnectionError::Failed(RtcError::RemoteSdp(what)) = error else { return "it does not fit this connection" };
    match &**what {
        "missing a=fingerprint" => "it has no `a=fingerprint`",
        "missing a=ice-ufrag/pwd" => "it has no `a=ice-ufrag` or no `a=ice-pwd`",
        "No m-lines in offer" => "it has no `m=` section",
        "Both peers being ICE-Lite not supported" => {
            "it has `a=ice-lite`, and so has this server: one end must be a full ICE agent"
        }
        _ => "its `m=` sections do not fit this connection",
    }
}

/// Removes the candidates from a description. An ICE-lite end answers every sender that knows its password, so it does
/// not need the candidates of the other end.
fn without_candidates(description: &str) -> String {
    let lines = description.lines().filter(|line| !line.starts_with("a=candidate:"));
    lines.flat_map(|line| [line, "\r\n"]).collect()
}
