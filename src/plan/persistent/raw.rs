//! Kubernetes volumes on block devices: a blank disk that the layout does not list, or a device of the layout.

use super::super::devices::{Device, Fate, Size};
use super::super::verdict::{ArrayFate, Deciding};
use super::super::{Persistent, PersistentVerdict, array_part_path, display, mapping_path};
use super::{Decision, Refused, is_lost, is_of_disk, names, on_kept, persistent};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::Disk;
use crate::layout::tree::Item;
use crate::layout::{Format, hints};
use crate::order::Gather;
use crate::topology::{Unit, multipath, units};
use crate::volume::{Content, Volume};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Target of a path in the list of volumes.
enum Means<'a> {
    Layout(LayoutPath),
    Unlisted(&'a Disk),
}

impl<'a> Deciding<'a> {
    /// Decides on a volume on a block device. A volume without a path was found by its UUID.
    pub(super) fn decide_raw(&mut self, volume: &Volume, path: Option<&LayoutPath>) -> Result<Decision, Refused> {
        if let Some((device, unit)) = self.found(volume)? {
            return Ok(self.keep_raw(volume, path, device, unit));
        }
        let Some(path) = path else { return Err(None) };
        match self.meant(path)? {
            Means::Unlisted(disk) => self.take_disk(volume, disk),
            Means::Layout(path) => self.decide_on_layout(volume, &path),
        }
    }

    pub(super) fn keep_raw(
        &mut self,
        volume: &Volume,
        path: Option<&LayoutPath>,
        device: &DevicePath,
        unit: Unit<'a>,
    ) -> Decision {
        let disks = self.disks_below(device);
        // A path to a block volume refers to the device of which it is a partition.
        let whole = self.stack.whole_of(device).and_then(|whole| whole.device()).unwrap_or(device);
        if let Some(path) = path {
            let is_there = |device: &DevicePath| match self.inventory.disk(path.as_str()) {
                Some(disk) => disk.device == *device,
                None => self.devices.path(path).is_none_or(|(now, later)| device == now || device == later),
            };
            if !is_there(device) && !is_there(whole) {
                let said = format!("volume {} names {path}, but is kept on {device}, which has its UUID", volume.name);
                self.warn(said);
            }
        }
        let inventory = self.inventory;
        for disk in inventory.disks.iter().filter(|disk| disks.contains(&disk.name)) {
            if self.is_unlisted(disk) && disks.len() == 1 {
                self.take_name(disk);
            }
        }
        let (size_bytes, sector_bytes) = size_of(unit);
        let array = inventory.arrays.iter().find(|array| array.running.as_ref() == Some(&whole.kernel_name()));
        let persistent = match (array, unit) {
            (Some(array), Unit::Partition(part)) => Persistent::Known(array_part_path(array.uuid, part.number)),
            _ => persistent(volume),
        };
        let (size, device, verdict) = (Size::Known(size_bytes), device.clone(), PersistentVerdict::Keep);
        Decision { device, disks, verdict, size, sector_bytes, prepare: None, persistent }
    }

    /// Resolves a path: devices of the layout by the names in the layout, disks and their partitions by any of their names.
    fn meant(&self, path: &LayoutPath) -> Result<Means<'a>, Refused> {
        if self.devices.path(path).is_some() {
            return Ok(Means::Layout(path.clone()));
        }
        let inventory = self.inventory;
        if let Some(disk) = inventory.disks.iter().find(|disk| is_of_disk(disk, path)) {
            let listed = self.found.iter().find(|(_, found)| found.name == disk.name);
            return Ok(match listed {
                Some((index, _)) => Means::Layout(self.layout.disks[*index].device.clone()),
                None => Means::Unlisted(disk),
            });
        }
        for (index, disk) in &self.found {
            let listed = &self.layout.disks[*index];
            let names = |number: u32| {
                let by_path = LayoutPath::from(disk.by_path.as_str()).partition(number);
                disk.device.partition(number) == path.as_str() || by_path == *path
            };
            if let Some(part) = listed.partitions.iter().find(|part| names(part.number)) {
                return Ok(Means::Layout(listed.device.partition(part.number)));
            }
        }
        let is_there = units(inventory).any(|(device, _)| *device == path.as_str());
        Err(Some(match is_there {
            true => format!(
                "names {path}, which is neither a disk nor a device of the layout: list a blank disk, or an unused device of the layout"
            ),
            false => format!("names {path}, which does not exist on given hardware: {}", names(inventory)),
        }))
    }

    /// Decides on a disk that only this volume names. It is written only if it is blank.
    pub(super) fn take_disk(&mut self, volume: &Volume, disk: &'a Disk) -> Result<Decision, Refused> {
        let refuse = |why: String| Err(Some(why));
        if self.verdicts.contains_key(&disk.name) {
            return refuse(format!("names {}, which another volume uses", disk.device));
        }
        if let Some(other) = multipath::other_path(disk, self.inventory) {
            return refuse(format!("cannot use {}: {}", disk.device, multipath::refusal(disk, other)));
        }
        let cut_off = self.is_cut_off(volume, disk);
        let parts = disk.table.iter().flat_map(|table| &table.partitions);
        let is_used = !disk.uses.is_empty() || parts.into_iter().any(|part| !part.uses.is_empty());
        let is_taken = disk.table.is_some() || !disk.signatures.is_empty();
        if is_used {
            return refuse(format!("names {}, which is in use", disk.device));
        }
        if let Some(why) = &disk.unreadable {
            return refuse(format!("names {}, whose content cannot be read: {why}", disk.device));
        }
        if !cut_off && (is_taken || !disk.blank) {
            let there = display::contents(disk);
            return refuse(format!("names {}, which is not blank: it contains {there}", disk.device));
        }
        if disk.read_only {
            return refuse(format!("names {}, which is read-only", disk.device));
        }
        self.take_name(disk);
        self.decided.persistent.written.push(disk.name.clone());
        self.decided.beginning.push((disk.name.clone(), volume.uid));
        if !cut_off {
            self.require_zeros_of_unlisted(disk);
        }
        let prepare = self.prepare(volume, &disk.device, !cut_off);
        Ok(Decision {
            device: disk.device.clone(),
            disks: [disk.name.clone()].into(),
            verdict: PersistentVerdict::Make,
            size: Size::Known(disk.size_bytes),
            sector_bytes: disk.sector_bytes,
            prepare: Some(prepare),
            persistent: persistent(volume),
        })
    }

    /// Returns whether an earlier attempt was preparing this volume on the disk, and left it unfinished.
    fn is_cut_off(&self, volume: &Volume, disk: &Disk) -> bool {
        self.was_cut_off(&on_kept(&disk.device, &disk.signatures, disk.size_bytes))
            .is_some_and(|uuid| uuid == volume.uid.to_string())
    }

    /// Returns the first matching blank disk that is not used otherwise; `None` if the volume already exists.
    pub(super) fn discovered(
        &self,
        volume: &Volume,
        wanted: &BTreeMap<String, String>,
    ) -> Result<Option<&'a Disk>, Refused> {
        if self.found(volume)?.is_some() {
            return Ok(None);
        }
        let inventory = self.inventory;
        let mut unlisted = inventory.disks.iter().filter(|disk| self.is_unlisted(disk));
        if let Some(disk) = unlisted.find(|disk| self.is_cut_off(volume, disk)) {
            return Ok(Some(disk));
        }
        let free: Vec<Disk> = inventory.disks.iter().filter(|disk| self.is_free(disk)).cloned().collect();
        let candidates = hints::candidates(wanted, &free);
        let taken = candidates.first().and_then(|found| inventory.disks.iter().find(|disk| disk.name == found.name));
        match taken {
            Some(disk) => Ok(Some(disk)),
            None => {
                let why = |disk: &Disk| match (self.verdicts.contains_key(&disk.name), self.is_free(disk)) {
                    (true, _) => format!("{} (used by the layout or another volume)", disk.device),
                    (_, false) => format!("{} (not blank: {})", disk.device, display::contents(disk)),
                    (_, true) => format!("{} ({})", disk.device, hints::differs(wanted, disk).join(", ")),
                };
                let disks: Vec<String> = inventory.disks.iter().map(why).collect();
                Err(Some(format!("cannot find a blank disk that matches its hints: {}", disks.join("; "))))
            }
        }
    }

    /// Returns whether the disk is blank, writable and not used otherwise.
    fn is_free(&self, disk: &Disk) -> bool {
        let is_empty = disk.table.is_none() && disk.signatures.is_empty() && disk.uses.is_empty();
        let is_one = multipath::other_path(disk, self.inventory).is_none();
        is_empty && is_one && disk.blank && !disk.read_only && disk.unreadable.is_none() && self.is_unnamed(disk)
    }

    fn is_unnamed(&self, disk: &Disk) -> bool {
        self.is_unlisted(disk) && !self.verdicts.contains_key(&disk.name)
    }

    /// Decides on a device that the layout provides without content.
    fn decide_on_layout(&mut self, volume: &Volume, path: &LayoutPath) -> Result<Decision, Refused> {
        let Some(node) = self.graph.device(path) else { return Err(None) };
        let above: Vec<&Item> =
            self.graph.nodes[node].above.iter().map(|above| &self.graph.nodes[*above].item).collect();
        let is_for_it =
            |item: &&Item| matches!(item, Item::Filesystem(filesystem) if filesystem.format == Format::None);
        let item = self.graph.nodes[node].item;
        let brings_image = matches!(item, Item::Disk(disk) if disk.image);
        if brings_image || !above.iter().all(is_for_it) || !self.is_for_one(path) {
            return Err(Some(format!("names {path}, which the layout or another volume uses")));
        }
        let Some(device) = self.devices.get("volumes", path) else { return Err(None) };
        if device.absent.is_some() {
            return Err(Some(format!("lies on {path}, which is absent")));
        }
        self.layout_names.insert(path.clone());
        if is_lost(self.request.mode, device.fate) {
            return Err(Some(format!(
                "lies on {path}, which a reinstall wipes; set wipeonreinstall: false for its disks"
            )));
        }
        if device.fate == Fate::Kept {
            return self.keep_on_layout(volume, &device, item);
        }
        self.warn_of_wipes(volume, std::slice::from_ref(path));
        let made = Decision {
            disks: self.disks_meant(std::slice::from_ref(path)),
            verdict: PersistentVerdict::Make,
            size: device.size(),
            sector_bytes: device.sector_bytes,
            prepare: None,
            persistent: persistent(volume),
            device: device.path.clone(),
        };
        Ok(match (&volume.content, item) {
            (Content::Block, Item::Volume(_)) => {
                let made_here = self.decided.volumes.iter().find(|volume| volume.device == device.path);
                let Some(create) = made_here.cloned() else { return Err(None) };
                Decision { persistent: Persistent::Made(create), ..made }
            }
            // The partition is created with the volume's UUID, and needs no preparation.
            (Content::Block, Item::Partition(_)) => {
                let mut parts = self.decided.tables.iter_mut().flat_map(|table| &mut table.partitions);
                let Some(part) = parts.find(|part| part.device == device.path) else { return Err(None) };
                (part.guid, part.name) = (volume.uid, volume.name.clone());
                made
            }
            (Content::Block, Item::Array(_)) => {
                let uuid = self.made_array(&device.path).ok_or(None)?;
                let persistent = Persistent::Known(array_part_path(uuid, 1));
                Decision { persistent, prepare: Some(self.prepare(volume, &device.path, false)), ..made }
            }
            _ => Decision { prepare: Some(self.prepare(volume, &device.path, false)), ..made },
        })
    }

    /// Decides on a preserved device. A logical volume is usable as a block volume; any other volume would have been found by its UUID.
    fn keep_on_layout(&mut self, volume: &Volume, device: &Device<'a>, item: Item) -> Result<Decision, Refused> {
        if let (Content::Block, Item::Volume(listed)) = (&volume.content, item) {
            let of = |group: &&crate::inventory::VolumeGroup| group.name == listed.volumegroup;
            let mut volumes = self
                .inventory
                .groups
                .iter()
                .filter(of)
                .flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
            let Some((group, found)) = volumes.find(|(_, found)| found.name == listed.name) else { return Err(None) };
            if let Some(other) = self.whose_filesystem(device.content.as_deref().unwrap_or_default()) {
                return Err(Some(format!("names {}, which contains the filesystem of volume {other}", device.path)));
            }
            return Ok(Decision {
                device: device.path.clone(),
                disks: self.disks_below(&device.now),
                verdict: PersistentVerdict::Keep,
                size: device.size(),
                sector_bytes: device.sector_bytes,
                prepare: None,
                persistent: Persistent::Known(mapping_path(&group.uuid, &found.uuid)),
            });
        }
        let there = match &device.content {
            Err(why) => why.clone(),
            Ok([]) if device.blank => {
                "it is blank: on a kept disk a volume is added only in the free space of a group (lvmLogicalVolume)"
                    .to_owned()
            }
            Ok([]) => "there are unrecognized data".to_owned(),
            Ok(found) => {
                let found: Vec<String> = found.iter().map(display::signature).collect();
                format!("there is {}", found.join(" and "))
            }
        };
        Err(Some(format!("must be kept on {}, which does not have its UUID: {there}", device.path)))
    }

    /// Returns the UUID of a new array; `None` if the array was refused.
    fn made_array(&self, device: &DevicePath) -> Option<Uuid> {
        self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Made(array) if array.device == *device => Some(array.uuid),
            _ => None,
        })
    }

    fn is_for_one(&self, path: &LayoutPath) -> bool {
        !self.layout_names.contains(path)
    }

    /// Warns about volumes on disks that a later reinstall wipes; a first installation creates them anyway.
    pub(super) fn warn_of_wipes(&mut self, volume: &Volume, on: &[LayoutPath]) {
        let below = self.graph.below(on).disks;
        let wiped = below.iter().map(|index| &self.layout.disks[*index]).filter(|disk| disk.wipeonreinstall);
        let wiped: Vec<&str> = wiped.map(|disk| disk.device.as_str()).collect();
        if !wiped.is_empty() {
            let on = wiped.join(", ");
            self.warn(format!(
                "volume {} lies on {on}, which a reinstall wipes: as long as it is in the list, a reinstall is refused",
                volume.name
            ));
        }
    }

    pub(super) fn disks_meant(&self, on: &[LayoutPath]) -> BTreeSet<KernelName> {
        let below = self.graph.below(on).disks;
        below.iter().filter_map(|index| self.found.get(index)).map(|disk| disk.name.clone()).gather()
    }
}

/// Returns the size and the sector size, in bytes.
fn size_of(unit: Unit) -> (u64, u32) {
    match unit {
        Unit::Disk(disk) => (disk.size_bytes, disk.sector_bytes),
        Unit::Partition(part) => (part.size_bytes, 512),
        Unit::Stacked(device) => (device.size_bytes, 512),
        Unit::Unknown => (0, 512),
    }
}
