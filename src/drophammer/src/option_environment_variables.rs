//! Environment variables of options: `DROPHAMMER_`, the words of the command, and the name of the option, in capitals,
//! such as `DROPHAMMER_CHECK_STRICT`. Options that order, approve, confirm or force an action, or erase data, have no
//! variable, so that a variable left over in the environment never changes a machine.

use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Command};
use std::ffi::OsStr;

/// Options of all commands. Their variables have shorter names, and are read by the code that selects the server.
const COMMON_OPTIONS: [&str; 3] = ["server", "context", "token-file"];

/// Values of an environment variable that leave its switch off, as in clap's `FalseyValueParser`.
const FALSE: [&str; 6] = ["0", "f", "false", "n", "no", "off"];

/// Commands whose options have no variable, because each option is part of an order or of a change, or determines
/// what is planned and approved.
pub(crate) const WITHOUT_VARIABLES: [&str; 20] = [
    "adopt",
    "reinstall",
    "plan",
    "site plan",
    "move key",
    "move receive",
    "move send",
    "machine adopt",
    "machine plan",
    "config set",
    "machine add",
    "machine allocate",
    "machine confirm",
    "machine lock",
    "machine modify",
    "machine move",
    "machine power",
    "machine reinstall",
    "os modify",
    "image modify",
];

/// Options that do not have a variable in any command: they erase data, approve, confirm or force an action, write
/// files in place, or disable a protection.
pub(crate) const DESTRUCTIVE: [&str; 18] = [
    "any-source-port",
    "apply-allocation",
    "approve",
    "change-promise",
    "fix",
    "force",
    "give-up",
    "init",
    "leave-locked",
    "older",
    "overwrite",
    "persistent-volume",
    "replace-newer",
    "resume",
    "unsigned",
    "unsigned-address",
    "without-marker",
    "write",
];

/// Type of option that a variable belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionType {
    Switch,
    WithValue,
}

/// Function that decides whether the variable with this name sets its option. A switch, for example, is not set by the
/// value `0` or `no`.
type IsSet = fn(&str, OptionType) -> bool;

/// Adds the variables to the options of a command and its subcommands. `is_set` returns whether a variable sets its
/// option. Variables that do not set their option are omitted: clap would treat a switch with the value 0 as present,
/// and refuse options that conflict with it.
pub fn add_variables(command: Command, is_set: IsSet) -> Command {
    add_to_command(command, "", is_set)
}

/// Returns whether the environment contains a value for the variable. A switch is not set by an empty value, `0`,
/// `false`, `f`, `no`, `n` or `off`.
pub fn is_variable_set(name: &str, option_type: OptionType) -> bool {
    // Subcommands of `serve` ignore the variables of `serve`. Otherwise, if such a variable were set, clap would also
    // require the arguments of `serve DIR`.
    let is_for_server = !std::env::args_os().nth(2).is_some_and(|word| word == "backup" || word == "restore");
    (is_for_server || !name.starts_with("DROPHAMMER_SERVE_"))
        && std::env::var_os(name).is_some_and(|value| sets_option(&value, option_type))
}

fn sets_option(value: &OsStr, option_type: OptionType) -> bool {
    let is_false = |word: &str| OsStr::new(word).eq_ignore_ascii_case(value);
    let is_off = option_type == OptionType::Switch && FALSE.into_iter().any(is_false);
    !is_off && !value.is_empty()
}

fn add_to_command(command: Command, path: &str, is_set: IsSet) -> Command {
    let is_used = |option: &Arg, name: &str| {
        is_set(name, if is_switch(option) { OptionType::Switch } else { OptionType::WithValue })
    };
    let command = command.mut_args(|option| match variable_name(path, &option).filter(|name| is_used(&option, name)) {
        Some(name) => add_to_option(option, name),
        None => option,
    });
    command.mut_subcommands(|below| {
        if below.is_hide_set() {
            return below;
        }
        let path = format!("{path} {}", below.get_name());
        add_to_command(below, path.trim_start(), is_set)
    })
}

/// Returns the name of the option's variable; `None` if the option must not have a variable, or has a variable of its
/// own already.
fn variable_name(path: &str, option: &Arg) -> Option<String> {
    let long = option.get_long().filter(|_| option.get_env().is_none() && !option.is_hide_set())?;
    if COMMON_OPTIONS.contains(&long)
        || is_output_format(path, long)
        || DESTRUCTIVE.contains(&long)
        || WITHOUT_VARIABLES.contains(&path)
    {
        return None;
    }
    // DROPHAMMER_JSON selects the output format of the operator's commands, and must not change the format of a
    // server's log.
    let words = if long == "json" && path != "serve" { String::new() } else { format!("{path}_") };
    Some(format!("DROPHAMMER_{words}{long}").to_uppercase().replace([' ', '-'], "_"))
}

/// Returns whether the option is the output format of a list or `show` command. Such a command reads
/// `DROPHAMMER_OUTPUT` itself. `audit` also has a variable of its own.
fn is_output_format(path: &str, long: &str) -> bool {
    let verb = path.rsplit(' ').next().unwrap_or_default();
    long == "output" && ["list", "show", "events", "history", "whoami", "explain"].contains(&verb)
}

fn is_switch(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::SetTrue)
}

fn add_to_option(option: Arg, name: String) -> Arg {
    let is_switch = is_switch(&option);
    // The name is leaked, because clap requires names that live as long as the program. The help does not show the
    // variable, which the manual pages list.
    let option = option.env(&*name.leak()).hide_env(true);
    if is_switch { option.value_parser(FalseyValueParser::new()) } else { option }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use clap::builder::TypedValueParser;

    /// Calls `check` with the path of each visible command and each of its options.
    fn for_each_option(command: &Command, path: &str, check: &mut impl FnMut(&str, &Arg)) {
        command.get_arguments().filter(|option| option.get_long().is_some()).for_each(|option| check(path, option));
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            for_each_option(below, format!("{path} {}", below.get_name()).trim_start(), check);
        }
    }

    #[test]
    fn every_option_has_a_variable_or_is_exempt() {
        let mut without = Vec::new();
        for_each_option(&add_variables(Cli::command(), |_, _| true), "", &mut |path, option| {
            let long = option.get_long().unwrap();
            let is_listed = DESTRUCTIVE.contains(&long)
                || COMMON_OPTIONS.contains(&long)
                || WITHOUT_VARIABLES.contains(&path)
                || is_output_format(path, long);
            if option.get_env().is_none() && !is_listed {
                without.push(format!("{path} --{long}"));
            }
            assert!(option.get_env().is_none() || !DESTRUCTIVE.contains(&long), "{path} --{long}");
        });
        assert_eq!(without, [""; 0]);
    }

    /// An exception that matches nothing would hide a misspelled name.
    #[test]
    fn every_exception_exists() {
        let (mut paths, mut options) = (Vec::new(), Vec::new());
        for_each_option(&Cli::command(), "", &mut |path, option| {
            paths.push(path.to_owned());
            options.push(option.get_long().unwrap().to_owned());
        });
        for listed in WITHOUT_VARIABLES {
            assert!(paths.iter().any(|path| path == listed), "{listed}");
        }
        for listed in DESTRUCTIVE.iter().chain(&COMMON_OPTIONS) {
            assert!(options.iter().any(|option| option == listed), "{listed}");
        }
    }

    #[test]
    fn the_documentation_lists_all_exceptions() {
        let page = include_str!("../../../docs/commands.md");
        let section = page.split("## Environment").nth(1).unwrap().split("\n## ").next().unwrap();
        for option in DESTRUCTIVE {
            assert!(section.contains(&format!("`--{option}`")), "{option}");
        }
        for command in WITHOUT_VARIABLES {
            assert!(
                section.contains(&format!("`{command}`")) || section.contains(&format!("`drophammer {command}`")),
                "{command}"
            );
        }
    }

    /// Each name belongs to one option; only variables that change the display are shared.
    #[test]
    fn every_variable_belongs_to_one_option() {
        let mut all = Vec::new();
        for_each_option(&add_variables(Cli::command(), |_, _| true), "", &mut |path, option| {
            if let Some(name) = option.get_env() {
                all.push((name.to_string_lossy().into_owned(), path.to_owned()));
            }
        });
        all.sort();
        let shared =
            ["DROPHAMMER_ALL", "DROPHAMMER_JSON", "DROPHAMMER_NO_HEADERS", "DROPHAMMER_VERBOSE", "DROPHAMMER_WATCH"];
        for pair in all.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            assert!(shared.contains(&pair[0].0.as_str()), "{pair:?}");
        }
        for (name, path) in [
            ("DROPHAMMER_CHECK_STRICT", "check"),
            ("DROPHAMMER_SERVE_LISTEN", "serve"),
            ("DROPHAMMER_MACHINE_LIST_FILTER", "machine list"),
        ] {
            assert!(all.contains(&(name.to_owned(), path.to_owned())), "{name}");
        }
    }

    #[test]
    fn false_value_does_not_set_a_switch() {
        for (value, is_switch_set, is_value_set) in [
            ("", false, false),
            ("0", false, true),
            ("False", false, true),
            ("no", false, true),
            ("off", false, true),
            ("1", true, true),
            ("true", true, true),
        ] {
            assert_eq!(sets_option(value.as_ref(), OptionType::Switch), is_switch_set, "{value}");
            assert_eq!(sets_option(value.as_ref(), OptionType::WithValue), is_value_set, "{value}");
        }
        for word in FALSE {
            let parsed = FalseyValueParser::new().parse_ref(&Command::new("c"), None, word.as_ref());
            assert!(!parsed.unwrap(), "{word}");
        }
    }
}
