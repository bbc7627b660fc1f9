//! Inventories of simulated machines with disks of various types.

use super::*;
use crate::probe::read_inventory_at;
use crate::probe::simulated_machine::{FakeMachine, ran, sfdisk};
use model::inventory::{DeviceSignature, DeviceUse, DiskPartition};

const MIB: u64 = 1 << 20;
const SATA: &str = "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda";
const SAS: &str = "pci0000:16/0000:16:02.0/host1/port-1:0/end_device-1:0/target1:0:0/1:0:0:0/block/sdb";
const NVME: &str = "pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1";
const VIRTIO: &str = "pci0000:00/0000:00:05.0/virtio2/block/vda";

fn disks(tree: &FakeMachine) -> Vec<InventoryDisk> {
    read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap().disks
}

fn names_of(disks: &[InventoryDisk]) -> Vec<&str> {
    disks.iter().map(|disk| disk.name.as_str()).collect()
}

fn sata(tree: &FakeMachine) {
    tree.disk(SATA, "../../../0:0:0:0", 64 * MIB);
    tree.write("sys/devices/pci0000:00/0000:00:1f.2/ata1/ata_port/ata1/port_no", "1\n");
    let device = "sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0";
    tree.write(&format!("{device}/model"), "QEMU HARDDISK   \n");
    tree.write(&format!("{device}/vendor"), "ATA     \n");
    tree.write(&format!("{device}/type"), "0\n");
    tree.write(&format!("{device}/wwid"), "t10.ATA     QEMU HARDDISK                           QM00001 \n");
    tree.write(&format!("{device}/vpd_pg80"), b"\x00\x80\x00\x14             QM00001");
    // ATA swaps the two characters of each word.
    let mut answer = vec![0; 572];
    answer[1] = 0x89;
    answer[60 + 20..60 + 40].copy_from_slice(b"MQ0000 1            ");
    answer[60 + 54..60 + 94].copy_from_slice(b"EQUMH RADDSI Kiwhta l no ganem          ");
    tree.write(&format!("{device}/vpd_pg89"), answer);
}

#[test]
fn sata_disk_is_read() {
    let tree = FakeMachine::new();
    sata(&tree);
    let expected = InventoryDisk {
        name: "sda".into(),
        device: "/dev/sda".into(),
        size_bytes: 64 * MIB,
        sector_bytes: 512,
        model: "QEMU HARDDISK with a long name".into(),
        vendor: "ATA".into(),
        serial: "QM00001".into(),
        rotational: true,
        transport: "sata".into(),
        by_path: "/dev/disk/by-path/pci-0000:00:1f.2-ata-1".into(),
        by_id: vec!["/dev/disk/by-id/ata-QEMU_HARDDISK_with_a_long_name_QM00001".into()],
        hctl: "0:0:0:0".into(),
        blank: true,
        ..InventoryDisk::default()
    };
    assert_eq!(disks(&tree), [expected]);
}

#[test]
fn sas_disk_is_read() {
    let tree = FakeMachine::new();
    tree.disk(SAS, "../../../1:0:0:0", 8 * MIB);
    let port = "sys/devices/pci0000:16/0000:16:02.0/host1/port-1:0";
    tree.write(&format!("{port}/sas_port/port-1:0/num_phys"), "1\n");
    tree.write(&format!("{port}/end_device-1:0/sas_device/end_device-1:0/phy_identifier"), "2\n");
    let device = format!("{port}/end_device-1:0/target1:0:0/1:0:0:0");
    tree.write(&format!("{device}/vendor"), "SEAGATE \n");
    tree.write(&format!("{device}/model"), "ST8000NM001A    \n");
    tree.write(&format!("{device}/wwid"), "naa.5000c500a1b2c3d4\n");
    tree.write(&format!("{device}/vpd_pg80"), b"\x00\x80\x00\x08ZA1B2C3D0000");
    tree.write(&format!("sys/devices/{SAS}/ro"), "1\n");
    let disk = disks(&tree).remove(0);
    assert_eq!((disk.serial.as_str(), disk.wwn.as_str()), ("ZA1B2C3D", "0x5000c500a1b2c3d4"));
    assert_eq!((disk.transport.as_str(), disk.read_only), ("sas", true));
    assert_eq!(disk.by_path, "/dev/disk/by-path/pci-0000:16:02.0-sas-phy2-lun-0");
}

#[test]
fn nvme_disk_with_large_sectors_is_read() {
    let tree = FakeMachine::new();
    tree.disk(NVME, "../../nvme0", 16 * MIB);
    let controller = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0";
    tree.write(&format!("{controller}/model"), "KIOXIA KCD6XLUL3T84                     \n");
    tree.write(&format!("{controller}/serial"), "9150A0AA\n");
    tree.write(&format!("sys/devices/{NVME}/wwid"), "eui.8ce38ee206d0b901\n");
    tree.write(&format!("sys/devices/{NVME}/nsid"), "1\n");
    tree.write(&format!("sys/devices/{NVME}/queue/logical_block_size"), "4096\n");
    tree.write(&format!("sys/devices/{NVME}/queue/rotational"), "0\n");
    let expected = InventoryDisk {
        name: "nvme0n1".into(),
        device: "/dev/nvme0n1".into(),
        size_bytes: 16 * MIB,
        sector_bytes: 4096,
        model: "KIOXIA KCD6XLUL3T84".into(),
        serial: "9150A0AA".into(),
        wwn: "eui.8ce38ee206d0b901".into(),
        transport: "nvme".into(),
        by_path: "/dev/disk/by-path/pci-0000:00:04.0-nvme-1".into(),
        by_id: ["eui.8ce38ee206d0b901", "KIOXIA_KCD6XLUL3T84_9150A0AA", "KIOXIA_KCD6XLUL3T84_9150A0AA_1"]
            .map(|name| format!("/dev/disk/by-id/nvme-{name}"))
            .to_vec(),
        blank: true,
        ..InventoryDisk::default()
    };
    assert_eq!(disks(&tree), [expected]);
}

#[test]
fn virtio_disk_is_read() {
    let tree = FakeMachine::new();
    tree.disk(VIRTIO, "../../../virtio2", 8 * MIB);
    tree.write("sys/devices/pci0000:00/0000:00:05.0/virtio2/vendor", "0x1af4\n");
    tree.write(&format!("sys/devices/{VIRTIO}/serial"), "data-1");
    let disk = disks(&tree).remove(0);
    assert_eq!((disk.serial.as_str(), disk.vendor.as_str(), disk.model.as_str()), ("data-1", "", ""));
    assert_eq!(disk.transport, "virtio");
    assert_eq!(disk.by_path, "/dev/disk/by-path/virtio-pci-0000:00:05.0");
}

#[test]
fn devices_other_than_disks_are_omitted() {
    let tree = FakeMachine::new();
    for name in
        ["loop0", "ram0", "zram0", "dm-0", "md127", "sr0", "fd0", "nbd1", "mmcblk0boot0", "mmcblk0boot1", "mmcblk0gp2"]
            .into_iter()
            .chain(["bcache0", "drbd1", "zd16", "rapiddisk0"])
    {
        tree.disk(&format!("virtual/block/{name}"), "../none", 8 * MIB);
    }
    tree.write("sys/devices/virtual/block/rapiddisk0/slaves/sda", "");
    tree.write("sys/devices/virtual/block/nbd1/size", "0\n");
    tree.disk("pci0000:00/0000:00:04.0/nvme/nvme0/nvme0c0n1", "..", 8 * MIB);
    tree.write("sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0c0n1/hidden", "1\n");
    tree.disk("pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0/block/sdz", "../..", 8 * MIB);
    tree.write("sys/devices/pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0/type", "5\n");
    tree.disk("virtual/block/nbd0", "../none", 8 * MIB);
    assert_eq!(names_of(&disks(&tree)), ["nbd0"]);
}

#[test]
fn bcache_device_is_listed_only_as_a_stacked_device() {
    let tree = FakeMachine::new();
    sata(&tree);
    tree.disk("virtual/block/bcache0", "../none", 64 * MIB);
    tree.write("sys/devices/virtual/block/bcache0/slaves/sda", "");
    tree.write("sys/devices/virtual/block/bcache0/bcache/state", "clean\n");
    tree.write(&format!("sys/devices/{SATA}/holders/bcache0"), "");
    let inventory = read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap();
    assert_eq!(names_of(&inventory.disks), ["sda"]);
    assert_eq!(inventory.disks[0].uses, [DeviceUse::Holder("bcache0".into())]);
    assert_eq!(inventory.stacked.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["bcache0"]);
}

#[test]
fn disks_are_sorted_by_kernel_name() {
    let tree = FakeMachine::new();
    for name in ["nvme10n1", "sdaa", "sdb", "nvme2n1", "sda"] {
        tree.disk(&format!("virtual/block/{name}"), "../none", 8 * MIB);
    }
    assert_eq!(names_of(&disks(&tree)), ["sda", "sdb", "sdaa", "nvme2n1", "nvme10n1"]);
}

#[test]
fn unopenable_disk_is_listed_and_not_blank() {
    let tree = FakeMachine::new();
    sata(&tree);
    std::fs::remove_file(tree.path("dev/sda")).unwrap();
    let disk = disks(&tree).remove(0);
    assert_eq!(disk.unreadable.as_deref(), Some("/dev/sda: No such file or directory"));
    assert_eq!((disk.table, disk.size_bytes), (None, 64 * MIB));
}

#[test]
fn shallow_probe_lists_disks_without_opening_them() {
    let tree = FakeMachine::new();
    sata(&tree);
    tree.write(&format!("sys/devices/{SATA}/queue/discard_max_bytes"), "2147450880\n");
    let [deep] = &disks(&tree)[..] else { panic!() };
    assert_eq!((deep.blank, deep.erase.len()), (true, 1));
    std::fs::remove_file(tree.path("dev/sda")).unwrap();
    let shallow = read_inventory_at(&tree.roots(), ProbeDepth::Shallow).unwrap();
    assert_eq!(shallow.disks, [InventoryDisk { blank: false, erase: vec![], ..deep.clone() }]);
}

#[test]
fn missing_sysfs_is_an_error() {
    let tree = FakeMachine::new();
    std::fs::remove_dir(tree.path("sys/block")).unwrap();
    let error = read_inventory_at(&tree.roots(), ProbeDepth::Deep).unwrap_err().to_string();
    assert!(error.contains("sys/block: No such file"), "{error}");
}

#[test]
fn serial_numbers_of_vital_product_data_are_parsed() {
    let cases: [(&[u8], &str); 6] = [
        (b"\x00\x80\x00\x04 AB ", "AB"),
        (b"\x00\x80\x00\x03ABCDEF", "ABC"),
        (b"\x00\x80\x00\xffABC\x00\x00", "ABC"),
        (b"\x00\x83\x00\x04ABCD", ""),
        (b"\x00\x80\x00", ""),
        (b"", ""),
    ];
    for (page, expected) in cases {
        assert_eq!(parse_unit_serial_number(page), expected, "{page:?}");
    }
}

/// Returns a machine with a SATA disk that has a GPT of two partitions, with an ext4 filesystem in the second one.
fn partitioned() -> FakeMachine {
    let tree = FakeMachine::new();
    sata(&tree);
    let image = tree.path("dev/sda");
    sfdisk(
        &image,
        "label: gpt\nlabel-id: 6B29FC40-CA47-1067-B31D-00DD010662DA\n\
         size=16MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=efi, uuid=0FC63DAF-0000-4772-8E79-3D69D8477DE4\n\
         type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=root\n",
    );
    let uuid = "2f9f0b5e-3d3c-4a84-9b65-6ad8a7f2a1c0";
    let fs = tree.path("fs");
    std::fs::File::create(&fs).unwrap().set_len(32 * MIB).unwrap();
    ran("mkfs.ext4", &["-q", "-L", "root", "-U", uuid, fs.to_str().unwrap()]);
    ran(
        "dd",
        &[
            &format!("if={}", fs.display()),
            &format!("of={}", image.display()),
            "bs=1M",
            "seek=17",
            "conv=notrunc,sparse",
            "status=none",
        ],
    );
    tree
}

/// Adds partition `number` of sda to the simulated sysfs.
fn kernel_has(tree: &FakeMachine, number: u32, start: u64, size: u64) {
    let dir = format!("sys/devices/{SATA}/sda{number}");
    tree.write(&format!("{dir}/partition"), format!("{number}\n"));
    tree.write(&format!("{dir}/start"), format!("{}\n", start / 512));
    tree.write(&format!("{dir}/size"), format!("{}\n", size / 512));
    tree.write(&format!("{dir}/dev"), format!("8:{number}\n"));
}

const MOUNTED: &str = "27 1 8:1 / /boot/efi rw - vfat /dev/sda1 rw\n28 1 8:2 / /mnt rw - ext4 /dev/sda2 rw\n";

#[test]
fn partitions_are_read_with_signatures_and_uses() {
    let tree = partitioned();
    kernel_has(&tree, 1, MIB, 16 * MIB);
    tree.write("proc/self/mountinfo", MOUNTED);
    tree.write(&format!("sys/devices/{SATA}/sda1/holders/md127"), "");
    let disk = disks(&tree).remove(0);
    assert_eq!((disk.unreadable.as_ref(), disk.signatures.len(), disk.uses.len()), (None, 0, 0));
    let table = disk.table.unwrap();
    assert_eq!(table.kind, "gpt");
    assert_eq!(table.guid, Some("6b29fc40-ca47-1067-b31d-00dd010662da".parse().unwrap()));
    let efi = DiskPartition {
        number: 1,
        device: "/dev/sda1".into(),
        start_bytes: MIB,
        size_bytes: 16 * MIB,
        kind: "c12a7328-f81f-11d2-ba4b-00a0c93ec93b".into(),
        guid: Some("0fc63daf-0000-4772-8e79-3d69d8477de4".parse().unwrap()),
        label: "efi".into(),
        signatures: Vec::new(),
        uses: vec![DeviceUse::Mounted("/boot/efi".into()), DeviceUse::Holder("md127".into())],
        blank: false,
    };
    assert_eq!(table.partitions[0], efi);
    let root = &table.partitions[1];
    assert_eq!((root.number, root.start_bytes, root.label.as_str()), (2, 17 * MIB, "root"));
    let ext4 = DeviceSignature {
        kind: "ext4".into(),
        usage: "filesystem".into(),
        label: "root".into(),
        uuid: "2f9f0b5e-3d3c-4a84-9b65-6ad8a7f2a1c0".into(),
    };
    assert_eq!(root.signatures, [ext4]);
}

#[test]
fn partition_known_only_to_kernel_keeps_disk_busy() {
    let tree = partitioned();
    // Partitions that were moved in, or removed from, the table after the kernel read it.
    kernel_has(&tree, 1, 2 * MIB, 16 * MIB);
    kernel_has(&tree, 7, 17 * MIB, 8 * MIB);
    tree.write("proc/self/mountinfo", MOUNTED);
    tree.write("proc/swaps", "Filename Type Size Used Priority\n/dev/sda7 partition 1 0 -2\n");
    let disk = disks(&tree).remove(0);
    assert_eq!(disk.uses, [DeviceUse::Mounted("/boot/efi".into()), DeviceUse::Swap]);
    assert!(disk.table.unwrap().partitions.iter().all(|partition| partition.uses.is_empty()));
}

#[test]
fn partition_is_read_through_its_own_device_node() {
    let tree = partitioned();
    let swap = tree.path("dev/sda1");
    std::fs::File::create(&swap).unwrap().set_len(16 * MIB).unwrap();
    ran("mkswap", &[swap.to_str().unwrap()]);
    let kinds = |tree: &FakeMachine| -> Vec<String> {
        let table = disks(tree).remove(0).table.unwrap();
        table.partitions[0].signatures.iter().map(|signature| signature.kind.clone()).collect()
    };
    assert_eq!(kinds(&tree), Vec::<String>::new());
    kernel_has(&tree, 1, MIB, 16 * MIB);
    assert_eq!(kinds(&tree), ["swap"]);
}

#[test]
fn disk_with_damaged_gpt_is_not_blank() {
    let tree = partitioned();
    let image = std::fs::OpenOptions::new().write(true).open(tree.path("dev/sda")).unwrap();
    use std::os::unix::fs::FileExt;
    image.write_all_at(&[0; 512], 512).unwrap();
    let kind = |tree: &FakeMachine| disks(tree).remove(0).table.map(|table| (table.kind, table.partitions.len()));
    assert_eq!(kind(&tree), Some(("gpt".to_owned(), 2)), "the backup copy is used");
    image.write_all_at(&[0; 512], 64 * MIB - 512).unwrap();
    assert_eq!(kind(&tree), Some(("PMBR".to_owned(), 0)));
}

/// Returns whether the disk is blank, and whether each of its partitions is blank.
fn blank(tree: &FakeMachine) -> (bool, Vec<bool>) {
    let disk = disks(tree).remove(0);
    let partitions = disk.table.iter().flat_map(|table| &table.partitions);
    (disk.blank, partitions.map(|partition| partition.blank).collect())
}

#[test]
fn only_zeroed_and_unused_devices_are_blank() {
    use std::os::unix::fs::FileExt;
    let tree = partitioned();
    assert_eq!(blank(&tree), (false, vec![true, false]), "a table, and ext4 in the second partition");
    let image = std::fs::OpenOptions::new().write(true).open(tree.path("dev/sda")).unwrap();
    image.write_all_at(b"x", 9 * MIB).unwrap();
    assert_eq!(blank(&tree), (false, vec![false, false]), "unrecognized data in the first partition");
    image.write_all_at(&[0], 9 * MIB).unwrap();
    kernel_has(&tree, 1, MIB, 16 * MIB);
    std::fs::File::create(tree.path("dev/sda1")).unwrap().set_len(16 * MIB).unwrap();
    assert_eq!(blank(&tree), (false, vec![true, false]));
    tree.write(&format!("sys/devices/{SATA}/sda1/holders/md127"), "");
    assert_eq!(blank(&tree), (false, vec![false, false]), "the disk has a holder");

    let tree = FakeMachine::new();
    sata(&tree);
    assert_eq!(blank(&tree), (true, vec![]));
    tree.write(&format!("sys/devices/{SATA}/holders/dm-0"), "");
    assert_eq!(blank(&tree), (false, vec![]), "the disk has a holder");
}

#[test]
fn extended_partition_is_not_blank() {
    let tree = FakeMachine::new();
    sata(&tree);
    let script = "label: dos\nstart=2048, size=16MiB, type=5\nstart=6144, size=4MiB, type=83\n";
    sfdisk(&tree.path("dev/sda"), script);
    assert_eq!(blank(&tree), (false, vec![false, true]));
}

#[test]
fn disk_with_unreadable_end_is_not_blank() {
    let tree = FakeMachine::new();
    sata(&tree);
    // libblkid finds no signature, but the end of the device cannot be read.
    tree.write(&format!("sys/devices/{SATA}/size"), format!("{}\n", 80 * MIB / 512));
    let disk = disks(&tree).remove(0);
    assert_eq!((disk.blank, disk.unreadable.as_deref()), (false, Some("/dev/sda: failed to fill whole buffer")));
}

#[test]
fn disk_without_capacity_is_reported_unless_removable() {
    for (scsi_type, removable, is_named) in
        [("0", "0", true), ("0", "1", false), ("5", "0", false), ("13", "0", false), ("", "0", false), ("", "", false)]
    {
        assert_eq!(explain_missing_capacity(scsi_type, removable).is_some(), is_named, "{scsi_type} {removable}");
    }
}
