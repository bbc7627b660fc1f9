//! Identifiers of a disk, as the install marker records them.

use model::install_marker::RecordedDisk;
use model::inventory;

/// Returns the record of a disk with all of its identifiers, including those that other disks of the machine share. For
/// example, if a disk is connected over two paths, the kernel creates two devices with the same identifiers.
pub(crate) fn full_record(disk: &inventory::InventoryDisk) -> RecordedDisk {
    RecordedDisk {
        serial: disk.serial.clone(),
        wwn: disk.wwn.clone(),
        size_bytes: disk.size_bytes,
        sector_bytes: disk.sector_bytes,
        model: disk.model.clone(),
        by_path: disk.by_path.clone(),
        ..RecordedDisk::default()
    }
}

/// Returns the GUID of the disk's GPT.
pub(crate) fn table_guid(disk: &inventory::InventoryDisk) -> Option<String> {
    disk.table.as_ref()?.guid.map(|guid| guid.to_string())
}
