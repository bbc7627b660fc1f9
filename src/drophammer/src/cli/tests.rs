//! Tests that all nouns have the same verbs and options.

use super::*;
use clap::CommandFactory;
use server::ServeCommand;
use std::path::Path;

#[test]
fn serve_accepts_directory_backup_or_restore() {
    let serve = |arguments: &[&str]| {
        let all = ["drophammer", "serve"].iter().chain(arguments);
        Cli::try_parse_from(all).ok().map(|cli| match cli.command {
            CliCommand::Serve(serve) => *serve,
            other => panic!("{other:?}"),
        })
    };
    let dir = serve(&["/srv/d", "--listen", "127.0.0.1:0", "--json"]).unwrap();
    assert!(dir.command.is_none() && dir.options.unwrap().dir == Path::new("/srv/d"));
    use ServeCommand::{Backup, Restore};
    for (arguments, dir) in [(&["backup", "/srv/d", "/b"][..], "/srv/d"), (&["backup", "/b"], ".")] {
        let Some(Backup(command)) = serve(arguments).unwrap().command else { panic!("{arguments:?}") };
        assert_eq!((command.dir.as_path(), command.file.as_path()), (Path::new(dir), Path::new("/b")));
    }
    for (arguments, older) in [(&["restore", "/b", "--older"][..], true), (&["restore", "/srv/d", "/b"], false)] {
        let Some(Restore(command)) = serve(arguments).unwrap().command else { panic!("{arguments:?}") };
        assert_eq!((command.older, command.file.as_path()), (older, Path::new("/b")));
    }
    for bad in [&[][..], &["--json"], &["backup"], &["restore"], &["/srv/d", "backup", "/b"]] {
        assert!(serve(bad).is_none_or(|serve| serve.command.is_none() && serve.options.is_none()), "{bad:?}");
    }
}

/// Returns the command at a path such as `image list`.
fn find_command(path: &str) -> clap::Command {
    let mut command = Cli::command();
    command.build();
    path.split(' ').fold(command, |command, name| {
        command.find_subcommand(name).unwrap_or_else(|| panic!("{path}: no {name}")).clone()
    })
}

#[test]
fn all_objects_have_the_same_subcommands() {
    for noun in ["image", "layout", "os", "rollout", "size", "template", "user", "volume"] {
        let [list, alias] = ["list", "ls"].map(|verb| find_command(&format!("{noun} {verb}")));
        assert_eq!(list.get_name(), alias.get_name());
        find_command(&format!("{noun} show"));
    }
    for noun in ["image", "layout", "machine", "size", "template", "user", "volume"] {
        let [add, create] = ["add", "create"].map(|verb| find_command(&format!("{noun} {verb}")));
        assert_eq!(add.get_name(), create.get_name());
    }
    for noun in ["config", "image", "layout", "size", "template", "user", "volume"] {
        assert!(find_command(&format!("{noun} delete")).get_visible_aliases().any(|alias| alias == "rm"), "{noun}");
    }
    for noun in ["image", "layout", "site", "size", "template"] {
        find_command(&format!("{noun} apply"));
    }
    for path in ["machine ls", "machine show", "site check", "site export", "site ls", "site plan"] {
        find_command(path);
    }
}

/// Also checks that all `show` commands have the option `-o`.
#[test]
fn all_lists_have_the_same_options() {
    for noun in ["config", "image", "layout", "machine", "os", "rollout", "site", "size", "template", "user", "volume"]
    {
        let list = find_command(&format!("{noun} list"));
        let has_watch = list.get_arguments().any(|argument| argument.get_long() == Some("watch"));
        assert_eq!(has_watch, noun != "config", "{noun} --watch");
        let is_verbose = list.get_arguments().any(|argument| argument.get_short() == Some('v'));
        // `config list` and `site list` read files, and send no requests.
        assert_eq!(is_verbose, !["config", "site"].contains(&noun), "{noun} -v");
        for option in ["output", "filter", "sort", "quiet", "no-headers"] {
            assert!(list.get_arguments().any(|argument| argument.get_long() == Some(option)), "{noun} --{option}");
        }
    }
    for noun in ["image", "layout", "machine", "os", "rollout", "size", "template", "user", "volume"] {
        let show = find_command(&format!("{noun} show"));
        assert!(show.get_arguments().any(|argument| argument.get_short() == Some('o')), "{noun}");
    }
}

#[test]
fn former_commands_are_still_accepted() {
    for arguments in [
        &["rack", "plan", "/srv/d", "--approve"][..],
        &["volume", "rm", "web-1", "db-1", "--persistent-volume", "none"],
        &["serve", "/srv/d", "--check"],
        &["user", "remove", "ann"],
    ] {
        Cli::try_parse_from([&["drophammer"], arguments].concat()).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(find_command("rack").is_hide_set());
    let is_visible = find_command("user delete").get_visible_aliases().any(|alias| alias == "remove");
    assert!(!is_visible);
}
