use millrace_protocol::{Code, Error};
use millrace_transport::http::Query;
use serde_json::{Value, json};

use super::Admin;

impl Admin {
    /// Shows the configuration of this node; with `sources=true` as a list with the source of each value.
    pub async fn show_config(&self, query: &str) -> Result<Value, Error> {
        let query = Query::parse_text(query, &["sources"], &[])?;
        match query.get("sources") {
            None | Some("false") => Ok(self.config.borrow().json()),
            Some("true") => Ok(json!({ "node": self.node, "settings": self.config.borrow().settings() })),
            Some(_) => Err(Error::new(Code::BadRequest, "`sources` is `true` or `false`")),
        }
    }
}
