//! Other spellings of the identifiers of a disk. The inventory contains one spelling, while udev, lsblk and other
//! kernels report other spellings.

use crate::device_name::by_path_spellings::is_same_by_path;
use crate::disk_identifiers::{is_placeholder_wwn, is_same_serial, names_placeholder};
use crate::inventory::InventoryDisk;
use common::encoding::decode_hex;

const LINKS: &str = "/dev/disk/by-id/";
/// Prefixes of names in `/dev/disk/by-id`; the rest of each name is udev's `ID_SERIAL`.
const SERIAL_LINKS: [&str; 5] = ["ata-", "scsi-", "nvme-", "virtio-", "mmc-"];
/// Prefixes of the identifiers of an NVMe namespace. A namespace may have several identifiers, and a kernel reports
/// only one of them.
const NVME_IDENTIFIERS: [&str; 3] = ["eui.", "uuid.", "nvme."];

/// Returns whether `wanted`, a value in lower case, is another spelling of the attribute that the hint compares.
pub(super) fn is_alternative(hint: &str, disk: &InventoryDisk, wanted: &str) -> bool {
    match hint {
        "serial" => is_wwn_digits(disk, wanted) || has_link(disk, &SERIAL_LINKS, wanted),
        "wwn" | "wwn_with_extension" => is_other_wwn(disk, wanted),
        "by_path" => !disk.by_path.is_empty() && is_same_by_path(&disk.by_path.to_lowercase(), wanted),
        _ => false,
    }
}

/// Returns whether the text consists of the digits of the WWN, like udev's `ID_SERIAL_SHORT` for SCSI disks.
fn is_wwn_digits(disk: &InventoryDisk, wanted: &str) -> bool {
    let digits = disk.wwn.strip_prefix("0x").filter(|_| disk.transport != "nvme");
    digits.is_some_and(|digits| digits.eq_ignore_ascii_case(wanted)) && !is_placeholder_wwn(&disk.wwn)
}

fn has_link(disk: &InventoryDisk, prefixes: &[&str], wanted: &str) -> bool {
    disk.by_id.iter().any(|link| {
        let name = link.strip_prefix(LINKS).unwrap_or_default();
        let mut names = prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix));
        names.any(|name| name.eq_ignore_ascii_case(wanted)) && !names_placeholder(link)
    })
}

fn is_other_wwn(disk: &InventoryDisk, wanted: &str) -> bool {
    if is_placeholder_wwn(wanted) {
        return false;
    }
    let is_identifier = NVME_IDENTIFIERS.iter().any(|start| wanted.starts_with(start));
    if is_identifier && has_link(disk, &["nvme-"], wanted) {
        return true;
    }
    if let Some(name) = wanted.strip_prefix("nvme.") {
        return is_fallback_name(disk, name);
    }
    match disk.wwn.split_once('.') {
        Some(("eui", digits)) => wanted.strip_prefix("0x").is_some_and(|wanted| wanted.eq_ignore_ascii_case(digits)),
        Some(("uuid", uuid)) => wanted.strip_prefix("uuid.").is_some_and(|wanted| {
            let digits = |text: &str| text.replace('-', "").to_lowercase();
            digits(wanted) == digits(uuid)
        }),
        _ => false,
    }
}

/// Returns whether a name contains the serial number and the model of the disk. The kernel reports such a name for
/// an NVMe namespace whose identifiers the kernel ignores. The name consists of vendor, serial number, model and
/// namespace number.
fn is_fallback_name(disk: &InventoryDisk, name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let [_, serial, model, _] = parts[..] else { return false };
    let decode = |digits: &str| decode_hex(digits).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (Some(serial), Some(model)) = (decode(serial), decode(model)) else { return false };
    is_same_serial(&serial, &disk.serial) == Some(true) && model.trim().eq_ignore_ascii_case(disk.model.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk([transport, serial, wwn, by_path]: [&str; 4], links: &[&str]) -> InventoryDisk {
        InventoryDisk {
            transport: transport.to_owned(),
            serial: serial.to_owned(),
            wwn: wwn.to_owned(),
            by_path: format!("/dev/disk/by-path/{by_path}"),
            by_id: links.iter().map(|link| format!("{LINKS}{link}")).collect(),
            ..InventoryDisk::default()
        }
    }

    #[test]
    fn alternative_identifiers_of_udev_and_other_kernels_are_recognized() {
        let sas = disk(
            ["sas", "ZA1B2C3D0000C1234567", "0x5000c500a1b2c3d7", "pci-0000:18:00.0-sas-phy0-lun-0"],
            &["scsi-35000c500a1b2c3d7", "wwn-0x5000c500a1b2c3d7"],
        );
        let sata = disk(
            ["sata", "S5Y1", "0x5002538f31a1b2c3", "pci-0000:00:17.0-ata-1"],
            &["ata-Samsung_SSD_870_EVO_512GB_S5Y1", "wwn-0x5002538f31a1b2c3"],
        );
        let uuid = "uuid.3a6e1f10-7c1b-4d8e-9b1a-0123456789ab";
        let nvme = disk(
            ["nvme", "S4EW", uuid, "pci-0000:01:00.0-nvme-1"],
            &[&format!("nvme-{uuid}"), "nvme-Samsung_SSD_S4EW", "nvme-Samsung_SSD_S4EW_1", "nvme-eui.0025385b01234567"],
        );
        let eui = disk(["nvme", "X", "eui.0025385b01234567", "pci-0000:01:00.0-nvme-1"], &[]);
        let named = InventoryDisk {
            model: "INTEL SSD".to_owned(),
            ..disk(["nvme", "PHLJ01", "eui.0025385b01234567", "pci-0000:01:00.0-nvme-1"], &[])
        };
        let zeros = disk(["sas", "X", "0x0000000000000000", "x"], &["scsi-30000000000000000"]);
        let plain = "uuid.3a6e1f107c1b4d8e9b1a0123456789ab";
        for (disk, hint, wanted, expected) in [
            (&sas, "serial", "5000c500a1b2c3d7", true),
            (&sas, "serial", "35000c500a1b2c3d7", true),
            (&sas, "serial", "za1b2c3d", false),
            (&sas, "serial", "0x5000c500a1b2c3d7", false),
            (&sas, "serial", "5000c500a1b2c3d8", false),
            (&sas, "model", "5000c500a1b2c3d7", false),
            (&zeros, "serial", "0000000000000000", false),
            (&zeros, "serial", "30000000000000000", false),
            (&sata, "serial", "samsung_ssd_870_evo_512gb_s5y1", true),
            (&sata, "serial", "5002538f31a1b2c3", true),
            (&sata, "by_path", "/dev/disk/by-path/pci-0000:00:17.0-ata-1.0", true),
            (&sata, "by_path", "/dev/disk/by-path/pci-0000:00:17.0-ata-1.1", false),
            (&nvme, "wwn", "eui.0025385b01234567", true),
            (&nvme, "wwn_with_extension", "eui.0025385b01234567", true),
            (&nvme, "wwn", plain, true),
            (&nvme, "wwn", "eui.0025385b01234568", false),
            (&nvme, "wwn", "samsung_ssd_s4ew", false),
            (&nvme, "serial", "samsung_ssd_s4ew_1", true),
            (&eui, "wwn", "0x0025385b01234567", true),
            (&eui, "wwn", "0x0025385b01234568", false),
            (&eui, "wwn", plain, false),
            (&named, "wwn", "nvme.8086-50484c4a3031-494e54454c2053534420-00000001", true),
            (&named, "wwn", "nvme.8086-50484c4a3032-494e54454c2053534420-00000001", false),
            (&named, "wwn", "nvme.8086-50484c4a3031-494e54454c2053534421-00000001", false),
            (&named, "wwn", "nvme.8086-50484c4a3031", false),
        ] {
            assert_eq!(is_alternative(hint, disk, wanted), expected, "{hint} {wanted} {}", disk.wwn);
        }
    }
}
