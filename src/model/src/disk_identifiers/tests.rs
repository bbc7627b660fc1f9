//! Strings that are placeholders, similar strings that are not, and alternative spellings of one identifier.

use super::*;

const PLACEHOLDERS: [&str; 43] = [
    "",
    " ",
    "0",
    "000000000000",
    "0000000000000000",
    "0000-0000-0000",
    "............",
    "------",
    "____",
    "*",
    "\u{fffd}\u{fffd}",
    "none",
    "None",
    "NONE ",
    "N/A",
    "n.a.",
    "(null)",
    "unknown",
    "Unknown.",
    "To be filled by O.E.M.",
    "To Be Filled By O.E.M",
    "Default string",
    "Default_string",
    "Not Specified",
    "Serial Number",
    "S/N",
    "XXXXXXXX",
    "xxxx",
    "11111111",
    "FFFFFFFFFFFFFFFF",
    "AAAA",
    "12345",
    "1234567890",
    "123456789012",
    "0123456789ABCDEF",
    "0123456789abcde",
    "1234567890ABCDEF",
    "123456789ABC",
    "abcdefgh",
    "9876543210",
    "ABABABAB",
    "1032547698BADCFE",
    "oNen",
];

const SERIALS: [&str; 30] = [
    "1",
    "A",
    "A0",
    "S1",
    "OS1",
    "OS-1",
    "1234",
    "4321",
    "111",
    "00000001",
    "00000012",
    "0000000000000001",
    "000000001531",
    "DH-sda",
    "DH-vda",
    "QM00001",
    "nvme-1",
    "drive-scsi0",
    "vol 07/a",
    "beaf11",
    "00e1f2",
    "WD-WX11A1234567",
    "WD-WCC7K0123456",
    "S3Z9NB0K123456",
    "S45NNE0M01",
    "PHLJ000000001P0FGN",
    "ZA1B2C3D0000C1234567",
    "20170101AA000001",
    "0025_3858_01B1_1234.",
    "E0D55EA573",
];

const WWN_PLACEHOLDERS: [&str; 18] = [
    "",
    "0x0",
    "0x0000000000000000",
    "naa.0000000000000000",
    "eui.0000000000000000",
    "eui.00000000000000000000000000000000",
    "uuid.00000000-0000-0000-0000-000000000000",
    "0xffffffffffffffff",
    "eui.FFFFFFFFFFFFFFFF",
    "0x5000000000000000",
    "0x5000c50000000000",
    "naa.5002538000000000",
    "eui.0000000000000001",
    "0x0123456789abcdef",
    "0x1111111111111111",
    "none",
    "nvme.8086-30303030303030303030-51454d55-00000001",
    "nvme.8086--51454d55-00000001",
];

const WWNS: [&str; 12] = [
    "0x5",
    "0x5000",
    "0x5000sdb",
    "0x5000000000000001",
    "0x5000c500a1b2c3d7",
    "0x60000000000000000e00000000010001",
    "0x61866da05f1c2b0020d3e4f51a2b3c4d",
    "eui.0025385b01234567",
    "eui.01000000000000005cd2e4a1b2c35251",
    "eui.5254000000000001",
    "uuid.6f0c3b9e-3d57-4c57-8f0e-0c3a5d3f1f11",
    "nvme.8086-50484c4a3030303030303030-51454d55-00000001",
];

#[test]
fn placeholders_identify_no_disk() {
    for text in PLACEHOLDERS {
        assert_eq!(comparable_serial(text), None, "{text:?}");
        assert_eq!(is_placeholder_serial(text), !text.is_empty(), "{text:?}");
    }
    for text in WWN_PLACEHOLDERS {
        assert_eq!(comparable_wwn(text), None, "{text:?}");
    }
}

#[test]
fn identifiers_of_vendors_and_hypervisors_are_comparable() {
    for (index, text) in SERIALS.iter().enumerate() {
        assert!(comparable_serial(text).is_some() && !is_placeholder_serial(text), "{text:?}");
        for other in &SERIALS[..index] {
            assert_eq!(is_same_serial(text, other), Some(false), "{text:?} {other:?}");
        }
    }
    for (index, text) in WWNS.iter().enumerate() {
        assert!(comparable_wwn(text).is_some() && !is_placeholder_wwn(text), "{text:?}");
        for other in &WWNS[..index] {
            let types = nvme_type(text).zip(nvme_type(other));
            let expected = if types.is_some_and(|(one, other)| one != other) { None } else { Some(false) };
            assert_eq!(is_same_wwn(text, other), expected, "{text:?} {other:?}");
        }
    }
}

#[test]
fn spellings_of_one_identifier_match() {
    for (one, other) in [
        ("WD-WCC7K0123456", "  WD-WCC7K0123456 "),
        ("WD-WCC7K0123456", "wd-wcc7k0123456"),
        ("WD-WCC7K0123456", "WD-WCC7K0123456\0"),
        ("WD-WCC7K0123456", "DWW-CCK7103254 6"),
        ("S3Z9NB0K123456", "3S9ZBNK0214365"),
        ("vol 07/a", "vol_07/a"),
    ] {
        assert_eq!(is_same_serial(one, other), Some(true), "{one:?} {other:?}");
        assert_eq!(comparable_serial(one), comparable_serial(other), "{one:?} {other:?}");
    }
    for (one, other) in [
        ("0x5000c500a1b2c3d7", "naa.5000c500a1b2c3d7"),
        ("0x5000c500a1b2c3d7", "5000C500A1B2C3D7"),
        ("0x5000c500a1b2c3d7", "50:00:c5:00:a1:b2:c3:d7"),
        ("0x5000c500a1b2c3d7", "wwn-0x5000c500a1b2c3d7"),
        ("eui.0025385b01234567", "0x0025385B01234567"),
        ("uuid.6f0c3b9e-3d57-4c57-8f0e-0c3a5d3f1f11", "6F0C3B9E-3D57-4C57-8F0E-0C3A5D3F1F11"),
    ] {
        assert_eq!(is_same_wwn(one, other), Some(true), "{one:?} {other:?}");
    }
    // The serial numbers of two disks look like byte-swapped forms of each other, and udev has truncated a WWN.
    assert_eq!(is_same_serial("00000012", "00000021"), Some(false));
    assert_eq!(is_same_serial("ab", "ba"), Some(false));
    assert_eq!(is_same_wwn("0x61866da05f1c2b00", "0x61866da05f1c2b0020d3e4f51a2b3c4d"), None);
    assert_eq!(is_same_serial("S1", "N/A"), None);
    assert_eq!(is_same_wwn("0x5000c500a1b2c3d7", "0x0000000000000000"), None);
}

/// Kernels with different preferences or quirks report different identifiers of the same NVMe namespace.
#[test]
fn wwns_of_different_types_are_not_comparable() {
    let [eui, nguid] = ["eui.0025385b01234567", "eui.01000000000000005cd2e4a1b2c35251"];
    let uuid = "uuid.6f0c3b9e-3d57-4c57-8f0e-0c3a5d3f1f11";
    let fallback = "nvme.144d-53345457-53616d73756e67-00000001";
    for (one, other) in [(eui, nguid), (eui, uuid), (nguid, uuid), (eui, fallback), (uuid, fallback)] {
        assert_eq!(is_same_wwn(one, other), None, "{one} {other}");
        assert_eq!(is_same_wwn(other, one), None, "{other} {one}");
    }
    for (one, other) in [
        (eui, "eui.0025385b01234568"),
        // A WWN of a disk on another bus differs from every identifier of an NVMe namespace.
        (eui, "0x5000c500a1b2c3d7"),
        (fallback, "0x5000c500a1b2c3d7"),
        (nguid, "eui.01000000000000005cd2e4a1b2c35252"),
        (uuid, "uuid.6f0c3b9e-3d57-4c57-8f0e-0c3a5d3f1f12"),
        (fallback, "nvme.144d-53345458-53616d73756e67-00000001"),
        ("0x5000c500a1b2c3d7", "0x61866da05f1c2b0020d3e4f51a2b3c4d"),
    ] {
        assert_eq!(is_same_wwn(one, other), Some(false), "{one} {other}");
    }
}

#[test]
fn placeholder_links_are_recognized() {
    for (name, expected) in [
        ("wwn-0x0000000000000000", true),
        ("scsi-30000000000000000", true),
        ("scsi-20000000000000000", true),
        ("nvme-eui.0000000000000000", true),
        ("ata-Virtual_Disk_000000000000", true),
        ("ata-Bridge_To_be_filled_by_O.E.M.", true),
        ("nvme-Cheap_SSD_0123456789ABCDEF", true),
        ("nvme-Cheap_SSD_0123456789ABCDEF_1", true),
        ("virtio-000000", true),
        ("scsi-0ATA_Disk_N/A", true),
        ("wwn-0x5002538e40a1b2c3", false),
        ("scsi-35002538e40a1b2c3", false),
        ("nvme-eui.0025385b01234567", false),
        ("ata-Samsung_SSD_860_EVO_1TB_S3Z9NB0K123456", false),
        ("ata-SATA_DOM", false),
        ("nvme-QEMU_NVMe_Ctrl_nvme-1_1", false),
        ("nvme-Samsung_SSD_970_EVO_Plus_1TB_S4EWNX0N123456A_1", false),
        ("virtio-vol_07_a", false),
        ("scsi-0QEMU_QEMU_HARDDISK_drive-scsi0", false),
    ] {
        assert_eq!(names_placeholder(&format!("/dev/disk/by-id/{name}")), expected, "{name}");
    }
    for path in ["/dev/sda", "/dev/disk/by-path/pci-0000:00:1f.2-ata-1", "/dev/disk/by-label/0000"] {
        assert!(!names_placeholder(path), "{path}");
    }
}
