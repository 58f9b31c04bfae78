//! Numbers on the command line.

use std::{
    fmt::Display,
    ops::{Bound, RangeBounds},
    str::FromStr,
};

use crate::argument::ArgumentError;

/// Returns a clap parser for a whole number within `range`.
///
/// Errors: the message names the range.
pub fn number<T, R>(range: R) -> impl Fn(&str) -> Result<T, ArgumentError> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display,
    R: RangeBounds<T> + Clone + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(ArgumentError::expected(match (range.start_bound(), range.end_bound()) {
            (Bound::Included(least), Bound::Included(most)) => format!("a number from {least} to {most}"),
            (Bound::Included(least), _) => format!("a number, {least} or more"),
            _ => "a whole number".to_owned(),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_number_error_names_expected_range() {
        let from_1 = number::<u32, _>(1..);
        assert_eq!(from_1("7"), Ok(7));
        for bad in ["abc", "0", "-1", "1.5", ""] {
            assert_eq!(from_1(bad), Err(ArgumentError::expected("a number, 1 or more")), "{bad}");
        }
        assert_eq!(number::<u64, _>(1..=9)("10"), Err(ArgumentError::expected("a number from 1 to 9")));
    }
}
