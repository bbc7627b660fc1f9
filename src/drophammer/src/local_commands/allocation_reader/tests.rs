//! Golden tests that run `drophammer check` and `drophammer plan` on machine files. The expected output is stored next
//! to the machine files.

use crate::cli::{Cli, CliCommand};
use crate::local_commands::{check, plan};
use clap::Parser;
use common::command_outcome::CommandOutcome;
use std::path::Path;

/// Runs `drophammer ARGUMENTS` on files of `testdata/`, and returns its output and outcome.
fn run_command(arguments: &[&str]) -> (String, CommandOutcome) {
    let testdata = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/");
    let is_file = |word: &str| word.contains('/');
    let place = |word: &&str| if is_file(word) { format!("{testdata}{word}") } else { (*word).to_owned() };
    let words = std::iter::once("drophammer".to_owned()).chain(arguments.iter().map(place));
    let said = match Cli::try_parse_from(words).unwrap().command {
        CliCommand::Check(options) => check::check_output(&options),
        CliCommand::Plan(options) => plan::plan_output(&options),
        other => panic!("{other:?}"),
    };
    let (text, exit) = said.unwrap();
    (text.replace(testdata, ""), exit)
}

/// Compares the output with `testdata/machines/NAME.txt`. If UPDATE_GOLDEN is set in the environment, rewrites that
/// file.
fn golden(name: &str, found: &str) {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(format!("testdata/machines/{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{name} is not up to date; UPDATE_GOLDEN=1 cargo test writes it\n{found}");
}

const NIC_INVENTORY: &str = "inventories/sata-1.json";
const LAYOUT: &str = "layouts/default.yaml";

#[test]
fn network_problems_of_machines_have_line_and_column() {
    let files = ["good.yaml", "wrong.yaml", "other-cards.yaml", "document.json"].map(|name| format!("machines/{name}"));
    let [good, wrong, nics, document] = files.each_ref().map(String::as_str);
    let (without_nics, exit) = run_command(&["check", good, wrong, nics, document]);
    assert_eq!(exit, CommandOutcome::Refused);
    golden("check", &without_nics);
    let (with_nics, exit) = run_command(&["check", good, wrong, nics, document, LAYOUT, "--inventory", NIC_INVENTORY]);
    assert_eq!(exit, CommandOutcome::Refused);
    golden("check-with-inventory", &with_nics);
    assert_eq!(run_command(&["check", good, "--inventory", NIC_INVENTORY]).1, CommandOutcome::Good);
    let (json, _) = run_command(&["check", wrong, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["machines"][0]["valid"], &json["machines"][0]["problems"][0]["line"]),
        (&false.into(), &12.into())
    );
    let (json, _) = run_command(&["check", LAYOUT, "--json"]);
    assert!(!json.contains("machines"), "{json}");
}

#[test]
fn plan_refuses_allocations_with_invalid_networks() {
    for (name, expected) in
        [("wrong.yaml", "wrong"), ("other-cards.yaml", "other-cards"), ("document.json", "document")]
    {
        let file = format!("machines/{name}");
        let (text, exit) =
            run_command(&["plan", "--layout", LAYOUT, "--inventory", NIC_INVENTORY, "--allocation", &file]);
        assert_eq!(exit, CommandOutcome::Refused);
        golden(&format!("plan-{expected}"), &text);
    }
}

#[test]
fn plan_describes_effects_of_the_allocation() {
    let good = ["plan", "--layout", LAYOUT, "--inventory", NIC_INVENTORY, "--allocation", "machines/good.yaml"];
    let (text, exit) = run_command(&good);
    assert_eq!(exit, CommandOutcome::Good, "{text}");
    assert!(text.contains("debian-13.0.20261101"), "{text}");
    assert!(text.contains("hostname storage-7; SSH keys of the owner: 0"), "{text}");
    assert!(text.contains("the kernel of the image with quiet"), "{text}");
    // A plan without the allocation contains none of these lines.
    let (text, exit) = run_command(&good[..5]);
    assert_eq!(exit, CommandOutcome::Good);
    assert!(!text.contains("storage-7"), "{text}");
}
