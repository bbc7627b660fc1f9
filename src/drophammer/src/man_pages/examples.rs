//! Examples in the manual pages: the examples in `--help`, and further ones for commands whose help contains none.

use super::page_sections::is_exit_status;
use clap::Command;

/// Examples that the `--help` of the parent command does not show.
const ADDITIONAL_EXAMPLES: [&str; 55] = [
    "drophammer serve backup /srv/drophammer /backup/drophammer-2026-11-22",
    "drophammer serve restore /srv/drophammer /backup/drophammer-2026-11-22",
    "drophammer image list --all",
    "drophammer machine list --filter phase=failed",
    "drophammer machine events storage-7",
    "drophammer machine history storage-7",
    "drophammer machine allocate web-1 web-2 --image debian-13.1.20261101 --ssh-key id.pub",
    "drophammer machine free storage-7",
    "drophammer machine lock storage-7 storage-8 --reason 'holds the only copy'",
    "drophammer machine unlock storage-7 storage-8",
    "drophammer rollout list",
    "drophammer rollout cancel 7",
    "drophammer machine plan storage-7 --image debian-13.1.20261101",
    "drophammer machine modify web-1 -O track=testing",
    "drophammer machine move storage-7 storage-8",
    "drophammer machine adopt --waiting",
    "drophammer machine boot-digest storage-7 --at https://install.rack:8443",
    "drophammer machine confirm storage-7",
    "drophammer layout create default.yaml",
    "drophammer layout delete old",
    "drophammer layout list",
    "drophammer os list",
    "drophammer os show web",
    "drophammer volume list",
    "drophammer volume show db-1",
    "drophammer volume add web-1 volumes.yaml",
    "drophammer config list",
    "drophammer config use install.rack",
    "drophammer config delete bench",
    "drophammer template list",
    "drophammer template create mirror.yaml",
    "drophammer template delete CUSTOM_MIRROR",
    "drophammer size list --sort memory",
    "drophammer size show c1-small",
    "drophammer size create c1-small.yaml",
    "drophammer size delete c1-small",
    "drophammer user list",
    "drophammer user show ann",
    "drophammer user modify ann --role viewer",
    "drophammer user disable operator",
    "drophammer user enable operator",
    "drophammer user delete ann",
    "drophammer user token list ann",
    "drophammer user token create ci deploy --expires never",
    "drophammer user token revoke ann laptop",
    "drophammer user add ci --role operator",
    "drophammer site list /srv/drophammer",
    "drophammer site check /srv/drophammer",
    "drophammer site apply -f /srv/rack --dry-run",
    "drophammer site export /srv/rack",
    "drophammer site plan /srv/drophammer --image debian-13.1.20261101",
    "drophammer check default.yaml",
    "drophammer completion bash",
    "drophammer man /usr/local/share/man/man1",
    "drophammer schema machine",
];

/// Returns the text with the examples of the last command in `path`.
pub(super) fn examples_of(path: &[&Command]) -> String {
    let Some((command, above)) = path.split_last() else { return String::new() };
    if let Some(own) = help_examples(command) {
        return own;
    }
    let words: Vec<&str> = path.iter().map(|command| command.get_name()).collect();
    let related = above.iter().copied().chain(command.get_subcommands());
    let of_related: Vec<String> = related.filter_map(help_examples).collect();
    let lines = of_related.iter().flat_map(|text| text.lines().map(str::trim)).chain(ADDITIONAL_EXAMPLES);
    let mut all: Vec<&str> = lines.filter(|line| is_example_of(line, &words)).collect();
    all.dedup();
    all.iter().map(|line| format!("  {line}\n")).collect()
}

/// Returns whether an example runs the command with these words, or one of its subcommands.
fn is_example_of(line: &str, words: &[&str]) -> bool {
    line.split_whitespace().take(words.len()).eq(words.iter().copied())
}

/// Returns the examples in the help of a command, with their titles.
fn help_examples(command: &Command) -> Option<String> {
    let help = command.get_after_help()?.to_string();
    let is_example = |paragraph: &&str| !is_exit_status(paragraph) && !paragraph.starts_with("Files:");
    let text = help.split("\n\n").filter(is_example).collect::<Vec<_>>().join("\n\n");
    let text = ["Examples:", "Example:"].iter().find_map(|title| text.strip_prefix(title)).unwrap_or(&text);
    let text = text.trim_start_matches([' ', '\n']);
    (!text.is_empty()).then(|| match text.starts_with("drophammer ") {
        true => format!("  {text}\n"),
        false => format!("{text}\n"),
    })
}
