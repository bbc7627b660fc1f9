//! Names of disks in `/dev/disk/by-id`, derived in the same way as by udev, which does not run in the ramdisk (systemd,
//! rules.d/60-persistent-storage.rules.in with the programs ata_id and scsi_id).

use super::ata_identity::AtaIdentity;
use model::disk_identifiers::is_placeholder_wwn;
use model::inventory::InventoryDisk;

/// Returns all names of a disk, as paths; empty if the disk has none, or this module does not support its transport.
/// `ata` is the identity of an ATA disk, `None` for other disks. `namespace` is the number of an NVMe namespace, empty
/// for other disks.
pub(super) fn list_by_id_paths(disk: &InventoryDisk, ata: Option<&AtaIdentity>, namespace: &str) -> Vec<String> {
    let names = match disk.transport.as_str() {
        "nvme" => nvme_names(disk, namespace),
        "mmc" if disk.model.is_empty() || disk.serial.is_empty() => Vec::new(),
        "mmc" => {
            vec![format!("mmc-{}_{}", replace_unsafe_characters(&disk.model), replace_unsafe_characters(&disk.serial))]
        }
        "virtio" if !disk.serial.is_empty() => vec![format!("virtio-{}", replace_unsafe_characters(&disk.serial))],
        // USB disks get no names here: udev derives these names from USB descriptors, which this module does not read.
        "usb" => Vec::new(),
        _ if !disk.hctl.is_empty() => scsi_names(disk, ata),
        _ => Vec::new(),
    };
    names.into_iter().map(|name| format!("/dev/disk/by-id/{name}")).collect()
}

/// Returns the names of an NVMe disk that are derived from identifiers of its namespace other than the WWN. Another
/// kernel or firmware version may use one of these identifiers as the WWN instead. `uuid`, `nguid` and `eui` are sysfs
/// attributes; a missing attribute is empty.
pub(super) fn list_other_nvme_paths(wwn: &str, [uuid, nguid, eui]: [&str; 3]) -> Vec<String> {
    let hex = |text: &str| text.chars().filter(char::is_ascii_hexdigit).collect::<String>().to_lowercase();
    let all = [format!("uuid.{}", uuid.trim()), format!("eui.{}", hex(nguid)), format!("eui.{}", hex(eui))];
    let others = all.into_iter().filter(|name| !name.ends_with('.') && name != wwn && !is_placeholder_wwn(name));
    others.map(|name| format!("/dev/disk/by-id/nvme-{name}")).collect()
}

fn nvme_names(disk: &InventoryDisk, namespace: &str) -> Vec<String> {
    let mut names = Vec::new();
    if !disk.wwn.is_empty() {
        names.push(format!("nvme-{}", replace_unsafe_characters(&disk.wwn)));
    }
    if !disk.model.is_empty() && !disk.serial.is_empty() {
        let name =
            format!("nvme-{}_{}", replace_unsafe_characters(&disk.model), replace_unsafe_characters(&disk.serial));
        // Since version 253, systemd also creates a link whose name contains the number of the namespace, so that
        // namespaces have distinct names.
        let numbered = (!namespace.is_empty()).then(|| format!("{name}_{namespace}"));
        names.push(name);
        names.extend(numbered);
    }
    names
}

fn scsi_names(disk: &InventoryDisk, ata: Option<&AtaIdentity>) -> Vec<String> {
    let mut names = Vec::new();
    let wwn = disk.wwn.strip_prefix("0x");
    // udev uses ATA commands for any disk with vendor "ATA", regardless of its controller.
    if disk.vendor == "ATA" {
        let parts = ata.map(|identity| [&identity.model, &identity.serial].map(|text| replace_whitespace(text)));
        names.extend(parts.map(|parts| format!("ata-{}", parts.join("_").trim_end_matches('_'))));
    } else if wwn.is_none() && !disk.wwn.starts_with("eui.") && !disk.serial.is_empty() {
        // In the names of scsi_id, the first digit is the type of the identifier: 0 for a vendor-specific one, 2 for
        // EUI-64, 3 for NAA.
        names.push(format!(
            "scsi-0{}_{}_{}",
            replace_whitespace(&disk.vendor),
            replace_whitespace(&disk.model),
            replace_whitespace(&disk.serial)
        ));
    }
    if let Some(hex) = wwn {
        names.extend([format!("scsi-3{hex}"), format!("wwn-0x{hex}")]);
    }
    if let Some(hex) = disk.wwn.strip_prefix("eui.") {
        names.push(format!("scsi-2{hex}"));
    }
    names
}

/// Replaces unsupported characters by `_` (`udev_replace_chars`).
fn replace_unsafe_characters(text: &str) -> String {
    let good = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii();
    text.chars().map(|c| if good(c) { c } else { '_' }).collect()
}

/// Replaces runs of blanks by `_` (`udev_replace_whitespace`), then other unsupported characters.
fn replace_whitespace(text: &str) -> String {
    replace_unsafe_characters(&text.split_whitespace().collect::<Vec<_>>().join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvme_namespace_has_links_for_its_other_identifiers() {
        let uuid = "3a6e1f10-7c1b-4d8e-9b1a-0123456789ab";
        let nguid = "ace42e00-1a2b-3c4d-5e6f-708192a3b4c5";
        let eui = "00 25 38 5b 01 23 45 67";
        let names = |wwn: &str, ids| list_other_nvme_paths(wwn, ids).join(" ").replace("/dev/disk/by-id/nvme-", "");
        let both = "eui.ace42e001a2b3c4d5e6f708192a3b4c5 eui.0025385b01234567";
        assert_eq!(names(&format!("uuid.{uuid}"), [uuid, nguid, eui]), both);
        assert_eq!(names("eui.ace42e001a2b3c4d5e6f708192a3b4c5", ["", nguid, eui]), "eui.0025385b01234567");
        let zeros = ["00000000-0000-0000-0000-000000000000"; 2];
        assert_eq!(names("eui.0025385b01234567", [zeros[0], zeros[1], eui]), "");
        assert_eq!(names("nvme.1af4-6e-51-1", ["", "", "00 00 00 00 00 00 00 00"]), "");
    }

    type Row = ([&'static str; 6], Option<[&'static str; 2]>, &'static [&'static str]);

    /// Transport, vendor, model, serial number, WWN and namespace; model and serial number according to ATA; expected
    /// names.
    const TABLE: [Row; 15] = [
        (["mmc", "", "DG4064", "0x1a2b3c4d", "", ""], None, &["mmc-DG4064_0x1a2b3c4d"]),
        (["mmc", "", "", "0x1a2b3c4d", "", ""], None, &[]),
        (
            ["sata", "ATA", "Samsung SSD 860 EVO 1TB", "S3Z9NB0K123456", "0x5002538e40a1b2c3", ""],
            Some(["Samsung SSD 860 EVO 1TB", "S3Z9NB0K123456"]),
            &["ata-Samsung_SSD_860_EVO_1TB_S3Z9NB0K123456", "scsi-35002538e40a1b2c3", "wwn-0x5002538e40a1b2c3"],
        ),
        (
            ["sas", "ATA", "WDC WD40EFRX-68N32N0", "WD-WCC7K0123456", "0x50014ee2b1234567", ""],
            Some(["WDC WD40EFRX-68N32N0", "WD-WCC7K0123456"]),
            &["ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0123456", "scsi-350014ee2b1234567", "wwn-0x50014ee2b1234567"],
        ),
        (
            ["sata", "ATA", "QEMU HARDDISK", "QM00001", "", ""],
            Some(["QEMU HARDDISK", "QM00001"]),
            &["ata-QEMU_HARDDISK_QM00001"],
        ),
        (["sata", "ATA", "SATA  DOM", "", "", ""], Some(["SATA  DOM", ""]), &["ata-SATA_DOM"]),
        (
            ["sas", "SEAGATE", "ST8000NM0075", "ZA1B2C3D0000C1234567", "0x5000c500a1b2c3d7", ""],
            None,
            &["scsi-35000c500a1b2c3d7", "wwn-0x5000c500a1b2c3d7"],
        ),
        (
            ["scsi", "DELL", "PERC H730P Mini", "00e1f2", "0x61866da05f1c2b0020d3e4f51a2b3c4d", ""],
            None,
            &["scsi-361866da05f1c2b0020d3e4f51a2b3c4d", "wwn-0x61866da05f1c2b0020d3e4f51a2b3c4d"],
        ),
        (["scsi", "QEMU", "QEMU HARDDISK", "drive-scsi0", "", ""], None, &["scsi-0QEMU_QEMU_HARDDISK_drive-scsi0"]),
        (["scsi", "LIO-ORG", "disk 1", "abc", "eui.0011223344556677", ""], None, &["scsi-20011223344556677"]),
        (
            ["nvme", "", "Samsung SSD 970 EVO Plus 1TB", "S4EWNX0N123456A", "eui.0025385b01234567", "1"],
            None,
            &[
                "nvme-eui.0025385b01234567",
                "nvme-Samsung_SSD_970_EVO_Plus_1TB_S4EWNX0N123456A",
                "nvme-Samsung_SSD_970_EVO_Plus_1TB_S4EWNX0N123456A_1",
            ],
        ),
        (["nvme", "", "QEMU NVMe Ctrl", "nvme-1", "", ""], None, &["nvme-QEMU_NVMe_Ctrl_nvme-1"]),
        (["virtio", "", "", "vol 07/a", "", ""], None, &["virtio-vol_07_a"]),
        (["virtio", "", "", "", "", ""], None, &[]),
        (["usb", "Kingston", "DataTraveler 3.0", "E0D55EA573", "", ""], None, &[]),
    ];

    #[test]
    fn by_id_names_match_those_of_udev() {
        for ([transport, vendor, model, serial, wwn, namespace], ata, expected) in TABLE {
            let [transport, vendor, model, serial, wwn] = [transport, vendor, model, serial, wwn].map(str::to_owned);
            let hctl = if ["nvme", "virtio"].contains(&transport.as_str()) { "" } else { "0:0:0:0" }.to_owned();
            let disk = InventoryDisk { transport, vendor, model, serial, wwn, hctl, ..InventoryDisk::default() };
            let ata = ata.map(|[model, serial]| AtaIdentity { model: model.into(), serial: serial.into() });
            let expected: Vec<String> = expected.iter().map(|name| format!("/dev/disk/by-id/{name}")).collect();
            assert_eq!(list_by_id_paths(&disk, ata.as_ref(), namespace), expected);
        }
    }
}
