//! Encrypted filesystems and groups that a reinstall keeps: their keys, and their containers opened for reading, so that the plan can tell
//! what is in them.

use crate::allocation::Allocation;
use crate::command;
use crate::device::DevicePath;
use crate::error::{Context, Phase, Result};
use crate::inventory::{Failed, Inventory, StackedKind, Tried};
use crate::layout::{KeySource, Layout};
use crate::plan::{Container, OpenContainer, luks};
use crate::pull::Secret;
use crate::ready::asked::{self, Ask};
use crate::storage;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The key of a ramdisk, for `key: file`. All of the file is the key, as cryptsetup takes it.
const KEY_FILE: &str = "/etc/drophammer/disk.key";

/// Gives the allocation the ramdisk's own key, where the layout wants it.
///
/// # Errors
/// It is there, and cannot be read as text.
pub fn read_key(layout: &Layout, allocation: &mut Allocation) -> Result<()> {
    if !layout.encrypted().any(|encrypted| encrypted.key == KeySource::File) {
        return Ok(());
    }
    allocation.file_key = match fs::read_to_string(KEY_FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        key => Secret::new(key.context(Phase::Settings, || format!("read {KEY_FILE}"))?),
    };
    Ok(())
}

/// Returns whether a key of the layout comes from the control plane.
pub fn needs_disk_key(layout: &Layout) -> bool {
    layout.encrypted().any(|encrypted| matches!(encrypted.key, KeySource::Server | KeySource::Tpm2))
}

/// Is anything of it encrypted?
pub fn wants(layout: &Layout) -> bool {
    layout.encrypted().next().is_some()
}

/// Opens for reading what a reinstall keeps. What does not open is told why. A passphrase that somebody types is the allocation's from
/// then on.
pub fn open(layout: &Layout, inventory: &Inventory, allocation: &mut Allocation, ask: &mut Ask) -> Vec<Failed> {
    let kept = luks::to_open(layout, inventory, allocation).concat();
    if let Some(first) = kept.iter().find(|is| is.source == KeySource::Prompt && is_able()) {
        let mut opens = |typed: &Secret| failed(Container { key: typed.clone(), ..first.clone() }).is_ok();
        match asked::kept_passphrase(&asked::purpose(layout), ask, &mut opens) {
            Ok(typed) => allocation.prompt_key = typed,
            Err(error) => tracing::warn!("{error}"),
        }
    }
    luks::to_open(layout, inventory, allocation).into_iter().flat_map(all_or_none).collect()
}

/// Notes of each container that is not open, and of which nothing is told yet, that nobody has tried it: no plan of this machine takes it
/// for one that opens.
pub fn note_untried(inventory: &mut Inventory) {
    let containers = inventory.all_signatures().filter(|(_, found)| found.iter().any(|is| is.kind == luks::KIND));
    let is_open = |device: &DevicePath| {
        let name = inventory.kernel_name(device);
        inventory.stacked.iter().any(|is| is.kind == StackedKind::Crypt && is.below.contains(&name))
    };
    let ways = |device: &DevicePath| [Tried::Container(device.clone()), Tried::Sealed(device.clone())];
    let is_told = |device: &DevicePath| ways(device).iter().any(|tried| inventory.failure(tried).is_some());
    let untried = containers.map(|(device, _)| device).filter(|device| !is_open(device) && !is_told(device));
    let why = "nobody has tried a key";
    let untried = untried.map(|device| Failed { tried: Tried::Container(device.clone()), why: why.to_owned() });
    let untried: Vec<Failed> = untried.collect();
    inventory.failed.extend(untried);
}

fn is_able() -> bool {
    command::missing(&[storage::luks::TOOL]).is_empty()
}

/// A group of which a physical volume is missing would not be seen as it is.
fn all_or_none(containers: Vec<Container>) -> Vec<Failed> {
    let all: Vec<(DevicePath, DevicePath)> =
        containers.iter().map(|is| (is.device.clone(), is.mapping.clone())).collect();
    let mut told: Vec<Failed> = containers.into_iter().filter_map(|container| failed(container).err()).collect();
    let locked = told.iter().find(|failed| matches!(failed.tried, Tried::Container(_)));
    let Some(why) = locked.map(|failed| format!("the group is opened as a whole or not at all: {}", failed.why)) else {
        return told;
    };
    for (device, mapping) in all {
        if let Err(error) = storage::luks::close(&mapping) {
            tracing::warn!("{error}");
        }
        let tried = Tried::Container(device);
        if !told.iter().any(|failed| failed.tried == tried) {
            told.push(Failed { tried, why: why.clone() });
        }
    }
    told
}

/// What only the second key opens is open then, and told too: the plan says so.
fn failed(container: Container) -> Result<(), Failed> {
    let device = container.device.clone();
    let locked = |why: String| Failed { tried: Tried::Container(device.clone()), why };
    close_earlier(&container).map_err(locked)?;
    if let Some(why) = not_tried(&container) {
        return Err(locked(why));
    }
    let open = OpenContainer { container, read_only: true };
    if open.container.source != KeySource::Tpm2 {
        return storage::luks::open_with_key(&open, &device).map_err(|error| locked(error.to_string()));
    }
    let Err(error) = storage::luks::sealed::open(&open, &device) else { return Ok(()) };
    if open.container.key.is_empty() {
        return Err(locked(error.to_string()));
    }
    Err(match storage::luks::open_with_key(&open, &device) {
        Ok(()) => Failed { tried: Tried::Sealed(device), why: error.to_string() },
        Err(by_key) => locked(format!("{error}; nor with disk_key: {by_key}")),
    })
}

/// An earlier look of this ramdisk may have opened it, with a key that is another one by now.
fn close_earlier(container: &Container) -> Result<(), String> {
    let Container { device, mapping, .. } = container;
    if !Path::new(mapping).exists() {
        return Ok(());
    }
    match storage::luks::lies_on(container) {
        Ok(true) => storage::release::release_above(device).map_err(|error| error.to_string()),
        Ok(false) => Err(format!("another device has a container with its UUID, which is open as {mapping}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Why it is of no use to try.
fn not_tried(container: &Container) -> Option<String> {
    if !is_able() {
        return Some("the ramdisk has no cryptsetup, which is in its part `luks`".to_owned());
    }
    match container.source {
        KeySource::Tpm2 => None,
        _ if !container.key.is_empty() => None,
        KeySource::Prompt => Some("no passphrase was typed that opens it".to_owned()),
        source => Some(format!("no key: {source} was given")),
    }
}

#[cfg(test)]
mod tests;
