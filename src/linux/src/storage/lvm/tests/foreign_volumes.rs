//! Volumes of a preserved group that the layout does not contain, and other physical volumes.

use super::*;
use crate::storage::vm_test_disks::fingerprints;

/// Returns the device-mapper names of the group's active volumes.
fn mapped(group: &str) -> Vec<String> {
    let names = ToolCommand::new("dmsetup").args(["info", "-c", "--noheadings", "-o", "name"]).run().unwrap().stdout;
    words::<String>(&names).into_iter().filter(|name| name.starts_with(&format!("{group}-"))).collect()
}

/// The group has volumes of the layout and others. One of the others has a pending merge, and one volume of the layout
/// has a snapshot.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_foreign_volumes_remain_inactive_and_unchanged() {
    // The volumes of the layout are on the first disk, the other volumes on the other disks, which must not change.
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    create_group(&group("vg00", all, "")).unwrap();
    let make = |line: &str| drop(run_lvm("lvcreate", all, words::<String>(line)).unwrap());
    make("--type linear --size 100m --name ours vg00 /dev/vda");
    make("--type linear --size 64m --name both vg00 /dev/vda");
    make("--type raid1 --mirrors 1 --size 100m --name theirs vg00 /dev/vdb /dev/vdc");
    make("--type thin-pool --zero n --size 64m --name pool vg00 /dev/vdb");
    make("--type thin --virtualsize 100m --thinpool vg00/pool --name thin");
    make("--type linear --size 64m --name origin vg00 /dev/vdb");
    make("--snapshot --size 32m --name back vg00/origin /dev/vdc");
    make("--snapshot --size 32m --name copy vg00/both /dev/vdc");
    put("/dev/vg00/ours", 8 << 20, &[7; 4096]);
    put("/dev/vg00/origin", 8 << 20, &[8; 4096]);
    // The merge does not start while the origin is open, but at its next activation.
    let open = File::open("/dev/vg00/origin").unwrap();
    run_lvm("lvconvert", all, words::<String>("--merge vg00/back")).unwrap();
    drop(open);
    deactivate_group("vg00", all).unwrap();
    let before = fingerprints(&all[1..]);

    let mut looked = crate::storage::read_only_assembly::assemble_read_only(all).unwrap();
    looked.unlock_disks().unwrap();
    let found = probe::read_inventory(ProbeDepth::Deep).unwrap();
    let preserved = found.groups.iter().find(|group| group.volumes.iter().any(|volume| volume.name == "ours")).unwrap();
    let mut entangled: Vec<_> = preserved.volumes.iter().filter(|volume| volume.entangled.is_some()).collect();
    entangled.sort_by_key(|volume| &volume.name);
    let names: Vec<&str> = entangled.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["both", "origin"], "{preserved:?}");
    all.iter().for_each(|disk| release_above(disk).unwrap());
    activate_volumes("vg00", &words("ours"), all).unwrap();
    assert_eq!(mapped("vg00"), ["vg00-ours"]);
    assert_eq!(get("/dev/vg00/ours", 8 << 20, 4096), [7; 4096]);
    put("/dev/vg00/ours", 16 << 20, &[9; 4096]);
    std::thread::sleep(Duration::from_secs(2));
    deactivate_group("vg00", all).unwrap();
    verify_unused(all).unwrap();
    assert_eq!(fingerprints(&all[1..]), before);
}

/// The inventory lists a duplicate physical volume as unknown, but not a physical volume without a group or with
/// damaged metadata.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_physical_volumes_missing_from_lvm_reports_are_unknown() {
    let disks = TestDisks::take("vda vdb vdc nvme0n1");
    let [first, second, alone, copy] = disks.all() else { unreachable!() };
    create_group(&group("vg00", &[first.clone(), second.clone()], "")).unwrap();
    run_lvm("pvcreate", std::slice::from_ref(alone), [alone]).unwrap();
    let unknown = || probe::read_inventory(ProbeDepth::Deep).unwrap().unknown;
    assert_eq!(unknown(), []);
    // The metadata on this physical volume is damaged. The metadata on the other physical volume lists it.
    let good = get(second, 0, 1 << 20);
    put(second, 4096, &[0xaa; 8192]);
    assert_eq!(unknown(), []);
    assert_eq!(probe::read_inventory(ProbeDepth::Deep).unwrap().groups[0].physical.len(), 2);
    put(second, 0, &good);
    // lvm selects one of two identical physical volumes.
    put(copy, 0, &get(second, 0, 1 << 20));
    let found = unknown();
    assert!(found.len() == 1 && found[0].devices.len() == 1, "{found:?}");
    assert!([second, copy].iter().any(|device| found[0].devices[0] == **device), "{found:?}");
    signature_wipe::wipe_ends(copy).unwrap();
}
