//! Finishing: images that are refused, and the data about the machine that the finisher receives.

use super::*;
use model::allocation::{Allocation, FinisherChoice};
use model::device_name::{DevicePath, LayoutPath};
use model::image_boot_contents::BootContents;
use model::inventory::FirmwareType;
use model::layout::{ArraySpec, GroupPreservation, LogicalVolumeSpec, RaidLevel, VolumeGroupSpec};
use operations::{AdaptImage, BootDisk, ByteRange, FinishInputs, Operation, PlanAssignment, SessionOp};

pub(super) fn finished(
    layout: &Layout,
    firmware: FirmwareType,
    allocation: &Allocation,
) -> Result<Plan, Box<PlanRefusal>> {
    let mut inventory = machine();
    inventory.system.firmware = firmware;
    let assigned = PlanAssignment { allocation: allocation.clone(), ..PlanAssignment::default() };
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: StepList::default(),
        subject: subject(),
        assigned,
        claim: None,
    };
    super::super::make_plan(layout, &inventory, request, &mut counting())
}

pub(super) fn by(finish: FinisherChoice) -> Allocation {
    Allocation { finish: Some(finish), hostname: "web-1".into(), ..Allocation::default() }
}

pub(super) fn finishing(plan: &Plan) -> &FinishInputs {
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let found = operations.find_map(|operation| match operation {
        Operation::Run(SessionOp::Finish(finishing) | SessionOp::AdaptImage(AdaptImage(finishing))) => Some(finishing),
        _ => None,
    });
    found.unwrap()
}

/// Layout with the system on two disks: a mirror with this metadata version for the ESP, and another mirror for the
/// rest.
fn mirrored(metadata: &str) -> Layout {
    let raid = |name: &str, number: u32, options: &[&str]| ArraySpec {
        arrayname: format!("/dev/md/{name}").into(),
        devices: ["/dev/sda", "/dev/sdb"].map(|disk| LayoutPath::from(disk).partition_path(number)).to_vec(),
        level: RaidLevel::Raid1,
        createoptions: options.iter().map(|word| (*word).to_owned()).collect(),
        spares: 0,
        preserve: false,
    };
    let mut layout = layout();
    for disk in &mut layout.disks {
        disk.wipeonreinstall = true;
        disk.partitions =
            vec![partition(1, "efi", 500, PartitionType::LinuxRaid), partition(2, "root", 0, PartitionType::LinuxRaid)];
    }
    layout.raid = vec![raid("efi", 1, &[&format!("--metadata={metadata}")]), raid("root", 2, &[])];
    layout.filesystems = vec![
        filesystem("/boot/efi", "/dev/md/efi", FilesystemFormat::Vfat, "efi"),
        filesystem("/", "/dev/md/root", FilesystemFormat::Ext4, "root"),
    ];
    layout
}

#[test]
fn refuses_uefi_machine_without_usable_esp() {
    let mut no_esp = layout();
    no_esp.filesystems.retain(|filesystem| filesystem.path.as_deref() != Some("/boot/efi"));
    let mut other_type = layout();
    other_type.disks[0].partitions[0].kind = Some(PartitionType::Linux);
    for (layout, place, why) in [
        (&no_esp, "filesystems", "no vfat filesystem is mounted at /boot/efi"),
        (
            &other_type,
            "filesystems[1].device",
            "/dev/sda1 is used as the EFI system partition, but its partition type is 8300",
        ),
        (
            &mirrored("1.2"),
            "filesystems[0].device",
            "/dev/md/efi is used as the EFI system partition, but the array is raid1 with metadata 1.2",
        ),
    ] {
        let refused = reasons(finished(layout, FirmwareType::Uefi, &by(FinisherChoice::Builtin)));
        assert!(refused.len() == 1 && refused[0].starts_with(&format!("{place}: {why}")), "{refused:?}");
        let warned = finished(layout, FirmwareType::Uefi, &by(FinisherChoice::Auto)).unwrap().warnings;
        assert!(warned.len() == 1 && warned[0].starts_with(why), "{warned:?}");
        for (firmware, finish) in [
            (FirmwareType::Uefi, FinisherChoice::Image),
            (FirmwareType::Uefi, FinisherChoice::None),
            (FirmwareType::Bios, FinisherChoice::Builtin),
            (FirmwareType::Bios, FinisherChoice::Auto),
        ] {
            let plan = finished(layout, firmware, &by(finish)).unwrap();
            assert_eq!(plan.warnings, Vec::<String>::new(), "{firmware:?} {finish:?}");
        }
    }
    for layout in [layout(), mirrored("1.0"), mirrored("0.90")] {
        assert_eq!(
            finished(&layout, FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap().warnings,
            Vec::<String>::new()
        );
    }
}

#[test]
fn labels_files_on_new_filesystems() {
    let plan = finished(&layout(), FirmwareType::Uefi, &by(FinisherChoice::Auto)).unwrap();
    assert_eq!(finishing(&plan).new_mounts, ["/srv"]);
}

/// Boot contents of an image with everything that is needed.
pub(super) fn contents() -> BootContents {
    let some = |path: &str| Some(path.to_owned());
    BootContents {
        architecture: None,
        kernels: vec!["/boot/vmlinuz-6.1".to_owned()],
        init: some("/sbin/init"),
        installer: None,
        grub_bios: some("/usr/lib/grub/i386-pc"),
        user_data: vec!["/usr/bin/cloud-init".to_owned()],
        cryptsetup: None,
        unsupported_network: None,
    }
}

#[test]
fn refuses_image_that_cannot_open_encrypted_filesystems() {
    let mut encrypted = layout();
    encrypted.filesystems[0].encrypted = Some(model::layout::EncryptionSpec { key: model::layout::KeySource::Server });
    let mut nofail = encrypted.clone();
    nofail.filesystems[0].mountoptions = vec!["nofail".to_owned()];
    let some = |openers: &[&str]| Some(openers.iter().map(|opener| (*opener).to_owned()).collect());
    let mut sealed = encrypted.clone();
    sealed.filesystems[0].encrypted = Some(model::layout::EncryptionSpec { key: model::layout::KeySource::Tpm2 });
    for (layout, cryptsetup, is_refused) in [
        (&encrypted, some(&[]), true),
        (&sealed, some(&[]), true),
        (&sealed, some(&["/usr/sbin/cryptsetup"]), true),
        (&sealed, some(&["/usr/sbin/cryptsetup", "/lib/systemd/systemd-cryptsetup"]), false),
        (&encrypted, some(&["/usr/sbin/cryptsetup"]), false),
        // With `None`, the manifest was written by a version that did not search for cryptsetup.
        (&encrypted, None, false),
        (&nofail, some(&[]), false),
        (&layout(), some(&[]), false),
    ] {
        let image = model::allocation::AllocatedImage {
            contents: Some(BootContents { cryptsetup, ..contents() }),
            ..Default::default()
        };
        let made = finished(layout, FirmwareType::Uefi, &Allocation { image, ..by(FinisherChoice::Auto) });
        assert_eq!(made.is_err(), is_refused);
        if let Err(refusal) = made {
            let said: Vec<String> = refusal.problems.iter().map(ToString::to_string).collect();
            assert!(said.len() == 1 && said[0].contains("could not mount /srv"), "{said:?}");
        }
    }
}

#[test]
fn refuses_image_that_cannot_boot_according_to_its_manifest() {
    let with = |finish: FinisherChoice, contents: BootContents| {
        let image = model::allocation::AllocatedImage { contents: Some(contents), ..Default::default() };
        Allocation { image, ..by(finish) }
    };
    let bare = BootContents::default();
    let no_init = BootContents { init: None, ..contents() };
    let installer = BootContents { installer: Some("/install.sh".to_owned()), ..BootContents::default() };
    let (uefi, bios) = (FirmwareType::Uefi, FirmwareType::Bios);
    for (finish, firmware, contents, wrong) in [
        (FinisherChoice::Builtin, uefi, contents(), &[][..]),
        (FinisherChoice::Builtin, bios, contents(), &[]),
        (FinisherChoice::Builtin, uefi, bare.clone(), &["no kernel in /boot", "no init program such as /sbin/init"]),
        (FinisherChoice::Builtin, bios, bare.clone(), &["no kernel", "no init", "no GRUB for BIOS"]),
        (FinisherChoice::Builtin, uefi, installer.clone(), &["no kernel", "no init"]),
        (FinisherChoice::Auto, uefi, no_init, &["no init"]),
        (FinisherChoice::Auto, bios, installer.clone(), &[]),
        (FinisherChoice::Image, bios, installer, &[]),
        (FinisherChoice::Image, uefi, contents(), &["no installer, which `finish: image` requires"]),
        (FinisherChoice::None, bios, bare.clone(), &[]),
    ] {
        let made = finished(&layout(), firmware, &with(finish, contents));
        if wrong.is_empty() {
            assert_eq!(made.unwrap().warnings, Vec::<String>::new(), "{finish:?}");
            continue;
        }
        let said = reasons(made);
        assert_eq!(said.len(), wrong.len(), "{said:?}");
        for (said, wrong) in said.iter().zip(wrong) {
            assert!(
                said.starts_with(&format!("allocation.image: according to its manifest, the image has {wrong}")),
                "{said}"
            );
        }
    }
    // A reinstall that preserves /boot may boot a kernel on /boot, so the image does not need one.
    let mut own_boot = layout();
    own_boot.filesystems[0].path = Some("/boot".to_owned());
    let without = BootContents { kernels: Vec::new(), ..contents() };
    for (mode, is_refused) in [(InstallMode::Install, true), (InstallMode::Reinstall, false)] {
        let assigned =
            PlanAssignment { allocation: with(FinisherChoice::Builtin, without.clone()), ..PlanAssignment::default() };
        let request = PlanRequest { mode, steps: StepList::default(), subject: subject(), assigned, claim: None };
        let needs = image_bootability::determine_needs(&own_boot, &machine(), &request).unwrap();
        assert_eq!(!needs.find_image_deficiencies(&without).refused.is_empty(), is_refused);
    }
}

#[test]
fn warns_about_user_data_that_the_image_ignores() {
    let image =
        |contents: BootContents| model::allocation::AllocatedImage { contents: Some(contents), ..Default::default() };
    let nobody = BootContents { user_data: Vec::new(), ..contents() };
    for (finish, contents, user_data, is_said) in [
        (FinisherChoice::Builtin, nobody.clone(), "#cloud-config\n", true),
        (FinisherChoice::Auto, nobody.clone(), "#cloud-config\n", true),
        (FinisherChoice::Builtin, nobody.clone(), " \n", false),
        (FinisherChoice::Builtin, contents(), "#cloud-config\n", false),
        (FinisherChoice::None, nobody, "#cloud-config\n", false),
    ] {
        let allocation = Allocation { image: image(contents), user_data: user_data.into(), ..by(finish) };
        let warnings = finished(&layout(), FirmwareType::Uefi, &allocation).unwrap().warnings;
        assert_eq!(warnings.len(), usize::from(is_said), "{warnings:?}");
        assert!(warnings.iter().all(|warning| warning.contains("neither cloud-init nor Ignition")), "{warnings:?}");
    }
}

#[test]
fn refuses_invalid_hostname_keys_arguments_and_servers() {
    let wrong = Allocation {
        hostname: "web 1".into(),
        ssh_pub_keys: vec!["ssh-ed25519 AAAA\n".into(), "ssh-ed25519 AAAA\nssh-ed25519 BBBB".into()],
        kernel_arguments: vec!["quiet".into(), "root=/dev/sda1".into()],
        dns_servers: serde_json::json!(["192.0.2.53", {"ip": "not-an-address"}]),
        ..by(FinisherChoice::Auto)
    };
    let places: Vec<String> = reasons(finished(&layout(), FirmwareType::Bios, &wrong));
    let places: Vec<&str> = places.iter().map(|line| line.split(": ").next().unwrap()).collect();
    let expected = ["hostname", "ssh_pub_keys[1]", "kernel_arguments[1]", "dns_servers[1]"];
    assert_eq!(places, expected.map(|place| format!("allocation.{place}")));
    finished(&layout(), FirmwareType::Bios, &Allocation { finish: Some(FinisherChoice::Image), ..wrong }).unwrap();
}

/// Returns a boot disk with a table written by drophammer: its first partition starts at 1 MiB.
fn boot_disk(device: &str) -> BootDisk {
    let gap = ByteRange { start: 34 * 512, length: (2048 - 34) * 512 };
    BootDisk { device: device.into(), gap: Some(gap), partly_kept: false }
}

/// Makes the plan for a machine with this firmware and with this sector size of the system disk.
fn on_sectors(firmware: FirmwareType, bytes: u32, finish: FinisherChoice) -> Result<Plan, Box<PlanRefusal>> {
    let mut inventory = machine();
    inventory.system.firmware = firmware;
    inventory.disks[0].sector_bytes = bytes;
    let assigned = PlanAssignment { allocation: by(finish), ..PlanAssignment::default() };
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: StepList::default(),
        subject: subject(),
        assigned,
        claim: None,
    };
    super::super::make_plan(&layout(), &inventory, request, &mut counting())
}

#[test]
fn bios_boots_only_from_disks_with_512_byte_sectors() {
    let message = "a BIOS cannot boot from /dev/sda, which has 4096-byte sectors";
    for finish in [FinisherChoice::Builtin, FinisherChoice::Auto] {
        let reasons = reasons(on_sectors(FirmwareType::Bios, 4096, finish));
        assert!(reasons[0].starts_with(&format!("disks: {message}")), "{reasons:?}");
    }
    for (firmware, bytes, finish, warns) in [
        (FirmwareType::Bios, 4096, FinisherChoice::Image, true),
        (FirmwareType::Bios, 4096, FinisherChoice::None, false),
        (FirmwareType::Bios, 512, FinisherChoice::Builtin, false),
        (FirmwareType::Uefi, 4096, FinisherChoice::Builtin, false),
    ] {
        let warnings = on_sectors(firmware, bytes, finish).unwrap().warnings;
        assert_eq!(
            warnings.iter().any(|warning| warning.starts_with(message)),
            warns,
            "{firmware:?} {bytes} {finish:?}"
        );
    }
}

#[test]
fn boot_loader_gap_requires_a_planned_table() {
    let of_sectors = |bytes: u32| on_sectors(FirmwareType::Bios, bytes, FinisherChoice::Image).unwrap();
    assert_eq!(finishing(&of_sectors(512)).boot_disks, [boot_disk("/dev/sda")]);
    assert_eq!(finishing(&of_sectors(4096)).boot_disks, [BootDisk { gap: None, ..boot_disk("/dev/sda") }]);
}

#[test]
fn finisher_receives_esps_boot_disks_and_root_arrays() {
    let plan = finished(&layout(), FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap();
    let one = finishing(&plan);
    let [esp] = &one.esps[..] else { panic!("{one:?}") };
    assert_eq!((esp.device.as_str(), esp.disk.as_str(), esp.number), ("/dev/sda1", "/dev/sda", 1));
    assert_eq!((esp.first_lba, esp.sectors, esp.sector_bytes), (2048, 500 * 2048, 512));
    assert_eq!((esp.path.as_deref(), esp.array.as_ref().map(|array| array.as_str())), (Some("/boot/efi"), None));
    assert_eq!(
        (one.boot_disks.as_slice(), one.root.uuid.as_str()),
        (&[boot_disk("/dev/sda")][..], plan.root_uuid.as_str())
    );
    assert_eq!(
        (one.fstab.as_slice(), one.devices.as_slice()),
        (plan.fstab.as_slice(), &["/dev/sda", "/dev/sdb"].map(DevicePath::from)[..])
    );

    // The layout gets a second, unmounted EFI system partition, and a root filesystem on a logical volume.
    let mut second = layout();
    second.disks[1] = DiskSpec { device: "/dev/sdb".into(), ..second.disks[0].clone() };
    second.filesystems.retain(|filesystem| filesystem.path.as_deref() != Some("/srv"));
    second.filesystems.push(filesystem("", "/dev/sdb1", FilesystemFormat::Vfat, "efi2"));
    let plan = finished(&second, FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap();
    let esps: Vec<_> = finishing(&plan).esps.iter().map(|esp| (esp.device.as_str(), esp.path.as_deref())).collect();
    assert_eq!(esps, [("/dev/sda1", Some("/boot/efi")), ("/dev/sdb1", None)]);
    let mut volume = second.clone();
    volume.volumegroups = vec![VolumeGroupSpec {
        name: "vg".into(),
        devices: vec!["/dev/sda2".into(), "/dev/sdb2".into()],
        tags: vec![],
        encrypted: None,
        preserve: GroupPreservation::None,
    }];
    volume.logicalvolumes = vec![LogicalVolumeSpec {
        name: "root".into(),
        volumegroup: "vg".into(),
        size: 4000.into(),
        lvmtype: Default::default(),
        preserve: false,
    }];
    volume
        .filesystems
        .iter_mut()
        .filter(|filesystem| filesystem.path.as_deref() == Some("/"))
        .for_each(|is| is.device = "/dev/vg/root".into());
    let plan = finished(&volume, FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap();
    let root = finishing(&plan).root.volume.as_ref().unwrap();
    assert_eq!((root.group.as_str(), root.name.as_str()), ("vg", "root"));
    assert_eq!(finishing(&plan).boot_disks, ["/dev/sda", "/dev/sdb"].map(boot_disk));

    let plan = finished(&mirrored("1.0"), FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap();
    let mirror = finishing(&plan);
    let esps: Vec<_> =
        mirror.esps.iter().map(|esp| (esp.device.as_str(), esp.array.as_ref().map(|array| array.as_str()))).collect();
    assert_eq!(esps, [("/dev/sda1", Some("/dev/md/efi")), ("/dev/sdb1", Some("/dev/md/efi"))]);
    assert!(mirror.esps.iter().all(|esp| esp.path.as_deref() == Some("/boot/efi")));
    assert_eq!(mirror.root.arrays, [mirror.arrays[1].uuid]);
    assert_eq!((mirror.arrays[0].metadata.as_str(), mirror.boot_disks.len()), ("1.0", 2));
}

#[test]
fn plan_names_the_finisher_and_hides_secrets() {
    for (finish, line) in [
        (
            FinisherChoice::Auto,
            "/install-go or /install.sh of the image, in a chroot; if the image has neither, the built-in finisher",
        ),
        (FinisherChoice::Image, "/install-go or /install.sh of the image, in a chroot\n"),
        (FinisherChoice::Builtin, "the built-in finisher\n"),
        (FinisherChoice::None, "nothing: the image boots unmodified\n"),
    ] {
        let secret = Allocation { console_password: "hunter2".into(), user_data: "hunter3".into(), ..by(finish) };
        let plan = finished(&layout(), FirmwareType::Uefi, &secret).unwrap();
        assert!(plan.to_string().contains(line), "{plan}");
        let json = serde_json::to_string(&plan).unwrap();
        assert!(!json.contains("hunter") && json.contains("\"finish\""), "{json}");
    }
    let plan = finished(&layout(), FirmwareType::Uefi, &by(FinisherChoice::Builtin)).unwrap().to_string();
    assert!(plan.contains("hostname web-1; SSH keys of the owner: 0; the machine-id"), "{plan}");
    assert!(plan.contains("boot loader for UEFI on sda1; the kernel of the image\n"), "{plan}");
}

/// An ESP on a preserved disk is written only if the layout mounts it, because the layout does not permit other writes
/// to that disk.
#[test]
fn preserved_esp_is_written_only_if_mounted() {
    let mut two = layout();
    two.disks[1].partitions[0].kind = Some(PartitionType::Boot);
    for (path, expected) in [("", &["/dev/sda1"][..]), ("/srv", &["/dev/sda1", "/dev/sdb1"])] {
        two.filesystems[0] = filesystem(path, "/dev/sdb1", FilesystemFormat::Vfat, "srv");
        let first = make(&two, &machine(), InstallMode::Install).unwrap();
        assert_eq!(finishing(&first).esps.len(), 2);
        let again = make(&two, &after(&first, machine()), InstallMode::Reinstall).unwrap();
        let esps: Vec<&str> = finishing(&again).esps.iter().map(|esp| esp.device.as_str()).collect();
        assert_eq!(esps, expected, "{path:?}");
    }
}
