//! What an attempt is about to make on kept disks. The control plane is told before the first write, so that the next
//! attempt can finish what a power cut has left unfinished: a mkfs that was cut off leaves data of no known kind, or a
//! filesystem that cannot be mounted.

use super::devices::Device;
use super::marking::table_guid;
use super::same::{Likeness, Shared, compare};
use super::verdict::{Decided, Deciding};
use super::{Request, Verdict, marking};
use crate::device::{DevicePath, KernelName, LayoutPath};
use crate::inventory::{self, Inventory, Tried};
use crate::marker::{Making, MarkedDisk};
use crate::topology::{Match, find};

/// [`Making::on`] of a disk that is made anew, and of a filesystem that takes a whole disk.
pub const DISK: &str = "disk";

/// What the control plane is told of the disks right before the point of no return.
pub fn recorded(meant: &Match, decided: &Decided, disks: &[MarkedDisk]) -> Vec<MarkedDisk> {
    let recorded = disks.iter().map(|disk| {
        let Some(index) = meant.graph.layout.disks.iter().position(|listed| listed.device == disk.device) else {
            return disk.clone();
        };
        let found = meant.disk(index);
        let verdict = found.and_then(|found| decided.disks.iter().find(|is| is.name == found.name));
        let whole = verdict
            .filter(|is| is.verdict == Verdict::Make)
            .map(|_| Making { on: DISK.to_owned(), ..Making::default() });
        let lies_on = |(device, _): &&(LayoutPath, Making)| meant.graph.below([device]).disks.contains(&index);
        let parts = decided.filling.iter().filter(lies_on).map(|(_, making)| making.clone());
        MarkedDisk { making: whole.into_iter().chain(parts).collect(), ..disk.clone() }
    });
    recorded.collect()
}

/// The same of disks that only volumes of Kubernetes name, and that are written for them.
pub fn of_volumes(inventory: &Inventory, decided: &Decided) -> Vec<MarkedDisk> {
    let disk = |name: &KernelName| inventory.disks.iter().find(|disk| disk.name == *name);
    let marked = decided.beginning.iter().filter_map(|(name, uid)| {
        let disk = disk(name)?;
        let making = vec![Making { on: DISK.to_owned(), uuid: Some(uid.to_string()) }];
        Some(MarkedDisk { device: disk.device.to_string(), making, ..marking::of_disk(disk, inventory) })
    });
    marked.collect()
}

/// Was an attempt about to make a whole disk?
pub fn was_making_disks(request: &Request) -> bool {
    records(request).any(|record| record.making.iter().any(|making| making.on == DISK && making.uuid.is_none()))
}

fn records(request: &Request) -> impl Iterator<Item = &MarkedDisk> {
    request.claim.iter().flat_map(|claim| &claim.begun_on)
}

impl Deciding<'_> {
    /// Was an earlier attempt about to make this disk anew?
    pub fn was_made_anew(&self, listed: &LayoutPath, found: &inventory::Disk) -> bool {
        self.remake && self.was_to_be_made(listed, found)
    }

    /// The same of one of the disks below a device, while it is decided whether what was finished can stay.
    pub fn was_being_made(&self, device: &LayoutPath) -> bool {
        let disks = self.graph.below([device]).disks;
        let mut found = disks.into_iter().filter_map(|index| {
            let listed = &self.layout.disks[index];
            Some((&listed.device, find::disk(listed, self.inventory).ok()?))
        });
        found.any(|(listed, found)| self.was_to_be_made(listed, found))
    }

    fn was_to_be_made(&self, listed: &LayoutPath, found: &inventory::Disk) -> bool {
        let is_it = |record: &&MarkedDisk| record.device == *listed && self.is_same(record, found);
        let mut records = records(self.request).filter(is_it);
        records.any(|record| record.making.iter().any(|is| is.on == DISK && is.uuid.is_none()))
    }

    /// What [`Making`] says of a filesystem that is made on a kept device.
    pub fn making(&self, device: &Device, uuid: &str) -> Option<Making> {
        Some(Making { on: on(self.inventory, &device.now)?, uuid: Some(uuid.to_owned()) })
    }

    /// UUID of the filesystem that an earlier attempt was about to make there, if it was left unfinished. A filesystem
    /// that can be mounted is whole, and may hold data by now.
    pub fn was_cut_off(&self, device: &Device) -> Option<String> {
        let on = on(self.inventory, &device.now)?;
        let is_it = |record: &&MarkedDisk| {
            on != DISK || self.inventory.disk(device.now.as_str()).is_some_and(|disk| self.is_same(record, disk))
        };
        let makings = records(self.request).filter(is_it).flat_map(|record| &record.making);
        let uuid = makings.filter(|making| making.on == on).find_map(|making| making.uuid.as_ref())?;
        let is_cut_off = match device.content.as_deref().ok()? {
            [] => true,
            [one] => one.uuid == *uuid && self.inventory.failure(&Tried::Filesystem(device.now.clone())).is_some(),
            _ => false,
        };
        is_cut_off.then(|| uuid.clone())
    }

    /// Is this the recorded disk, with no table, its old table, or the one that it was about to get? The whole disk is
    /// made anew, so an identifier must prove it. To look the same is not enough: somebody may have put another disk in
    /// its place.
    fn is_same(&self, record: &MarkedDisk, disk: &inventory::Disk) -> bool {
        let recorded = self.request.claim.as_ref().map(|claim| claim.begun_on.as_slice()).unwrap_or_default();
        let guids: Vec<&str> = [&record.guid, &record.guid_before].into_iter().flatten().map(String::as_str).collect();
        let is_ours = disk.table.is_none() || table_guid(disk).is_some_and(|guid| guids.contains(&guid.as_str()));
        is_ours && compare(record, &guids, disk, &Shared::new(self.inventory, recorded)) == Likeness::Equal
    }
}

/// Names a block device by something unique: the GUID of a partition, the UUID of an array or a group. A GUID that two
/// partitions share is no name.
fn on(inventory: &Inventory, device: &DevicePath) -> Option<String> {
    if inventory.disks.iter().any(|disk| disk.device == *device) {
        return Some(DISK.to_owned());
    }
    let parts = || inventory.disks.iter().flat_map(|disk| disk.table.iter().flat_map(|table| &table.partitions));
    if let Some(part) = parts().find(|part| part.device == *device) {
        let guid = part.guid.filter(|_| parts().filter(|other| other.guid == part.guid).count() == 1);
        return Some(format!("partition {}", guid?));
    }
    let running = Some(inventory.stacked.iter().find(|stacked| stacked.device == *device)?.name.clone());
    if let Some(array) = inventory.arrays.iter().find(|array| array.running == running) {
        return Some(format!("array {}", array.uuid));
    }
    let mut volumes = inventory.groups.iter().flat_map(|group| group.volumes.iter().map(move |volume| (group, volume)));
    let (group, volume) = volumes.find(|(_, volume)| volume.running == running)?;
    Some(format!("volume {} {}", group.uuid, volume.name))
}
