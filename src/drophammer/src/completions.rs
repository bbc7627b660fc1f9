//! `drophammer completion`: shell completions, generated from the definition of the command line.

use crate::cli::{Cli, CompletionShell};
use clap::CommandFactory;
use clap_complete::aot;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::print_text;

const NAME: &str = "drophammer";

const BASH_NAMES: &str = r#"
_drophammer_names() {
    local -a names
    mapfile -t names < <("${COMP_WORDS[0]}" complete -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if ((${#names[@]})); then
        # By default, readline replaces only the text after the last equals sign.
        local word=${COMP_LINE:0:COMP_POINT}
        word=${word##*[[:space:]]}
        if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then names=("${names[@]#"${word%=*}="}"); fi
        if [[ ${names[0]} == *= ]]; then compopt -o nospace; fi
        COMPREPLY=("${names[@]}")
    else
        _drophammer "$@"
    fi
}
complete -F _drophammer_names -o bashdefault -o default drophammer
"#;
const ZSH_NAMES: &str = r#"_drophammer() {
    local -a names
    names=(${(f)"$($words[1] complete -- "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    if (($#names)) && [[ $names[1] == *= ]]; then
        compadd -S '' -a names
    elif (($#names)); then
        compadd -a names
    else
        _drophammer_static "$@"
    fi
}

"#;
const FISH_NAMES: &str = r#"
function __drophammer_names
    set -l line (commandline -cp)
    drophammer complete -- "$line" 2>/dev/null
end
complete -c drophammer -a '(__drophammer_names)'
"#;

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
    let script = String::from_utf8_lossy(&script);
    match shell {
        // The function `_drophammer` of the script is renamed. The new `_drophammer` requests the names from the
        // server, and calls the original function if the server does not return names.
        aot::Shell::Zsh => script.replacen("\n_drophammer() {", &format!("\n{ZSH_NAMES}_drophammer_static() {{"), 1),
        aot::Shell::Fish => format!("{script}{FISH_NAMES}"),
        _ => format!("{script}{BASH_NAMES}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::process::ToolCommand;
    use std::time::Duration;
    use testing::executables::write_executable;

    /// Time limit for a shell, far longer than any shell needs.
    const SHELL_TIMEOUT: Duration = Duration::from_secs(60);

    /// Program in place of drophammer that completes only the names of machines.
    const STUB: &str =
        "#!/bin/sh\n[ \"$1 $3\" != 'complete drophammer machine show st' ] || printf 'storage-7\\nstorage-8\\n'\n";

    /// zsh script that starts an interactive shell in a pseudoterminal, and types the beginnings of two commands, each
    /// followed by a tab.
    const ZSH: &str = r#"
        zmodload zsh/zpty
        zpty shell "zsh -f -i"
        zpty -w shell "PS1=; PATH=$1:\$PATH; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; echo rea''dy"
        zpty -r -m shell line '*ready*'
        zpty -w -n shell $'drophammer machine rei\t'
        zpty -r -m shell line '*reinstall*' && echo machine reinstall
        zpty -w -n shell $'\Cudrophammer machine show st\t'
        zpty -r -m shell line '*storage-*' && echo storage-7 storage-8
        zpty -d shell
    "#;
    const BASH: &str = r#"
        PATH=$1:$PATH
        . "$1/drophammer.bash"
        complete_at_end() {
            COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=2
            _drophammer_names drophammer "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            echo "${COMPREPLY[@]}"
        }
        echo machine $(complete_at_end "drophammer machine rei")
        complete_at_end "drophammer machine show st"
    "#;
    const FISH: &str = r#"
        set PATH $argv[1] $PATH
        source $argv[1]/drophammer.fish
        echo machine (complete -C "drophammer machine rei" | string split -f 1 \t)
        echo (complete -C "drophammer machine show st" | string match 'storage-*')
    "#;

    #[test]
    fn bash_inserts_only_the_rest_of_a_filter() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("drophammer.bash"), completion_script(CompletionShell::Bash)).unwrap();
        let asks = format!("{BASH}\ncomplete_at_end 'drophammer machine list --filter phase=f'\n");
        std::fs::write(folder.path().join("asks"), asks).unwrap();
        let stub = "#!/bin/sh\n[ \"$1\" != complete ] || printf 'phase=failed\\nphase=free\\n'\n";
        write_executable(&folder.path().join("drophammer"), stub);
        let command = ToolCommand::new("bash").args(["--norc", "--noprofile"]).arg(folder.path().join("asks"));
        let output = command.arg(folder.path()).env("HOME", folder.path()).deadline(SHELL_TIMEOUT).run().unwrap();
        assert_eq!(output.stdout.lines().last(), Some("failed free"));
    }

    #[test]
    fn real_shells_complete_commands_and_names() {
        for (shell, name, options, asks) in [
            (CompletionShell::Bash, "drophammer.bash", ["--norc", "--noprofile"].as_slice(), BASH),
            (CompletionShell::Zsh, "_drophammer", &["-f"], ZSH),
            (CompletionShell::Fish, "drophammer.fish", &["--no-config"], FISH),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(name), completion_script(shell)).unwrap();
            std::fs::write(folder.path().join("asks"), asks).unwrap();
            write_executable(&folder.path().join("drophammer"), STUB);
            let program = format!("{shell:?}").to_lowercase();
            // The home directory is temporary, because some shells write files to it whenever they start.
            let command = ToolCommand::new(&program).args(options).arg(folder.path().join("asks")).arg(folder.path());
            let command =
                command.env("HOME", folder.path()).env("XDG_DATA_HOME", folder.path()).deadline(SHELL_TIMEOUT);
            let output = command.run().unwrap_or_else(|error| panic!("{program}: {error}"));
            assert_eq!(output.stdout.trim(), "machine reinstall\nstorage-7 storage-8", "{program}");
        }
    }
}
