//! Read-only assembly of the objects on disks, so that the inventory can inspect their contents. The disks are not
//! changed: they reject writes by programs, arrays are started read-only, and a logical volume is activated only if its
//! activation writes nothing. Other volumes are made readable by read-only mappings, if LVM's metadata describes the
//! location of their content (`volume_groups`).
//!
//! Every array is started over snapshots of its members, because the kernel writes even to arrays that are started
//! read-only. Changes to the snapshots are kept in memory. `md_bitmap_load` and `md_bitmap_flush`
//! (drivers/md/md-bitmap.c) write the superblock of a bitmap at every start and stop, and the whole bitmap if it is
//! outdated. The kernel also replays a journal, empties a partial parity log, and continues a reshape. There are no
//! exceptions for arrays whose superblocks do not indicate such writes, because superblocks cannot prove that the
//! kernel will write nothing.

mod volume_groups;

use super::write_protection::WriteLocks;
use super::{block_device, overlay, teardown, unmounted_filesystem_inspection};
use crate::probe::{self, ProbeDepth};
use crate::process::ToolCommand;
use common::error::{Context, Phase, Result};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{InspectionFailure, InspectionTarget, Inventory, LvmVolumeGroup, MdArray, MemberRole};
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;
use uuid::Uuid;

/// Maximum number of rounds. Each round starts the objects that are on top of objects started in previous rounds.
const ROUNDS: usize = 8;

/// Time limit for mdadm and lvm. It is generous, because failing disks respond slowly.
const TOOL_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum memory for changes to a member of an array, in bytes, if the kernel writes at most the bitmap and the
/// superblock. Bitmaps created by mdadm take a few hundred KiB.
const BITMAP_ROOM_BYTES: u64 = 16 << 20;

/// Result of [`assemble_read_only`].
#[derive(Debug)]
pub struct ReadOnlyAssembly {
    /// Arrays, mappings and bcache devices that were running before the assembly.
    before: Vec<KernelName>,
    /// Disks whose objects are assembled.
    disks: Vec<DevicePath>,
    locks: WriteLocks,
    /// Failed attempts to start arrays and volumes.
    failed: Vec<InspectionFailure>,
    /// Arrays that the assembly has tried to start, with the number of their members at that time.
    arrays: HashSet<(Uuid, usize)>,
    /// Groups that the assembly has tried to activate, with the number of their physical volumes at that time.
    groups: HashSet<(String, usize)>,
    /// UUIDs of groups whose volumes were activated since the last inventory.
    tried: Vec<String>,
    /// Objects that could not be assembled, with the reason. This is not an error, but the contents of these objects
    /// are missing from the inventory.
    pub notes: Vec<String>,
}

/// Locks these disks and starts every array and every volume on them that can be started without writing.
///
/// # Errors
/// Returns an error if a disk cannot be locked, or sysfs cannot be read. In this case, everything that was started is
/// stopped, and the disks are unlocked again.
pub fn assemble_read_only(disks: &[DevicePath]) -> Result<ReadOnlyAssembly> {
    let (disks, locks) = (disks.to_vec(), WriteLocks::default());
    let (failed, notes) = (Vec::new(), Vec::new());
    let (arrays, groups, tried) = (HashSet::new(), HashSet::new(), Vec::new());
    let mut assembled =
        ReadOnlyAssembly { before: list_running_devices()?, disks, locks, failed, arrays, groups, tried, notes };
    match assembled.lock_disks().and_then(|()| assembled.assemble_all()) {
        Ok(()) => Ok(assembled),
        Err(error) => {
            // A further error is ignored, because the error of the assembly is more informative.
            let _ = assembled.take_down();
            Err(error)
        }
    }
}

impl ReadOnlyAssembly {
    /// Marks the devices in the inventory that were not running before the assembly, and adds failed attempts to start
    /// objects that are still not running.
    pub fn mark_inventory(&self, inventory: &mut Inventory) {
        for stacked in &mut inventory.stacked {
            stacked.assembled = !self.before.contains(&stacked.name);
        }
        // A failed attempt is reported only if the object is still not running: a later attempt may have succeeded,
        // after another member was found.
        let fails = |failed: &&InspectionFailure| {
            !inventory.arrays.iter().any(|array| is_failed_array_running(inventory, array, failed))
                && !volume_groups::is_failure_resolved(inventory, failed)
        };
        let failed: Vec<InspectionFailure> = self.failed.iter().filter(fails).cloned().collect();
        inventory.failed.extend(failed);
    }

    /// Makes the disks writable again. Arrays and volumes stay read-only.
    ///
    /// # Errors
    /// Returns an error if a disk cannot be made writable.
    pub fn unlock_disks(&mut self) -> Result<()> {
        self.locks.unlock_all()
    }

    /// Adds the contents of the filesystems on these disks to the inventory. The disks are locked during the
    /// inspection.
    ///
    /// # Errors
    /// Returns an error if a disk cannot be locked or unlocked, or a filesystem stays mounted.
    pub fn inspect_filesystems(&mut self, inventory: &mut Inventory) -> Result<()> {
        let looked = self.lock_disks().and_then(|()| unmounted_filesystem_inspection::inspect_filesystems(inventory));
        inventory.explored = looked.is_ok();
        let unlocked = self.unlock_disks();
        self.log_notes(looked?);
        unlocked
    }

    /// Adds the contents of the filesystems like [`ReadOnlyAssembly::inspect_filesystems`], but for a machine whose
    /// disks must not be written. All disks stay locked, including disks that appeared since the assembly. Returns the
    /// write locks; the caller decides when to release them.
    ///
    /// # Errors
    /// Returns an error if a disk cannot be locked, or a filesystem stays mounted. After an error, the disks that are
    /// already locked remain locked.
    pub fn inspect_and_keep_locks(mut self, inventory: &mut Inventory) -> Result<WriteLocks> {
        self.inspect_locked(inventory)?;
        Ok(self.locks)
    }

    /// Adds the contents of the filesystems to the inventory. All disks stay locked, including disks that appeared
    /// since the assembly, until [`ReadOnlyAssembly::take_down`] is called.
    ///
    /// # Errors
    /// The same errors as for [`ReadOnlyAssembly::inspect_and_keep_locks`].
    pub fn inspect_locked(&mut self, inventory: &mut Inventory) -> Result<()> {
        for disk in &mut inventory.disks {
            if self.locks.contains(&disk.device) {
                // The inventory must not list this disk as write-protected, because this program has set the read-only
                // flag.
                disk.read_only = false;
            } else if !disk.read_only {
                self.locks.lock_disk(&disk.device)?;
            }
        }
        let looked = unmounted_filesystem_inspection::inspect_filesystems(inventory)?;
        inventory.explored = true;
        self.log_notes(looked);
        Ok(())
    }

    /// Ends an inspection: stops everything that the assembly has started, and then makes the disks writable again. If
    /// a device stays in use, the other devices are stopped nevertheless. The call can be repeated.
    ///
    /// # Errors
    /// Returns an error if a device stays in use (the error lists the users), or a disk cannot be made writable.
    pub fn take_down(&mut self) -> Result<()> {
        let stopped: Vec<Result<()>> =
            self.disks.iter().map(|disk| teardown::release_above_except(disk, &self.before)).collect();
        let unlocked = self.unlock_disks();
        stopped.into_iter().collect::<Result<()>>().and(unlocked)
    }

    fn log_notes(&mut self, notes: Vec<String>) {
        for note in notes {
            tracing::warn!("{note}");
            self.notes.push(note);
        }
    }

    fn lock_disks(&mut self) -> Result<()> {
        for disk in &self.disks {
            // A disk that is already read-only is not locked, so that it is not made writable when the locks are
            // released.
            if !is_read_only(disk)? {
                self.locks.lock_disk(disk)?;
            }
        }
        Ok(())
    }

    /// Repeats the assembly after LUKS containers were opened. Activation is attempted again even for groups for which
    /// it was already attempted, because the containers may contain further physical volumes of these groups.
    ///
    /// # Errors
    /// The same errors as for [`ReadOnlyAssembly::assemble_all`].
    pub fn assemble_again(&mut self) -> Result<()> {
        self.groups.clear();
        self.assemble_all()
    }

    /// Starts arrays and volumes repeatedly until nothing new is found. Arrays are started first, because a group may
    /// span an array and a disk.
    ///
    /// # Errors
    /// Returns an error if the inventory cannot be read.
    fn assemble_all(&mut self) -> Result<()> {
        for _ in 0..ROUNDS {
            let inventory = probe::read_inventory(ProbeDepth::Deep)?;
            self.report_groups(&inventory);
            let arrays = inventory.arrays.iter().filter(|array| array.running.is_none());
            let arrays: Vec<&MdArray> =
                arrays.filter(|array| self.arrays.insert((array.uuid, array.members.len()))).collect();
            for array in &arrays {
                let started = start_array(array);
                if let Err(why) = &started {
                    self.failed
                        .push(InspectionFailure { tried: InspectionTarget::Array(array.uuid), why: why.clone() });
                }
                self.log_result(&format!("array {}", array.uuid), started);
            }
            if !arrays.is_empty() {
                continue;
            }
            let groups = inventory.groups.iter();
            let groups: Vec<&LvmVolumeGroup> =
                groups.filter(|group| self.groups.insert((group.uuid.clone(), count_present_volumes(group)))).collect();
            for group in &groups {
                self.failed.extend(volume_groups::activate_read_only(group));
                self.tried.push(group.uuid.clone());
            }
            if groups.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Reports which volumes of each attempted group are readable, and why the other volumes are not. The exit code of
    /// lvm does not contain this information: lvm exits with success even if it activated nothing.
    fn report_groups(&mut self, inventory: &Inventory) {
        let tried = std::mem::take(&mut self.tried);
        for group in inventory.groups.iter().filter(|group| tried.contains(&group.uuid)) {
            let notes = volume_groups::report_volumes(group, &self.failed);
            self.log_notes(notes);
        }
    }

    fn log_result(&mut self, what: &str, result: Result<(), String>) {
        match result {
            Ok(()) => tracing::info!("{what}: assembled read-only for inspection"),
            Err(error) => {
                let note = format!("{what}: cannot be assembled: {error}");
                tracing::warn!("{note}");
                self.notes.push(note);
            }
        }
    }
}

/// Returns all md arrays, device-mapper devices and bcache devices.
fn list_running_devices() -> Result<Vec<KernelName>> {
    let entries = fs::read_dir("/sys/block").context(Phase::Storage, || "read /sys/block")?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| ["md", "dm-", "bcache"].iter().any(|prefix| name.starts_with(prefix)));
    Ok(names.map(KernelName::from).collect())
}

fn is_read_only(disk: &DevicePath) -> Result<bool> {
    let path = block_device::sysfs_path(disk)?.join("ro");
    let text = fs::read_to_string(&path).context(Phase::Storage, || format!("read {}", path.display()))?;
    Ok(text.trim() == "1")
}

/// Returns whether `failed` concerns this array and the array is now running. An array that mdadm could not start is
/// still registered with its members, but has the size 0.
fn is_failed_array_running(inventory: &Inventory, array: &MdArray, failed: &InspectionFailure) -> bool {
    let is_it = failed.tried == InspectionTarget::Array(array.uuid);
    let mut stacked = inventory.stacked.iter().filter(|stacked| array.running.as_ref() == Some(&stacked.name));
    is_it && stacked.any(|stacked| stacked.size_bytes > 0)
}

fn start_array(array: &MdArray) -> Result<(), String> {
    if array.level == "container" {
        return Err(format!(
            "the array is a firmware RAID ({metadata}), which is not started",
            metadata = array.metadata
        ));
    }
    // Members that have diverged, because each was used without the other, are not active. mdadm would start the array
    // from the first of them.
    if !array.members.iter().any(|member| matches!(member.role, MemberRole::Active(_))) {
        return Err("none of the array's members is known to be complete and current".to_owned());
    }
    let members: Vec<DevicePath> = array.members.iter().map(|member| member.device.clone()).collect();
    let overlays = create_overlays(&members, overlay_memory_bytes(array))?;
    run_mdadm_assemble(array, &overlays).inspect_err(|_| remove_overlays(&overlays))
}

/// Returns the maximum memory, in bytes, for the changes to each member of the array.
fn overlay_memory_bytes(array: &MdArray) -> u64 {
    let most = overlay::available_memory_bytes() / array.members.len().max(1) as u64;
    if array.writes_at_start { most } else { most.min(BITMAP_ROOM_BYTES) }
}

/// Creates an overlay over each of these devices. If the creation of one overlay fails, the other overlays are removed.
fn create_overlays(devices: &[DevicePath], room_bytes: u64) -> Result<Vec<DevicePath>, String> {
    let mut overlays = Vec::new();
    for device in devices {
        match overlay::create_overlay(device, room_bytes) {
            Ok(overlay) => overlays.push(overlay),
            Err(error) => {
                remove_overlays(&overlays);
                return Err(error.to_string());
            }
        }
    }
    Ok(overlays)
}

fn remove_overlays(overlays: &[DevicePath]) {
    for error in overlays.iter().filter_map(|overlay| overlay::remove_overlay(overlay).err()) {
        tracing::warn!("{error}");
    }
}

/// Starts an array from these members. `mdadm --assemble --scan` is not used, because this command does not start any
/// further arrays after it has found a member that belongs to a running array and has an outdated event count
/// (Assemble.c, "Found some drive for an array that is already active").
fn run_mdadm_assemble(array: &MdArray, members: &[DevicePath]) -> Result<(), String> {
    let mdadm = ToolCommand::new("mdadm").arg("--assemble").arg(find_free_md_device()?);
    let mdadm = mdadm.args(["--run", "--readonly", "--config=none", "--homehost=any"]);
    let mdadm = mdadm.arg(format!("--uuid={}", array.uuid.simple()));
    mdadm
        .args(members)
        .env("MDADM_NO_UDEV", "1")
        .deadline(TOOL_TIMEOUT)
        .run()
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Returns the highest free array number, which mdadm itself would also choose.
fn find_free_md_device() -> Result<String, String> {
    let free = |number: &u32| !Path::new(&format!("/sys/block/md{number}")).exists();
    let number = (0..128).rev().chain(128..512).find(free).ok_or("all 512 minor numbers for md devices are in use")?;
    Ok(format!("/dev/md{number}"))
}

/// Returns the number of physical volumes of the group that are present.
fn count_present_volumes(group: &LvmVolumeGroup) -> usize {
    group.physical.iter().filter(|physical| physical.device.is_some()).count()
}

#[cfg(test)]
mod tests;
