//! Findings about a run or a table: reasons to doubt its results.

use serde::{Deserialize, Serialize};

/// Finding that speaks against a run, or against a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Short, stable code: `generator_bound`.
    pub code: String,
    /// Readable text with the figures.
    pub detail: String,
    /// True: no conclusion may be drawn from the run. False: the finding is only a note.
    pub invalidates: bool,
}

/// Codes of findings that the machine may have caused. They affect times, not counts.
const NOISE: [&str; 6] = ["generator_bound", "steal", "others", "crowded", "link_bound", "link_late"];

impl Finding {
    /// Returns whether the machine may have caused this finding.
    pub fn is_noise(&self) -> bool {
        NOISE.contains(&&*self.code)
    }
}
