//! Fuzzes the configuration: an error must explain the problem, and neither errors nor the output for a valid
//! configuration may contain a secret.
//!
//! Input: a byte of choices, then text in three parts, separated by empty lines. The first part precedes a secret in
//! a file, the second follows the secret. The third holds settings of flags (`section.key=value`).

#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_fuzz::file;
use millrace_server::{
    Config, Sources,
    config::{ConfigError, Value},
};

/// Also a valid number, so that the secret is found even without its quotes.
const SECRET: &str = "7341902586173420";
const PLACES: [&str; 5] = ["server.secret", "admin.token", "auth.secret", "engine.url", "auth.jwks"];

fuzz_target!(|data: &[u8]| {
    let [choices, text @ ..] = data else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    if text.contains(SECRET) {
        return;
    }
    let mut parts = text.splitn(3, "\n\n");
    let (before, after) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let flags: Vec<Value> = parts.next().unwrap_or_default().lines().filter_map(flag).collect();
    let place = PLACES[if choices >> 7 == 1 { 4 } else { usize::from(choices & 3) }];
    let value = match (place, choices >> 2 & 1) {
        ("engine.url", 0) => format!("redis://me:{SECRET}@127.0.0.1"),
        ("engine.url", _) => format!("nats://{SECRET}@127.0.0.1"),
        ("auth.jwks", _) => format!("https://id.example/keys?key={SECRET}"),
        ("auth.secret", 0) => format!("{SECRET}{SECRET}"),
        (_, 0) => SECRET.to_owned(),
        _ => format!("s{SECRET}"),
    };
    let quote = ["\"", "'", "", "\"\"\""][usize::from(choices >> 3 & 3)];
    let (section, key) = place.split_once('.').expect("a section and a key");
    let line = format!("{key} = {quote}{value}{quote}");
    let file = match choices >> 5 & 3 {
        0 => format!("{before}\n[{section}]\n{line}\n{after}"),
        1 => format!("{before}\n{place} = {quote}{value}{quote}\n{after}"),
        2 => format!("{before}\n{section} = {{ {line} }}\n{after}"),
        _ => format!("{before}\n{line}\n{after}"),
    };
    load(&file, vec![], flags.clone());
    // Loads the same from the environment and from a flag.
    let name = format!("MILLRACE_{}", place.to_uppercase().replace('.', "__"));
    load(after, vec![(name, value.clone())], flags.clone());
    let from = "--set".to_owned();
    let flags = flags.into_iter().chain([Value { key: place.into(), text: value, from }]);
    load(before, vec![], flags.collect());
});

fn flag(line: &str) -> Option<Value> {
    let (key, text) = line.split_once('=')?;
    Some(Value { key: key.into(), text: text.into(), from: "--set".into() })
}

fn load(text: &str, env: Vec<(String, String)>, flags: Vec<Value>) {
    let silent = |shown: &str| assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
    match Sources::load(Some(&file::with(text)), env.into_iter(), flags) {
        Ok(sources) => {
            let config = &sources.config;
            config.check().expect("it was checked");
            assert_eq!(toml::from_str::<Config>(&toml::to_string(config).expect("TOML")).as_ref(), Ok(config));
            let effective = sources.effective();
            assert!(effective.contains("[limits]"), "{config:?}");
            silent(&effective);
            silent(&format!("{:?}", config.without_secrets()));
            silent(&serde_json::to_string(&config.without_secrets()).expect("JSON"));
        }
        Err(error) => {
            assert!(!matches!(error, ConfigError::Read { .. }), "{error}");
            silent(&error.to_string());
            silent(&format!("{error:?}"));
        }
    }
}
