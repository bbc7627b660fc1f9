//! Tests with recorded inventories.

use super::*;
use crate::architecture::Architecture;
use std::path::Path;

/// Recorded inventories are parsed and serialized without loss, so that plans can be made from them on a workstation.
#[test]
fn recorded_inventories_are_parsed_without_loss() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/inventories");
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.collect();
    files.sort_unstable();
    let names = [
        "five-sata",
        "installed-default",
        "mirror-1.0-group",
        "nvme-sata",
        "orphans",
        "raid-lvm",
        "sata-1",
        "twin-groups",
    ];
    assert_eq!(files, names.map(|name| format!("{name}.json")));
    for file in files {
        let text = std::fs::read_to_string(dir.join(&file)).unwrap();
        let inventory: Inventory = serde_json::from_str(&text).unwrap();
        assert!(inventory.memory_bytes > 0 && !inventory.cpus.is_empty() && !inventory.nics.is_empty(), "{file}");
        assert!(!inventory.disks.is_empty(), "{file}");
        for disk in &inventory.disks {
            assert!(disk.size_bytes > 0 && disk.size_bytes % u64::from(disk.sector_bytes) == 0, "{file}");
            assert_eq!(disk.device, format!("/dev/{}", disk.name), "{file}");
            for partition in disk.table.iter().flat_map(|table| &table.partitions) {
                assert!(partition.size_bytes > 0, "{file}");
                assert!(partition.start_bytes + partition.size_bytes <= disk.size_bytes, "{file}");
            }
        }
        // Serialization returns all fields of the file, so the types contain all of them.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&inventory).unwrap(), value, "{file}");
    }
}

/// Inventories of earlier versions contain no architecture: they are those of amd64 machines.
#[test]
fn only_the_architecture_of_other_machines_is_serialized() {
    let mut system = SystemInfo::default();
    let value = serde_json::to_value(&system).unwrap();
    assert_eq!(value.get("architecture"), None);
    assert_eq!(serde_json::from_value::<SystemInfo>(value).unwrap().architecture, Architecture::Amd64);
    system.architecture = Architecture::Arm64;
    let value = serde_json::to_value(&system).unwrap();
    assert_eq!(value["architecture"], "arm64");
    assert_eq!(serde_json::from_value::<SystemInfo>(value).unwrap(), system);
}

#[test]
fn disk_is_found_by_all_its_names() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/inventories/nvme-sata.json");
    let mut inventory: Inventory = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let found = |inventory: &Inventory, name: &str| inventory.find_disk(name).map(|disk| disk.name.clone());
    let names = [
        ("/dev/sda", Some("sda")),
        ("/dev/disk/by-path/pci-0000:00:1f.2-ata-1", Some("sda")),
        ("/dev/disk/by-id/ata-QEMU_HARDDISK_QM00001", Some("sda")),
        ("/dev/disk/by-id/nvme-eui.5254000000000001", Some("nvme0n1")),
        ("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_nvme-1", Some("nvme0n1")),
        ("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_nvme-2", None),
        ("sda", None),
        ("", None),
    ];
    for (name, disk) in names {
        assert_eq!(found(&inventory, name).as_deref(), disk, "{name}");
    }
    let twin = InventoryDisk { name: "sdb".into(), device: "/dev/sdb".into(), ..inventory.disks[0].clone() };
    inventory.disks.push(twin);
    assert_eq!(found(&inventory, "/dev/disk/by-id/ata-QEMU_HARDDISK_QM00001"), None, "two have that name");
    assert_eq!(found(&inventory, "/dev/sdb").as_deref(), Some("sdb"));
}

#[test]
fn devices_are_found_by_their_signatures() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/inventories/raid-lvm.json");
    let inventory: Inventory = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(
        inventory.devices_with_signature(&["linux_raid_member"]),
        ["/dev/sda1", "/dev/sda2", "/dev/sdb1", "/dev/sdb2"]
    );
    assert_eq!(inventory.devices_with_signature(&["LVM2_member"]), ["/dev/md127"]);
    let names = ["/dev/mapper/vg00-root", "/dev/md127", "/dev/sda1"]
        .map(|device| inventory.resolve_kernel_name(&device.into()));
    assert_eq!(names, ["dm-0", "md127", "sda1"]);
}
