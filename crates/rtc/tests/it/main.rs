#![allow(clippy::unwrap_used, reason = "a test may stop where it is wrong")]

