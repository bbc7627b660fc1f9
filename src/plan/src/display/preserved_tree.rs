//! Tree of the content of a preserved disk: sizes, labels, UUIDs, used space and mount points.

use super::format_bytes;
use super::tree_lines::TreeLines;
use crate::DiskVerdict;
use crate::content_descriptions::{describe_signature, describe_unrecognized};
use crate::filesystem_fate::FilesystemFate;
use crate::guard_ranges::foreign_partitions;
use crate::luks::{self};
use crate::plan_decisions::{ArrayFate, GroupFate, LuksFate, PlanDecisions};
use crate::preservation_proof::{PreservedObjects, find_content};
use model::device_name::{DevicePath, KernelName};
use model::inventory::{
    self, DeviceSignature, DiskPartition, LvmLogicalVolume, LvmVolumeGroup, MdArray, StackedDeviceKind,
};
use model::layout::{Layout, OnReinstall};
use model::storage_graph::{DeviceStack, LayoutMatch};
use operations::operation_text::strip_dev;
use std::collections::{BTreeMap, BTreeSet};

const UNLISTED_REMARK: &str = "not in the layout";

/// Draws a tree for each preserved disk of a reinstall, and stores it in the disk's `running` field.
pub(crate) fn draw_preserved(meant: &LayoutMatch, decided: &mut PlanDecisions) {
    let (layout, inventory) = (meant.graph.layout, meant.inventory);
    let keeping = PreservedObjects::new(inventory, decided);
    let mount_texts = layout.filesystems.iter().zip(&decided.filesystems).filter_map(|(wanted, fate)| {
        let (device, made) = match fate {
            FilesystemFate::Preserved { device, .. } | FilesystemFate::Unformatted { device, is_preserved: true } => {
                (device, "")
            }
            FilesystemFate::Filled(new) => (&new.device, "recreated, "),
            FilesystemFate::Created(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { is_preserved: false, .. } => return None,
        };
        let is_locked = luks::is_locked(decided, device);
        let (device, _) = find_content(inventory, &keeping.stack, &keeping.locate_device(device))?;
        if is_locked {
            return Some((device, "stays locked".to_owned()));
        }
        let place = wanted.path.as_deref().filter(|path| path.starts_with('/'));
        let merge = if wanted.reinstall == OnReinstall::Merge { ", merge" } else { "" };
        Some((device, place.map_or(format!("{made}not mounted"), |path| format!("{made}mounted at {path}{merge}"))))
    });
    let locked = decided.luks.iter().filter(|luks| luks.fate == LuksFate::Locked && luks.group.is_some());
    let locked = locked
        .filter_map(|luks| find_content(inventory, &keeping.stack, &keeping.locate_device(&luks.container.device)));
    let mount_texts = mount_texts.chain(locked.map(|(device, _)| (device, "stays locked".to_owned())));
    let mut tree = PreservedTree {
        meant,
        stack: DeviceStack::new(inventory),
        layout,
        decided,
        mount_texts: mount_texts.collect(),
        // If a device is listed twice, its first entry is used.
        inside: inventory.filesystems.iter().rev().map(|filesystem| (&filesystem.device, filesystem)).collect(),
        drawn: BTreeSet::new(),
        lines: TreeLines::default(),
    };
    let verdicts = decided.disks.iter().map(|disk| disk.verdict);
    let draw = |(disk, verdict)| match verdict {
        DiskVerdict::Keep => Some(tree.draw_disk(disk)),
        DiskVerdict::PartlyKept => Some(tree.draw_partly_preserved_disk(disk)),
        DiskVerdict::Wipe | DiskVerdict::Make | DiskVerdict::NotOurs | DiskVerdict::Volumes => None,
    };
    let drawn: Vec<Option<Vec<String>>> = inventory.disks.iter().zip(verdicts).map(draw).collect();
    for (disk, drawn) in decided.disks.iter_mut().zip(drawn) {
        disk.running = drawn.unwrap_or_else(|| std::mem::take(&mut disk.running));
    }
}

/// Draws the trees of preserved disks. An object that spans several disks is drawn once.
struct PreservedTree<'a> {
    meant: &'a LayoutMatch<'a>,
    stack: DeviceStack<'a>,
    layout: &'a Layout,
    decided: &'a PlanDecisions,
    /// Text about the mount of each filesystem, by the device of the filesystem in the inventory.
    mount_texts: BTreeMap<&'a DevicePath, String>,
    inside: BTreeMap<&'a DevicePath, &'a inventory::FilesystemContents>,
    /// UUIDs of the arrays and groups that are already drawn. An object that spans several disks is drawn once.
    drawn: BTreeSet<String>,
    lines: TreeLines,
}

impl<'a> PreservedTree<'a> {
    fn draw_disk(&mut self, disk: &'a inventory::InventoryDisk) -> Vec<String> {
        if let Some(table) = &disk.table {
            let guid = table.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
            self.push_line(0, &format!("{}{guid}", table.kind.to_uppercase()), &[]);
            let foreign = foreign_partitions(self.meant, disk).into_iter().collect();
            table.partitions.iter().for_each(|part| self.draw_partition(&foreign, part));
        }
        self.draw_device(&disk.device, &disk.signatures, 0);
        self.lines.take_tree()
    }

    /// Draws the partitions of a partly kept disk: removed, preserved and new ones.
    fn draw_partly_preserved_disk(&mut self, disk: &'a inventory::InventoryDisk) -> Vec<String> {
        let decided = self.decided;
        let edits = decided.edits.iter().filter(|edit| edit.device == disk.device);
        for part in disk.table.iter().flat_map(|table| &table.partitions) {
            if edits.clone().any(|edit| edit.removed.contains(&part.number)) {
                let label = if part.label.is_empty() { String::new() } else { format!(" \"{}\"", part.label) };
                let size = format_bytes(part.size_bytes);
                self.push_line(0, &format!("remove {}{label}", strip_dev(&part.device)), &[size]);
            } else {
                self.push_line(0, "keep", &[]);
                self.draw_partition(&BTreeSet::new(), part);
            }
        }
        for (edit, new) in edits.flat_map(|edit| edit.added.iter().map(move |new| (edit, new))) {
            let bytes = (new.last_lba + 1 - new.first_lba).saturating_mul(u64::from(edit.sector_bytes));
            self.push_line(0, &format!("make {}", strip_dev(&new.device)), &[format_bytes(bytes)]);
        }
        self.lines.take_tree()
    }

    fn draw_partition(&mut self, foreign: &BTreeSet<u32>, part: &'a DiskPartition) {
        let label = if part.label.is_empty() { String::new() } else { format!(" \"{}\"", part.label) };
        let mut parts = vec![format_bytes(part.size_bytes)];
        if foreign.contains(&part.number) {
            parts.push(UNLISTED_REMARK.to_owned());
        }
        parts.extend(part.guid.map(|guid| format!("PARTUUID {guid}")));
        self.push_line(0, &format!("{}{label}", strip_dev(&part.device)), &parts);
        self.draw_device(&part.device, &part.signatures, 1);
    }

    /// Draws the content of a device: an array, a volume group, or signatures.
    fn draw_device(&mut self, device: &'a DevicePath, signatures: &'a [DeviceSignature], depth: usize) {
        if self.lines.is_full(depth) {
            return;
        }
        if let Some(array) = self.stack.arrays_on(device).first() {
            self.draw_array(array, depth);
        } else if let Some(group) = self.stack.groups_on(device).first() {
            self.draw_group(group, depth);
        } else {
            self.draw_content(device, signatures, depth);
        }
    }

    fn draw_content(&mut self, device: &DevicePath, signatures: &[DeviceSignature], depth: usize) {
        let place = self.mount_texts.get(device).cloned();
        let inside = self.inside.get(device);
        let used = inside
            .map(|inside| format!("{} of {} used", format_bytes(inside.used_bytes), format_bytes(inside.size_bytes)));
        for found in signatures {
            let uuid = (!found.uuid.is_empty()).then(|| format!("UUID {}", found.uuid));
            let parts: Vec<String> = uuid.into_iter().chain(used.clone()).chain(place.clone()).collect();
            self.push_line(depth, &describe_signature(found), &parts);
        }
        // The content of an open container is drawn below the container.
        for holder in self.stack.holders(&self.stack.kernel_name(device)) {
            let open = self.stack.find_stacked(&holder).filter(|is| is.kind == StackedDeviceKind::Crypt);
            // If the inventory lists several devices of a container, the container is drawn under each of them.
            if let Some(open) = open.filter(|open| self.drawn.insert(format!("{} on {device}", open.name))) {
                self.draw_device(&open.device, &open.signatures, depth + 1);
            }
        }
        if signatures.is_empty() {
            let place: Vec<String> = place.into_iter().collect();
            let unit = self.stack.find_unit(&self.stack.kernel_name(device));
            // A device with a partition table is described by its partitions.
            if !place.is_empty() || unit.table().is_none() {
                self.push_line(depth, describe_unrecognized(unit.is_blank()), &place);
            }
        }
    }

    fn draw_array(&mut self, array: &'a MdArray, depth: usize) {
        let named = self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Preserved { device, uuid, .. } if *uuid == array.uuid => Some(strip_dev(device)),
            _ => None,
        });
        let name = named.or(array.running.as_ref().map(KernelName::as_str)).unwrap_or("an array");
        let what = format!("{name} {}", array.level);
        if !self.drawn.insert(array.uuid.to_string()) {
            return self.push_line(depth, &what, &["as above".to_owned()]);
        }
        let running = array.running.as_ref().and_then(|name| self.stack.find_stacked(name));
        let mut parts: Vec<String> = running.map(|running| format_bytes(running.size_bytes)).into_iter().collect();
        if named.is_none() {
            parts.push(UNLISTED_REMARK.to_owned());
        }
        let members: Vec<&str> = array.members.iter().map(|member| strip_dev(&member.device)).collect();
        parts.extend([format!("UUID {}", array.uuid), format!("of {}", members.join(", "))]);
        self.push_line(depth, &what, &parts);
        if let Some(running) = running {
            self.draw_device(&running.device, &running.signatures, depth + 1);
        }
    }

    fn draw_group(&mut self, group: &'a LvmVolumeGroup, depth: usize) {
        let what = format!("volume group {}", group.name);
        if !self.drawn.insert(group.uuid.clone()) {
            return self.push_line(depth, &what, &["as above".to_owned()]);
        }
        let preserved = |fate: &GroupFate| matches!(fate, GroupFate::Preserved { name, .. } if *name == group.name);
        let listed = self.decided.groups.iter().any(preserved);
        let mut parts = vec![format!("UUID {}", group.uuid)];
        if !listed {
            parts.insert(0, UNLISTED_REMARK.to_owned());
        }
        self.push_line(depth, &what, &parts);
        for volume in &group.volumes {
            let wanted = self.layout.logicalvolumes.iter();
            let mut wanted = wanted.filter(|wanted| wanted.volumegroup == group.name && wanted.name == volume.name);
            self.draw_volume(group, volume, listed && wanted.next().is_some(), depth + 1);
        }
        let decided = self.decided;
        for new in decided.volumes.iter().filter(|new| new.group == group.name) {
            let size = decided.sizes.get(&new.device).map(|bytes| format_bytes(*bytes));
            let size: Vec<String> = size.into_iter().collect();
            self.push_line(depth + 1, &format!("make {}/{} {}", new.group, new.name, new.kind), &size);
        }
    }

    fn draw_volume(&mut self, group: &LvmVolumeGroup, volume: &'a LvmLogicalVolume, is_listed: bool, depth: usize) {
        let renewals = self.decided.renewals.iter().filter(|renewal| renewal.group == group.name);
        if renewals.flat_map(|renewal| &renewal.removed).any(|removed| removed.name == volume.name) {
            let size = format_bytes(volume.size_bytes);
            return self.push_line(depth, &format!("remove {}/{} {}", group.name, volume.name, volume.kind), &[size]);
        }
        let mut parts = vec![format_bytes(volume.size_bytes)];
        if !is_listed {
            parts.push(UNLISTED_REMARK.to_owned());
        }
        parts.push(format!("UUID {}", volume.uuid));
        self.push_line(depth, &format!("{}/{} {}", group.name, volume.name, volume.kind), &parts);
        if let Some(running) = volume.running.as_ref().and_then(|name| self.stack.find_stacked(name)) {
            self.draw_device(&running.device, &running.signatures, depth + 1);
        }
    }

    fn push_line(&mut self, depth: usize, what: &str, parts: &[String]) {
        self.lines.push_line(depth, what, parts);
    }
}
