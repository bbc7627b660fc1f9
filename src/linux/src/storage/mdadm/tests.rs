use super::*;
use crate::probe::{self, ProbeDepth};
use crate::storage::teardown::{release_above, verify_unused};
use crate::storage::vm_test_disks::TestDisks;
use crate::storage::{block_device, mkfs};
use model::layout::RaidLevel;
use operations::MakeFilesystem;
use std::os::unix::fs::FileExt;
use std::path::Path;

const UUID: Uuid = Uuid::from_u128(0x0d5c1a2e_7f6b_4c3d_9e8f_a1b2c3d4e5f6);

fn array(
    device: &str,
    level: RaidLevel,
    metadata: &str,
    devices: &[DevicePath],
    spares: u32,
    options: &str,
) -> CreateArray {
    CreateArray {
        device: device.into(),
        level,
        metadata: metadata.to_owned(),
        uuid: UUID,
        devices: ArraySlot::parse_list(devices),
        spares,
        createoptions: options.split_whitespace().map(str::to_owned).collect(),
    }
}

fn words<T: for<'a> From<&'a str>>(text: &str) -> Vec<T> {
    text.split_whitespace().map(T::from).collect()
}

#[test]
fn mdadm_command_lines_contain_metadata_level_and_members() {
    use RaidLevel::{Raid0, Raid1, Raid5, Raid6, Raid10};
    let id = "--uuid=0d5c1a2e:7f6b4c3d:9e8fa1b2:c3d4e5f6";
    let cases = [
        (
            array("/dev/md/root", Raid1, "1.2", &words("/dev/sda1 /dev/sdb1"), 0, ""),
            "/dev/md/root --run --homehost=any --metadata=1.2 --level=1 --raid-devices=2 ID --name=root /dev/sda1 /dev/sdb1",
        ),
        (
            array("/dev/md0", Raid1, "1.0", &words("/dev/sda1 /dev/sdb1"), 0, ""),
            "/dev/md0 --run --homehost=any --metadata=1.0 --level=1 --raid-devices=2 ID --name=0 /dev/sda1 /dev/sdb1",
        ),
        (
            array("/dev/md1", Raid0, "0.90", &words("/dev/sda2 /dev/sdb2"), 0, "--chunk=64"),
            "/dev/md1 --run --homehost=any --metadata=0.90 --level=0 --raid-devices=2 ID --chunk=64 /dev/sda2 /dev/sdb2",
        ),
        (
            array("/dev/md/data", Raid5, "1.2", &words("/dev/sda /dev/sdb /dev/sdc /dev/sdd"), 1, "--assume-clean"),
            "/dev/md/data --run --homehost=any --metadata=1.2 --level=5 --raid-devices=3 --force --spare-devices=1 ID --name=data \
             --assume-clean /dev/sda /dev/sdb /dev/sdc /dev/sdd",
        ),
        (
            array(
                "/dev/md/d",
                Raid6,
                "1.1",
                &words("/dev/a /dev/b /dev/c /dev/d"),
                0,
                "--bitmap=internal --write-mostly",
            ),
            "/dev/md/d --run --homehost=any --metadata=1.1 --level=6 --raid-devices=4 ID --name=d --bitmap=internal \
             --write-mostly /dev/a /dev/b /dev/c /dev/d",
        ),
        (
            array("/dev/md/1", Raid10, "1.2", &words("/dev/md126 /dev/md127"), 0, "--layout=f2"),
            "/dev/md/1 --run --homehost=any --metadata=1.2 --level=10 --raid-devices=2 ID --name=1 --layout=f2 \
             /dev/md126 /dev/md127",
        ),
        (
            array("/dev/md/root", Raid1, "1.2", &words("missing /dev/sdb1"), 0, ""),
            "/dev/md/root --run --homehost=any --metadata=1.2 --level=1 --raid-devices=2 ID --name=root missing /dev/sdb1",
        ),
    ];
    for (array, expected) in cases {
        assert_eq!(build_argv(&array).join(" "), format!("--create {expected}").replace("ID", id));
    }
}

#[test]
fn array_names_lead_to_the_same_udev_path() {
    for (device, expected) in [
        ("/dev/md0", "0"),
        ("/dev/md127", "127"),
        ("/dev/md/root", "root"),
        ("/dev/md/0", "0"),
        ("/dev/md/md0", "md0"),
        ("/dev/mdata", "mdata"),
    ] {
        assert_eq!(array_name(&device.into()), expected, "{device}");
    }
}

const EXPORT: &str = "MD_LEVEL=raid1\nMD_DEVICES=2\nMD_METADATA=1.2\nMD_UUID=0d5c1a2e:7f6b4c3d:9e8fa1b2:c3d4e5f6\n\
                      MD_NAME=any:root\nMD_DEVICE_dev_sda1_ROLE=0\nMD_DEVICE_dev_sda1_DEV=/dev/sda1\n\
                      MD_DEVICE_dev_sdb1_ROLE=spare\nMD_DEVICE_dev_sdb1_DEV=/dev/sdb1\n";

#[test]
fn created_array_is_compared_with_the_plan() {
    let good = array("/dev/md/root", RaidLevel::Raid1, "1.2", &words("/dev/sda1 /dev/sdb1"), 0, "");
    let found = ArrayDetail::parse(EXPORT);
    assert_eq!(found.list_differences(&good), Vec::<String>::new());
    let cases = [
        (CreateArray { level: RaidLevel::Raid10, ..good.clone() }, "level: planned raid10, found raid1"),
        (CreateArray { metadata: "1.0".into(), ..good.clone() }, "metadata: planned 1.0, found 1.2"),
        (CreateArray { spares: 1, ..good.clone() }, "members: planned 1, found 2"),
        (
            CreateArray { uuid: Uuid::nil(), ..good.clone() },
            "UUID: planned 00000000:00000000:00000000:00000000, found 0d5c1a2e:7f6b4c3d:9e8fa1b2:c3d4e5f6",
        ),
        (
            CreateArray { devices: ArraySlot::parse_list(words::<String>("/dev/sda1 missing")), ..good.clone() },
            "devices: planned /dev/sda1, found /dev/sda1 /dev/sdb1",
        ),
        (
            CreateArray { devices: ArraySlot::parse_list(words::<String>("/dev/sda1 /dev/sdc1")), ..good.clone() },
            "devices: planned /dev/sda1 /dev/sdc1, found /dev/sda1 /dev/sdb1",
        ),
    ];
    for (planned, expected) in cases {
        assert_eq!(found.list_differences(&planned), [expected]);
    }
    assert_eq!(ArrayDetail::parse("").list_differences(&good).len(), 5);
}

fn sync_action(device: &DevicePath) -> String {
    let file = block_device::sysfs_path(device).unwrap().join("md/sync_action");
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn write_ones(device: impl AsRef<Path>, offset: u64, length: usize) {
    let file = File::options().write(true).open(device).unwrap();
    file.write_all_at(&vec![1; length], offset).unwrap();
    file.sync_all().unwrap();
}

fn read(device: impl AsRef<Path>, offset: u64, length: usize) -> Vec<u8> {
    let file = File::open(device).unwrap();
    block_device::flush_buffers(&file).unwrap();
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// Creates the array on devices full of ones, writes to it, stops it, assembles it under another name, and reads it.
fn lives(array: &CreateArray) {
    let devices: Vec<DevicePath> = array.present_devices().cloned().collect();
    for device in &devices {
        write_ones(device, 0, 4 << 20);
    }
    create_array(array).unwrap_or_else(|error| panic!("{array:?}: {error}"));
    let device = &array.device;
    let synchronises = array.level != RaidLevel::Raid0;
    assert_eq!(sync_action(device), if synchronises { "frozen" } else { "" }, "{array:?}");
    assert_eq!(read(device, 0, 1 << 20), vec![0; 1 << 20], "the old content shines through: {array:?}");
    write_ones(device, 8 << 20, 1 << 20);
    stop_array(device).unwrap();
    // The kernel removes the node asynchronously (mddev_delayed_delete).
    let gone = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        fs::symlink_metadata(device).is_err()
    });
    assert!(gone, "{device} still exists");
    verify_unused(&devices).unwrap();

    assemble_array(&"/dev/md/other".into(), array.uuid, &devices).unwrap();
    assert_eq!(read("/dev/md/other", 8 << 20, 1 << 20), vec![1; 1 << 20], "{array:?}");
    write_ones("/dev/md/other", 0, 4096);
    // The array already runs, read-only and under another name, as after an inspection.
    run_mdadm(words("--readonly /dev/md/other")).unwrap();
    devices.iter().for_each(|member| release_above(member).unwrap());
    assemble_array(device, array.uuid, &devices).unwrap();
    assert!(fs::symlink_metadata("/dev/md/other").is_err());
    assert_eq!(sync_action(device), if synchronises { "frozen" } else { "" }, "{array:?}");
    write_ones(device, 0, 4096);
    stop_array(device).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_every_level_is_created_stopped_and_assembled() {
    let disks = TestDisks::take("vda vdb vdc vdd vde");
    let all = disks.all();
    use RaidLevel::{Raid0, Raid1, Raid5, Raid6, Raid10};
    lives(&array("/dev/md0", Raid0, "1.2", &all[..2], 0, "--chunk=64"));
    lives(&array("/dev/md/root", Raid1, "1.2", &all[..3], 1, ""));
    lives(&array("/dev/md/data", Raid5, "1.2", &all[..4], 1, ""));
    lives(&array("/dev/md/data", Raid6, "1.2", &all[..5], 1, ""));
    lives(&array("/dev/md10", Raid10, "1.2", &all[..5], 1, "--layout=f2"));
    lives(&array("/dev/md/data", Raid5, "1.2", &all[..3], 0, "--assume-clean --bitmap=internal"));
    lives(&array("/dev/md/data", Raid1, "1.2", &all[..2], 0, "--write-mostly --bitmap=internal"));
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_every_metadata_version_replaces_the_previous_one() {
    let disks = TestDisks::take("vda vdb");
    let devices = &disks.partition(&[200])[0];
    for metadata in ["0.90", "1.0", "1.1", "1.2", "1.0", "0.90", "1.2"] {
        lives(&array("/dev/md/efi", RaidLevel::Raid1, metadata, devices, 0, ""));
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_array_of_arrays_holds_a_filesystem() {
    let disks = TestDisks::take("vda vdb vdc vdd");
    let inner: Vec<CreateArray> = disks
        .all()
        .chunks(2)
        .zip(["/dev/md/left", "/dev/md/right"])
        .map(|(pair, device)| CreateArray {
            uuid: Uuid::new_v4(),
            ..array(device, RaidLevel::Raid1, "1.2", pair, 0, "")
        })
        .collect();
    inner.iter().for_each(|array| create_array(array).unwrap());
    let outer = array("/dev/md/outer", RaidLevel::Raid0, "1.2", &words("/dev/md/left /dev/md/right"), 0, "");
    create_array(&outer).unwrap();
    let uuid = "5a1d7c0e-93b2-4f57-8f0c-6e1a2b3c4d5e";
    for format in [
        model::layout::FilesystemFormat::Xfs,
        model::layout::FilesystemFormat::Ext4,
        model::layout::FilesystemFormat::Btrfs,
    ] {
        let make = MakeFilesystem {
            device: outer.device.clone(),
            format,
            label: None,
            uuid: uuid.into(),
            createoptions: vec![],
        };
        mkfs::make_filesystem(&make).unwrap();
        let link = format!("/dev/disk/by-uuid/{uuid}");
        assert_eq!(fs::canonicalize(link).unwrap(), fs::canonicalize(&outer.device).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = crate::storage::mount::MountStack::new(dir.path());
        let (device, path) = (outer.device.clone(), "/".to_owned());
        mounts
            .mount_filesystem(&operations::MountFilesystem { device, path, format, options: vec![], others: vec![] })
            .unwrap();
        fs::write(dir.path().join("file"), "content").unwrap();
        let error = stop_array(&outer.device).unwrap_err().to_string();
        assert!(error.contains(&format!("is mounted at {}", dir.path().display())), "{error}");
        mounts.unmount_all().unwrap();
    }
    let error = stop_array(&"/dev/md/left".into()).unwrap_err().to_string();
    assert!(error.starts_with("stop /dev/md/left, used by: md"), "{error}");
    stop_array(&outer.device).unwrap();
    inner.iter().for_each(|array| stop_array(&array.device).unwrap());
    verify_unused(disks.all()).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_starts_degraded_but_not_incomplete() {
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    let mirror = array("/dev/md/root", RaidLevel::Raid1, "1.2", &all[..2], 0, "");
    create_array(&mirror).unwrap();
    write_ones("/dev/md/root", 4 << 20, 4096);
    stop_array(&"/dev/md/root".into()).unwrap();
    for member in &all[..2] {
        assemble_array(&"/dev/md/root".into(), UUID, std::slice::from_ref(member)).unwrap();
        assert_eq!(read("/dev/md/root", 4 << 20, 4096), vec![1; 4096]);
        stop_array(&"/dev/md/root".into()).unwrap();
        signature_wipe::wipe_ends(&all[2]).unwrap();
    }
    create_array(&array("/dev/md/data", RaidLevel::Raid0, "1.2", all, 0, "")).unwrap();
    stop_array(&"/dev/md/data".into()).unwrap();
    let error = assemble_array(&"/dev/md/data".into(), UUID, &all[..2]).unwrap_err().to_string();
    assert!(
        error.starts_with("assemble /dev/md/data (0d5c1a2e:7f6b4c3d:9e8fa1b2:c3d4e5f6) of /dev/vda /dev/vdb: "),
        "{error}"
    );
    let error = assemble_array(&"/dev/md/data".into(), Uuid::nil(), all).unwrap_err().to_string();
    assert!(error.contains("mdadm --assemble /dev/md/data"), "{error}");
}

/// Returns the members of an array and their roles according to the inventory.
fn roles(uuid: Uuid) -> Vec<(DevicePath, model::inventory::MemberRole)> {
    let inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    let array = inventory.arrays.into_iter().find(|array| array.uuid == uuid).unwrap();
    array.members.into_iter().map(|member| (member.device, member.role)).collect()
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_is_created_with_a_missing_member() {
    let disks = TestDisks::take("vda vdb vdc vdd");
    let all = disks.all();
    use RaidLevel::{Raid0, Raid1, Raid5, Raid6, Raid10};
    let cases = [
        (Raid1, "missing /dev/vdb"),
        (Raid1, "/dev/vda missing"),
        (Raid5, "/dev/vda missing /dev/vdc"),
        (Raid6, "/dev/vda /dev/vdb missing missing"),
        (Raid10, "/dev/vda /dev/vdb missing /dev/vdd"),
    ];
    for (level, members) in cases {
        for metadata in ["1.2", "0.90"] {
            // A new UUID, because disks used by earlier tests contain other arrays.
            let uuid = Uuid::new_v4();
            let array = CreateArray { uuid, ..array("/dev/md/half", level, metadata, &words(members), 0, "") };
            create_array(&array).unwrap_or_else(|error| panic!("{members}: {error}"));
            assert_eq!(read("/dev/md/half", 0, 1 << 20), vec![0; 1 << 20], "{members}");
            write_ones("/dev/md/half", 4 << 20, 4096);
            stop_array(&"/dev/md/half".into()).unwrap();
            let there: Vec<DevicePath> = array.present_devices().cloned().collect();
            assemble_array(&"/dev/md/half".into(), uuid, &there).unwrap();
            assert_eq!(read("/dev/md/half", 4 << 20, 4096), vec![1; 4096], "{members}");
            stop_array(&"/dev/md/half".into()).unwrap();
            let roles = roles(uuid);
            assert_eq!(roles.len(), there.len());
            for (device, role) in roles {
                let place = array.devices.iter().position(|member| member.device() == Some(&device)).unwrap();
                assert_eq!(role, model::inventory::MemberRole::Active(place as u32), "{members}");
            }
            all.iter().for_each(|disk| signature_wipe::wipe_ends(disk).unwrap());
        }
    }
    let nought = array("/dev/md/nought", Raid0, "1.2", &words("/dev/vda missing"), 0, "");
    assert!(create_array(&nought).unwrap_err().to_string().contains("mdadm --create /dev/md/nought"));
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_stale_or_conflicting_members_are_not_counted() {
    use model::inventory::MemberRole::{Active, Faulty};
    let disks = TestDisks::take("vda vdb");
    let all = disks.all();
    for metadata in ["1.2", "0.90"] {
        let uuid = Uuid::new_v4();
        let root = array("/dev/md/root", RaidLevel::Raid1, metadata, all, 0, "");
        create_array(&CreateArray { uuid, ..root }).unwrap();
        write_ones("/dev/md/root", 4 << 20, 4096);
        stop_array(&"/dev/md/root".into()).unwrap();
        let expected = [("/dev/vda".into(), Active(0)), ("/dev/vdb".into(), Active(1))];
        assert_eq!(roles(uuid), expected, "{metadata}");

        assemble_array(&"/dev/md/root".into(), uuid, &all[..1]).unwrap();
        write_ones("/dev/md/root", 8 << 20, 4096);
        stop_array(&"/dev/md/root".into()).unwrap();
        assert_eq!(roles(uuid)[1].1, Faulty, "{metadata}");
        // Both members are present: the array contains the data written last.
        assemble_array(&"/dev/md/root".into(), uuid, all).unwrap();
        assert_eq!(read("/dev/md/root", 8 << 20, 4096), vec![1; 4096], "{metadata}");
        stop_array(&"/dev/md/root".into()).unwrap();
        assert_eq!((roles(uuid)[0].1, roles(uuid)[1].1), (Active(0), Faulty), "{metadata}");

        assemble_array(&"/dev/md/root".into(), uuid, &all[1..]).unwrap();
        write_ones("/dev/md/root", 12 << 20, 4096);
        stop_array(&"/dev/md/root".into()).unwrap();
        assert_eq!(
            (roles(uuid)[0].1, roles(uuid)[1].1),
            (Faulty, Faulty),
            "each went on without the other: {metadata}"
        );
        let mut looked = crate::storage::read_only_assembly::assemble_read_only(all).unwrap();
        looked.unlock_disks().unwrap();
        assert!(looked.notes[0].contains("none of the array's members"), "{:?}", looked.notes);
        all.iter().for_each(|disk| signature_wipe::wipe_ends(disk).unwrap());
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_raid_refuses_members_in_use_and_invalid_options() {
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    let mirror = array("/dev/md/root", RaidLevel::Raid1, "1.2", &all[..2], 0, "");
    create_array(&mirror).unwrap();
    // A second run after an interruption must first release the members.
    let again = CreateArray { device: "/dev/md/again".into(), ..mirror.clone() };
    let error = create_array(&again).unwrap_err().to_string();
    assert!(error.contains("open /dev/vda for writing, used by: vda is held by md"), "{error}");
    stop_array(&"/dev/md/root".into()).unwrap();
    create_array(&again).unwrap();
    stop_array(&"/dev/md/again".into()).unwrap();

    let bad = array("/dev/md/bad", RaidLevel::Raid1, "1.2", &all[..2], 0, "--no-such-option");
    let error = create_array(&bad).unwrap_err().to_string();
    assert!(error.starts_with("create raid1 /dev/md/bad of /dev/vda /dev/vdb: `mdadm --create /dev/md/bad"), "{error}");
    assert!(error.contains("unrecognized option"), "{error}");
    assert!(stop_array(&"/dev/md/no-such".into()).unwrap_err().to_string().starts_with("stop /dev/md/no-such: "));
}
