//! Comparison of the disks of a plan with those of the approved plan.

use super::paired;
use crate::order::Gather;
use crate::plan::Verdict;
use crate::plan::verdicts::DiskVerdict;
use std::collections::BTreeSet;

/// Suffixes of content lines about devices on which a started attempt may have created something.
const NOTHING_YET: [&str; 2] = [" blank", " data of no known kind"];

/// Returns a line for each disk that differs, with both sides.
pub(super) fn differences(approved: &[DiskVerdict], found: &[DiskVerdict], has_begun: bool) -> Vec<String> {
    let key = |disk: &DiskVerdict| {
        let DiskVerdict { serial, wwn, device, place, size_bytes, .. } = disk.clone();
        (serial, wwn, device, place, size_bytes)
    };
    let pairs = paired(approved, found, key).into_iter();
    pairs.filter_map(|(_, (then, now))| difference(&then, &now, has_begun)).collect()
}

/// Compares the disks with one key. Disks with equal keys are compared in order.
fn difference(then: &[&DiskVerdict], now: &[&DiskVerdict], has_begun: bool) -> Option<String> {
    let name = then.first().or(now.first())?.name();
    let is_milder = |then: &DiskVerdict, now: &DiskVerdict| {
        has_begun && (then.verdict, now.verdict) == (Verdict::Make, Verdict::Keep)
    };
    let pairs = || then.iter().copied().zip(now.iter().copied());
    let has_verdicts = pairs().all(|(then, now)| then.verdict == now.verdict || is_milder(then, now));
    if then.len() != now.len() || !has_verdicts {
        return Some(format!("disk {name}: approved {}, found {}", in_words(then), in_words(now)));
    }
    if pairs().any(|(then, now)| then.partitions != now.partitions) {
        let partitions = |disks: &[&DiskVerdict]| {
            disks.iter().map(|disk| disk.partitions.join(", ")).collect::<Vec<_>>().join(" and ")
        };
        return Some(format!(
            "disk {name}: approved {} with partitions {:?}, found {} with {:?}",
            in_words(then),
            partitions(then),
            in_words(now),
            partitions(now)
        ));
    }
    pairs().find_map(|(then, now)| other_disk(&name, then, now, has_begun))
}

/// Returns the difference between a disk and the approved one in model or content.
fn other_disk(name: &str, then: &DiskVerdict, now: &DiskVerdict, has_begun: bool) -> Option<String> {
    if then.model != now.model {
        return Some(format!("disk {name}: approved model {:?}, found {:?}", then.model, now.model));
    }
    let (Some(before), Some(after)) = (&then.contents, &now.contents) else { return None };
    // A started attempt has erased the disks that it wipes, and may have created filesystems on preserved ones.
    if has_begun && then.verdict != Verdict::Keep {
        return None;
    }
    let may_change = |line: &str| has_begun && NOTHING_YET.iter().any(|end| line.ends_with(end));
    let known = |lines: &'_ [String]| -> BTreeSet<String> { lines.iter().cloned().gather() };
    let (then, now) = (known(before), known(after));
    let gone: Vec<&str> = before.iter().filter(|line| !now.contains(*line)).map(String::as_str).collect();
    let gone: Vec<&str> = gone.into_iter().filter(|line| !may_change(line)).collect();
    let new: Vec<&str> = after.iter().filter(|line| !has_begun && !then.contains(*line)).map(String::as_str).collect();
    let listed = |lines: &[&str]| if lines.is_empty() { "nothing else".to_owned() } else { lines.join("; ") };
    let differs = !gone.is_empty() || !new.is_empty();
    differs.then(|| format!("disk {name}: approved with {}, found with {}", listed(&gone), listed(&new)))
}

fn in_words(disks: &[&DiskVerdict]) -> String {
    match disks {
        [] => "not written".to_owned(),
        several => several.iter().map(|disk| verdict(disk.verdict)).collect::<Vec<_>>().join(" and "),
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Wipe => "wiped",
        Verdict::Keep => "kept",
        Verdict::Make => "recreated, because it is blank",
        Verdict::NotOurs => "not written",
        Verdict::Volumes => "for Kubernetes volumes",
    }
}
