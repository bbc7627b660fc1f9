//! Migrations that are refused before anything is written.

use super::*;

type Case = (&'static str, fn(&mut Inventory, &mut MigrationOffer, &mut InstallClaim), &'static [&'static str]);

#[test]
fn unsuitable_target_is_refused_before_the_first_write() {
    let cases: [Case; 21] = [
        (
            "another architecture",
            |other, _, _| other.system.architecture = model::architecture::Architecture::Arm64,
            &[
                "moving: the source machine is amd64, but this machine is arm64; migrate the system to a machine with amd64",
            ],
        ),
        (
            "a smaller disk",
            |other, moving, _| {
                other.disks[0].size_bytes = 10_000 * MIB;
                moving.disks[0].size_bytes = 10_000 * MIB;
            },
            &[
                "filesystems[2]: /dev/md/root would have 9.95 GB (",
                "on this machine, on /dev/nvme0n1 (10.5 GB), /dev/nvme1n1 (31.5 GB), but has 20.4 GB (",
            ],
        ),
        (
            "one byte less",
            |_, moving, _| filesystem(moving, "/dev/sdf1").size_bytes += 1,
            &[
                "filesystems[4]: /dev/sdf1 would have 67.1 MB (67108864 bytes) on this machine, on /dev/nvme5n1 (31.5 GB), but has 67.1 MB (67108865 bytes) on the source machine: its content does not fit; choose larger disks",
            ],
        ),
        (
            "larger sectors",
            |other, _, _| other.disks[5].sector_bytes = 4096,
            &[
                "filesystems[4]: /dev/sdf1 would be on /dev/nvme5n1 (31.5 GB), which has sectors of 4096 bytes, but its content was created on the source machine for sectors of 512 bytes; choose disks with sectors of 512 bytes",
            ],
        ),
        (
            "smaller sectors",
            |_, moving, _| {
                moving
                    .carried
                    .as_mut()
                    .unwrap()
                    .filesystems
                    .iter_mut()
                    .for_each(|filesystem| filesystem.sector_bytes = 4096);
            },
            &[
                "filesystems[1]: /dev/md/efi would be on ",
                "but its vfat was created on the source machine for sectors of 4096 bytes",
                "filesystems[4]: /dev/sdf1 would be on /dev/nvme5n1 (31.5 GB), which has sectors of 512 bytes",
            ],
        ),
        (
            "a filesystem that does not come",
            |_, moving, _| {
                moving.carried.as_mut().unwrap().filesystems.retain(|filesystem| filesystem.device != "/dev/vg00/srv")
            },
            &[
                "filesystems[3]: /dev/vg00/srv must have btrfs according to the layout, but the source machine does not have this filesystem",
            ],
        ),
        (
            "one that comes as another",
            |_, moving, _| filesystem(moving, "/dev/vg00/srv").format = FilesystemFormat::Ext4,
            &["filesystems[3]: /dev/vg00/srv must have btrfs according to the layout"],
        ),
        (
            "an id on a disk that stays",
            |other, moving, _| {
                let uuid = filesystem(moving, "/dev/md/efi").uuid.to_lowercase();
                other.disks[6].signatures =
                    vec![DeviceSignature { kind: "vfat".to_owned(), uuid, ..DeviceSignature::default() }];
            },
            &["moving: /dev/md/efi has the id ", "/dev/sda, on a disk that is not wiped, has the same id"],
        ),
        (
            "an array on a disk that stays",
            |other, moving, _| {
                let uuid = moving.carried.as_ref().unwrap().arrays[2].uuid.to_string();
                let kind = "linux_raid_member".to_owned();
                other.disks[6].signatures = vec![DeviceSignature { kind, uuid, ..DeviceSignature::default() }];
            },
            &["moving: /dev/md/data has the id "],
        ),
        (
            "a disk that is not there",
            |other, _, _| drop(other.disks.remove(3)),
            &["disks[3].device: device:/dev/sdd does not exist on given hardware: no disk matches its hints"],
        ),
        (
            "one disk twice",
            |_, moving, _| moving.disks[1].serial = "B0".to_owned(),
            &["disks[1].device: /dev/sdb refers to /dev/nvme0n1, which the layout already lists"],
        ),
        (
            "two disks with one serial",
            |other, _, _| other.disks[6].serial = "B1".to_owned(),
            &["disks[1].device: device:/dev/sdb is ambiguous"],
        ),
        (
            "another size than the control plane has seen",
            |_, moving, _| moving.disks[2].size_bytes += MIB,
            &["disks[2].device: /dev/sdc must be a disk of "],
        ),
        ("a disk without a mapping", |_, moving, _| drop(moving.disks.remove(4)), &["disks[4].device: "]),
        (
            "a disk of the machine that is moved",
            |other, moving, _| {
                let guid = moving.carried.as_ref().unwrap().marker.disks[0].guid.as_ref().unwrap();
                let guid = Uuid::parse_str(guid).ok();
                other.disks[0].table = Some(DiskTable { kind: "gpt".to_owned(), guid, partitions: Vec::new() });
            },
            &["disks[0].device: /dev/nvme0n1 has the partition table of machine m-1, whose system is migrated"],
        ),
        (
            "a disk that both machines reach, without a table",
            |other, moving, _| {
                other.disks[2].wwn = "0x5000".to_owned();
                moving.carried.as_mut().unwrap().marker.disks[4].wwn = "0x5000".to_owned();
            },
            &[
                "disks[2].device: /dev/nvme2n1 has the same wwn 0x5000 as /dev/sde of machine m-1, whose system is migrated: both machines have access to that disk",
            ],
        ),
        (
            "the same by two ways",
            |other, moving, _| {
                for (index, place) in [(2, "pci-1"), (6, "pci-2")] {
                    (other.disks[index].wwn, other.disks[index].by_path) = ("0x5000".to_owned(), place.to_owned());
                }
                moving.carried.as_mut().unwrap().marker.disks[4].wwn = "0x5000".to_owned();
            },
            &["disks[2].device: /dev/nvme2n1 has the same wwn 0x5000 as /dev/sde of machine m-1"],
        ),
        (
            "a disk with all names of one of the machine that is moved",
            |other, moving, _| {
                let there = &mut moving.carried.as_mut().unwrap().marker.disks[4];
                (there.model, there.serial, there.size_bytes) = ("M".to_owned(), "B3".to_owned(), 30_000 * MIB);
                other.disks[3].model = "M".to_owned();
            },
            &["disks[3].device: /dev/nvme3n1 has the same serial number B3, model and size as /dev/sde of machine m-1"],
        ),
        (
            "nothing said yet",
            |_, moving, _| moving.carried = None,
            &["moving: the source machine has not reported its data"],
        ),
        (
            "installed by the word of the control plane",
            |_, _, claim| claim.succeeded = true,
            &["disks: allocation a-1 is installed on this machine"],
        ),
        (
            "another machine's installation",
            |other, _, _| {
                let marker = Some(InstallMarker {
                    machine: "m-9".to_owned(),
                    allocation: "a-9".to_owned(),
                    ..InstallMarker::default()
                });
                other.filesystems =
                    vec![FilesystemContents { device: "/dev/nvme0n1".into(), marker, ..FilesystemContents::default() }];
            },
            &["contains the installation of machine m-9"],
        ),
    ];
    for (name, change, expected) in cases {
        let (layout, mut other, mut moving, _) = planned();
        let mut claim = of_other();
        change(&mut other, &mut moving, &mut claim);
        let reasons = reasons(receive(&layout, &other, moving, claim)).join("\n");
        for expected in expected {
            assert!(reasons.contains(expected), "{name}: {reasons}");
        }
    }
}

/// Filesystems other than vfat have blocks of at least one source sector, so they can be received on a device with
/// smaller sectors.
#[test]
fn a_filesystem_with_blocks_of_its_own_goes_to_smaller_sectors() {
    let (layout, other, mut moving, _) = planned();
    for device in ["/dev/md/root", "/dev/vg00/srv", "/dev/vg00/varlib", "/dev/sdf2"] {
        filesystem(&mut moving, device).sector_bytes = 4096;
    }
    receive(&layout, &other, moving, of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
}

/// Cheap disks of two machines may share identifiers, or have none.
#[test]
fn disks_that_share_less_than_a_disk_are_two() {
    type Sharing = (&'static str, fn(&mut inventory::InventoryDisk, &mut RecordedDisk));
    let cases: [Sharing; 5] = [
        ("no wwn", |here, there| (here.wwn, there.wwn) = (String::new(), String::new())),
        ("no serial number", |_, there| {
            (there.serial, there.size_bytes, there.model) = (String::new(), 30_000 * MIB, "M".to_owned());
        }),
        ("another size", |here, there| (there.serial, there.model) = (here.serial.clone(), "M".to_owned())),
        ("another model", |here, there| {
            (there.serial, there.model, there.size_bytes) = (here.serial.clone(), "N".to_owned(), 30_000 * MIB);
        }),
        ("another wwn", |here, there| (here.wwn, there.wwn) = ("0x5000".to_owned(), "0x5001".to_owned())),
    ];
    for (name, share) in cases {
        let (layout, mut other, mut moving, _) = planned();
        other.disks[3].model = "M".to_owned();
        share(&mut other.disks[3], &mut moving.carried.as_mut().unwrap().marker.disks[3]);
        receive(&layout, &other, moving, of_other()).unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
    }
}

#[test]
fn volumes_of_kubernetes_do_not_come_along() {
    let (layout, other, moving, _) = planned();
    let with = |volumes| {
        let allocation = Allocation { volumes, moving: Some(moving.clone()), ..Allocation::default() };
        receive_with(&layout, &other, allocation, of_other())
    };
    let refused = reasons(with(serde_json::json!([{"kind": "Volume"}])));
    assert!(refused.iter().any(|reason| reason.starts_with("moving: the allocation has Kubernetes volumes")));
    with(serde_json::json!([])).unwrap();
}

#[test]
fn all_reasons_come_at_once() {
    let (layout, mut other, mut moving, _) = planned();
    filesystem(&mut moving, "/dev/sdf1").size_bytes += 1;
    filesystem(&mut moving, "/dev/vg00/srv").format = FilesystemFormat::Ext4;
    other.disks[4].read_only = true;
    assert_eq!(reasons(receive(&layout, &other, moving, of_other())).len(), 3);
}
