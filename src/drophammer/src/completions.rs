//! `drophammer completion` and `drophammer man`: shell completions and manual pages, generated from the command line definition.

use crate::cli::{Cli, CompletionShell};
use clap::CommandFactory;
use clap_complete::aot;
use common::error::{Context, Phase, Result};
use common::exit_status::CommandOutcome;
use common::output::print_text;
use std::path::Path;

const NAME: &str = "drophammer";

/// Prints the completion script for a shell.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print_completion(shell: CompletionShell) -> Result<CommandOutcome> {
    print_text(&completion_script(shell)).map(|()| CommandOutcome::Good)
}

fn completion_script(shell: CompletionShell) -> String {
    let shell = match shell {
        CompletionShell::Bash => aot::Shell::Bash,
        CompletionShell::Zsh => aot::Shell::Zsh,
        CompletionShell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut Cli::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a manual page for each command to a directory.
///
/// # Errors
/// Returns an error if the directory or a page cannot be written.
pub fn write_man_pages(folder: &Path) -> Result<CommandOutcome> {
    let what = || format!("write manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).context(Phase::Settings, what)?;
    clap_mangen::generate_to(Cli::command(), folder).context(Phase::Settings, what)?;
    Ok(CommandOutcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::process::ToolCommand;
    use std::time::Duration;

    /// Deadline for a shell, far longer than any shell needs.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Adds the names of all visible subcommands, as in their manual pages.
    fn commands(command: &clap::Command, above: &str, all: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = format!("{above}-{}", below.get_name());
            commands(below, &name, all);
            all.push(name);
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(&folder.path().join("man1")).unwrap();
        let mut all = vec![NAME.to_owned()];
        commands(&Cli::command(), NAME, &mut all);
        assert!(all.len() > 10);
        for name in all {
            let page = std::fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
    }

    /// zsh script that starts an interactive shell in a pseudoterminal, and types `rei` and a tab there.
    const ZSH: &str = r#"
        zmodload zsh/zpty
        zpty shell "zsh -f -i"
        zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy"
        zpty -r -m shell line '*ready*'
        zpty -w -n shell $'drophammer machine rei\t'
        zpty -r -m shell line '*reinstall*' && echo machine reinstall
        zpty -d shell
    "#;
    const BASH: &str = r#"
        . "$1/drophammer"
        COMP_WORDS=(drophammer machine rei) COMP_CWORD=2
        _drophammer drophammer rei machine
        echo machine "${COMPREPLY[@]}"
    "#;
    const FISH: &str = r#"
        source $argv[1]/drophammer.fish
        echo machine (complete -C "drophammer machine rei" | string split -f 1 \t)
    "#;

    #[test]
    fn real_shells_complete_it() {
        for (shell, name, options, asks) in [
            (CompletionShell::Bash, "drophammer", ["--norc", "--noprofile"].as_slice(), BASH),
            (CompletionShell::Zsh, "_drophammer", &["-f"], ZSH),
            (CompletionShell::Fish, "drophammer.fish", &["--no-config"], FISH),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(name), completion_script(shell)).unwrap();
            std::fs::write(folder.path().join("asks"), asks).unwrap();
            let program = format!("{shell:?}").to_lowercase();
            // The home directory is temporary, because some shells write files to it at every start.
            let command = ToolCommand::new(&program).args(options).arg(folder.path().join("asks")).arg(folder.path());
            let command = command.env("HOME", folder.path()).env("XDG_DATA_HOME", folder.path()).deadline(DEADLINE);
            let output = command.run().unwrap_or_else(|error| panic!("{program}: {error}"));
            assert_eq!(output.stdout.trim(), "machine reinstall", "{program}");
        }
    }
}
