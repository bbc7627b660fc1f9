//! Rehearsal: before the wipe, all preserved objects are brought up over snapshots whose changes are kept in memory.
//! Arrays start, groups are activated and journals are replayed, but not a byte of a disk changes.

use super::mount::Mounts;
use super::overlay::{self, Filled};
use super::{btrfs, journal, luks, lvm, raid, release};
use crate::device::DevicePath;
use crate::error::{Context, Error, Phase, Result};
use crate::kmsg::KernelLog;
use crate::layout::Format;
use crate::plan::{ActivateGroup, AssembleArray, CreateVolume, MountFilesystem, Rehearsal, Restore};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::collections::BTreeMap;
use std::path::Path;

/// Mount point of each filesystem, one after the other.
const POINT: &str = "/run/drophammer/rehearsal";

/// Result of a rehearsal.
#[derive(Debug)]
pub struct Rehearsed {
    pub filesystems: usize,
    /// Data written to the snapshots, in bytes.
    pub memory_bytes: u64,
}

/// Brings up all preserved objects and takes them down again. Objects assembled on these disks for inspection are
/// taken down first.
///
/// # Errors
/// A refusal with the object that fails, and the messages of its tool and of the kernel.
pub fn rehearse(rehearsal: &Rehearsal) -> Result<Rehearsed> {
    rehearse_within(rehearsal, overlay::room_bytes())
}

/// Rehearses with at most `room_bytes` of memory for all changes together.
fn rehearse_within(rehearsal: &Rehearsal, room_bytes: u64) -> Result<Rehearsed> {
    let log = KernelLog::from_now();
    let room_bytes = room_bytes / rehearsal.over.len().max(1) as u64;
    let mut stage = Stage { room_bytes, ..Stage::default() };
    let played = stage.set(&rehearsal.over).and_then(|()| stage.play(&rehearsal.operations));
    let memory_bytes = stage.memory_bytes();
    let full = stage.overfull();
    let struck = stage.strike();
    match (played, full) {
        (Err(error), None) => Err(refusal(&format!("{error}{}", words_of(log, &error.to_string())))),
        (_, Some(overlay)) => Err(refusal(&format!(
            "changes to {overlay}, including journal replay, do not fit into {} of memory: start the installed \
             system, which replays the journals, and try again",
            crate::text::bytes(stage.room_bytes)
        ))),
        (Ok(filesystems), None) => struck.map(|()| Rehearsed { filesystems, memory_bytes }),
    }
}

fn refusal(why: &str) -> Error {
    Error::refusal(
        Phase::Storage,
        format!("rehearsal over in-memory snapshots: preserved data cannot be brought up: {why}"),
    )
}

/// Returns the kernel log for errors of md and LVM. Errors of mounts already include it.
fn words_of(log: KernelLog, said: &str) -> String {
    if said.contains("the kernel says") { String::new() } else { log.in_words(&["md", "raid", "device-mapper", "dm-"]) }
}

/// Devices that are currently set up.
#[derive(Default)]
struct Stage {
    /// Overlay of each device.
    overlays: BTreeMap<DevicePath, DevicePath>,
    /// Maximum memory for each overlay, in bytes.
    room_bytes: u64,
    /// Objects brought up, oldest first.
    running: Vec<Running>,
}

enum Running {
    Array(DevicePath),
    /// Name and devices.
    Group(String, Vec<DevicePath>),
    /// Path of the mapping.
    Container(DevicePath),
}

impl Stage {
    fn set(&mut self, over: &[DevicePath]) -> Result<()> {
        over.iter().try_for_each(release::release_above)?;
        for device in over {
            let overlay = overlay::put(device, self.room_bytes)?;
            self.overlays.insert(device.clone(), overlay);
        }
        Ok(())
    }

    /// Brings up the objects and returns the number of filesystems mounted.
    fn play(&mut self, operations: &[Restore]) -> Result<usize> {
        let mut filesystems = 0;
        for operation in operations {
            match operation {
                Restore::AssembleArray(AssembleArray { device, uuid, members }) => {
                    self.running.push(Running::Array(device.clone()));
                    raid::assemble(device, *uuid, &self.all_over(members))?;
                }
                Restore::ActivateGroup(ActivateGroup { name, devices, volumes }) => {
                    let devices = self.all_over(devices);
                    self.running.push(Running::Group(name.clone(), devices.clone()));
                    lvm::activate(name, volumes, &devices)?;
                    lvm::hold_back(name, volumes);
                }
                Restore::OpenContainer(open) => {
                    self.running.push(Running::Container(open.container.mapping.clone()));
                    luks::open(open, &self.over(&open.container.device))?;
                }
                Restore::Mount(mount) => {
                    self.mount(mount)?;
                    filesystems += 1;
                }
                Restore::CreateVolume(volume) => self.create_volume(volume)?,
            }
        }
        Ok(filesystems)
    }

    /// Adds a volume to a group over the overlays, to detect before the wipe what LVM would refuse after it.
    fn create_volume(&mut self, volume: &CreateVolume) -> Result<()> {
        let physical = self.all_over(&volume.physical);
        let is_active = |running: &Running| matches!(running, Running::Group(name, _) if *name == volume.group);
        if !self.running.iter().any(is_active) {
            self.running.push(Running::Group(volume.group.clone(), physical.clone()));
        }
        lvm::create_volume(&CreateVolume { physical, ..volume.clone() })
    }

    fn mount(&self, mount: &MountFilesystem) -> Result<()> {
        let MountFilesystem { device, path, format, options, .. } = mount;
        let what = || format!("{format} on {device}, to be mounted at {path}");
        let is_named = options.iter().any(|option| option.contains("journal_path="));
        if matches!(format, Format::Ext3 | Format::Ext4) && !is_named && journal::is_elsewhere(device)? {
            let why = "has an external journal, which its mount options must specify: journal_path=DEVICE";
            return Err(Error::new(Phase::Storage, format!("{} {why}", what())));
        }
        let substituted = MountFilesystem {
            device: self.over(device),
            path: "/".to_owned(),
            format: *format,
            options: options.iter().map(|option| self.option(option)).collect(),
            others: self.all_over(&mount.others),
        };
        if *format == Format::Btrfs {
            btrfs::list_only(self.overlays.values());
        }
        mount_alone(&substituted).context(Phase::Storage, what)
    }

    fn over(&self, device: &DevicePath) -> DevicePath {
        self.overlays.get(device).unwrap_or(device).clone()
    }

    fn all_over(&self, devices: &[DevicePath]) -> Vec<DevicePath> {
        devices.iter().map(|device| self.over(device)).collect()
    }

    /// Replaces devices in mount options by their overlays: `logdev=/dev/sdc1`.
    fn option(&self, option: &str) -> String {
        let one = |option: &str| match option.split_once('=') {
            Some((name, device)) => format!("{name}={}", self.over(&device.trim().into())),
            None => option.to_owned(),
        };
        option.split(',').map(one).collect::<Vec<_>>().join(",")
    }

    fn memory_bytes(&self) -> u64 {
        let filled = self.overlays.values().filter_map(|overlay| overlay::filled(overlay).ok());
        filled.map(|filled| if let Filled::Bytes(bytes) = filled { bytes } else { self.room_bytes }).sum()
    }

    fn overfull(&self) -> Option<DevicePath> {
        let is_over = |overlay: &DevicePath| overlay::filled(overlay).is_ok_and(|filled| filled == Filled::Over);
        self.overlays.iter().find(|(_, overlay)| is_over(overlay)).map(|(device, _)| device.clone())
    }

    /// Takes everything down in reverse order. Continues after errors, and returns the first one.
    fn strike(&mut self) -> Result<()> {
        let mut results = Vec::new();
        for running in self.running.drain(..).rev() {
            results.push(match &running {
                Running::Array(device) if Path::new(device).exists() => raid::stop(device),
                // The array was not started.
                Running::Array(_) => Ok(()),
                Running::Group(name, devices) => lvm::deactivate(name, devices),
                Running::Container(mapping) => luks::close(mapping),
            });
        }
        let overlays = std::mem::take(&mut self.overlays);
        for overlay in overlays.values() {
            // A partially started array or group may still lie on it.
            results.push(release::release_above(overlay).and_then(|()| overlay::remove(overlay)));
        }
        btrfs::list_only(overlays.keys());
        results.into_iter().collect()
    }
}

/// Mounts a filesystem and checks that it is writable unless the options contain `ro`: a damaged filesystem may be
/// mounted read-only.
fn mount_alone(mount: &MountFilesystem) -> Result<()> {
    let point = Path::new(POINT);
    let mut mounts = Mounts::new(point);
    mounts.mount_inert(mount)?;
    let flags = statvfs(point).context(Phase::Storage, || format!("stat {POINT}"))?.flags();
    let wanted = super::mount::is_read_only(&mount.options);
    mounts.finish()?;
    match flags.contains(FsFlags::ST_RDONLY) && !wanted {
        true => {
            Err(Error::new(Phase::Storage, "the kernel mounted it read-only, although its options do not request that"))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
