//! Suggests the most similar name for a mistyped one.

/// Maximum edit distance of a suggestion: one, and one more for every four letters of the name.
fn distance_max(name: &str) -> usize {
    1 + name.len() / 4
}

/// Returns `: did you mean NAME?`, or an empty text if no name is similar.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let near = names.into_iter().map(|other| (strsim::damerau_levenshtein(name, other), other)).min();
    match near {
        Some((distance, other)) if distance <= distance_max(other) => format!(": did you mean {other}?"),
        _ => String::new(),
    }
}
