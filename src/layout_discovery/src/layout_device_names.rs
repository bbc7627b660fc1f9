//! Names of the machine's devices in the layout.

use crate::content_purposes::MachineContents;
use crate::mount_point_purposes::PurposeSet;
use model::device_name::{DevicePath, KernelName, LayoutPath};
use model::inventory::{InventoryDisk, MdArray, StackedDeviceKind, UniqueIdentifiers};
use model::layout::DiskSpec;
use model::storage_graph::{StackUnit, disk_lookup};
use std::collections::BTreeMap;

/// Returns the entry of a disk, without partitions. The disk is selected by a unique serial number or WWN if it has
/// one, because kernel names may change.
pub(crate) fn select_disk(machine: &MachineContents, disk: &InventoryDisk, purpose: PurposeSet) -> DiskSpec {
    let inventory = machine.inventory;
    let plain = DiskSpec {
        device: disk.device.as_str().into(),
        hints: BTreeMap::new(),
        partitions: Vec::new(),
        wipeonreinstall: purpose.system,
        image: false,
    };
    let unique = UniqueIdentifiers::from_disks(&inventory.disks);
    let serial = unique.has_serial(disk).then(|| ("serial", disk.serial.trim()));
    let wwn = unique.has_wwn(disk).then(|| ("wwn_with_extension", disk.wwn.trim()));
    let hinted = serial.into_iter().chain(wwn).map(|(hint, value)| DiskSpec {
        device: disk.name.replace('!', "-").into(),
        hints: BTreeMap::from([(hint.to_owned(), value.to_owned())]),
        ..plain.clone()
    });
    let finds = |spec: &DiskSpec| disk_lookup::find_disk(spec, inventory).is_ok_and(|found| found.name == disk.name);
    hinted.into_iter().find(finds).unwrap_or(plain)
}

/// Returns the path of an array in the layout.
pub(crate) fn array_path(array: &MdArray) -> LayoutPath {
    let running = array.running.as_ref().map(KernelName::as_str).unwrap_or_default();
    match array.name.as_str() {
        "" => format!("/dev/{running}").into(),
        // mdadm treats a name such as `md2` as the array with number 2.
        name if name.strip_prefix("md").is_some_and(is_number) => format!("/dev/{name}").into(),
        name if is_number(name) => format!("/dev/md{name}").into(),
        name => format!("/dev/md/{name}").into(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Name of a device in the layout, and whether the device is the inside of a LUKS container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedDevice {
    pub path: LayoutPath,
    pub is_encrypted: bool,
}

impl MachineContents<'_> {
    /// Returns the name of a device in the layout. `disks` contains the entries of the disks.
    ///
    /// # Errors
    /// Returns the type of the device if layouts do not support it.
    pub fn name_device(
        &self,
        name: &KernelName,
        disks: &BTreeMap<KernelName, DiskSpec>,
    ) -> Result<NamedDevice, String> {
        let plain = |path: LayoutPath| Ok(NamedDevice { path, is_encrypted: false });
        match self.stack.find_unit(name) {
            StackUnit::Disk(disk) => disks
                .get(&disk.name)
                .map_or_else(|| Err("an unlisted disk".to_owned()), |spec| plain(spec.device.clone())),
            StackUnit::Partition(partition) => match self.stack.whole_of(&partition.device) {
                Some(StackUnit::Disk(disk)) => match disks.get(&disk.name) {
                    Some(spec) => plain(spec.device.partition_path(partition.number)),
                    None => Err("a partition of an unlisted disk".to_owned()),
                },
                Some(StackUnit::Stacked(_)) => Err("a partition inside an array or volume".to_owned()),
                _ => Err("a partition of an unknown disk".to_owned()),
            },
            StackUnit::Stacked(stacked) => match stacked.kind {
                StackedDeviceKind::Array => match self.stack.find_array(name) {
                    Some(array) => plain(array_path(array)),
                    None => Err("an array without readable superblocks".to_owned()),
                },
                StackedDeviceKind::Volume => match self.stack.find_volume(name) {
                    Some((_, volume)) if !is_supported_volume(&volume.kind) => {
                        Err(format!("a logical volume of type {}", volume.kind))
                    }
                    Some((group, volume)) => plain(format!("/dev/{}/{}", group.name, volume.name).into()),
                    None => Err("a volume of an unknown group".to_owned()),
                },
                StackedDeviceKind::Crypt => match stacked.below.as_slice() {
                    [below] => self.name_device(below, disks).map(|named| NamedDevice { is_encrypted: true, ..named }),
                    _ => Err("a dm-crypt mapping of several devices".to_owned()),
                },
                StackedDeviceKind::Bcache => Err("bcache".to_owned()),
                StackedDeviceKind::Other => Err("a device-mapper device".to_owned()),
            },
            StackUnit::Unknown => Err("an inactive device".to_owned()),
        }
    }

    pub fn name_path(
        &self,
        device: &DevicePath,
        disks: &BTreeMap<KernelName, DiskSpec>,
    ) -> Result<NamedDevice, String> {
        self.name_device(&self.stack.kernel_name(device), disks)
    }
}

/// Returns whether layouts support logical volumes of this type.
pub(crate) fn is_supported_volume(kind: &str) -> bool {
    ["linear", "striped", "raid1"].contains(&kind)
}
