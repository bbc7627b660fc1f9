//! Reinstalls in scenarios: the order, the script with which a machine reinstalls itself, and the expectations.

use crate::expectation_check::RunObservations;
use crate::expectations::{ExpectedOrder, Outcome, RunExpectations};
use crate::guest_facts::{Facts, matches_pattern};
use crate::host_tools::{Result, run_tool};
use crate::proxy::Proxy;
use crate::reinstall_order_options::ReinstallOrderOptions;
use crate::scenario::ScenarioRun;
use crate::server::Server;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time limit for the reinstall order. A reinstall can be ordered only after the digest of the image, which may be
/// large, has been computed.
const ORDER_TIMEOUT: Duration = Duration::from_secs(20);
/// Steps that change the contents of a disk.
const DESTRUCTIVE: [&str; 4] = ["storage.wipe", "storage.partition", "storage.format", "image.burn"];

/// Orders the reinstall as an operator does, through the same proxy as the machine. If the server is killed meanwhile,
/// orders it again.
///
/// # Errors
/// Fails if the order is refused. The error contains the message of the command.
pub fn order_reinstall(
    server: &mut Server,
    proxy: &Proxy,
    state: &Path,
    machine: &str,
    image: &str,
    button: &ReinstallOrderOptions,
) -> Result<()> {
    let began = Instant::now();
    let mut was_killed = false;
    loop {
        let refused = send_order(proxy.port, state, machine, image, button).err();
        let triggered = proxy.take_triggered_traps();
        for trap in &triggered {
            server.kill();
            std::thread::sleep(trap.time);
            server.restart()?;
            server.connect_proxy(proxy)?;
            was_killed = true;
        }
        match refused {
            None => return Ok(()),
            Some(words) if was_killed && words.contains("already") => return Ok(()),
            Some(words) if triggered.is_empty() && !(words.contains("digest") && began.elapsed() < ORDER_TIMEOUT) => {
                return Err(words);
            }
            Some(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn send_order(port: u16, state: &Path, machine: &str, image: &str, button: &ReinstallOrderOptions) -> Result<()> {
    run_machine_command(port, state, machine, &[&["--image", image][..], &button.options()].concat())
}

/// Cancels the order, as an operator does.
///
/// # Errors
/// Fails if the server refuses, with the message of the command.
pub fn cancel_order(port: u16, state: &Path, machine: &str) -> Result<()> {
    run_machine_command(port, state, machine, &["--cancel"])
}

/// Adopts the installation, as an operator would do if the server had lost its record of the installation.
///
/// # Errors
/// Fails if the server refuses. The error contains the message of the command.
pub fn adopt_machine(port: u16, state: &Path, machine: &str) -> Result<()> {
    run_command(port, state, &["adopt", machine])
}

fn run_machine_command(port: u16, state: &Path, machine: &str, words: &[&str]) -> Result<()> {
    run_command(port, state, &[&["reinstall", machine][..], words].concat())
}

fn run_command(port: u16, state: &Path, words: &[&str]) -> Result<()> {
    let (server, token) = (format!("http://127.0.0.1:{port}"), state.join("operator.token"));
    let token = token.to_string_lossy();
    let program = env!("CARGO_BIN_EXE_drophammer");
    let to: [&str; 4] = ["--server", &server, "--token-file", &token];
    let argv = [&[program, "machine"][..], words, &to[..]].concat();
    run_tool(&argv, Stdio::null()).map(drop)
}

/// Returns the script with which the installed system reinstalls itself. The argument of the script is the boot source.
/// If this is not `disk`, as in the new system, the script does nothing.
pub fn build_script(port: u16) -> String {
    let server = format!("http://10.0.2.2:{port}");
    format!(
        "[ \"$1\" = disk ] || exit 0\nwget -q {server}/boot/drophammer\nchmod 755 drophammer\n\
         exec ./drophammer reinstall --server {server}\n"
    )
}

/// Returns whether the state of the order must be requested from the server.
pub fn asks_for_order(run: &ScenarioRun) -> bool {
    run.expect.order.is_some() || is_cleared(run.expect.outcome, run.reinstall.is_some())
}

fn is_cleared(outcome: Outcome, reinstall: bool) -> bool {
    outcome == Outcome::OldSystem || (outcome == Outcome::Installed && reinstall)
}

/// Returns the image of the system that must be running: the image of this run, or that of the last run that has
/// installed a system.
pub fn expected_image(run: &ScenarioRun, own: &str, installed: Option<&str>) -> Option<String> {
    match run.expect.outcome {
        Outcome::Installed if run.reinstall.is_some() => Some(own.to_owned()),
        Outcome::OldSystem | Outcome::Already => Some(installed.unwrap_or("none").to_owned()),
        _ => None,
    }
}

/// Returns all expectations of a reinstall that are violated.
pub fn find_failures(expect: &RunExpectations, observed: &RunObservations) -> Vec<String> {
    let mut failures = Vec::new();
    if let Some(words) = &observed.denied {
        check_denial(expect, words, &mut failures);
    }
    let report = observed.report.as_ref().unwrap_or(&Value::Null);
    check_preserved(expect, report, &mut failures);
    for (path, files) in &expect.hidden {
        let found = report["hidden"].as_array().into_iter().flatten().find(|hidden| hidden["path"] == path.as_str());
        if found.and_then(|hidden| hidden["files"].as_u64()) != Some(*files) {
            failures.push(format!("hidden files of the image below {path}: {found:?}, expected {files}"));
        }
    }
    let wanted = expect.order.unwrap_or(ExpectedOrder::None) == ExpectedOrder::Open;
    if let Some(found) = observed.order_is_open.filter(|found| *found != wanted) {
        let word = |open: bool| if open { "open" } else { "gone" };
        failures.push(format!("the order is {}, expected {}", word(found), word(wanted)));
    }
    if expect.outcome == Outcome::OldSystem && report["untouched"] != true {
        failures.push(format!("the report does not contain that all disks are untouched: {}", report["message"]));
    }
    if expect.outcome == Outcome::Already {
        let steps = report["timings"].as_array().into_iter().flatten().filter_map(|time| time["step"].as_str());
        for step in steps.filter(|step| DESTRUCTIVE.contains(step)) {
            failures.push(format!("step {step} was done, although the machine was installed already"));
        }
    }
    for (facts, how) in [(&observed.over_network, "over the network"), (&observed.from_disk, "from disk")] {
        if let (Some(facts), Some(image)) = (facts, &observed.image)
            && image_of(facts).as_ref() != Some(image)
        {
            let found = image_of(facts).unwrap_or_else(|| "without a marker".to_owned());
            failures.push(format!("the system that came up {how} is {found}, expected {image}"));
        }
    }
    failures
}

fn check_denial(expect: &RunExpectations, words: &str, failures: &mut Vec<String>) {
    if words.is_empty() {
        failures.push("the reinstall was accepted, although the server should have refused it".to_owned());
    }
    for text in &expect.report_contains {
        if !matches_pattern(&format!("*{text}*"), words) {
            failures.push(format!("the refusal does not contain {text:?}: {words}"));
        }
    }
}

/// Checks that all preserved objects in the report are unchanged, and that the report contains the expected objects.
fn check_preserved(expect: &RunExpectations, report: &Value, failures: &mut Vec<String>) {
    let objects = report["kept"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |object: &Value| object["object"].as_str().unwrap_or_default().to_owned();
    // The attributes follow the name of the object in the pattern.
    let has_attribute = |object: &Value, pattern: &str| {
        let after = object["after"].as_object().into_iter().flatten();
        let mut attributes =
            after.map(|(field, value)| format!("{}: {field} {}", name(object), value.as_str().unwrap_or_default()));
        attributes.any(|attribute| matches_pattern(pattern, &attribute))
    };
    for pattern in &expect.kept {
        if !objects.iter().any(|object| matches_pattern(pattern, &name(object)) || has_attribute(object, pattern)) {
            let all: Vec<String> = objects.iter().map(name).collect();
            failures.push(format!("the report does not prove {pattern:?} to be preserved, only {all:?}"));
        }
    }
    for object in objects {
        let (before, after) = (&object["before"], &object["after"]);
        if before != after || before.as_object().is_none_or(serde_json::Map::is_empty) {
            failures.push(format!("kept {}: {before} before, {after} after", name(object)));
        }
    }
}

/// Returns the image of the running system, according to its marker.
pub fn image_of(facts: &Facts) -> Option<String> {
    let marker: Value = serde_json::from_str(&facts.section("marker")?.join("\n")).ok()?;
    marker["image"].as_str().map(str::to_owned)
}

/// Tests each expectation, with observations that meet it and that violate it.
pub fn self_test() {
    let head = "about: x\nfirmware: bios\ndisks: []\nlayout: x\nruns:\n- expect: {}\n- reinstall: true\n  expect:\n";
    let with = |expect: &str| {
        let scenario =
            crate::scenario_parser::parse(&format!("{head}{expect}"), "x".into(), ".".into()).expect("a scenario");
        scenario.runs.into_iter().nth(1).expect("a second run")
    };
    let text =
        "=== facts begin tiny\n--- marker\n{\"image\": \"tiny-1.0.run1\",\n \"order\": \"o\"}\n=== facts end tiny\n";
    let observed = RunObservations {
        report: Some(serde_json::json!({"success": false, "untouched": true,
            "kept": [{"object": "disk /dev/sdb", "before": {"guid": "1"}, "after": {"guid": "1"}}],
            "hidden": [{"path": "/var/lib", "files": 7}], "timings": [{"step": "image.burn"}]})),
        over_network: Facts::read(text, "tiny"),
        order_is_open: Some(false),
        image: Some("tiny-1.0.run1".to_owned()),
        ..RunObservations::default()
    };
    let good =
        "    outcome: old_system\n    kept: ['disk */sdb', 'disk /dev/sdb: guid 1']\n    hidden: {/var/lib: 7}\n";
    assert_eq!(find_failures(&with(good).expect, &observed), Vec::<String>::new());
    for (bad, words) in [
        ("    kept: ['array *']\n", "does not prove"),
        ("    kept: ['disk /dev/sdb: guid 2']\n", "does not prove"),
        ("    hidden: {/var/lib: 8}\n", "expected 8"),
        ("    hidden: {/srv: 7}\n", "below /srv: None"),
        ("    order: open\n", "is gone, expected open"),
        ("    outcome: already\n", "step image.burn"),
    ] {
        let failures = find_failures(&with(bad).expect, &observed);
        assert!(failures.iter().any(|failure| failure.contains(words)), "{bad}: {failures:?}");
    }
    let changed = RunObservations {
        report: Some(serde_json::json!({"kept": [{"object": "a", "before": {"b": "1"}, "after": {"b": "2"}}]})),
        image: Some("tiny-1.0.run2".to_owned()),
        over_network: Facts::read(text, "tiny"),
        order_is_open: Some(true),
        ..RunObservations::default()
    };
    let found = find_failures(&with("    outcome: old_system\n").expect, &changed).join("\n");
    for words in
        ["before, {\"b\":\"2\"} after", "order is open", "untouched", "is tiny-1.0.run1, expected tiny-1.0.run2"]
    {
        assert!(found.contains(words), "{words}: {found}");
    }
    let refused = RunObservations { denied: Some("no such image".to_owned()), ..RunObservations::default() };
    assert!(find_failures(&with("    {outcome: denied, report_contains: [image]}\n").expect, &refused).is_empty());
    assert!(!find_failures(&with("    {outcome: denied, report_contains: [marker]}\n").expect, &refused).is_empty());

    let run = with("    outcome: installed\n");
    assert!(asks_for_order(&run));
    assert_eq!(expected_image(&run, "new", Some("old")).as_deref(), Some("new"));
    assert_eq!(expected_image(&with("    outcome: old_system\n"), "new", Some("old")).as_deref(), Some("old"));
    assert!(
        !asks_for_order(&with("    outcome: failed\n"))
            && asks_for_order(&with("    {outcome: failed, order: open}\n"))
    );
    assert!(build_script(80).starts_with("[ \"$1\" = disk ] || exit 0\nwget -q http://10.0.2.2:80/boot/drophammer\n"));
}
