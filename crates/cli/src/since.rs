//! Parses `--since` and `--until`: where a reader starts or ends.

use std::convert::Infallible;

use millrace_client::clock::now_ms;

/// A clap parser. Converts a duration such as `10m` to a time before now, by this machine's clock; the server parses
/// all other values.
pub fn since(text: &str) -> Result<String, Infallible> {
    // A position has a colon, a time in milliseconds has no unit.
    let is_duration =
        text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_alphabetic());
    Ok(match humantime::parse_duration(text).ok().filter(|_| is_duration) {
        Some(ago) => now_ms().saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)).to_string(),
        None => text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_means_time_ago() {
        for (text, ms) in [("10m", 600_000), ("1h 30s", 3_630_000), ("500ms", 500)] {
            let before = now_ms();
            let at: u64 = since(text).expect("a duration").parse().expect("milliseconds");
            assert!((before - ms..=now_ms() - ms).contains(&at), "{text}: {at}");
        }
        for text in
            ["5f0c12ab:57", "12345678:9", "now", "earliest", "1764000000000", "0", "2026-11-20T10:00:00Z", "yesterday"]
        {
            assert_eq!(since(text).as_deref(), Ok(text));
        }
        assert_eq!(since("9999y").as_deref(), Ok("0"), "before all that there is");
    }
}
