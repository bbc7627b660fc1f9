//! The examples in `docs/` are held to what the program does.

use crate::allocation::Machine;
use crate::layout;

/// The fenced blocks of that language.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).map(str::to_owned).collect()
}

#[test]
fn the_layout_in_the_docs_is_valid_and_canonical() {
    let blocks = blocks(include_str!("../docs/layouts.md"), "yaml");
    assert_eq!(blocks.len(), 1);
    let parsed = layout::read_yaml(&blocks[0]).unwrap();
    assert_eq!(parsed.notes, []);
}

#[test]
fn the_spellings_in_the_docs_are_understood() {
    let text = include_str!("../docs/layouts.md");
    let example = &blocks(text, "yaml")[0];
    let spellings = [
        ("wipeonreinstall: true", "wipe: true"),
        ("gpttype: ef00", "type: GPTBoot"),
        ("gpttype: \"8300\"", "type: GPTLinux"),
        ("createoptions: [\"-F\", \"32\"]", "options: \"-F 32\""),
        ("sizes: [c1-large-x86]", "size: [c1-large-x86]"),
        ("\">= 12\"", "\">=12\""),
    ];
    let canonical = layout::read_yaml(example).unwrap().layout;
    for (canonical_spelling, other) in spellings {
        assert!(example.contains(canonical_spelling), "{canonical_spelling}");
        let parsed = layout::read_yaml(&example.replace(canonical_spelling, other)).unwrap();
        assert_eq!(parsed.layout, canonical, "{other}");
        assert!(!parsed.notes.is_empty(), "{other}");
    }
}

#[test]
fn the_allocation_in_the_docs_is_one() {
    let blocks = blocks(include_str!("../docs/api.md"), "json");
    assert_eq!(blocks.len(), 1);
    let machine: Machine = serde_json::from_str(&blocks[0]).unwrap();
    assert_eq!(machine.allocation.unwrap().hostname, "storage-7");
}
