//! Examples in `--help` and in the manual pages.

use crate::man_pages::is_exit_status;
use clap::Command;

/// Examples of commands whose definition contains none, in addition to those of their parent commands.
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

/// Maximum number of examples that are added to the help of a command.
const MAX_ADDED_EXAMPLES: usize = 3;

/// Adds examples to the help of each visible command whose help contains none: those in the help of related commands,
/// and the additional examples.
pub fn add_examples(command: Command) -> Command {
    let name = command.get_name().to_owned();
    add_to_command(command, &name, &[])
}

/// Adds examples to a command and its subcommands. `path` contains the names from `drophammer` to this command, and
/// `inherited` the lines of the examples of its parent commands.
fn add_to_command(command: Command, path: &str, inherited: &[String]) -> Command {
    let to_lines = |text: String| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let own: Vec<String> = help_examples(&command).map(to_lines).unwrap_or_default();
    let words: Vec<&str> = path.split(' ').collect();
    let known: Vec<String> = inherited.iter().cloned().chain(own.clone()).collect();
    let command = match own.is_empty() {
        true => {
            let below = command.get_subcommands().filter_map(help_examples).flat_map(to_lines);
            let additional = ADDITIONAL_EXAMPLES.map(str::to_owned);
            let lines = inherited.iter().cloned().chain(below).chain(additional);
            let lines: Vec<String> = lines.filter(|line| is_example_of(line, &words)).collect();
            with_examples(command, &lines)
        }
        false => command,
    };
    command.mut_subcommands(|below| match below.is_hide_set() {
        true => below,
        false => {
            let path = format!("{path} {}", below.get_name());
            add_to_command(below, &path, &known)
        }
    })
}

/// Adds the first examples to the help of a command, before the exit status.
fn with_examples(command: Command, lines: &[String]) -> Command {
    let mut examples: Vec<&String> = Vec::new();
    for line in lines {
        if examples.len() < MAX_ADDED_EXAMPLES && !examples.contains(&line) {
            examples.push(line);
        }
    }
    if examples.is_empty() {
        return command;
    }
    let title = if examples.len() == 1 { "Example:" } else { "Examples:" };
    let text: String = examples.iter().map(|line| format!("\n  {line}")).collect();
    let rest = command.get_after_help().map(|help| format!("\n\n{help}")).unwrap_or_default();
    command.after_help(format!("{title}{text}{rest}"))
}

/// Returns whether an example runs the command with these words, or one of its subcommands.
fn is_example_of(line: &str, words: &[&str]) -> bool {
    line.split_whitespace().take(words.len()).eq(words.iter().copied())
}

/// Returns the examples in the help of a command, with their titles.
pub(crate) fn help_examples(command: &Command) -> Option<String> {
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
