//! Encrypted filesystems and volume groups that a reinstall preserves. Collects the keys, and unlocks the containers
//! read-only, so that the plan can inspect the contents.

use crate::preflight::passphrase_prompt::{self, AskPassphrase};
use common::error::{Context, Phase, Result};
use linux::{process, storage};
use model::allocation::Allocation;
use model::device_name::DevicePath;
use model::inventory::{InspectionFailure, InspectionTarget, Inventory, StackedDeviceKind};
use model::layout::{KeySource, Layout};
use model::secret_text::SecretText;
use operations::{LuksContainer, OpenContainer};
use plan::luks;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// File in the ramdisk that contains the key for `key: file`. As for cryptsetup, the whole file is the key.
const KEY_FILE: &str = "/etc/drophammer/disk.key";

/// Reads the key file of the ramdisk into the allocation if the layout requires this key.
///
/// # Errors
/// Fails if the key file exists but cannot be read as text.
pub(crate) fn read_ramdisk_key(layout: &Layout, allocation: &mut Allocation) -> Result<()> {
    if !layout.encryption_specs().any(|encrypted| encrypted.key == KeySource::File) {
        return Ok(());
    }
    allocation.file_key = match fs::read_to_string(KEY_FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        key => SecretText::new(key.context(Phase::Settings, || format!("read {KEY_FILE}"))?),
    };
    Ok(())
}

/// Returns whether a key of the layout comes from the control plane.
pub(crate) fn needs_disk_key(layout: &Layout) -> bool {
    layout.encryption_specs().any(|encrypted| matches!(encrypted.key, KeySource::Server | KeySource::Tpm2))
}

/// Returns whether the layout has encrypted filesystems or volume groups.
pub(crate) fn has_encryption(layout: &Layout) -> bool {
    layout.encryption_specs().next().is_some()
}

/// Unlocks preserved containers read-only. Returns the containers that could not be unlocked. Stores a typed passphrase
/// in the allocation.
pub(crate) fn unlock_preserved(
    layout: &Layout,
    inventory: &Inventory,
    allocation: &mut Allocation,
    ask: &mut AskPassphrase,
) -> Vec<InspectionFailure> {
    let preserved = luks::containers_to_open(layout, inventory, allocation).concat();
    if let Some(first) = preserved.iter().find(|is| is.source == KeySource::Prompt && is_able()) {
        let mut opens =
            |typed: &SecretText| unlock_container(LuksContainer { key: typed.clone(), ..first.clone() }).is_ok();
        match passphrase_prompt::ask_preserved_passphrase(&passphrase_prompt::list_encrypted(layout), ask, &mut opens) {
            Ok(typed) => allocation.prompt_key = typed,
            Err(error) => tracing::warn!("{error}"),
        }
    }
    luks::containers_to_open(layout, inventory, allocation).into_iter().flat_map(unlock_group).collect()
}

/// Records, for each locked container without a recorded failure, that no key was tried. Without this record, a plan
/// would assume that the container can be unlocked.
pub(crate) fn record_untried_containers(inventory: &mut Inventory) {
    let containers = inventory
        .all_signatures()
        .filter(|(_, found)| found.iter().any(|signature| signature.kind == luks::LUKS_SIGNATURE_TYPE));
    let is_open = |device: &DevicePath| {
        let name = inventory.resolve_kernel_name(device);
        inventory.stacked.iter().any(|is| is.kind == StackedDeviceKind::Crypt && is.below.contains(&name))
    };
    let ways =
        |device: &DevicePath| [InspectionTarget::Container(device.clone()), InspectionTarget::Sealed(device.clone())];
    let is_told = |device: &DevicePath| ways(device).iter().any(|tried| inventory.find_failure(tried).is_some());
    let untried = containers.map(|(device, _)| device).filter(|device| !is_open(device) && !is_told(device));
    let why = "no key was tried";
    let untried = untried
        .map(|device| InspectionFailure { tried: InspectionTarget::Container(device.clone()), why: why.to_owned() });
    let untried: Vec<InspectionFailure> = untried.collect();
    inventory.failed.extend(untried);
}

fn is_able() -> bool {
    process::find_missing_tools(&[storage::luks::TOOL]).is_empty()
}

/// Unlocks either all containers of a volume group or no container. With only some containers unlocked, the volume
/// group would be incomplete.
fn unlock_group(containers: Vec<LuksContainer>) -> Vec<InspectionFailure> {
    let all: Vec<(DevicePath, DevicePath)> =
        containers.iter().map(|container| (container.device.clone(), container.mapping.clone())).collect();
    let mut told: Vec<InspectionFailure> =
        containers.into_iter().filter_map(|container| unlock_container(container).err()).collect();
    let locked = told.iter().find(|failed| matches!(failed.tried, InspectionTarget::Container(_)));
    let Some(why) = locked.map(|failed| {
        format!(
            "another container of the volume group cannot be unlocked, so the whole group stays locked: {reason}",
            reason = failed.why
        )
    }) else {
        return told;
    };
    for (device, mapping) in all {
        if let Err(error) = storage::luks::close_mapping(&mapping) {
            tracing::warn!("{error}");
        }
        let tried = InspectionTarget::Container(device);
        if !told.iter().any(|failed| failed.tried == tried) {
            told.push(InspectionFailure { tried, why: why.clone() });
        }
    }
    told
}

/// Unlocks a container. If the TPM fails but `disk_key` unlocks the container, the container stays unlocked, and the
/// error of the TPM is returned for the plan.
fn unlock_container(container: LuksContainer) -> Result<(), InspectionFailure> {
    let device = container.device.clone();
    let locked = |why: String| InspectionFailure { tried: InspectionTarget::Container(device.clone()), why };
    close_stale_mapping(&container).map_err(locked)?;
    if let Some(why) = reason_not_to_try(&container) {
        return Err(locked(why));
    }
    let open = OpenContainer { container, read_only: true };
    if open.container.source != KeySource::Tpm2 {
        return storage::luks::open_container_with_key(&open, &device).map_err(|error| locked(error.to_string()));
    }
    let Err(error) = storage::luks::tpm::open_with_tpm(&open, &device) else { return Ok(()) };
    if open.container.key.is_empty() {
        return Err(locked(error.to_string()));
    }
    Err(match storage::luks::open_container_with_key(&open, &device) {
        Ok(()) => InspectionFailure { tried: InspectionTarget::Sealed(device), why: error.to_string() },
        Err(by_key) => locked(format!("{error}; disk_key also cannot open the container: {by_key}")),
    })
}

/// Closes the mapping of a container that was unlocked earlier in this boot, because the key may have changed since
/// then.
fn close_stale_mapping(container: &LuksContainer) -> Result<(), String> {
    let LuksContainer { device, mapping, .. } = container;
    if !Path::new(mapping).exists() {
        return Ok(());
    }
    match storage::luks::is_mapping_on_device(container) {
        Ok(true) => storage::teardown::release_above(device).map_err(|error| error.to_string()),
        Ok(false) => {
            Err(format!("a container with the same UUID exists on another device, and is already open as {mapping}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the reason why unlocking the container cannot succeed; `None` if unlocking can be tried.
fn reason_not_to_try(container: &LuksContainer) -> Option<String> {
    if !is_able() {
        return Some("the ramdisk lacks cryptsetup; build the ramdisk with the component `luks`".to_owned());
    }
    match container.source {
        KeySource::Tpm2 => None,
        _ if !container.key.is_empty() => None,
        KeySource::Prompt => Some("no matching passphrase was typed".to_owned()),
        source => Some(format!("no key was provided for `key: {source}`")),
    }
}

#[cfg(test)]
mod tests;
