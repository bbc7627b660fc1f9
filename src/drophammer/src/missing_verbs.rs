//! Explanations of verbs that a noun does not have, such as `drophammer machine delete`.

use clap::Command;

/// Verbs with the same meaning. The first verb of each group is the key of [`MISSING_VERBS`].
const SYNONYMS: [&[&str]; 5] = [
    &["create", "add", "new"],
    &["delete", "rm", "remove", "del", "destroy"],
    &["apply", "edit", "update", "modify", "set", "replace"],
    &["show", "get", "describe", "info", "inspect", "view", "cat"],
    &["list", "ls"],
];

/// Nouns, the verbs that they lack, and the replacements.
const MISSING_VERBS: [(&str, &[&str], &str); 16] = [
    (
        "machine",
        &["delete"],
        "`drophammer machine free` removes the allocation of a machine; to remove the machine itself, delete its file in machines/ of the server's directory, or, if the documents are in the database, use `drophammer site apply --prune`",
    ),
    (
        "machine",
        &["apply"],
        "edit the file of the machine in machines/ of the server's directory, or, if the documents are in the database, use `drophammer site apply`",
    ),
    (
        "machine",
        &["install"],
        "`drophammer machine allocate` installs a free machine, and `reinstall` an installed one",
    ),
    ("machine", &["cancel"], "`drophammer machine reinstall MACHINE --cancel` cancels a reinstall"),
    ("machine", &["reboot", "restart", "reset"], "`drophammer machine power cycle MACHINE` restarts a machine"),
    (
        "rollout",
        &["create", "start"],
        "`drophammer machine reinstall` with several machines or --filter orders a rollout",
    ),
    (
        "rollout",
        &["delete", "stop", "abort"],
        "`drophammer rollout cancel` ends a rollout, and `halt` interrupts it; rollouts that have ended are part of the history",
    ),
    (
        "rollout",
        &["apply"],
        "a rollout cannot be changed: cancel it, and order another one with `drophammer machine reinstall`",
    ),
    (
        "os",
        &["create", "apply", "delete"],
        "an OS definition consists of programs: edit its folder in os/ of the server's directory, or use `drophammer site apply`",
    ),
    (
        "volume",
        &["apply"],
        "a volume cannot be changed, because its data depends on its definition: use `drophammer volume delete`, then `volume add`",
    ),
    ("user", &["apply"], "users are not defined in files: use `drophammer user modify`"),
    (
        "site",
        &["show", "delete"],
        "`drophammer site list DIR` lists the files of a server's directory; delete or edit the files themselves",
    ),
    ("site", &["create", "init"], "`drophammer serve --init DIR` creates a server's directory"),
    ("config", &["create"], "`drophammer login URL` or `drophammer config set NAME --server URL` creates a context"),
    ("config", &["show"], "`drophammer config list` lists the contexts"),
    ("template", &["run"], "a template is applied by the traits in the machine file"),
];

/// Returns the replacement of a verb that the noun of the command does not have; `None` if no replacement is known.
pub fn explain_missing_verb(noun: &Command, verb: &str) -> Option<String> {
    let group = SYNONYMS.into_iter().find(|group| group.contains(&verb));
    let key = group.map_or(verb, |group| group[0]);
    let explained = MISSING_VERBS.iter().find(|(name, verbs, _)| *name == noun.get_name() && verbs.contains(&key));
    if let Some((_, _, text)) = explained {
        return Some((*text).to_owned());
    }
    let existing = group?.iter().find(|synonym| noun.find_subcommand(synonym).is_some())?;
    Some(format!("use `drophammer {} {existing}`", noun.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn explain(noun: &str, verb: &str) -> Option<String> {
        let command = Cli::command();
        let noun = command.find_subcommand(noun).unwrap_or_else(|| panic!("{noun}"));
        assert!(noun.find_subcommand(verb).is_none(), "{} {verb} exists", noun.get_name());
        explain_missing_verb(noun, verb)
    }

    /// Each verb that the manual describes as missing is explained.
    #[test]
    fn verbs_that_the_manual_lists_as_missing_are_explained() {
        let page = include_str!("../../../docs/commands.md");
        let (_, table) = page.split_once("The following verbs do not exist").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let cells = table.lines().filter(|line| line.starts_with("| `")).filter_map(|row| row.split(" | ").next());
        let commands: Vec<(&str, &str)> =
            cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter_map(|text| text.split_once(' ')).collect();
        assert!(commands.len() >= 11, "{commands:?}");
        for (noun, verb) in commands {
            assert!(explain(noun, verb).is_some_and(|text| text.contains(' ')), "{noun} {verb}");
        }
    }

    #[test]
    fn synonyms_of_existing_verbs_are_explained() {
        for (noun, verb, expected) in [
            ("layout", "get", Some("use `drophammer layout show`")),
            ("image", "remove", Some("use `drophammer image delete`")),
            ("size", "edit", Some("use `drophammer size apply`")),
            ("user", "update", Some("users are not defined in files: use `drophammer user modify`")),
            (
                "site",
                "describe",
                Some(
                    "`drophammer site list DIR` lists the files of a server's directory; delete or edit the files themselves",
                ),
            ),
            ("image", "fly", None),
            ("rollout", "fly", None),
        ] {
            assert_eq!(explain(noun, verb).as_deref(), expected, "{noun} {verb}");
        }
    }

    #[test]
    fn explained_verbs_do_not_exist() {
        for (noun, verbs, _) in MISSING_VERBS {
            for verb in verbs {
                assert!(explain(noun, verb).is_some(), "{noun} {verb}");
            }
        }
    }
}
