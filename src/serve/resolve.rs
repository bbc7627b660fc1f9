//! Finds the image, the layout and the steps of an allocation. Before the installation its file counts, afterwards what is installed or
//! ordered.

use super::approved::Approvals;
use super::definitions::Settled;
use super::input::{Allocation, Image, Location, Machine, at, nearest};
use super::promise;
use super::sizes::Size;
use super::state::{Standing, confirmed};
use super::states::States;
use super::templates::Templates;
use super::wanted::{self, Merged};
use crate::allocation::Approved;
use crate::definition::Os;
use crate::layout::set::Set;
use crate::layout::{Layout, read_json};
use crate::steps::Wanted;
use serde_json::Value;
use std::collections::BTreeMap;

/// What allocations can refer to.
#[derive(Debug, Default)]
pub struct Known {
    /// By id.
    pub layouts: BTreeMap<String, Layout>,
    pub set: Set,
    /// By id; `None` while there is no digest yet.
    pub images: BTreeMap<String, Option<Image>>,
    pub templates: Templates,
    /// What is hidden, and what is blacklisted.
    pub states: States,
    pub approvals: Approvals,
    /// By id.
    pub sizes: BTreeMap<String, Size>,
}

impl Known {
    /// Ids of the images that people are shown.
    pub fn listed_images(&self) -> impl Iterator<Item = &str> {
        let is_listed = |id: &&str| !self.states.is_hidden(id) && !self.states.is_blacklisted(id);
        self.images.keys().map(String::as_str).filter(is_listed)
    }
}

/// An allocation that can be carried out.
#[derive(Debug, Clone)]
pub struct Assigned {
    pub allocation: Allocation,
    pub image: Image,
    pub layout_id: String,
    /// In metal-api's spelling.
    pub layout: Value,
    /// What runs, where templates have a word in it; else none.
    pub steps: Vec<Wanted>,
    /// The allocation was never installed, or a reinstall is ordered. If false, the machine only learns what is installed.
    pub installs: bool,
    /// Another plan than this is refused by the agent.
    pub approved: Option<Approved>,
}

/// The machine's allocation, image and layout. `None`: it has no allocation, its image has no digest yet, its definition is not
/// verified yet, or its layout is made of what it has not registered yet, so that it waits.
///
/// # Errors
/// Everything that is missing, one line each, with its place in the machine's file.
pub fn resolve(machine: &Machine, standing: &Standing, known: &Known) -> Result<Option<Assigned>, String> {
    let Some(allocation) = machine.allocation.clone() else { return Ok(None) };
    if standing.barred {
        let message = format!(
            "allocation {} was moved to another machine, or something was copied over it: machine {} must not have it from its disks; \
             give it an allocation id of its own",
            *allocation.id, machine.id
        );
        return Err(at(&allocation.id, &message));
    }
    if let Some(other) = &standing.elsewhere {
        let message = format!(
            "allocation {} is installed under machine {other}, and is for no other. If this is that machine with another id, \
             `drophammer machine rename {other} {}`; else give it an allocation id of its own",
            *allocation.id, machine.id
        );
        return Err(at(&allocation.id, &message));
    }
    if let Some(why) = known.states.bars(&allocation, standing) {
        return Err(why);
    }
    let installs = !standing.is_installed() || standing.order.is_some();
    if standing.unconfirmed && installs {
        return Err(at(&allocation.id, &confirmed::explain(&machine.id)));
    }
    match &allocation.definition {
        // What is installed boots whatever became of its definition.
        Settled::Bad(why) if installs => return Err(why.clone()),
        Settled::Waits if installs => return Ok(None),
        _ => {}
    }
    let approved = match known.approvals.told(&machine.id, standing) {
        Ok(approved) => approved.filter(|_| installs),
        Err(why) if installs => return Err(why),
        Err(_) => None,
    };
    let (merged, unmerged) = match wanted::merged(&allocation, known) {
        Ok(merged) => (merged, None),
        Err(why) => (Merged::default(), Some(why)),
    };
    // Without the templates nobody knows where the layout comes from.
    let layout = match unmerged.filter(|_| installs) {
        None => layout(machine, &allocation, standing, known, &merged),
        Some(why) => Err(why),
    };
    let image = match (standing.is_installed(), &standing.order, allocation.definition.creates()) {
        (true, Some(order), Some(os)) => created(&allocation, &os, &order.image).map(Some),
        (false, _, Some(os)) => created(&allocation, &os, &allocation.image).map(Some),
        (true, Some(order), None) => known.images.get(&order.image).cloned().ok_or_else(|| {
            let gone = format!("a reinstall with image {:?} is ordered, which images/ has no longer: the machine waits", order.image);
            match order.begun {
                true => format!("{gone}; it has begun, so put the image back"),
                false => format!(
                    "{gone}; put it back, or order one that is there with `drophammer machine reinstall {} --image IMAGE`",
                    machine.id
                ),
            }
        }),
        (true, None, _) => Ok(Some(installed_image(standing, &allocation))),
        (false, _, None) => known.images.get(allocation.image.as_str()).cloned().ok_or_else(|| {
            let others = nearest(&allocation.image, known.listed_images());
            at(&allocation.image, &format!("there is no image {:?} in images/{others}", *allocation.image))
        }),
    };
    match (image, layout) {
        (Ok(Some(image)), Ok(Some((layout_id, layout)))) => {
            let steps = if installs { merged.steps } else { Vec::new() };
            Ok(Some(Assigned { allocation, image, layout_id, layout, steps, installs, approved }))
        }
        (Ok(_), Ok(_)) => Ok(None),
        (Err(image), Err(layout)) => Err(format!("{image}\n{layout}")),
        (Err(why), _) | (_, Err(why)) => Err(why),
    }
}

/// An installation that has begun goes on with the layout that it began with. An installed machine keeps its layout, until an
/// order says that the file counts (`--change-promise`). Another layout would erase other disks.
fn layout(
    machine: &Machine,
    allocation: &Allocation,
    standing: &Standing,
    known: &Known,
    merged: &Merged,
) -> Result<Option<(String, Value)>, String> {
    let by_the_operator = standing.order.as_ref().is_some_and(|order| order.change_promise);
    let kept = standing.pinned().or(standing.layout.as_ref().filter(|_| standing.succeeded && !by_the_operator));
    if let Some(kept) = kept {
        return Ok(Some((id_of(kept), kept.clone())));
    }
    let layout = match (&merged.arrays, &standing.generated) {
        (Some(_), Some(generated)) => generated.clone()?,
        (Some(_), None) => return Ok(None),
        (None, _) => by_the_files(machine, allocation, standing, known)?.clone(),
    };
    let json = serde_json::to_value(&layout).map_err(|error| error.to_string())?;
    match (&standing.marker, &standing.order) {
        (Some(marker), Some(order)) if !order.change_promise => match promise::contradiction(marker, &json) {
            Some(why) => Err(at(&allocation.id, &format!("{why}: {}", promise::remedy(&machine.id)))),
            None => Ok(Some((layout.id, json))),
        },
        _ => Ok(Some((layout.id, json))),
    }
}

/// Why an installed machine has no layout in the database: the layout of the files is not what its marker promises.
pub fn broken_promise(machine: &Machine, standing: &Standing, known: &Known) -> Option<String> {
    let allocation = machine.allocation.as_ref().filter(|_| standing.succeeded && standing.layout.is_none())?;
    let layout = by_the_files(machine, allocation, standing, known).ok()?;
    let why = promise::contradiction(standing.marker.as_ref()?, &serde_json::to_value(layout).ok()?)?;
    Some(at(
        &allocation.id,
        &format!("{why}: nothing is reinstalled before this is settled; {}", promise::remedy(&machine.id)),
    ))
}

/// The differences between the machine's file and what is installed, which counts.
pub fn notes(machine: &Machine, standing: &Standing, known: &Known) -> Vec<String> {
    let Some(allocation) = machine.allocation.as_ref().filter(|_| standing.succeeded) else { return Vec::new() };
    let mut notes = Vec::new();
    let says_other = |runs: &&String| **runs != **allocation.image && !allocation.image.is_empty();
    if let Some(runs) = standing.image.as_ref().filter(says_other).filter(|_| standing.order.is_none()) {
        let says = &**allocation.image;
        let message =
            format!("the file says {says}, the machine runs {runs}; `drophammer machine reinstall` changes it");
        notes.push(at(&allocation.image, &message));
    }
    if let (Some(layout), Some(installed)) = (&allocation.filesystemlayout, &standing.layout) {
        let id = id_of(installed);
        let is_other = known.layouts.get(layout.as_str()).is_some_and(|now| !is_same(now, installed));
        if **layout != id {
            let says = &**layout;
            let message = format!("the file says layout {says}, the machine is installed with {id} and keeps it");
            notes.push(at(layout, &message));
        } else if is_other {
            let message = format!("layout {id} has changed since the machine was installed, which keeps the old one");
            notes.push(at(layout, &message));
        }
    }
    notes
}

pub fn id_of(layout: &Value) -> String {
    layout.get("id").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Compares the meaning: a newer version of this program may write the same layout with other fields.
fn is_same(layout: &Layout, stored: &Value) -> bool {
    read_json(stored).is_ok_and(|stored| stored.layout == *layout)
}

/// What the allocation's definition makes itself, in place of the image with this id.
///
/// # Errors
/// It makes something else.
pub fn created(allocation: &Allocation, os: &Os, id: &str) -> Result<Image, String> {
    match os.to_string() == id {
        true => Ok(nowhere(id.to_owned())),
        false => {
            let why =
                format!("{os} makes the system itself, in place of image {id}: a reinstall names {os} as its image");
            Err(at(&allocation.image, &why))
        }
    }
}

/// The image that the machine runs. Nothing is fetched, so only its id counts.
fn installed_image(standing: &Standing, allocation: &Allocation) -> Image {
    nowhere(standing.image.clone().unwrap_or_else(|| allocation.image.to_string()))
}

/// There is no place to fetch it from.
pub fn nowhere(id: String) -> Image {
    Image {
        id,
        name: String::new(),
        description: String::new(),
        at: Location::Url(String::new()),
        mirrors: Vec::new(),
        digest: None,
        pull_secrets: Vec::new(),
        finish: None,
        contents: None,
    }
}

/// The layout that the machine's file names. Otherwise, for an installed machine, the one with the stored id (earlier versions
/// stored no layouts); for others, the one that size and image choose.
fn by_the_files<'a>(
    machine: &Machine,
    allocation: &Allocation,
    standing: &Standing,
    known: &'a Known,
) -> Result<&'a Layout, String> {
    if let Some(id) = &allocation.filesystemlayout {
        return known.layouts.get(id.as_str()).ok_or_else(|| {
            let others = nearest(id, known.layouts.keys().map(String::as_str));
            at(id, &format!("there is no layout {:?} in layouts/{others}", **id))
        });
    }
    if let Some(id) = standing.layout_id.as_ref().filter(|_| standing.succeeded) {
        return known.layouts.get(id).ok_or_else(|| {
            let message = format!("this allocation is installed with layout {id:?}, which is gone");
            at(&allocation.id, &format!("{message}: put it back, or name one in filesystemlayout"))
        });
    }
    let Some(size) = &machine.size else {
        let message = "the allocation names no filesystemlayout, and the machine has no size to choose one by";
        return Err(at(&allocation.id, message));
    };
    let chosen = known.set.select(size, &allocation.image).map_err(|why| at(&allocation.image, &why.to_string()))?;
    known.layouts.get(&chosen.id).ok_or_else(|| at(&allocation.image, "the chosen layout has just gone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::input;

    #[test]
    fn all_that_is_not_there_is_said_at_once() {
        let text = "id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n  image: debian-12\n  \
                    filesystemlayout: default\n";
        let machine = input::machine(text).unwrap();
        let why = resolve(&machine, &Standing::default(), &Known::default()).unwrap_err();
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), 2, "{why}");
        assert!(lines[0].starts_with("5:10: there is no image \"debian-12\" in images/"), "{why}");
        assert!(lines[1].starts_with("6:21: there is no layout \"default\" in layouts/"), "{why}");
    }
}
