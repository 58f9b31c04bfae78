//! The OpenAPI document, compared with the code and with a running server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use millrace_protocol::CODES;
use millrace_server::{
    auth::SigningKey,
    config::Secret,
    openapi::{DOCUMENT, endpoints},
};
use serde_json::{Map, Value, json};

use crate::server::{Answer, Server, client, within};

const SECRET: &str = "a secret of thirty-two bytes or more";
const METHODS: [&str; 6] = ["get", "head", "post", "patch", "delete", "options"];
/// Crates with endpoints, as folders beside the crate of this test.
const CRATES: [&str; 8] = ["transport", "conference", "carcare", "ingest", "push", "requests", "race", "server"];

fn document() -> Value {
    serde_json::from_str(DOCUMENT).expect("valid JSON")
}

/// Returns the value that a JSON pointer such as `#/components/schemas/Page` names.
fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(pointer) => document.pointer(&pointer[1..]).unwrap_or_else(|| panic!("{pointer} names nothing")),
        None => value,
    }
}

/// Returns all operations with their paths and methods.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths").iter();
    paths
        .flat_map(|(path, item)| {
            let operations = item.as_object().expect("a path item").iter();
            operations
                .filter(|(name, _)| *name != "parameters")
                .map(|(method, operation)| (path.as_str(), method.as_str(), operation))
        })
        .collect()
}

#[test]
fn document_has_every_endpoint_and_method_and_nothing_else() {
    let document = document();
    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, method, _) in operations(&document) {
        assert!(METHODS.contains(&method), "{method} {path}");
        documented.entry(path.to_owned()).or_default().insert(method.to_uppercase());
    }
    let in_code: BTreeMap<String, BTreeSet<String>> = endpoints()
        .map(|endpoint| (endpoint.path.to_owned(), endpoint.methods().map(str::to_owned).collect()))
        .collect();
    assert_eq!(documented, in_code);
    assert_eq!(in_code.len(), endpoints().count(), "each path once");
}

/// A route is recognized by its endpoint only, and every endpoint is in the list that the document is compared with.
#[test]
fn paths_of_routes_occur_in_endpoints_only() {
    let mut defined = 0;
    for name in CRATES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        for (file, source) in sources(&folder) {
            let code = source.split("#[cfg(test)]").next().expect("a first part");
            for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                defined += line.matches("Endpoint::new(\"/").count();
                let is_allowed = line.contains("Endpoint::new(") || line.contains("const ");
                let is_path = ["\"/v1/", "\"/rest/", "\"/admin/"].iter().any(|start| line.contains(start));
                assert!(is_allowed || !is_path || is_exempt(line), "{file}: a path beside its endpoint: {line}");
            }
        }
    }
    assert_eq!(defined, endpoints().count(), "an endpoint is missing in the list of its crate");
}

/// Returns true for lines that parse paths with several parameters or make URLs: a unit test beside them compares them
/// with their endpoints.
fn is_exempt(line: &str) -> bool {
    line.contains("strip_prefix(\"/v1/rooms/\")") || line.contains("format!(") || line.contains("starts_with(\"/v1/\")")
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).expect("a source")));
        }
    }
    found
}

#[test]
fn document_is_complete_and_its_error_codes_exist() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let listed = document.pointer("/components/schemas/Code/enum").and_then(Value::as_array).expect("codes");
    assert_eq!(
        listed.iter().flat_map(Value::as_str).collect::<Vec<_>>(),
        CODES.iter().map(|row| row.1).collect::<Vec<_>>()
    );
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().flat_map(|tag| tag["name"].as_str()).collect();
    let (mut ids, mut used) = (BTreeSet::new(), BTreeSet::new());
    for (path, method, operation) in operations(&document) {
        let name = format!("{method} {path}");
        let id = operation["operationId"].as_str().expect("an id");
        assert!(ids.insert(id.to_owned()), "{name}: the id {id} is used twice");
        assert!(operation["summary"].as_str().is_some_and(|summary| summary.len() > 5), "{name}");
        assert!(
            operation["tags"].as_array().is_some_and(|of| of.iter().all(|tag| tags.contains(tag.as_str().unwrap()))),
            "{name}"
        );
        let codes = operation["x-codes"].as_array().expect("codes").iter().map(|code| {
            let row = CODES.iter().find(|row| Some(row.1) == code.as_str());
            row.unwrap_or_else(|| panic!("{name}: no error has the code {code}"))
        });
        let statuses: BTreeSet<String> = codes.map(|row| row.2.to_string()).collect();
        let responses = operation["responses"].as_object().expect("responses");
        let errors: BTreeSet<String> = responses
            .iter()
            .filter(|(_, response)| response["$ref"].is_string())
            .map(|(status, _)| status.clone())
            .collect();
        assert_eq!(statuses, errors, "{name}: the statuses of its codes");
        used.extend(statuses);
        let parameters = document["paths"][path]["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.chain(operation["parameters"].as_array().into_iter().flatten());
        let parameters: Vec<&Value> = parameters.map(|parameter| resolve(&document, parameter)).collect();
        let in_path: BTreeSet<&str> =
            parameters.iter().filter(|parameter| parameter["in"] == "path").flat_map(|p| p["name"].as_str()).collect();
        let in_template: BTreeSet<&str> =
            path.split('/').filter_map(|level| level.strip_prefix('{')?.strip_suffix('}')).collect();
        assert_eq!(in_path, in_template, "{name}");
    }
    let named = document.pointer("/components/responses").and_then(Value::as_object).expect("responses");
    assert_eq!(used, named.keys().cloned().collect::<BTreeSet<_>>(), "responses that no operation uses");
    check_refs(&document, &document);
}

/// Checks that every reference has a target.
fn check_refs(document: &Value, value: &Value) {
    match value {
        Value::Object(object) => {
            resolve(document, value);
            object.values().for_each(|value| check_refs(document, value));
        }
        Value::Array(items) => items.iter().for_each(|value| check_refs(document, value)),
        _ => {}
    }
}

#[test]
fn examples_match_their_schemas() {
    let document = document();
    let mut examples = 0;
    let mut check = |name: &str, content: &Value| {
        for media in content.as_object().into_iter().flat_map(Map::values) {
            if let Some(example) = media.get("example") {
                examples += 1;
                validate(&document, &media["schema"], example).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    };
    for (path, method, operation) in operations(&document) {
        let name = format!("{method} {path}");
        check(&name, &operation["requestBody"]["content"]);
        for response in operation["responses"].as_object().expect("responses").values() {
            check(&name, &resolve(&document, response)["content"]);
        }
    }
    for (name, parameter) in document["components"]["parameters"].as_object().expect("parameters") {
        if let Some(example) = parameter.get("example") {
            validate(&document, &parameter["schema"], example).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    assert!(examples > 25, "{examples}");
    let filter = document.pointer("/components/schemas/Filter").expect("a schema");
    for bad in
        [json!({}), json!({ "subject": 5 }), json!({ "subjekt": "ann" }), json!({ "transport": "pigeon" }), json!([])]
    {
        assert!(validate(&document, filter, &bad).is_err(), "the check finds errors: {bad}");
    }
}

/// Validates a value against the part of JSON Schema that the document uses. A keyword that is not supported is an
/// error, so that no schema is checked less than it says.
fn validate(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{value} {what}"));
    let schema = resolve(document, schema);
    let keywords = schema.as_object().ok_or_else(|| format!("{schema} is no schema"))?;
    for (keyword, rule) in keywords {
        match keyword.as_str() {
            "description" | "default" | "pattern" => {}
            "type" => {
                let is_type = match rule.as_str() {
                    Some("object") => value.is_object(),
                    Some("array") => value.is_array(),
                    Some("string") => value.is_string(),
                    Some("boolean") => value.is_boolean(),
                    Some("integer") => value.is_u64() || value.is_i64(),
                    Some("number") => value.is_number(),
                    _ => return Err(format!("the type {rule} is not supported")),
                };
                if !is_type {
                    return wrong(format!("is no {rule}"));
                }
            }
            "enum" if !rule.as_array().expect("a list").contains(value) => return wrong(format!("is none of {rule}")),
            "const" if rule != value => return wrong(format!("is not {rule}")),
            "enum" | "const" => {}
            "required" => {
                let missing = rule
                    .as_array()
                    .expect("a list")
                    .iter()
                    .find(|name| value.get(name.as_str().expect("a name")).is_none());
                if let Some(missing) = missing {
                    return wrong(format!("lacks {missing}"));
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().expect("an object") {
                    if let Some(value) = value.get(name) {
                        validate(document, schema, value)?;
                    }
                }
            }
            "additionalProperties" => {
                let known = keywords.get("properties").and_then(Value::as_object);
                for (name, value) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.contains_key(name)) {
                        continue;
                    }
                    match rule {
                        Value::Bool(false) => return wrong(format!("has the unknown field {name}")),
                        rule => validate(document, rule, value)?,
                    }
                }
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| validate(document, rule, item))?,
            "oneOf" => {
                let fits =
                    rule.as_array().expect("a list").iter().filter(|schema| validate(document, schema, value).is_ok());
                if fits.count() != 1 {
                    return wrong("does not match exactly one schema".into());
                }
            }
            "minimum" if value.as_f64() < rule.as_f64() => return wrong(format!("is below {rule}")),
            "maximum" if value.as_f64() > rule.as_f64() => return wrong(format!("is above {rule}")),
            "minimum" | "maximum" => {}
            "exclusiveMinimum" if value.as_f64() <= rule.as_f64() => return wrong(format!("is not above {rule}")),
            "exclusiveMinimum" => {}
            "minProperties"
                if value.as_object().is_some_and(|object| (object.len() as u64) < rule.as_u64().expect("a number")) =>
            {
                return wrong(format!("has fewer than {rule} fields"));
            }
            "minProperties" => {}
            "minItems" | "maxItems" => {
                let length = value.as_array().map_or(0, Vec::len) as u64;
                let is_good = if keyword == "minItems" {
                    length >= rule.as_u64().expect("a number")
                } else {
                    length <= rule.as_u64().expect("a number")
                };
                if !is_good {
                    return wrong(format!("has {length} items, against {keyword}"));
                }
            }
            "minLength" | "maxLength" => {
                let length = value.as_str().map_or(0, str::len) as u64;
                let is_good = if keyword == "minLength" {
                    length >= rule.as_u64().expect("a number")
                } else {
                    length <= rule.as_u64().expect("a number")
                };
                if !is_good {
                    return wrong(format!("has {length} bytes, against {keyword}"));
                }
            }
            other => return Err(format!("the keyword {other} is not supported")),
        }
    }
    Ok(())
}

/// Returns a path of the document with values for its parameters.
fn example_path(path: &str) -> String {
    let level = |level: &str| if level.starts_with('{') { "1".to_owned() } else { level.to_owned() };
    path.split('/').map(level).collect::<Vec<_>>().join("/")
}

fn start() -> (Server, String) {
    let server = Server::with(|config| {
        config.auth.secret = Secret::from(SECRET);
        config.server.public_metrics = true;
        config.ingest.enabled = millrace_ingest::Mode::On;
        config.namespaces.entry("fleet".into()).or_default().state = Some(true);
    });
    let claims = json!({ "sub": "operator", "exp": now_s() + 60, "millrace": {
        "admin": true, "subscribe": ["#"], "publish": ["#"], "presence": ["#"], "history": ["#"],
    } });
    let token = SigningKey::parse(SECRET.as_bytes()).expect("a key").sign(&claims, None).expect("a token");
    (server, token)
}

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs()
}

#[tokio::test]
async fn server_allows_the_documented_methods_only() {
    let (server, token) = start();
    let http = client(false);
    // These two exist only with settings that this server does not have.
    for endpoint in endpoints().filter(|endpoint| !["/ca.crt", "/mqtt"].contains(&endpoint.path)) {
        let url = server.url(&example_path(endpoint.path));
        let request = http.request("BREW".parse().expect("a method"), &url).bearer_auth(&token);
        let answer = Answer::read(within(request.send()).await.expect("an answer")).await;
        assert_eq!(answer.status, 405, "{}: {}", endpoint.path, answer.text());
        assert_eq!(answer.header("allow"), endpoint.allow, "{}", endpoint.path);
    }
}

/// The answers of a real server match the schemas of the document.
#[tokio::test]
async fn answers_of_the_server_match_the_document() {
    let (server, token) = start();
    let document = document();
    let served = server.get("/openapi.json").await;
    assert_eq!((served.header("content-type"), served.json()), ("application/json", document.clone()));
    let http = client(false);
    let ask = async |method: &str, path: &str, body: Option<Value>| {
        let mut request =
            http.request(method.to_uppercase().parse().expect("a method"), server.url(path)).bearer_auth(&token);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        Answer::read(within(request.send()).await.expect("an answer")).await
    };
    let position = ask("post", "/v1/channels/cars/1", Some(json!({ "speed": 72 }))).await.json()["position"].clone();
    assert!(position.is_string());
    let stream = http.get(server.url("/v1/channels/cars/1")).header("accept", "text/event-stream").bearer_auth(&token);
    let _stream = within(stream.send()).await.expect("a stream");
    let car = http.post(server.url("/v1/channels/fleet/all")).header("millrace-key", "car-7").bearer_auth(&token);
    let car = Answer::read(within(car.body("{\"speed\": 72}").send()).await.expect("an answer")).await;
    assert_eq!(car.status, 200, "{}", car.text());
    let mut checked = 0;
    for (path, url) in [
        ("/v1/channels/{channel}", "/v1/channels/cars/1?since=earliest"),
        ("/v1/channels/{channel}", "/v1/channels/fleet/all?state"),
        ("/v1/channels/{channel}", "/v1/channels/fleet/all?since=state"),
        ("/v1/stream", "/v1/stream?channel=cars/1&since=earliest"),
        ("/v1/presence/{channel}", "/v1/presence/cars/1"),
        ("/v1/rooms/{room}", "/v1/rooms/kitchen"),
        ("/v1/admin/channels", "/v1/admin/channels"),
        ("/v1/admin/connections", "/v1/admin/connections"),
        ("/v1/admin/connections", "/v1/admin/connections?sort=behind"),
        ("/v1/admin/channel", "/v1/admin/channel?channel=cars/1"),
        ("/v1/admin/channel", "/v1/admin/channel?channel=fleet/all"),
        ("/v1/admin/tail", "/v1/admin/tail?channel=cars/1"),
        ("/v1/admin/page", "/v1/admin/page?channel=cars/1"),
        ("/v1/admin/slow", "/v1/admin/slow?transport=sse&channel=cars/1"),
        ("/v1/admin/rooms", "/v1/admin/rooms"),
        ("/v1/admin/rooms", "/v1/admin/rooms?contains=kit&sort=participants"),
        ("/v1/admin/hooks", "/v1/admin/hooks"),
        ("/v1/admin/config", "/v1/admin/config"),
        ("/v1/admin/config", "/v1/admin/config?sources=true"),
        ("/v1/info", "/v1/info"),
        ("/openapi.json", "/openapi.json"),
    ] {
        let answer = ask("get", url, None).await;
        assert_eq!(answer.status, 200, "{url}: {}", answer.text());
        let schema = &document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        validate(&document, schema, &answer.json()).unwrap_or_else(|error| panic!("{url}: {error}"));
        checked += 1;
    }
    let deleted = ask("delete", "/v1/channels/fleet/all?key=car-7", None).await;
    let schema = document.pointer("/components/schemas/Published").expect("a schema");
    validate(&document, schema, &deleted.json()).unwrap_or_else(|error| panic!("a deletion: {error}"));
    let changes = ask("get", "/v1/channels/fleet/all?since=earliest", None).await.json();
    let schema = document.pointer("/components/schemas/Page").expect("a schema");
    validate(&document, schema, &changes).unwrap_or_else(|error| panic!("deletions in history: {error}"));
    assert_eq!(changes["messages"][1]["deleted"], true, "{changes}");
    for (path, method, operation) in operations(&document) {
        // A request with the example of its body is accepted, or refused for the reason of a documented code.
        let Some(example) = operation["requestBody"]["content"]["application/json"].get("example") else { continue };
        let answer = ask(method, &example_path(path), Some(example.clone())).await;
        let status = answer.status.as_u16().to_string();
        let response = &operation["responses"][&status];
        assert!(!response.is_null(), "{method} {path}: {status} {}", answer.text());
        let content = &resolve(&document, response)["content"];
        let media = answer.headers.get("content-type").map(|media| media.to_str().unwrap());
        if let Some(media) = media {
            validate(&document, &content[media]["schema"], &answer.json())
                .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        }
        if answer.status.is_client_error() {
            let code = answer.json()["code"].clone();
            assert!(operation["x-codes"].as_array().unwrap().contains(&code), "{method} {path}: {code}");
        }
        checked += 1;
    }
    assert!(checked > 18, "{checked}");
}
