//! Checks that the files of a crate do not import each other in a circle.
//!
//! Two files may use each other. A larger circle can only be read as a whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::docs::files;

/// Number of files that may use each other.
const CYCLE_FILES_MAX: usize = 2;

/// Keywords in front of the name of an item.
const ITEMS: &[&str] = &["struct", "enum", "trait", "fn", "type", "static", "const", "union", "macro_rules"];

/// Segments of a path, such as `["crate", "frame", "encode"]`.
type Segments = Vec<String>;

/// A path that a `use` brings into a file.
struct Import {
    path: Segments,
    /// The name in the file; `*` for all names of a module.
    name: String,
    is_public: bool,
}

/// Definitions and uses of one source file.
#[derive(Default)]
struct Module {
    file: String,
    definitions: BTreeSet<String>,
    imports: Vec<Import>,
    paths: Vec<Segments>,
}

/// The source files of a crate by the path of their module.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Segments, Module>,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut found = Self::default();
        for file in files(root.to_owned(), "rs") {
            let relative = file.strip_prefix(root).expect("below the root").with_extension("");
            let mut path: Segments = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            // Unit tests may use anything.
            if path.last().is_some_and(|name| name == "tests") {
                continue;
            }
            if matches!(path.last().map(String::as_str), Some("mod")) || path == ["lib"] || path == ["main"] {
                path.pop();
            }
            let source = fs::read_to_string(&file).expect("a source");
            found.add(path, relative.to_string_lossy().into_owned(), &source);
        }
        found
    }

    fn add(&mut self, path: Segments, file: String, source: &str) {
        let mut module = Module { file, ..Module::default() };
        module.read(source.parse().expect("valid Rust"), true);
        self.modules.insert(path, module);
    }

    /// Returns the path from the root of the crate, or `None` for a path into another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Segments> {
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => {
                let levels = path.iter().take_while(|segment| *segment == "super").count();
                Some([&module[..module.len().checked_sub(levels)?], &path[levels..]].concat())
            }
            first => {
                let child = [module, &[first.to_owned()]].concat();
                self.modules.contains_key(&child).then(|| [module, path].concat())
            }
        }
    }

    /// Returns the module that defines what an absolute path names. Re-exports are followed.
    fn resolve(&self, path: &[String], depth: usize) -> Option<Segments> {
        let known = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let (at, rest) = path.split_at(known);
        let (module, Some(name)) = (self.modules.get(at)?, rest.first()) else { return Some(at.to_vec()) };
        if module.definitions.contains(name) || depth == 0 {
            return Some(at.to_vec());
        }
        for import in module.imports.iter().filter(|import| import.name == *name || import.name == "*") {
            let Some(target) = self.absolute(at, &import.path) else { continue };
            let target = match import.name == "*" {
                true => [&target[..], rest].concat(),
                false => [&target[..], &rest[1..]].concat(),
            };
            if let Some(found) = self.resolve(&target, depth - 1) {
                return Some(found);
            }
        }
        // A name that a macro defines, or a module of another folder.
        None
    }

    /// Returns the modules that each module uses, with one of the paths by which it does.
    fn arrows(&self) -> BTreeMap<&Segments, BTreeMap<Segments, String>> {
        let mut arrows: BTreeMap<&Segments, BTreeMap<Segments, String>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let mut used: Vec<Segments> = Vec::new();
            for import in &module.imports {
                // An imported module is used by the paths that begin with it. A re-export is a use by the files that
                // name it.
                match self.absolute(path, &import.path) {
                    Some(target) if !import.is_public && !self.modules.contains_key(&target) => used.push(target),
                    _ => {}
                }
            }
            for segments in &module.paths {
                let imported = module.imports.iter().find(|import| import.name == segments[0]);
                let target = match imported {
                    Some(import) => {
                        self.absolute(path, &import.path).map(|target| [&target[..], &segments[1..]].concat())
                    }
                    None => self.absolute(path, segments),
                };
                used.extend(target);
            }
            for target in used {
                match self.resolve(&target, 8) {
                    Some(found) if found != *path => {
                        arrows.entry(path).or_default().entry(found).or_insert_with(|| target.join("::"));
                    }
                    _ => {}
                }
            }
        }
        arrows
    }

    /// Returns the circles of more than [`CYCLE_FILES_MAX`] files, each with its arrows.
    fn cycles(&self) -> Vec<String> {
        let arrows = self.arrows();
        let reach: BTreeMap<&Segments, BTreeSet<&Segments>> = self
            .modules
            .keys()
            .map(|from| {
                let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
                while let Some(one) = open.pop() {
                    open.extend(arrows.get(one).into_iter().flatten().map(|(to, _)| to).filter(|to| seen.insert(*to)));
                }
                (from, seen)
            })
            .collect();
        let mut cycles: BTreeSet<Vec<&Segments>> = BTreeSet::new();
        for (from, reached) in &reach {
            let circle: Vec<&Segments> = reached.iter().filter(|to| reach[**to].contains(*from)).copied().collect();
            if circle.len() > CYCLE_FILES_MAX {
                cycles.insert(circle);
            }
        }
        cycles.iter().map(|circle| self.describe(circle, &arrows)).collect()
    }

    fn describe(&self, circle: &[&Segments], arrows: &BTreeMap<&Segments, BTreeMap<Segments, String>>) -> String {
        let mut text = format!("{} files:", circle.len());
        for from in circle {
            for (to, by) in arrows[from].iter().filter(|(to, _)| circle.contains(to)) {
                let files = [&self.modules[*from].file, &self.modules[to].file];
                write!(text, "\n    {} uses {} for `{by}`", files[0], files[1]).expect("text");
            }
        }
        text
    }
}

impl Module {
    /// Collects definitions, imports and paths of the tokens. Only items of the file itself are definitions.
    fn read(&mut self, tokens: TokenStream, is_file: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' && is_cfg_test(tokens.get(at + 1)) => {
                    at = end_of_item(&tokens, at + 2);
                }
                TokenTree::Group(group) => {
                    self.read(group.stream(), false);
                    at += 1;
                }
                TokenTree::Ident(word) if word == "use" && is_file => {
                    let end = (at..tokens.len()).find(|at| is_punct(&tokens, *at, ';')).unwrap_or(tokens.len());
                    let is_public = at > 0
                        && match &tokens[at - 1] {
                            TokenTree::Ident(before) => before == "pub",
                            TokenTree::Group(group) => group.delimiter() == Delimiter::Parenthesis,
                            _ => false,
                        };
                    self.import(&tokens[at + 1..end], &[], is_public);
                    at = end;
                }
                TokenTree::Ident(word) => {
                    if is_file && ITEMS.iter().any(|item| word == item) {
                        let name = tokens[at + 1..].iter().find_map(|token| match token {
                            TokenTree::Ident(name) if ITEMS.iter().all(|item| name != item) => Some(name.to_string()),
                            _ => None,
                        });
                        self.definitions.extend(name);
                    }
                    let mut path = vec![word.to_string()];
                    while is_punct(&tokens, at + 1, ':') && is_punct(&tokens, at + 2, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    if path.len() > 1 {
                        self.paths.push(path);
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads the tree of a `use`: `a::{self, b::c as d, e::*}`.
    fn import(&mut self, tree: &[TokenTree], prefix: &[String], is_public: bool) {
        let mut path = prefix.to_vec();
        let mut name = None;
        for (at, token) in tree.iter().enumerate() {
            match token {
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inner.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                    {
                        self.import(part, &path, is_public);
                    }
                    return;
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => name = Some("*".to_owned()),
                TokenTree::Ident(word) if word == "as" => {
                    name = tree.get(at + 1).map(ToString::to_string);
                    break;
                }
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                _ => {}
            }
        }
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.imports.push(Import { path, name, is_public });
        }
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, mark: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn is_cfg_test(attribute: Option<&TokenTree>) -> bool {
    matches!(attribute, Some(TokenTree::Group(group)) if group.stream().to_string().replace(' ', "") == "cfg(test)")
}

/// Returns the index after the item that starts at an index: after its braces or its semicolon.
fn end_of_item(tokens: &[TokenTree], start: usize) -> usize {
    let is_end = |at: &usize| match &tokens[*at] {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    };
    (start..tokens.len()).find(is_end).map_or(tokens.len(), |at| at + 1)
}

/// Returns the folders with the sources of one library, binary or benchmark each.
fn roots() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let folders = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect()
    };
    folders(crates)
        .iter()
        .flat_map(|one| [vec![one.join("src")], folders(&one.join("benches")), folders(&one.join("tests"))].concat())
        .collect()
}

#[test]
fn at_most_two_files_use_each_other() {
    let roots = roots();
    assert!(roots.len() > 20, "the crates were found: {roots:?}");
    let (mut arrows, mut found) = (0, String::new());
    for root in roots {
        let sources = Crate::read(&root);
        arrows += sources.arrows().values().map(BTreeMap::len).sum::<usize>();
        for cycle in sources.cycles() {
            writeln!(found, "{}: {cycle}", root.display()).expect("text");
        }
    }
    assert!(arrows > 1000, "the imports were found: {arrows}");
    assert!(found.is_empty(), "files that use each other in a circle:\n{found}");
}

#[test]
fn a_circle_of_three_files_is_found_also_through_a_re_export() {
    let mut sources = Crate::default();
    let mut add = |path: &[&str], source| {
        let path: Segments = path.iter().map(|segment| (*segment).to_owned()).collect();
        sources.add(path.clone(), path.join("/"), source);
    };
    add(&[], "pub mod one; mod two; pub use two::Two;");
    add(&["one"], "use crate::Two; pub struct One(Two); #[cfg(test)] mod tests { use crate::four::Four; }");
    add(&["two"], "use super::three; pub struct Two; fn f() { vec![three::three()] }");
    add(&["three"], "// use crate::four::Four;\nuse crate::{one::{self, One as First}, four}; pub fn three() {}");
    add(&["four"], "pub struct Four(crate::one::One);");
    let cycles = sources.cycles();
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    assert!(cycles[0].starts_with("3 files:\n    one uses two for `Two`\n"), "{}", cycles[0]);
    assert!(!cycles[0].contains("four"), "{}", cycles[0]);
}
