//! Limits for an inventory that a server accepts and the planner processes. Within the limits, all computations are
//! fast. Large storage servers do not reach the limits.

mod stacking_depth;

use super::{DeviceSignature, DeviceUse, DiskTable, Inventory, InventoryDisk};
use std::collections::BTreeSet;

/// Maximum number of disks. Each path to a multipath device counts as a disk.
const DISKS: usize = 4096;
/// Maximum number of block devices: disks, partitions, arrays, logical volumes and other mappings.
const BLOCK_DEVICES: usize = 16_384;
/// Maximum number of relations between devices: a device is on top of another device, is a member of an array, or is a
/// physical volume of a group.
const LINKS: usize = 262_144;
/// Maximum number of devices that the inventory does not list although other devices refer to them.
const UNLISTED: usize = 4096;
/// Maximum number of levels of stacked devices.
const NESTED: usize = 1024;
const MAXIMUM_GROUPS: usize = 2048;
const LOGICAL_VOLUMES: usize = 16_384;
/// Maximum number of combinations of a logical volume and a physical volume in the same group, summed over all groups.
const ALLOCATIONS: usize = 1 << 20;
const SIGNATURES: usize = 65_536;
const SIGNATURES_OF_ONE: usize = 64;
/// Maximum number of filesystems. The same maximum applies to components of filesystems that span devices, and to
/// failed attempts. A machine rarely has more than one filesystem, one component and one failed attempt for each
/// device.
const FINDINGS: usize = 32_768;
const MARKERS: usize = 64;
/// Maximum total number of disks, volumes and digests in all install markers.
const RECORDS: usize = 16_384;
const SPARSE_FILES: usize = 65_536;
const NICS: usize = 1024;
const NEIGHBORS: usize = 4096;
const CPUS: usize = 4096;
/// Maximum length of a name, serial number, label or link, in bytes.
const NAME_BYTES: usize = 1024;
const LINKS_OF_ONE_DISK: usize = 64;

impl Inventory {
    /// Returns a message about the first exceeded limit, with the remedy, or a message about devices that are stacked
    /// inconsistently. Returns `None` if there is no such problem.
    pub fn find_exceeded_limit(&self) -> Option<String> {
        let counts = self.count_devices().into_iter().chain(self.count_findings());
        let over = counts.into_iter().find(|(_, _, count, maximum)| count > maximum);
        if let Some((what, remedy, count, maximum)) = over {
            return Some(format!(
                "the inventory contains {count} {what}, but at most {maximum} are supported: {remedy}"
            ));
        }
        let long = self.all_names().find(|name| name.len() > NAME_BYTES);
        if let Some(long) = long {
            let start: String = long.chars().filter(|c| !c.is_control()).take(32).collect();
            let length = long.len();
            return Some(format!(
                "the inventory contains a name of {length} bytes ({start}…), but at most {NAME_BYTES} are supported: shorten the name on the device"
            ));
        }
        stacking_depth::find_stacking_problem(self, NESTED)
    }

    fn count_devices(&self) -> [LimitCheck; 8] {
        let disconnect = "disconnect disks that the machine does not need";
        let stop = "stop or remove arrays, volumes and mappings that are not needed";
        let tables = || self.all_tables();
        let parts: usize = tables().map(|table| table.partitions.len()).sum();
        let members: usize = self.arrays.iter().map(|array| array.members.len()).sum();
        let physical: usize = self.groups.iter().map(|group| group.physical.len()).sum();
        let below: usize = self.stacked.iter().map(|stacked| stacked.below.len()).sum();
        let held = self.all_uses().filter(|usage| matches!(usage, DeviceUse::Holder(_))).count();
        let volumes: usize = self.groups.iter().map(|group| group.volumes.len() + group.hidden.len()).sum();
        let allocations = self.groups.iter().map(|group| group.volumes.len().saturating_mul(group.physical.len()));
        [
            ("disks", disconnect, self.disks.len(), DISKS),
            ("block devices", stop, self.disks.len() + self.stacked.len() + parts, BLOCK_DEVICES),
            ("links between block devices", stop, below + held + members + physical, LINKS),
            ("arrays", stop, self.arrays.len(), MAXIMUM_GROUPS),
            ("volume groups", stop, self.groups.len(), MAXIMUM_GROUPS),
            ("logical volumes", stop, volumes, LOGICAL_VOLUMES),
            (
                "combinations of logical and physical volumes",
                stop,
                allocations.fold(0, usize::saturating_add),
                ALLOCATIONS,
            ),
            ("unlisted devices that are in use", stop, self.find_unlisted_devices().len(), UNLISTED),
        ]
    }

    fn count_findings(&self) -> [LimitCheck; 14] {
        let erase = "erase devices that are not needed (wipefs)";
        let markers = || self.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let records = markers().map(|marker| {
            let (volumes, renewed) =
                (marker.volumes.as_ref().map_or(0, Vec::len), marker.renewed.as_ref().map_or(0, Vec::len));
            marker.disks.len() + marker.supersedes.len() + volumes + renewed
        });
        let sparse = self.filesystems.iter().map(|filesystem| filesystem.sparse.len());
        let unknown = self.unknown.iter().map(|unknown| unknown.devices.len() + 1);
        let neighbors = self.nics.iter().map(|nic| nic.neighbors.len());
        let links = self.disks.iter().map(|disk| disk.by_id.len().max(disk.erase.len()));
        [
            ("signatures", erase, self.signature_lists().map(<[_]>::len).sum(), SIGNATURES),
            (
                "signatures on one device",
                erase,
                self.signature_lists().map(<[_]>::len).max().unwrap_or_default(),
                SIGNATURES_OF_ONE,
            ),
            ("filesystems", erase, self.filesystems.len(), FINDINGS),
            ("components of filesystems", erase, self.parts.len(), FINDINGS),
            ("devices that cannot be assigned to an array or volume group", erase, unknown.sum(), FINDINGS),
            ("failed attempts to inspect an object", erase, self.failed.len(), FINDINGS),
            ("install markers", erase, markers().count(), MARKERS),
            ("entries in install markers", erase, records.sum(), RECORDS),
            ("files of sparse volumes", "delete volumes that are not needed", sparse.sum(), SPARSE_FILES),
            ("links to one disk", "disconnect the disk", links.max().unwrap_or_default(), LINKS_OF_ONE_DISK),
            ("NICs", "remove virtual functions that are not needed", self.nics.len(), NICS),
            ("LLDP neighbors", "disable LLDP on ports that do not need it", neighbors.sum(), NEIGHBORS),
            ("CPUs", "report this to the developers of drophammer", self.cpus.len(), CPUS),
            ("physical volumes with free space", erase, self.count_free_spaces(), LINKS),
        ]
    }

    fn count_free_spaces(&self) -> usize {
        let allocations = self.groups.iter().filter_map(|group| group.allocation.as_ref());
        allocations.map(|allocation| allocation.free.len()).sum()
    }

    fn all_tables(&self) -> impl Iterator<Item = &DiskTable> {
        let stacked = self.stacked.iter().filter_map(|stacked| stacked.table.as_ref());
        self.disks.iter().filter_map(|disk| disk.table.as_ref()).chain(stacked)
    }

    fn all_uses(&self) -> impl Iterator<Item = &DeviceUse> {
        let parts = self.all_tables().flat_map(|table| &table.partitions).flat_map(|part| &part.uses);
        let stacked = self.stacked.iter().flat_map(|stacked| &stacked.uses);
        self.disks.iter().flat_map(|disk| &disk.uses).chain(stacked).chain(parts)
    }

    fn signature_lists(&self) -> impl Iterator<Item = &[DeviceSignature]> {
        self.all_signatures().map(|(_, signatures)| signatures)
    }

    /// Returns the names of devices to which other devices refer, but which the inventory does not list.
    fn find_unlisted_devices(&self) -> BTreeSet<&str> {
        let parts = self.all_tables().flat_map(|table| &table.partitions).map(|part| part.device.kernel_name());
        let parts: BTreeSet<_> = parts.collect();
        let wholes = self.disks.iter().map(|disk| disk.name.as_str());
        let listed: BTreeSet<&str> = wholes.chain(self.stacked.iter().map(|stacked| stacked.name.as_str())).collect();
        let holders = self.all_uses().filter_map(|usage| match usage {
            DeviceUse::Holder(name) => Some(name),
            DeviceUse::Mounted(_) | DeviceUse::Swap => None,
        });
        let below = self.stacked.iter().flat_map(|stacked| &stacked.below);
        let named = holders.chain(below).filter(|name| !listed.contains(name.as_str()) && !parts.contains(*name));
        named.map(|name| name.as_str()).collect()
    }

    /// Returns all strings that the planner compares, looks up or prints.
    fn all_names(&self) -> impl Iterator<Item = &str> {
        let disks = self.disks.iter().flat_map(disk_names);
        let stacked = self.stacked.iter().flat_map(|stacked| {
            let below = stacked.below.iter().map(|name| name.as_str());
            [stacked.name.as_str(), stacked.device.as_str()].into_iter().chain(below)
        });
        let parts = self.all_tables().flat_map(|table| &table.partitions);
        let parts = parts.flat_map(|part| [part.device.as_str(), &part.label, &part.kind]);
        let signatures = self.signature_lists().flatten();
        let signatures = signatures.flat_map(|found| [found.kind.as_str(), &found.usage, &found.label, &found.uuid]);
        let arrays = self.arrays.iter().flat_map(|array| {
            let members = array.members.iter().map(|member| member.device.as_str());
            [array.name.as_str(), &array.level, &array.metadata].into_iter().chain(members)
        });
        let groups = self.groups.iter().flat_map(|group| {
            let volumes = group.volumes.iter();
            let volumes = volumes.flat_map(|volume| [volume.name.as_str(), &volume.uuid, &volume.kind]);
            let hidden = group.hidden.iter().flat_map(|volume| [volume.name.as_str(), &volume.uuid]);
            let tags = group.tags.iter().map(String::as_str);
            [group.name.as_str(), &group.uuid].into_iter().chain(volumes).chain(hidden).chain(tags)
        });
        let holders = self.all_uses().filter_map(|usage| match usage {
            DeviceUse::Holder(name) => Some(name.as_str()),
            DeviceUse::Mounted(_) | DeviceUse::Swap => None,
        });
        let system = &self.system;
        let system = [system.vendor.as_str(), &system.product, &system.serial];
        let nics = self.nics.iter().flat_map(|nic| [nic.name.as_str(), &nic.mac, &nic.driver]);
        let all = disks.chain(stacked).chain(parts).chain(signatures).chain(arrays).chain(groups);
        all.chain(holders).chain(system).chain(nics)
    }
}

/// Data about one limit: name of the counted objects, remedy for the operator, number of objects found, and maximum
/// number.
type LimitCheck = (&'static str, &'static str, usize, usize);

fn disk_names(disk: &InventoryDisk) -> impl Iterator<Item = &str> {
    let InventoryDisk { model, vendor, serial, wwn, transport, by_path, hctl, .. } = disk;
    let own = [disk.name.as_str(), disk.device.as_str()];
    let known = [model, vendor, serial, wwn, transport, by_path, hctl];
    own.into_iter().chain(known.into_iter().chain(&disk.by_id).map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{
        LvmLogicalVolume, LvmPhysicalVolume, LvmVolumeGroup, Nic, StackedDevice, large_inventories,
    };

    #[test]
    fn inventories_of_large_storage_servers_are_within_the_limits() {
        for inventory in [
            large_inventories::array(800),
            large_inventories::chain(1000),
            large_inventories::towers(300),
            large_inventories::volumes(8, 1000),
        ] {
            assert_eq!(inventory.find_exceeded_limit(), None);
        }
        let multipath = Inventory {
            disks: (0..DISKS).map(|number| large_inventories::disk(&format!("sd{number}"))).collect(),
            ..Inventory::default()
        };
        assert_eq!(multipath.find_exceeded_limit(), None);
    }

    #[test]
    fn each_exceeded_limit_is_named() {
        let with = |change: &dyn Fn(&mut Inventory)| {
            let mut inventory = large_inventories::chain(3);
            change(&mut inventory);
            inventory
        };
        let group = |volumes: usize, physical: usize| LvmVolumeGroup {
            physical: vec![LvmPhysicalVolume::default(); physical],
            volumes: vec![LvmLogicalVolume::default(); volumes],
            ..LvmVolumeGroup::default()
        };
        for (inventory, words) in [
            (with(&|all| all.disks = vec![large_inventories::disk("sda"); DISKS + 1]), "4097 disks, but at most 4096"),
            (with(&|all| all.stacked = vec![StackedDevice::default(); BLOCK_DEVICES]), "16386 block devices"),
            (large_inventories::towers(900), "links between block devices"),
            (large_inventories::holders(5000), "5000 unlisted devices that are in use"),
            (large_inventories::holders(250_000), "250000 unlisted devices that are in use"),
            (large_inventories::holders(LINKS + 1), "links between block devices"),
            (large_inventories::chain(1100), "1101 levels of stacked devices"),
            (large_inventories::markers(MARKERS + 1), "65 install markers"),
            (with(&|all| all.groups = vec![group(0, 0); MAXIMUM_GROUPS + 1]), "volume groups"),
            (with(&|all| all.groups = vec![group(10_000, 200)]), "combinations of logical and physical volumes"),
            (with(&|all| all.nics = vec![Nic::default(); NICS + 1]), "NICs"),
            (
                with(&|all| all.disks[0].signatures = vec![DeviceSignature::default(); 65]),
                "65 signatures on one device",
            ),
            (with(&|all| all.disks[0].serial = "x".repeat(NAME_BYTES + 1)), "a name of 1025 bytes"),
            (with(&|all| all.stacked[0].below = vec!["dm-2".into()]), "form a cycle"),
        ] {
            let found = inventory.find_exceeded_limit().unwrap_or_default();
            assert!(found.contains(words), "{words}: {found}");
            assert_eq!(inventory.find_impossible_property(), Some(found));
        }
    }
}
