//! Volume groups derived from a recorded report of lvm 2.03.16.

use super::*;
use crate::probe::DeviceRange;
use crate::probe::simulated_machine::FakeMachine;
use model::inventory::{ArrayMember, DiskPartition, DiskTable, HAS_SNAPSHOT, MdArray, StackedDevice};

fn recorded(name: &str, whole: &impl Fn(&LvmReportRow, &str) -> (usize, usize)) -> Vec<LvmVolumeGroup> {
    let path = format!("{}/testdata/tools/{name}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let report = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let tree = FakeMachine::new();
    let uuid = "LVM-vdIZCU7nZegHkdrmUowKmxsubtAnsbTkLD005Ig2mdPovzOejVSkacdCWF50VIPX\n";
    tree.write("sys/block/dm-3/dm/uuid", uuid);
    tree.write("sys/block/dm-4/dm/uuid", "CRYPT-LUKS2-1\n");
    let copy = "drophammer-Wun1cW4tRH9MkRVwTNPZpOzFA3R0eGgcZyecRcP1dqhR6aOdq3fAJ913HsdgnSfX\n";
    tree.write("sys/block/dm-5/dm/uuid", copy);
    let inventory = Inventory::default();
    build_groups(
        report,
        &index_active_volumes(&tree.roots().sys),
        &|path| resolve_device_path(&tree.roots(), &inventory, path),
        whole,
    )
}

#[test]
fn recorded_volume_groups_are_parsed() {
    let groups = recorded("lvm-fullreport.json", &|_, _| (2, 2));
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
        // A volume with two segments.
        ("two", 12, "linear", 1, None),
    ];
    assert_eq!(volumes, expected);
    // One of two physical volumes is missing.
    let missing =
        LvmPhysicalVolume { device: None, uuid: "9lvuKY-aeYf-fXNs-Ptih-vaX1-yks4-g8BbLj".into(), size_bytes: 60 * mib };
    assert_eq!((&groups[1].physical[0].device, &groups[1].physical[1]), (&Some("/dev/vdc".into()), &missing));
    assert_eq!(groups[3].tags, ["t1", "t2"]);
    assert_ne!(groups[2].uuid, groups[3].uuid);
}

#[test]
fn groups_that_lvm_does_not_activate_report_the_reason() {
    let group = |exported: &str, owner: &str| {
        let fields = serde_json::json!({
            "vg_uuid": "u", "vg_name": "vg00", "vg_extent_size": "4194304", "vg_tags": "",
            "vg_exported": exported, "vg_systemid": owner,
        });
        find_closed_reason(&serde_json::from_value(fields).unwrap())
    };
    let why = |exported: &str, owner: &str| group(exported, owner).unwrap();
    assert_eq!(group("", ""), None);
    assert!(why("exported", "").starts_with("the volume group is exported: "));
    assert!(why("exported", "node-1").starts_with("the volume group is exported: "));
    assert!(why("", "node-1").starts_with("the volume group belongs to the host with the system ID \"node-1\""));
    assert!(recorded("lvm-fullreport.json", &|_, _| (2, 2)).iter().all(|group| group.closed.is_none()));
}

#[test]
fn lvm_device_names_resolve_to_inventory_paths() {
    use std::os::unix::fs::MetadataExt;
    let tree = FakeMachine::new();
    // Device nodes cannot be created here, so /dev/null is used.
    let number = format_device_number(std::fs::metadata("/dev/null").unwrap().rdev());
    tree.link("dev/md/root", "/dev/null");
    tree.link(&format!("sys/dev/block/{number}"), "../../devices/virtual/block/md127");
    let array = StackedDevice { name: "md127".into(), device: "/dev/md127".into(), ..StackedDevice::default() };
    let inventory = Inventory { stacked: vec![array], ..Inventory::default() };
    let path = |path| resolve_device_path(&tree.roots(), &inventory, path);
    assert_eq!(path("/dev/md/root"), Some("/dev/md127".into()));
    assert_eq!(path("/dev/sda1"), Some("/dev/sda1".into()));
    assert_eq!(path("[unknown]"), None);
}

#[test]
fn physical_volumes_missing_from_the_report_are_listed() {
    let report = serde_json::json!({"report": [
        {"vg": [{"vg_uuid": "g", "vg_name": "g", "vg_extent_size": "1", "vg_tags": ""}],
         "pv": [{"pv_uuid": "1", "pv_name": "/dev/disk/by-id/a", "pv_size": "1"},
                {"pv_uuid": "2", "pv_name": "[unknown]", "pv_size": "1"},
                {"pv_uuid": "3", "pv_name": "/dev/mapper/v-guest", "pv_size": "1"}]},
        // A physical volume without a group.
        {"pv": [{"pv_uuid": "4", "pv_name": "/dev/sdb", "pv_size": "1"}]},
    ]});
    let report: LvmReport = serde_json::from_value(report).unwrap();
    let number = |path: &str| {
        let nodes = ["/dev/sda1", "/dev/sdb", "/dev/sdc", "/dev/sdd", "/dev/sde", "/dev/dm-1"];
        let path = if path == "/dev/disk/by-id/a" { "/dev/sda1" } else { path };
        let path = if path == "/dev/mapper/v-guest" { "/dev/dm-1" } else { path };
        nodes.iter().position(|node| *node == path).map(|number| number as u64)
    };
    let stacked = |name: &str, device: &str, kind, below: &str| StackedDevice {
        name: name.into(),
        device: device.into(),
        kind,
        below: vec![below.into()],
        ..StackedDevice::default()
    };
    let member = ArrayMember { device: "/dev/sde".into(), ..Default::default() };
    let inventory = Inventory {
        stacked: vec![
            stacked("dm-1", "/dev/mapper/v-guest", StackedDeviceKind::Volume, "sda1"),
            // Another path to the same disk, and a volume on an unknown device.
            stacked("dm-2", "/dev/mapper/multi", StackedDeviceKind::Other, "sdd"),
            stacked("dm-3", "/dev/mapper/v-a", StackedDeviceKind::Volume, "sdc"),
        ],
        arrays: vec![MdArray { members: vec![member], ..Default::default() }],
        ..Inventory::default()
    };
    let unlisted = |devices: &[&str]| {
        let devices: Vec<DevicePath> = devices.iter().map(|device| (*device).into()).collect();
        find_unlisted_volumes(&devices.iter().collect::<Vec<_>>(), &inventory, &report, &number)
    };
    assert_eq!(unlisted(&["/dev/sda1", "/dev/mapper/v-guest", "/dev/sdb", "/dev/sdd", "/dev/sde"]), None);
    let found = unlisted(&["/dev/sda1", "/dev/sdc", "/dev/gone"]).unwrap();
    assert_eq!(found.devices, ["/dev/sdc", "/dev/gone"]);
}

#[test]
fn partitions_inside_volumes_are_excluded() {
    let part = |device: &str| DiskPartition { device: device.into(), ..Default::default() };
    let stacked = |device: &str, kind, parts: &[&str]| StackedDevice {
        device: device.into(),
        kind,
        table: Some(DiskTable { partitions: parts.iter().map(|device| part(device)).collect(), ..Default::default() }),
        ..StackedDevice::default()
    };
    let inventory = Inventory {
        stacked: vec![
            stacked(
                "/dev/mapper/v-guest",
                StackedDeviceKind::Volume,
                &["/dev/mapper/v-guest1", "/dev/mapper/v-guest2"],
            ),
            stacked("/dev/mapper/v-guest2", StackedDeviceKind::Other, &[]),
            stacked("/dev/md127", StackedDeviceKind::Array, &["/dev/md127p1"]),
        ],
        ..Inventory::default()
    };
    let devices = ["/dev/mapper/v-guest", "/dev/mapper/v-guest1", "/dev/mapper/v-guest2", "/dev/md127p1", "/dev/sda1"];
    let inside = inventory.partitions_inside_volumes();
    assert_eq!(devices.map(|device| inside.contains(&DevicePath::from(device))), [false, true, false, false, false]);
}

#[test]
fn report_of_thousands_of_volumes_is_parsed() {
    let row = |number: usize| serde_json::json!({"lv_uuid": format!("{number:038}"), "lv_name": format!("v{number}"), "lv_size": "4194304", "origin": "", "lv_health_status": ""});
    let segment = |number: usize| serde_json::json!({"lv_uuid": format!("{number:038}"), "segtype": "linear", "stripes": "1", "seg_start_pe": "0", "seg_size_pe": "1", "devices": "/dev/sda(0)"});
    let (volumes, segments): (Vec<_>, Vec<_>) = (0..6000).map(|number| (row(number), segment(number))).unzip();
    let group = serde_json::json!([{"vg_uuid": "g", "vg_name": "g", "vg_extent_size": "4194304", "vg_tags": ""}]);
    let text =
        serde_json::to_string_pretty(&serde_json::json!({"report": [{"vg": group, "lv": volumes, "seg": segments}]}))
            .unwrap();
    assert!(text.len() > 2 << 20, "{}", text.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let report = run_report(ToolCommand::new("cat").arg(file.path())).unwrap();
    assert_eq!(build_groups(report, &|_, _| None, &|path| Some(path.into()), &|_, _| (0, 0))[0].volumes.len(), 6000);
    let error = |command: ToolCommand| run_report(command).unwrap_err();
    assert!(
        error(ToolCommand::new("sh").args(["-c", "echo bad disk >&2; exit 5"])).ends_with("exited with 5: bad disk")
    );
    assert!(error(ToolCommand::new("echo").arg("{\"report\": [")).starts_with("cannot parse the report of lvm: "));
    assert!(
        error(ToolCommand::new("sleep").arg("9").deadline(Duration::from_millis(10))).contains("did not end within")
    );
}

#[test]
fn empty_lvm_reports_yield_no_groups() {
    let none = |text: &str| {
        let report: LvmReport = serde_json::from_str(text).unwrap();
        build_groups(report, &|_, _| None, &|path| Some(path.into()), &|_, _| (0, 0)).is_empty()
    };
    assert!(none("{}") && none("{\"report\":[]}") && none("{\"report\":[{\"vg\":[]},{\"pv\":[]}]}"));
}

#[test]
fn recorded_group_with_missing_physical_volume_is_parsed() {
    let whole = |_: &LvmReportRow, name: &str| match name {
        "safe" => (1, 2),
        _ => (0, 2),
    };
    let groups = recorded("lvm-fullreport-partial.json", &whole);
    let volumes: Vec<_> = groups[0]
        .volumes
        .iter()
        .map(|it| (it.name.as_str(), it.kind.as_str(), it.health, it.running.as_deref()))
        .collect();
    let expected = [
        ("five", "raid5", VolumeHealth::Degraded, None),
        ("other", "raid1", VolumeHealth::Lost, None),
        ("pad", "linear", VolumeHealth::Whole, None),
        ("pad2", "linear", VolumeHealth::Whole, None),
        // A copy of this volume is mapped read-only.
        ("safe", "raid1", VolumeHealth::Degraded, Some("dm-5")),
    ];
    assert_eq!(volumes, expected);
}

#[test]
fn volume_health_depends_on_missing_images() {
    let row = |kind: &str, status: &str, missing: usize| {
        let volume = |name: String, status: &str| serde_json::json!({"lv_uuid": name, "lv_name": name, "lv_size": "1", "lv_health_status": status});
        let images =
            (0..4).map(|number| volume(format!("[v_rimage_{number}]"), if number < missing { "partial" } else { "" }));
        let volumes: Vec<_> = std::iter::once(volume("v".into(), status)).chain(images).collect();
        let segments = serde_json::json!([{"lv_uuid": "v", "segtype": kind, "stripes": "4"}]);
        let group = serde_json::json!([{"vg_uuid": "g", "vg_name": "g", "vg_extent_size": "1", "vg_tags": ""}]);
        let report = serde_json::json!({"report": [{"vg": group, "lv": volumes, "seg": segments}]});
        let report = serde_json::from_value(report).unwrap();
        build_groups(report, &|_, _| None, &|path| Some(path.into()), &|_, _| (2, 2)).remove(0).volumes[0].health
    };
    for (kind, status, missing, expected) in [
        ("linear", "", 0, VolumeHealth::Whole),
        ("linear", "partial", 0, VolumeHealth::Lost),
        ("striped", "partial", 0, VolumeHealth::Lost),
        ("thin-pool", "partial", 0, VolumeHealth::Lost),
        ("raid0", "partial", 1, VolumeHealth::Lost),
        ("raid5", "partial", 1, VolumeHealth::Degraded),
        ("raid5", "partial", 2, VolumeHealth::Lost),
        ("raid5", "refresh needed", 0, VolumeHealth::Degraded),
        ("raid6", "partial", 2, VolumeHealth::Degraded),
        ("raid6", "partial", 3, VolumeHealth::Lost),
        ("raid10", "partial", 1, VolumeHealth::Degraded),
        ("raid10", "partial", 2, VolumeHealth::Lost),
    ] {
        assert_eq!(row(kind, status, missing), expected, "{kind} {status} {missing}");
    }
}

#[test]
fn entangled_volumes_are_recognized() {
    let volume = |attr: &str, role: &str, locked: &str| {
        let volume = serde_json::json!({"lv_uuid": "v", "lv_name": "v", "lv_size": "1", "lv_attr": attr, "lv_role": role, "lv_allocation_locked": locked});
        find_entanglement(&serde_json::from_value(volume).unwrap())
    };
    const MERGE: &str = "is part of a snapshot merge, and LVM would continue the merge if the volume was activated";
    const MOVE: &str = "is being moved, and LVM would continue the move if the volume was activated";
    for (attr, role, locked, expected) in [
        ("", "", "", None),
        ("-wi-------", "public", "", None),
        ("swi---s---", "public,snapshot,thicksnapshot", "", None),
        ("owi---s---", "public,origin,thickorigin,multithickorigin", "", Some(HAS_SNAPSHOT)),
        // Report that was recorded before drophammer requested the attributes.
        ("", "public,origin,thickorigin,multithickorigin", "", Some(HAS_SNAPSHOT)),
        ("Owi---s---", "public,origin,thickorigin", "", Some(MERGE)),
        ("Swi---s---", "public,snapshot,thicksnapshot", "", Some(MERGE)),
        ("-wI-------", "public", "allocation locked", Some(MOVE)),
        ("owI---s---", "public,origin,thickorigin", "allocation locked", Some(MOVE)),
    ] {
        assert_eq!(volume(attr, role, locked), expected, "{attr} {role} {locked}");
    }
}

#[test]
fn copies_of_recorded_volumes_are_located() {
    let path = format!("{}/testdata/tools/lvm-fullreport-partial.json", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let report: LvmReport = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let row = &report.report[0];
    const EXTENT: u64 = 4 << 20;
    let piece = |device: &str, first: u64, count: u64| DeviceRange {
        device: device.into(),
        start_bytes: (1 << 20) + first * EXTENT,
        size_bytes: count * EXTENT,
    };
    let found =
        |name: &str| lvm_raid1_copies::find_copies(row, name).into_iter().map(|leg| leg.data).collect::<Vec<_>>();
    // The first copy has two segments, and the second is on a missing device.
    assert_eq!(found("safe"), [Some(vec![piece("/dev/vda", 3, 3), piece("/dev/vda", 8, 2)]), None]);
    assert_eq!(found("other"), [None, Some(vec![piece("/dev/vdc", 1, 3)])]);
    assert_eq!(found("no-such"), []);
}

/// Report of lvm 2.03.16 on three physical volumes, of which one is not allocatable and one is fragmented.
#[test]
fn limits_and_free_space_of_a_group_are_parsed() {
    let report = |max_lv: &str, permissions: &str| {
        let physical = |uuid: &str, allocatable: &str| serde_json::json!({"pv_uuid": uuid, "pv_name": format!("/dev/{uuid}"), "pv_size": "1", "pv_allocatable": allocatable});
        let segment = |uuid: &str, size: &str, kind: &str| serde_json::json!({"pv_uuid": uuid, "pvseg_start": "0", "pvseg_size": size, "segtype": kind});
        let report = serde_json::json!({"report": [{
            "vg": [{"vg_uuid": "g", "vg_name": "g", "vg_extent_size": "4194304", "vg_tags": "", "vg_free": "301989888",
                    "vg_permissions": permissions, "vg_allocation_policy": "contiguous", "max_lv": max_lv, "lv_count": "2"}],
            "pv": [physical("sda", "allocatable"), physical("sdb", ""), physical("sdc", "allocatable")],
            "pvseg": [segment("sda", "2", "free"), segment("sda", "5", "linear"), segment("sda", "3", "free"),
                      segment("sdb", "24", "free"), segment("sdc", "24", "linear")],
        }]});
        let report = serde_json::from_value(report).unwrap();
        build_groups(report, &|_, _| None, &|path| Some(path.into()), &|_, _| (2, 2)).remove(0).allocation.unwrap()
    };
    let found = report("3", "writeable");
    assert_eq!((found.policy.as_str(), found.max_volumes, found.volumes, found.read_only), ("contiguous", 3, 2, false));
    let mib = 1 << 20;
    let free: Vec<(&str, bool, u64, u64)> = found
        .free
        .iter()
        .map(|free| (free.physical.as_str(), free.is_allocatable, free.bytes / mib, free.largest_bytes / mib))
        .collect();
    assert_eq!(free, [("sda", true, 20, 12), ("sdb", false, 96, 96), ("sdc", true, 0, 0)]);
    assert!(report("0", "read-only").read_only);
    // Older reports do not contain the allocation.
    assert!(recorded("lvm-fullreport.json", &|_, _| (2, 2)).iter().all(|group| group.allocation.is_none()));
}

#[test]
fn groups_shared_with_other_hosts_are_recognized() {
    for (lock, clustered, is_shared) in
        [("", "", false), ("none", "", false), ("sanlock", "", true), ("dlm", "", true), ("", "clustered", true)]
    {
        let fields = serde_json::json!({
            "vg_uuid": "u", "vg_name": "vg00", "vg_extent_size": "4194304", "vg_tags": "",
            "vg_lock_type": lock, "vg_clustered": clustered,
        });
        let why = find_closed_reason(&serde_json::from_value(fields).unwrap());
        assert_eq!(
            LvmVolumeGroup { closed: why, ..LvmVolumeGroup::default() }.is_shared(),
            is_shared,
            "{lock} {clustered}"
        );
    }
}

#[test]
fn only_thick_snapshots_affect_their_origin() {
    let groups = recorded("lvm-fullreport-thin.json", &|_, _| (2, 2));
    let [group] = groups.as_slice() else { panic!("{groups:?}") };
    let found: Vec<(&str, &str, bool)> = group
        .volumes
        .iter()
        .map(|volume| (volume.name.as_str(), volume.kind.as_str(), volume.entangled.is_some()))
        .collect();
    let expected = [
        ("data", "thin-pool", false),
        ("disk", "cache", false),
        ("iso", "linear", true),
        ("iso-before", "snapshot", false),
        ("root", "linear", false),
        ("snap_vm-100-disk-0_before", "thin", false),
        ("swap", "linear", false),
        ("vm-100-disk-0", "thin", false),
    ];
    assert_eq!(found, expected);
    assert_eq!(group.hidden.len(), 7);
}
