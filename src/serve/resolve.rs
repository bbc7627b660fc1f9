//! Finds what an allocation refers to: its image, and the layout that it names or that its machine's size and image choose.

use super::directory::{Assigned, Machine};
use super::input::{self, Allocation, Image, at, nearest};
use super::state::State;
use crate::layout::Layout;
use crate::layout::set::Set;
use std::collections::BTreeMap;

/// What allocations can refer to.
pub struct Known {
    /// By id.
    pub layouts: BTreeMap<String, Layout>,
    pub set: Set,
    /// By id; `None` while there is no digest yet.
    pub images: BTreeMap<String, Option<Image>>,
    pub state: State,
}

/// The machine with what its allocation refers to. An image whose digest is not there yet leaves the machine waiting.
///
/// # Errors
/// What is not there, with its place in the machine's file.
pub fn resolve(described: input::Machine, known: &Known) -> Result<Machine, String> {
    let Some(allocation) = described.allocation.clone() else {
        return Ok(Machine { described, assigned: None });
    };
    let layout = match &allocation.filesystemlayout {
        Some(id) => known.layouts.get(id.as_str()).ok_or_else(|| {
            let others = nearest(id, known.layouts.keys().map(String::as_str));
            at(id, &format!("there is no layout {:?} in layouts/{others}", **id))
        }),
        None => choose(&described, &allocation, known),
    }?;
    let image = known.images.get(allocation.image.as_str()).ok_or_else(|| {
        let others = nearest(&allocation.image, known.images.keys().map(String::as_str));
        at(&allocation.image, &format!("there is no image {:?} in images/{others}", *allocation.image))
    })?;
    let value = serde_json::to_value(layout).map_err(|error| error.to_string())?;
    let layout_id = layout.id.clone();
    let assigned = image.clone().map(|image| Assigned { allocation, image, layout_id, layout: value });
    Ok(Machine { described, assigned })
}

/// The layout of an allocation that names none. One that is installed keeps its layout: another one, for a new image, would
/// have a reinstallation erase other disks.
fn choose<'a>(machine: &input::Machine, allocation: &Allocation, known: &'a Known) -> Result<&'a Layout, String> {
    let installed = known.state.installed_layout(&machine.id, &allocation.id).map_err(|error| error.to_string())?;
    if let Some(id) = installed {
        return known.layouts.get(&id).ok_or_else(|| {
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
