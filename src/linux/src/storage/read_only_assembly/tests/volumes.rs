//! Groups and volumes, on arrays and on disks.

use super::*;

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_arrays_groups_and_their_volumes() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("below", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    create("beside", "1", "--metadata=1.2", &["/dev/vda2", "/dev/vdb2"]);
    create("above", "0", "--metadata=1.2", &["/dev/md/below", "/dev/md/beside"]);
    ran("lvm vgcreate -y vg00 /dev/vda3 /dev/md/above");
    ran("lvm lvcreate -y -n root -L 16m vg00 /dev/md/above");
    ran("mkfs.ext4 -q /dev/vg00/root");
    ran("lvm lvcreate -y -n wide -i 2 -L 16m vg00");
    ran("lvm lvcreate -y -n part -L 12m vg00");
    ran("lvm lvcreate -y -n part2 -L 12m vg00");
    create("onvolumes", "1", "--metadata=1.0", &["/dev/vg00/part", "/dev/vg00/part2"]);
    ran("mkfs.ext4 -q /dev/md/onvolumes");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes, Vec::<String>::new());
    let root = seen(&inventory, "/dev/mapper/vg00-root");
    assert_eq!(
        (root.kind, root.signatures[0].kind.as_str(), root.assembled),
        (StackedDeviceKind::Volume, "ext4", true)
    );
    let above = array(&inventory, "above");
    assert_eq!(root.below, [above.running.clone().unwrap()]);
    assert_eq!(inside(&inventory, array(&inventory, "onvolumes")), ["ext4"]);
    let group = &inventory.groups[0];
    let mut devices: Vec<&str> = group.present_devices().map(DevicePath::as_str).collect();
    devices.sort_unstable();
    assert_eq!(devices, [&*format!("/dev/{}", above.running.clone().unwrap()), "/dev/vda3"]);
    assert!(group.volumes.iter().all(|volume| volume.running.is_some()), "{group:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_only_are_volumes_that_write_nothing() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    ran("lvm vgcreate -y --addtag a --addtag b vg00 /dev/vda1 /dev/vdb1 /dev/vda2 /dev/vdb2");
    ran("lvm lvcreate -y -n linear -L 12m vg00");
    ran("mkfs.ext4 -q /dev/vg00/linear");
    ran("lvm lvcreate -y -n striped -i 2 -L 16m vg00");
    ran("lvm lvcreate -y --type raid1 -m 1 -n mirrored -L 12m vg00");
    ran("lvm lvcreate -y --type thin-pool -Zn -n pool -L 16m vg00");
    ran("lvm lvcreate -y -n origin -L 12m vg00");
    ran("lvm lvcreate -y -s -n copy -L 8m vg00/origin");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    let hidden = ["vg00/copy (snapshot)", "vg00/pool (thin-pool)"];
    assert!(notes.len() == 2 && hidden.iter().all(|name| notes.iter().any(|note| note.contains(name))), "{notes:?}");
    let group = &inventory.groups[0];
    assert_eq!((group.tags.len(), group.extent_bytes, group.physical.len()), (2, 4 << 20, 4));
    let mut volumes: Vec<_> =
        group.volumes.iter().map(|it| (it.name.as_str(), it.kind.as_str(), it.stripes, it.running.is_some())).collect();
    volumes.sort_unstable();
    let expected = [
        ("copy", "snapshot", 1, false),
        ("linear", "linear", 1, true),
        ("mirrored", "raid1", 2, true),
        // Readable through a mapping.
        ("origin", "linear", 1, true),
        ("pool", "thin-pool", 1, false),
        ("striped", "striped", 2, true),
    ];
    assert_eq!(volumes, expected);
    assert_eq!(seen(&inventory, "/dev/mapper/vg00-linear").signatures[0].kind, "ext4");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_are_partial_and_equally_named_groups() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    for (part, volume) in [("/dev/vda1", "a"), ("/dev/vdb1", "b")] {
        ran(&format!("lvm vgcreate -y twin {part}"));
        ran(&format!("lvm lvcreate -y -n {volume} -L 12m twin"));
        ran("lvm vgchange -an twin");
        // lvm refuses to create a second group of the same name while the first one is visible.
        if part == "/dev/vda1" {
            ran(&format!("dd if={part} of=/tmp/first bs=1M count=2 status=none"));
            ran(&format!("dd if=/dev/zero of={part} bs=1M count=2 status=none"));
        }
    }
    ran("dd if=/tmp/first of=/dev/vda1 bs=1M count=2 status=none");
    ran("lvm vgcreate -y half /dev/vda2 /dev/vdb2");
    ran("lvm lvcreate -y -n here -L 12m half /dev/vda2");
    ran("lvm lvcreate -y -n gone -i 2 -L 16m half");
    ran("lvm vgchange -an half");
    ran("dd if=/dev/zero of=/dev/vdb2 bs=1M count=2 status=none");
    let (inventory, notes) = looked(&DISKS, &PARTS);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("volume group half: cannot assemble logical volume half/gone (striped)")
            && notes[0].contains("physical volume that is missing"),
        "{notes:?}"
    );
    let names: Vec<&str> = inventory.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["half", "twin", "twin"]);
    let physical = inventory.groups[0].physical.iter();
    let devices: Vec<Option<&str>> =
        physical.map(|physical| physical.device.as_ref().map(DevicePath::as_str)).collect();
    assert_eq!(devices, [Some("/dev/vda2"), None]);
    for device in ["/dev/mapper/twin-a", "/dev/mapper/twin-b", "/dev/mapper/half-here"] {
        assert!(seen(&inventory, device).assembled);
    }
    blank(&DISKS);
}

/// Returns the image in the marker of the only filesystem, and the health of its volume.
fn image_and_health(inventory: &Inventory) -> (String, VolumeHealth) {
    let [filesystem] = &inventory.filesystems[..] else { panic!("{:?}", inventory.filesystems) };
    assert_eq!(filesystem.device, "/dev/mapper/vg00-sa--fe");
    let volume = inventory.groups[0].volumes.iter().find(|volume| volume.name == "sa-fe").unwrap();
    let shown = seen(inventory, filesystem.device.as_str());
    assert_eq!(
        (volume.running.as_ref(), shown.kind, shown.assembled),
        (Some(&shown.name), StackedDeviceKind::Volume, true)
    );
    (filesystem.marker.as_ref().unwrap().image.clone(), volume.health)
}

/// Writes a marker to the filesystem on the active volume.
fn mark(image: &str) {
    ran("mkdir -p /tmp/volume");
    ran("mount -t ext4 /dev/vg00/sa-fe /tmp/volume");
    fs::create_dir_all("/tmp/volume/etc/metal").unwrap();
    let marker = model::install_marker::InstallMarker {
        image: image.to_owned(),
        ..model::install_marker::InstallMarker::default()
    };
    let text = serde_json::to_vec(&marker).unwrap();
    fs::write("/tmp/volume/etc/metal/drophammer.json", text).unwrap();
    ran("umount /tmp/volume");
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_raid1_volumes_show_their_latest_copy() {
    crate::storage::vm_test_disks::assert_test_machine();
    // Only three partitions are used, because hashing takes long.
    const USED: [&str; 3] = ["/dev/vda1", "/dev/vdb1", "/dev/vda2"];
    parts();
    ran("lvm vgcreate -y vg00 /dev/vda1 /dev/vdb1 /dev/vda2");
    ran("lvm lvcreate -y --type raid1 -m 1 -n sa-fe -L 12m vg00 /dev/vda1 /dev/vdb1");
    ran("lvm lvcreate -y -n between -L 4m vg00 /dev/vda1");
    // The first copy now has two segments.
    ran("lvm lvextend -y -L 16m vg00/sa-fe");
    ran("lvm lvremove -y vg00/between");
    ran("mkfs.ext4 -q /dev/vg00/sa-fe");
    mark("one");
    let (inventory, notes) = looked(&DISKS, &USED);
    assert_eq!((image_and_health(&inventory), notes), (("one".to_owned(), VolumeHealth::Whole), vec![]));

    for (part, text) in [("/dev/vda1", "two"), ("/dev/vdb1", "three")] {
        ran(&format!("dd if={part} of=/tmp/part bs=1M count=1 status=none"));
        ran(&format!("dd if=/dev/zero of={part} bs=1M count=1 status=none"));
        let (inventory, notes) = looked(&DISKS, &USED);
        assert_eq!((image_and_health(&inventory).1, notes), (VolumeHealth::Degraded, vec![]), "{part} is missing");
        // The volume is used while this copy is missing. The copy is therefore outdated when it reappears.
        ran("lvm vgchange -ay --activationmode degraded vg00");
        mark(text);
        stop_all();
        ran(&format!("dd if=/tmp/part of={part} bs=1M status=none"));
        let (inventory, notes) = looked(&DISKS, &USED);
        assert_eq!(
            (image_and_health(&inventory), notes),
            ((text.to_owned(), VolumeHealth::Degraded), vec![]),
            "{part} is outdated"
        );
        if part == "/dev/vda1" {
            ran("lvm vgchange -ay vg00");
            ran("lvm lvchange --refresh vg00/sa-fe");
            for _ in 0..100 {
                let status = ToolCommand::new("dmsetup").args(["status", "vg00-sa--fe"]).run().unwrap().stdout;
                if status.contains(" AA 32768/32768 ") {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            let (inventory, _) = looked(&DISKS, &USED);
            assert_eq!(image_and_health(&inventory), (text.to_owned(), VolumeHealth::Whole));
        }
    }
    // The volume is now also used without the other copy, so the copies have diverged.
    ran("dd if=/dev/vda1 of=/tmp/part bs=1M count=1 status=none");
    ran("dd if=/dev/zero of=/dev/vda1 bs=1M count=1 status=none");
    ran("lvm vgchange -ay --activationmode degraded vg00");
    mark("four");
    stop_all();
    ran("dd if=/tmp/part of=/dev/vda1 bs=1M status=none");
    let (inventory, notes) = looked(&DISKS, &USED);
    let volume = &inventory.groups[0].volumes[0];
    assert_eq!((volume.running.as_ref(), volume.health), (None, VolumeHealth::Lost));
    assert!(
        notes.len() == 1 && notes[0].contains("none of the volume's copies is known to be complete and current"),
        "{notes:?}"
    );
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_excludes_volumes_that_were_active_before() {
    crate::storage::vm_test_disks::assert_test_machine();
    blank(GROUP);
    ran("lvm vgcreate -y vg01 /dev/nvme0n1 /dev/nvme1n1");
    ran("lvm lvcreate -y -n swap -L 64m vg01");
    ran("mkswap /dev/vg01/swap");
    let mut assembled = assemble_read_only(&["/dev/nvme0n1".into()]).unwrap();
    assembled.unlock_disks().unwrap();
    tried("swapon /dev/dm-0 || swapon /dev/vg01/swap");
    let mut assembled = assemble_read_only(&[]).unwrap();
    let mut inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assembled.mark_inventory(&mut inventory);
    assembled.unlock_disks().unwrap();
    tried("swapoff -a; swapoff /dev/dm-0");
    let swap = seen(&inventory, "/dev/mapper/vg01-swap");
    assert_eq!((swap.assembled, &swap.uses[..]), (false, &[DeviceUse::Swap][..]));
    blank(GROUP);
}
