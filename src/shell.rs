//! `drophammer completion` and `drophammer man`: what shells and `man` know of the command line, made of the command line itself.

use crate::cli::{Cli, Shell};
use crate::error::{Context, Phase, Result};
use crate::exit::Exit;
use crate::stdout::print;
use clap::CommandFactory;
use clap_complete::aot;
use std::path::Path;

const NAME: &str = "drophammer";

/// Prints what completes it.
///
/// # Errors
/// It cannot be printed.
pub fn completion(shell: Shell) -> Result<Exit> {
    print(&script(shell)).map(|()| Exit::Good)
}

fn script(shell: Shell) -> String {
    let shell = match shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut Cli::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a page for each command into a folder.
///
/// # Errors
/// One cannot be written.
pub fn man(folder: &Path) -> Result<Exit> {
    let what = || format!("write manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).context(Phase::Settings, what)?;
    clap_mangen::generate_to(Cli::command(), folder).context(Phase::Settings, what)?;
    Ok(Exit::Good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// Commands that people give, below this one.
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
        man(&folder.path().join("man1")).unwrap();
        let mut all = vec![NAME.to_owned()];
        commands(&Cli::command(), NAME, &mut all);
        assert!(all.len() > 10);
        for name in all {
            let page = std::fs::read_to_string(folder.path().join(format!("man1/{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
    }

    /// Where a shell is installed, it has the last word.
    #[test]
    fn shells_take_what_completes_it() {
        for shell in Shell::value_variants() {
            let (name, script) = (format!("{shell:?}").to_lowercase(), script(*shell));
            for words in ["completion", "machine", "reinstall", "server"] {
                assert!(script.contains(words), "{name}: {words}");
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &script).unwrap();
            // `-n` reads, and runs nothing.
            match std::process::Command::new(&name).arg("-n").arg(file.path()).output() {
                Ok(output) => assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr)),
                Err(error) => eprintln!("{name} is not here: {error}"),
            }
        }
    }
}
