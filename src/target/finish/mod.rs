//! Finishing of an image: makes the system bootable on this machine and accessible to its owner, by the image's
//! installer or without one.

mod arrays;
pub mod bls;
mod boot;
mod command_line;
pub mod contents;
mod crypttab;
pub mod distribution;
mod esp;
mod identity;
mod initramfs;
mod kernel;
mod loader;
mod metal;
mod metal_user;
mod moved;
mod network;
mod os_installer;
mod overrides;
mod owner;
mod places;
#[cfg(test)]
mod recorded;
mod seed;
#[cfg(test)]
mod testing;
mod user_data;
mod wants;

pub use boot::Booting;
pub use moved::{Adapted, Came, moved};

use super::chroot::Chroot;
use super::files::userdata;
use super::{Root, fstab, installer};
use crate::allocation::Finish;
use crate::error::{Error, Phase, Result};
use crate::plan::Finishing;
use boot::{BootWants, Bootable};
use distribution::Distribution;
use overrides::{Overrides, task};
use owner::Owners;
use std::thread;
use time::OffsetDateTime;

/// SELinux configuration; files written here have no security labels.
const SELINUX: &str = "/etc/selinux/config";
const RELABEL: &str = "/.autorelabel";

type Say<'a> = &'a (dyn Fn(&str) + Sync);

/// Component that finishes the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Installer of metal-stack's images until 2026.
    Installer(&'static str),
    /// os-installer of later metal-stack images.
    OsInstaller(&'static str),
    Us,
    Nobody,
}

impl Who {
    /// Selects the component.
    ///
    /// # Errors
    /// An installer of the image is required but missing.
    pub fn of(root: &Root, way: Finish) -> Result<Who> {
        let installer = || installer::find(root).map(Who::Installer).or(os_installer::find(root).map(Who::OsInstaller));
        match way {
            Finish::Auto => Ok(installer().unwrap_or(Who::Us)),
            Finish::Image => installer().ok_or_else(|| {
                let looked = installer::INSTALLERS.join(" nor ");
                Error::new(
                    Phase::Target,
                    format!("the image does not contain an installer: neither {looked} nor os-installer"),
                )
            }),
            Finish::Builtin => Ok(Who::Us),
            Finish::None => Ok(Who::Nobody),
        }
    }

    /// Returns whether the console password is read in clear text from `install.yaml`.
    pub fn reads_password(self) -> bool {
        match self {
            Who::Installer(_) | Who::Nobody => true,
            Who::OsInstaller(_) | Who::Us => false,
        }
    }
}

/// Boot information of the installed system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boots {
    /// Written by the image's installer.
    Written,
    /// Created here.
    Made(Booting),
    /// Unknown.
    Unsaid,
}

/// Finishes an image that was unpacked as files. `root_uuid` is the UUID of the root filesystem.
///
/// # Errors
/// The failed step, with the last lines of output of its program.
pub fn tree(root: &Root, finishing: &Finishing, root_uuid: &str, now: OffsetDateTime, say: Say) -> Result<Boots> {
    match Who::of(root, finishing.way)? {
        Who::Us => {
            let overrides = Overrides::of(root)?;
            let distribution = Distribution::named(root, overrides.system.as_deref());
            say(&match &distribution.doubt {
                Some(doubt) => format!("WARNING: {doubt}"),
                None => {
                    format!("{} {} without an installer: finished by drophammer", distribution.id, distribution.version)
                }
            });
            let wants = wants::of(finishing, &distribution, &overrides, root_uuid);
            let bootable = boot::look(root, &wants, say)?;
            fstab::write(root, &finishing.fstab)?;
            crypttab::forget(root, say)?;
            let tree = Tree { distribution: &distribution, overrides: &overrides, root_uuid };
            let made = make_own(root, finishing, &tree, Some((&wants, bootable)), now, say)?;
            Ok(made.map_or(Boots::Unsaid, Boots::Made))
        }
        Who::Nobody => {
            say("the image is not changed");
            Ok(Boots::Unsaid)
        }
        who => by_the_image(root, finishing, who, root_uuid, say),
    }
}

/// Finishes a raw image, whose boot loader is preserved.
///
/// # Errors
/// As for [`tree`].
pub fn raw(root: &Root, finishing: &Finishing, root_uuid: &str, now: OffsetDateTime, say: Say) -> Result<Boots> {
    match Who::of(root, finishing.way)? {
        Who::Us if finishing.way == Finish::Auto => {
            say("the image does not contain an installer and is not changed");
            let files = &finishing.files;
            user_data::seed(root, files, &userdata(&files.assigned.allocation.user_data), say)?;
            if user_data::has_cloud_init(root) {
                network::seed(root, &finishing.network, &files.nics)?;
            }
            seed::bring(root, finishing.seed.as_ref(), say)?;
            Ok(Boots::Unsaid)
        }
        Who::Us => {
            let overrides = Overrides::of(root)?;
            let distribution = Distribution::named(root, overrides.system.as_deref());
            let tree = Tree { distribution: &distribution, overrides: &overrides, root_uuid };
            make_own(root, finishing, &tree, None, now, say)?;
            Ok(Boots::Unsaid)
        }
        Who::Nobody => {
            say("the image is not changed");
            Ok(Boots::Unsaid)
        }
        who => by_the_image(root, finishing, who, root_uuid, say),
    }
}

fn by_the_image(root: &Root, finishing: &Finishing, who: Who, root_uuid: &str, say: Say) -> Result<Boots> {
    let chroot = Chroot::open(root, &finishing.devices, say)?.telling(&finishing.environment);
    let ran = match who {
        Who::Installer(program) => {
            os_installer::write_lvm(root).and_then(|()| installer::run(root, program, installer::DEADLINE, &chroot))
        }
        Who::OsInstaller(program) => {
            os_installer::run(root, program, &finishing.files, root_uuid, installer::DEADLINE, &chroot)
        }
        Who::Us | Who::Nobody => Ok(()),
    };
    // The installer's own error is more informative than that of a mount it left busy.
    ran.and(chroot.finish())?;
    Ok(Boots::Written)
}

/// Properties of a target.
struct Tree<'a> {
    distribution: &'a Distribution,
    overrides: &'a Overrides,
    /// UUID of its root filesystem.
    root_uuid: &'a str,
}

/// Applies the machine's and owner's settings, and makes the system bootable if `boots` is given.
fn make_own(
    root: &Root,
    finishing: &Finishing,
    tree: &Tree,
    boots: Option<(&BootWants, Bootable)>,
    now: OffsetDateTime,
    say: Say,
) -> Result<Option<Booting>> {
    let Tree { distribution, overrides, .. } = tree;
    let user_data = userdata(&finishing.files.assigned.allocation.user_data);
    overrides.said().iter().for_each(|line| say(line));
    write_own(root, finishing, tree, &user_data, now, say)?;
    let ignition = Some(()).filter(|()| overrides.has(task::USER_DATA));
    let ignition = ignition.and_then(|()| user_data::ignition(root, &user_data, say));
    let needs_keys = identity::needs_host_keys(root, distribution, user_data::has_cloud_init(root));
    let script = overrides.script.as_ref().filter(|_| overrides.has(task::SCRIPT));
    let enabling = match overrides.has(task::NETWORK) {
        true => network::write(root, &finishing.network, &finishing.files.nics, say)?,
        false => None,
    };
    seed::bring(root, finishing.seed.as_ref(), say)?;
    if boots.is_none() && ignition.is_none() && !needs_keys && script.is_none() && enabling.is_none() {
        return Ok(None);
    }
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let run = || {
        if let Some(program) = ignition {
            user_data::ignite(root, program, &user_data, &chroot, say)?;
        }
        enabling.iter().try_for_each(|enabling| network::enable(enabling, &chroot))?;
        boots.map(|(wants, found)| boot::boot(root, wants, found, &chroot, say)).transpose()
    };
    // Generating keys takes seconds of CPU time, and only the script of the image may need them.
    let made = thread::scope(|scope| {
        let keys = needs_keys.then(|| scope.spawn(|| identity::make_host_keys(root, &chroot)));
        let booting = run();
        let panicked = |_| Err(Error::new(Phase::Target, "a thread of drophammer panicked; see the console"));
        let keys = keys.map_or(Ok(()), |keys| keys.join().unwrap_or_else(panicked));
        booting.and_then(|booting| keys.map(|()| booting))
    });
    let run = || {
        let booting = made?;
        script.iter().try_for_each(|script| script.run(installer::DEADLINE, &chroot))?;
        Ok(booting)
    };
    let ran = run();
    // A program's error is more informative than that of a mount it left busy.
    let left = chroot.finish();
    ran.and_then(|booting| left.map(|()| booting))
}

/// Applies settings that do not require programs of the image.
fn write_own(
    root: &Root,
    finishing: &Finishing,
    tree: &Tree,
    user_data: &[u8],
    now: OffsetDateTime,
    say: Say,
) -> Result<()> {
    let (files, overrides) = (&*finishing.files, tree.overrides);
    let allocation = &files.assigned.allocation;
    identity::make_own(root, &allocation.hostname, overrides)?;
    if overrides.is_metal {
        metal::make_own(root, finishing, tree, now, say)?;
    }
    let owners = Owners::of(root, user_data::cloud_user(root).as_deref());
    if !allocation.ssh_pub_keys.is_empty() && overrides.has(task::KEYS) {
        owner::let_in(root, &owners.keys, &allocation.ssh_pub_keys)?;
        say(&format!("SSH keys of {}: {}", owners.keys.name, allocation.ssh_pub_keys.len()));
    }
    if !allocation.console_password.is_empty() {
        owner::set_password(root, &owners.password, &allocation.console_password, now)?;
        say(&format!("console password set for {}", owners.password.name));
    }
    if overrides.has(task::USER_DATA) {
        user_data::seed(root, files, user_data, &|line| say(line))?;
    }
    if has_selinux(root) {
        root.write(RELABEL, 0o644, b"")?;
        say("SELinux relabels all files at the first boot, which takes a while and reboots once");
    }
    Ok(())
}

fn has_selinux(root: &Root) -> bool {
    let text = root.read(SELINUX).unwrap_or_default();
    let mode = text.lines().find_map(|line| line.trim().strip_prefix("SELINUX="));
    mode.is_some_and(|mode| ["enforcing", "permissive"].contains(&mode.trim()))
}

#[cfg(test)]
mod tests {
    use super::testing::{names, said, tree as made};
    use super::*;
    use crate::allocation::Allocation;
    use crate::inventory::Firmware;
    use crate::plan::{Assigned, Esp, FstabEntry, MachineFiles};
    use crate::target::testing;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-21 01:02:03 UTC);

    fn finishing(way: Finish) -> Finishing {
        let allocation = Allocation {
            id: "a-1".into(),
            hostname: "web-1".into(),
            console_password: "secret".into(),
            user_data: "#cloud-config\n".into(),
            ..Allocation::default()
        };
        let entry = FstabEntry {
            source: "UUID=1".into(),
            path: "/".into(),
            format: crate::layout::Format::Ext4,
            options: vec![],
            pass: 1,
        };
        let assigned = Assigned { allocation, ..Assigned::default() };
        let files = Box::new(MachineFiles { assigned, ..MachineFiles::default() });
        let esp = Esp { device: "/dev/sda1".into(), path: Some("/boot/efi".into()), ..Esp::default() };
        let (firmware, esps) = (Firmware::Uefi, vec![esp]);
        Finishing { way, firmware, esps, fstab: vec![entry], files, ..Finishing::default() }
    }

    /// As a tree without an installer is made the owner's.
    fn owned(root: &Root, finishing: &Finishing) -> Vec<String> {
        let (distribution, overrides) = (Distribution::of(root), Overrides::of(root).unwrap());
        let tree = Tree { distribution: &distribution, overrides: &overrides, root_uuid: "r-uuid" };
        let (done, lines) = said(|say| make_own(root, finishing, &tree, None, NOW, say));
        assert_eq!(done.unwrap(), None);
        lines
    }

    #[test]
    fn who_finishes_follows_from_the_way_and_from_the_image() {
        let (go, os) = (("install-go", ""), ("usr/bin/os-installer", ""));
        for (files, way, who) in [
            (&[][..], Finish::Auto, Some(Who::Us)),
            (&[go, os], Finish::Auto, Some(Who::Installer("/install-go"))),
            (&[os], Finish::Auto, Some(Who::OsInstaller("/usr/bin/os-installer"))),
            (&[("etc/metal/os-installer.yaml", "")], Finish::Auto, Some(Who::Us)),
            (&[go], Finish::Builtin, Some(Who::Us)),
            (&[go], Finish::None, Some(Who::Nobody)),
            (&[go], Finish::Image, Some(Who::Installer("/install-go"))),
            (&[], Finish::Image, None),
        ] {
            let (_dir, root) = made(files);
            assert_eq!(Who::of(&root, way).ok(), who, "{files:?}");
        }
        let error = Who::of(&made(&[]).1, Finish::Image).unwrap_err().to_string();
        assert_eq!(
            error,
            "the image does not contain an installer: neither /install-go nor /install.sh nor os-installer"
        );
    }

    #[test]
    fn a_tree_without_an_installer_becomes_the_owners() {
        let (_dir, root) = made(&[
            ("etc/os-release", "ID=debian\nVERSION_ID=\"13\"\n"),
            ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
            ("etc/shadow", "root:*:1:0:99999:7:::\n"),
            ("usr/bin/cloud-init", ""),
        ]);
        assert_eq!(
            owned(&root, &finishing(Finish::Auto)),
            [
                "console password set for root",
                "cloud-init's seed was written to /var/lib/cloud/seed/nocloud",
                "the network is configured by cloud-init",
            ]
        );
        assert_eq!(root.read("/etc/hostname").unwrap(), "web-1\n");
        assert!(root.read("/etc/shadow").unwrap().starts_with("root:$6$"));
        assert!(!root.has(RELABEL));
    }

    /// The files of metal-stack's Debian 12 of August 2026 that are looked at, without the program.
    fn metal_tree(settings: &str) -> (tempfile::TempDir, Root) {
        made(&[
            ("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n"),
            ("etc/debian_version", "12.11\n"),
            ("etc/hostname", "buildkit\n"),
            (".dockerenv", ""),
            ("etc/machine-id", "b08dfa6083e7567a1921a715000001fb\n"),
            ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
            ("etc/group", "root:x:0:\nsudo:x:27:\n"),
            ("etc/shadow", "root:*:1:0:99999:7:::\n"),
            ("home/metal/.bashrc", ""),
            (
                "etc/chrony/chrony.conf",
                "pool 2.debian.pool.ntp.org iburst\nsourcedir /etc/chrony/sources.d\ndriftfile /d\n",
            ),
            ("etc/lvm/lvm.conf", ""),
            ("usr/lib/systemd/systemd", ""),
            ("usr/lib/systemd/systemd-networkd", ""),
            ("etc/metal/os-installer.yaml", settings),
        ])
    }

    fn of_metal_stack() -> Finishing {
        let mut finishing = finishing(Finish::Auto);
        let allocation = &mut finishing.files.assigned.allocation;
        allocation.user_data.clear();
        allocation.dns_servers = serde_json::json!([{"ip": "10.0.0.53"}]);
        allocation.ntp_servers = serde_json::json!([{"address": "10.0.0.123"}, {"address": "10.0.0.124"}]);
        finishing
    }

    #[test]
    fn a_tree_for_os_installer_is_finished_as_that_would_do_it() {
        let (_dir, root) = metal_tree("os_name: ubuntu\noverwrites: {bootloader_id: metal-own}\n");
        let lines = owned(&root, &of_metal_stack());
        assert_eq!(lines[0], "user metal was created with group sudo");
        assert_eq!(lines[1], "console password set for metal");
        assert!(root.read("/etc/shadow").unwrap().contains("\nmetal:$6$"));
        assert_eq!(root.read("/etc/resolv.conf").unwrap(), "nameserver 10.0.0.53\n");
        assert_eq!(
            root.read("/etc/chrony/chrony.conf").unwrap(),
            "server 10.0.0.123 iburst\nserver 10.0.0.124 iburst\ndriftfile /d\n"
        );
        let details = root.read("/etc/metal/machine-details.yaml").unwrap();
        assert!(details.contains("root_uuid: \"r-uuid\"\n") && details.contains("password: \"\"\n"), "{details}");
        assert!(root.read("/etc/metal/machine-allocation.yaml").unwrap().contains("hostname: \"web-1\"\n"));
        assert!(root.read("/etc/lvm/lvmlocal.conf").unwrap().contains("udev_sync = 0"));
        assert!(!root.has("/.dockerenv") && root.read("/etc/machine-id").unwrap().is_empty());
        // The loader is called as the image says, and the distribution is what it wants to be.
        let overrides = Overrides::of(&root).unwrap();
        let distribution = Distribution::named(&root, overrides.system.as_deref());
        assert_eq!((distribution.id.as_str(), distribution.doubt.as_deref()), ("ubuntu", None));
        let wants = wants::of(&of_metal_stack(), &distribution, &overrides, "r-uuid");
        assert_eq!((wants.bootloader_id.as_str(), wants.keeps_loader), ("metal-own", false));
        let unknown = Distribution::named(&root, Some("plan9"));
        assert_eq!(unknown.id, "debian");
        assert!(unknown.doubt.unwrap().contains("is configured as plan9"));
    }

    #[test]
    fn what_a_tree_for_os_installer_leaves_out_is_left_out_and_said() {
        let (_dir, root) = metal_tree("only: [write hostname, write /etc/hosts]\nexcept: [write /etc/hosts]\n");
        let lines = owned(&root, &of_metal_stack());
        assert!(lines[0].starts_with("/etc/metal/os-installer.yaml of the image disables: persist "), "{lines:?}");
        assert!(lines[0].contains("configure network") && !lines[0].contains("write hostname"), "{lines:?}");
        assert_eq!(root.read("/etc/hostname").unwrap(), "web-1\n");
        assert!(!root.read("/etc/machine-id").unwrap().is_empty());
        assert!(root.read("/etc/chrony/chrony.conf").unwrap().starts_with("pool "));
        for absent in ["/etc/hosts", "/etc/resolv.conf", "/etc/metal/machine-details.yaml", "/etc/systemd/network"] {
            assert!(!root.has(absent), "{absent}");
        }
        assert!(!root.read("/etc/passwd").unwrap().contains("metal"));
        // A firewall is more than this.
        let (_dir, root) = metal_tree("only: [write hostname]\n");
        let mut firewall = of_metal_stack();
        firewall.files.assigned.allocation.role = "firewall".into();
        let lines = owned(&root, &firewall);
        assert!(lines.iter().any(|line| line.starts_with("WARNING: this machine is a firewall")), "{lines:?}");
        // The image keeps its boot loader, whatever it is.
        let (_dir, root) = metal_tree("except: [write booatloader config]\n");
        let overrides = Overrides::of(&root).unwrap();
        assert!(wants::of(&firewall, &Distribution::of(&root), &overrides, "r-uuid").keeps_loader);
    }

    #[test]
    fn an_unknown_tree_is_the_owners_with_warnings() {
        let (_dir, root) = made(&[("etc/selinux/config", "# SELINUX=\nSELINUX=enforcing\n")]);
        let mut finishing = finishing(Finish::Builtin);
        finishing.files.assigned.allocation.console_password.clear();
        let lines = owned(&root, &finishing);
        assert!(lines[0].starts_with("SELinux relabels all files"), "{lines:?}");
        assert!(lines[1].starts_with("WARNING: the image does not contain cloud-init"), "{lines:?}");
        assert!(root.has(RELABEL));
    }

    #[test]
    fn a_tree_that_cannot_boot_is_left_as_it_is() {
        let init = ("sbin/init", "");
        let modules = ("usr/lib/modules/6.1/modules.dep", "");
        let kernel = ("boot/vmlinuz-6.1", "MZ");
        let uefi = finishing(Finish::Auto);
        let bios = Finishing { firmware: Firmware::Bios, ..finishing(Finish::Builtin) };
        let no_esp = Finishing { esps: Vec::new(), ..finishing(Finish::Auto) };
        for (files, finishing, says) in [
            (
                &[kernel, modules][..],
                &uefi,
                "the image does not contain an init program and cannot boot: searched /sbin/init, ",
            ),
            (&[init, modules], &uefi, "the image does not contain a kernel and cannot boot: searched /boot/loader"),
            (&[init, kernel], &no_esp, "boots by UEFI, but the layout does not contain an EFI system partition"),
            (
                &[init, kernel],
                &bios,
                "by BIOS, but the image does not contain GRUB for BIOS: searched /usr/lib/grub/i386-pc, ",
            ),
        ] {
            let (_dir, root) = made(files);
            let (done, lines) = said(|say| tree(&root, finishing, "1", NOW, say));
            let error = done.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(lines.len() == 1 && lines[0].starts_with("WARNING: cannot read /etc/os-release"), "{lines:?}");
            assert!(!root.has("/etc"));
        }
    }

    #[test]
    fn nothing_is_written_where_nobody_finishes() {
        for (way, raw_too) in [(Finish::None, true), (Finish::Auto, false)] {
            let (dir, root) = made(&[("etc/hostname", "builder\n")]);
            let (done, lines) = said(|say| raw(&root, &finishing(way), "1", NOW, say));
            assert_eq!((done.unwrap(), lines.len()), (Boots::Unsaid, 1));
            if raw_too {
                said(|say| tree(&root, &finishing(way), "1", NOW, say)).0.unwrap();
            }
            assert_eq!(root.read("/etc/hostname").unwrap(), "builder\n");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        // cloud-init is asked for nothing: it looks by itself.
        let (_dir, root) = made(&[("usr/bin/cloud-init", "")]);
        said(|say| raw(&root, &finishing(Finish::Auto), "1", NOW, say)).0.unwrap();
        assert!(root.has("/var/lib/cloud/seed/nocloud/meta-data") && !root.has("/etc/hostname"));
        let (_dir, root) = made(&[("etc/os-release", "ID=debian\n"), ("etc/passwd", "root:x:0:0::/root:/bin/sh\n")]);
        said(|say| raw(&root, &finishing(Finish::Builtin), "1", NOW, say)).0.unwrap();
        assert!(root.has("/etc/hostname") && !root.has("/etc/fstab"));
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_programs_of_the_tree_make_host_keys_and_carry_out_user_data() {
        let (_dir, root) = testing::busybox();
        testing::script(&root, "usr/sbin/sshd", "exit 1");
        testing::script(&root, "usr/bin/ssh-keygen", "test \"$*\" = -A && echo key > /etc/ssh/ssh_host_ed25519_key");
        let ignite = "case \"$*\" in -version) echo Ignition 0.36.2;; *) cat /config.ign > /ignited; echo \"$*\" >> /ignited;; esac";
        testing::script(&root, "usr/bin/ignition", ignite);
        testing::script(&root, "opt/own", "echo own > done");
        let settings = b"custom_script: {executable_path: ./own, workdir: /opt}\n";
        for (path, text) in [
            ("/etc/os-release", b"ID=debian\n".as_slice()),
            ("/sbin/init", b""),
            ("/boot/vmlinuz-6.1", b"MZ kernel"),
            ("/boot/initrd.img-6.1", b""),
            ("/etc/ssh/ssh_host_rsa_key", b"builder"),
            ("/etc/metal/os-installer.yaml", settings),
        ] {
            root.write(path, 0o644, text).unwrap();
        }
        let mut finishing = finishing(Finish::Auto);
        finishing.files.assigned.allocation.console_password.clear();
        finishing.files.assigned.allocation.user_data = "{\"ignition\": {}}".into();
        let (done, lines) = said(|say| tree(&root, &finishing, "1", NOW, say));
        assert_eq!(lines[0], "debian  without an installer: finished by drophammer");
        let Boots::Made(Booting { info, entries }) = done.unwrap() else { panic!("{lines:?}") };
        assert_eq!((info.kernel.as_str(), info.cmdline.as_str()), ("/boot/vmlinuz-6.1", "root=UUID=1 ro"));
        assert_eq!((entries.len(), entries[0].loader.as_str()), (1, r"\EFI\debian\vmlinuz-6.1"));
        assert_eq!(root.read("/boot/efi/EFI/debian/vmlinuz-6.1").unwrap(), "MZ kernel");
        assert!(root.read("/etc/fstab").unwrap().contains("UUID=1"));
        assert_eq!(names(&root, "/etc/ssh"), ["ssh_host_ed25519_key"]);
        assert_eq!(root.read("/ignited").unwrap(), "{\"ignition\": {}}-oem file -stage files -log-to-stdout\n");
        assert!(!root.has("/config.ign"));
        assert_eq!(root.read("/opt/done").map_err(|_| &lines), Ok("own\n".to_owned()));
        assert!(lines.contains(&"Ignition applied the user data".to_owned()), "{lines:?}");
        assert_eq!(crate::storage::busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }
}
