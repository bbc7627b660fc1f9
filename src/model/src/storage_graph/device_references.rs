//! Names that mount options, fstab and systemd use for block devices, and the devices that these names denote.

use super::{DeviceStack, StackUnit};
use crate::device_name::DevicePath;
use crate::device_name::by_path_spellings::list_by_path_spellings;
use crate::inventory::format_array_uuid;

/// Tags of fstab, each with the directory of the corresponding udev links.
const TAGS: [(&str, &str); 5] = [
    ("UUID=", "by-uuid/"),
    ("LABEL=", "by-label/"),
    ("PARTUUID=", "by-partuuid/"),
    ("PARTLABEL=", "by-partlabel/"),
    ("ID=", "by-id/"),
];

const LINKS: &str = "/dev/disk/";

/// Returns the path of the device to which the value of an option refers: `/dev/disk/by-uuid/…` for `UUID=…`, and
/// `/dev/sda3` for the systemd unit `dev-sda3.device`. Returns `None` if the value does not refer to a device.
pub fn device_name(value: &str) -> Option<String> {
    let value = value.trim().trim_matches('"');
    let tagged = TAGS.iter().find_map(|(tag, links)| Some((links, value.strip_prefix(tag)?)));
    if let Some((links, name)) = tagged {
        return Some(format!("{LINKS}{links}{}", decode_escapes(name.trim_matches('"'))));
    }
    if let Some(unit) = value.strip_suffix(".device") {
        return Some(decode_escapes(&format!("/{}", unit.replace('-', "/")))).filter(|path| path.starts_with("/dev/"));
    }
    value.starts_with("/dev/").then(|| decode_escapes(value))
}

/// Decodes escapes such as `\x2d`, which udev and systemd write in place of special characters.
fn decode_escapes(text: &str) -> String {
    let mut pieces = text.split("\\x");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain += &piece[2..];
            }
            None => {
                plain += "\\x";
                plain += piece;
            }
        }
    }
    plain
}

/// Returns whether `wanted`, a path that [`device_name`] has returned, denotes this device.
pub fn has_name(stack: &DeviceStack, device: &DevicePath, unit: StackUnit, wanted: &str) -> bool {
    let matches = |name: String| match wanted.starts_with("/dev/disk/by-uuid/") || wanted.contains("/by-partuuid/") {
        true => name.eq_ignore_ascii_case(wanted),
        false => name == wanted,
    };
    let signatures = unit.signatures().iter().flat_map(|found| {
        let (uuid, label) = (udev_link("by-uuid", &found.uuid), udev_link("by-label", &found.label));
        uuid.into_iter().chain(label)
    });
    let own = [device.to_string(), stack.kernel_name(device).device_path().to_string()];
    own.into_iter().chain(signatures).chain(udev_links(stack, device, unit)).any(matches)
}

fn udev_link(directory: &str, name: &str) -> Option<String> {
    (!name.is_empty()).then(|| format!("{LINKS}{directory}/{name}"))
}

/// Returns those udev links of the device that depend on its type, such as `/dev/disk/by-partuuid/…` for a partition.
fn udev_links(stack: &DeviceStack, device: &DevicePath, unit: StackUnit) -> Vec<String> {
    match unit {
        StackUnit::Disk(disk) => {
            let path = Some(&disk.by_path).filter(|path| !path.is_empty());
            let others = path.iter().flat_map(|path| list_by_path_spellings(path));
            let others = others.filter(|other| *other != disk.by_path);
            path.cloned().into_iter().chain(others.collect::<Vec<_>>()).chain(disk.by_id.iter().cloned()).collect()
        }
        StackUnit::Partition(part) => {
            let guid = part.guid.and_then(|guid| udev_link("by-partuuid", &guid.to_string()));
            let names = guid.into_iter().chain(udev_link("by-partlabel", &part.label));
            let disk = stack.whole_of(device).filter(|whole| matches!(whole, StackUnit::Disk(_)));
            let disk = disk.and_then(|disk| Some(udev_links(stack, disk.device()?, disk)));
            names.chain(disk.into_iter().flatten().map(|link| format!("{link}-part{}", part.number))).collect()
        }
        StackUnit::Stacked(stacked) => {
            let volume = stack.volume_name(stacked).map(|name| format!("/dev/{name}"));
            let arrays = stack.find_array(&stacked.name).into_iter();
            let arrays = arrays.flat_map(|array| {
                let by_id = format!("{LINKS}by-id/md-uuid-{}", format_array_uuid(array.uuid));
                [format!("/dev/md/{}", array.name), by_id]
            });
            let uuid = stack.find_volume(&stacked.name).map(|(group, volume)| {
                let identity = format!("{}{}", group.uuid, volume.uuid).replace('-', "");
                format!("{LINKS}by-id/dm-uuid-LVM-{identity}")
            });
            volume.into_iter().chain(uuid).chain(arrays).collect()
        }
        StackUnit::Unknown => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Inventory;
    use crate::storage_graph::all_units;

    #[test]
    fn mount_option_values_become_device_paths() {
        for (value, path) in [
            ("/dev/sda3", Some("/dev/sda3")),
            ("UUID=1A2B-3C4D", Some("/dev/disk/by-uuid/1A2B-3C4D")),
            ("\"LABEL=log\"", Some("/dev/disk/by-label/log")),
            ("LABEL=\"log\"", Some("/dev/disk/by-label/log")),
            ("PARTLABEL=a b", Some("/dev/disk/by-partlabel/a b")),
            ("/dev/disk/by-partlabel/a\\x20b", Some("/dev/disk/by-partlabel/a b")),
            ("dev-sda3.device", Some("/dev/sda3")),
            ("dev-disk-by\\x2duuid-1A2B\\x2d3C4D.device", Some("/dev/disk/by-uuid/1A2B-3C4D")),
            ("sys-devices-a.device", None),
            ("network-online.target", None),
            ("/var", None),
            ("30", None),
            ("", None),
            ("/dev/\\xzz\\x4", Some("/dev/\\xzz\\x4")),
        ] {
            assert_eq!(device_name(value).as_deref(), path, "{value}");
        }
    }

    #[test]
    fn devices_match_their_udev_links() {
        let inventory: Inventory =
            serde_json::from_str(include_str!("../../../../testdata/inventories/raid-lvm.json")).unwrap();
        let stack = DeviceStack::new(&inventory);
        let found = |wanted: &str| -> Vec<&str> {
            let found = all_units(&inventory).filter(|(device, unit)| has_name(&stack, device, *unit, wanted));
            found.map(|(device, _)| device.as_str()).collect()
        };
        let array = format_array_uuid(inventory.arrays[1].uuid);
        let group = &inventory.groups[0];
        let volume = group.volumes.iter().find(|volume| volume.name == "root").unwrap();
        let identity = format!("{}{}", group.uuid, volume.uuid).replace('-', "");
        let volume_link = format!("/dev/disk/by-id/dm-uuid-LVM-{identity}");
        let part = &inventory.disks[0].table.as_ref().unwrap().partitions[0];
        for (wanted, device) in [
            ("/dev/sda1".to_owned(), Some("/dev/sda1")),
            (format!("/dev/disk/by-partuuid/{}", part.guid.unwrap().to_string().to_uppercase()), Some("/dev/sda1")),
            (format!("/dev/disk/by-id/md-uuid-{array}"), Some("/dev/md127")),
            ("/dev/md/efi".to_owned(), Some("/dev/md126")),
            ("/dev/vg00/root".to_owned(), Some("/dev/mapper/vg00-root")),
            (volume_link, Some("/dev/mapper/vg00-root")),
            ("/dev/mapper/vg00-root".to_owned(), Some("/dev/mapper/vg00-root")),
            ("/dev/sda9".to_owned(), None),
            ("/dev/disk/by-uuid/".to_owned(), None),
        ] {
            assert_eq!(found(&wanted).first().copied(), device, "{wanted}");
        }
    }
}
