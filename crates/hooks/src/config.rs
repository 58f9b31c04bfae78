use std::{collections::BTreeMap, time::Duration};

use http::HeaderName;
use serde::{Deserialize, Serialize};

use crate::{HookUrl, circuit_breaker::BreakerConfig, signature::Signer};

/// Decision of Millrace itself while the back end does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// The client is refused, and may try again.
    #[default]
    Refuse,
    /// Only the permissions of the token count.
    Allow,
}

/// Settings of all hooks.
#[derive(Clone, Debug)]
pub struct Config {
    pub signer: Signer,
    pub connect: Option<HookUrl>,
    /// Hooks of the channels and methods of all namespaces without settings of their own.
    pub all: NamespaceHooks,
    /// Complete settings per namespace.
    pub namespaces: BTreeMap<String, NamespaceHooks>,
    /// Time limit of a question.
    pub timeout: Duration,
    /// Maximum number of questions in progress, per hook and URL.
    pub concurrency: usize,
    pub answer_bytes_max: usize,
    /// Maximum number of answers that are kept for reuse.
    pub cached_max: usize,
    pub breaker: BreakerConfig,
    /// Request headers that `connect` forwards.
    pub headers: Vec<HeaderName>,
    /// Passes tokens that are neither JWT nor API key to `connect`.
    pub opaque_tokens: bool,
    /// Certificates (PEM) to trust in addition to those of the system.
    pub authorities: Vec<u8>,
}

/// Hooks of the channels and methods of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceHooks {
    pub subscribe: Option<HookUrl>,
    pub publish: Option<HookUrl>,
    pub rpc: Option<HookUrl>,
    pub on_failure: OnFailure,
}
