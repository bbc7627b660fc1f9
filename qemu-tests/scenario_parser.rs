//! Parser of scenario files. Each error contains a line number.

use crate::reinstall_order_options::ReinstallOrderOptions;
use crate::scenario::{MACHINE_FIELDS, Scenario, ScenarioRun};
use crate::scenario_rules::check_scenario;
use marked_yaml::{LoaderOptions, Node, from_node, parse_yaml_with_options, types::MarkedMappingNode};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Parses a scenario file.
///
/// # Errors
/// Returns the problem and its location: `file:line: …`.
pub fn read(path: &Path) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    parse(&text, name, folder).map_err(|problem| format!("{}:{problem}", path.display()))
}

pub fn parse(text: &str, name: String, folder: PathBuf) -> Result<Scenario, String> {
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    let node = parse_yaml_with_options(0, text, options).map_err(|e| format!(" {e}"))?;
    let top = node.as_mapping().ok_or("1: a scenario must be a mapping")?;
    let (mut machine, mut common) = (empty_mapping(top), empty_mapping(top));
    let mut runs = vec![empty_mapping(top)];
    for (key, value) in top.iter() {
        match key.as_str() {
            "runs" => {
                let list = value.as_sequence().ok_or(describe_location(value, "runs must be a list"))?;
                runs = list
                    .iter()
                    .map(|run| run.as_mapping().cloned().ok_or(describe_location(run, "a run must be a mapping")))
                    .collect::<Result<_, _>>()?;
            }
            field if MACHINE_FIELDS.contains(&field) => drop(machine.insert(key.clone(), value.clone())),
            _ => drop(common.insert(key.clone(), value.clone())),
        }
    }
    let runs: Vec<ScenarioRun> = runs.into_iter().map(|run| read_run(&common, run)).collect::<Result<_, _>>()?;
    let machine = parse_node(&Node::Mapping(machine))?;
    check_scenario(&machine, &runs)?;
    Ok(Scenario { name, folder, machine, runs })
}

/// Parses a run. Fields at the top level of the file are defaults for all runs.
fn read_run(common: &MarkedMappingNode, run: MarkedMappingNode) -> Result<ScenarioRun, String> {
    let mut whole = common.clone();
    whole.extend(run.iter().map(|(key, value)| (key.clone(), value.clone())));
    let allocation = whole.remove("allocation");
    let machine_file = whole.remove("machine_file");
    let button = whole.remove("reinstall").map(|node| parse_reinstall(&node)).transpose()?.flatten();
    let mut typed: ScenarioRun = parse_node(&Node::Mapping(whole))?;
    typed.reinstall = button;
    if let Some(node) = allocation {
        typed.allocation = convert_to_json(&node)
            .as_object()
            .cloned()
            .ok_or(describe_location(&node, "allocation must be a mapping"))?;
    }
    if let Some(node) = machine_file {
        typed.machine_file = convert_to_json(&node)
            .as_object()
            .cloned()
            .ok_or(describe_location(&node, "machine_file must be a mapping"))?;
    }
    if typed.layout.is_some() == typed.layout_file.is_some() {
        return Err("1: a run must have either layout or layout_file".to_owned());
    }
    Ok(typed)
}

/// Parses the field `reinstall`: `true`, or the options of the order.
fn parse_reinstall(node: &Node) -> Result<Option<ReinstallOrderOptions>, String> {
    match convert_to_json(node) {
        serde_json::Value::Bool(pressed) => Ok(pressed.then(ReinstallOrderOptions::default)),
        details => serde_json::from_value(details)
            .map(Some)
            .map_err(|error| describe_location(node, &format!("reinstall: {error}"))),
    }
}

fn empty_mapping(like: &MarkedMappingNode) -> MarkedMappingNode {
    MarkedMappingNode::new_empty(*like.span())
}

fn parse_node<'a, T: Deserialize<'a>>(node: &'a Node) -> Result<T, String> {
    from_node(node).map_err(|error| {
        let line = error.start_mark().map_or(1, |mark| mark.line());
        format!("{line}: {error}")
    })
}

fn describe_location(node: &Node, what: &str) -> String {
    format!("{}: {what}", node.span().start().map_or(1, |mark| mark.line()))
}

/// Converts a node to JSON. Quoted scalars are strings; the type of other scalars is that of YAML.
fn convert_to_json(node: &Node) -> serde_json::Value {
    match node {
        Node::Mapping(map) => {
            map.iter().map(|(key, value)| (key.as_str().to_owned(), convert_to_json(value))).collect()
        }
        Node::Sequence(list) => list.iter().map(convert_to_json).collect(),
        Node::Scalar(scalar) if scalar.may_coerce() => {
            serde_json::from_str(scalar).unwrap_or_else(|_| scalar.as_str().into())
        }
        Node::Scalar(scalar) => scalar.as_str().into(),
    }
}

/// Tests that the example in the documentation is valid, and that errors contain a line number.
pub fn self_test() {
    use crate::expectations::Outcome;
    let documentation = include_str!("../docs/scenarios.md");
    let example = documentation.split("```").find_map(|block| block.strip_prefix("yaml\n")).expect("an example");
    let scenario = parse(example, "example".into(), ".".into()).expect("the documentation's example");
    assert_eq!(scenario.runs[0].allocation["hostname"], "web-1");

    let head = "about: x\nfirmware: bios\ndisks: []\nlayout: x\n";
    let runs = "allocation: {role: firewall, fast: true, hostname: '7'}\nruns:\n- expect: {}\n- {layout: y, expect: {outcome: local}}\n";
    let scenario = parse(&format!("{head}{runs}"), "x".into(), ".".into()).expect("two runs");
    let layouts: Vec<_> = scenario.runs.iter().filter_map(|run| run.layout.as_deref()).collect();
    assert_eq!(layouts, ["x", "y"]);
    assert_eq!(scenario.runs[1].allocation["fast"], true);
    assert_eq!(scenario.runs[1].allocation["hostname"], "7");

    let head_with_disk = head.replace("[]", "[{name: sda, bus: sata, size_mib: 1}]");
    let runs = "prepare: one\nruns:\n- expect: {}\n- {reinstall: true, prepare: two, replaced: [sda], expect: {outcome: old_system}}\n\
                - {reinstall: {without_marker: true, apply_allocation: true, give_up: [A-1, B 2], leave_locked: [u-1]}, boot: kexec, expect: {boots: 3, order: open, hidden: {/var/lib: 7}}}\n\
                - {reinstall: false, events: [{at: {request: 'POST */report'}, do: server_kill, answer: lost}], expect: {}}\n";
    let scenario = parse(&format!("{head_with_disk}{runs}"), "x".into(), ".".into()).expect("reinstalls");
    let pressed: Vec<_> = scenario.runs.iter().map(|run| run.reinstall.as_ref().map(|it| it.without_marker)).collect();
    assert_eq!(pressed, [None, Some(false), Some(true), None]);
    let typed = scenario.runs[2].reinstall.as_ref().expect("a button").options();
    assert_eq!(
        typed,
        ["--without-marker", "--apply-allocation", "--give-up", "A-1", "--give-up", "B 2", "--leave-locked", "u-1"]
    );
    assert_eq!(scenario.machine.prepare.as_deref(), Some("one"));
    assert_eq!(scenario.runs[1].prepare.as_deref(), Some("two"));
    assert_eq!((scenario.runs[1].expect.boots, scenario.runs[2].expect.boots), (1, 3));

    let runs = "runs:\n- {uuid: 'A', macs: [m1, m2], machine_file: {id: B, macs: [m3]}, before_agent: swapon, expect: {}}\n\
                - {expect: {outcome: installed_or_refused, report_contains: [no], console_lacks: [panic], tiny: {fstab_is: []}}}\n";
    let scenario = parse(&format!("{head}{runs}"), "x".into(), ".".into()).expect("an identity");
    let [first, second] = &scenario.runs[..] else { panic!("two runs") };
    assert_eq!(
        (first.uuid.as_deref(), first.macs.len(), first.before_agent.as_deref()),
        (Some("A"), 2, Some("swapon"))
    );
    assert_eq!(first.machine_file["macs"], serde_json::json!(["m3"]));
    let (up, refused) = (second.expect.select_outcome(true), second.expect.select_outcome(false));
    assert!(up.outcome == Outcome::Installed && up.report_contains.is_empty() && up.tiny.fstab_is.is_some());
    assert!(refused.outcome == Outcome::Refused && refused.report_contains == ["no"]);
    assert!(refused.tiny.fstab_is.is_none() && refused.console_lacks == ["panic"]);
    assert_eq!(first.expect.select_outcome(false).outcome, Outcome::Installed);

    let runs = "os:\n  web: {ganeti_api_version: '20', verify: '#!/bin/sh'}\nexpect: {}\n";
    let scenario = parse(&format!("{head}{runs}"), "x".into(), ".".into()).expect("a definition");
    assert_eq!(scenario.runs[0].os["web"]["ganeti_api_version"], "20");

    for (rest, line, words) in [
        ("runs:\n- expect: {}\n- {reinstall: {marker: 1}, expect: {}}\n", "7:", "marker"),
        ("machine_file: 7\nexpect: {}\n", "5:", "machine_file must be a mapping"),
        ("image: {lie: always}\nexpect: {}\n", "5:", "always"),
        ("image: {signed: nobody}\nexpect: {}\n", "5:", "nobody"),
        ("expect: {outcom: failed}\n", "5:", "outcom"),
        ("expect: {}\nsurprise: 1\n", "6:", "surprise"),
        ("expect:\n  outcome: splendid\n", "6:", "splendid"),
        ("expect: {}\nevents:\n- {at: {step: image.burn}, do: dance}\n", "7:", "dance"),
        ("expect: {}\nexpect: {}\n", "", "expect"),
        ("expect: {}\nlayout_file: y\n", "", "must have either layout or layout_file"),
        ("runs: [1]\n", "5:", "a run must be a mapping"),
        ("", "", "expect"),
    ] {
        let error = parse(&format!("{head}{rest}"), "x".into(), ".".into()).expect_err(rest);
        assert!(error.starts_with(line) && error.contains(words), "{rest}: {error}");
    }
}
