//! Comparison of the observations of a run with its expectations. It performs no I/O, and reports all differences
//! together.

mod disk_contents;

use crate::expectations::{Outcome, RunExpectations, SystemExpectations};
use crate::guest_facts::{Facts, fields_match, matches_pattern, shows_pattern};
use crate::proxy::drop_query;
use crate::scenario::Machine;
use crate::{disks_unused_by_system, reinstall, storage_comparison};
use disk_contents::check_inspection;
use serde_json::Value;

/// Observations of one run.
#[derive(Default)]
pub struct RunObservations {
    /// Last report that the server acknowledged.
    pub report: Option<Value>,
    /// Names of the events, in the order of arrival.
    pub events: Vec<String>,
    /// Console output of the boot over the network.
    pub console: String,
    pub requests: Vec<String>,
    /// Problems that the server has reported.
    pub problems: Vec<String>,
    /// Facts of the installed system after the boot over the network. The next field contains its facts after the boot
    /// from disk.
    pub over_network: Option<Facts>,
    pub from_disk: Option<Facts>,
    /// Console output of the boot from disk.
    pub disk_console: String,
    /// Facts of a boot from disk with a disk removed, by the name of that disk.
    pub without: Vec<(String, Facts)>,
    pub inspect: Option<Facts>,
    /// Names of disks that have changed during the run.
    pub changed_disks: Vec<String>,
    /// Names of disks that still contain the text that should have been erased.
    pub traces: Vec<String>,
    /// Message with which the server has refused the reinstall order; `None` if it has accepted the order.
    pub denied: Option<String>,
    /// Whether the server still has an order; `None` if the scenario does not check this.
    pub order_is_open: Option<bool>,
    /// Image of the system that should have started; `None` if the scenario does not check this.
    pub image: Option<String>,
    /// Console output of earlier boots over the network.
    pub earlier_consoles: String,
    /// True if the power was cut at the report of success. The system was then booted from disk.
    pub was_cut_at_report: bool,
    /// Violations that the witness has found: writes outside of the announced extents.
    pub violations: Vec<String>,
    /// True if the kernel names of the disks are those in the scenario.
    pub named_as_listed: bool,
}

/// Returns all differences between the expectations and the observations.
pub fn find_failures(machine: &Machine, expect: &RunExpectations, seen: &RunObservations) -> Vec<String> {
    let mut failures = Vec::new();
    check_report(expect, seen, &mut failures);
    in_order(&expect.events_in_order, &seen.events, &mut failures);
    check_consoles(expect, seen, &mut failures);
    for pattern in &expect.requests {
        let is_made = |request: &String| match pattern.contains('?') {
            true => matches_pattern(pattern, request),
            false => matches_pattern(pattern, &drop_query(request)),
        };
        if !seen.requests.iter().any(is_made) {
            failures.push(format!("no request {pattern:?} among {:?}", seen.requests));
        }
    }
    for text in &expect.server_says {
        if !seen.problems.iter().any(|problem| matches_pattern(&format!("*{text}*"), problem)) {
            failures.push(format!("the server did not report {text:?} but {:?}", seen.problems));
        }
    }
    check_witness(&expect.witness_says, &seen.violations, &mut failures);
    check_untouched(machine, expect, seen, &mut failures);
    failures.extend(reinstall::find_failures(expect, seen));
    for (disk, text) in expect.no_trace_of.iter().filter(|(disk, _)| seen.traces.contains(disk)) {
        failures.push(format!("disk {disk} still holds {text:?}"));
    }
    check_booted_systems(expect, seen, &mut failures);
    failures
}

fn check_consoles(expect: &RunExpectations, seen: &RunObservations, failures: &mut Vec<String>) {
    for text in &expect.console_contains {
        if !shows_pattern(&seen.console, text) {
            failures.push(format!("the console does not show {text:?}"));
        }
    }
    for text in &expect.disk_console_contains {
        if !shows_pattern(&seen.disk_console, text) {
            failures.push(format!("the console of the boot from disk does not show {text:?}"));
        }
    }
    for text in &expect.console_lacks {
        if shows_pattern(&seen.console, text) || shows_pattern(&seen.earlier_consoles, text) {
            failures.push(format!("the console shows {text:?}"));
        }
    }
}

/// Compares the facts of all systems that have booted after the run.
fn check_booted_systems(expect: &RunExpectations, seen: &RunObservations, failures: &mut Vec<String>) {
    // An agent that cannot return to the old system by kexec reboots.
    let rebooted = expect.outcome == Outcome::OldSystem && expect.boots > 1;
    let by_disk = expect.outcome == Outcome::Local || rebooted || seen.was_cut_at_report || expect.rebooted;
    let via = if by_disk { "disk" } else { "kexec" };
    for (facts, via) in [(&seen.over_network, via), (&seen.from_disk, "disk")] {
        if let Some(facts) = facts {
            let mut found = Vec::new();
            check_system(&expect.tiny, facts, via, &mut found);
            failures.extend(found.into_iter().map(|failure| format!("installed system (boot by {via}): {failure}")));
        }
    }
    for (name, facts) in &seen.without {
        let mut found = Vec::new();
        storage_comparison::check_degraded(&expect.tiny, facts, &mut found);
        failures.extend(found.into_iter().map(|failure| format!("installed system without {name}: {failure}")));
    }
    if let Some(facts) = &seen.inspect {
        let mut found = Vec::new();
        check_inspection(&expect.inspect, facts, &mut found);
        failures.extend(found.into_iter().map(|failure| format!("on the disks: {failure}")));
    }
}

/// Adds a failure for each unexpected violation, and for each expected violation that the witness has not found.
fn check_witness(expected: &[String], found: &[String], failures: &mut Vec<String>) {
    let says = |text: &String, words: &String| matches_pattern(&format!("*{text}*"), words);
    failures.extend(found.iter().filter(|words| !expected.iter().any(|text| says(text, words))).cloned());
    for text in expected.iter().filter(|text| !found.iter().any(|words| says(text, words))) {
        failures.push(format!("the witness did not report {text:?} but {found:?}"));
    }
}

fn check_report(expect: &RunExpectations, seen: &RunObservations, failures: &mut Vec<String>) {
    let Some(report) = &seen.report else {
        // An agent that stops because of earlier attempts sends no further report.
        if !is_silent(expect.outcome) && expect.outcome != Outcome::Stopped {
            failures.push("the server got no report".to_owned());
        }
        return;
    };
    let message = report["message"].as_str().unwrap_or_default();
    let success = report["success"].as_bool();
    let wanted = matches!(expect.outcome, Outcome::Installed | Outcome::Already);
    if is_silent(expect.outcome) {
        failures.push(format!("unexpected report, although nothing was to be installed: {message}"));
    } else if success != Some(wanted) {
        failures.push(format!("the report has success {success:?}, expected {wanted}: {message}"));
    }
    for text in &expect.report_contains {
        if !matches_pattern(&format!("*{text}*"), message) {
            failures.push(format!("the report does not contain {text:?}: {message}"));
        }
    }
    let erased: Vec<String> = report["erased"].as_array().into_iter().flatten().map(describe_erased).collect();
    for pattern in &expect.erased {
        if !erased.iter().any(|line| fields_match(pattern, line)) {
            failures.push(format!("the report has no erased disk {pattern:?} among {erased:?}"));
        }
    }
    if let Some(step) = &expect.failed_step
        && report["step"].as_str() != Some(step)
    {
        failures.push(format!("the report names the failed step {}, expected {step}: {message}", report["step"]));
    }
}

/// Returns whether the machine sends no report in a run with this outcome.
fn is_silent(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Local | Outcome::Waiting | Outcome::Denied)
}

fn describe_erased(disk: &Value) -> String {
    let text = |field: &str| disk[field].as_str().unwrap_or_default().to_owned();
    format!("{} {}", text("device").trim_start_matches("/dev/"), text("method"))
}

fn in_order(wanted: &[String], seen: &[String], failures: &mut Vec<String>) {
    let mut rest = seen.iter();
    for name in wanted {
        if !rest.any(|event| event == name) {
            failures.push(format!("event {name:?} is missing or out of order: {seen:?}"));
            return;
        }
    }
}

/// Checks that disks are unchanged. A run without an installation must not change any disk, even one that the scenario
/// does not list. If the old system runs again, it writes to its own disks, so only the other disks are compared.
fn check_untouched(machine: &Machine, expect: &RunExpectations, seen: &RunObservations, failures: &mut Vec<String>) {
    let all = matches!(expect.outcome, Outcome::Refused | Outcome::Waiting | Outcome::Denied);
    let is_back = expect.outcome == Outcome::OldSystem && seen.named_as_listed;
    let facts = seen.over_network.as_ref().filter(|_| is_back);
    let unused = facts.map(|facts| disks_unused_by_system::find_unused(machine, facts)).unwrap_or_default();
    for disk in &machine.disks {
        let must_not = all || expect.untouched_disks.contains(&disk.name) || unused.contains(&disk.name.as_str());
        if must_not && seen.changed_disks.contains(&disk.name) {
            failures.push(format!("disk {} was written to", disk.name));
        }
    }
}

fn check_system(expect: &SystemExpectations, facts: &Facts, via: &str, failures: &mut Vec<String>) {
    check_lines(facts, "boot", &[via.to_owned()], failures);
    check_lines(facts, "mounts", &expect.mounts, failures);
    check_lines(facts, "fstab", &expect.fstab, failures);
    storage_comparison::check_exact_lines(facts, "fstab", expect.fstab_is.as_deref(), failures);
    check_lines(facts, "swaps", &expect.swaps, failures);
    for (section, lines) in [("arrays", &expect.arrays), ("groups", &expect.groups), ("volumes", &expect.volumes)] {
        storage_comparison::check_all_lines(facts, section, lines.as_deref(), failures);
    }
    for (section, lines) in &expect.facts {
        check_lines(facts, section, lines, failures);
    }
}

/// Checks that each pattern matches a line of the section.
pub fn check_lines(facts: &Facts, section: &str, patterns: &[String], failures: &mut Vec<String>) {
    if patterns.is_empty() {
        return;
    }
    let Some(lines) = facts.section(section) else {
        return failures.push(format!("section {section} is missing"));
    };
    for pattern in patterns {
        if !lines.iter().any(|line| fields_match(pattern, line)) {
            failures.push(format!("{section}: no line fits {pattern:?} in\n      {}", lines.join("\n      ")));
        }
    }
}

/// Tests each type of expectation, with observations that meet it and that violate it.
pub fn self_test() {
    let text = r#"=== facts begin inspect
--- sfdisk sda
{"partitiontable": {"label":"gpt", "unit":"sectors", "lastlba":20479966, "sectorsize":512, "partitions": [
 {"node":"/dev/sda1", "start":2048, "size":1024000, "type":"C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "name":"efi"},
 {"node":"/dev/sda2", "start":1026048, "size":19453919, "type":"0FC63DAF-8483-4772-8E79-3D69D8477DE4", "name":"root"}]}}
--- fsck sda2
code 0
clean
--- stat
/etc/metal/install.yaml 600 0 0 7 1700000000 regular file
/with b, c 600 0 0 7 1700000000 regular file
/with 755 0 0 7 1700000000 directory
/gone missing
--- cat /etc/metal/install.yaml
a: text
=== facts end inspect
"#;
    let machine = "about: x\nfirmware: bios\ndisks: [{name: sda, bus: sata, size_mib: 10000}]\nlayout: x\nexpect:\n";
    let found = |expect: &str, seen: &RunObservations| {
        let scenario =
            crate::scenario_parser::parse(&format!("{machine}{expect}"), "x".into(), ".".into()).expect("a scenario");
        let expect = &scenario.runs[0].expect;
        find_failures(&scenario.machine, expect, seen)
    };
    let seen = RunObservations {
        report: Some(serde_json::json!({"success": false, "message": "digest differs", "step": "image.burn",
            "erased": [{"device": "/dev/sda", "method": "discard"}]})),
        events: ["Preparing", "Installing"].map(str::to_owned).to_vec(),
        requests: vec!["GET /images/a bytes=5-".to_owned()],
        console: "a panic".to_owned(),
        earlier_consoles: "oops".to_owned(),
        inspect: Facts::read(text, "inspect"),
        changed_disks: vec!["sda".to_owned()],
        traces: vec!["sda".to_owned()],
        ..RunObservations::default()
    };
    let good = "  outcome: failed\n  erased: [sda disc*]\n  failed_step: image.burn\n  report_contains: [digest]\n  events_in_order: [Installing]\n  \
                requests: ['GET * bytes=*']\n  inspect:\n    fsck_clean: [sda2]\n    partitions:\n      sda:\n      \
                - {number: 1, label: efi, type: efi, start_mib: 1, size_mib: 500}\n      - {number: 2, to_end: true}\n    \
                files:\n      /etc/metal/install.yaml: {mode: '0600', uid: '0', contains: ['a: t*t']}\n      /gone: {missing: true}\n      \
                '/with b, c': {mode: '600'}\n      /with: {mode: '755', type: directory}\n";
    assert_eq!(found(good, &seen), Vec::<String>::new());
    for (bad, words) in [
        ("  outcome: installed\n", "success"),
        ("  outcome: refused\n", "disk sda was written to"),
        ("  outcome: local\n", "although nothing was to be installed"),
        ("  outcome: failed\n  untouched_disks: [sda]\n", "disk sda was written to"),
        ("  outcome: failed\n  events_in_order: [Installing, Preparing]\n", "out of order"),
        ("  outcome: failed\n  report_contains: [404]\n", "does not contain"),
        ("  outcome: failed\n  failed_step: image.reach\n", "failed step"),
        ("  outcome: failed\n  requests: ['GET * bytes=7*']\n", "no request"),
        ("  outcome: failed\n  console_contains: [kernel]\n", "the console does not show"),
        ("  outcome: failed\n  console_lacks: [pan*c]\n", "the console shows"),
        ("  outcome: failed\n  console_lacks: [oops]\n", "the console shows"),
        ("  outcome: failed\n  erased: [sda zeros]\n", "no erased disk"),
        ("  outcome: failed\n  no_trace_of: {sda: secret}\n", "still holds \"secret\""),
        ("  outcome: failed\n  inspect: {arrays: [], signatures: {sda: [gpt]}}\n", "section signatures is missing"),
        ("  outcome: failed\n  server_says: [typo]\n", "the server did not report"),
        ("  outcome: waiting\n", "disk sda was written to"),
        ("  outcome: failed\n  inspect: {partitions: {sda: [{number: 1}]}}\n", "2 partitions, expected gpt with 1"),
        ("  outcome: failed\n  inspect: {partitions: {sdb: [{number: 1}]}}\n", "no partition table on sdb"),
        ("  outcome: failed\n  inspect: {partitions: {sda: [{number: 1, type: raid}, {number: 3}]}}\n", "type is"),
        ("  outcome: failed\n  inspect: {partitions: {sda: [{number: 1, to_end: true}, {number: 2}]}}\n", "reaches"),
        ("  outcome: failed\n  inspect: {files: {/gone: {mode: '600'}}}\n", "/gone: missing"),
        ("  outcome: failed\n  inspect: {files: {/etc/metal/install.yaml: {mode: '644'}}}\n", "mode is 600"),
        ("  outcome: failed\n  inspect: {fsck_clean: [sda1]}\n", "fsck of sda1"),
        ("  outcome: failed\n  inspect: {blkid: {sda1: {TYPE: vfat}}}\n", "nothing on sda1"),
    ] {
        let failures = found(bad, &seen);
        assert!(failures.iter().any(|failure| failure.contains(words)), "{bad}: {failures:?}");
    }
    test_old_system_kept(&found);
    test_witness_findings();
}

fn test_witness_findings() {
    let found = ["disk vdb at sector 8, in step a".to_owned(), "disk vdb at sector 8, in step b".to_owned()];
    let check = |expected: &[&str], found: &[String]| {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        let mut failures = Vec::new();
        check_witness(&expected, found, &mut failures);
        failures
    };
    assert_eq!(check(&[], &found), found);
    assert!(check(&["vdb*sector 8"], &found).is_empty());
    assert_eq!(check(&["step a"], &found), found[1..]);
    assert!(check(&["vdc"], &[]).iter().any(|words| words.contains("the witness did not report \"vdc\"")));
}

/// Tests that the disks of the running system may change, whereas all other disks must not. If the kernel names of the
/// disks have changed, only the disks that the scenario lists are compared.
fn test_old_system_kept(found: &dyn Fn(&str, &RunObservations) -> Vec<String>) {
    let words = "disk sda was written to";
    let seen = |mounts: &str, named_as_listed| RunObservations {
        over_network: Facts::read(&format!("=== facts begin tiny\n--- mounts\n{mounts}\n=== facts end tiny\n"), "tiny"),
        changed_disks: vec!["sda".to_owned()],
        named_as_listed,
        ..RunObservations::default()
    };
    let says = |expect: &str, seen: &RunObservations| found(expect, seen).iter().any(|failure| failure.contains(words));
    let (own, other) = ("/dev/sda2 / ext4 rw 0 0", "/dev/sdb1 / ext4 rw 0 0");
    assert!(!says("  outcome: old_system\n", &seen(own, true)));
    assert!(says("  outcome: old_system\n", &seen(other, true)));
    assert!(!says("  outcome: old_system\n", &seen(other, false)));
    assert!(says("  {outcome: old_system, untouched_disks: [sda]}\n", &seen(other, false)));
    let died = RunObservations { was_cut_at_report: true, ..seen(own, true) };
    let by = |seen: &RunObservations| found("  outcome: installed\n", seen).join("\n");
    assert!(by(&seen(own, true)).contains("boot by kexec") && by(&died).contains("boot by disk"));
}
