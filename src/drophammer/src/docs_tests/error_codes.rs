//! Tests that the manual and the program contain the same error codes.

use crate::local_commands::explain::manual_entry::{PAGES, read_entries};
use common::error::Phase;
use common::error_code::ErrorCode;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Titles of the groups in `docs/codes.md`, by the first digit of the codes.
const CODE_GROUP_TITLES: [(u16, &str); 8] = [
    (1, "Settings and commands"),
    (2, "Layouts and plans"),
    (3, "Storage"),
    (4, "Images"),
    (5, "The new system and its boot"),
    (6, "The control plane"),
    (7, "The server"),
    (8, "Migrations"),
];

#[test]
fn each_code_has_exactly_one_entry_in_the_manual() {
    let mut found: BTreeMap<ErrorCode, Vec<&str>> = BTreeMap::new();
    for (page, text) in PAGES {
        let entries = read_entries(page, text);
        assert_eq!(entries.len(), text.matches("\n**DH-").count(), "{page}: an entry cannot be parsed");
        for entry in entries {
            assert_eq!(entry.title, entry.code.title(), "{page}: {}", entry.code);
            assert!(entry.text.len() > 60, "{page}: {} has no explanation", entry.code);
            found.entry(entry.code).or_default().push(page);
        }
    }
    for code in ErrorCode::ALL {
        assert_eq!(found.get(code).map(Vec::len), Some(1), "{code} {}: {:?}", code.title(), found.get(code));
    }
}

/// Verbs in the imperative, with which the remedies in the manual begin.
const REMEDY_VERBS: [&str; 57] = [
    "add", "approve", "ask", "attach", "boot", "change", "check", "choose", "compare", "compute", "copy", "correct",
    "create", "delete", "disable", "enable", "enlarge", "erase", "follow", "free", "increase", "inspect", "install",
    "log", "look", "mount", "move", "omit", "order", "preserve", "provide", "rebuild", "reduce", "remove", "rename",
    "repair", "repeat", "replace", "reset", "restore", "run", "select", "serve", "set", "sign", "specify", "start",
    "stop", "switch", "type", "unlock", "unmount", "upgrade", "use", "verify", "wait", "write",
];

/// Returns the text of an entry in one line, without blocks of code.
fn flatten_prose(text: &str) -> String {
    let prose = text.split("```").step_by(2);
    prose.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Returns whether a sentence or clause of the text begins with a verb in the imperative.
fn has_remedy(prose: &str) -> bool {
    let clauses = [". ", ": ", "; ", ", "].into_iter().fold(vec![prose], |clauses, separator| {
        clauses.into_iter().flat_map(|clause| clause.split(separator)).collect()
    });
    let first_word = |clause: &str| {
        let clause = clause.trim_start_matches("* ");
        let clause = clause.strip_prefix("or ").or(clause.strip_prefix("and ")).unwrap_or(clause);
        clause.split(' ').next().unwrap_or_default().to_lowercase()
    };
    clauses.into_iter().any(|clause| REMEDY_VERBS.contains(&first_word(clause).as_str()))
}

#[test]
fn each_entry_describes_the_meaning_and_a_remedy() {
    let mut incomplete = Vec::new();
    for entry in PAGES.iter().flat_map(|(page, text)| read_entries(page, text)) {
        let prose = flatten_prose(entry.text);
        let is_complete = prose.matches(['.', ':']).count() >= 2 && has_remedy(&prose);
        incomplete.extend((!is_complete).then(|| format!("{} {} in {}: {prose}", entry.code, entry.title, entry.page)));
    }
    assert_eq!(incomplete, [] as [String; 0], "entries without a remedy");
}

/// Pages without entries may also mention codes, but only codes that exist.
#[test]
fn no_page_contains_an_unknown_code() {
    let changelog = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../CHANGELOG.md"));
    for path in super::links::pages().into_iter().chain([changelog.to_owned()]) {
        for rest in fs::read_to_string(&path).unwrap().split("DH-").skip(1) {
            let code = format!("DH-{}", rest.get(..3).unwrap_or_default());
            let is_code = rest.starts_with(|next: char| next.is_ascii_digit());
            assert!(!is_code || ErrorCode::parse(&code).is_some(), "{}: {code}", path.display());
        }
    }
}

/// Returns the anchor of a heading, by the rules of `docs_tests::links`.
fn anchor(title: &str) -> String {
    let hyphenated = title.to_lowercase().replace(' ', "-");
    hyphenated.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

/// Checks the tables in `docs/codes.md`. If this test fails, replace the tables with the ones in its message.
#[test]
fn the_table_of_codes_is_complete() {
    let entries: BTreeMap<ErrorCode, &str> =
        PAGES.iter().flat_map(|(page, text)| read_entries(page, text)).map(|entry| (entry.code, entry.page)).collect();
    let tables: String = CODE_GROUP_TITLES
        .iter()
        .map(|(group, title)| {
            let rows = entries.iter().filter(|(code, _)| code.number() / 100 == *group);
            let rows = rows
                .map(|(code, page)| format!("| {code} | [{0}]({page}#{1}) |\n", code.title(), anchor(code.title())));
            format!("\n## {title}\n\n| code | meaning |\n|---|---|\n{}", rows.collect::<String>())
        })
        .collect();
    let page = include_str!("../../../../docs/codes.md");
    assert!(page.ends_with(&tables), "{tables}");
}

/// Returns the product's Rust source files below a folder, without tests, and the scripts of the ramdisk.
fn product_sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_product = |path: &PathBuf| !path.file_stem().is_some_and(|name| name.to_string_lossy().contains("tests"));
    entries
        .filter(is_product)
        .flat_map(|path| if path.is_dir() { product_sources(&path) } else { vec![path] })
        .collect()
}

/// Checks that each code is used outside of the table and of tests.
#[test]
fn each_code_is_used() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut sources = String::new();
    for path in product_sources(&root.join("src")).into_iter().chain(product_sources(&root.join("initramfs/agent"))) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        sources += text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    }
    let general = [
        Phase::Settings,
        Phase::Control,
        Phase::Inventory,
        Phase::Layout,
        Phase::Plan,
        Phase::Storage,
        Phase::Image,
        Phase::Target,
        Phase::Boot,
        Phase::Move,
        Phase::Serve,
    ]
    .map(Phase::general_code);
    let is_used = |code: &ErrorCode| {
        let name = format!("ErrorCode::{}", code.name());
        let in_source = sources
            .match_indices(&name)
            .any(|(at, _)| !sources[at + name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric()));
        in_source || sources.contains(&format!("({code})")) || general.contains(code)
    };
    let unused: Vec<String> =
        ErrorCode::ALL.iter().filter(|code| !is_used(code)).map(|code| format!("{code} {}", code.name())).collect();
    assert_eq!(unused, [] as [String; 0]);
}
