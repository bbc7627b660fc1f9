//! Comparison of a plan with the plan that the operator approved. A plan that differs from the approved one is refused
//! before the first write; the refusal lists the differences.

mod disks;

use super::approval_summary::{ApprovalSummary, ApprovedObject, ObjectFate, VERSION};
use super::{InstallMode, MarkerWaiver, PlanRequest};
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use common::format::format_count;
use common::type_errors::locate_json_error;
use serde_json::Value;
use std::collections::BTreeMap;

/// Maximum number of differences that a refusal lists.
const MAXIMUM_LISTED_DIFFERENCES: usize = 20;

const APPROVAL_FIELD: &str = "approved";

/// Returns the differences between the plan and the approved one; empty if the request has no approval.
pub(crate) fn compare_with_approval(request: &PlanRequest, found: &ApprovalSummary) -> Vec<Diagnostic> {
    let Some(approved) = &request.assigned.allocation.approved else { return Vec::new() };
    let verdicts = match parse_approval(&approved.verdicts, &approved.sha256) {
        Ok(verdicts) => verdicts,
        Err(why) => {
            return vec![
                Diagnostic::new(APPROVAL_FIELD, format!("{why}; approve this plan again"))
                    .with_code(ErrorCode::ApprovalMismatch),
            ];
        }
    };
    let differences = find_differences(&verdicts, found, has_begun(request));
    if differences.is_empty() {
        return Vec::new();
    }
    let more = differences.len().saturating_sub(MAXIMUM_LISTED_DIFFERENCES);
    let head = format!(
        "the plan differs from the approved plan ({}): revert the changes, or review the new plan and approve it \
         (`drophammer site plan DIR --approve`)",
        approved.sha256
    );
    let more = (more > 0).then(|| format!("and {}", format_count(more, "other difference", "other differences")));
    std::iter::once(head)
        .chain(differences.into_iter().take(MAXIMUM_LISTED_DIFFERENCES))
        .chain(more)
        .map(|line| Diagnostic::new(APPROVAL_FIELD, line).with_code(ErrorCode::ApprovalMismatch))
        .collect()
}

/// Parses the verdicts of an approval.
///
/// # Errors
/// Fails if the verdicts do not match the hash in the approval, or if the approval uses another version of the format.
pub fn parse_approval(verdicts: &Value, sha256: &str) -> Result<ApprovalSummary, String> {
    let version = verdicts.get("version").and_then(Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        let version = version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
        return Err(format!("the approval has {version}, but this drophammer requires version {VERSION}"));
    }
    let read: ApprovalSummary = serde_json::from_value(verdicts.clone())
        .map_err(|error| format!("cannot parse the approval: {}", locate_json_error(&error)))?;
    let digest = read.digest();
    match digest == sha256 {
        true => Ok(read),
        false => Err(format!(
            "the approval is corrupt: it records the hash {sha256}, but its contents have the hash {digest}"
        )),
    }
}

/// Returns whether an earlier attempt with this approval passed the point of no return. If so, the current attempt may
/// find objects that the earlier attempt created.
fn has_begun(request: &PlanRequest) -> bool {
    let claim = request.claim.as_ref();
    claim.is_some_and(|claim| claim.waiver == Some(MarkerWaiver::Begun) || !claim.begun_on.is_empty())
}

/// Returns one line for each difference between the plan and its approval, with the approved value and the value in the
/// plan.
fn find_differences(approved: &ApprovalSummary, found: &ApprovalSummary, has_begun: bool) -> Vec<String> {
    let heads = [
        ("machine", &approved.machine, &found.machine),
        ("allocation", &approved.allocation, &found.allocation),
        ("image", &approved.image, &found.image),
        ("layout", &approved.layout, &found.layout),
    ];
    let mut lines: Vec<String> = heads
        .into_iter()
        .filter(|(_, approved, found)| approved != found)
        .map(|(what, approved, found)| format!("{what}: approved {approved}, found {found}"))
        .collect();
    if approved.mode != found.mode {
        lines.push(format!("approved {}, found {}", describe_mode(approved.mode), describe_mode(found.mode)));
    }
    if approved.layout == found.layout && approved.layout_digest != found.layout_digest {
        let (then, now) = (&approved.layout_digest, &found.layout_digest);
        lines.push(format!("layout {layout} has changed: approved {then}, found {now}", layout = found.layout));
    }
    lines.extend(disks::find_differences(&approved.disks, &found.disks, has_begun));
    lines.extend(compare_torn(&approved.dismantled, &found.dismantled, has_begun));
    lines.extend(compare_objects(&approved.things, &found.things, has_begun));
    lines
}

/// Compares the objects that lose members in the plan with those in the approval. If an attempt was started, an
/// approved object that is missing in the plan is not a difference, because the attempt may already have wiped
/// members of that object.
fn compare_torn(approved: &[String], found: &[String], has_begun: bool) -> Vec<String> {
    let more = found.iter().filter(|dismantled| !approved.contains(dismantled));
    let more = more.map(|dismantled| format!("only the current plan removes members from an object: {dismantled}"));
    let less = approved.iter().filter(|dismantled| !has_begun && !found.contains(dismantled));
    more.chain(less.map(|dismantled| format!("only the approved plan removes members from an object: {dismantled}")))
        .collect()
}

fn compare_objects(approved: &[ApprovedObject], found: &[ApprovedObject], has_begun: bool) -> Vec<String> {
    let key = |thing: &ApprovedObject| (thing.name.clone(), thing.on.clone());
    let word = |things: &[&ApprovedObject]| match things {
        [] => "absent".to_owned(),
        several => several.iter().map(|thing| describe_fate(thing.fate)).collect::<Vec<_>>().join(" and "),
    };
    let is_same = |then: &[&ApprovedObject], now: &[&ApprovedObject]| {
        then.len() == now.len()
            && then.iter().zip(now).all(|(then, now)| {
                let is_done = now.fate == ObjectFate::Kept && matches!(then.fate, ObjectFate::Made | ObjectFate::Added);
                then.fate == now.fate || (has_begun && is_done)
            })
    };
    let pairs = pair_by_key(approved, found, key).into_iter();
    let differ = pairs.filter(|(_, (then, now))| !is_same(then, now));
    differ
        .map(|((name, on), (then, now))| {
            let on = if on.is_empty() { String::new() } else { format!(" on {}", on.join(" and ")) };
            format!("{name}{on}: approved {approved}, found {actual}", approved = word(&then), actual = word(&now))
        })
        .collect()
}

type BothSides<'a, T> = (Vec<&'a T>, Vec<&'a T>);

/// Groups the approved items and the items of the plan by key. Items with the same key stay in their original order.
fn pair_by_key<'a, T, K: Ord>(
    approved: &'a [T],
    found: &'a [T],
    key: impl Fn(&T) -> K,
) -> BTreeMap<K, BothSides<'a, T>> {
    let mut pairs: BTreeMap<K, BothSides<T>> = BTreeMap::new();
    approved.iter().for_each(|item| pairs.entry(key(item)).or_default().0.push(item));
    found.iter().for_each(|item| pairs.entry(key(item)).or_default().1.push(item));
    pairs
}

fn describe_mode(mode: InstallMode) -> &'static str {
    match mode {
        InstallMode::Install => "an installation",
        InstallMode::Reinstall => "a reinstall",
    }
}

fn describe_fate(kind: ObjectFate) -> &'static str {
    match kind {
        ObjectFate::Made => "made",
        ObjectFate::Kept => "kept",
        ObjectFate::Added => "added",
    }
}
