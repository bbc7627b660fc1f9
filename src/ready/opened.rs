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

fn failed(container: Container) -> Result<(), Failed> {
    let tried = Tried::Container(container.device.clone());
    let why = if container.key.is_empty() {
        format!("no key: {} was given", container.source)
    } else if !command::missing(&[storage::luks::TOOL]).is_empty() {
        "the ramdisk has no cryptsetup, which is in its part `luks`".to_owned()
    } else {
        let device = container.device.clone();
        match storage::luks::open(&OpenContainer { container, read_only: true }, &device) {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        }
    };
    Err(Failed { tried, why })
}
