//! Tests that the source code contains the messages that the documentation quotes.

use crate::local_commands::explain::manual_entry::{PAGES, read_entries};
use std::fs;
use std::path::Path;
use testing::docs::code_blocks;

/// Minimum length of a constant part that identifies a message, in bytes.
const IDENTIFYING_BYTES: usize = 10;

/// Returns the contents of the product's source files below a folder, without tests. String literals that span several
/// lines are joined.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name == "tests" || name == "tests.rs") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if let Ok(text) = fs::read_to_string(&path) {
            found.push(text.split("\\\n").map(str::trim_start).collect());
        }
    }
    found
}

/// Returns the parts of a message outside of `<…>`. These parts are also split at punctuation, because the source code
/// may compose a message from several string literals.
fn clauses(message: &str) -> Vec<&str> {
    let parts = message.split('<').enumerate();
    let outside = parts.filter_map(|(index, part)| match index {
        0 => Some(part),
        _ => part.split_once('>').map(|(_, rest)| rest),
    });
    let clauses = outside.flat_map(|part| part.split(['"', ':', ';', '(', ')', ','])).map(str::trim);
    clauses.filter(|clause| clause.len() > 3).collect()
}

#[test]
fn documented_messages_exist_in_the_sources() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut sources = sources(&root.join("src"));
    sources.extend(self::sources(&root.join("initramfs/agent/root")));
    let mut missing = Vec::new();
    let mut count = 0;
    for (page, text) in PAGES {
        let messages = code_blocks(text, "text").join("\n");
        for message in messages.lines() {
            let clauses = clauses(message);
            let says = |source: &String| clauses.iter().all(|clause| source.contains(clause));
            if clauses.is_empty() || !sources.iter().any(says) {
                missing.push(format!("{page}: {message}: no source file contains all of {clauses:?}"));
            }
            count += 1;
        }
    }
    assert!(count > 150, "{count}");
    assert_eq!(missing, [""; 0]);
}

#[test]
fn each_entry_of_a_code_quotes_a_message() {
    let mut lacking = Vec::new();
    for entry in PAGES.iter().flat_map(|(page, text)| read_entries(page, text)) {
        let messages = code_blocks(entry.text, "text").join("\n");
        if !messages.lines().flat_map(clauses).any(|clause| clause.len() >= IDENTIFYING_BYTES) {
            lacking.push(format!("{} {} in {}", entry.code, entry.title, entry.page));
        }
    }
    assert_eq!(lacking, [""; 0], "entries without a message");
}
