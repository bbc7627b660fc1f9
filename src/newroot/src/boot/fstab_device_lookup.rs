//! Finds the devices that an fstab names. The inventory is used instead of udev's links, since udev does not run in the
//! ramdisk.

use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, DiskPartition, Inventory};
use model::storage_graph::{StackUnit, all_units};

/// Returns the filesystem types on a device, as libblkid names them.
pub(crate) fn filesystem_types<'a>(device: &DevicePath, inventory: &'a Inventory) -> Vec<&'a str> {
    let found = all_units(inventory).filter(|(path, _)| *path == device);
    found.flat_map(|(_, unit)| unit.signatures()).map(|signature| signature.kind.as_str()).collect()
}

/// Returns the device that the first field of an fstab(5) line names.
///
/// # Errors
/// Fails if no device or more than one device matches.
pub(crate) fn find_device(source: &str, inventory: &Inventory) -> Result<DevicePath, String> {
    let found = match source.split_once('=') {
        Some((tag, value)) => find_by_tag(tag, value.trim_matches('"'), inventory),
        None => find_by_path(source, inventory),
    };
    match found.as_slice() {
        [] => Err(format!("no device of this machine matches {source}")),
        [device] => Ok(device.clone()),
        several => Err(format!("{source} matches more than one device: {devices}", devices = several.join(", "))),
    }
}

fn find_by_tag(tag: &str, value: &str, inventory: &Inventory) -> Vec<DevicePath> {
    // UUIDs are compared regardless of case, because some tools write the UUIDs of vfat in uppercase, and others in
    // lowercase.
    let any = |unit: &StackUnit, is: &dyn Fn(&DeviceSignature) -> bool| unit.signatures().iter().any(is);
    let guid = |part: &DiskPartition| part.guid.is_some_and(|guid| guid.to_string().eq_ignore_ascii_case(value));
    let partition = |unit: &StackUnit, is_match: &dyn Fn(&DiskPartition) -> bool| matches!(unit, StackUnit::Partition(part) if is_match(part));
    let matches = |unit: &StackUnit| match tag {
        "UUID" => any(unit, &|signature| signature.uuid.eq_ignore_ascii_case(value)),
        "LABEL" => any(unit, &|signature| signature.label == value),
        "PARTUUID" => partition(unit, &guid),
        "PARTLABEL" => partition(unit, &|part| part.label == value),
        _ => false,
    };
    let found = all_units(inventory).filter(|(_, unit)| !value.is_empty() && matches(unit));
    found.map(|(device, _)| device.clone()).collect()
}

/// Returns the devices for which the kernel or udev creates this path.
fn find_by_path(path: &str, inventory: &Inventory) -> Vec<DevicePath> {
    let by = |link: &str| path.strip_prefix("/dev/disk/by-").and_then(|rest| rest.strip_prefix(link));
    for (link, tag) in [("uuid/", "UUID"), ("label/", "LABEL"), ("partuuid/", "PARTUUID"), ("partlabel/", "PARTLABEL")]
    {
        if let Some(value) = by(link) {
            return find_by_tag(tag, value, inventory);
        }
    }
    let running = find_running(path, inventory);
    if !running.is_empty() {
        return running;
    }
    let part = path.rsplit_once("-part").and_then(|(disk, number)| {
        let table = inventory.find_disk(disk)?.table.as_ref()?;
        table.partitions.iter().find(|part| number.parse() == Ok(part.number))
    });
    let disk = || inventory.find_disk(path).map(|disk| disk.device.clone());
    if let Some(device) = part.map(|part| part.device.clone()).or_else(disk) {
        return vec![device];
    }
    all_units(inventory).filter(|(device, _)| **device == *path).map(|(device, _)| device.clone()).collect()
}

/// Returns the devices that the installed system names `/dev/md/NAME` or `/dev/GROUP/VOLUME`. These names do not exist
/// as device nodes here, because arrays and volumes that are assembled for inspection have other names.
fn find_running(path: &str, inventory: &Inventory) -> Vec<DevicePath> {
    let Some((dir, name)) = path.strip_prefix("/dev/").and_then(|path| path.split_once('/')) else { return vec![] };
    let arrays = inventory.arrays.iter().filter(|array| dir == "md" && array.name == name);
    let arrays = arrays.filter_map(|array| array.running.as_ref());
    let groups = inventory.groups.iter().filter(|group| group.name == dir);
    let volumes = groups.flat_map(|group| &group.volumes).filter(|volume| volume.name == name);
    let names = arrays.chain(volumes.filter_map(|volume| volume.running.as_ref()));
    let device = |name: &KernelName| inventory.stacked.iter().find(|stacked| stacked.name == *name);
    names.filter_map(device).map(|stacked| stacked.device.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn recorded(name: &str) -> Inventory {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/inventories").join(name);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn every_spelling_leads_to_the_device() {
        let mut inventory = recorded("installed-default.json");
        let disk = inventory.disks.iter_mut().find(|disk| disk.table.is_some()).unwrap();
        (disk.by_path, disk.by_id) = ("/dev/disk/by-path/pci-1".into(), vec!["/dev/disk/by-id/ata-1".into()]);
        let part = disk.table.as_mut().unwrap().partitions.last_mut().unwrap();
        part.label = "part label".into();
        let (part, number) = (part.clone(), part.number);
        let signature = &part.signatures[0];
        assert!(!signature.label.is_empty() && !signature.uuid.is_empty());
        let guid = part.guid.unwrap();
        let spellings = [
            format!("UUID={}", signature.uuid),
            format!("UUID=\"{}\"", signature.uuid.to_uppercase()),
            format!("LABEL={}", signature.label),
            format!("PARTUUID={guid}"),
            "PARTLABEL=part label".to_owned(),
            format!("/dev/disk/by-uuid/{}", signature.uuid),
            format!("/dev/disk/by-label/{}", signature.label),
            format!("/dev/disk/by-partuuid/{guid}"),
            format!("/dev/disk/by-path/pci-1-part{number}"),
            format!("/dev/disk/by-id/ata-1-part{number}"),
            part.device.to_string(),
        ];
        for spelling in spellings {
            assert_eq!(find_device(&spelling, &inventory).as_ref(), Ok(&part.device), "{spelling}");
        }
        assert_eq!(filesystem_types(&part.device, &inventory), [signature.kind.as_str()]);
    }

    #[test]
    fn arrays_and_volumes_resolve_to_their_present_devices() {
        let mut inventory = recorded("raid-lvm.json");
        inventory.arrays.iter_mut().for_each(|array| array.name = "other".into());
        let array = inventory.arrays.iter_mut().find(|array| array.running.is_some()).unwrap();
        array.name = "boot".into();
        let running = array.running.as_ref().unwrap().device_path();
        assert_eq!(find_device("/dev/md/boot", &inventory), Ok(running));
        for root in ["/dev/vg00/root", "/dev/mapper/vg00-root"] {
            assert_eq!(find_device(root, &inventory), Ok("/dev/mapper/vg00-root".into()));
        }
    }

    #[test]
    fn missing_or_ambiguous_device_is_reported() {
        let mut inventory = recorded("installed-default.json");
        for source in ["UUID=0", "UUID=", "LABEL=\"\"", "NONE=x", "/dev/sdz1", "/dev/md/boot", "tmpfs", "", "/dev/"] {
            assert_eq!(find_device(source, &inventory), Err(format!("no device of this machine matches {source}")));
        }
        let disk = inventory.disks.iter().find(|disk| disk.table.is_some()).unwrap().clone();
        let part = disk.table.as_ref().unwrap().partitions.last().unwrap();
        let source = format!("UUID={}", part.signatures[0].uuid);
        inventory.disks.push(disk.clone());
        let error = find_device(&source, &inventory).unwrap_err();
        assert_eq!(error, format!("{source} matches more than one device: {0}, {0}", part.device));
    }
}
