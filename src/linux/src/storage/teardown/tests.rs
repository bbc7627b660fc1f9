use super::*;
use crate::storage::vm_test_disks::TestDisks;
use crate::storage::{lvm, mdadm};
use model::layout::{LvmType, RaidLevel};
use operations::{ArraySlot, CreateArray, CreateGroup, CreateVolume};

#[test]
fn volume_links_are_derived_from_mapping_names() {
    for (mapping, expected) in [
        ("vg00-root", Some("/dev/vg00/root")),
        ("vg--00-my--root", Some("/dev/vg-00/my-root")),
        ("vg00-safe_rmeta_0", Some("/dev/vg00/safe_rmeta_0")),
        ("luks", None),
        ("luks--a", None),
    ] {
        assert_eq!(volume_link_path(mapping).as_deref(), expected.map(Path::new), "{mapping}");
    }
}

#[test]
fn bcache_is_stopped_and_its_removal_awaited() {
    let sysfs = tempfile::tempdir().unwrap();
    let (set, device) = (sysfs.path().join("set"), sysfs.path().join("bcache0"));
    fs::create_dir_all(device.join("bcache")).unwrap();
    fs::create_dir(&set).unwrap();
    std::os::unix::fs::symlink(&set, device.join("bcache/cache")).unwrap();
    let error = stop_bcache(&"/dev/bcache0".into(), &device).unwrap_err().to_string();
    assert!(error.starts_with("/dev/bcache0 was stopped but is still present"), "{error}");
    assert_eq!(fs::read_to_string(device.join("bcache/stop")).unwrap(), "1");
    assert_eq!(fs::read_to_string(set.join("stop")).unwrap(), "1");
}

#[test]
fn missing_holder_is_an_error() {
    let device = || DevicePath::from("/dev/no-such");
    for holder in [
        DiskHolder::Swap { device: device() },
        DiskHolder::Mapping { device: device() },
        DiskHolder::Bcache { device: device() },
    ] {
        let error = release_holder(&holder).unwrap_err().to_string();
        assert!(error.contains("/dev/no-such") && error.contains("ENOENT") | error.contains("No such file"), "{error}");
    }
    assert!(verify_unused(&[device()]).is_err());
    assert!(verify_unused(&[]).is_ok());
}

fn group(name: &str, devices: &[DevicePath]) -> CreateGroup {
    CreateGroup { name: name.into(), devices: devices.to_vec(), tags: vec![] }
}

fn volume(name: &str, group: &str, physical: &[DevicePath], kind: LvmType) -> CreateVolume {
    let (name, group) = (name.to_owned(), group.to_owned());
    CreateVolume {
        device: format!("/dev/{group}/{name}").into(),
        name,
        group,
        physical: physical.to_vec(),
        size: 200.into(),
        kind,
    }
}

fn mapping(device: &DevicePath) -> DiskHolder {
    DiskHolder::Mapping { device: device.clone() }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_release_dismantles_a_deep_stack_and_verifies_it() {
    let disks = TestDisks::take("vda vdb");
    for round in 0..2 {
        let partitions = disks.partition(&[300, 100]);
        let (device, devices) = ("/dev/md/pv".into(), ArraySlot::parse_list(&partitions[0]));
        let (level, uuid) = (RaidLevel::Raid1, uuid::Uuid::new_v4());
        let array =
            CreateArray { device, level, metadata: "1.2".into(), uuid, devices, spares: 0, createoptions: vec![] };
        mdadm::create_array(&array).unwrap();
        let physical = [array.device];
        lvm::create_group(&group("vg00", &physical)).unwrap();
        lvm::create_volume(&volume("root", "vg00", &physical, LvmType::Linear)).unwrap();
        // A mapping over a volume, like one of dm-crypt.
        let table = "0 8192 linear /dev/vg00/root 0";
        let dmsetup = ToolCommand::new("dmsetup").args(["create", "secret", "--noudevsync", "--table", table]);
        dmsetup.env("DM_DISABLE_UDEV", "1").run().unwrap();
        let swap = &partitions[1][0];
        ToolCommand::new("mkswap").arg(swap).run().unwrap();
        ToolCommand::new("swapon").arg(swap).run().unwrap();

        let error = verify_unused(disks.all()).unwrap_err().to_string();
        for part in ["/dev/vda: vda1 is held by md", "vda2 is in use as swap; ", "/dev/vdb: vdb1 is held by md"] {
            assert!(error.contains(part), "round {round}: {part}: {error}");
        }
        let error = release_holder(&mapping(&"/dev/mapper/vg00-root".into())).unwrap_err().to_string();
        assert!(
            error.contains("remove /dev/mapper/vg00-root (vg00-root), used by: dm-0 is held by dm-1 (secret)"),
            "{error}"
        );
        let md = fs::canonicalize("/dev/md/pv").unwrap();
        let array = DiskHolder::Array { device: md.to_str().unwrap().into() };
        let error = release_holder(&array).unwrap_err().to_string();
        let (md, name) = (md.display(), md.file_name().unwrap().to_string_lossy());
        assert!(error.starts_with(&format!("stop {md}, used by: {name} is held by dm-0 (vg00-root)")), "{error}");

        release_holder(&DiskHolder::Swap { device: swap.clone() }).unwrap();
        release_holder(&mapping(&"/dev/mapper/secret".into())).unwrap();
        release_holder(&mapping(&"/dev/dm-0".into())).unwrap();
        assert!(!Path::new("/dev/vg00").exists());
        release_holder(&array).unwrap();
        assert!(fs::symlink_metadata("/dev/md/pv").is_err());
        verify_unused(disks.all()).unwrap();
    }
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_release_dismantles_a_mirrored_volume_deepest_first() {
    let disks = TestDisks::take("vda vdb");
    lvm::create_group(&group("vg00", disks.all())).unwrap();
    lvm::create_volume(&volume("safe", "vg00", disks.all(), LvmType::Raid1)).unwrap();
    let error = verify_unused(disks.all()).unwrap_err().to_string();
    assert!(error.contains("vda is held by dm-") && error.contains("(vg00-safe_rimage_0)"), "{error}");
    for part in ["safe", "safe_rimage_0", "safe_rmeta_0", "safe_rimage_1", "safe_rmeta_1"] {
        release_holder(&mapping(&format!("/dev/mapper/vg00-{part}").into())).unwrap();
    }
    verify_unused(disks.all()).unwrap();
    // The name can be used again, even if links remain in /dev.
    lvm::create_group(&group("vg00", disks.all())).unwrap();
    lvm::create_volume(&volume("safe", "vg00", disks.all(), LvmType::Linear)).unwrap();
    lvm::deactivate_group("vg00", disks.all()).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_release_detects_users_known_only_to_the_kernel() {
    let disks = TestDisks::take("vda vdb");
    let args: Vec<&str> = ["-q", "-f"].into_iter().chain(disks.all().iter().map(DevicePath::as_str)).collect();
    ToolCommand::new("mkfs.btrfs").args(args).run().unwrap();
    let control = fs::File::options().read(true).write(true).open("/dev/btrfs-control");
    let dir = tempfile::tempdir().unwrap();
    drop(control);
    let options = format!("device={}", disks.all()[1]);
    let mount = sys_mount::Mount::builder().fstype("btrfs").data(&options);
    mount.mount(&disks.all()[0], dir.path()).unwrap();
    let error = verify_unused(disks.all()).unwrap_err().to_string();
    assert!(error.contains(&format!("/dev/vda: vda is mounted at {}", dir.path().display())), "{error}");
    assert!(error.contains("open /dev/vdb for writing"), "{error}");
    crate::storage::mount::unmount_strictly(dir.path()).unwrap();
    verify_unused(disks.all()).unwrap();
}
