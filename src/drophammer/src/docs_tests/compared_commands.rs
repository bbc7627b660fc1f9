//! Checks the commands in the table of `docs/command-comparison.md`, which compares drophammer with other tools.

use crate::cli::Cli;
use clap::Parser;

/// Values for placeholders in the table. Other words are used unchanged.
const VALUES: [(&str, &str); 4] = [("URL", "http://h"), ("SIZE", "c1"), ("ARGUMENTS", "quiet"), ("ID", "storage-7")];

#[test]
fn the_compared_commands_are_accepted() {
    let page = include_str!("../../../../docs/command-comparison.md");
    let rows = page.lines().filter(|line| line.starts_with("| `") || line.starts_with("| drophammer"));
    let right = rows.filter_map(|row| row.split(" | ").nth(1));
    let quoted = right.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let commands: Vec<&str> = quoted.filter(|text| text.starts_with("drophammer ")).collect();
    for command in &commands {
        let value = |word: &str| {
            VALUES.iter().find(|(name, _)| *name == word).map_or(word.to_owned(), |(_, value)| (*value).to_owned())
        };
        let words: Vec<String> = command.split_whitespace().map(value).collect();
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{command}: {error}");
        }
    }
    assert!(commands.len() > 50, "{}", commands.len());
}
