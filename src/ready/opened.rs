//! Encrypted filesystems and groups that a reinstall keeps: their keys, and their containers opened for reading, so that the plan can tell
//! what is in them.

use crate::allocation::Allocation;
use crate::command;
use crate::device::DevicePath;
use crate::error::{Context, Phase, Result};
use crate::inventory::{Failed, Inventory, Tried};
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

fn is_able() -> bool {
    command::missing(&[storage::luks::TOOL]).is_empty()
}

/// A group of which a physical volume is missing would not be seen as it is.
fn all_or_none(containers: Vec<Container>) -> Vec<Failed> {
    let mappings: Vec<DevicePath> = containers.iter().map(|container| container.mapping.clone()).collect();
    let failed: Vec<Failed> = containers.into_iter().filter_map(|container| failed(container).err()).collect();
    if !mappings.iter().all(|mapping| Path::new(mapping).exists()) {
        for error in mappings.iter().filter_map(|mapping| storage::luks::close(mapping).err()) {
            tracing::warn!("{error}");
        }
    }
    failed
}

/// What only the second key opens is open then, and failed too: the plan says so.
fn failed(container: Container) -> Result<(), Failed> {
    let tried = Tried::Container(container.device.clone());
    let is_sealed = container.source == KeySource::Tpm2;
    let why = if !is_able() {
        "the ramdisk has no cryptsetup, which is in its part `luks`".to_owned()
    } else if container.key.is_empty() && !is_sealed {
        match container.source {
            KeySource::Prompt => "no passphrase was typed that opens it".to_owned(),
            source => format!("no key: {source} was given"),
        }
    } else if Path::new(&container.mapping).exists() {
        // An earlier look of this ramdisk.
        return Ok(());
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

#[cfg(test)]
mod tests;
