//! Tests with a directory that simulates efivarfs, and with values in the format of firmware and other systems.

use super::super::simulated_machine::FakeMachine;
use super::*;
use crate::efi::load_option::testing::{PCI, mac_node, option, partition};
use proptest::prelude::*;

const EFIVARS: &str = "sys/firmware/efi/efivars";

fn file(name: &str) -> String {
    format!("{EFIVARS}/{name}-{GLOBAL_VENDOR}")
}

fn write(tree: &FakeMachine, name: &str, value: &[u8]) {
    tree.write(&file(name), [&[7, 0, 0, 0], value].concat());
}

fn node(kind: u8, subtype: u8, data: &[u8]) -> Vec<u8> {
    [&[kind, subtype, u8::try_from(data.len() + 4).unwrap(), 0][..], data].concat()
}

fn target_of(nodes: &[&[u8]]) -> LoadTarget {
    load_target::classify_target(&option(1, "x", nodes))
}

fn file_on_partition(guid: u128) -> LoadOption {
    LoadOption::for_file("debian", partition(guid), r"\EFI\debian\shimx64.efi", "").unwrap()
}

#[test]
fn bios_has_no_variables_and_absent_efivarfs_is_unreadable() {
    let tree = FakeMachine::new();
    assert_eq!(read_firmware_variables(&tree.roots().sys), None);
    tree.write("sys/firmware/efi/fw_platform_size", "64\n");
    for _ in ["absent", "not mounted"] {
        let unreadable = read_firmware_variables(&tree.roots().sys).unwrap().unreadable.unwrap();
        assert!(unreadable.contains("efivarfs is not mounted"), "{unreadable}");
        std::fs::create_dir_all(tree.path(EFIVARS)).unwrap();
    }
    std::fs::remove_dir(tree.path(EFIVARS)).unwrap();
    tree.write(EFIVARS, "");
    let unreadable = read_firmware_variables(&tree.roots().sys).unwrap().unreadable.unwrap();
    assert!(unreadable.contains("Not a directory"), "{unreadable}");
}

#[test]
fn every_variable_that_starts_a_program_is_listed() {
    let tree = FakeMachine::new();
    write(&tree, "BootCurrent", &[3, 0]);
    write(&tree, "BootNext", &[1, 0]);
    write(&tree, "BootOrder", &[3, 0, 1, 0, 9]);
    write(&tree, "Boot0001", &file_on_partition(7).to_bytes());
    write(&tree, "Boot0003", &option(1, "UEFI PXEv4\u{1b}[2J", &[PCI, &mac_node([2, 0, 0, 0, 0, 1])]).to_bytes());
    write(&tree, "Boot00ff", b"firmware reads capital letters alone");
    write(&tree, "Driver0000", &option(1, "driver", &[&node(4, 4, &[b'x', 0, 0, 0])]).to_bytes());
    write(&tree, "SysPrep000A", &[1]);
    tree.write(&file("PlatformRecovery0000"), "");
    tree.write(&format!("{EFIVARS}/OsRecovery0001-{SHIM}"), [0; 4]);
    tree.write(&format!("{EFIVARS}/Boot0004-{SHIM}"), "of another vendor");
    let listed = read_firmware_variables(&tree.roots().sys).unwrap();
    assert_eq!((listed.boot_current, listed.boot_next, &listed.boot_order[..]), (Some(3), Some(1), &[3, 1][..]));
    let options: Vec<(String, &LoadTarget)> =
        listed.load_options.iter().map(|option| (option.variable_name(), &option.target)).collect();
    let expected = [
        ("Boot0001".to_owned(), &LoadTarget::Partition(Uuid::from_u128(7))),
        ("Boot0003".to_owned(), &LoadTarget::Network),
        ("Driver0000".to_owned(), &LoadTarget::Unknown),
        ("SysPrep000A".to_owned(), &LoadTarget::Malformed),
        ("PlatformRecovery0000".to_owned(), &LoadTarget::Malformed),
        ("OsRecovery0001".to_owned(), &LoadTarget::Malformed),
    ];
    assert_eq!(options, expected);
    assert_eq!(listed.load_options[1].description, "UEFI PXEv4[2J");
    assert_eq!(
        listed.load_options[0].digest.as_deref(),
        Some(compute_digest(&file_on_partition(7).to_bytes()).as_str())
    );
    assert_eq!(listed.load_options[4].digest, None);
}

#[test]
fn other_variables_are_listed_by_purpose() {
    let tree = FakeMachine::new();
    write(&tree, "Key0001", b"1");
    write(&tree, "KeyABCDE", b"no number");
    write(&tree, "OsIndications", &[1; 8]);
    for (name, vendor) in [
        ("LoaderEntryOneShot", SYSTEMD_BOOT),
        ("LoaderInfo", SYSTEMD_BOOT),
        ("MokNew", SHIM),
        ("MokListRT", SHIM),
        ("DrophammerReported", DROPHAMMER),
        ("Drophammer\u{202e}x", DROPHAMMER),
    ] {
        tree.write(&format!("{EFIVARS}/{name}-{vendor}"), [7, 0, 0, 0, 9]);
    }
    let listed: Vec<(String, VariablePurpose, usize)> = read_firmware_variables(&tree.roots().sys)
        .unwrap()
        .others
        .into_iter()
        .map(|other| (other.name, other.purpose, other.bytes))
        .collect();
    let expected = [
        ("DrophammerReported", VariablePurpose::Drophammer, 1),
        ("Key0001", VariablePurpose::HotKey, 1),
        ("LoaderEntryOneShot", VariablePurpose::SystemdBoot, 1),
        ("MokListRT", VariablePurpose::ShimKeys, 1),
        ("MokNew", VariablePurpose::ShimRequest, 1),
        ("OsIndications", VariablePurpose::FirmwareRequest, 8),
    ];
    assert_eq!(listed, expected.map(|(name, purpose, bytes)| (name.to_owned(), purpose, bytes)));
}

#[test]
fn load_options_are_classified_by_target() {
    let (nic, hd) = (mac_node([2, 0, 0, 0, 0, 1]), &file_on_partition(7).to_bytes()[20..62]);
    assert_eq!(hd[..4], [4, 1, 42, 0]);
    let mut mbr = hd.to_vec();
    mbr[40..].copy_from_slice(&[1, 1]);
    let mut unknown_signature = hd.to_vec();
    unknown_signature[40..].copy_from_slice(&[2, 0]);
    let (loader, ipv4) = (node(4, 4, &[b'\\', 0, b'a', 0, 0, 0]), node(3, 12, &[0; 23]));
    let mut address = [0; 23];
    address[4] = 192;
    let (uri, of_dhcp) = (node(3, 24, b"http://198.51.100.7/\x1b[31mx"), node(3, 24, b""));
    let (guid, volume, program) =
        (LoadTarget::Partition(Uuid::from_u128(7)), node(4, 7, &[1; 16]), node(4, 6, &[2; 16]));
    for (what, nodes, expected) in [
        ("a file on a partition", &[hd, &loader[..]][..], guid.clone()),
        ("by its full path", &[PCI, &node(3, 18, &[0; 6]), hd, &loader], guid.clone()),
        ("the fallback path of a partition", &[hd], guid),
        ("an MBR", &[&mbr, &loader], LoadTarget::MbrPartition),
        ("a signature of an unknown type", &[&unknown_signature, &loader], LoadTarget::Malformed),
        ("a partition and more", &[hd, &program], LoadTarget::Unknown),
        ("two partitions", &[hd, hd, &loader], LoadTarget::Unknown),
        ("PXE", &[PCI, &nic, &ipv4], LoadTarget::Network),
        ("HTTP", &[PCI, &nic, &ipv4, &of_dhcp], LoadTarget::Network),
        ("a URI", &[PCI, &nic, &ipv4, &uri], LoadTarget::Uri("http://198.51.100.7/[31mx".into())),
        ("a URI before a partition", &[&uri, hd, &loader], LoadTarget::Uri("http://198.51.100.7/[31mx".into())),
        ("a fixed server", &[PCI, &nic, &node(3, 12, &address)], LoadTarget::RemoteAddress),
        ("iSCSI", &[PCI, &nic, &ipv4, &node(3, 19, &[0; 14])], LoadTarget::RemoteAddress),
        ("a name server", &[PCI, &nic, &ipv4, &node(3, 31, &[0; 17]), &of_dhcp], LoadTarget::RemoteAddress),
        ("the firmware's menu", &[&volume, &program], LoadTarget::Firmware),
        ("a program of it and a file", &[&volume, &program, &loader], LoadTarget::Unknown),
        ("BIOS", &[&node(5, 1, &[2, 0, 0, 0, 0])], LoadTarget::Firmware),
        ("a disk", &[PCI, &node(3, 18, &[0; 6])], LoadTarget::Device),
        ("a CD", &[PCI, &node(3, 18, &[0; 6]), &node(4, 2, &[0; 20])], LoadTarget::Device),
        ("a file anywhere", &[&loader], LoadTarget::Unknown),
        ("a file of a disk", &[PCI, &loader], LoadTarget::Unknown),
        ("a vendor's medium", &[&node(4, 3, &[0; 16])], LoadTarget::Unknown),
        ("nothing", &[], LoadTarget::Unknown),
        ("a node of no length", &[&[4, 1, 0, 0]], LoadTarget::Malformed),
    ] {
        assert_eq!(target_of(nodes), expected, "{what}");
    }
}

#[test]
fn number_and_length_of_variables_are_limited() {
    let tree = FakeMachine::new();
    let most = FirmwareVariables::MAXIMUM_LISTED;
    let long = option(1, &"x".repeat(5000), &[&node(3, 24, &[b'y'; 250])]);
    for number in 0..most + 3 {
        write(&tree, &format!("Boot{number:04X}"), &long.to_bytes());
    }
    let listed = read_firmware_variables(&tree.roots().sys).unwrap();
    assert_eq!((listed.load_options.len(), listed.omitted), (most, 3));
    assert!(listed.load_options.iter().all(|option| option.description.len() == MAXIMUM_CHARS));
    assert!(serde_json::to_vec(&listed).unwrap().len() < 1 << 20);
}

proptest! {
    #[test]
    fn any_variable_value_is_listed(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..4)) {
        let tree = FakeMachine::new();
        tree.write(&format!("{EFIVARS}/Timeout-{GLOBAL_VENDOR}"), [7, 0, 0, 0, 5, 0]);
        for (number, value) in values.iter().enumerate() {
            write(&tree, &format!("Boot{number:04X}"), value);
        }
        let listed = read_firmware_variables(&tree.roots().sys).unwrap();
        prop_assert_eq!(listed.load_options.len(), values.len());
        for option in &listed.load_options {
            let text = format!("{}{}{:?}", option.description, option.path, option.arguments);
            prop_assert!(!text.chars().any(char::is_control));
        }
        let json = serde_json::to_vec(&listed).unwrap();
        prop_assert_eq!(serde_json::from_slice::<FirmwareVariables>(&json).unwrap(), listed);
    }
}
