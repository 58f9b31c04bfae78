//! The modules of the lab import each other in one direction only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Imported modules by module.
type Imports = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_have_no_import_circle() {
    let imports = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(imports["scenarios"].contains("sweep"), "imports are found: {imports:?}");
    let circle = imports.keys().find_map(|module| path_back_to(module, &imports));
    assert_eq!(circle, None, "these modules import each other in a circle");
}

#[test]
fn import_circle_is_found() {
    let imports = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
    let imports = imports.into_iter().map(|(from, to)| (from.to_owned(), BTreeSet::from([to.to_owned()]))).collect();
    assert_eq!(path_back_to("a", &imports), Some(vec!["b".to_owned(), "c".to_owned(), "a".to_owned()]));
    assert_eq!(path_back_to("d", &imports), None);
}

/// Returns the modules on a path of imports from this module back to itself.
fn path_back_to(module: &str, imports: &Imports) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![module.to_owned()]];
    while let Some(path) = paths.pop() {
        for next in path.last().and_then(|last| imports.get(last)).into_iter().flatten() {
            let longer: Vec<String> = path.iter().chain([next]).cloned().collect();
            if next == module {
                return Some(longer[1..].to_vec());
            }
            if seen.insert(next.clone()) {
                paths.push(longer);
            }
        }
    }
    None
}

/// Reads the imports of all top-level modules, without those of unit tests, which may use anything.
fn imports(src: &Path) -> Imports {
    let mut imports = Imports::new();
    for file in files(src) {
        let below = file.strip_prefix(src).expect("a file of this folder").with_extension("");
        let module = below.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
        if module == "lib" {
            continue;
        }
        let text = fs::read_to_string(&file).expect("it was just listed");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let used = code.split("crate::").skip(1).flat_map(modules_of).filter(|name| *name != module);
        imports.entry(module.clone()).or_default().extend(used);
    }
    imports
}

/// Returns the modules that the text after `crate::` names: `name::...`, or `{name::..., name::...}`.
fn modules_of(text: &str) -> Vec<String> {
    let Some(list) = text.strip_prefix('{') else { return vec![first_name(text)] };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in list.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("there is one").push(letter),
        }
    }
    parts.iter().map(|part| first_name(part.trim_start())).filter(|name| !name.is_empty()).collect()
}

fn first_name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map_while(Result::ok) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}
