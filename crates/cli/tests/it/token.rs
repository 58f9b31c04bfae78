//! Tests tokens from the command line: creation, inspection, and refusals with a reason.

use std::{
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::support::{Ended, Process, file, millrace, run};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Runs `millrace` with a secret in the environment and `input` on standard input.
fn with(secret: &str, args: &[&str], input: &str) -> Ended {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("token-input-{}", MADE.fetch_add(1, Relaxed));
    let input = std::fs::File::open(file(&name, input)).expect("it was just written");
    Process::start_with_input(millrace(args).env("MILLRACE_AUTH__SECRET", secret).stdin(input)).finish()
}

#[test]
fn key_pair_signs_and_public_key_verifies() {
    let folder = tempfile::tempdir().expect("a folder");
    for algorithm in ["EdDSA", "es256"] {
        let key = folder.path().join(algorithm);
        let key = key.to_str().expect("it is text");
        let made = run(&["token", "key", "--alg", algorithm, "--out", key]);
        assert_eq!(made.code, Some(0), "{made:?}");
        let mode = std::fs::metadata(key).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = run(&["token", "key", "--out", key]);
        assert!(again.code == Some(1) && again.err.contains(key), "no key is lost: {again:?}");

        let args = ["--key", key, "--sub", "car-7", "--publish", "cars/{sub}/#", "--expires", "2h", "--id", "t-1"];
        let created = run(&[&["token", "create"], &args[..]].concat());
        assert_eq!(created.code, Some(0), "{created:?}");
        let config = file(&format!("{algorithm}.toml"), &format!("[auth]\nkeys = [\"{key}.pub\"]\n"));
        let inspected = run(&["token", "inspect", "--config", &config, created.out.trim()]);
        assert_eq!(inspected.code, Some(0), "{inspected:?}");
        for word in ["car-7", "t-1", "cars/car-7/#", &format!("Valid: verified with file {key}.pub")] {
            assert!(inspected.out.contains(word), "{word}: {inspected:?}");
        }
        assert!(["in 2h", "in 1h 59m"].iter().any(|left| inspected.out.contains(left)), "{inspected:?}");
        let private = file("private.toml", &format!("[auth]\nkeys = [\"{key}\"]\n"));
        let refused = run(&["serve", "--listen", "127.0.0.1:0", "--config", &private]);
        assert!(refused.code == Some(1) && refused.err.contains("private key"), "{refused:?}");
    }
}

#[test]
fn secret_signs_and_invalid_token_is_explained() {
    let created = with(SECRET, &["token", "create", "--sub", "alice", "--subscribe", "chat/#"], "");
    assert_eq!(created.code, Some(0), "{created:?}");
    let good = with(SECRET, &["token", "inspect"], &created.out);
    assert!(good.code == Some(0) && good.out.contains("auth.secret") && good.out.contains("chat/#"), "{good:?}");
    let other = with(&SECRET.replace('0', "x"), &["token", "inspect"], &created.out);
    assert!(other.code == Some(1) && other.out.contains("alice") && other.err.contains("signature"), "{other:?}");
    for (input, words) in [("e30.e30.e30", "header"), ("hello", "Not a JWT"), ("\u{1b}[31m.x.y", "base64url")] {
        let none = with(SECRET, &["token", "inspect"], input);
        assert!(none.code == Some(1) && format!("{}{}", none.out, none.err).contains(words), "{input}: {none:?}");
        assert!(!none.out.contains('\u{1b}') && !none.err.contains('\u{1b}'), "{none:?}");
    }
    let unchecked = run(&["token", "inspect", created.out.trim()]);
    assert!(unchecked.code == Some(1) && unchecked.out.contains("no key is configured"), "{unchecked:?}");
}

#[test]
fn claims_and_permissions_have_one_pattern_per_line() {
    let rights = ["--sub", "ann", "--publish", "a", "--publish", "b/{sub}", "--subscribe", "#"];
    let created = with(SECRET, &[&["token", "create"], &rights[..]].concat(), "");
    let inspected = with(SECRET, &["token", "inspect"], &created.out);
    assert_eq!(inspected.code, Some(0), "{inspected:?}");
    let is_rule = |line: &&str| line.starts_with("  publish ") || line.starts_with("  subscribe ");
    let rules: Vec<&str> = inspected.out.lines().filter(is_rule).collect();
    let of_token = ["  subscribe  #", "  publish    a", "  publish    b/{sub}"];
    let granted = ["  subscribe  #", "  publish    a", "  publish    b/ann"];
    assert_eq!(rules, [of_token, granted].concat());
}

#[test]
fn token_that_the_server_refuses_is_not_signed() {
    for (args, words) in [
        (&["--sub", "a/b", "--publish", "x/{sub}"][..], "sub"),
        (&["--publish", "a/#/b"], "pattern"),
        (&["--expires", "60days"], "lifetime_max"),
    ] {
        let refused = with(SECRET, &[&["token", "create"], args].concat(), "");
        assert!(
            refused.code == Some(1) && refused.err.contains(words) && refused.out.is_empty(),
            "{args:?}: {refused:?}"
        );
    }
    let nothing = run(&["token", "create", "--sub", "alice"]);
    assert!(nothing.code == Some(1) && nothing.err.contains("millrace token key"), "{nothing:?}");
}

#[test]
fn an_api_key_comes_with_its_configuration() {
    let made = run(&["token", "api-key", "--name", "billing", "--publish", "orders/#"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let (key, config) = made.out.split_once('\n').expect("the key has its line");
    assert!(!config.contains(key));
    let config = file("api-key.toml", config);
    let good = run(&["token", "inspect", "--config", &config, key]);
    assert!(good.code == Some(0) && good.out.contains("orders/#"), "{good:?}");
    let bad = run(&["token", "inspect", "--config", &config, &key.to_lowercase()]);
    assert!(bad.code == Some(1) && bad.err.contains("neither a JWT nor a known API key"), "{bad:?}");
}
