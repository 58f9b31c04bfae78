//! Flags of all operator requests, and their answers: lists page by page, and counts of changes.

use clap::Args as ClapArgs;
use millrace_client::{operator::Operator, server::Server};
use serde_json::{Map, Value};

use crate::{login::Login, number::number, output, trust::Trust};

/// Flags of every command.
#[derive(ClapArgs)]
pub struct To {
    /// URL of the server or of its admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = Server::parse)]
    pub to: Server,
    /// Print JSON instead of text for people
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    login: Login,
    #[command(flatten)]
    trust: Trust,
}

impl To {
    /// Errors: an unusable certificate authority or token.
    pub fn connect(self) -> anyhow::Result<Operator> {
        self.trust.decide()?;
        Ok(Operator::new(self.to.with_token(self.login.token()?))?)
    }
}

/// Flags of lists.
#[derive(ClapArgs)]
pub struct Pages {
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::<usize, _>(1..=1000))]
    pub limit: usize,
    /// Start after this row: the last channel, or the last id, of an earlier list
    #[arg(long, value_name = "ROW")]
    pub after: Option<String>,
    /// Print all rows, page by page
    #[arg(long)]
    pub all: bool,
}

/// Lists what `path` returns in the field `name`, one page or all. `key` is the field of a row that begins the next
/// page.
pub async fn list(
    to: To,
    path: &str,
    name: &str,
    key: &str,
    filter: Vec<(&'static str, Option<String>)>,
    Pages { limit, mut after, all }: Pages,
    print: impl Fn(&[Value]) -> String,
) -> anyhow::Result<()> {
    let (is_json, limit) = (to.json, limit.to_string());
    let operator = to.connect()?;
    loop {
        let filter = filter.iter().map(|(name, value)| (*name, value.as_deref()));
        let parameters = filter.chain([("limit", Some(limit.as_str())), ("after", after.as_deref())]);
        let mut answer = operator.get(path, parameters).await?;
        let Value::Array(rows) = answer[name].take() else { anyhow::bail!("unexpected response: no `{name}`") };
        let has_more = answer["more"] == true;
        if is_json {
            rows.iter().try_for_each(output::line)?;
        } else if !rows.is_empty() {
            output::text(print(&rows))?;
        }
        report_missing(&answer);
        let last = rows.last().and_then(|row| row[key].as_str()).map(str::to_owned);
        match last {
            None if rows.is_empty() && !has_more => output::note(format_args!("no {name} match")),
            Some(last) if has_more && all => {
                after = Some(last);
                continue;
            }
            Some(last) if has_more => {
                output::note(format_args!("there are more: add --all, or --after {last}"));
            }
            _ => {}
        }
        return Ok(());
    }
}

/// Sends a change and prints the count in the field `count` of the answer, followed by `done` for one or for several.
pub async fn change(
    to: To,
    name: &str,
    body: Map<String, Value>,
    count: &str,
    [one, several]: [&str; 2],
) -> anyhow::Result<()> {
    anyhow::ensure!(!body.is_empty(), "name the connections, for example with --subject");
    let is_json = to.json;
    let answer = to.connect()?.post(name, &Value::Object(body)).await?;
    report_missing(&answer);
    match answer.get(count) {
        _ if is_json => output::line(&answer)?,
        Some(count) => output::line(format_args!("{count} {}", if *count == 1 { one } else { several }))?,
        None => output::line(one)?,
    }
    Ok(())
}

pub fn report_missing(answer: &Value) {
    let missing: Vec<&str> = answer["missing"].as_array().into_iter().flatten().flat_map(Value::as_str).collect();
    if !missing.is_empty() {
        output::note(format_args!("these nodes have not answered, so the result lacks them: {}", missing.join(", ")));
    }
}

pub fn text(row: &Value, field: &str) -> String {
    match &row[field] {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
