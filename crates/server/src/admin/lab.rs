use std::sync::Arc;

use millrace_protocol::{Code, Error};
use millrace_transport::http::Query;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Admin,
    requests::{decode, no_parameters},
};
use crate::lab::Lab;

/// Body of a request that names a report.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    id: String,
}

/// Body of a request without values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

impl Admin {
    /// Errors: `not_found` if the configuration allows no lab.
    fn lab(&self) -> Result<&Arc<Lab>, Error> {
        let detail = "the lab is off: it is on if the server is open and on loopback, or with lab.enabled = \"on\"";
        self.lab.as_ref().ok_or_else(|| Error::new(Code::NotFound, detail))
    }

    /// Returns the run in progress and the reports.
    pub async fn lab_status(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        self.lab()?.status().await
    }

    /// Lists scenarios and targets.
    pub async fn lab_scenarios(&self, query: &str) -> Result<Value, Error> {
        no_parameters(query)?;
        self.lab()?.catalogue().await
    }

    /// Returns the data of a report, or its HTML page.
    pub async fn lab_report(&self, query: &str) -> Result<Value, Error> {
        let (lab, query) = (self.lab()?, Query::parse_text(query, &["id", "form"], &[])?);
        let id = report_of(&query, "id")?;
        match query.get("form") {
            None | Some("data") => lab.report(id).await,
            Some("html") => lab.page(id).await,
            Some(_) => Err(Error::new(Code::BadRequest, "`form` is data or html")),
        }
    }

    /// Returns the events of a run.
    pub async fn lab_events(&self, query: &str) -> Result<Value, Error> {
        let (lab, query) = (self.lab()?, Query::parse_text(query, &["id"], &[])?);
        lab.events(report_of(&query, "id")?).await
    }

    /// Compares two reports.
    pub async fn lab_compare(&self, query: &str) -> Result<Value, Error> {
        let (lab, query) = (self.lab()?, Query::parse_text(query, &["a", "b"], &[])?);
        lab.compare(report_of(&query, "a")?, report_of(&query, "b")?).await
    }

    /// Starts a run.
    pub async fn lab_start(&self, body: Map<String, Value>) -> Result<Value, Error> {
        self.lab()?.start(decode(body)?).await
    }

    /// Stops the run in progress.
    pub async fn lab_stop(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let (lab, Empty {}) = (self.lab()?, decode(body)?);
        lab.stop()
    }

    /// Deletes a report.
    pub async fn lab_delete(&self, body: Map<String, Value>) -> Result<Value, Error> {
        let (lab, Named { id }) = (self.lab()?, decode(body)?);
        lab.delete(&id).await
    }
}

fn report_of<'a>(query: &'a Query<'_>, name: &str) -> Result<&'a str, Error> {
    query.get(name).ok_or_else(|| Error::new(Code::BadRequest, format!("`{name}` is missing: the id of a report")))
}
