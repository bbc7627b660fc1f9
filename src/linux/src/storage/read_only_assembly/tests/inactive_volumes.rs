//! Volumes that LVM does not activate: those that a mapping makes readable, and those that stay opaque.

use super::*;
use model::install_marker::InstallMarker;
use model::inventory::OpaqueObject;

/// Partitions that the tests use; only three, because hashing takes long.
const USED: [&str; 3] = ["/dev/vda1", "/dev/vdb1", "/dev/vda2"];

/// Creates a group whose linear volume `root` has a filesystem with a marker.
fn installed() {
    parts();
    ran("lvm vgcreate -y vg00 /dev/vda1 /dev/vdb1 /dev/vda2");
    ran("lvm lvcreate -y -n root -L 12m vg00");
    ran("mkfs.ext4 -q /dev/vg00/root");
    mark("first");
}

fn mark(image: &str) {
    ran("mkdir -p /tmp/volume");
    ran("mount -t ext4 /dev/vg00/root /tmp/volume");
    fs::create_dir_all("/tmp/volume/etc/metal").unwrap();
    let marker = InstallMarker { image: image.to_owned(), ..InstallMarker::default() };
    fs::write("/tmp/volume/etc/metal/drophammer.json", serde_json::to_vec(&marker).unwrap()).unwrap();
    ran("umount /tmp/volume");
}

/// Returns the images in the markers that were found, and the opaque objects.
fn seen_and_hidden() -> (Vec<String>, Vec<OpaqueObject>) {
    let (inventory, _) = looked(&DISKS, &USED);
    assert!(inventory.explored);
    let markers = inventory.filesystems.iter().filter_map(|found| found.marker.as_ref());
    (markers.map(|marker| marker.image.clone()).collect(), inventory.find_opaque_objects())
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_shows_snapshot_origins_without_a_merge() {
    crate::storage::vm_test_disks::assert_test_machine();
    installed();
    ran("lvm lvcreate -y -s -n before -L 8m vg00/root");
    // The snapshot preserves the earlier content.
    mark("second");
    let (markers, hidden) = seen_and_hidden();
    assert_eq!(markers, ["second"]);
    assert!(hidden.len() == 1 && hidden[0].name == "logical volume vg00/before (snapshot)", "{hidden:?}");

    ran("lvm vgchange -an vg00");
    ran("lvm lvconvert -y --merge vg00/before");
    let (markers, hidden) = seen_and_hidden();
    assert_eq!(markers, [""; 0], "a volume with a pending merge is not readable");
    let root = hidden.iter().find(|object| object.name == "logical volume vg00/root (linear)");
    assert!(root.is_some_and(|object| object.reason.contains("snapshot merge")), "{hidden:?}");
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_shows_linear_volumes_of_closed_groups() {
    crate::storage::vm_test_disks::assert_test_machine();
    for close in ["lvm vgchange -y --systemid elsewhere vg00", "lvm vgexport vg00"] {
        installed();
        ran("lvm lvcreate -y -n wide -i 2 -L 16m vg00");
        ran("lvm lvcreate -y --type thin-pool -Zn -n pool -L 8m vg00");
        ran("lvm vgchange -an vg00");
        ran(close);
        let (markers, hidden) = seen_and_hidden();
        assert_eq!(markers, ["first"], "{close}");
        let [group] = &hidden[..] else { panic!("{close}: {hidden:?}") };
        assert_eq!(group.name, "volume group vg00 (pool, wide)", "{close}");
        assert!(!group.reason.is_empty() && !group.remedy.is_empty(), "{group:?}");
    }
    blank(&DISKS);
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_assembled_reports_volumes_that_it_cannot_show() {
    crate::storage::vm_test_disks::assert_test_machine();
    installed();
    ran("lvm lvcreate -y --type thin -Zn --thinpool pool -n thin -V 16m -L 8m vg00");
    ran("lvm vgextend -y vg00 /dev/vdb2");
    ran("lvm lvcreate -y --type raid5 -i 2 -n five -L 8m vg00");
    let (markers, hidden) = seen_and_hidden();
    assert_eq!(markers, ["first"]);
    let mut names: Vec<&str> = hidden.iter().map(|object| object.name.as_str()).collect();
    names.sort_unstable();
    let expected =
        ["five (raid5)", "pool (thin-pool)", "thin (thin)"].map(|name| format!("logical volume vg00/{name}"));
    assert_eq!(names, expected, "{hidden:?}");
    assert!(hidden.iter().all(|object| !object.untried && object.reason.contains("writes to its disks")), "{hidden:?}");
    blank(&DISKS);
}
