//! Tests that an inspection that was taken down leaves the machine in its previous state.

use super::*;

/// A machine that waits for an allocation inspects its disks. A later installation on this machine must find the disks
/// as if they had not been inspected.
#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_inspection_is_taken_down_and_repeated() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("below", "1", "--metadata=1.2 --bitmap=internal", &["/dev/vda1", "/dev/vdb1"]);
    ran("lvm vgcreate -y vg00 /dev/vda3 /dev/md/below");
    ran("lvm lvcreate -y -n root -L 16m vg00 /dev/md/below");
    ran("mkfs.ext4 -q /dev/vg00/root");
    ran("lvm lvcreate -y --type raid1 -m 1 -n mirrored -L 8m vg00");
    create("lost", "5", "--metadata=1.2", &["/dev/vda2", "/dev/vdb2", "/dev/vdb3"]);
    stop_all();
    // The third array cannot start with one of three members, but mdadm registers it with the kernel.
    ran("mdadm --zero-superblock /dev/vda2");
    ran("mdadm --zero-superblock /dev/vdb2");
    let before = fingerprints(&PARTS);
    let names: Vec<DevicePath> = DISKS.iter().map(|disk| (*disk).into()).collect();
    for _ in 0..2 {
        let mut assembled = assemble_read_only(&names).unwrap();
        let mut inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
        assembled.mark_inventory(&mut inventory);
        assembled.inspect_locked(&mut inventory).unwrap();
        assert!(inventory.explored && inventory.stacked.iter().all(|stacked| stacked.assembled), "{inventory:?}");
        assert_eq!(inventory.filesystems.len(), 1, "{:?}", inventory.filesystems);
        assert!(names.iter().all(|disk| is_read_only(disk).unwrap()));
        assembled.take_down().unwrap();
        assert_eq!(list_running_devices().unwrap(), [""; 0]);
        assert!(names.iter().all(|disk| !is_read_only(disk).unwrap()));
        assembled.take_down().unwrap();
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(fingerprints(&PARTS), before);
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_inspection_continues_to_run_earlier_devices() {
    crate::storage::vm_test_disks::assert_test_machine();
    parts();
    create("inspected", "1", "--metadata=1.2", &["/dev/vda1", "/dev/vdb1"]);
    stop_all();
    create("running", "1", "--metadata=1.2 --assume-clean", &["/dev/vda2", "/dev/vdb2"]);
    let before = list_running_devices().unwrap();
    let mut assembled = assemble_read_only(&DISKS.map(DevicePath::from)).unwrap();
    assert!(list_running_devices().unwrap().len() > before.len());
    // An open array cannot be stopped.
    let name = array(&probe::read_inventory(ProbeDepth::Deep).unwrap(), "inspected").running.clone().unwrap();
    let held = fs::File::options().read(true).open(name.device_path()).unwrap();
    let error = assembled.take_down().unwrap_err().to_string();
    assert!(error.contains(name.as_str()), "{error}");
    drop(held);
    assembled.take_down().unwrap();
    assert_eq!(list_running_devices().unwrap(), before);
    blank(&DISKS);
}
