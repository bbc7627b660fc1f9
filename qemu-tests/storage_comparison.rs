//! Comparison of arrays, volume groups, logical volumes and signatures with the expectations.

use crate::expectation_check::check_lines;
use crate::expectations::SystemExpectations;
use crate::guest_facts::{Facts, fields_match, matches_pattern};
use std::collections::BTreeSet;

/// Checks that the patterns match the lines of the section one to one, in any order.
pub fn check_all_lines(facts: &Facts, section: &str, patterns: Option<&[String]>, failures: &mut Vec<String>) {
    let Some(patterns) = patterns else { return };
    let Some(lines) = facts.section(section) else {
        return failures.push(format!("section {section} is missing"));
    };
    check_lines(facts, section, patterns, failures);
    for line in lines {
        if !patterns.iter().any(|pattern| fields_match(pattern, line)) {
            failures.push(format!("{section}: {line:?} is not expected"));
        }
    }
    if patterns.len() != lines.len() {
        failures.push(format!("{section}: {} lines, expected {}", lines.len(), patterns.len()));
    }
}

/// Checks that the section consists of exactly these lines in this order. All fields are compared; comments are
/// ignored.
pub fn check_exact_lines(facts: &Facts, section: &str, patterns: Option<&[String]>, failures: &mut Vec<String>) {
    let Some(patterns) = patterns else { return };
    let lines: Vec<&String> =
        facts.section(section).unwrap_or_default().iter().filter(|line| !line.trim_start().starts_with('#')).collect();
    let fields = |line: &str| line.split_whitespace().count();
    let is_line = |(pattern, line): (&String, &String)| fields(pattern) == fields(line) && fields_match(pattern, line);
    if patterns.len() != lines.len() || !patterns.iter().zip(lines).all(is_line) {
        let found = facts.section(section).unwrap_or_default().join("\n      ");
        failures.push(format!("{section} is not exactly {patterns:?} but\n      {found}"));
    }
}

/// Checks the types of all signatures on a device. A device may have several signatures of one type: a GPT has three,
/// and a vfat up to three.
pub fn check_signatures(device: &str, wanted: &[String], facts: &Facts, failures: &mut Vec<String>) {
    let Some(lines) = facts.section("signatures") else {
        return failures.push("section signatures is missing".to_owned());
    };
    let kinds = lines.iter().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [name, _, kind] if name == device => Some(kind),
        _ => None,
    });
    let found: BTreeSet<&str> = kinds.collect();
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    if found != wanted {
        failures.push(format!("signatures on {device}: {found:?}, expected {wanted:?}"));
    }
}

/// Checks a system whose disk was removed. All filesystems must be mounted, but their devices may have other names.
pub fn check_degraded(expect: &SystemExpectations, facts: &Facts, failures: &mut Vec<String>) {
    let lines = facts.section("mounts").unwrap_or_default();
    for mount in &expect.mounts {
        let mut fields = mount.split_whitespace().skip(1);
        let (path, kind) = (fields.next().unwrap_or("*"), fields.next().unwrap_or("*"));
        if !lines.iter().any(|line| fields_match(&format!("* {path} {kind}"), line)) {
            failures.push(format!("{path} is not mounted as {kind}"));
        }
    }
    if !facts.section("boot").unwrap_or_default().iter().any(|via| matches_pattern("disk", via)) {
        failures.push("it did not boot from disk".to_owned());
    }
}

/// Tests that each comparison accepts matching facts, and reports differences.
pub fn self_test() {
    let text = "=== facts begin tiny\n--- boot\ndisk\n--- mounts\n# all\n/dev/md127 / ext4 rw 0 0\n--- arrays\n\
                root raid1 1.2 2 sda2,sdb2 -\n--- groups\n--- signatures\nsda 0x1 gpt\nsda 0x2 gpt\nsda 0x3 PMBR\n\
                sda2 0x4 linux_raid_member\n=== facts end tiny\n";
    let facts = Facts::read(text, "tiny").expect("complete");
    let lines = |section: &str, patterns: Option<&[&str]>| {
        let patterns: Option<Vec<String>> = patterns.map(|list| list.iter().map(|text| (*text).to_owned()).collect());
        let mut failures = Vec::new();
        check_all_lines(&facts, section, patterns.as_deref(), &mut failures);
        failures.join("\n")
    };
    assert_eq!(lines("arrays", None), "");
    assert_eq!(lines("arrays", Some(&["root raid1 1.2 2 sd* -"])), "");
    assert_eq!(lines("groups", Some(&[])), "");
    assert!(lines("arrays", Some(&[])).contains("is not expected"));
    assert!(lines("arrays", Some(&["root raid5"])).contains("no line fits"));
    assert!(lines("arrays", Some(&["root", "root"])).contains("1 lines, expected 2"));
    assert!(lines("volumes", Some(&[])).contains("is missing"));

    let exactly = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let mut failures = Vec::new();
        check_exact_lines(&facts, "mounts", Some(&patterns), &mut failures);
        failures.is_empty()
    };
    assert!(exactly(&["/dev/md* / ext4 rw 0 0"]));
    for wrong in [&["/dev/md* / ext4 rw 0"][..], &["/dev/md* / ext4 rw 0 1"], &[], &["* / * * * *", "* / * * * *"]] {
        assert!(!exactly(wrong), "{wrong:?}");
    }

    let kinds = |device: &str, wanted: &[&str]| {
        let mut failures = Vec::new();
        check_signatures(
            device,
            &wanted.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>(),
            &facts,
            &mut failures,
        );
        failures.is_empty()
    };
    assert!(kinds("sda", &["gpt", "PMBR"]) && kinds("sda2", &["linux_raid_member"]) && kinds("sda1", &[]));
    assert!(!kinds("sda", &["gpt"]) && !kinds("sda1", &["ext4"]) && !kinds("sda2", &["linux_raid_member", "ext4"]));

    for (mount, words) in
        [("/dev/md0 / ext4", ""), ("/dev/md0 /data ext4", "/data is not"), ("/dev/md0 / xfs", "as xfs")]
    {
        let mut failures = Vec::new();
        check_degraded(
            &SystemExpectations { mounts: vec![mount.to_owned()], ..SystemExpectations::default() },
            &facts,
            &mut failures,
        );
        let failures = failures.join("\n");
        assert!(failures.contains(words) && failures.is_empty() == words.is_empty(), "{mount}: {failures}");
    }
}
