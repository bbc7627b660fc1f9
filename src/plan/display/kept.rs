//! Tree of the content of a preserved disk: sizes, labels, UUIDs, used space and mount points.

use super::lines::Lines;
use super::{bytes, nothing_known, short, signature};
use crate::device::{DevicePath, KernelName};
use crate::inventory::{self, Array, LogicalVolume, Partition, Signature, StackedKind, VolumeGroup};
use crate::layout::{Layout, OnReinstall};
use crate::order::Gather;
use crate::plan::Verdict;
use crate::plan::kept::{Keeping, content};
use crate::plan::luks::{self, LuksFate};
use crate::plan::placed::FilesystemFate;
use crate::plan::untouched::foreign_partitions;
use crate::plan::verdict::{ArrayFate, Decided, GroupFate};
use crate::topology::{Match, Stack};
use std::collections::{BTreeMap, BTreeSet};

const NOT_LISTED: &str = "not in the layout";

/// Sets `running` of the preserved disks of a reinstall to their trees.
pub fn show_kept(meant: &Match, decided: &mut Decided) {
    let (layout, inventory) = (meant.graph.layout, meant.inventory);
    let keeping = Keeping::new(inventory, decided);
    let places = layout.filesystems.iter().zip(&decided.filesystems).filter_map(|(wanted, is)| {
        let (device, made) = match is {
            FilesystemFate::Kept { device, .. } | FilesystemFate::Unformatted { device, is_kept: true } => (device, ""),
            FilesystemFate::Filled(new) => (&new.device, "recreated, "),
            FilesystemFate::Made(_)
            | FilesystemFate::InImage { .. }
            | FilesystemFate::Tmpfs
            | FilesystemFate::Unformatted { is_kept: false, .. } => return None,
        };
        let is_locked = luks::is_locked(decided, device);
        let (device, _) = content(inventory, &keeping.stack, &keeping.lies_on(device))?;
        if is_locked {
            return Some((device, "stays locked".to_owned()));
        }
        let place = wanted.path.as_deref().filter(|path| path.starts_with('/'));
        let merge = if wanted.reinstall == OnReinstall::Merge { ", merge" } else { "" };
        Some((device, place.map_or(format!("{made}not mounted"), |path| format!("{made}mounted at {path}{merge}"))))
    });
    let locked = decided.luks.iter().filter(|luks| luks.fate == LuksFate::Locked && luks.group.is_some());
    let locked = locked.filter_map(|luks| content(inventory, &keeping.stack, &keeping.lies_on(&luks.container.device)));
    let places = places.chain(locked.map(|(device, _)| (device, "stays locked".to_owned())));
    let mut tree = Tree {
        meant,
        stack: Stack::new(inventory),
        layout,
        decided,
        places: places.gather(),
        // If a device is listed twice, its first entry is used.
        inside: inventory.filesystems.iter().rev().map(|is| (&is.device, is)).gather(),
        drawn: BTreeSet::new(),
        lines: Lines::default(),
    };
    let kept = decided.disks.iter().map(|disk| disk.verdict == Verdict::Keep);
    let drawn: Vec<Option<Vec<String>>> =
        inventory.disks.iter().zip(kept).map(|(disk, kept)| kept.then(|| tree.of(disk))).collect();
    for (disk, drawn) in decided.disks.iter_mut().zip(drawn) {
        disk.running = drawn.unwrap_or_else(|| std::mem::take(&mut disk.running));
    }
}

/// Draws the trees of preserved disks. An object that spans several disks is drawn once.
struct Tree<'a> {
    meant: &'a Match<'a>,
    stack: Stack<'a>,
    layout: &'a Layout,
    decided: &'a Decided,
    /// Mount of each filesystem, as text, by its device in the inventory.
    places: BTreeMap<&'a DevicePath, String>,
    inside: BTreeMap<&'a DevicePath, &'a inventory::Filesystem>,
    /// UUIDs of arrays and groups that were drawn already, since they may span several disks.
    drawn: BTreeSet<String>,
    lines: Lines,
}

impl<'a> Tree<'a> {
    fn of(&mut self, disk: &'a inventory::Disk) -> Vec<String> {
        if let Some(table) = &disk.table {
            let guid = table.guid.map(|guid| format!(" {guid}")).unwrap_or_default();
            self.line(0, &format!("{}{guid}", table.kind.to_uppercase()), &[]);
            let foreign = foreign_partitions(self.meant, disk).into_iter().gather();
            table.partitions.iter().for_each(|part| self.partition(&foreign, part));
        }
        self.device(&disk.device, &disk.signatures, 0);
        self.lines.take()
    }

    fn partition(&mut self, foreign: &BTreeSet<u32>, part: &'a Partition) {
        let label = if part.label.is_empty() { String::new() } else { format!(" \"{}\"", part.label) };
        let mut parts = vec![bytes(part.size_bytes)];
        if foreign.contains(&part.number) {
            parts.push(NOT_LISTED.to_owned());
        }
        parts.extend(part.guid.map(|guid| format!("PARTUUID {guid}")));
        self.line(0, &format!("{}{label}", short(&part.device)), &parts);
        self.device(&part.device, &part.signatures, 1);
    }

    /// Draws the content of a device: an array, a volume group, or signatures.
    fn device(&mut self, device: &'a DevicePath, signatures: &'a [Signature], depth: usize) {
        if self.lines.is_full(depth) {
            return;
        }
        if let Some(array) = self.stack.arrays_on(device).first() {
            self.array(array, depth);
        } else if let Some(group) = self.stack.groups_on(device).first() {
            self.group(group, depth);
        } else {
            self.content(device, signatures, depth);
        }
    }

    fn content(&mut self, device: &DevicePath, signatures: &[Signature], depth: usize) {
        let place = self.places.get(device).cloned();
        let inside = self.inside.get(device);
        let used = inside.map(|is| format!("{} of {} used", bytes(is.used_bytes), bytes(is.size_bytes)));
        for found in signatures {
            let uuid = (!found.uuid.is_empty()).then(|| format!("UUID {}", found.uuid));
            let parts: Vec<String> = uuid.into_iter().chain(used.clone()).chain(place.clone()).collect();
            self.line(depth, &signature(found), &parts);
        }
        // Content of an open container.
        for holder in self.stack.holders(&self.stack.name(device)) {
            let open = self.stack.stacked(&holder).filter(|is| is.kind == StackedKind::Crypt);
            // A container lies on one device. If it is listed on several, it is drawn once for each.
            if let Some(open) = open.filter(|is| self.drawn.insert(format!("{} on {device}", is.name))) {
                self.device(&open.device, &open.signatures, depth + 1);
            }
        }
        if signatures.is_empty() {
            let place: Vec<String> = place.into_iter().collect();
            let unit = self.stack.unit(&self.stack.name(device));
            // The content of a device with a partition table is in its partitions.
            if !place.is_empty() || unit.table().is_none() {
                self.line(depth, nothing_known(unit.is_blank()), &place);
            }
        }
    }

    fn array(&mut self, array: &'a Array, depth: usize) {
        let named = self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Kept { device, uuid, .. } if *uuid == array.uuid => Some(short(device)),
            _ => None,
        });
        let name = named.or(array.running.as_ref().map(KernelName::as_str)).unwrap_or("an array");
        let what = format!("{name} {}", array.level);
        if !self.drawn.insert(array.uuid.to_string()) {
            return self.line(depth, &what, &["as above".to_owned()]);
        }
        let running = array.running.as_ref().and_then(|name| self.stack.stacked(name));
        let mut parts: Vec<String> = running.map(|is| bytes(is.size_bytes)).into_iter().collect();
        if named.is_none() {
            parts.push(NOT_LISTED.to_owned());
        }
        let members: Vec<&str> = array.members.iter().map(|member| short(&member.device)).collect();
        parts.extend([format!("UUID {}", array.uuid), format!("of {}", members.join(", "))]);
        self.line(depth, &what, &parts);
        if let Some(running) = running {
            self.device(&running.device, &running.signatures, depth + 1);
        }
    }

    fn group(&mut self, group: &'a VolumeGroup, depth: usize) {
        let what = format!("volume group {}", group.name);
        if !self.drawn.insert(group.uuid.clone()) {
            return self.line(depth, &what, &["as above".to_owned()]);
        }
        let kept = |fate: &GroupFate| matches!(fate, GroupFate::Kept { name, .. } if *name == group.name);
        let listed = self.decided.groups.iter().any(kept);
        let mut parts = vec![format!("UUID {}", group.uuid)];
        if !listed {
            parts.insert(0, NOT_LISTED.to_owned());
        }
        self.line(depth, &what, &parts);
        for volume in &group.volumes {
            let wanted = self.layout.logicalvolumes.iter();
            let mut wanted = wanted.filter(|is| is.volumegroup == group.name && is.name == volume.name);
            self.volume(group, volume, listed && wanted.next().is_some(), depth + 1);
        }
    }

    fn volume(&mut self, group: &VolumeGroup, volume: &'a LogicalVolume, is_listed: bool, depth: usize) {
        let mut parts = vec![bytes(volume.size_bytes)];
        if !is_listed {
            parts.push(NOT_LISTED.to_owned());
        }
        parts.push(format!("UUID {}", volume.uuid));
        self.line(depth, &format!("{}/{} {}", group.name, volume.name, volume.kind), &parts);
        if let Some(running) = volume.running.as_ref().and_then(|name| self.stack.stacked(name)) {
            self.device(&running.device, &running.signatures, depth + 1);
        }
    }

    fn line(&mut self, depth: usize, what: &str, parts: &[String]) {
        self.lines.push(depth, what, parts);
    }
}
