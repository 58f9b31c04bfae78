//! The modules of this crate are layers: each may use those below it, and none above it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Layers, lowest first. Modules of one layer use each other only in the order in which they are listed.
const LAYERS: &[&[&str]] = &[
    &["accept", "metrics", "config", "ticks", "tls"],
    &["http"],
    &["admission"],
    &["polling"],
    &["connection"],
    &["datagram"],
    &["session"],
    &["data_channel", "transports"],
    &["route"],
    &["serve", "admin"],
];

/// Types of the crate's root that stand for a module.
const ALIASES: &[(&str, &str)] = &[
    ("SocketMetrics", "metrics"),
    ("Shard", "connection"),
    ("Config", "config"),
    ("Limits", "admission"),
    ("Sockets", "connection"),
];

/// A module that uses another one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    file: String,
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Returns the modules that a source uses: each name after `crate::`, also inside braces.
fn uses(source: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (start, _) in source.match_indices("crate::") {
        let rest = &source[start + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => drop(found.insert(name(rest))),
            Some(list) => {
                let (mut depth, mut is_start) = (0, true);
                for (at, letter) in list.char_indices() {
                    match letter {
                        '}' if depth == 0 => break,
                        '{' => depth += 1,
                        '}' => depth -= 1,
                        ',' if depth == 0 => is_start = true,
                        letter if is_start && !letter.is_whitespace() => {
                            found.insert(name(&list[at..]));
                            is_start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found.remove("");
    found
}

fn name(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns the rank of a module: its layer, and its place there.
fn rank(module: &str) -> Option<(usize, usize)> {
    LAYERS
        .iter()
        .enumerate()
        .find_map(|(layer, modules)| Some((layer, modules.iter().position(|other| *other == module)?)))
}

fn is_upward(from: &str, to: &str) -> bool {
    let ranks = [from, to].map(|module| rank(module).unwrap_or_else(|| panic!("`{module}` is in no layer")));
    ranks[0] < ranks[1]
}

fn arrows() -> Vec<Arrow> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut found = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        let from = relative.split(['/', '.']).next().expect("a name").to_owned();
        if from == "lib" {
            continue;
        }
        let source = fs::read_to_string(&file).expect("a source");
        // The tests of a module may use anything.
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        for to in uses(source) {
            let to = ALIASES.iter().find(|(alias, _)| *alias == to).map_or(to, |(_, module)| module);
            if to != from {
                found.push(Arrow { from: from.clone(), to: to.to_owned(), file: relative.clone() });
            }
        }
    }
    found
}

#[test]
fn modules_use_only_lower_layers() {
    let arrows = arrows();
    assert!(arrows.len() > 50, "the imports were found: {}", arrows.len());
    let upward: Vec<&Arrow> = arrows.iter().filter(|arrow| is_upward(&arrow.from, &arrow.to)).collect();
    assert!(upward.is_empty(), "a lower module uses a higher one: {upward:#?}");
}

#[test]
fn upward_import_is_detected() {
    let source =
        "use crate::{\n    Shard,\n    admission::{self, limits::Limits},\n    route::Context,\n};\ncrate::tls::x();";
    let found = uses(source);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["Shard", "admission", "route", "tls"]);
    assert!(is_upward("admission", "route") && !is_upward("route", "admission"));
}
