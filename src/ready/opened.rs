//! Encrypted filesystems that a reinstall keeps: their keys, and their containers opened for reading, so that the plan can tell
//! what is in them.

use crate::allocation::Allocation;
use crate::command;
use crate::error::{Context, Phase, Result};
use crate::inventory::{Failed, Inventory, Tried};
use crate::layout::{KeySource, Layout};
use crate::plan::{Container, OpenContainer, luks};
use crate::pull::Secret;
use crate::storage;
use std::fs;
use std::io::ErrorKind;

/// The key of a ramdisk, for `key: file`. All of the file is the key, as cryptsetup takes it.
const KEY_FILE: &str = "/etc/drophammer/disk.key";

/// Gives the allocation the ramdisk's own key, where the layout wants it.
///
/// # Errors
/// It is there, and cannot be read as text.
pub fn read_key(layout: &Layout, allocation: &mut Allocation) -> Result<()> {
    let wants = layout.filesystems.iter().filter_map(|filesystem| filesystem.encrypted);
    if !wants.into_iter().any(|encrypted| encrypted.key == KeySource::File) {
        return Ok(());
    }
    allocation.file_key = match fs::read_to_string(KEY_FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        key => Secret::new(key.context(Phase::Settings, || format!("read {KEY_FILE}"))?),
    };
    Ok(())
}

/// Is anything of it encrypted?
pub fn wants(layout: &Layout) -> bool {
    layout.filesystems.iter().any(|filesystem| filesystem.encrypted.is_some())
}

/// Opens for reading what a reinstall keeps. What does not open is told why.
pub fn open(layout: &Layout, inventory: &Inventory, allocation: &Allocation) -> Vec<Failed> {
    let containers = luks::to_open(layout, inventory, allocation);
    containers.into_iter().filter_map(|container| failed(container).err()).collect()
}

/// What only the second key opens is open then, and failed too: the plan says so.
fn failed(container: Container) -> Result<(), Failed> {
    let tried = Tried::Container(container.device.clone());
    let is_sealed = container.source == KeySource::Tpm2;
    let why = if container.key.is_empty() && !is_sealed {
        format!("no key: {} was given", container.source)
    } else if !command::missing(&[storage::luks::TOOL]).is_empty() {
        "the ramdisk has no cryptsetup, which is in its part `luks`".to_owned()
    } else {
        let device = container.device.clone();
        let has_key = !container.key.is_empty();
        let open = OpenContainer { container, read_only: true };
        let opened = match is_sealed {
            true => storage::luks::sealed::open(&open, &device),
            false => storage::luks::open_with_key(&open, &device),
        };
        let Err(error) = opened else { return Ok(()) };
        let by_key = (is_sealed && has_key).then(|| storage::luks::open_with_key(&open, &device)).and_then(Result::err);
        by_key.map_or_else(|| error.to_string(), |by_key| format!("{error}; nor with disk_key: {by_key}"))
    };
    Err(Failed { tried, why })
}
