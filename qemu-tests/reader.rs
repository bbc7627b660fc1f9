//! Reads a scenario file, with the line in every complaint.

use crate::scenario::{MACHINE_FIELDS, Run, Scenario};
use marked_yaml::{LoaderOptions, Node, from_node, parse_yaml_with_options, types::MarkedMappingNode};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Reads one scenario file.
///
/// # Errors
/// What is wrong and where: `file:line: …`.
pub fn read(path: &Path) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    parse(&text, name, folder).map_err(|problem| format!("{}:{problem}", path.display()))
}

pub fn parse(text: &str, name: String, folder: PathBuf) -> Result<Scenario, String> {
    let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
    let node = parse_yaml_with_options(0, text, options).map_err(|e| format!(" {e}"))?;
    let top = node.as_mapping().ok_or("1: a scenario is a mapping")?;
    let (mut machine, mut common) = (empty(top), empty(top));
    let mut runs = vec![empty(top)];
    for (key, value) in top.iter() {
        match key.as_str() {
            "runs" => {
                let list = value.as_sequence().ok_or(at(value, "runs is a list"))?;
                runs = list
                    .iter()
                    .map(|run| run.as_mapping().cloned().ok_or(at(run, "a run is a mapping")))
                    .collect::<Result<_, _>>()?;
            }
            field if MACHINE_FIELDS.contains(&field) => drop(machine.insert(key.clone(), value.clone())),
            _ => drop(common.insert(key.clone(), value.clone())),
        }
    }
    let runs = runs.into_iter().map(|run| read_run(&common, run)).collect::<Result<_, _>>()?;
    Ok(Scenario { name, folder, machine: typed(&Node::Mapping(machine))?, runs })
}

/// What is said on top holds for every run that does not say otherwise.
fn read_run(common: &MarkedMappingNode, run: MarkedMappingNode) -> Result<Run, String> {
    let mut whole = common.clone();
    whole.extend(run.iter().map(|(key, value)| (key.clone(), value.clone())));
    let allocation = whole.remove("allocation");
    let mut typed: Run = typed(&Node::Mapping(whole))?;
    if let Some(node) = allocation {
        typed.allocation = json(&node).as_object().cloned().ok_or(at(&node, "allocation is a mapping"))?;
    }
    if typed.layout.is_some() == typed.layout_file.is_some() {
        return Err("1: a run has either layout or layout_file".to_owned());
    }
    Ok(typed)
}

fn empty(like: &MarkedMappingNode) -> MarkedMappingNode {
    MarkedMappingNode::new_empty(*like.span())
}

fn typed<'a, T: Deserialize<'a>>(node: &'a Node) -> Result<T, String> {
    from_node(node).map_err(|error| {
        let line = error.start_mark().map_or(1, |mark| mark.line());
        format!("{line}: {error}")
    })
}

fn at(node: &Node, what: &str) -> String {
    format!("{}: {what}", node.span().start().map_or(1, |mark| mark.line()))
}

/// Quoted scalars stay strings, plain ones get the type that YAML gives them.
fn json(node: &Node) -> serde_json::Value {
    match node {
        Node::Mapping(map) => map.iter().map(|(key, value)| (key.as_str().to_owned(), json(value))).collect(),
        Node::Sequence(list) => list.iter().map(json).collect(),
        Node::Scalar(scalar) if scalar.may_coerce() => {
            serde_json::from_str(scalar).unwrap_or_else(|_| scalar.as_str().into())
        }
        Node::Scalar(scalar) => scalar.as_str().into(),
    }
}

/// The documentation's example is a scenario; what is wrong in one is told with its line.
pub fn self_test() {
    let documentation = include_str!("../docs/scenarios.md");
    let example = documentation.split("```").find_map(|block| block.strip_prefix("yaml\n")).expect("an example");
    let scenario = parse(example, "example".into(), ".".into()).expect("the documentation's example");
    assert_eq!(scenario.runs[0].allocation["hostname"], "web-1");

    let head = "about: x\nfirmware: bios\ndisks: []\nlayout: x\n";
    let runs =
        "allocation: {reinstall: true, hostname: '7'}\nruns:\n- expect: {}\n- {layout: y, expect: {outcome: local}}\n";
    let scenario = parse(&format!("{head}{runs}"), "x".into(), ".".into()).expect("two runs");
    let layouts: Vec<_> = scenario.runs.iter().filter_map(|run| run.layout.as_deref()).collect();
    assert_eq!(layouts, ["x", "y"]);
    assert_eq!(scenario.runs[1].allocation["reinstall"], true);
    assert_eq!(scenario.runs[1].allocation["hostname"], "7");

    for (rest, line, words) in [
        ("expect: {outcom: failed}\n", "5:", "outcom"),
        ("expect: {}\nsurprise: 1\n", "6:", "surprise"),
        ("expect:\n  outcome: splendid\n", "6:", "splendid"),
        ("expect: {}\nevents:\n- {at: {step: image.burn}, do: dance}\n", "7:", "dance"),
        ("expect: {}\nexpect: {}\n", "", "expect"),
        ("expect: {}\nlayout_file: y\n", "", "either layout or layout_file"),
        ("runs: [1]\n", "5:", "a run is a mapping"),
        ("", "", "expect"),
    ] {
        let error = parse(&format!("{head}{rest}"), "x".into(), ".".into()).expect_err(rest);
        assert!(error.starts_with(line) && error.contains(words), "{rest}: {error}");
    }
}
