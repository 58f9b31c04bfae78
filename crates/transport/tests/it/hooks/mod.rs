//! docs/reference/hooks.md, tested with real back ends: what they are asked, and what happens when they fail.

pub mod back_end;
mod cache;
mod connect;
mod failures;
mod publish;
mod rpc;
mod subscribe;

use serde_json::{Value, json};

use crate::server::Answer;

/// Code and text of [`back_end::refuse`], as each transport reports them.
fn assert_refused(error: &Value) {
    let got = (&error["code"], &error["reason"], &error["detail"], &error["retry"]);
    let expected = (&json!("refused"), &json!("no_credit"), &json!("your credit is used up"), &json!(false));
    assert_eq!(got, expected, "{error}");
}

#[track_caller]
fn assert_refused_answer(answer: &Answer) {
    answer.assert_problem(403, "refused");
    assert_refused(&answer.json());
}
