//! The examples in `docs/` are held to what the program does.

use crate::allocation::Machine;
use crate::layout;
use crate::problem::lines;

/// The fenced blocks of that language.
pub fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next()).map(str::to_owned).collect()
}

#[test]
fn the_layouts_in_the_docs_are_valid_and_canonical() {
    let blocks = blocks(include_str!("../docs/layouts.md"), "yaml");
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let parsed = layout::read_yaml(&block).unwrap_or_else(|problems| panic!("{block}{}", lines(&problems)));
        assert_eq!(parsed.notes, [], "{block}");
    }
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
        ("createoptions: [\"-F\", \"32\"]", "createoptions: [\"-F 32\"]"),
        (
            "mountoptions: [noatime, nosuid, nodev, mode=1777, size=512M]",
            "mountoptions: \"noatime, nosuid,nodev,mode=1777,size=512M\"",
        ),
        ("gpttype: \"8300\"", "gpttype: 8300"),
        ("size: 500,", "size: \"500\","),
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

#[test]
fn the_extents_in_the_docs_are_such() {
    let block = &blocks(include_str!("../docs/plan.md"), "json")[0];
    let plan: serde_json::Value = serde_json::from_str(&format!("{{{block}}}")).unwrap();
    let extents: Vec<crate::plan::Extents> = serde_json::from_value(plan["extents"].clone()).unwrap();
    assert_eq!((extents.len(), extents[1].disks[0].device.as_str()), (2, "/dev/sda"));
}

/// Every expression in the table of hints.
#[test]
fn the_hints_in_the_docs_are_understood() {
    let text = include_str!("../docs/layouts.md");
    let mut of = "";
    let mut found = 0;
    let table = text.split("| of | expression | matches |").nth(1).unwrap().split("\n\n").next().unwrap();
    for row in table.lines().filter(|row| row.contains('`')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        of = if cells[1].is_empty() { of } else { cells[1] };
        let hint = if of == "numbers" { "size" } else { "model" };
        for expression in cells[2].split('`').skip(1).step_by(2) {
            let hints = [(hint.to_owned(), expression.to_owned())].into();
            assert_eq!(layout::hints::problems(&hints), [], "{expression}");
            found += 1;
        }
    }
    assert!(found > 20, "{found}");
}

/// Each `drophammer image …` of the page is one that the command line takes.
#[cfg(all(feature = "agent", feature = "desk"))]
#[test]
fn the_commands_about_images_in_the_docs_are_understood() {
    use clap::Parser;
    let blocks = blocks(include_str!("../docs/images.md"), "sh").join("\n");
    let commands: Vec<_> = blocks.lines().filter(|line| line.starts_with("drophammer ")).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        crate::cli::Cli::try_parse_from(command.split_whitespace())
            .unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[cfg(feature = "agent")]
#[test]
fn the_manifest_and_the_key_in_the_docs_are_such() {
    let text = include_str!("../docs/images.md");
    let manifest = crate::image::Manifest::parse(blocks(text, "json")[0].as_bytes()).unwrap();
    assert_eq!(manifest.chunks.len(), 2);
    let key = text.split("`drophammer.key=").nth(1).unwrap().split('`').next().unwrap();
    let keys = crate::image::Keys::read(&[key.to_owned()], std::path::Path::new("/no/such/directory")).unwrap();
    assert_eq!(keys.0.len(), 1);
}
