//! Checks the documents: relative links are valid, named files exist, and the list of theses is complete.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use crate::support::repository;

/// Folders with third-party or generated files.
const SKIPPED: [&str; 8] = ["target", "node_modules", "dist", "pack", "single", "test-results", "lab-results", ".git"];
const STATES: [&str; 3] = ["works", "partly", "not yet"];

#[test]
fn every_thesis_row_has_one_valid_line() {
    let text = fs::read_to_string(repository("docs/theses.md")).expect("the document is there");
    let rows: Vec<Vec<&str>> = text.lines().filter(|line| is_row(line)).map(cells).collect();
    let expected = [('K', 17), ('T', 10), ('L', 16), ('S', 12), ('M', 10)];
    let expected = expected.iter().flat_map(|(letter, count)| (1..=*count).map(move |n| format!("{letter}-{n:02}")));
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(ids, expected.collect::<Vec<_>>(), "each id once, in order");
    for row in &rows {
        let [id, _, state, there, command] = row[..] else { panic!("five columns: {row:?}") };
        assert!(STATES.contains(&state), "{id}: {state:?} is none of {STATES:?}");
        // Every state except "not yet" names a command that demonstrates it.
        assert_eq!(state == "not yet", command == "-", "{id}: {command:?}");
        assert!(state == "not yet" || (command.starts_with('`') && there.len() > 1), "{id}: {row:?}");
    }
    let counted = |state: &str| rows.iter().filter(|row| row[2] == state).count();
    let summary = STATES.map(|state| format!("{} {state}", counted(state))).join(", ");
    assert!(text.contains(&summary), "the summary says: {summary}");
}

/// Scripts generate the tables of `docs/lab`.
#[test]
fn lab_tables_have_no_undefined_cell() {
    for document in documents() {
        let text = fs::read_to_string(&document).expect("it was just listed");
        let is_broken = |cell: &&str| ["undefined", "NaN", "[object Object]"].contains(cell);
        let broken = text.lines().find(|line| line.starts_with("| ") && cells(line).iter().any(is_broken));
        assert_eq!(broken, None, "{}", document.display());
    }
}

/// The tutorial shows the programs of the example, and the test of the documents runs them there.
#[test]
fn example_back_end_is_the_one_of_the_tutorial() {
    let tutorial = fs::read_to_string(repository("docs/tutorials/back-end.md")).expect("the tutorial");
    for (name, language) in [("backend.mjs", "js"), ("backend.py", "python")] {
        let program = fs::read_to_string(repository(&format!("examples/backend/{name}"))).expect("the example");
        let block = format!("<!-- file: {name} -->\n```{language}\n{program}```\n");
        assert!(tutorial.contains(&block), "{name} differs from its block in the tutorial");
    }
}

#[test]
fn example_ticker_is_the_one_of_the_guide() {
    let guide = fs::read_to_string(repository("docs/how-to/build-a-ticker.md")).expect("the guide");
    let program = fs::read_to_string(repository("examples/ticker/ticker.html")).expect("the example");
    assert!(guide.contains(&format!("<!-- file: ticker.html -->\n```html\n{program}```\n")), "the page differs");
}

#[test]
fn example_chat_is_the_one_of_the_guide() {
    let guide = fs::read_to_string(repository("docs/how-to/build-a-chat.md")).expect("the guide");
    let program = fs::read_to_string(repository("examples/chat/chat.html")).expect("the example");
    assert!(guide.contains(&format!("<!-- file: chat.html -->\n```html\n{program}```\n")), "the page differs");
}

#[test]
fn every_relative_link_has_a_target() {
    let mut broken = Vec::new();
    let mut links = 0;
    for document in documents() {
        let text = without_code(&fs::read_to_string(&document).expect("it was just listed"));
        for link in link_targets(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { document.clone() } else { document.with_file_name("").join(path) };
            let found = target.exists() && (section.is_empty() || sections(&target).contains(section));
            if !found {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn every_file_that_is_named_exists() {
    let rooms = ["crates/", "sdk/", "web/", "docs/", ".ci/"];
    let mut missing = Vec::new();
    let mut named = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).expect("it was just listed");
        let code = text.split('`').skip(1).step_by(2);
        let is_path =
            |word: &&str| rooms.iter().any(|room| word.starts_with(room)) && !word.contains(['*', '<', '{', ' ']);
        for path in code.filter(is_path) {
            let path = path.trim_end_matches('/');
            named += 1;
            if !repository(path).exists() && !SKIPPED.iter().any(|made| Path::new(path).ends_with(made)) {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(named > 20, "only {named} paths were found");
}

/// Every type, trait, constant and function that ARCHITECTURE.md names must be defined. The name in front of `::` must
/// be a module of the file that defines it, or a type of that file.
#[test]
fn every_symbol_of_the_architecture_is_defined() {
    let text = fs::read_to_string(repository("ARCHITECTURE.md")).expect("the document is there");
    let sources: Vec<Symbols> = files(repository("crates"), "rs").iter().map(|file| Symbols::read(file)).collect();
    let is_symbol = |code: &&str| {
        let is_name = code.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':');
        let is_file = repository(code).exists();
        is_name && !is_file && (code.contains("::") || code.starts_with(|letter: char| letter.is_ascii_uppercase()))
    };
    let mut named = 0;
    for symbol in text.split('`').skip(1).step_by(2).filter(is_symbol) {
        named += 1;
        let parts: Vec<&str> = symbol.split("::").collect();
        let (name, owner) = (parts[parts.len() - 1], parts.len().checked_sub(2).map(|owner| parts[owner]));
        let is_defined = |source: &Symbols| {
            source.defined.contains(name) && owner.is_none_or(|owner| source.holds(owner))
                || source.modules.contains(name)
        };
        assert!(sources.iter().any(is_defined), "ARCHITECTURE.md names `{symbol}`, which is defined nowhere");
    }
    assert!(named > 50, "only {named} symbols were found");
}

/// Names of one source file.
struct Symbols {
    /// Folders and name of the file, such as `transport`, `admission` and `publish`.
    modules: HashSet<String>,
    defined: HashSet<String>,
    /// Types that the file implements.
    implemented: HashSet<String>,
}

impl Symbols {
    fn read(file: &Path) -> Self {
        let kinds = ["struct", "enum", "trait", "fn", "const", "static", "type", "mod"];
        let source = fs::read_to_string(file).expect("it was just listed");
        let words: Vec<&str> = source.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
        let after = |before: &[&str]| -> HashSet<String> {
            words.windows(2).filter(|pair| before.contains(&pair[0])).map(|pair| pair[1].to_owned()).collect()
        };
        let path = file.with_extension("");
        let path = path.strip_prefix(repository("crates")).expect("a crate");
        let modules = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        Self { modules, defined: after(&kinds), implemented: after(&["impl", "for"]) }
    }

    fn holds(&self, owner: &str) -> bool {
        [&self.modules, &self.defined, &self.implemented].iter().any(|names| names.contains(owner))
    }
}

#[test]
fn every_limit_is_in_its_document_with_a_test_that_exists() {
    let text = fs::read_to_string(repository("docs/reference/limits.md")).expect("the document is there");
    let defaults = millrace_server::config::DEFAULT_TOML;
    let section = defaults.split("[limits]").nth(1).and_then(|rest| rest.split("\n[").next()).expect("a section");
    let keys: Vec<&str> = section.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    assert!(keys.len() > 20, "{keys:?}");
    // These settings select features and origins; they are not limits.
    let not_limits = ["compression", "allowed_origins"];
    for key in keys.into_iter().filter(|key| !not_limits.contains(key)) {
        assert!(text.contains(&format!("`{key}`")), "limits.{key} is not in docs/reference/limits.md");
    }
    let sources: String = files(repository("crates"), "rs")
        .iter()
        .map(|file| fs::read_to_string(file).expect("it was just listed"))
        .collect();
    let rows = text.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 4);
    let mut named = 0;
    for row in rows.skip_while(|row| !row.contains("`")) {
        let tests = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
        for test in tests.split('`').skip(1).step_by(2) {
            named += 1;
            assert!(sources.contains(&format!("fn {test}(")), "no test is called {test}");
        }
    }
    assert!(named > 40, "only {named} tests are named");
}

/// Every threat must name an existing test; otherwise the claimed protection is unchecked.
#[test]
fn every_threat_names_a_test_that_exists() {
    let text = fs::read_to_string(repository("docs/explanation/security.md")).expect("the document is there");
    let (_, threats) = text.split_once("## Threats").expect("the section is there");
    let (threats, _) = threats.split_once("\n## ").expect("something follows");
    let is_threat = |line: &&str| line.starts_with("| ") && !line.starts_with("| threat |");
    let rows: Vec<Vec<&str>> = threats.lines().filter(is_threat).map(cells).collect();
    assert!(rows.len() > 20, "only {} threats were found", rows.len());
    for row in &rows {
        let [threat, _, tests] = row[..] else { panic!("three columns: {row:?}") };
        let commands: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!commands.is_empty(), "{threat}: no test");
        for command in commands {
            assert!(test_exists(command), "{threat}: there is no `{command}`");
        }
    }
}

/// Returns true if the named test exists.
///
/// `command` is `cargo test -p PACKAGE --test BINARY NAME`, the same with `--lib` for unit tests, or a script,
/// optionally with the name of an attack.
fn test_exists(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    let (package, folder, name) = match words[..] {
        [script] => return repository(script).is_file(),
        ["scripts/abuse.sh", name] => ("millrace-cli", "tests/abuse".to_owned(), name),
        ["cargo", "test", "-p", package, "--lib", name] => (package, "src".to_owned(), name),
        ["cargo", "test", "-p", package, "--test", binary, name] => (package, format!("tests/{binary}"), name),
        _ => return false,
    };
    let Some(room) = package.strip_prefix("millrace-") else { return false };
    let sources = files(repository(&format!("crates/{room}/{folder}")), "rs");
    sources.iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}("))))
}

fn documents() -> Vec<PathBuf> {
    files(repository("").canonicalize().expect("it is here"), "md")
}

/// Returns all files of the repository except third-party and generated ones.
pub fn sources() -> Vec<PathBuf> {
    files(repository("").canonicalize().expect("it is here"), "")
}

/// Returns all files below a folder with this extension, or all files if `ending` is empty.
pub fn files(folder: PathBuf, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map_while(Result::ok) {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
                folders.push(path);
            } else if ending.is_empty() || path.extension().is_some_and(|extension| extension == ending) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns the link targets: `[text](target)`, and `src="target"` of an image.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    let markdown = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let html = text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    markdown.chain(html)
}

/// Removes code, because brackets in code are not links.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            line.split('`').step_by(2).for_each(|part| prose.push_str(part));
            prose.push('\n');
        }
    }
    prose
}

/// Returns the link anchors of the headings of a document.
fn sections(document: &Path) -> HashSet<String> {
    let text = fs::read_to_string(document).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let keep = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings.map(|heading| heading.to_lowercase().chars().filter(keep).collect::<String>().replace(' ', "-")).collect()
}

fn is_row(line: &str) -> bool {
    let id = line.trim_start_matches("| ").as_bytes();
    line.starts_with("| ") && id.len() > 4 && id[1] == b'-' && id[2].is_ascii_digit() && id[3].is_ascii_digit()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split(" | ").map(str::trim).collect()
}
