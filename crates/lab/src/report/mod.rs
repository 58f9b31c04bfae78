//! Report of a run as a single HTML file that makes no network requests. It also shows the figures that the theses
//! published.

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

/// Embedded page with a placeholder for the data. Empty if the pages have not been built.
#[derive(rust_embed::RustEmbed)]
#[folder = "../../web/single/"]
#[allow_missing = true]
struct Built;

/// Placeholder for the data in the page.
const PLACE: &str = r#"<script type="application/json" id="analysis"></script>"#;

#[derive(Serialize)]
struct Report<'a> {
    analysis: &'a Analysis,
    published: Published,
}

/// Returns the data of the report page.
pub fn data(analysis: &Analysis) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&Report { analysis, published: published::of(&analysis.head.scenario) })?)
}

/// Writes `analysis.json` and `report.html` into a results folder. Returns the path of the page.
///
/// Errors: the folder is not writable, or this program was built without its pages. In the second case,
/// `analysis.json` is still written.
pub fn write(folder: &Path, analysis: &Analysis) -> anyhow::Result<PathBuf> {
    let json = folder.join("analysis.json");
    let text = serde_json::to_string(analysis)?;
    fs::write(&json, text + "\n").with_context(|| format!("cannot write {}", json.display()))?;
    let page = page(&data(analysis)?)?;
    let file = folder.join("report.html");
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Data of the comparison page: two recordings and the result.
#[derive(Serialize)]
struct Compared<'a> {
    a: Side<'a>,
    b: Side<'a>,
    metrics: Vec<MetricInfo>,
    outcome: &'a Outcome,
}

#[derive(Serialize)]
struct Side<'a> {
    /// Name that the user gave this side, such as its folder.
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

/// Returns the data of the comparison page. `labels` are the user's names for A and B.
pub fn comparison_data(labels: [&str; 2], [a, b]: [&Recording; 2], outcome: &Outcome) -> anyhow::Result<String> {
    let metrics = Metric::ALL.into_iter().filter(|metric| outcome.rows.iter().any(|row| row.metric == *metric));
    let metrics = metrics.map(Metric::info).collect();
    let compared = Compared { a: Side::of(labels[0], a), b: Side::of(labels[1], b), metrics, outcome };
    Ok(serde_json::to_string(&compared)?)
}

/// Writes a comparison as a page, with its [`comparison_data`].
///
/// Errors: the file is not writable, or this program was built without its pages.
pub fn write_comparison(file: &Path, data: &str) -> anyhow::Result<()> {
    let page = page(data)?;
    fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the page with the data in it.
fn page(data: &str) -> anyhow::Result<String> {
    let built = Built::get("report.html").context(
        "this program was built without the page of reports: `make web` builds it, then build the program again (`make build` does both)",
    )?;
    let page = std::str::from_utf8(&built.data).context("the page of reports is no text")?;
    fill(page, data)
}

/// Inserts JSON at the placeholder of the page. Every `<` is escaped, so the data can neither end the script nor
/// begin a comment.
fn fill(page: &str, json: &str) -> anyhow::Result<String> {
    let (before, after) = page.split_once(PLACE).context("the page of reports has no place for data")?;
    let (open, close) = PLACE.split_at(PLACE.len() - "</script>".len());
    Ok([before, open, &json.replace('<', "\\u003c"), close, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_data_cannot_close_its_script_element() {
        let json = serde_json::to_string("</script><!--<script>& \u{2028}").unwrap();
        let page = fill(&format!("<body>{PLACE}</body>"), &json).unwrap();
        let inside = page.strip_prefix(r#"<body><script type="application/json" id="analysis">"#).unwrap();
        let inside = inside.strip_suffix("</script></body>").unwrap();
        assert!(!inside.contains('<'), "{inside}");
        assert_eq!(serde_json::from_str::<String>(inside).unwrap(), "</script><!--<script>& \u{2028}");
        assert!(fill("<body></body>", &json).is_err());
    }

    /// Fails if the page and this module do not agree about the placeholder. Passes if no page has been built.
    #[test]
    fn the_built_page_has_a_place_for_data() {
        let Some(built) = Built::get("report.html") else {
            assert!(page("").unwrap_err().to_string().contains("make web"));
            eprintln!("SKIPPED: the pages have not been built (make web)");
            return;
        };
        let page = std::str::from_utf8(&built.data).unwrap();
        assert_eq!(page.matches(PLACE).count(), 1);
        assert!(!page.contains("src=\"") && !page.contains("rel=\"stylesheet\""), "something is loaded");
    }
}
