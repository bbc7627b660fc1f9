//! Tests that the manual and the program agree on the error codes.

use crate::commands::explain::manual_entry::{PAGES, read_entries};
use common::error::Phase;
use common::error_code::ErrorCode;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the titles of the groups in `docs/codes.md`, by the first digit of the codes.
const GROUPS: [(u16, &str); 8] = [
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

/// Other pages may mention codes, but do not contain entries.
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

/// Returns the anchor of a heading, as in `docs_tests::links`.
fn anchor(title: &str) -> String {
    let hyphenated = title.to_lowercase().replace(' ', "-");
    hyphenated.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

/// Checks the tables in `docs/codes.md`. If this test fails, replace the tables by those in the message.
#[test]
fn the_table_of_codes_is_complete() {
    let entries: BTreeMap<ErrorCode, &str> =
        PAGES.iter().flat_map(|(page, text)| read_entries(page, text)).map(|entry| (entry.code, entry.page)).collect();
    let tables: String = GROUPS
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

/// Returns the Rust sources of the product below a folder, without tests, and the scripts of the ramdisk.
fn product_sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_product = |path: &PathBuf| !path.file_stem().is_some_and(|name| name.to_string_lossy().contains("tests"));
    entries
        .filter(is_product)
        .flat_map(|path| if path.is_dir() { product_sources(&path) } else { vec![path] })
        .collect()
}

/// Checks that the product uses each code: outside of the table, and outside of tests.
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
