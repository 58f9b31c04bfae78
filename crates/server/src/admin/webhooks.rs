use millrace_protocol::{Code, Error};
use millrace_transport::http::Query;
use millrace_webhooks::Webhooks;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Admin,
    nodes::{Gathered, NodeQuestion},
    requests::{decode, limit, no_parameters},
};

/// Maximum number of ids in one request.
const IDS_MAX: usize = 100;

/// Body of a replay: `{"ids": [..]}` or `{"all": true}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayBody {
    ids: Option<Vec<String>>,
    #[serde(default)]
    all: bool,
}

impl Admin {
    /// Errors: [`Code::NotFound`] if no webhooks are configured.
    pub fn configured_webhooks(&self) -> Result<&Webhooks, Error> {
        let none = || Error::new(Code::NotFound, "this server has no webhooks; `webhooks.url` sets their URL");
        self.webhooks.as_deref().ok_or_else(none)
    }

    /// Returns the state of the webhooks on each node.
    pub async fn webhooks_of_nodes(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        let Gathered { answers, missing, .. } = self.gather(&NodeQuestion::Webhooks {}).await?;
        let of_node = |(node, mut answer): (String, Value)| {
            answer["node"] = node.into();
            answer
        };
        let nodes: Vec<Value> = answers.into_iter().map(of_node).collect();
        Ok(Gathered::with_missing(missing, json!({ "nodes": nodes })))
    }

    /// Lists dead letters, oldest first.
    pub async fn dead_letters(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["after", "limit"], &[])?;
        self.configured_webhooks()?.dead_letters(query.get("after"), limit(&query)?).await
    }

    /// Sends dead letters again.
    pub async fn replay(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let body: ReplayBody = decode(body)?;
        let ids = match &body {
            ReplayBody { ids: None, all: true } => None,
            ReplayBody { ids: Some(ids), all: false } if ids.len() <= IDS_MAX => Some(ids.as_slice()),
            _ => {
                let detail = format!(
                    "name the dead letters: {{\"ids\": [..]}} with at most {IDS_MAX} ids, or {{\"all\": true}}"
                );
                return Err(Error::new(Code::BadRequest, detail));
            }
        };
        let count = self.configured_webhooks()?.replay(ids).await?;
        tracing::info!(count, "an operator replayed dead letters of the webhooks");
        Ok(json!({ "replayed": count }))
    }
}
