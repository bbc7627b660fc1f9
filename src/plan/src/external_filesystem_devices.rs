//! Devices that a preserved filesystem needs in addition to its main device: logs, journals, realtime devices and other
//! members.
//!
//! | a preserved filesystem | result |
//! |---|---|
//! | has a mount option that refers to a device on a disk that is wiped | refused |
//! | has a mount option for a log, journal, realtime or additional device, and this device is on an unlisted disk | refused, unless the filesystem is mounted with `ro`: mounting writes to that device |
//! | has such an option, and the device is not found | refused: the device may be on a disk that is wiped |
//! | has another member on an unlisted disk | refused, unless the filesystem is mounted with `ro` |
//! | requires a log or realtime device that was not found, and has no option that specifies it, while a disk that is wiped contains unrecognized data | refused, unless the operator discards that data. This also applies to filesystems on unlisted disks |

use super::filesystems::describe_wish;
use super::planned_devices::PlannedDevice;
use super::planner_state::PlannerState;
use super::preserved_activation::mount_path;
use super::spanning_objects::{SPANNING, all_signatures};
use super::{DiskVerdict, InstallMode, MarkerWaiver};
use crate::content_descriptions;
use common::error_code::ErrorCode;
use common::format::join_few;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::inventory::{ComponentRole, InventoryDisk, SpanningComponent, XFS_LOG, XFS_REALTIME};
use model::layout::FilesystemSpec;
use model::storage_graph::{self, device_references};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of filesystems with a missing device that are listed.
const MAXIMUM_LISTED_OPTIONS: usize = 16;

/// Mount options whose value is a device to which the filesystem writes.
const WRITTEN_DEVICE_OPTIONS: [&str; 6] = ["device", "jdev", "journal_dev", "journal_path", "logdev", "rtdev"];

impl<'a> PlannerState<'a> {
    /// Refuses a preserved filesystem if another device that it needs is wiped, unlisted or unknown.
    pub(crate) fn refuse_companions(&mut self, place: &str, filesystem: &FilesystemSpec, device: &PlannedDevice<'a>) {
        if self.request.mode == InstallMode::Install {
            return;
        }
        let of_options = filesystem.mount_options().filter_map(|option| self.refuse_option(filesystem, option));
        let of_members = self.unlisted_members(filesystem, device);
        let messages: Vec<String> = of_options.chain(of_members).collect();
        for message in messages {
            self.refuse(
                ErrorCode::CompanionDevice,
                place,
                format!("{}, but {message}", describe_wish(filesystem, device)),
            );
        }
    }

    /// Returns why a mount option of a preserved filesystem is refused.
    fn refuse_option(&self, filesystem: &FilesystemSpec, option: &str) -> Option<String> {
        let (key, value) = option.split_once('=')?;
        let is_device = WRITTEN_DEVICE_OPTIONS.contains(&key.trim()) && mount_path(filesystem).is_some();
        let devices = self.find_named_devices(value);
        let on = |is: &dyn Fn(DiskVerdict) -> bool| {
            devices.iter().find_map(|device| {
                let disks = self.disks_below(device);
                Some((device, disks.into_iter().find(|disk| is(self.verdict(disk)))?))
            })
        };
        if let Some((device, disk)) = on(&DiskVerdict::is_written) {
            return Some(format!(
                "the mount option {option} refers to {device}, but a reinstall wipes {disk}: also preserve that disk (wipeonreinstall: false), or remove the option if the filesystem no longer needs the device",
                disk = disk.device_path()
            ));
        }
        if let Some(made) = self.find_new_device(value) {
            return Some(format!(
                "the mount option {option} refers to {made}, which a reinstall recreates: specify a device that is \
                    preserved, or remove the option if the filesystem no longer needs the device"
            ));
        }
        if !is_device {
            return None;
        }
        if devices.is_empty() {
            return Some(format!(
                "the mount option {option} refers to a device that was not found and may be on a disk that will be \
                wiped: correct the option, or attach the device"
            ));
        }
        let (device, disk) = on(&|verdict| matches!(verdict, DiskVerdict::NotOurs | DiskVerdict::Volumes))
            .filter(|_| !filesystem.is_read_only())?;
        Some(format!("the mount option {option} refers to {device}, {disk}", disk = describe_unlisted(&disk)))
    }

    /// Returns the devices of the machine that match the value of a mount option.
    fn find_named_devices(&self, value: &str) -> Vec<DevicePath> {
        let Some(wanted) = device_references::device_name(value) else { return Vec::new() };
        let units = storage_graph::all_units(self.inventory);
        let found = units.filter(|(device, unit)| device_references::has_name(self.stack, device, *unit, &wanted));
        found.map(|(device, _)| device.clone()).collect()
    }

    /// Returns the array or volume with this name in the layout, if the plan creates it.
    fn find_new_device(&self, value: &str) -> Option<DevicePath> {
        let name = LayoutPath::from(device_references::device_name(value)?);
        let is_stacked = self.layout.raid.iter().any(|raid| raid.arrayname == name)
            || self.layout.volumegroups.iter().any(|group| name.as_str().starts_with(&format!("/dev/{}/", group.name)));
        self.graph.find_device(&name).filter(|_| is_stacked)?;
        let disks = self.graph.objects_below([&name]).disks;
        let is_made = |index: &usize| self.found.get(index).is_some_and(|disk| self.verdict(&disk.name).is_written());
        disks.iter().any(is_made).then(|| name.as_device())
    }

    /// Returns why a mounted filesystem with members on unlisted disks is refused.
    fn unlisted_members(&self, filesystem: &FilesystemSpec, device: &PlannedDevice<'a>) -> Vec<String> {
        if mount_path(filesystem).is_none() || filesystem.is_read_only() {
            return Vec::new();
        }
        let mut messages = Vec::new();
        for other in self.other_members(&device.now) {
            let is_unlisted =
                |disk: &&KernelName| matches!(self.verdict(disk), DiskVerdict::NotOurs | DiskVerdict::Volumes);
            if let Some(disk) = self.disks_below(&other).iter().find(is_unlisted) {
                messages.push(format!(
                    "another member of the filesystem is {other}, {disk}",
                    disk = describe_unlisted(disk)
                ));
            }
        }
        messages
    }

    /// Returns the devices that belong to the same filesystem as this device, according to the ids in their
    /// superblocks.
    fn other_members(&self, device: &DevicePath) -> BTreeSet<DevicePath> {
        let parts = || self.inventory.parts.iter();
        let own: BTreeSet<(&str, &str)> = parts().filter(|part| part.device == *device).map(whole_key).collect();
        let same = parts().filter(|part| own.contains(&whole_key(part)));
        let spanning: BTreeSet<(&str, &str)> = all_signatures(self.inventory)
            .filter(|(on, found)| *on == device && SPANNING.contains(&found.kind.as_str()) && !found.uuid.is_empty())
            .map(|(_, found)| (found.kind.as_str(), found.uuid.as_str()))
            .collect();
        let spanned = all_signatures(self.inventory)
            .filter(|(_, found)| spanning.contains(&(found.kind.as_str(), found.uuid.as_str())));
        let all = same.map(|part| &part.device).chain(spanned.map(|(on, _)| on));
        all.filter(|other| *other != device && !self.is_one_object(device, other)).cloned().collect()
    }

    /// Refuses to wipe unrecognized data while the log or realtime device of an xfs on a preserved or unlisted disk is
    /// missing. Such a device does not have a signature, so the unrecognized data may be its content.
    pub(crate) fn refuse_unrecognized_companions(&mut self) {
        let started = self.request.claim.as_ref().and_then(|claim| claim.waiver) == Some(MarkerWaiver::Begun);
        if self.request.mode == InstallMode::Install || started {
            return;
        }
        let inventory = self.inventory;
        let serving = inventory.parts.iter().filter(|part| part.role == ComponentRole::Serves);
        let served: BTreeSet<(&str, &str)> = serving.map(whole_key).collect();
        let missed: Vec<_> =
            inventory.parts.iter().filter_map(|part| self.find_missing_companion(part, &served)).collect();
        if missed.is_empty() {
            return;
        }
        let nameless = self.unrecognized_devices();
        // Only a few of the filesystems with a missing device are reported, because the remedy is the same for all of
        // them.
        for missing in missed.into_iter().take(MAXIMUM_LISTED_OPTIONS) {
            for disk in inventory.disks.iter().filter(|disk| self.verdict(&disk.name).loses_data()).collect::<Vec<_>>()
            {
                if let Some(devices) = nameless.get(&disk.name) {
                    self.decide_unrecognized(&missing, disk, &join_few(devices, ", "));
                }
            }
        }
    }

    fn decide_unrecognized(&mut self, missing: &MissingCompanion, disk: &InventoryDisk, nameless: &str) {
        let MissingCompanion { part: SpanningComponent { device, kind, whole, .. }, option, fate, is_listed } = missing;
        let said = format!(
            "{kind} on {device} {fate}, but one of its devices is missing ({whole}). The {} on {nameless} may be \
                the content of the missing device, but {} will be wiped",
            content_descriptions::UNRECOGNIZED_DATA,
            disk.device
        );
        if self.is_discarded(&disk.name) {
            return self.warn(format!("{said}: that data will be discarded, as requested by the operator"));
        }
        let remedy = match disk.serial.as_str() {
            "" => format!("erase {nameless} by hand if you do not need its data"),
            serial => format!("discard the disk with --give-up {serial}"),
        };
        let first = match is_listed {
            true => "specify the missing device in the layout",
            false => "add the filesystem to the layout, with its missing device",
        };
        self.refuse(
            ErrorCode::CompanionDevice,
            "disks",
            format!("{said}: {first} (mount option {option}), or {remedy}"),
        );
    }

    /// Returns the component if it is an xfs on a preserved or unlisted disk whose log or realtime device was neither
    /// found nor specified by a mount option.
    fn find_missing_companion(
        &self,
        part: &'a SpanningComponent,
        served: &BTreeSet<(&str, &str)>,
    ) -> Option<MissingCompanion<'a>> {
        let option = match part.whole.as_str() {
            XFS_LOG => "logdev=",
            XFS_REALTIME => "rtdev=",
            _ => return None,
        };
        let fate = self.describe_fate(std::iter::once(&part.device))?;
        let is_on_it = |filesystem: &&FilesystemSpec| {
            self.devices.find_paths(&filesystem.device).is_some_and(|(now, _)| *now == part.device)
        };
        let filesystems: Vec<&FilesystemSpec> = self.layout.filesystems.iter().filter(is_on_it).collect();
        // A device that a mount option specifies is not checked here, because `refuse_companions` checks it.
        let mut options = filesystems.iter().flat_map(|filesystem| filesystem.mount_options());
        let is_named = options.any(|mount_option| mount_option.starts_with(option));
        let is_listed = !filesystems.is_empty();
        let is_missed = part.role == ComponentRole::NeedsAnother && !is_named;
        (is_missed && !served.contains(&whole_key(part))).then_some(MissingCompanion { part, option, fate, is_listed })
    }

    /// Returns the devices that contain unrecognized data, grouped by disk.
    fn unrecognized_devices(&self) -> BTreeMap<KernelName, Vec<String>> {
        let is_nameless = |(device, unit): &(&DevicePath, storage_graph::StackUnit)| {
            unit.signatures().is_empty()
                && !unit.is_blank()
                && unit.table().is_none()
                && !matches!(unit, storage_graph::StackUnit::Partition(part) if content_descriptions::is_extended(part))
                && !self.stack.is_held(&self.stack.kernel_name(device))
        };
        let mut nameless: BTreeMap<KernelName, Vec<String>> = BTreeMap::new();
        for (device, _) in storage_graph::all_units(self.inventory).filter(is_nameless) {
            for disk in self.disks_below(device) {
                nameless.entry(disk).or_default().push(device.to_string());
            }
        }
        nameless
    }
}

/// An xfs whose log or realtime device was not found.
struct MissingCompanion<'a> {
    part: &'a SpanningComponent,
    /// Mount option that specifies the missing device.
    option: &'static str,
    /// Reason why the filesystem is not wiped, for messages.
    fate: &'static str,
    /// True if the layout lists the filesystem.
    is_listed: bool,
}

/// Returns the key that all components of one filesystem have in common.
fn whole_key(part: &SpanningComponent) -> (&str, &str) {
    (&part.whole, &part.id)
}

fn describe_unlisted(disk: &KernelName) -> String {
    let disk = disk.device_path();
    format!(
        "which is on a disk that the layout does not list, although mounting the filesystem writes to this disk: add \
            {disk} to the layout with wipeonreinstall: false, or remove the disk from the filesystem"
    )
}
