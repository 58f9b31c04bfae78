use std::time::{Duration, UNIX_EPOCH};

/// Formats rows as a table with aligned columns. Control characters are replaced, so that a name cannot control the
/// terminal.
pub fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let shown = |text: String| text.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    let rows: Vec<[String; N]> =
        std::iter::once(head.map(str::to_owned)).chain(rows).map(|row| row.map(shown)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Formats a number of bytes with three digits and a unit.
pub fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let steps = (count.max(1.0).log2() / 10.0) as usize;
    let step = steps.min(units.len() - 1);
    let number = count / 1024f64.powi(step as i32);
    let decimals = if step == 0 || number >= 100.0 { 0 } else { 1 };
    format!("{number:.decimals$} {}", units[step])
}

/// Formats a time in seconds since 1970.
pub fn time(seconds: u64) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) {
        Some(time) if seconds < 1 << 37 => humantime::format_rfc3339_seconds(time).to_string(),
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_control_characters_replaced() {
        let rows = [["a".to_owned(), "1".to_owned()], ["long/name".to_owned(), "\x1b[2J".to_owned()]];
        assert_eq!(table(["NAME", "N"], rows.into_iter()), "NAME       N\na          1\nlong/name  ?[2J\n");
    }

    #[test]
    fn bytes_have_a_unit() {
        assert_eq!([0.0, 900.0, 1536.0, 1e9, 1e20].map(bytes), ["0 B", "900 B", "1.5 KiB", "954 MiB", "90949470 TiB"]);
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(u64::MAX), "-");
    }
}
