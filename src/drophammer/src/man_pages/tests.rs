use super::*;
use crate::command_examples::help_examples;
use clap::Parser;
use clap_mangen::roff::{Roff, roman};
use linux::process::ToolCommand;

const SECTIONS: [&str; 5] = ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"];

/// Adds the names of the pages of all visible commands.
fn add_names(command: &Command, above: &str, all: &mut Vec<String>) {
    for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("{above}-{}", below.get_name());
        add_names(below, &name, all);
        all.push(name);
    }
}

/// Returns the lines of a section, without formatting.
fn section_lines(page: &str, title: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != heading(title)).skip(1);
    let lines = lines.take_while(|line| !line.starts_with(".SH ")).filter(|line| !line.starts_with('.'));
    lines.map(|line| line.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\\\", "\\").replace("\\&", "")).collect()
}

fn heading(title: &str) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    roff.to_roff().lines().last().unwrap_or_default().to_owned()
}

#[test]
fn every_command_and_every_file_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    write_man_pages(&folder.path().join("man1")).unwrap();
    write_man_pages(&folder.path().join("all")).unwrap();
    let mut all = vec!["drophammer".to_owned()];
    add_names(&Cli::command(), "drophammer", &mut all);
    assert!(all.len() > 60);
    let commands = all.into_iter().map(|name| ("man1", format!("{name}.1")));
    let formats = file_formats::PAGES.map(|name| ("man5", format!("{name}.5")));
    for (section, name) in commands.chain(formats) {
        let page = fs::read_to_string(folder.path().join(section).join(&name)).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("all").join(&name)).unwrap(), page);
        assert!(page.contains(".SH SYNOPSIS"), "{name}: {page}");
        for title in SECTIONS {
            let lines = section_lines(&page, title);
            assert!(lines.iter().any(|line| !line.trim().is_empty()), "{name}: {title}\n{page}");
        }
    }
}

/// Splits an example into words. Redirections, and other commands of a pipeline, are omitted.
fn split_example(line: &str) -> Option<Vec<String>> {
    let command = line.split(" | ").find(|part| part.trim_start().starts_with("drophammer "))?;
    let command = command.split(" > ").next()?.replace("$(date +%F)", "2026-11-22").replace("SALT/HEX", "salt/0a1b");
    Some(command.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect())
}

/// Checks the help of each visible command, except for `agent`, which machines run in the ramdisk.
#[test]
fn every_visible_command_has_an_example_of_itself() {
    fn check(command: &Command, path: &str, lacking: &mut Vec<String>) {
        let help = help_examples(command).unwrap_or_default();
        let is_own = |line: &&str| {
            let words = split_example(line.trim()).unwrap_or_default();
            words.iter().map(String::as_str).take(path.split(' ').count()).eq(path.split(' '))
        };
        let example = help.lines().find(is_own).and_then(|line| split_example(line.trim()));
        let is_parsed = example.is_some_and(|words| Cli::try_parse_from(&words).is_ok());
        let is_exempt = ["drophammer", "drophammer agent", "drophammer help"].contains(&path);
        if !is_exempt && !is_parsed {
            lacking.push(path.to_owned());
        }
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            check(below, &format!("{path} {}", below.get_name()), lacking);
        }
    }
    let mut lacking = Vec::new();
    check(&described_command(), "drophammer", &mut lacking);
    assert_eq!(lacking, [""; 0]);
}

#[test]
fn every_example_is_parsed() {
    let mut parsed = 0;
    for (name, page) in render_command_pages() {
        let page = String::from_utf8(page).unwrap();
        for line in section_lines(&page, "EXAMPLES") {
            let Some(words) = split_example(&line) else { continue };
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{name}: {line}: {error}"));
            parsed += 1;
        }
    }
    assert!(parsed > 100, "{parsed}");
}

#[test]
fn pages_name_variables_and_fields() {
    let pages = render_command_pages();
    let page = |name: &str| String::from_utf8(pages.iter().find(|page| page.0 == name).unwrap().1.clone()).unwrap();
    for (name, variable) in [
        ("drophammer-check.1", "DROPHAMMER_CHECK_STRICT"),
        ("drophammer-machine-list.1", "DROPHAMMER_TOKEN_FILE"),
        ("drophammer-image-pack.1", "SOURCE_DATE_EPOCH"),
    ] {
        assert!(section_lines(&page(name), "ENVIRONMENT").join("\n").contains(variable), "{name}");
    }
    assert!(
        section_lines(&page("drophammer-site-plan.1"), "EXIT STATUS").join(" ").contains("3 some machines lose data")
    );
    assert!(
        !section_lines(&page("drophammer-machine-reinstall.1"), "ENVIRONMENT").join(" ").contains("WITHOUT_MARKER")
    );
    for (name, fields) in [
        ("drophammer-layout.5", &["disks[].partitions[].size", "raid[].level"][..]),
        ("drophammer-machine.5", &["allocation.image", "bmc.url"]),
        ("drophammer-image.5", &["digest", "mirrors"]),
    ] {
        let (_, text) = file_formats::render_pages().into_iter().find(|page| page.0 == name).unwrap();
        let text = section_lines(&String::from_utf8(text).unwrap(), "FIELDS").join("\n");
        for field in fields {
            assert!(text.contains(field), "{name}: {field}");
        }
    }
}

/// Formats a page with the program that man(1) uses, if this program is installed.
#[test]
fn pages_are_formatted() {
    let folder = tempfile::tempdir().unwrap();
    write_man_pages(folder.path()).unwrap();
    if ToolCommand::new("groff").arg("--version").run().is_err() {
        return;
    }
    for name in ["drophammer.1", "drophammer-serve.1", "drophammer-layout.5", "drophammer-machine.5"] {
        let command = ToolCommand::new("groff").args(["-man", "-Tutf8", "-P", "-cbu"]).arg(folder.path().join(name));
        let output = command.run().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(output.stdout.contains("EXAMPLES"), "{name}");
    }
    let mut roff = Roff::new();
    roff.text([roman(".not a request")]);
    assert!(roff.to_roff().contains("\\&.not"));
}
