//! Comparison of the disk contents that the inspection ramdisk reports with the expected contents.

use crate::disk_files::kind_guid;
use crate::expectations::{DiskExpectations, FileExpectations};
use crate::guest_facts::{Facts, matches_pattern};
use crate::scenario::Partition;
use crate::storage_comparison;
use serde_json::Value;

const MIB: u64 = 1024 * 1024;

pub(super) fn check_inspection(expect: &DiskExpectations, facts: &Facts, failures: &mut Vec<String>) {
    for (section, lines) in [("arrays", &expect.arrays), ("groups", &expect.groups), ("volumes", &expect.volumes)] {
        storage_comparison::check_all_lines(facts, section, lines.as_deref(), failures);
    }
    for (device, wanted) in &expect.signatures {
        storage_comparison::check_signatures(device, wanted, facts, failures);
    }
    for (disk, wanted) in &expect.partitions {
        check_partitions(disk, wanted, facts, failures);
    }
    for (device, wanted) in &expect.blkid {
        let Some(found) = facts.blkid(device) else {
            failures.push(format!("blkid finds nothing on {device}"));
            continue;
        };
        for (key, pattern) in wanted {
            let value = found.get(key.as_str()).copied().unwrap_or_default();
            if !matches_pattern(pattern, value) {
                failures.push(format!("blkid {device}: {key} is {value:?}, expected {pattern:?}"));
            }
        }
    }
    for device in &expect.fsck_clean {
        match facts.section(&format!("fsck {device}")) {
            Some([first, ..]) if first == "code 0" => {}
            other => failures.push(format!("fsck of {device}: {other:?}")),
        }
    }
    for (path, wanted) in &expect.files {
        check_file(path, wanted, facts, failures);
    }
}

pub(super) fn check_partitions(disk: &str, wanted: &[Partition], facts: &Facts, failures: &mut Vec<String>) {
    let text = facts.section(&format!("sfdisk {disk}")).unwrap_or_default().join("\n");
    let Ok(json) = serde_json::from_str::<Value>(&text) else {
        return failures.push(format!("sfdisk finds no partition table on {disk}: {text}"));
    };
    let table = &json["partitiontable"];
    let found = table["partitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if table["label"] != "gpt" || found.len() != wanted.len() {
        let (label, count) = (&table["label"], found.len());
        failures.push(format!("{disk}: {label} with {count} partitions, expected gpt with {}", wanted.len()));
    }
    for partition in wanted {
        let digits = |node: &str| node.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
        match found.iter().find(|entry| entry["node"].as_str().and_then(digits) == Some(partition.number)) {
            Some(entry) => compare_partition(disk, partition, entry, table, failures),
            None => failures.push(format!("{disk}: partition {} is missing", partition.number)),
        }
    }
}

fn compare_partition(disk: &str, wanted: &Partition, entry: &Value, table: &Value, failures: &mut Vec<String>) {
    let sector = table["sectorsize"].as_u64().unwrap_or(512);
    let bytes = |field: &str| entry[field].as_u64().unwrap_or_default() * sector;
    let (start, size) = (bytes("start"), bytes("size"));
    let mut compare = |what: &str, found: String, wanted: Option<String>| {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            failures.push(format!("{disk} partition {}: {what} is {found}, expected {wanted}", entry["node"]));
        }
    };
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    compare("label", text("name"), wanted.label.clone());
    compare("type", text("type").to_uppercase(), wanted.kind.as_deref().map(kind_guid));
    compare("start", format!("byte {start}"), wanted.start_mib.map(|mib| format!("byte {}", mib * MIB)));
    compare("size", format!("{size} bytes"), wanted.size_mib.map(|mib| format!("{} bytes", mib * MIB)));
    let last = table["lastlba"].as_u64().unwrap_or_default() * sector;
    let reaches = (start + size + 2 * MIB > last).to_string();
    compare("reaches the end of the disk", reaches, wanted.to_end.then(|| "true".to_owned()));
}

pub(super) fn check_file(path: &str, wanted: &FileExpectations, facts: &Facts, failures: &mut Vec<String>) {
    let lines = facts.section("stat").unwrap_or_default();
    let stat = lines.iter().find_map(|line| stat_of(path, line)).unwrap_or("not looked at");
    if wanted.missing != (stat == "missing") {
        return failures.push(format!("{path}: {stat}"));
    }
    let fields: Vec<&str> = stat.splitn(6, ' ').collect();
    let mut compare = |what: &str, found: &str, wanted: &Option<String>| {
        if wanted.as_ref().is_some_and(|wanted| wanted != found) {
            failures.push(format!("{path}: {what} is {found}, expected {}", wanted.as_deref().unwrap_or_default()));
        }
    };
    if let [mode, uid, gid, size, mtime, kind] = fields[..] {
        let octal = wanted.mode.as_ref().map(|mode| mode.trim_start_matches('0').to_owned());
        compare("mode", mode, &octal);
        compare("uid", uid, &wanted.uid);
        compare("gid", gid, &wanted.gid);
        compare("size", size, &wanted.size);
        compare("mtime", mtime, &wanted.mtime);
        compare("type", kind, &wanted.kind);
    }
    let sums = facts.section("sha256").unwrap_or_default();
    let sum = sums.iter().find_map(|line| line.strip_suffix(path)?.split(' ').next()).unwrap_or("unknown");
    compare("sha256", sum, &wanted.sha256);
    let content = facts.section(&format!("cat {path}")).unwrap_or_default().join("\n");
    for text in &wanted.contains {
        if !matches_pattern(&format!("*{text}*"), &content) {
            failures.push(format!("{path} does not contain {text:?}:\n{content}"));
        }
    }
}

/// Returns the fields of a stat line if the line belongs to this path, not to a longer path that continues with a
/// blank.
fn stat_of<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let state = line.strip_prefix(path)?.strip_prefix(' ')?;
    let fields: Vec<&str> = state.splitn(6, ' ').collect();
    let is_number = |field: &&str| field.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = fields.len() == 6 && fields[..5].iter().all(is_number) && !is_number(&&fields[5][..1]);
    (is_whole || state == "missing").then_some(state)
}
