//! A run as a page that anyone can open: one file, nothing loaded, nobody asked; with what the theses printed beside it.

pub mod live;
pub mod published;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::Serialize;

use crate::{
    analysis::{Analysis, Metric, MetricInfo, compare::Outcome},
    recording::Recording,
};

use published::Published;

/// The built page, with a place for the data. Empty when the pages have not been built.
#[derive(rust_embed::RustEmbed)]
#[folder = "../../web/single/"]
#[allow_missing = true]
struct Built;

/// Where data goes in the page.
const PLACE: &str = r#"<script type="application/json" id="analysis"></script>"#;

#[derive(Serialize)]
struct Report<'a> {
    analysis: &'a Analysis,
    published: Published,
}

/// Writes `analysis.json` and `report.html` into a folder of results; the path of the page.
///
/// Errors: the folder cannot be written to, or this program was built without its pages. `analysis.json` is there in the second case.
pub fn write(folder: &Path, analysis: &Analysis) -> anyhow::Result<PathBuf> {
    let json = folder.join("analysis.json");
    let text = serde_json::to_string(analysis)?;
    fs::write(&json, text + "\n").with_context(|| format!("cannot write {}", json.display()))?;
    let published = published::of(&analysis.head.scenario);
    let page = page(&Report { analysis, published })?;
    let file = folder.join("report.html");
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Two recordings and what came out when they were compared.
#[derive(Serialize)]
struct Compared<'a> {
    a: Side<'a>,
    b: Side<'a>,
    metrics: Vec<MetricInfo>,
    outcome: &'a Outcome,
}

#[derive(Serialize)]
struct Side<'a> {
    /// What the user calls it, such as its folder.
    label: &'a str,
    scenario: &'a str,
    started: &'a str,
    runs: usize,
}

impl<'a> Side<'a> {
    fn of(label: &'a str, recording: &'a Recording) -> Side<'a> {
        Side { label, scenario: &recording.scenario, started: &recording.started, runs: recording.runs.len() }
    }
}

/// Writes a comparison as a page. `labels` are what the user calls A and B.
///
/// Errors: the file cannot be written, or this program was built without its pages.
pub fn write_comparison(
    file: &Path,
    labels: [&str; 2],
    [a, b]: [&Recording; 2],
    outcome: &Outcome,
) -> anyhow::Result<()> {
    let metrics = Metric::ALL.into_iter().filter(|metric| outcome.rows.iter().any(|row| row.metric == *metric));
    let metrics = metrics.map(Metric::info).collect();
    let page = page(&Compared { a: Side::of(labels[0], a), b: Side::of(labels[1], b), metrics, outcome })?;
    fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
}

/// The page with data in it.
fn page(data: &impl Serialize) -> anyhow::Result<String> {
    let built = Built::get("report.html").context(
        "this program was built without the page of reports: `make web` builds it, then build the program again (`make build` does both)",
    )?;
    let page = std::str::from_utf8(&built.data).context("the page of reports is no text")?;
    fill(page, &serde_json::to_string(data)?)
}

/// Puts JSON where the page has its place for it. No `<` is left in it, so nothing can end the script or begin a comment.
fn fill(page: &str, json: &str) -> anyhow::Result<String> {
    let (before, after) = page.split_once(PLACE).context("the page of reports has no place for data")?;
    let (open, close) = PLACE.split_at(PLACE.len() - "</script>".len());
    Ok([before, open, &json.replace('<', "\\u003c"), close, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_script() {
        let json = serde_json::to_string("</script><!--<script>& \u{2028}").unwrap();
        let page = fill(&format!("<body>{PLACE}</body>"), &json).unwrap();
        let inside = page.strip_prefix(r#"<body><script type="application/json" id="analysis">"#).unwrap();
        let inside = inside.strip_suffix("</script></body>").unwrap();
        assert!(!inside.contains('<'), "{inside}");
        assert_eq!(serde_json::from_str::<String>(inside).unwrap(), "</script><!--<script>& \u{2028}");
        assert!(fill("<body></body>", &json).is_err());
    }

    /// Fails when the page and this module no longer agree; without a built page there is nothing to agree with.
    #[test]
    fn the_built_page_has_a_place_for_data() {
        let Some(built) = Built::get("report.html") else {
            assert!(page(&"").unwrap_err().to_string().contains("make web"));
            eprintln!("SKIPPED: the pages have not been built (make web)");
            return;
        };
        let page = std::str::from_utf8(&built.data).unwrap();
        assert_eq!(page.matches(PLACE).count(), 1);
        assert!(!page.contains("src=\"") && !page.contains("rel=\"stylesheet\""), "something is loaded");
    }
}
