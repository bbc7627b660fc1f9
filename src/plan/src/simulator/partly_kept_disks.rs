//! Partly kept disks: some partitions are preserved; all others are removed and created again.

use super::*;
use operations::{ClearRanges, TableEdit};

impl Machine {
    /// Zeroes ranges. A partition loses its content if both of its ends are outside the preserved partitions.
    pub(super) fn zero_ranges(&mut self, clear: &ClearRanges) {
        assert_eq!(clear.find_overlap(), None, "{clear:?}");
        self.assert_free(&clear.device);
        let disk = self.disk(&clear.device);
        let is_preserved = |part: &DiskPartition| clear.preserved.iter().any(|range| range.start == part.start_bytes);
        let mut gone = Vec::new();
        for part in disk.table.iter_mut().flat_map(|table| &mut table.partitions).filter(|part| !is_preserved(part)) {
            part.signatures.clear();
            gone.push(part.device.clone());
        }
        self.forget(&gone);
    }

    pub(super) fn edit_table(&mut self, edit: &TableEdit) {
        let disk = self.disk(&edit.device);
        let sector = u64::from(edit.sector_bytes);
        let table = disk.table.as_mut().unwrap();
        assert_eq!(table.guid, Some(edit.guid));
        for preserved in &edit.preserved {
            let part = table.partitions.iter().find(|part| part.number == preserved.number).unwrap();
            let end = (preserved.last_lba + 1) * sector;
            assert_eq!((part.start_bytes, part.start_bytes + part.size_bytes), (preserved.first_lba * sector, end));
            assert_eq!((part.guid, &part.label), (Some(preserved.guid), &preserved.name));
        }
        assert_eq!(table.partitions.len(), edit.preserved.len() + edit.removed.len(), "{edit:?}");
        table.partitions.retain(|part| !edit.removed.contains(&part.number));
        for new in &edit.added {
            let (start_bytes, end) = (new.first_lba * sector, (new.last_lba + 1) * sector);
            let is_apart =
                |part: &DiskPartition| end <= part.start_bytes || part.start_bytes + part.size_bytes <= start_bytes;
            assert!(table.partitions.iter().all(is_apart), "{new:?} overlaps {:?}", table.partitions);
            table.partitions.push(DiskPartition {
                number: new.number,
                device: new.device.clone(),
                start_bytes,
                size_bytes: end - start_bytes,
                kind: new.kind.to_string(),
                guid: Some(new.guid),
                label: new.name.clone(),
                ..DiskPartition::default()
            });
        }
        table.partitions.sort_by_key(|part| part.number);
    }

    /// Assembles the preserved arrays of partly kept disks again, opens their containers, and activates their groups.
    /// The plan stops these devices before it changes the partition table, and the agent assembles all devices at its
    /// next start.
    pub(super) fn assemble_again(&mut self) {
        let Some(before) = &self.1.clone() else { return };
        // The layers can be stacked in any order, so the passes are repeated until nothing changes.
        loop {
            let count = self.0.stacked.len();
            self.assemble_arrays(before);
            self.open_containers(before);
            self.find_groups(before);
            before.groups.iter().for_each(|old| self.activate_again(before, old));
            if self.0.stacked.len() == count {
                return;
            }
        }
    }

    fn assemble_arrays(&mut self, before: &Inventory) {
        for old in &before.arrays {
            let Some(running) = &old.running else { continue };
            let is_stopped = |array: &&mut MdArray| {
                array.uuid == old.uuid && array.running.is_none() && array.members == old.members
            };
            let Some(array) = self.0.arrays.iter_mut().find(is_stopped) else { continue };
            array.running = Some(running.clone());
            self.restore_contents(before, running);
        }
    }

    fn open_containers(&mut self, before: &Inventory) {
        for old in before.stacked.iter().filter(|old| old.kind == StackedDeviceKind::Crypt) {
            let signatures = |inventory: &Inventory| {
                let below = old.below.first()?;
                let path = inventory.stacked.iter().find(|is| is.name == *below).map(|is| is.device.clone());
                let path = path.unwrap_or_else(|| below.device_path());
                let found = inventory.all_signatures().find(|(device, _)| **device == path)?;
                Some(found.1.to_vec()).filter(|found| !found.is_empty())
            };
            let is_open = self.0.stacked.iter().any(|stacked| stacked.name == old.name);
            if !is_open && signatures(&self.0).is_some() && signatures(&self.0) == signatures(before) {
                self.restore_contents(before, &old.name);
            }
        }
    }

    /// Restores the groups on arrays or containers that were stopped and are open again.
    fn find_groups(&mut self, before: &Inventory) {
        for old in &before.groups {
            let is_back = |device: &DevicePath| self.0.stacked.iter().any(|stacked| stacked.device == *device);
            let is_it = |group: &&mut LvmVolumeGroup| group.uuid == old.uuid && group.name == old.name;
            let back: Vec<bool> = old.physical.iter().map(|one| one.device.as_ref().is_some_and(is_back)).collect();
            if let Some(group) = self.0.groups.iter_mut().find(is_it) {
                let physical = group.physical.iter_mut().zip(&old.physical).zip(&back);
                let returning = physical.filter(|((now, _), back)| now.device.is_none() && **back);
                returning.for_each(|((now, old), _)| now.device = old.device.clone());
                continue;
            }
            if old.physical.len() == back.iter().filter(|back| **back).count() {
                let volumes = old.volumes.iter().cloned().map(|volume| LvmLogicalVolume { running: None, ..volume });
                self.0.groups.push(LvmVolumeGroup { volumes: volumes.collect(), ..old.clone() });
            }
        }
    }

    /// Activates the volumes of a group that were active before and that still exist.
    fn activate_again(&mut self, before: &Inventory, old: &LvmVolumeGroup) {
        let found = self
            .0
            .groups
            .iter_mut()
            .find(|group| group.name == old.name && group.uuid == old.uuid && group.physical == old.physical);
        let mut names = Vec::new();
        for volume in found.into_iter().flat_map(|group| &mut group.volumes).filter(|is| is.running.is_none()) {
            let is_same = |old: &&LvmLogicalVolume| old.name == volume.name && old.ranges == volume.ranges;
            volume.running = old.volumes.iter().find(is_same).and_then(|old| old.running.clone());
            names.extend(volume.running.clone());
        }
        names.iter().for_each(|name| self.restore_contents(before, name));
    }

    fn restore_contents(&mut self, before: &Inventory, name: &KernelName) {
        let Some(old) = before.stacked.iter().find(|stacked| stacked.name == *name) else { return };
        assert!(self.0.stacked.iter().all(|stacked| stacked.name != *name), "{name} runs already");
        self.0.stacked.push(old.clone());
        for below in &old.below {
            let held = DeviceUse::Holder(name.clone());
            let uses = self.uses(&below.device_path());
            if !uses.contains(&held) {
                uses.push(held);
            }
        }
    }
}
