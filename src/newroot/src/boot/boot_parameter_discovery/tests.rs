//! Boot parameters of images with various boot loaders.

use super::super::boot_info::read_boot_info;
use super::*;
use std::fs;
use std::path::Path;

const DEBIAN: &str = "set default=0\nif [ x = x ]; then\n  set linux_gfx_mode=keep\nfi\nmenuentry 'Debian' {\n\
    \tlinux\t/boot/vmlinuz-6.1 root=UUID=1-2 ro  console=ttyS0 ${extra} \"quiet\"\n\tinitrd\t/boot/ucode.img /boot/initrd.img-6.1\n}\n\
    menuentry 'old' {\n\tlinux /boot/vmlinuz-5.10 single\n\tinitrd /boot/initrd.img-5.10\n}\n";

fn write_info(root: &NewRoot, has_loader: bool) -> Result<BootSource> {
    write_missing_boot_info(root, has_loader, &PreservedEsps::default())
}

/// The entry, the variables, and the kernel on the preserved partition belong to another system.
#[test]
fn boot_configuration_on_a_preserved_esp_is_not_that_of_the_image() {
    let preserved = crate::system_setup::preserved_esps::tests::at_boot_efi();
    let entry = ("boot/efi/loader/entries/other.conf", "linux /vmlinuz-9\noptions root=UUID=2\n");
    let unified = ("boot/efi/EFI/Linux/other.efi", "k");
    let (_dir, root) = tree(&[entry, unified, ("boot/efi/vmlinuz-9", "k"), ("boot/efi/vmlinuz-6.1", "k")]);
    let error = write_missing_boot_info(&root, false, &preserved).unwrap_err().to_string();
    assert!(error.starts_with("the image does not specify a kernel to boot"), "{error}");
    let BootSource::Firmware { known, .. } = write_missing_boot_info(&root, true, &preserved).unwrap() else {
        panic!()
    };
    assert_eq!(known.kernel, "");
    root.write_file("/boot/grub/grub.cfg", 0o644, b"linux /vmlinuz-6.1 root=UUID=1\n").unwrap();
    let error = write_missing_boot_info(&root, false, &preserved).unwrap_err().to_string();
    assert!(error.contains("refers to /vmlinuz-6.1, which does not exist"), "{error}");
    root.write_file("/boot/vmlinuz-6.1", 0o644, b"k").unwrap();
    write_missing_boot_info(&root, false, &preserved).unwrap();
    assert_eq!(read_boot_info(&root).unwrap().kernel, "/boot/vmlinuz-6.1");
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn first_entry_of_the_grub_menu_is_used() {
    let debian = BlsEntry {
        kernel: "/boot/vmlinuz-6.1".into(),
        initrd: "/boot/initrd.img-6.1".into(),
        words: words("root=UUID=1-2 ro console=ttyS0 quiet"),
        unset: vec!["extra".into()],
        has_unknown_path: false,
        has_separator: false,
    };
    let plain = BlsEntry { kernel: "/vmlinuz".into(), words: words("a=b"), ..BlsEntry::default() };
    let cases = [
        (DEBIAN, Some(debian)),
        ("menuentry x {\n linuxefi ($root)/vmlinuz a=b\n}\nmenuentry y {\n initrd /other\n}\n", Some(plain)),
        ("linux\n", None),
        ("configfile /other\n", None),
        ("", None),
    ];
    for (text, expected) in cases {
        assert_eq!(parse_grub_menu(text, &ShellVariables::new()), expected, "{text}");
    }
}

fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, NewRoot) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = NewRoot::open(dir.path()).unwrap();
    (dir, root)
}

#[test]
fn discovered_boot_configuration_becomes_boot_info() {
    let own = ("etc/os-release", "NAME=x\nID=\"debian\"\n");
    let grub = ("boot/grub/grub.cfg", DEBIAN);
    let (_dir, root) = tree(&[own, grub, ("boot/vmlinuz-6.1", "k"), ("boot/initrd.img-6.1", "i")]);
    assert_eq!(write_info(&root, true).unwrap(), BootSource::Config("/boot/grub/grub.cfg".into()));
    let expected = BootInfo {
        kernel: "/boot/vmlinuz-6.1".into(),
        initrd: "/boot/initrd.img-6.1".into(),
        cmdline: "root=UUID=1-2 ro console=ttyS0 quiet".into(),
        bootloader_id: "debian".into(),
    };
    assert_eq!(read_boot_info(&root).unwrap(), expected);
    // An existing file is preserved.
    assert_eq!(write_info(&root, true).unwrap(), BootSource::BootInfo);

    let entry = |version: u32| format!("linux /vmlinuz-{version}\noptions root=LABEL=r\n");
    let (older, newer) = (entry(5), entry(6));
    let entries = [("boot/loader/entries/a-5.conf", older.as_str()), ("boot/loader/entries/a-6.conf", &newer)];
    let (_dir, root) = tree(&[entries[0], entries[1], ("boot/vmlinuz-6", "k")]);
    write_info(&root, true).unwrap();
    let boot = read_boot_info(&root).unwrap();
    assert_eq!(
        (boot.kernel.as_str(), boot.initrd.as_str(), boot.cmdline.as_str()),
        ("/boot/vmlinuz-6", "", "root=LABEL=r")
    );
    assert_eq!(boot.bootloader_id, "image");
}

#[test]
fn newest_entry_is_booted() {
    let cases = [
        (["a-6.9.conf", "a-6.10.conf"], "a-6.10.conf"),
        (["a-6.1.0-31-amd64.conf", "a-6.1.0-9-amd64.conf"], "a-6.1.0-31-amd64.conf"),
        (["a-6.1.conf", "a-6.1.1.conf"], "a-6.1.1.conf"),
        (["a-0-rescue.conf", "a-6.1.conf"], "a-6.1.conf"),
        (["a-006.conf", "a-6.1.conf"], "a-6.1.conf"),
        (["b-6.1.conf", "a-6.2.conf"], "b-6.1.conf"),
        (
            ["99999999999999999999999999999999.conf", "100000000000000000000000000000000.conf"],
            "100000000000000000000000000000000.conf",
        ),
    ];
    for (names, newest) in cases {
        let paths = names.map(|name| format!("boot/loader/entries/{name}"));
        let texts = names.map(|name| format!("linux /vmlinuz\noptions root=LABEL={name}\n"));
        let files: Vec<_> = paths.iter().zip(&texts).map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (_dir, root) = tree(&[&files[..], &[("boot/vmlinuz", "k"), ("boot/loader/entries/z.old", "")]].concat());
        write_info(&root, true).unwrap();
        assert_eq!(read_boot_info(&root).unwrap().cmdline, format!("root=LABEL={newest}"));
    }
}

const EL8: &str = "title RHEL\nversion 4.18\nlinux /vmlinuz-4.18\ninitrd /initramfs-4.18.img $tuned_initrd\n\
    options $kernelopts $tuned_params\nid rhel-1\n";

#[test]
fn grub_variables_are_resolved_or_left_to_the_firmware() {
    let base = [("boot/vmlinuz-4.18", "k"), ("boot/initramfs-4.18.img", "i")];
    let el8 = ("boot/loader/entries/a-4.18.conf", EL8);
    let block = "# GRUB Environment Block\nsaved_entry=1\nkernelopts=root=UUID=1232991f ro crashkernel=auto \n####";
    let block = ("boot/grub2/grubenv", block);
    let config = ("boot/grub2/grub.cfg", "set kernelopts=\"root=UUID=2 ro\"\n");
    let path = "boot/loader/entries/a.conf";
    let coreos = (path, "linux /vmlinuz-4.18\noptions $ignition_firstboot root=LABEL=root\n");
    let unknown_initrd = (path, "linux /vmlinuz-4.18\ninitrd $own\noptions root=LABEL=root\n");
    let first = ("boot/grub2/grub.cfg", "set ignition_firstboot=\"ignition.firstboot\"\n");
    let quoted = (path, "linux /vmlinuz-4.18\noptions root=LABEL=root \"ds=nocloud;s=http://10.0.0.1/\"\n");
    let ok = [
        (&[el8, block][..], "root=UUID=1232991f ro crashkernel=auto"),
        (&[el8, block, config], "root=UUID=1232991f ro crashkernel=auto"),
        (&[el8, config], "root=UUID=2 ro"),
        (&[coreos, first], "ignition.firstboot root=LABEL=root"),
        (&[quoted], "root=LABEL=root ds=nocloud;s=http://10.0.0.1/"),
    ];
    for (files, cmdline) in ok {
        let (_dir, root) = tree(&[&base[..], files].concat());
        assert!(matches!(write_info(&root, true).unwrap(), BootSource::Config(_)), "{files:?}");
        assert_eq!(read_boot_info(&root).unwrap().cmdline, cmdline);
        let initrd = if files[0] == el8 { "/boot/initramfs-4.18.img" } else { "" };
        assert_eq!(read_boot_info(&root).unwrap().initrd, initrd);
    }
    let separated = (path, "linux /vmlinuz-4.18\noptions root=LABEL=root ds=nocloud;s=http://10.0.0.1/ quiet\n");
    let unresolved = [
        (el8, "$kernelopts"),
        (coreos, "$ignition_firstboot"),
        (unknown_initrd, "$own"),
        (separated, "an unquoted semicolon"),
    ];
    for (file, name) in unresolved {
        let (_dir, root) = tree(&[&base[..], &[file]].concat());
        let source = write_info(&root, true).unwrap();
        let BootSource::Firmware { known, reason } = source else { panic!("{source:?}") };
        assert!(known.kernel == "/boot/vmlinuz-4.18" && reason.contains(name), "{reason}");
        assert!(root.open_file(PATH).is_err());
    }
}

#[test]
fn unknown_kernel_is_left_to_the_boot_loader() {
    let uki = "boot/efi/EFI/Linux/arch-linux.efi";
    let uki_entry = ("boot/loader/entries/a.conf", "title x\nuki /EFI/Linux/arch-linux.efi\n");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case; 6] = [
        (&[("etc/hostname", "x")], "the image does not specify a kernel to boot", ""),
        (&[(uki, "MZ")], "the image does not specify a kernel to boot", "/boot/efi/EFI/Linux/arch-linux.efi"),
        (&[uki_entry], "the image's /boot/loader/entries/a.conf does not specify a kernel", ""),
        (&[("boot/grub/grub.cfg", "configfile x")], "the image's /boot/grub/grub.cfg does not specify a kernel", ""),
        (
            &[("boot/grub/grub.cfg", DEBIAN)],
            "refers to /boot/initrd.img-6.1, which does not exist on the mounted filesystems",
            "",
        ),
        (
            &[("boot/grub/grub.cfg", DEBIAN), ("boot/initrd.img-6.1", "i")],
            "refers to /boot/vmlinuz-6.1, which does not exist on the mounted filesystems",
            "",
        ),
    ];
    for (files, says, kernel) in cases {
        let (_dir, root) = tree(files);
        let error = write_info(&root, false).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        let source = write_info(&root, true).unwrap();
        let BootSource::Firmware { known, reason } = source else { panic!("{source:?}") };
        assert_eq!((reason, known.kernel.as_str()), (error, kernel));
        assert!(root.open_file(PATH).is_err());
    }
}

/// Arguments of images with discoverable partitions (systemd) and of images with dm-verity. `has_loader` is false
/// for an image that was unpacked as files.
#[test]
fn entry_without_root_is_left_to_the_boot_loader() {
    for (options, has_loader, is_kexec) in [
        ("rw quiet", true, false),
        ("rootflags=subvol=root rootfstype=btrfs", true, false),
        ("", true, false),
        ("rw quiet", false, true),
        ("root=gpt-auto rw", true, true),
        ("roothash=0123", true, true),
        ("\"root=LABEL=a b\"", true, true),
    ] {
        let entry = format!("linux /vmlinuz\noptions {options}\n");
        let (_dir, root) = tree(&[("boot/loader/entries/a.conf", &entry), ("boot/vmlinuz", "k")]);
        let source = write_info(&root, has_loader).unwrap();
        assert_eq!(matches!(source, BootSource::Config(_)), is_kexec, "{options}: {source:?}");
        assert_eq!(root.open_file(PATH).is_ok(), is_kexec, "{options}");
    }
}
