//! A report of lvm 2.03.16, recorded, and what becomes of it.

use super::*;
use crate::inventory::Stacked;
use crate::inventory::fake::Tree;

fn recorded() -> Vec<VolumeGroup> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tools/lvm-fullreport.json");
    let report = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let tree = Tree::new();
    let uuid = "LVM-vdIZCU7nZegHkdrmUowKmxsubtAnsbTkLD005Ig2mdPovzOejVSkacdCWF50VIPX\n";
    tree.write("sys/block/dm-3/dm/uuid", uuid);
    tree.write("sys/block/dm-4/dm/uuid", "CRYPT-LUKS2-1\n");
    let inventory = Inventory::default();
    groups(report, &active(&tree.roots().sys), &|path| known_path(&tree.roots(), &inventory, path))
}

#[test]
fn recorded_groups() {
    let groups = recorded();
    let names: Vec<_> =
        groups.iter().map(|group| (group.name.as_str(), group.extent_bytes, group.tags.len())).collect();
    let mib = 1 << 20;
    assert_eq!(names, [("vg0", 4 * mib, 0), ("vg1", 4 * mib, 0), ("vgx", 4 * mib, 0), ("vgx", 4 * mib, 2)]);
    let volumes: Vec<_> = groups[0]
        .volumes
        .iter()
        .map(|it| (it.name.as_str(), it.size_bytes / mib, it.kind.as_str(), it.stripes, it.running.as_deref()))
        .collect();
    let expected = [
        ("lin", 16, "linear", 1, Some("dm-3")),
        ("mir", 8, "raid1", 2, None),
        ("pool", 16, "thin-pool", 1, None),
        ("three", 4, "linear", 1, None),
        // Of two segments.
        ("two", 12, "linear", 1, None),
    ];
    assert_eq!(volumes, expected);
    // One of two is missing.
    let missing = PhysicalVolume {
        device: String::new(),
        uuid: "9lvuKY-aeYf-fXNs-Ptih-vaX1-yks4-g8BbLj".into(),
        size_bytes: 60 * mib,
    };
    assert_eq!((groups[1].physical[0].device.as_str(), &groups[1].physical[1]), ("/dev/vdc", &missing));
    assert_eq!(groups[3].tags, ["t1", "t2"]);
    assert_ne!(groups[2].uuid, groups[3].uuid);
}

#[test]
fn a_device_has_the_path_of_the_inventory_whatever_lvm_prefers() {
    use std::os::unix::fs::MetadataExt;
    let tree = Tree::new();
    // No device node can be made here: /dev/null is one that is there.
    let number = number_text(std::fs::metadata("/dev/null").unwrap().rdev());
    tree.link("dev/md/root", "/dev/null");
    tree.link(&format!("sys/dev/block/{number}"), "../../devices/virtual/block/md127");
    let array = Stacked { name: "md127".into(), device: "/dev/md127".into(), ..Stacked::default() };
    let inventory = Inventory { stacked: vec![array], ..Inventory::default() };
    let path = |path| known_path(&tree.roots(), &inventory, path);
    assert_eq!(path("/dev/md/root"), "/dev/md127");
    assert_eq!(path("/dev/sda1"), "/dev/sda1");
    assert_eq!(path("[unknown]"), "");
}

#[test]
fn machines_without_groups_and_strange_reports() {
    let none = |text: &str| {
        let report: Report = serde_json::from_str(text).unwrap();
        groups(report, &|_, _| None, &|path| path.to_owned()).is_empty()
    };
    assert!(none("{}") && none("{\"report\":[]}") && none("{\"report\":[{\"vg\":[]},{\"pv\":[]}]}"));
}
