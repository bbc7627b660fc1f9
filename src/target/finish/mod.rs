//! Makes a machine that boots of the image's files, and whose owner can log in: by the image's installer, or without one.

mod arrays;
pub mod bls;
mod boot;
mod command_line;
pub mod distribution;
mod esp;
mod identity;
mod initramfs;
mod kernel;
mod loader;
mod metal;
mod network;
mod os_installer;
mod owner;
mod places;
#[cfg(test)]
mod testing;
mod user_data;
mod wants;

pub use boot::Booting;

use super::chroot::Chroot;
use super::files::userdata;
use super::{Root, fstab, installer};
use crate::allocation::Finish;
use crate::error::{Error, Phase, Result};
use crate::plan::{Finishing, MachineFiles};
use boot::{BootWants, Bootable};
use distribution::Distribution;
use os_installer::Script;
use owner::Owners;
use std::thread;
use time::OffsetDateTime;

/// Its security labels are those of no file that was written here.
const SELINUX: &str = "/etc/selinux/config";
const RELABEL: &str = "/.autorelabel";

type Say<'a> = &'a (dyn Fn(&str) + Sync);

/// Who finishes the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// A program of metal-stack's images until 2026.
    Installer(&'static str),
    /// The one of metal-stack's later images.
    OsInstaller(&'static str),
    Us,
    Nobody,
}

impl Who {
    /// # Errors
    /// It must be an installer of the image, and there is none.
    pub fn of(root: &Root, way: Finish) -> Result<Who> {
        let installer = || installer::find(root).map(Who::Installer).or(os_installer::find(root).map(Who::OsInstaller));
        match way {
            Finish::Auto => Ok(installer().unwrap_or(Who::Us)),
            Finish::Image => installer().ok_or_else(|| {
                let looked = installer::INSTALLERS.join(" nor ");
                Error::new(
                    Phase::Target,
                    format!("the image has no installer: neither {looked} nor os-installer is in it"),
                )
            }),
            Finish::Builtin => Ok(Who::Us),
            Finish::None => Ok(Who::Nobody),
        }
    }

    /// Does somebody read the console password in `install.yaml`, in clear?
    pub fn reads_password(self) -> bool {
        match self {
            Who::Installer(_) | Who::Nobody => true,
            Who::OsInstaller(_) | Who::Us => false,
        }
    }
}

/// What is known of the system that will be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boots {
    /// The image's installer has written it down.
    Written,
    /// It was made here.
    Made(Booting),
    /// Nobody has said it yet.
    Unsaid,
}

/// Finishes an image that is a tree of files. `root_uuid` is that of the filesystem with `/`.
///
/// # Errors
/// What fails, with the last words of the program that did.
pub fn tree(root: &Root, finishing: &Finishing, root_uuid: &str, now: OffsetDateTime, say: Say) -> Result<Boots> {
    match Who::of(root, finishing.way)? {
        Who::Us => {
            let distribution = Distribution::of(root);
            say(&match &distribution.doubt {
                Some(doubt) => format!("WARNING: {doubt}"),
                None => {
                    format!("{} {} without an installer: finished by drophammer", distribution.id, distribution.version)
                }
            });
            let wants = wants::of(finishing, &distribution, root_uuid);
            let bootable = boot::look(root, &wants, say)?;
            fstab::write(root, &finishing.fstab)?;
            let made = make_own(root, finishing, &distribution, Some((&wants, bootable)), now, say)?;
            Ok(made.map_or(Boots::Unsaid, Boots::Made))
        }
        Who::Nobody => {
            say("the image is left as it is");
            Ok(Boots::Unsaid)
        }
        who => by_the_image(root, finishing, who, root_uuid, say),
    }
}

/// Finishes a raw image, which was made for any machine: its boot loader stays as it is.
///
/// # Errors
/// As [`tree`].
pub fn raw(root: &Root, finishing: &Finishing, root_uuid: &str, now: OffsetDateTime, say: Say) -> Result<Boots> {
    match Who::of(root, finishing.way)? {
        Who::Us if finishing.way == Finish::Auto => {
            say("the image has no installer, and is left as it is");
            let files = &finishing.files;
            user_data::seed(root, files, &userdata(&files.assigned.allocation.user_data), say)?;
            if user_data::has_cloud_init(root) {
                network::seed(root, &finishing.network, &files.nics)?;
            }
            Ok(Boots::Unsaid)
        }
        Who::Us => {
            make_own(root, finishing, &Distribution::of(root), None, now, say)?;
            Ok(Boots::Unsaid)
        }
        Who::Nobody => {
            say("the image is left as it is");
            Ok(Boots::Unsaid)
        }
        who => by_the_image(root, finishing, who, root_uuid, say),
    }
}

fn by_the_image(root: &Root, finishing: &Finishing, who: Who, root_uuid: &str, say: Say) -> Result<Boots> {
    let chroot = Chroot::open(root, &finishing.devices, say)?.telling(&finishing.environment);
    let ran = match who {
        Who::Installer(program) => installer::run(root, program, installer::DEADLINE, &chroot),
        Who::OsInstaller(program) => {
            os_installer::run(root, program, &finishing.files, root_uuid, installer::DEADLINE, &chroot)
        }
        Who::Us | Who::Nobody => Ok(()),
    };
    // The installer's own error says more than that of a mount which it left busy.
    ran.and(chroot.finish())?;
    Ok(Boots::Written)
}

/// Makes the system this machine's and this owner's, and one that boots as `boots` says.
fn make_own(
    root: &Root,
    finishing: &Finishing,
    distribution: &Distribution,
    boots: Option<(&BootWants, Bootable)>,
    now: OffsetDateTime,
    say: Say,
) -> Result<Option<Booting>> {
    let user_data = userdata(&finishing.files.assigned.allocation.user_data);
    write_own(root, &finishing.files, &user_data, now, say)?;
    let ignition = user_data::ignition(root, &user_data, say);
    let needs_keys = identity::needs_host_keys(root, distribution, user_data::has_cloud_init(root));
    let script = Script::of(root)?;
    let unit = network::write(root, &finishing.network, &finishing.files.nics, say)?;
    if boots.is_none() && ignition.is_none() && !needs_keys && script.is_none() && unit.is_none() {
        return Ok(None);
    }
    let chroot = Chroot::open(root, &finishing.devices, say)?;
    let run = || {
        if let Some(program) = ignition {
            user_data::ignite(root, program, &user_data, &chroot, say)?;
        }
        unit.iter().try_for_each(|unit| network::enable(unit, &chroot))?;
        boots.map(|(wants, found)| boot::boot(root, wants, found, &chroot, say)).transpose()
    };
    // To find primes takes a processor seconds, and only the script of the user data may ask for the keys.
    let made = thread::scope(|scope| {
        let keys = needs_keys.then(|| scope.spawn(|| identity::make_host_keys(root, &chroot)));
        let booting = run();
        let panicked =
            |_| Err(Error::new(Phase::Target, "a thread of drophammer panicked; its words are on the console"));
        let keys = keys.map_or(Ok(()), |keys| keys.join().unwrap_or_else(panicked));
        booting.and_then(|booting| keys.map(|()| booting))
    });
    let run = || {
        let booting = made?;
        script.iter().try_for_each(|script| script.run(installer::DEADLINE, &chroot))?;
        Ok(booting)
    };
    let ran = run();
    // The error of a program says more than that of a mount which it left busy.
    let left = chroot.finish();
    ran.and_then(|booting| left.map(|()| booting))
}

/// What needs no program of the image.
fn write_own(root: &Root, files: &MachineFiles, user_data: &[u8], now: OffsetDateTime, say: Say) -> Result<()> {
    let allocation = &files.assigned.allocation;
    identity::make_own(root, &allocation.hostname)?;
    let owners = Owners::of(root, user_data::cloud_user(root).as_deref());
    if !allocation.ssh_pub_keys.is_empty() {
        owner::let_in(root, &owners.keys, &allocation.ssh_pub_keys)?;
        say(&format!("SSH keys of {}: {}", owners.keys.name, allocation.ssh_pub_keys.len()));
    }
    if !allocation.console_password.is_empty() {
        owner::set_password(root, &owners.password, &allocation.console_password, now)?;
        say(&format!("{} has the console password", owners.password.name));
    }
    user_data::seed(root, files, user_data, &|line| say(line))?;
    if has_selinux(root) {
        root.write(RELABEL, 0o644, b"")?;
        say("SELinux labels all files at the first boot, which takes a while and boots once more");
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
    use crate::plan::{Assigned, Esp, FstabEntry};
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
        let (done, lines) = said(|say| make_own(root, finishing, &Distribution::of(root), None, NOW, say));
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
        assert_eq!(error, "the image has no installer: neither /install-go nor /install.sh nor os-installer is in it");
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
                "root has the console password",
                "cloud-init finds a seed in /var/lib/cloud/seed/nocloud",
                "the network is set up by cloud-init",
            ]
        );
        assert_eq!(root.read("/etc/hostname").unwrap(), "web-1\n");
        assert!(root.read("/etc/shadow").unwrap().starts_with("root:$6$"));
        assert!(!root.has(RELABEL));
    }

    #[test]
    fn an_unknown_tree_is_the_owners_with_warnings() {
        let (_dir, root) = made(&[("etc/selinux/config", "# SELINUX=\nSELINUX=enforcing\n")]);
        let mut finishing = finishing(Finish::Builtin);
        finishing.files.assigned.allocation.console_password.clear();
        let lines = owned(&root, &finishing);
        assert!(lines[0].starts_with("SELinux labels all files"), "{lines:?}");
        assert!(lines[1].starts_with("WARNING: the image has no cloud-init"), "{lines:?}");
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
            (&[kernel, modules][..], &uefi, "the image has no init, so that it cannot start: looked at /sbin/init, "),
            (&[init, modules], &uefi, "the image has no kernel, so that it cannot boot: looked at /boot/loader"),
            (&[init, kernel], &no_esp, "boots by UEFI, and the layout has no EFI system partition"),
            (&[init, kernel], &bios, "by BIOS, for which the image has no GRUB: looked at /usr/lib/grub/i386-pc, "),
        ] {
            let (_dir, root) = made(files);
            let (done, lines) = said(|say| tree(&root, finishing, "1", NOW, say));
            let error = done.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(lines.len() == 1 && lines[0].starts_with("WARNING: neither /etc/os-release"), "{lines:?}");
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
        assert!(lines.contains(&"Ignition has carried out the user data".to_owned()), "{lines:?}");
        assert_eq!(crate::storage::busy::mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
    }
}
