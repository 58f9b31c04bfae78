//! Command lines for a shell.

/// Returns words as a line that a shell splits into these words again.
pub fn quoted<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=,:%+".contains(c);
    let quote = |word: T| {
        let word = word.as_ref();
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.to_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_reads_quoted_words_again() {
        let words = ["down.loss=1%", "50 packets", "it's", "$HOME", "", "a\nb"];
        assert_eq!(quoted(&words[..3]), r"down.loss=1% '50 packets' 'it'\''s'");
        let script = format!("for word in {}; do printf '%s|' \"$word\"; done", quoted(words));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), words.map(|word| format!("{word}|")).concat());
    }
}
