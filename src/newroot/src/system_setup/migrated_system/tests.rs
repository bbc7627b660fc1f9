//! Tests that adapt trees of another machine.

use super::super::initramfs::cpio;
use super::super::testing::{Programs, capture_log, tree};
use super::*;
use crate::testing;
use linux::process::{CommandError, ToolOutput};
use model::allocation::Allocation;
use model::inventory::Nic;
use model::layout::FilesystemFormat;
use model::machine_migration::{MigratedNic, MigrationOffer, MigrationSide};
use operations::{BootDisk, Esp, MachineFiles, PlanAssignment, SystemFilesystem};
use std::fs;
use std::time::Duration;

fn finishing(firmware: FirmwareType) -> FinishInputs {
    let nics = vec![MigratedNic { name: "eth0".into(), mac: "52:54:00:aa:00:01".into() }];
    let carried = Some(MigratedMachine { nics, ..MigratedMachine::default() });
    let moving = MigrationOffer {
        order: "o-1".into(),
        part: MigrationSide::Target,
        started: true,
        awaits_approval: false,
        peer: None,
        carried,
        disks: Vec::new(),
    };
    let allocation = Allocation {
        id: "a-1".into(),
        hostname: "web-2".into(),
        console_password: "secret".into(),
        ssh_pub_keys: vec!["ssh-ed25519 A".into()],
        user_data: "#cloud-config\n".into(),
        moving: Some(moving),
        ..Allocation::default()
    };
    let nics = vec![Nic { mac: "02:00:00:00:00:0a".into(), ..Nic::default() }];
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let files = Box::new(MachineFiles { assigned, nics, ..MachineFiles::default() });
    let esp = Esp { device: "/dev/sda1".into(), path: Some("/boot/efi".into()), ..Esp::default() };
    let root =
        SystemFilesystem { uuid: "r-uuid".into(), format: Some(FilesystemFormat::Ext4), ..SystemFilesystem::default() };
    let boot_disks = vec![BootDisk { device: "/dev/sda".into(), gap: None, partly_kept: false }];
    FinishInputs { firmware, root, esps: vec![esp], boot_disks, files, ..FinishInputs::default() }
}

const OWN: [(&str, &str); 8] = [
    ("etc/os-release", "ID=debian\nVERSION_ID=\"13\"\n"),
    ("etc/hostname", "web-1\n"),
    ("etc/machine-id", "b08dfa6083e7567a1921a715000001fb\n"),
    ("etc/shadow", "root:$6$own:1:0:99999:7:::\n"),
    ("etc/ssh/ssh_host_ed25519_key", "own\n"),
    ("etc/fstab", "UUID=r-uuid / ext4 defaults 0 1\nLABEL=own /own ext4 nofail 0 0\n"),
    ("boot/vmlinuz-6.1", "MZ kernel"),
    ("boot/grub/grub.cfg", "the owner's menu\n"),
];

/// Returns all files with their contents.
fn content(root: &NewRoot) -> Vec<(String, Vec<u8>)> {
    fn look(dir: &std::path::Path, all: &mut Vec<(String, Vec<u8>)>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => look(&entry.path(), all),
                false => all.push((entry.path().display().to_string(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    let mut all = Vec::new();
    look(root.path(), &mut all);
    all.sort();
    all
}

fn with_initrd(root: &NewRoot) {
    root.write_file("/boot/initrd.img-6.1", 0o644, &cpio(&[("init", "")])).unwrap();
}

fn adapted(
    root: &NewRoot,
    finishing: &FinishInputs,
    has_loader: bool,
    run: &Programs,
) -> (Result<AdaptedBoot>, Vec<String>) {
    capture_log(|say| {
        let carried = finishing.files.assigned.allocation.moving.clone().unwrap().carried.unwrap();
        adapt_files(root, &carried, finishing, say)?;
        let info = root.path_exists("/etc/metal/boot-info.yaml");
        adapt_boot(root, finishing, "r-uuid", MigratedBoot { loader: has_loader, info }, run, say)
    })
}

/// A migrated GRUB finds its menu by itself, so the system is not changed.
#[test]
fn migrated_grub_for_uefi_is_not_changed() {
    let (_dir, root) = tree(
        &[
            &OWN[..],
            &[("usr/lib/grub/x86_64-efi/moddep.lst", ""), ("usr/bin/grub-mkimage", ""), ("usr/sbin/grub-install", "")],
        ]
        .concat(),
    );
    with_initrd(&root);
    let (before, programs) = (content(&root), Programs::saying(""));
    let (done, lines) = adapted(&root, &finishing(FirmwareType::Uefi), true, &programs);
    let done = done.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
    assert_eq!(content(&root), before, "{lines:?}");
    assert_eq!((programs.ran(), done.entries), (Vec::new(), Vec::new()));
    let info = done.info.unwrap();
    assert_eq!((info.kernel.as_str(), info.initrd.as_str()), ("/boot/vmlinuz-6.1", "/boot/initrd.img-6.1"));
    assert_eq!((info.cmdline.as_str(), info.bootloader_id.as_str()), ("root=UUID=r-uuid ro", "debian"));
}

/// The firmware starts the kernel directly, and this machine's firmware has no boot entry for it yet.
#[test]
fn directly_booted_kernel_gets_a_boot_entry() {
    let (_dir, root) = tree(&OWN[..7]);
    with_initrd(&root);
    let (done, lines) = adapted(&root, &finishing(FirmwareType::Uefi), false, &Programs::saying(""));
    let done = done.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
    assert_eq!((done.entries.len(), done.entries[0].loader.as_str()), (1, r"\EFI\debian\vmlinuz-6.1"));
    assert!(done.entries[0].arguments.contains("root=UUID=r-uuid ro"), "{done:?}");
    assert_eq!(root.read_text("/boot/efi/EFI/debian/vmlinuz-6.1").unwrap(), "MZ kernel");
}

#[test]
fn bios_disks_get_grub_and_the_menu_is_kept() {
    let grub = [("usr/lib/grub/i386-pc/moddep.lst", ""), ("usr/sbin/grub-install", "")];
    let (_dir, root) = tree(&[&OWN[..], &grub].concat());
    with_initrd(&root);
    let (before, programs) = (content(&root), Programs::saying(""));
    let (done, lines) = adapted(&root, &finishing(FirmwareType::Bios), false, &programs);
    let done = done.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
    assert_eq!(done.entries, []);
    assert_eq!(programs.ran(), ["/usr/sbin/grub-install --target=i386-pc --force /dev/sda"]);
    assert_eq!(content(&root), before);
    // Without GRUB, the machine could not boot.
    let (_dir, root) = tree(&OWN);
    with_initrd(&root);
    let error = adapted(&root, &finishing(FirmwareType::Bios), false, &Programs::saying("")).0.unwrap_err().to_string();
    assert!(error.contains("boots in BIOS mode, but the image does not contain GRUB for BIOS"), "{error}");
}

#[test]
fn system_with_an_installer_boots_unchanged() {
    for (firmware, has_loader, warned) in
        [(FirmwareType::Uefi, true, false), (FirmwareType::Uefi, false, true), (FirmwareType::Bios, false, true)]
    {
        let (_dir, root) = tree(&[&OWN[..], &[("install.sh", "exit 1"), ("boot/vmlinuz", "")]].concat());
        with_initrd(&root);
        let (before, programs) = (content(&root), Programs::saying(""));
        let (done, lines) = adapted(&root, &finishing(firmware), has_loader, &programs);
        let done = done.unwrap();
        assert_eq!((&done.info, done.entries.len(), programs.ran().len()), (&None, 0, 0));
        assert_eq!(done.newest.unwrap().0, "/boot/vmlinuz-6.1");
        assert_eq!(lines.iter().any(|line| line.starts_with("WARNING: ")), warned, "{lines:?}");
        assert_eq!(content(&root), before);
    }
    // GRUB is installed in the same way as by the image's installer, and GRUB's existing menu is preserved.
    let grub = [("install.sh", "exit 1"), ("usr/lib/grub/i386-pc/moddep.lst", ""), ("usr/sbin/grub-install", "")];
    let (_dir, root) = tree(&[&OWN[..], &grub].concat());
    with_initrd(&root);
    let (before, programs) = (content(&root), Programs::saying(""));
    let (done, _) = adapted(&root, &finishing(FirmwareType::Bios), false, &programs);
    assert_eq!(done.unwrap().info, None);
    assert_eq!(programs.ran(), ["/usr/sbin/grub-install --target=i386-pc --force /dev/sda"]);
    assert_eq!(content(&root), before);
    // Only the boot information of the installer specifies how the system boots.
    let (_dir, root) = tree(&[("install.sh", ""), ("boot/vmlinuz", "MZ")]);
    let done = adapted(&root, &finishing(FirmwareType::Uefi), true, &Programs::saying("")).0.unwrap();
    assert_eq!(done, AdaptedBoot::default());
}

#[test]
fn system_without_a_kernel_cannot_boot() {
    let (_dir, root) = tree(&OWN[..6]);
    let error = adapted(&root, &finishing(FirmwareType::Uefi), false, &Programs::saying("")).0.unwrap_err().to_string();
    assert!(error.contains("does not contain a kernel"), "{error}");
}

#[test]
fn unsuitable_initramfs_is_rebuilt() {
    let modules = ("usr/lib/modules/6.1/modules.dep", "kernel/fs/ext4/ext4.ko:\n");
    let (_dir, root) = tree(
        &[&OWN[..], &[modules, ("usr/lib/grub/x86_64-efi/moddep.lst", ""), ("usr/bin/grub-mkimage", "")]].concat(),
    );
    with_initrd(&root);
    let error = adapted(&root, &finishing(FirmwareType::Uefi), true, &Programs::saying("")).0.unwrap_err().to_string();
    assert!(error.contains("the initramfs must be built because the image's initramfs lacks ext4"), "{error}");
    root.write_file("/usr/sbin/update-initramfs", 0o755, b"").unwrap();
    let programs = Programs::saying("");
    let error = adapted(&root, &finishing(FirmwareType::Uefi), true, &programs).0.unwrap_err().to_string();
    assert!(error.contains("the initramfs built by initramfs-tools lacks ext4"), "{error}");
    assert_eq!(programs.ran(), ["/usr/sbin/update-initramfs -u -k 6.1"]);
}

/// Mock of the target's programs, which write the initramfs and a GRUB image.
struct Builders<'a>(&'a NewRoot);

impl TargetRunner for Builders<'_> {
    fn run_program(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, CommandError> {
        let path = args.iter().skip_while(|arg| **arg != "-o").nth(1).copied().unwrap_or("/boot/initrd.img-6.1");
        self.0.write_file(path, 0o644, &cpio(&[("usr/lib/modules/6.1/ext4.ko", "")])).unwrap();
        Programs::saying("").run_program(program, args, Duration::ZERO)
    }
}

/// The system contains GRUB's packages, but its ESP may contain another boot loader, with a copy of the old initramfs.
#[test]
fn migrated_loader_other_than_grub_is_replaced_after_the_initramfs_was_rebuilt() {
    let files = [
        ("usr/lib/modules/6.1/modules.dep", "kernel/fs/ext4/ext4.ko:\n"),
        ("usr/sbin/update-initramfs", ""),
        ("usr/lib/grub/x86_64-efi/moddep.lst", ""),
        ("usr/bin/grub-mkimage", ""),
    ];
    let came = MigratedBoot { loader: true, info: false };
    for (on_esp, is_replaced) in
        [("boot/efi/EFI/debian/grubx64.efi", false), ("boot/efi/EFI/systemd/systemd-bootx64.efi", true)]
    {
        let (_dir, root) = tree(&[&OWN[..], &files, &[(on_esp, "")]].concat());
        with_initrd(&root);
        let finishing = finishing(FirmwareType::Uefi);
        let (done, lines) = capture_log(|say| adapt_boot(&root, &finishing, "r-uuid", came, &Builders(&root), say));
        let done = done.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
        assert_eq!(!done.entries.is_empty(), is_replaced, "{on_esp}");
        assert_eq!(root.path_exists("/boot/efi/EFI/BOOT/BOOTX64.EFI"), is_replaced, "{on_esp}");
    }
}

/// The initramfs tool of the migrated system runs in the tree of this system, and the new initramfs is copied to the
/// ESP.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_migrated_system_builds_its_initramfs() {
    let (_dir, root) = testing::busybox();
    for (path, text) in OWN.iter().filter(|(path, _)| *path != "boot/grub/grub.cfg") {
        root.write_file(&format!("/{path}"), 0o644, text.as_bytes()).unwrap();
    }
    with_initrd(&root);
    root.write_file("/usr/lib/modules/6.1/modules.dep", 0o644, b"kernel/fs/ext4/ext4.ko:\n").unwrap();
    let new = cpio(&[("usr/lib/modules/6.1/kernel/fs/ext4/ext4.ko", "")]);
    root.write_file("/new", 0o644, &new).unwrap();
    testing::script(&root, "usr/sbin/update-initramfs", "cat /new > /boot/initrd.img-6.1");
    root.write_file("/boot/efi/EFI/debian/initrd.img-6.1", 0o644, b"old").unwrap();
    let (done, lines) = capture_log(|say| {
        adapt_migrated_system(
            &root,
            &finishing(FirmwareType::Uefi),
            "r-uuid",
            MigratedBoot { loader: false, info: false },
            say,
        )
    });
    let done = done.unwrap_or_else(|error| panic!("{error}: {lines:?}"));
    assert_eq!(done.entries[0].loader, r"\EFI\debian\vmlinuz-6.1");
    assert_eq!(fs::read(root.path().join("boot/efi/EFI/debian/initrd.img-6.1")).unwrap(), new);
    assert_eq!(root.read_text("/etc/hostname").unwrap(), "web-1\n");
    assert_eq!(linux::storage::busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn hardware_dependent_files_are_adapted_and_others_kept() {
    let files = [
        ("etc/systemd/network/10-lan.link", "[Match]\nMACAddress=52:54:00:aa:00:01\n"),
        ("etc/lvm/devices/system.devices", "IDTYPE=sys_wwid\n"),
        ("etc/selinux/config", "SELINUX=enforcing\n"),
        ("usr/lib/grub/x86_64-efi/moddep.lst", ""),
        ("usr/bin/grub-mkimage", ""),
    ];
    let (_dir, root) = tree(&[&OWN[..], &files].concat());
    with_initrd(&root);
    let mut finishing = finishing(FirmwareType::Uefi);
    finishing.groups = vec!["vg00".into()];
    let (done, lines) = adapted(&root, &finishing, true, &Programs::saying(""));
    done.unwrap();
    assert!(root.read_text("/etc/systemd/network/10-lan.link").unwrap().contains("MACAddress=02:00:00:00:00:0a"));
    assert!(!root.path_exists("/etc/lvm/devices/system.devices") && root.path_exists("/.autorelabel"), "{lines:?}");
    for (path, text) in &OWN[..6] {
        assert_eq!(root.read_text(&format!("/{path}")).unwrap(), *text, "{path}");
    }
}

/// An image of metal-stack whose installer has removed itself, and whose kernel has an unusual name.
#[test]
fn kernel_named_in_boot_info_is_booted() {
    let own: Vec<(&str, &str)> = OWN.iter().copied().filter(|(path, _)| !path.starts_with("boot/")).collect();
    let (_dir, root) = tree(&[&own[..], &[("boot/vmlinuz", "MZ kernel")]].concat());
    let (refused, _) = adapted(&root, &finishing(FirmwareType::Uefi), true, &Programs::saying(""));
    assert!(refused.unwrap_err().to_string().contains("does not contain a kernel"));
    root.write_file("/etc/metal/boot-info.yaml", 0o644, b"kernel: /boot/vmlinuz\n").unwrap();
    let (adapted, _) = adapted(&root, &finishing(FirmwareType::Uefi), true, &Programs::saying(""));
    assert_eq!(adapted.unwrap(), AdaptedBoot::default());
}
