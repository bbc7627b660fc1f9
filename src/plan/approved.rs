//! Compares a plan with the one that the operator has approved. What differs is refused before the first write, by name.

mod disks;

use super::verdicts::{Kind, Thing, VERSION, Verdicts};
use super::{Mode, Request, Waiver};
use crate::problem::Problem;
use crate::text::counted;
use serde_json::Value;
use std::collections::BTreeMap;

/// So many differences are named; a person needs no more to see that it is another plan.
const NAMED: usize = 20;

const PLACE: &str = "approved";

/// Why the plan is not the approved one. A request without an approval has nothing to compare with.
pub fn refused(request: &Request, found: &Verdicts) -> Vec<Problem> {
    let Some(approved) = &request.assigned.allocation.approved else { return Vec::new() };
    let verdicts = match read(&approved.verdicts, &approved.sha256) {
        Ok(verdicts) => verdicts,
        Err(why) => return vec![Problem::new(PLACE, format!("{why}: approve this plan anew"))],
    };
    let differences = differences(&verdicts, found, has_begun(request));
    if differences.is_empty() {
        return Vec::new();
    }
    let more = differences.len().saturating_sub(NAMED);
    let head = format!(
        "this is not the plan that was approved ({}): put back what has changed, or look at it and approve it anew \
         (`drophammer rack plan DIR --approve`)",
        approved.sha256
    );
    let more = (more > 0).then(|| format!("and {}", counted(more, "other difference", "other differences")));
    std::iter::once(head)
        .chain(differences.into_iter().take(NAMED))
        .chain(more)
        .map(|line| Problem::new(PLACE, line))
        .collect()
}

/// The verdicts of an approval, when they are those that the hash is of.
///
/// # Errors
/// They are not, or are of a later version.
pub fn read(verdicts: &Value, sha256: &str) -> Result<Verdicts, String> {
    let version = verdicts.get("version").and_then(Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        let version = version.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
        return Err(format!(
            "the approval has {version}, which does not cover all that version {VERSION} of this drophammer compares"
        ));
    }
    let read: Verdicts =
        serde_json::from_value(verdicts.clone()).map_err(|error| format!("the approval is not understood: {error}"))?;
    let digest = read.digest();
    match digest == sha256 {
        true => Ok(read),
        false => Err(format!("the approval is not whole: it says {sha256}, and its verdicts are {digest}")),
    }
}

/// An earlier attempt with this approval has passed the point of no return. What it has made, this one may find.
fn has_begun(request: &Request) -> bool {
    let claim = request.claim.as_ref();
    claim.is_some_and(|claim| claim.waiver == Some(Waiver::Begun) || !claim.begun_on.is_empty())
}

/// A line each, both sides named.
fn differences(approved: &Verdicts, found: &Verdicts, has_begun: bool) -> Vec<String> {
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
        lines.push(format!("approved {}, found {}", mode(approved.mode), mode(found.mode)));
    }
    if approved.layout == found.layout && approved.layout_digest != found.layout_digest {
        let (then, now) = (&approved.layout_digest, &found.layout_digest);
        lines.push(format!("layout {} has changed: approved {then}, found {now}", found.layout));
    }
    lines.extend(disks::differences(&approved.disks, &found.disks, has_begun));
    lines.extend(of_torn(&approved.torn, &found.torn, has_begun));
    lines.extend(of_things(&approved.things, &found.things, has_begun));
    lines
}

/// What was shown as taken apart may be so already when an attempt has begun; nothing else ever is.
fn of_torn(approved: &[String], found: &[String], has_begun: bool) -> Vec<String> {
    let more = found.iter().filter(|torn| !approved.contains(torn));
    let more = more.map(|torn| format!("approved nothing of it, found that it is taken apart: {torn}"));
    let less = approved.iter().filter(|torn| !has_begun && !found.contains(torn));
    more.chain(less.map(|torn| format!("approved that it is taken apart, found nothing of it: {torn}"))).collect()
}

fn of_things(approved: &[Thing], found: &[Thing], has_begun: bool) -> Vec<String> {
    let key = |thing: &Thing| (thing.name.clone(), thing.on.clone());
    let word = |things: &[&Thing]| match things {
        [] => "not there".to_owned(),
        several => several.iter().map(|thing| fate(thing.fate)).collect::<Vec<_>>().join(" and "),
    };
    let is_same = |then: &[&Thing], now: &[&Thing]| {
        then.len() == now.len()
            && then.iter().zip(now).all(|(then, now)| {
                let is_done = now.fate == Kind::Kept && matches!(then.fate, Kind::Made | Kind::Added);
                then.fate == now.fate || (has_begun && is_done)
            })
    };
    let pairs = paired(approved, found, key).into_iter();
    let differ = pairs.filter(|(_, (then, now))| !is_same(then, now));
    differ
        .map(|((name, on), (then, now))| {
            let on = if on.is_empty() { String::new() } else { format!(" on {}", on.join(" and ")) };
            format!("{name}{on}: approved {}, found {}", word(&then), word(&now))
        })
        .collect()
}

type Pair<'a, T> = (Vec<&'a T>, Vec<&'a T>);

/// What is there under one key on both sides, each in its order.
fn paired<'a, T, K: Ord>(approved: &'a [T], found: &'a [T], key: impl Fn(&T) -> K) -> BTreeMap<K, Pair<'a, T>> {
    let mut pairs: BTreeMap<K, Pair<T>> = BTreeMap::new();
    approved.iter().for_each(|item| pairs.entry(key(item)).or_default().0.push(item));
    found.iter().for_each(|item| pairs.entry(key(item)).or_default().1.push(item));
    pairs
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Install => "an installation",
        Mode::Reinstall => "a reinstall",
    }
}

fn fate(kind: Kind) -> &'static str {
    match kind {
        Kind::Made => "made",
        Kind::Kept => "kept",
        Kind::Added => "added",
    }
}
