//! Comparison of a plan's disks with those of the approved plan.

use super::pair_by_key;
use crate::DiskVerdict;
use crate::approval_summary::ApprovedDisk;
use std::collections::BTreeSet;

/// Endings of content lines that describe a device without recognized content. If an attempt was started, such a line
/// of the approved plan may be missing now, because the attempt may have created an object on the device.
const UNRECOGNIZED_CONTENT_ENDINGS: [&str; 2] = [" blank", " data of no known kind"];

/// Returns one line for each disk that differs from the approved plan, with its approved state and its current state.
pub(super) fn find_differences(approved: &[ApprovedDisk], found: &[ApprovedDisk], has_begun: bool) -> Vec<String> {
    let key = |disk: &ApprovedDisk| {
        let ApprovedDisk { serial, wwn, device, place, size_bytes, .. } = disk.clone();
        (serial, wwn, device, place, size_bytes)
    };
    let pairs = pair_by_key(approved, found, key).into_iter();
    pairs.filter_map(|(_, (then, now))| find_difference(&then, &now, has_begun)).collect()
}

/// Compares the approved disks with one key (`then`) with the current disks that have the same key (`now`). If several
/// disks have this key, the disks of both lists are compared pairwise, in their order.
fn find_difference(then: &[&ApprovedDisk], now: &[&ApprovedDisk], has_begun: bool) -> Option<String> {
    let name = then.first().or(now.first())?.name();
    let is_milder = |then: &ApprovedDisk, now: &ApprovedDisk| {
        has_begun && (then.verdict, now.verdict) == (DiskVerdict::Make, DiskVerdict::Keep)
    };
    let pairs = || then.iter().copied().zip(now.iter().copied());
    let has_verdicts = pairs().all(|(then, now)| then.verdict == now.verdict || is_milder(then, now));
    if then.len() != now.len() || !has_verdicts {
        return Some(format!(
            "disk {name}: approved {approved}, found {actual}",
            approved = describe_verdicts(then),
            actual = describe_verdicts(now)
        ));
    }
    if pairs().any(|(then, now)| then.partitions != now.partitions) {
        let partitions = |disks: &[&ApprovedDisk]| {
            disks.iter().map(|disk| disk.partitions.join(", ")).collect::<Vec<_>>().join(" and ")
        };
        return Some(format!(
            "disk {name}: approved {approved} with partitions {approved_partitions:?}, found {actual} with {actual_partitions:?}",
            approved = describe_verdicts(then),
            approved_partitions = partitions(then),
            actual = describe_verdicts(now),
            actual_partitions = partitions(now)
        ));
    }
    pairs().find_map(|(then, now)| compare_disk(&name, then, now, has_begun))
}

/// Returns the difference in model or content between a disk and the approved disk.
fn compare_disk(name: &str, then: &ApprovedDisk, now: &ApprovedDisk, has_begun: bool) -> Option<String> {
    if then.model != now.model {
        return Some(format!(
            "disk {name}: approved model {approved:?}, found {actual:?}",
            approved = then.model,
            actual = now.model
        ));
    }
    let (Some(before), Some(after)) = (&then.contents, &now.contents) else { return None };
    // A started attempt may already have erased disks that the plan wipes, and created filesystems on preserved disks.
    if has_begun && then.verdict != DiskVerdict::Keep {
        return None;
    }
    let may_change = |line: &str| has_begun && UNRECOGNIZED_CONTENT_ENDINGS.iter().any(|end| line.ends_with(end));
    let known = |lines: &'_ [String]| -> BTreeSet<String> { lines.iter().cloned().collect() };
    let (then, now) = (known(before), known(after));
    let gone: Vec<&str> = before.iter().filter(|line| !now.contains(*line)).map(String::as_str).collect();
    let gone: Vec<&str> = gone.into_iter().filter(|line| !may_change(line)).collect();
    let new: Vec<&str> = after.iter().filter(|line| !has_begun && !then.contains(*line)).map(String::as_str).collect();
    let listed = |lines: &[&str]| if lines.is_empty() { "nothing else".to_owned() } else { lines.join("; ") };
    let differs = !gone.is_empty() || !new.is_empty();
    differs.then(|| {
        format!(
            "disk {name}: approved with {approved}, found with {actual}",
            approved = listed(&gone),
            actual = listed(&new)
        )
    })
}

fn describe_verdicts(disks: &[&ApprovedDisk]) -> String {
    match disks {
        [] => "not written".to_owned(),
        several => several.iter().map(|disk| describe_verdict(disk.verdict)).collect::<Vec<_>>().join(" and "),
    }
}

fn describe_verdict(verdict: DiskVerdict) -> &'static str {
    match verdict {
        DiskVerdict::Wipe => "wiped",
        DiskVerdict::Keep => "kept",
        DiskVerdict::Make => "recreated, because it is blank",
        DiskVerdict::PartlyKept => "partly kept",
        DiskVerdict::NotOurs => "not written",
        DiskVerdict::Volumes => "for Kubernetes volumes",
    }
}
