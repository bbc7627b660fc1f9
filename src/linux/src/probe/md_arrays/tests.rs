//! Arrays derived from recorded output of mdadm 4.2.

use super::*;
use crate::probe::simulated_machine::FakeMachine;
use model::inventory::OVERLAY;

fn recorded(name: &str) -> MdSuperblock {
    let path = format!("{}/testdata/tools/mdadm-examine-{name}", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    parse_superblock(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn recorded_superblocks_are_parsed() {
    let five = |role, events| MdSuperblock {
        uuid: "762bf437-c40b-9a3e-2881-efa237fa60df".parse().unwrap(),
        name: "b".into(),
        level: "raid5".into(),
        metadata: "1.0".into(),
        raid_devices: 3,
        role,
        events,
        empty: vec![],
        writes_at_start: false,
    };
    assert_eq!(recorded("1.0-active"), five(MemberRole::Active(0), 18));
    assert_eq!(recorded("1.0-spare"), five(MemberRole::Spare, 18));
    assert_eq!(recorded("1.0-ahead"), five(MemberRole::Active(0), 27));
    assert_eq!(recorded("1.0-behind"), five(MemberRole::Active(1), 18));
    let old = MdSuperblock {
        uuid: "fd070462-5a36-3943-0002-fec513a5c7d1".parse().unwrap(),
        name: String::new(),
        level: "raid1".into(),
        metadata: "0.90".into(),
        raid_devices: 2,
        role: MemberRole::Active(0),
        events: 18,
        empty: vec![],
        writes_at_start: false,
    };
    assert_eq!(recorded("0.90"), old);
}

#[test]
fn arrays_written_by_the_kernel_at_start_are_recognized() {
    let cases = [
        ("0x0", "1.2", false),
        // Features: bitmap, bad block log, and RAID 0 layout.
        ("0x1009", "1.2", false),
        ("0x4", "1.2", true),
        ("0x200", "1.2", true),
        ("0x400", "1.2", true),
        ("0x409", "1.2", true),
        ("0x800", "1.2", true),
        ("", "0.90.00", false),
        ("", "0.91.00", true),
        ("nonsense", "", false),
    ];
    for (features, version, expected) in cases {
        assert_eq!(writes_at_start(features, version), expected, "{features} {version}");
    }
    let path = format!("{}/testdata/tools/mdadm-examine-1.0-active", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(path).unwrap().replace("Feature Map : 0x0", "Feature Map : 0x400");
    let (found, _) = examine_members(&[&"/dev/vdc".into(), &"/dev/vdd".into()], &|device| {
        if *device == "/dev/vdc" { Ok(text.clone()) } else { Ok(text.replace("0x400", "0x0")) }
    });
    assert!(group_by_uuid(found)[0].writes_at_start);
}

#[test]
fn array_over_overlays_counts_as_running() {
    let stacked = |name: &str, device: &str, kind, below: &[&str]| StackedDevice {
        name: name.into(),
        device: device.into(),
        kind,
        below: below.iter().map(|name| (*name).into()).collect(),
        ..StackedDevice::default()
    };
    let member = |device: &str| ArrayMember { device: device.into(), role: MemberRole::Active(0) };
    let array = MdArray { members: vec![member("/dev/sda1"), member("/dev/sdb1")], ..MdArray::default() };
    let overlay = |name: &str, below: &str| {
        stacked(name, &format!("/dev/mapper/{}{below}", OVERLAY), StackedDeviceKind::Other, &[below])
    };
    let md = stacked("md127", "/dev/md127", StackedDeviceKind::Array, &["dm-0", "dm-1"]);
    let tree = FakeMachine::new();
    let machine =
        Inventory { stacked: vec![overlay("dm-0", "sda1"), overlay("dm-1", "sdb1"), md], ..Inventory::default() };
    assert_eq!(find_running_array(&tree.roots(), &machine, &array).as_deref(), Some("md127"));
    let other = stacked("dm-0", "/dev/mapper/crypt", StackedDeviceKind::Crypt, &["sda1"]);
    let machine = Inventory { stacked: vec![other, machine.stacked[2].clone()], ..Inventory::default() };
    assert_eq!(find_running_array(&tree.roots(), &machine, &array), None);
}

#[test]
fn firmware_raids_are_containers() {
    let text = "/dev/sda:\n          Magic : Intel Raid ISM Cfg Sig.\n        Version : 1.1.00\n    Orig Family : 8e7d1a4d\n\
                \x20          UUID : 0d0f5a8e:2f2c2c83:1f3a1b4c:5d6e7f80\n   RAID Devices : 1\n\n[Volume0]:\n\
                \x20          UUID : 11111111:2f2c2c83:1f3a1b4c:5d6e7f80\n     RAID Level : 1\n";
    let found = parse_superblock(text).unwrap();
    assert_eq!(found.uuid.to_string(), "0d0f5a8e-2f2c-2c83-1f3a-1b4c5d6e7f80");
    assert_eq!((found.level.as_str(), found.metadata.as_str(), found.role), ("container", "imsm", MemberRole::Spare));
}

#[test]
fn name_of_a_firmware_raid_volume_injects_no_fields() {
    let text = "/dev/sda:\n          Magic : Intel Raid ISM Cfg Sig.\n        Version : 1.1.00\n\
                \x20          UUID : 0d0f5a8e:2f2c2c83:1f3a1b4c:5d6e7f80\n\n[v\nRaid Level : 1\n Device Role : Active device 0\n Events : 9]:\n";
    let found = parse_superblock(text).unwrap();
    assert_eq!(found, container_superblock(found.uuid, "imsm".to_owned()));
}

#[test]
fn array_name_with_line_breaks_injects_no_role() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let superblock: [(u64, &[u8]); 2] =
        [(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0"), (4096 + 32, b"h:d\n  Device Role : spare")];
    for (offset, bytes) in superblock {
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), bytes, offset).unwrap();
    }
    let device = DevicePath::from(file.path().to_str().unwrap());
    let (found, unknown) = examine_members(&[&device], &run_mdadm_examine);
    assert!(found.is_empty(), "{found:?}");
    assert!(unknown[0].reason.contains("h:d\\n  Device Role : spare"), "{}", unknown[0].reason);
}

#[test]
fn text_without_superblock_is_ignored() {
    for text in ["", "/dev/sda:\n   MBR Magic : aa55\nPartition[0] :   4294967295 sectors\n", "UUID : not hex\n"] {
        assert_eq!(parse_superblock(text), None, "{text:?}");
    }
}

#[test]
fn unreadable_members_are_reported_and_others_grouped() {
    let path = format!("{}/testdata/tools/mdadm-examine-1.0-active", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let good = std::fs::read_to_string(path).unwrap();
    let examine = |device: &DevicePath| match device.as_str() {
        "/dev/sda1" | "/dev/sdd1" => Ok(good.clone()),
        "/dev/sdb1" => Err("`mdadm` exited with 1, saying: No md superblock".to_owned()),
        _ => Ok("/dev/sdc1:\n   MBR Magic : aa55\n\n".to_owned()),
    };
    let devices = ["/dev/sda1", "/dev/sdb1", "/dev/sdc1", "/dev/sdd1"].map(DevicePath::from);
    let (found, unknown) = examine_members(&devices.each_ref(), &examine);
    let found: Vec<&str> = found.iter().map(|(device, _)| device.as_str()).collect();
    assert_eq!(found, ["/dev/sda1", "/dev/sdd1"]);
    let unknown: Vec<(String, &str)> = unknown.iter().map(|it| (it.devices.join(" "), it.reason.as_str())).collect();
    let none = "mdadm does not report an array for the member /dev/sdc1: /dev/sdc1: | MBR Magic : aa55";
    let expected =
        [("/dev/sdb1".to_owned(), "`mdadm` exited with 1, saying: No md superblock"), ("/dev/sdc1".to_owned(), none)];
    assert_eq!(unknown, expected);
}

#[test]
fn array_names_and_roles_are_parsed() {
    let names = [
        ("any:root", "root"),
        ("storage-7:1  (local to host storage-7)", "1"),
        ("root", "root"),
        ("", ""),
        ("a:b:c", "b:c"),
    ];
    for (text, name) in names {
        assert_eq!(strip_home_host(text), name);
    }
    let roles = [
        ("Active device 3", MemberRole::Active(3)),
        ("spare", MemberRole::Spare),
        ("Replacement device 1", MemberRole::Spare),
        ("Journal", MemberRole::Spare),
        ("Active device x", MemberRole::Faulty),
        ("Device -1", MemberRole::Faulty),
    ];
    for (text, role) in roles {
        assert_eq!(parse_role_1(text), role, "{text}");
    }
    let lines = [
        ("this     1     254       16        1      active sync   /dev/vdb", Some(MemberRole::Active(1))),
        ("this     2       8       33       -1      spare   /dev/sdc1", Some(MemberRole::Spare)),
        ("this     2       8       33        2      spare   /dev/sdc1", Some(MemberRole::Spare)),
        ("this     1       8       17        1      faulty removed", Some(MemberRole::Faulty)),
        ("   1     1     254       16        1      active sync   /dev/vdb", None),
        ("this", None),
    ];
    for (line, role) in lines {
        assert_eq!(parse_role_090(line), role, "{line}");
    }
}

#[test]
fn members_are_grouped_by_the_latest_superblock() {
    let behind = MdSuperblock { raid_devices: 2, ..recorded("1.0-behind") };
    let found = vec![
        ("/dev/vdd".into(), behind),
        ("/dev/vda".into(), recorded("0.90")),
        ("/dev/vdc".into(), recorded("1.0-ahead")),
        ("/dev/vdf".into(), recorded("1.0-spare")),
    ];
    let arrays = group_by_uuid(found);
    assert_eq!((arrays.len(), arrays[0].raid_devices, arrays[1].members.len()), (2, 3, 1));
    let members: Vec<_> = arrays[0].members.iter().map(|member| (member.device.as_str(), member.role)).collect();
    let expected =
        [("/dev/vdd", MemberRole::Faulty), ("/dev/vdc", MemberRole::Active(0)), ("/dev/vdf", MemberRole::Spare)];
    assert_eq!(members, expected);
}

/// Returns for each member whether it is active. Members are given by slot, event count, and the slots that were empty.
fn counted(members: &[(u32, u64, &[u32])]) -> Vec<bool> {
    let member = |(place, events, empty): &(u32, u64, &[u32])| {
        let superblock = MdSuperblock {
            role: MemberRole::Active(*place),
            events: *events,
            empty: empty.to_vec(),
            ..recorded("1.0-active")
        };
        (format!("/dev/sd{place}").into(), superblock)
    };
    let arrays = group_by_uuid(members.iter().map(member).collect());
    arrays[0].members.iter().map(|member| matches!(member.role, MemberRole::Active(_))).collect()
}

#[test]
fn stale_or_removed_members_are_not_counted() {
    type Case = (&'static [(u32, u64, &'static [u32])], &'static [bool]);
    let cases: [Case; 10] = [
        (&[(0, 18, &[]), (1, 18, &[])], &[true, true]),
        // Only one of the members recorded the stop.
        (&[(0, 19, &[]), (1, 18, &[])], &[true, true]),
        (&[(0, 18, &[]), (1, 16, &[])], &[true, false]),
        (&[(0, 2, &[]), (1, 4, &[0])], &[false, true]),
        (&[(0, 4, &[1]), (1, 3, &[])], &[true, false]),
        (&[(0, 4, &[1]), (1, 4, &[])], &[true, false]),
        // Each member was used without the other.
        (&[(0, 4, &[1]), (1, 4, &[0])], &[false, false]),
        (&[(0, 9, &[1]), (1, 4, &[0])], &[false, false]),
        // Two members were used without the third, and all three without a fourth.
        (&[(0, 9, &[2, 3]), (1, 9, &[2, 3]), (2, 7, &[3])], &[true, true, false]),
        (&[(0, 9, &[2])], &[true]),
    ];
    for (members, expected) in cases {
        assert_eq!(counted(members), expected, "{members:?}");
    }
}

#[test]
fn empty_slots_are_parsed() {
    let state = |text: &str| parse_empty_slots_1(text);
    assert_eq!(state("A. ('A' == active, '.' == missing, 'R' == replacing)"), [1]);
    assert_eq!(state(".ARA. ("), [0, 4]);
    assert_eq!(state(""), Vec::<u32>::new());
    let lines = [
        ("   1     1       0        0        1      faulty removed", Some(1)),
        ("   0     0       0        0        0      removed", Some(0)),
        ("   0     0     254       48        0      active sync   /dev/vdd", None),
        ("this     1     254       64        1      faulty removed", None),
        ("", None),
    ];
    for (line, place) in lines {
        assert_eq!(parse_empty_slot_090(line), place, "{line}");
    }
}

#[test]
fn rebuilding_member_is_a_spare() {
    let path = format!("{}/testdata/tools/mdadm-examine-1.0-active", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(path).unwrap();
    let filling = text.replace("   Device Role", "Recovery Offset : 1024 sectors\n   Device Role");
    assert_eq!(
        (parse_superblock(&text).unwrap().role, parse_superblock(&filling).unwrap().role),
        (MemberRole::Active(0), MemberRole::Spare)
    );
}

#[test]
fn running_array_is_found_by_a_member() {
    let tree = FakeMachine::new();
    tree.write("sys/block/md126/md/metadata_version", "external:/md127/0\n");
    tree.write("sys/block/md127/md/metadata_version", "external:imsm\n");
    tree.write("sys/block/md125/md/metadata_version", "1.2\n");
    let stacked = |name: &str, below: &[&str]| StackedDevice {
        name: name.into(),
        kind: StackedDeviceKind::Array,
        below: below.iter().map(|name| (*name).into()).collect(),
        ..StackedDevice::default()
    };
    let volume = StackedDevice {
        kind: StackedDeviceKind::Volume,
        device: "/dev/mapper/v-a".into(),
        ..stacked("dm-0", &["sdc"])
    };
    let all = [stacked("md125", &["dm-0"]), stacked("md126", &["sda"]), stacked("md127", &["sda"]), volume];
    let inventory = Inventory { stacked: all.to_vec(), ..Inventory::default() };
    let running = |device: &str| {
        let member = ArrayMember { device: device.into(), role: MemberRole::Spare };
        find_running_array(&tree.roots(), &inventory, &MdArray { members: vec![member], ..MdArray::default() })
    };
    assert_eq!(running("/dev/sda").as_deref(), Some("md127"));
    assert_eq!(running("/dev/mapper/v-a").as_deref(), Some("md125"));
    assert_eq!(running("/dev/sdc"), None, "a volume is no array");
    assert_eq!(running("/dev/sdd"), None);
}
