use super::super::boot_setup::tests::wants;
use super::super::file_search::tests::tree;
use super::super::machine_boot_requirements::SystemGroup;
use super::super::testing::Programs;
use super::content::tests::cpio;
use super::*;
use linux::process::{CommandError, ProcessFailure, ToolCommand, ToolOutput};
use std::cell::RefCell;

const DEP: (&str, &str) = (
    "usr/lib/modules/6.1/modules.dep",
    "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko\nkernel/drivers/md/raid1.ko.xz: x\nkernel/drivers/md/dm-mod.ko:\nkernel/a/virtio-x.ko:\n",
);
const EXT4: (&str, &str) = ("lib/modules/6.1/ext4.ko", "");
const UUID: &str = "01234567:89abcdef:01234567:89abcdef";

fn kernel() -> BootKernel {
    let (version, image, initrd) = ("6.1".into(), "/boot/vmlinuz-6.1".into(), "/boot/initrd.img-6.1".into());
    BootKernel { version, image, initrd, words: vec![], entry: None }
}

/// Mock of the target's programs: records each run, and writes `made` as the initramfs.
struct Tools<'a> {
    root: &'a NewRoot,
    made: Option<Vec<u8>>,
    ran: RefCell<Vec<String>>,
}

impl TargetRunner for Tools<'_> {
    fn run_program(&self, program: &str, args: &[&str], deadline: Duration) -> Result<ToolOutput, CommandError> {
        self.ran.borrow_mut().push(format!("{program} {}", args.join(" ")));
        let Some(made) = &self.made else {
            let tail = vec!["dracut: no space".to_owned()];
            return Err(CommandError {
                argv: program.into(),
                end: ProcessFailure::Deadline { limit: deadline, warnings: Vec::new() },
                tail,
            });
        };
        self.root.write_file("/boot/initrd.img-6.1", 0o600, made).unwrap();
        ToolCommand::new("true").run()
    }
}

fn ensured(
    root: &NewRoot,
    wants: &BootRequirements,
    made: Option<Vec<u8>>,
) -> (Result<bool>, Vec<String>, Vec<String>) {
    let tools = Tools { root, made, ran: RefCell::default() };
    let said = RefCell::new(Vec::new());
    let result = ensure_initramfs(root, wants, &kernel(), &tools, &|line| said.borrow_mut().push(line.to_owned()));
    (result, tools.ran.into_inner(), said.into_inner())
}

fn on_array() -> BootRequirements {
    BootRequirements { arrays: vec![array_config::tests::array("root", true)], ..wants() }
}

fn put(root: &NewRoot, files: &[(&str, &str)]) {
    root.write_file("/boot/initrd.img-6.1", 0o600, &cpio(files)).unwrap();
}

#[test]
fn sufficient_initramfs_is_left_unchanged() {
    let mdadm = [EXT4, ("lib/modules/6.1/raid1.ko.xz", ""), ("sbin/mdadm", "")];
    let conf = format!("ARRAY /dev/md/root UUID={UUID}\n");
    let lvm = BootRequirements { groups: vec![SystemGroup { name: "vg".into(), is_mirrored: true }], ..wants() };
    let with = |more: &[(&'static str, &'static str)]| [&mdadm[..], more].concat();
    for (wants, files) in [
        (wants(), vec![EXT4]),
        (on_array(), with(&[])),
        (on_array(), with(&[("etc/mdadm/mdadm.conf", "HOMEHOST <system>\n")])),
        (lvm, vec![EXT4, mdadm[1], ("lib/modules/6.1/dm-mod.ko", ""), ("sbin/lvm", "")]),
    ] {
        let (_dir, root) = tree(&[DEP, ("usr/sbin/update-initramfs", "")]);
        put(&root, &files);
        let (result, ran, said) = ensured(&root, &wants, None);
        assert!(!result.unwrap() && ran.is_empty() && said.is_empty(), "{files:?}: {said:?}");
    }
    let (_dir, root) = tree(&[DEP]);
    put(&root, &[&mdadm[..], &[("etc/mdadm.conf", &conf), ("usr/lib/dracut/x", "")]].concat());
    assert!(ensured(&root, &on_array(), None).0.unwrap());
}

#[test]
fn initramfs_that_cannot_mount_usr_or_a_mirrored_volume_is_rebuilt() {
    let separate = BootRequirements { usr_format: Some(FilesystemFormat::Xfs), ..wants() };
    let volume = BootRequirements { groups: vec![SystemGroup { name: "vg".into(), is_mirrored: true }], ..wants() };
    for (wants, driver) in [(separate, "xfs"), (volume, "raid1")] {
        let modules = "kernel/ext4.ko:\nkernel/xfs.ko:\nkernel/raid1.ko:\nkernel/dm-raid.ko:\nkernel/dm-mod.ko:\n";
        let dep = ("usr/lib/modules/6.1/modules.dep", modules);
        let (_dir, root) = tree(&[dep, ("usr/sbin/update-initramfs", ""), ("usr/sbin/lvm", "")]);
        let file = format!("lib/modules/6.1/{driver}.ko");
        let others = [EXT4, ("lib/dm-mod.ko", ""), ("lib/dm-raid.ko", ""), ("sbin/lvm", "")];
        put(&root, &others);
        let (result, ran, said) = ensured(&root, &wants, Some(cpio(&[&others[..], &[(file.as_str(), "")]].concat())));
        result.unwrap();
        assert_eq!(ran, ["/usr/sbin/update-initramfs -u -k 6.1"], "{driver}");
        assert!(said[0].ends_with(&format!("because the image's initramfs lacks {driver}")), "{said:?}");
    }
}

#[test]
fn initramfs_is_rebuilt_with_the_tool_of_the_image() {
    let whole = cpio(&[EXT4, ("lib/modules/6.1/raid1.ko", ""), ("sbin/mdadm", ""), ("lib/dracut/x", "")]);
    let cases = [
        (
            "usr/sbin/update-initramfs",
            "/usr/sbin/update-initramfs -u -k 6.1",
            "/etc/initramfs-tools/modules",
            "\nraid1\n",
        ),
        (
            "usr/bin/dracut",
            "/usr/bin/dracut --force --no-hostonly --kver 6.1 /boot/initrd.img-6.1",
            "/etc/dracut.conf.d/drophammer.conf",
            "add_drivers+=\" ext4 raid1 \"\nadd_dracutmodules+=\" mdraid \"",
        ),
        (
            "usr/bin/mkinitcpio",
            "/usr/bin/mkinitcpio -k 6.1 -g /boot/initrd.img-6.1",
            "/etc/mkinitcpio.conf.d/drophammer.conf",
            "MODULES+=(ext4 raid1)\nHOOKS+=(mdadm_udev)\n",
        ),
    ];
    for (tool, ran, settings, text) in cases {
        let (_dir, root) = tree(&[DEP, (tool, ""), ("usr/sbin/mdadm", "")]);
        put(&root, &[EXT4]);
        let (result, did, said) = ensured(&root, &on_array(), Some(whole.clone()));
        assert!(result.unwrap());
        assert_eq!(did, [ran]);
        assert!(root.read_text(settings).unwrap().contains(text), "{}", root.read_text(settings).unwrap());
        assert!(said[0].contains("because the image's initramfs lacks the program mdadm, lacks raid1"), "{said:?}");
        assert!(said[1].contains(" took "), "{said:?}");
    }
    // mkinitfs of Alpine selects drivers itself.
    let (_dir, root) = tree(&[DEP, ("sbin/mkinitfs", "")]);
    let (result, did, said) = ensured(&root, &wants(), Some(cpio(&[EXT4])));
    assert!(!result.unwrap());
    assert_eq!(did, ["/sbin/mkinitfs -o /boot/initrd.img-6.1 6.1"]);
    assert!(!root.path_exists("/etc/mkinitfs"));
    assert!(
        said[0].starts_with(
            "tool mkinitfs builds the initramfs for kernel 6.1, because the image does not contain an initramfs"
        ),
        "{said:?}"
    );
    let own = ("etc/mkinitfs/mkinitfs.conf", "features=\"ata base ext4\"\n");
    let (_dir, root) = tree(&[DEP, own, ("sbin/mkinitfs", ""), ("sbin/mdadm", ""), ("sbin/lvm", "")]);
    let mut wants = on_array();
    wants.groups = vec![SystemGroup { name: "vg".into(), is_mirrored: false }];
    // The initramfs that the mock writes does not contain lvm.
    ensured(&root, &wants, Some(whole.clone())).0.unwrap_err();
    let mkinitfs = "# written by drophammer\nfeatures=\"$features raid\"\nfeatures=\"$features lvm\"\n";
    assert_eq!(root.read_text("/etc/mkinitfs/mkinitfs.conf").map_err(|_| ()), Ok(format!("{}{mkinitfs}", own.1)));
    // The initramfs is for an array of another machine.
    let (_dir, root) = tree(&[DEP, ("usr/sbin/update-initramfs", ""), ("usr/sbin/mdadm", "")]);
    let other = ("etc/mdadm/mdadm.conf", "ARRAY /dev/md/root UUID=1:2:3:4\n");
    put(&root, &[EXT4, ("lib/raid1.ko", ""), ("sbin/mdadm", ""), other]);
    let (result, _, said) = ensured(&root, &on_array(), Some(whole));
    result.unwrap();
    assert!(said[0].contains(&format!("does not start array {UUID}")), "{said:?}");
}

#[test]
fn failed_initramfs_build_is_reported() {
    let tool = ("usr/bin/dracut", "");
    let mdadm = ("usr/sbin/mdadm", "");
    let none = || Some(cpio(&[]));
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<Vec<u8>>, &'a str);
    let cases: [Case<'_>; 4] = [
        (
            &[DEP, mdadm],
            none(),
            "the image does not contain any of the programs update-initramfs, dracut, mkinitcpio, mkinitfs; the initramfs must be built because the image does not contain an initramfs",
        ),
        (&[DEP, tool], none(), "requires mdadm, which the image does not contain"),
        (&[DEP, tool, mdadm], none(), "the initramfs built by dracut lacks the program mdadm, lacks ext4"),
        (
            &[DEP, tool, mdadm],
            None,
            "build the initramfs for kernel 6.1 with dracut: `/usr/bin/dracut` did not end within 600 s and was killed: dracut: no space",
        ),
    ];
    for (files, made, says) in cases {
        let (_dir, root) = tree(files);
        let error = ensured(&root, &on_array(), made).0.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let (_dir, root) = tree(&[DEP, tool, mdadm]);
    let error = ensure_initramfs(&root, &on_array(), &kernel(), &Programs::failing(), &|_| {}).unwrap_err().to_string();
    assert!(error.starts_with("build the initramfs for kernel 6.1 with dracut: `/usr/bin/dracut --force"), "{error}");
    assert!(error.ends_with("exited with 1: no"), "{error}");
    // The unreadable initramfs was overwritten by one that is known to be insufficient.
    let (_dir, root) = tree(&[DEP, tool, mdadm, ("boot/initrd.img-6.1", "no archive")]);
    let (result, _, said) = ensured(&root, &on_array(), none());
    result.unwrap_err();
    assert!(
        said[0].contains("because the image's initramfs cannot be read: unsupported format; supported formats: cpio"),
        "{said:?}"
    );
}

#[test]
fn builtin_or_unknown_drivers_are_not_required() {
    let (_dir, root) = tree(&[DEP]);
    let drivers = ["virtio_x", "ahci"].map(str::to_owned);
    assert_eq!(
        list_requirements(&root, &wants(), "6.1", &drivers),
        ["virtio_x", "ext4"].map(|name| InitramfsRequirement::Module(name.into()))
    );
}

/// Compressed formats that are not supported, given by their magic numbers.
#[test]
fn unknown_initramfs_format_does_not_fail_the_installation() {
    let lz4 = [0x02, 0x21, 0x4c, 0x18, 1, 2, 3, 4];
    let lzo = [0x89, b'L', b'Z', b'O', 0, 13, 10, 26, 10];
    let lzma = [0x5d, 0, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff];
    for format in [&lz4[..], b"BZh91AY&SY", &lzma, &lzo, b"no known format"] {
        let (_dir, root) = tree(&[DEP]);
        root.write_file("/boot/initrd.img-6.1", 0o600, format).unwrap();
        let (result, ran, said) = ensured(&root, &on_array(), None);
        assert!(result.unwrap() && ran.is_empty(), "{ran:?}");
        assert!(said[0].starts_with("WARNING: the image's initramfs cannot be read") && said.len() == 1, "{said:?}");

        // The program of the array is missing, or the tool fails.
        for files in [&[DEP, ("usr/bin/dracut", "")][..], &[DEP, ("usr/bin/dracut", ""), ("sbin/mdadm", "")]] {
            let (_dir, root) = tree(files);
            root.write_file("/boot/initrd.img-6.1", 0o600, format).unwrap();
            let (result, _, said) = ensured(&root, &on_array(), None);
            assert!(result.unwrap(), "{files:?}");
            let warning = said.last().unwrap();
            assert!(warning.contains("/boot/initrd.img-6.1 is used unchanged, because"), "{said:?}");
        }

        let (_dir, root) = tree(&[DEP, ("usr/bin/dracut", ""), ("sbin/mdadm", "")]);
        root.write_file("/boot/initrd.img-6.1", 0o600, format).unwrap();
        let (result, ran, said) = ensured(&root, &on_array(), Some(format.to_vec()));
        assert!(result.unwrap() && ran.len() == 1, "{ran:?}");
        assert!(said.last().unwrap().contains("cannot be verified"), "{said:?}");
    }
}
