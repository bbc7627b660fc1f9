//! Disks of which some partitions are preserved while the others are renewed.

use super::*;
use operations::{ClearRanges, TableEdit};

impl Machine {
    /// Zeroes ranges. A partition loses its content if both of its ends are outside the preserved partitions.
    pub(super) fn clear(&mut self, clear: &ClearRanges) {
        assert_eq!(clear.find_overlap(), None, "{clear:?}");
        self.assert_free(&clear.device);
        let disk = self.disk(&clear.device);
        let is_kept = |part: &DiskPartition| clear.preserved.iter().any(|range| range.start == part.start_bytes);
        let mut gone = Vec::new();
        for part in disk.table.iter_mut().flat_map(|table| &mut table.partitions).filter(|part| !is_kept(part)) {
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
        for kept in &edit.preserved {
            let part = table.partitions.iter().find(|part| part.number == kept.number).unwrap();
            let end = (kept.last_lba + 1) * sector;
            assert_eq!((part.start_bytes, part.start_bytes + part.size_bytes), (kept.first_lba * sector, end));
            assert_eq!((part.guid, &part.label), (Some(kept.guid), &kept.name));
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

    /// Assembles the preserved arrays of partly kept disks again, and the groups on them. The plan stops them before it
    /// changes the table, and the next run assembles all devices.
    pub(super) fn assemble_again(&mut self) {
        let Some(before) = &self.1.clone() else { return };
        for old in &before.arrays {
            let Some(running) = &old.running else { continue };
            let is_stopped = |array: &&mut MdArray| {
                array.uuid == old.uuid && array.running.is_none() && array.members == old.members
            };
            let Some(array) = self.0.arrays.iter_mut().find(is_stopped) else { continue };
            array.running = Some(running.clone());
            self.put_back(before, running);
        }
        for old in &before.groups {
            let stays = |device: &DevicePath| self.0.all_signatures().any(|(path, _)| path == device);
            let is_lost = self.0.groups.iter().all(|group| group.uuid != old.uuid || group.name != old.name);
            let on_arrays = old.present_devices().all(|device| {
                stays(device)
                    && before
                        .arrays
                        .iter()
                        .any(|array| array.running.as_ref().is_some_and(|name| name.device_path() == *device))
            });
            if is_lost && on_arrays {
                self.0.groups.push(old.clone());
                old.volumes
                    .iter()
                    .filter_map(|volume| volume.running.as_ref())
                    .for_each(|name| self.put_back(before, name));
            }
        }
    }

    fn put_back(&mut self, before: &Inventory, name: &KernelName) {
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
