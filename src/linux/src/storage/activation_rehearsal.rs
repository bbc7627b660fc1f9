//! Rehearsal before the wipe: all preserved objects are activated over snapshots that keep their changes in memory.
//! Arrays are started, groups are activated and journals are replayed, but the disks are not changed.

use super::mount::MountStack;
use super::overlay::{self, OverlayUsage};
use super::{btrfs_scan, external_ext_journal, luks, lvm, mdadm, teardown};
use crate::kernel_log::{EXCERPT_PREFIX, KernelLog};
use common::error::{Context, Error, Phase, Result};
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use nix::sys::statvfs::{FsFlags, statvfs};
use operations::{
    ActivateGroup, ActivationRehearsal, AssembleArray, CreateVolume, MountFilesystem, RemoveVolumes, RestoreOp,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Mount point at which the filesystems are mounted, one after the other.
const POINT: &str = "/run/drophammer/rehearsal";

/// Result of a successful rehearsal.
#[derive(Debug)]
pub struct RehearsalResult {
    pub filesystems: usize,
    /// Size of the data that was written to the snapshots, in bytes.
    pub memory_bytes: u64,
}

/// Activates all preserved objects over snapshots, and deactivates them again. Objects that were assembled on the same
/// disks for inspection are deactivated first.
///
/// # Errors
/// Returns a refusal if an object cannot be activated. The refusal contains the object's name, and the messages of the
/// tool and of the kernel.
pub fn run_rehearsal(rehearsal: &ActivationRehearsal) -> Result<RehearsalResult> {
    run_rehearsal_within(rehearsal, overlay::available_memory_bytes())
}

/// Runs the rehearsal with at most `room_bytes` bytes of memory for the changes of all snapshots together.
fn run_rehearsal_within(rehearsal: &ActivationRehearsal, room_bytes: u64) -> Result<RehearsalResult> {
    let log = KernelLog::from_now();
    let room_bytes = room_bytes / rehearsal.over.len().max(1) as u64;
    let mut stage = RehearsalStage { room_bytes, ..RehearsalStage::default() };
    let played = stage.create_overlays(&rehearsal.over).and_then(|()| stage.activate_objects(&rehearsal.operations));
    let memory_bytes = stage.used_memory_bytes();
    let full = stage.find_full_overlay();
    let struck = stage.tear_down();
    match (played, full) {
        (Err(error), None) => Err(build_refusal(&format!("{error}{}", kernel_log_for(log, &error.to_string())))),
        (_, Some(overlay)) => Err(build_refusal(&format!(
            "the changes to {overlay}, including those of the journal replay, do not fit into {} of memory: boot the \
             installed system, which replays the journals, and try again",
            common::format::format_bytes(stage.room_bytes)
        ))),
        (Ok(filesystems), None) => struck.map(|()| RehearsalResult { filesystems, memory_bytes }),
    }
}

fn build_refusal(why: &str) -> Error {
    Error::refusal(
        Phase::Storage,
        format!("cannot activate the preserved data (rehearsal on in-memory snapshots): {why}"),
    )
}

/// Returns messages of the kernel log that are appended to an error of md or LVM. Returns an empty string for an error
/// of mount, because such an error already contains these messages.
fn kernel_log_for(log: KernelLog, said: &str) -> String {
    if said.contains(EXCERPT_PREFIX) {
        String::new()
    } else {
        log.describe_matching(&["md", "raid", "device-mapper", "dm-"])
    }
}

/// Overlays and objects that are currently set up.
#[derive(Default)]
struct RehearsalStage {
    /// Overlay over each device.
    overlays: BTreeMap<DevicePath, DevicePath>,
    /// Maximum memory for each overlay, in bytes.
    room_bytes: u64,
    /// Objects that were activated, oldest first.
    running: Vec<ActiveObject>,
}

enum ActiveObject {
    Array(DevicePath),
    /// Volume group, with its name and devices.
    Group(String, Vec<DevicePath>),
    /// LUKS container, with the path of its mapping.
    Container(DevicePath),
}

impl RehearsalStage {
    fn create_overlays(&mut self, over: &[DevicePath]) -> Result<()> {
        over.iter().try_for_each(teardown::release_above)?;
        for device in over {
            let overlay = overlay::create_overlay(device, self.room_bytes)?;
            self.overlays.insert(device.clone(), overlay);
        }
        Ok(())
    }

    /// Activates the objects, and returns the number of filesystems that were mounted.
    fn activate_objects(&mut self, operations: &[RestoreOp]) -> Result<usize> {
        let mut filesystems = 0;
        for operation in operations {
            match operation {
                RestoreOp::AssembleArray(AssembleArray { device, uuid, members }) => {
                    self.running.push(ActiveObject::Array(device.clone()));
                    mdadm::assemble_array(device, *uuid, &self.overlays_of(members))?;
                }
                RestoreOp::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
                    let devices = self.overlays_of(devices);
                    self.running.push(ActiveObject::Group(name.clone(), devices.clone()));
                    lvm::activate_volumes(name, volumes, &devices)?;
                    lvm::suspend_synchronization(name, volumes);
                }
                RestoreOp::OpenContainer(open) => {
                    self.running.push(ActiveObject::Container(open.container.mapping.clone()));
                    luks::open_container(open, &self.overlay_of(&open.container.device))?;
                }
                RestoreOp::Mount(mount) => {
                    self.mount_on_overlay(mount)?;
                    filesystems += 1;
                }
                RestoreOp::RemoveVolumes(remove) => self.remove_volumes(remove)?,
                RestoreOp::CreateVolume(volume) => self.create_volume(volume)?,
            }
        }
        Ok(filesystems)
    }

    /// Creates a planned logical volume in a group on overlays, so that a refusal by LVM is detected before the wipe.
    fn create_volume(&mut self, volume: &CreateVolume) -> Result<()> {
        let physical = self.overlays_of(&volume.physical);
        self.record_group(&volume.group, &physical);
        lvm::create_volume(&CreateVolume { physical, ..volume.clone() })
    }

    /// Removes volumes of a group on overlays, so that a difference from the plan is detected before the wipe.
    fn remove_volumes(&mut self, remove: &RemoveVolumes) -> Result<()> {
        let physical = self.overlays_of(&remove.physical);
        self.record_group(&remove.group, &physical);
        lvm::remove_volumes(&RemoveVolumes { physical, ..remove.clone() })
    }

    /// Records that the group may be active, unless this is recorded already.
    fn record_group(&mut self, group: &str, physical: &[DevicePath]) {
        let is_recorded = |running: &ActiveObject| matches!(running, ActiveObject::Group(name, _) if name == group);
        if !self.running.iter().any(is_recorded) {
            self.running.push(ActiveObject::Group(group.to_owned(), physical.to_vec()));
        }
    }

    fn mount_on_overlay(&self, mount: &MountFilesystem) -> Result<()> {
        let MountFilesystem { device, path, format, options, .. } = mount;
        let what = || format!("{format} on {device} for the mount point {path}");
        let is_named = options.iter().any(|option| option.contains("journal_path="));
        if matches!(format, FilesystemFormat::Ext3 | FilesystemFormat::Ext4)
            && !is_named
            && external_ext_journal::has_external_journal(device)?
        {
            let why = "the filesystem has an external journal, but the mount options do not specify it: add journal_path=DEVICE";
            return Err(Error::new(Phase::Storage, format!("{} {why}", what())));
        }
        let substituted = MountFilesystem {
            device: self.overlay_of(device),
            path: "/".to_owned(),
            format: *format,
            options: options.iter().map(|option| self.substitute_devices(option)).collect(),
            others: self.overlays_of(&mount.others),
        };
        if *format == FilesystemFormat::Btrfs {
            btrfs_scan::scan_only(self.overlays.values());
        }
        mount_and_check(&substituted).context(Phase::Storage, what)
    }

    fn overlay_of(&self, device: &DevicePath) -> DevicePath {
        self.overlays.get(device).unwrap_or(device).clone()
    }

    fn overlays_of(&self, devices: &[DevicePath]) -> Vec<DevicePath> {
        devices.iter().map(|device| self.overlay_of(device)).collect()
    }

    /// Replaces devices in mount options, such as `logdev=/dev/sdc1`, by their overlays.
    fn substitute_devices(&self, option: &str) -> String {
        let one = |option: &str| match option.split_once('=') {
            Some((name, device)) => format!("{name}={}", self.overlay_of(&device.trim().into())),
            None => option.to_owned(),
        };
        option.split(',').map(one).collect::<Vec<_>>().join(",")
    }

    fn used_memory_bytes(&self) -> u64 {
        let filled = self.overlays.values().filter_map(|overlay| overlay::read_usage(overlay).ok());
        filled.map(|filled| if let OverlayUsage::Bytes(bytes) = filled { bytes } else { self.room_bytes }).sum()
    }

    fn find_full_overlay(&self) -> Option<DevicePath> {
        let is_over =
            |overlay: &DevicePath| overlay::read_usage(overlay).is_ok_and(|filled| filled == OverlayUsage::Exhausted);
        self.overlays.iter().find(|(_, overlay)| is_over(overlay)).map(|(device, _)| device.clone())
    }

    /// Deactivates all objects in reverse order. Continues after errors, and returns the first error.
    fn tear_down(&mut self) -> Result<()> {
        let mut results = Vec::new();
        for running in self.running.drain(..).rev() {
            results.push(match &running {
                ActiveObject::Array(device) if Path::new(device).exists() => mdadm::stop_array(device),
                // mdadm did not start the array, so there is nothing to stop.
                ActiveObject::Array(_) => Ok(()),
                ActiveObject::Group(name, devices) => lvm::deactivate_group(name, devices),
                ActiveObject::Container(mapping) => luks::close_mapping(mapping),
            });
        }
        let overlays = std::mem::take(&mut self.overlays);
        for overlay in overlays.values() {
            // An array or group that was started only partially may still use the overlay, so everything on top of the
            // overlay is stopped first.
            results.push(teardown::release_above(overlay).and_then(|()| overlay::remove_overlay(overlay)));
        }
        btrfs_scan::scan_only(overlays.keys());
        results.into_iter().collect()
    }
}

/// Mounts a filesystem. If the options do not contain `ro`, also checks that the filesystem is writable, because the
/// kernel may mount a damaged filesystem read-only.
fn mount_and_check(mount: &MountFilesystem) -> Result<()> {
    let point = Path::new(POINT);
    let mut mounts = MountStack::new(point);
    mounts.mount_inert(mount)?;
    let flags = statvfs(point).context(Phase::Storage, || format!("stat {POINT}"))?.flags();
    let wanted = super::mount::has_read_only_option(&mount.options);
    mounts.unmount_all()?;
    match flags.contains(FsFlags::ST_RDONLY) && !wanted {
        true => Err(Error::new(
            Phase::Storage,
            "the kernel mounted the filesystem read-only, although the options do not contain `ro`",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
