use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use millrace_protocol::{Code, Error};
use millrace_transport::{
    Context, Routes,
    admin::BODY_BYTES_MAX,
    admission::read_body,
    http::{Response, problem, text},
    route::{Answering, plain},
};
use serde_json::Value;

use super::{
    Admin, Jobs,
    endpoints::{FOLDER, find},
    requests::Request,
};

/// Another name of [`FOLDER`] on the admin listener.
const SHORT_FOLDER: &str = "/admin/";

/// Operator requests on the client port.
pub struct AdminRoutes(pub Jobs);

impl Routes for AdminRoutes {
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        let path = parts.uri.path();
        path.starts_with(FOLDER).then(|| -> Answering<'a> {
            Box::pin(async move {
                context.admission.check_operator(parts).await?;
                let asked = find(path)?;
                if asked.endpoint.allow != parts.method.as_str() {
                    return Ok(plain(asked.endpoint.refuse_method()));
                }
                let body = read_body(&context.admission, &parts.headers, body, BODY_BYTES_MAX).await?;
                let query = parts.uri.query().unwrap_or_default().to_owned();
                let answer = self.0.ask(Request { asked, query, body }).await?;
                context.admission.charge(json_response(&answer)).map(plain)
            })
        })
    }
}

impl Admin {
    /// Answers a request on the admin listener.
    pub async fn answer(self: &Rc<Self>, parts: Parts, body: Bytes) -> Response {
        self.route(&parts, body).await.unwrap_or_else(|error| problem(&error))
    }

    async fn route(self: &Rc<Self>, parts: &Parts, body: Bytes) -> Result<Response, Error> {
        if !self.is_authorized(parts) {
            let detail = "send `admin.token` as `Authorization: Bearer TOKEN`";
            return Err(Error::new(Code::Unauthorized, detail));
        }
        let path = parts.uri.path();
        let path = match path.strip_prefix(SHORT_FOLDER) {
            Some(name) => format!("{FOLDER}{name}"),
            None => path.to_owned(),
        };
        match (&parts.method, path.as_str()) {
            (&Method::GET, "/healthz") => return Ok(text(StatusCode::OK, "text/plain", "alive\n")),
            (&Method::GET, "/metrics") => return Ok(self.site.metrics()),
            (&Method::GET, "/readyz") => return Ok(self.site.readiness()),
            _ => {}
        }
        let asked = find(&path)?;
        if asked.endpoint.allow != parts.method.as_str() {
            return Ok(asked.endpoint.refuse_method());
        }
        let query = parts.uri.query().unwrap_or_default().to_owned();
        Ok(json_response(&self.handle(Request { asked, query, body }).await?))
    }

    fn is_authorized(&self, parts: &Parts) -> bool {
        let sent = parts.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        sent.and_then(|value| value.strip_prefix(b"Bearer ")).is_some_and(|sent| self.token.is_valid(sent))
    }
}

fn json_response(value: &Value) -> Response {
    let mut response = text(StatusCode::OK, "application/json", value.to_string());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
