//! Kubernetes volumes on block devices: a blank disk that the layout does not list, or a device of the layout.

use super::super::plan_decisions::ArrayFate;
use crate::content_descriptions;

use super::super::PersistentVerdict;
use super::super::planned_devices::{DeviceFate, DeviceSize, PlannedDevice};
use super::super::planner_state::PlannerState;
use super::super::unusual_disks::explain_unsupported;
use super::{VolumeDecision, VolumeRefusal, as_preserved, is_of_disk, is_wiped_later, list_disks, udev_path};
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::inventory::InventoryDisk;
use model::k8s_volume::{K8sVolume, VolumeContent};
use model::layout::graph::LayoutItem;
use model::layout::{FilesystemFormat, root_device_hints};
use model::storage_graph::{StackUnit, all_units, multipath};
use operations::{VolumePath, array_partition_link, logical_volume_link};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Device to which a path in the list of volumes refers.
enum PathTarget<'a> {
    Layout(LayoutPath),
    Unlisted(&'a InventoryDisk),
}

impl<'a> PlannerState<'a> {
    /// Decides on a volume on a block device. If `path` is `None`, the volume must exist and is found by its UUID.
    pub(super) fn decide_raw(
        &mut self,
        volume: &K8sVolume,
        path: Option<&LayoutPath>,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        if let Some((device, unit)) = self.find_preserved(volume)? {
            return Ok(self.preserve_raw_device(volume, path, device, unit));
        }
        let Some(path) = path else { return Err(None) };
        match self.resolve_path(path)? {
            PathTarget::Unlisted(disk) => self.take_disk(volume, disk),
            PathTarget::Layout(path) => self.decide_on_layout(volume, &path),
        }
    }

    pub(super) fn preserve_raw_device(
        &mut self,
        volume: &K8sVolume,
        path: Option<&LayoutPath>,
        device: &DevicePath,
        unit: StackUnit<'a>,
    ) -> VolumeDecision {
        let disks = self.disks_below(device);
        // A block volume is a partition, but its path in the list refers to the disk or array that contains the
        // partition.
        let whole = self.stack.whole_of(device).and_then(|whole| whole.device()).unwrap_or(device);
        if let Some(path) = path {
            let is_there = |device: &DevicePath| match self.inventory.find_disk(path.as_str()) {
                Some(disk) => disk.device == *device,
                None => self.devices.find_paths(path).is_none_or(|(now, later)| device == now || device == later),
            };
            if !is_there(device) && !is_there(whole) {
                let said = format!(
                    "volume {volume} refers to {path}, but is kept on {device}, which has the UUID of the volume",
                    volume = volume.name
                );
                self.warn(said);
            }
        }
        let inventory = self.inventory;
        for disk in inventory.disks.iter().filter(|disk| disks.contains(&disk.name)) {
            if self.is_unlisted(disk) && disks.len() == 1 {
                self.reserve_disk(disk);
            }
        }
        let (size_bytes, sector_bytes) = unit_size(unit);
        let array = inventory.arrays.iter().find(|array| array.running.as_ref() == Some(&whole.kernel_name()));
        let persistent = match (array, unit) {
            (Some(array), StackUnit::Partition(part)) => {
                VolumePath::Known(array_partition_link(array.uuid, part.number))
            }
            _ => udev_path(volume),
        };
        let (size, device, verdict) = (DeviceSize::Known(size_bytes), device.clone(), PersistentVerdict::Keep);
        VolumeDecision { device, disks, verdict, size, sector_bytes, prepare: None, persistent }
    }

    /// Resolves a path in the list of volumes. The path may be the name of a device in the layout, any name of a disk,
    /// or the kernel or `by-path` name of a partition of a listed disk.
    fn resolve_path(&self, path: &LayoutPath) -> Result<PathTarget<'a>, VolumeRefusal> {
        if self.devices.find_paths(path).is_some() {
            return Ok(PathTarget::Layout(path.clone()));
        }
        let inventory = self.inventory;
        if let Some(disk) = inventory.disks.iter().find(|disk| is_of_disk(disk, path)) {
            let listed = self.found.iter().find(|(_, found)| found.name == disk.name);
            return Ok(match listed {
                Some((index, _)) => PathTarget::Layout(self.layout.disks[*index].device.clone()),
                None => PathTarget::Unlisted(disk),
            });
        }
        for (index, disk) in &self.found {
            let listed = &self.layout.disks[*index];
            let names = |number: u32| {
                let by_path = LayoutPath::from(disk.by_path.as_str()).partition_path(number);
                disk.device.partition_path(number) == path.as_str() || by_path == *path
            };
            if let Some(part) = listed.partitions.iter().find(|part| names(part.number)) {
                return Ok(PathTarget::Layout(listed.device.partition_path(part.number)));
            }
        }
        let is_there = all_units(inventory).any(|(device, _)| *device == path.as_str());
        Err(Some(match is_there {
            true => format!(
                "refers to {path}, which is neither a disk nor a device of the layout: list a blank disk, or an unused device of the layout"
            ),
            false => format!(
                "refers to {path}, which does not exist on this machine: {disks}",
                disks = list_disks(inventory)
            ),
        }))
    }

    /// Decides on a volume on a disk that the layout does not list. The disk is written only if it is blank and no
    /// other volume uses it.
    pub(super) fn take_disk(
        &mut self,
        volume: &K8sVolume,
        disk: &'a InventoryDisk,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let cut_off = self.is_cut_off(volume, disk);
        if let Some(why) = self.explain_unusable(disk, cut_off) {
            return Err(Some(why));
        }
        self.reserve_disk(disk);
        self.decided.persistent.written.push(disk.name.clone());
        self.decided.prepared_disks.push((disk.name.clone(), volume.uid));
        if !cut_off {
            self.require_zeros_of_unlisted(disk);
        }
        let prepare = self.prepare_volume(volume, &disk.device, !cut_off);
        Ok(VolumeDecision {
            device: disk.device.clone(),
            disks: [disk.name.clone()].into(),
            verdict: PersistentVerdict::Make,
            size: DeviceSize::Known(disk.size_bytes),
            sector_bytes: disk.sector_bytes,
            prepare: Some(prepare),
            persistent: udev_path(volume),
        })
    }

    /// Returns the reason why the disk cannot be used for a volume. If `cut_off` is true, the disk may contain data
    /// written by an interrupted attempt.
    fn explain_unusable(&self, disk: &InventoryDisk, cut_off: bool) -> Option<String> {
        if self.verdicts.contains_key(&disk.name) {
            return Some(format!("refers to {device}, which another volume uses", device = disk.device));
        }
        if let Some(other) = multipath::find_other_path(disk, self.inventory) {
            return Some(format!("cannot use {}: {}", disk.device, multipath::describe_refusal(disk, other)));
        }
        let parts = disk.table.iter().flat_map(|table| &table.partitions);
        let is_used = !disk.uses.is_empty() || parts.into_iter().any(|part| !part.uses.is_empty());
        let is_taken = disk.table.is_some() || !disk.signatures.is_empty();
        if is_used {
            return Some(format!("refers to {device}, which is in use", device = disk.device));
        }
        if let Some(why) = &disk.unreadable {
            return Some(format!("refers to {device}, whose content cannot be read: {why}", device = disk.device));
        }
        if !cut_off && (is_taken || !disk.blank) {
            let there = content_descriptions::describe_contents(disk);
            return Some(format!("refers to {device}, which is not blank: it contains {there}", device = disk.device));
        }
        if disk.read_only {
            return Some(format!("refers to {device}, which is read-only", device = disk.device));
        }
        explain_unsupported(disk).map(|why| format!("cannot use {}: {why}", disk.device))
    }

    /// Returns whether an earlier attempt was interrupted while it prepared this volume on the disk.
    fn is_cut_off(&self, volume: &K8sVolume, disk: &InventoryDisk) -> bool {
        self.find_unfinished(&as_preserved(&disk.device, &disk.signatures, disk.size_bytes))
            .is_some_and(|uuid| uuid == volume.uid.to_string())
    }

    /// Selects the disk for a new volume: the disk that an interrupted attempt was preparing, otherwise the first blank
    /// disk that matches the hints and is not used by the layout or another volume. Returns `None` if the volume
    /// already exists, and an error if no disk matches.
    pub(super) fn discover_disk(
        &self,
        volume: &K8sVolume,
        wanted: &BTreeMap<String, String>,
    ) -> Result<Option<&'a InventoryDisk>, VolumeRefusal> {
        if self.find_preserved(volume)?.is_some() {
            return Ok(None);
        }
        let inventory = self.inventory;
        let mut unlisted = inventory.disks.iter().filter(|disk| self.is_unlisted(disk));
        if let Some(disk) = unlisted.find(|disk| self.is_cut_off(volume, disk)) {
            return Ok(Some(disk));
        }
        let free: Vec<InventoryDisk> = inventory.disks.iter().filter(|disk| self.is_free(disk)).cloned().collect();
        let candidates = root_device_hints::find_candidates(wanted, &free);
        let taken = candidates.first().and_then(|found| inventory.disks.iter().find(|disk| disk.name == found.name));
        match taken {
            Some(disk) => Ok(Some(disk)),
            None => {
                let why = |disk: &InventoryDisk| match (self.verdicts.contains_key(&disk.name), self.is_free(disk)) {
                    (true, _) => format!("{device} (used by the layout or another volume)", device = disk.device),
                    (_, false) => {
                        let there = || format!("not blank: {}", content_descriptions::describe_contents(disk));
                        format!("{} ({})", disk.device, explain_unsupported(disk).unwrap_or_else(there))
                    }
                    (_, true) => {
                        format!("{} ({})", disk.device, root_device_hints::explain_differences(wanted, disk).join(", "))
                    }
                };
                let disks: Vec<String> = inventory.disks.iter().map(why).collect();
                Err(Some(format!("cannot find a blank disk that matches its hints: {disks}", disks = disks.join("; "))))
            }
        }
    }

    /// Returns whether the disk is blank, writable, supported, and not used by the layout or another volume.
    fn is_free(&self, disk: &InventoryDisk) -> bool {
        let is_empty = disk.table.is_none() && disk.signatures.is_empty() && disk.uses.is_empty();
        let is_one = multipath::find_other_path(disk, self.inventory).is_none();
        let is_usable = !disk.read_only && disk.unreadable.is_none() && explain_unsupported(disk).is_none();
        is_empty && is_one && disk.blank && is_usable && self.is_unnamed(disk)
    }

    fn is_unnamed(&self, disk: &InventoryDisk) -> bool {
        self.is_unlisted(disk) && !self.verdicts.contains_key(&disk.name)
    }

    /// Decides on a volume on a device of the layout. The layout itself must not use the device.
    fn decide_on_layout(&mut self, volume: &K8sVolume, path: &LayoutPath) -> Result<VolumeDecision, VolumeRefusal> {
        let Some(node) = self.graph.find_device(path) else { return Err(None) };
        let above: Vec<&LayoutItem> =
            self.graph.nodes[node].above.iter().map(|above| &self.graph.nodes[*above].item).collect();
        let is_for_it = |item: &&LayoutItem| matches!(item, LayoutItem::Filesystem(filesystem) if filesystem.format == FilesystemFormat::None);
        let item = self.graph.nodes[node].item;
        let brings_image = matches!(item, LayoutItem::Disk(disk) if disk.image);
        if brings_image || !above.iter().all(is_for_it) || !self.is_for_one(path) {
            return Err(Some(format!("refers to {path}, which the layout or another volume uses")));
        }
        let Some(device) = self.devices.get_or_report("volumes", path) else { return Err(None) };
        if device.absent.is_some() {
            return Err(Some(format!("is on {path}, which is absent")));
        }
        self.layout_names.insert(path.clone());
        if is_wiped_later(self.request.mode, device.fate) {
            return Err(Some(format!(
                "is on {path}, which a reinstall wipes; set wipeonreinstall: false for its disks"
            )));
        }
        if device.fate == DeviceFate::Preserved {
            return self.preserve_on_layout_device(volume, &device, item);
        }
        self.warn_of_wipes(volume, std::slice::from_ref(path));
        let made = VolumeDecision {
            disks: self.disks_meant(std::slice::from_ref(path)),
            verdict: PersistentVerdict::Make,
            size: device.size(),
            sector_bytes: device.sector_bytes,
            prepare: None,
            persistent: udev_path(volume),
            device: device.path.clone(),
        };
        self.fill_new_device(volume, item, made)
    }

    /// Completes `made`, the decision on a volume whose device is created. Adds the operation that creates the volume's
    /// content and, for a `Block` volume, its path.
    fn fill_new_device(
        &mut self,
        volume: &K8sVolume,
        item: LayoutItem,
        made: VolumeDecision,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        let device = made.device.clone();
        Ok(match (&volume.content, item) {
            (VolumeContent::Block, LayoutItem::Volume(_)) => {
                let made_here = self.decided.volumes.iter().find(|volume| volume.device == device);
                let Some(create) = made_here.cloned() else { return Err(None) };
                VolumeDecision { persistent: VolumePath::NewVolume(create), ..made }
            }
            // The partition is created with the UUID of the volume as its GUID, so no other preparation is needed.
            (VolumeContent::Block, LayoutItem::Partition(_)) => {
                let mut parts = self.decided.tables.iter_mut().flat_map(|table| &mut table.partitions);
                let Some(part) = parts.find(|part| part.device == device) else { return Err(None) };
                (part.guid, part.name) = (volume.uid, volume.name.clone());
                made
            }
            (VolumeContent::Block, LayoutItem::Array(_)) => {
                let uuid = self.new_array_uuid(&device).ok_or(None)?;
                let persistent = VolumePath::Known(array_partition_link(uuid, 1));
                VolumeDecision { persistent, prepare: Some(self.prepare_volume(volume, &device, false)), ..made }
            }
            _ => VolumeDecision { prepare: Some(self.prepare_volume(volume, &device, false)), ..made },
        })
    }

    /// Returns the decision for a Kubernetes volume that refers to a preserved device of the layout. Only a `Block`
    /// volume on an existing logical volume is accepted: other existing Kubernetes volumes were already found by UUID.
    fn preserve_on_layout_device(
        &mut self,
        volume: &K8sVolume,
        device: &PlannedDevice<'a>,
        item: LayoutItem,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        if let (VolumeContent::Block, LayoutItem::Volume(listed)) = (&volume.content, item) {
            let of = |group: &&model::inventory::LvmVolumeGroup| group.name == listed.volumegroup;
            let mut volumes = self
                .inventory
                .groups
                .iter()
                .filter(of)
                .flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
            let Some((group, found)) = volumes.find(|(_, found)| found.name == listed.name) else { return Err(None) };
            if let Some(other) = self.volume_of_filesystem(device.content.as_deref().unwrap_or_default()) {
                return Err(Some(format!(
                    "refers to {device}, which contains the filesystem of volume {other}",
                    device = device.path
                )));
            }
            return Ok(VolumeDecision {
                device: device.path.clone(),
                disks: self.disks_below(&device.now),
                verdict: PersistentVerdict::Keep,
                size: device.size(),
                sector_bytes: device.sector_bytes,
                prepare: None,
                persistent: VolumePath::Known(logical_volume_link(&group.uuid, &found.uuid)),
            });
        }
        let there = match &device.content {
            Err(why) => why.clone(),
            Ok([]) if device.blank => {
                "the device is blank: on a kept disk, a volume can only be added to the free space of a group \
                    (lvmLogicalVolume)"
                    .to_owned()
            }
            Ok([]) => "the device contains unrecognized data".to_owned(),
            Ok(found) => {
                let found: Vec<String> = found.iter().map(content_descriptions::describe_signature).collect();
                format!("there is {}", found.join(" and "))
            }
        };
        Err(Some(format!(
            "must be preserved on {device}, which does not have the UUID of the volume: {there}",
            device = device.path
        )))
    }

    /// Returns the UUID of a new array; `None` if the array was refused.
    fn new_array_uuid(&self, device: &DevicePath) -> Option<Uuid> {
        self.decided.arrays.iter().find_map(|fate| match fate {
            ArrayFate::Created(array) if array.device == *device => Some(array.uuid),
            _ => None,
        })
    }

    fn is_for_one(&self, path: &LayoutPath) -> bool {
        !self.layout_names.contains(path)
    }

    /// Adds a warning if the new volume is on a disk that later reinstalls would wipe. The volume is created
    /// nevertheless.
    pub(super) fn warn_of_wipes(&mut self, volume: &K8sVolume, on: &[LayoutPath]) {
        let below = self.graph.objects_below(on).disks;
        let wiped = below.iter().map(|index| &self.layout.disks[*index]).filter(|disk| disk.wipeonreinstall);
        let wiped: Vec<&str> = wiped.map(|disk| disk.device.as_str()).collect();
        if !wiped.is_empty() {
            let on = wiped.join(", ");
            self.warn(format!(
                "volume {volume} is on {on}, which a reinstall wipes: as long as the volume is listed, reinstalls are refused", volume = volume.name));
        }
    }

    pub(super) fn disks_meant(&self, on: &[LayoutPath]) -> BTreeSet<KernelName> {
        let below = self.graph.objects_below(on).disks;
        below.iter().filter_map(|index| self.found.get(index)).map(|disk| disk.name.clone()).collect()
    }
}

/// Returns the size and the sector size of the device, in bytes.
fn unit_size(unit: StackUnit) -> (u64, u32) {
    match unit {
        StackUnit::Disk(disk) => (disk.size_bytes, disk.sector_bytes),
        StackUnit::Partition(part) => (part.size_bytes, 512),
        StackUnit::Stacked(device) => (device.size_bytes, 512),
        StackUnit::Unknown => (0, 512),
    }
}
