use super::super::boot_setup::tests::wants;
use super::super::boot_setup::{BootSetup, find_boot_components, make_bootable};
use super::super::file_search::tests::tree;
use super::super::machine_boot_requirements::{BootEsp, BootRequirements, FilesystemByUuid};
use super::super::preserved_esps::PreservedEsps;
use super::super::{bls_entry, grub_config_reader};
use super::*;
use crate::chroot::TargetRunner;
use linux::process::{CommandError, ToolCommand, ToolOutput};
use linux::storage::boot_loader_area::BiosBootLoader;
use model::architecture::Architecture;
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use operations::{BootDisk, ByteRange};
use std::cell::RefCell;
use std::time::Duration;

mod preserved_esp;

/// Files of all trees in these tests: a kernel with its modules and initramfs, and an init program.
const BASE: [(&str, &str); 5] = [
    ("sbin/init", ""),
    ("boot/vmlinuz-6.1", "MZ kernel"),
    ("boot/initrd.img-6.1", ""),
    ("usr/lib/modules/6.1/modules.dep", ""),
    ("boot/efi/x", ""),
];

const DEBIAN: [(&str, &str); 5] = [
    ("usr/lib/shim/shimx64.efi.signed", "shim"),
    ("usr/lib/shim/mmx64.efi.signed", "manager"),
    ("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "signed /EFI/debian\0"),
    ("usr/sbin/grub-mkconfig", "/etc/default/grub.d"),
    ("usr/lib/grub/x86_64-efi/monolithic/grubx64.efi", "plain /EFI/debian\0"),
];

/// Mock of the target's programs: records each run, and creates the requested output file.
struct Tools<'a>(&'a NewRoot, RefCell<Vec<String>>);

impl TargetRunner for Tools<'_> {
    fn run_program(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, CommandError> {
        self.1.borrow_mut().push(format!("{program} {}", args.join(" ")));
        let after = |flag: &str| args.iter().position(|arg| *arg == flag).and_then(|at| args.get(at + 1)).copied();
        if let Some(output) = after("-o").or_else(|| args.iter().find_map(|arg| arg.strip_prefix("--output="))) {
            let core: &[u8] = if output.ends_with("core.img") { &[b'c'; 1000] } else { b"made" };
            self.0.write_file(output, 0o644, core).unwrap();
        }
        ToolCommand::new("true").run()
    }

    fn write_bios_boot_loader(&self, disk: &DevicePath, loader: BiosBootLoader) -> Result<()> {
        let BiosBootLoader { boot_code, core, gap } = loader;
        let written = format!("{disk}: {} bytes in {}+{}, then {}", core.len(), gap.start, gap.length, boot_code.len());
        self.1.borrow_mut().push(written);
        Ok(())
    }
}

fn esp() -> BootEsp {
    BootEsp { device: "/dev/md/efi".into(), path: Some("/boot/efi".into()) }
}

fn uefi() -> BootRequirements {
    BootRequirements { esps: vec![esp(), esp()], ..wants() }
}

fn booted(root: &NewRoot, wants: &BootRequirements) -> (Result<BootSetup>, Vec<String>, Vec<String>) {
    let tools = Tools(root, RefCell::default());
    let said = RefCell::new(Vec::new());
    let say = |line: &str| said.borrow_mut().push(line.to_owned());
    let result =
        find_boot_components(root, wants, &say).and_then(|bootable| make_bootable(root, wants, bootable, &tools, &say));
    (result, tools.1.into_inner(), said.into_inner())
}

const LINE: &str = "root=UUID=r-uuid ro console=tty0 console=ttyS0,115200n8 last=1";

#[test]
fn signed_grub_is_copied_and_finds_its_menu() {
    let (_dir, root) = tree(&[&BASE[..], &DEBIAN].concat());
    let (result, ran, said) = booted(&root, &uefi());
    let booting = result.unwrap();
    assert!(ran.is_empty() && said.is_empty(), "{ran:?} {said:?}");
    assert_eq!(booting.info.cmdline, LINE);
    assert_eq!(
        (booting.info.kernel.as_str(), booting.info.initrd.as_str()),
        ("/boot/vmlinuz-6.1", "/boot/initrd.img-6.1")
    );
    let esps: Vec<usize> = booting.entries.iter().map(|entry| entry.esp).collect();
    assert_eq!(esps, [0, 1]);
    assert!(
        booting.entries.iter().all(|entry| entry.loader == "\\EFI\\debian\\shimx64.efi" && entry.arguments.is_empty())
    );
    for (path, content) in [
        ("EFI/BOOT/BOOTX64.EFI", "shim"),
        ("EFI/BOOT/grubx64.efi", "signed /EFI/debian\0"),
        ("EFI/BOOT/mmx64.efi", "manager"),
        ("EFI/debian/shimx64.efi", "shim"),
        ("EFI/debian/grubx64.efi", "signed /EFI/debian\0"),
        (
            "EFI/debian/grub.cfg",
            "# written by drophammer: the menu is /boot/grub/grub.cfg\nsearch --no-floppy --fs-uuid --set=root r-uuid\n\
             set prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n",
        ),
    ] {
        assert_eq!(root.read_text(&format!("/boot/efi/{path}")).unwrap(), content, "{path}");
    }
    let menu = format!(
        "# written by drophammer; grub-mkconfig replaces it\nset default=0\nset timeout=2\n\
         search --no-floppy --fs-uuid --set=root r-uuid\n\
         menuentry 'debian 6.1' {{\n\tlinux /boot/vmlinuz-6.1 {LINE}\n\tinitrd /boot/initrd.img-6.1\n}}\n"
    );
    assert_eq!(root.read_text("/boot/grub/grub.cfg").unwrap(), menu);
    assert!(root.read_text("/etc/default/grub.d/zz-drophammer.cfg").unwrap().contains("last=1"));
}

#[test]
fn menu_is_on_the_boot_filesystem_and_quoted() {
    let (_dir, root) = tree(&[&BASE[..], &DEBIAN].concat());
    let boot = Some(FilesystemByUuid { uuid: "b-uuid".into(), format: FilesystemFormat::Ext4 });
    let arguments = vec!["a=$x;y".into(), "b='c'".into()];
    booted(&root, &BootRequirements { boot, arguments, ..uefi() }).0.unwrap();
    let menu = root.read_text("/boot/grub/grub.cfg").unwrap();
    assert!(menu.contains("--set=root b-uuid\n") && menu.contains("\tinitrd /initrd.img-6.1\n"), "{menu}");
    assert!(menu.contains("linux /vmlinuz-6.1 root=UUID=r-uuid") && menu.contains(" a=\\$x\\;y b=\\'c\\'\n"), "{menu}");
    assert!(root.read_text("/boot/efi/EFI/debian/grub.cfg").unwrap().contains("set prefix=($root)/grub\n"));
}

#[test]
fn red_hat_entry_gets_arguments_of_this_machine() {
    let entry = "title Fedora\nversion 6.1\nlinux /boot/vmlinuz-6.1\ninitrd /boot/initramfs-6.1.img\noptions root=UUID=old rhgb\n";
    let files = [
        ("boot/loader/entries/abc-6.1.conf", entry),
        ("boot/initramfs-6.1.img", ""),
        ("boot/efi/EFI/fedora/grubx64.efi", "grub /EFI/fedora\0"),
        ("boot/efi/EFI/fedora/shimx64.efi", "shim"),
        ("usr/sbin/grub2-mkconfig", ""),
        ("usr/lib/grub/x86_64-efi/blscfg.mod", ""),
    ];
    let base: Vec<_> = BASE.into_iter().filter(|(path, _)| !path.contains("initrd")).collect();
    let (_dir, root) = tree(&[&base[..], &files].concat());
    let booting = booted(&root, &BootRequirements { system: "fedora".into(), ..uefi() }).0.unwrap();
    assert_eq!(booting.entries[0].loader, "\\EFI\\fedora\\shimx64.efi");
    assert_eq!(booting.info.cmdline, LINE.replace("console=tty0", "rhgb console=tty0"));
    let entry = root.read_text("/boot/loader/entries/abc-6.1.conf").unwrap();
    assert!(
        entry.contains("linux /boot/vmlinuz-6.1\ninitrd /boot/initramfs-6.1.img\noptions root=UUID=r-uuid ro rhgb"),
        "{entry}"
    );
    let menu = root.read_text("/boot/grub2/grub.cfg").unwrap();
    assert!(menu.contains("insmod blscfg\nblscfg\nmenuentry"), "{menu}");
    assert_eq!(root.read_text("/boot/efi/EFI/BOOT/grubx64.efi").unwrap(), "grub /EFI/fedora\0");
    assert!(root.read_text("/etc/default/grub").unwrap().contains("rhgb"));
}

/// Files as in a cloud image of Rocky Linux 8: its entries contain a variable, and its environment block describes the
/// machine that built it.
#[test]
fn later_kernels_of_el_8_find_the_root_filesystem() {
    let later = "title Rocky Linux (4.18.0-553.el8.x86_64) 8.10\nversion 4.18.0-553.el8.x86_64\nlinux /boot/vmlinuz-4.18.0-553\n\
                 initrd /boot/initramfs-4.18.0-553.img $tuned_initrd\noptions $kernelopts $tuned_params\nid rocky\n";
    let block = "# GRUB Environment Block\nsaved_entry=1\nkernelopts=root=UUID=old ro crashkernel=auto \n####";
    let files = [
        ("boot/loader/entries/abc-6.1.conf", "linux /boot/vmlinuz-6.1\noptions $kernelopts $tuned_params\n"),
        ("boot/loader/entries/abc-4.18.0-553.conf", later),
        ("boot/grub2/grubenv", block),
        ("boot/efi/EFI/rocky/grubx64.efi", "grub /EFI/rocky\0"),
        ("usr/sbin/grub2-mkconfig", ""),
        ("etc/grub.d/10_linux", "  blscfg\n"),
    ];
    let (_dir, root) = tree(&[&BASE[..], &files].concat());
    let arguments = vec!["a=$x".into(), "dyndbg=\"file 'x' +p\"".into()];
    let booting = booted(&root, &BootRequirements { system: "rocky".into(), arguments, ..uefi() }).0.unwrap();
    let line = booting.info.cmdline;
    assert!(line.starts_with("root=UUID=r-uuid ro crashkernel=auto console=tty0"), "{line}");
    let menu = root.read_text("/boot/grub2/grub.cfg").unwrap();
    assert!(menu.contains("load_env kernelopts\n") && menu.contains("[ -z \"$kernelopts\" ]"), "{menu}");
    assert!(!root.read_text("/boot/grub2/grubenv").unwrap().contains("UUID=old"));
    assert_eq!(root.read_text("/boot/grub2/grubenv").unwrap().len(), block.len());
    // GRUB inserts the value of the variable into the text of the boot entry, and evaluates the result as a script.
    let variables = grub_config_reader::read_grub_variables(&root, &PreservedEsps::default());
    assert_eq!(variables.get("kernelopts"), Some(&grub_config_reader::format_grub_line(&line)));
    let text = later.replace("$kernelopts", &variables["kernelopts"]);
    assert_eq!(bls_entry::parse_entry(&text, &variables).unwrap().words.join(" "), line);
}

#[test]
fn each_tree_gets_its_own_boot_loader() {
    let modules = ("usr/lib/grub/x86_64-efi/ext2.mod", "");
    let mkimage = ("usr/bin/grub-mkimage", "");
    let stub = ("usr/lib/systemd/boot/efi/linuxx64.efi.stub", "");
    let ukify = ("usr/bin/ukify", "");
    let systemd = ("usr/lib/systemd/boot/efi/systemd-bootx64.efi", "systemd-boot");
    let wants_uki = ("etc/kernel/install.conf", "layout=uki\n");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, &'a str);
    let cases: [Case<'_>; 6] = [
        (&[modules, mkimage], "/EFI/debian/grubx64.efi", "/usr/bin/grub-mkimage -O x86_64-efi", "made"),
        (&[systemd], "/EFI/systemd/systemd-bootx64.efi", "", "systemd-boot"),
        (&[stub, ukify], "/EFI/Linux/debian-6.1.efi", "/usr/bin/ukify build --linux=/boot/vmlinuz-6.1", "made"),
        (&[stub, ukify, systemd], "/EFI/systemd/systemd-bootx64.efi", "", "systemd-boot"),
        (
            &[stub, ukify, systemd, wants_uki, DEBIAN[4]],
            "/EFI/Linux/debian-6.1.efi",
            "/usr/bin/ukify build",
            "systemd-boot",
        ),
        (&[], "/EFI/debian/vmlinuz-6.1", "", ""),
    ];
    for (files, loader, ran, fallback) in cases {
        let (_dir, root) = tree(&[&BASE[..], files].concat());
        let (result, did, said) = booted(&root, &uefi());
        let entry = &result.unwrap().entries[1];
        assert_eq!(entry.loader.replace('\\', "/"), loader);
        assert!(did.concat().starts_with(ran) && did.len() <= 1, "{did:?}");
        assert_eq!(root.read_text("/boot/efi/EFI/BOOT/BOOTX64.EFI").unwrap_or_default(), fallback, "{loader}");
        assert_eq!(entry.arguments.is_empty(), !files.is_empty());
        assert_eq!(said.is_empty(), !files.is_empty(), "{said:?}");
        if files.is_empty() {
            assert_eq!(entry.arguments, format!("initrd=\\EFI\\debian\\initrd.img-6.1 {LINE}"));
        }
        assert!(root.read_text("/boot/drophammer.efi").is_err());
    }
    let (_dir, root) = tree(&[&BASE[..], &[systemd]].concat());
    booted(&root, &uefi()).0.unwrap();
    let entry = root.read_text("/boot/efi/loader/entries/debian-6.1.conf").unwrap();
    let lines = "linux /debian/6.1/vmlinuz-6.1\ninitrd /debian/6.1/initrd.img-6.1\n";
    assert!(entry.contains(lines) && entry.contains(LINE), "{entry}");
    assert_eq!(root.read_text("/boot/efi/debian/6.1/vmlinuz-6.1").unwrap(), "MZ kernel");
    // If the ESP is mounted at /boot, the kernel is already on it.
    let at_boot = BootEsp { path: Some("/boot".into()), ..esp() };
    booted(&root, &BootRequirements { esps: vec![at_boot], ..uefi() }).0.unwrap();
    assert!(root.read_text("/boot/loader/entries/debian-6.1.conf").unwrap().contains("linux /vmlinuz-6.1\n"));
}

#[test]
fn arm64_machines_get_loaders_for_arm64() {
    let grub = ("usr/lib/grub/arm64-efi/monolithic/grubaa64.efi", "arm64 /EFI/debian\0");
    let foreign = ("usr/lib/grub/x86_64-efi/monolithic/grubx64.efi", "amd64 /EFI/debian\0");
    let modules = ("usr/lib/grub/arm64-efi/ext2.mod", "");
    let mkimage = ("usr/bin/grub-mkimage", "");
    let systemd = ("usr/lib/systemd/boot/efi/systemd-bootaa64.efi", "systemd-boot");
    let (stub, ukify) = (("usr/lib/systemd/boot/efi/linuxaa64.efi.stub", ""), ("usr/bin/ukify", ""));
    let suse = ("usr/share/efi/aarch64/grub.efi", "suse");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str, &'a str);
    let cases: [Case<'_>; 6] = [
        (&[grub, foreign], "/EFI/debian/grubaa64.efi", "", "arm64 /EFI/debian\0"),
        (&[modules, mkimage], "/EFI/debian/grubaa64.efi", "/usr/bin/grub-mkimage -O arm64-efi", "made"),
        (&[systemd], "/EFI/systemd/systemd-bootaa64.efi", "", "systemd-boot"),
        (&[stub, ukify], "/EFI/Linux/debian-6.1.efi", "/usr/bin/ukify build", "made"),
        (&[suse], "/EFI/debian/grub.efi", "", "suse"),
        (&[foreign], "/EFI/debian/vmlinuz-6.1", "", ""),
    ];
    let arm64 = BootRequirements { architecture: Architecture::Arm64, ..uefi() };
    for (files, loader, ran, fallback) in cases {
        let (_dir, root) = tree(&[&BASE[..], files].concat());
        let (result, did, _) = booted(&root, &arm64);
        assert_eq!(result.unwrap().entries[1].loader.replace('\\', "/"), loader);
        assert!(did.concat().starts_with(ran) && did.len() <= 1, "{did:?}");
        assert_eq!(root.read_text("/boot/efi/EFI/BOOT/BOOTAA64.EFI").unwrap_or_default(), fallback, "{loader}");
        assert!(root.read_text("/boot/efi/EFI/BOOT/BOOTX64.EFI").is_err());
    }
}

#[test]
fn loader_for_another_architecture_is_refused() {
    let header = format!("MZ{}\x40{}PE\0\0\x4c\x01 /EFI/debian\0", "\0".repeat(0x3a), "\0".repeat(3));
    // The machine number of amd64 is not valid UTF-8, so the file is written as bytes.
    let (dir, root) = tree(&[&BASE[..], &[("usr/lib/grub/arm64-efi/monolithic/grubaa64.efi", &header)]].concat());
    let mut bytes = header.into_bytes();
    bytes[0x44..0x46].copy_from_slice(&[0x64, 0x86]);
    std::fs::write(dir.path().join("usr/lib/grub/arm64-efi/monolithic/grubaa64.efi"), bytes).unwrap();
    let arm64 = BootRequirements { architecture: Architecture::Arm64, ..uefi() };
    let error = booted(&root, &arm64).0.unwrap_err().to_string();
    assert!(
        error.contains("is for amd64 according to /usr/lib/grub/arm64-efi") && error.contains("is arm64"),
        "{error}"
    );
}

#[test]
fn warns_if_a_unified_kernel_image_cannot_be_built() {
    let wants_uki = ("etc/kernel/install.conf", "layout=uki\n");
    let systemd = ("usr/lib/systemd/boot/efi/systemd-bootx64.efi.signed", "systemd-boot");
    let (ukify, stub) = (("usr/bin/ukify", ""), ("usr/lib/systemd/boot/efi/linuxx64.efi.stub", ""));
    for (files, lacks) in [
        (&[systemd, wants_uki][..], "not contain ukify"),
        (&[systemd, wants_uki, ukify], "not contain /usr/lib/systemd/boot/efi/linuxx64.efi.stub"),
        (&[systemd, wants_uki, ukify, stub], ""),
        (&[systemd, ukify], ""),
    ] {
        let (_dir, root) = tree(&[&BASE[..], files].concat());
        let (result, _, said) = booted(&root, &uefi());
        let loader = result.unwrap().entries[0].loader.clone();
        assert_eq!(loader.contains("\\EFI\\Linux\\"), files.len() == 4, "{loader}");
        assert_eq!(said.is_empty(), lacks.is_empty(), "{said:?}");
        assert!(said.iter().all(|line| line.starts_with("WARNING: ") && line.contains(lacks)), "{said:?}");
    }
}

fn boot_disks(gap: Option<ByteRange>) -> Vec<BootDisk> {
    ["/dev/sda", "/dev/sdb"].map(|device| BootDisk { device: device.into(), gap, partly_kept: false }).to_vec()
}

const GAP: ByteRange = ByteRange { start: 34 * 512, length: 2014 * 512 };

#[test]
fn grub_for_bios_is_installed_on_every_disk() {
    let bios = BootRequirements { firmware: FirmwareType::Bios, disks: boot_disks(Some(GAP)), ..wants() };
    let boot_img = String::from_utf8([&[b'b'; 510][..], b"\x55"].concat()).unwrap();
    let (_dir, root) =
        tree(&[&BASE[..], &[("usr/lib/grub/i386-pc/ext2.mod", ""), ("usr/bin/grub-mkimage", "")]].concat());
    root.write_file("/usr/lib/grub/i386-pc/boot.img", 0o644, &[boot_img.as_bytes(), b"\xaa"].concat()).unwrap();
    let (result, ran, _) = booted(&root, &bios);
    assert_eq!(result.unwrap().entries, []);
    assert_eq!(ran[0], "cp -r -- /usr/lib/grub/i386-pc/. /boot/grub/i386-pc");
    assert!(ran[1].ends_with("-o /boot/grub/i386-pc/core.img ext2"), "{ran:?}");
    let written = ["/dev/sda", "/dev/sdb"].map(|disk| format!("{disk}: 1024 bytes in 17408+1031168, then 440"));
    assert_eq!(ran[2..], written);
    assert!(root.read_text("/boot/grub/grub.cfg").unwrap().contains("serial --unit=0 --speed=115200\n"));

    let small = BootRequirements { disks: boot_disks(Some(ByteRange { length: 512, ..GAP })), ..bios };
    let error = booted(&root, &small).0.unwrap_err().to_string();
    assert!(error.starts_with("install GRUB on /dev/sda: core.img is 1024 bytes, but only 512"), "{error}");
}

#[test]
fn grub_setup_is_used_without_a_known_gap() {
    let bios = BootRequirements { firmware: FirmwareType::Bios, disks: boot_disks(None), ..wants() };
    let modules = ("usr/lib/grub/i386-pc/ext2.mod", "");
    let boot = ("usr/lib/grub/i386-pc/boot.img", "");
    let setup = ("usr/lib/grub/i386-pc/grub-bios-setup", "");
    let mkimage = ("usr/bin/grub-mkimage", "");
    let (_dir, root) = tree(&[&BASE[..], &[modules, boot, setup, mkimage]].concat());
    let put = |disk| format!("/usr/lib/grub/i386-pc/grub-bios-setup --force -d /boot/grub/i386-pc {disk}");
    assert_eq!(booted(&root, &bios).1[2..], [put("/dev/sda"), put("/dev/sdb")]);

    let (_dir, root) = tree(&[&BASE[..], &[modules, boot, mkimage, ("usr/sbin/grub2-install", "")]].concat());
    let ran = booted(&root, &bios).1;
    assert_eq!(
        ran,
        ["/dev/sda", "/dev/sdb"].map(|disk| format!("/usr/sbin/grub2-install --target=i386-pc --force {disk}"))
    );
}

/// Programs of the image must not access a disk with preserved partitions.
#[test]
fn grub_of_a_partly_kept_disk_is_never_installed_by_programs_of_the_image() {
    let modules = ("usr/lib/grub/i386-pc/ext2.mod", "");
    let boot = ("usr/lib/grub/i386-pc/boot.img", "");
    let setup = ("usr/lib/grub/i386-pc/grub-bios-setup", "");
    let (mkimage, install) = (("usr/bin/grub-mkimage", ""), ("usr/sbin/grub2-install", ""));
    for (files, gap) in [(vec![modules, boot, setup, install], Some(GAP)), (vec![modules, boot, setup, mkimage], None)]
    {
        let disks = boot_disks(gap).into_iter().map(|disk| BootDisk { partly_kept: true, ..disk }).collect();
        let bios = BootRequirements { firmware: FirmwareType::Bios, disks, ..wants() };
        let (_dir, root) = tree(&[&BASE[..], &files].concat());
        let (result, ran, _) = booted(&root, &bios);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("/dev/sda, which has preserved partitions: the image must contain"), "{error}");
        assert!(ran.is_empty(), "{ran:?}");
    }
}

#[test]
fn refusal_of_an_unbootable_tree_lists_searched_paths() {
    let bios = BootRequirements { firmware: FirmwareType::Bios, ..wants() };
    let grub = ("usr/lib/grub/i386-pc/ext2.mod", "");
    let disk = BootRequirements { disks: boot_disks(None), ..bios.clone() };
    type Case<'a> = (Vec<(&'a str, &'a str)>, BootRequirements, &'a str);
    let cases: [Case<'_>; 7] = [
        (vec![], uefi(), "does not contain an init program; paths searched: /sbin/init, /usr/lib/systemd/systemd,"),
        (vec![BASE[0]], uefi(), "does not contain a kernel; paths searched: /boot/loader/entries/*.conf,"),
        (BASE.to_vec(), wants(), "boots in UEFI mode, but the layout does not contain an EFI system partition"),
        (
            BASE.to_vec(),
            bios.clone(),
            "in BIOS mode, but the image does not contain GRUB for BIOS; paths searched: /usr/lib/grub/i386-pc,",
        ),
        ([&BASE[..], &[grub]].concat(), bios, "the root filesystem is not on a disk"),
        (
            [&BASE[..], &[grub]].concat(),
            disk,
            "the image does not contain any of the programs grub-bios-setup, grub2-bios-setup, grub-install",
        ),
        (
            [&BASE[2..], &[BASE[0], ("boot/vmlinuz-6.1", "xxxx")]].concat(),
            uefi(),
            "the firmware cannot start the kernel",
        ),
    ];
    for (files, wants, says) in cases {
        let (_dir, root) = tree(&files);
        let error = booted(&root, &wants).0.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}
