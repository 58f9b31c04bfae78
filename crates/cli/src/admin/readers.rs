//! `millrace admin slow`: the readers that lack most messages.

use clap::Args as ClapArgs;
use serde_json::Value;

use super::{
    Which,
    request::{To, report_missing, text},
    table::{bytes, table},
};
use crate::{number::number, output};

#[derive(ClapArgs)]
pub struct SlowArgs {
    #[command(flatten)]
    which: Which,
    /// A channel that the connection reads, by its name or by a pattern; or a pattern that it subscribes to
    #[arg(long)]
    channel: Option<String>,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::<usize, _>(1..=1000))]
    limit: usize,
    #[command(flatten)]
    to: To,
}

pub async fn slow(SlowArgs { which, channel, limit, to }: SlowArgs) -> anyhow::Result<()> {
    let (is_json, limit, filter) = (to.json, limit.to_string(), which.fields(channel));
    let filter = filter.iter().map(|(name, value)| (*name, value.as_deref()));
    let answer = to.connect()?.get("slow", filter.chain([("limit", Some(limit.as_str()))])).await?;
    let readers: Vec<&Value> = answer["readers"].as_array().into_iter().flatten().collect();
    if is_json {
        readers.iter().try_for_each(output::line)?;
    } else if !readers.is_empty() {
        let head = ["ID", "TRANSPORT", "SUBJECT", "CHANNEL", "BEHIND", "BYTES", "SINCE", "BLOCKED", "GAPS"];
        output::text(table(head, readers.iter().copied().map(row)))?;
    }
    report_missing(&answer);
    match (answer["total"].as_u64(), readers.len() as u64) {
        (_, 0) => output::note("no reader is behind, or none that matches"),
        (Some(total), shown) if total > shown => output::note(format_args!("{shown} of {total} slow readers")),
        _ => {}
    }
    Ok(())
}

fn row(reader: &Value) -> [String; 9] {
    let channel = match reader["channels"].as_u64() {
        Some(channels) if channels > 1 => format!("{} +{}", text(reader, "channel"), channels - 1),
        _ => text(reader, "channel"),
    };
    [
        text(reader, "id"),
        text(reader, "transport"),
        text(reader, "subject"),
        channel,
        text(reader, "behind"),
        bytes(reader["behind_bytes"].as_f64().unwrap_or(0.0)),
        format!("{} s", reader["since_ms"].as_u64().unwrap_or(0) / 1000),
        if reader["blocked"] == true { "yes" } else { "no" }.into(),
        text(reader, "gaps"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reader_of_several_channels_names_the_furthest() {
        let reader = json!({
            "id": "ab-0-1-2", "transport": "websocket", "channel": "cars/1", "channels": 3, "behind": 420,
            "behind_bytes": 40960, "since_ms": 7500, "blocked": true, "gaps": 0,
        });
        let expected = ["ab-0-1-2", "websocket", "-", "cars/1 +2", "420", "40.0 KiB", "7 s", "yes", "0"];
        assert_eq!(row(&reader), expected.map(str::to_owned));
    }
}
