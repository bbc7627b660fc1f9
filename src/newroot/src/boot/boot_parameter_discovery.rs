//! Boot parameters of an image without an installer. They are taken from the image's Boot Loader Specification entries
//! or, if there are none, from the first entry of GRUB's menu.

use super::BootInfo;
use super::boot_info::{PATH, write_boot_info};
use crate::NewRoot;
use crate::system_setup::bls_entry::{self, BlsEntry};
use crate::system_setup::file_search;
use crate::system_setup::grub_config_reader::{MOUNT_POINTS, read_grub_variables};
use crate::system_setup::shell_reader::{ShellReader, ShellSyntax, ShellVariables};
use common::error::{Context, Error, Phase, Result};
use common::format::natural_sort_key;
use model::kernel_command_line::parameter_name;

const ENTRIES: [&str; 3] = ["/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries"];
const GRUB: [&str; 2] = ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"];

/// Unified kernel images, which firmware and systemd-boot start without a configuration file. kexec does not support
/// them.
const UNIFIED: [&str; 3] = ["/boot/EFI/Linux/*.efi", "/efi/EFI/Linux/*.efi", "/boot/efi/EFI/Linux/*.efi"];

/// Parameters that specify the root filesystem. If only `roothash` is set, the initramfs derives the root device from
/// it.
const ROOT_PARAMETERS: [&str; 2] = ["root", "roothash"];

/// Source from which the boot parameters were obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootSource {
    /// The file boot-info.yaml, which existed already.
    BootInfo,
    /// The boot parameters were taken from this file, and boot-info.yaml was written.
    Config(String),
    /// The boot loader of the image, because only this boot loader can determine all boot parameters.
    Firmware {
        /// Boot parameters that could be determined.
        known: BootInfo,
        reason: String,
    },
}

/// Writes boot-info.yaml, as an installer would, unless the file already exists. `has_loader` is true if the firmware
/// can start the system through a boot loader from the image. If the image does not specify all boot parameters, writes
/// nothing and returns [`BootSource::Firmware`]: only the image's own boot loader can then boot the system.
///
/// # Errors
/// Fails if the file cannot be written. Without a boot loader, also fails if the image contains no supported boot
/// loader configuration, or if the configuration refers to missing files.
pub fn write_missing_boot_info(root: &NewRoot, has_loader: bool) -> Result<BootSource> {
    if root.open_file(PATH).is_ok() {
        return Ok(BootSource::BootInfo);
    }
    let (source, boot) = match find_boot_config(root, has_loader) {
        Err(error) if has_loader => {
            let known = BootInfo {
                kernel: file_search::find_first(root, &UNIFIED).unwrap_or_default(),
                initrd: String::new(),
                cmdline: String::new(),
                bootloader_id: read_os_id(root),
            };
            return Ok(BootSource::Firmware { known, reason: error.to_string() });
        }
        found => found?,
    };
    if matches!(source, BootSource::Config(_)) {
        write_boot_info(&boot, root)?;
    }
    Ok(source)
}

fn find_boot_config(root: &NewRoot, has_loader: bool) -> Result<(BootSource, BootInfo)> {
    for directory in ENTRIES {
        // Entries are sorted by name only, and the last entry is usually the entry of the newest kernel. The sort order
        // of the specification would also require the contents of the entries.
        let names = root.list_names(directory).unwrap_or_default();
        let newest =
            names.iter().filter_map(|name| name.strip_suffix(".conf")).max_by_key(|&name| natural_sort_key(name));
        if let Some(name) = newest {
            return read_boot_config(root, has_loader, format!("{directory}/{name}.conf"), bls_entry::parse_entry);
        }
    }
    for path in GRUB {
        if root.open_file(path).is_ok() {
            return read_boot_config(root, has_loader, path.to_owned(), parse_grub_menu);
        }
    }
    let looked = [&ENTRIES[..], &GRUB].concat().join(", ");
    let what = format!(
        "the image does not specify a kernel to boot: it contains neither {PATH} nor an installer that writes this file, nor any of {looked}"
    );
    Err(Error::new(Phase::Boot, what))
}

fn read_boot_config(
    root: &NewRoot,
    has_loader: bool,
    from: String,
    parse: fn(&str, &ShellVariables) -> Option<BlsEntry>,
) -> Result<(BootSource, BootInfo)> {
    let text = root.read_text(&from).context(Phase::Boot, || format!("read the image's {from}"))?;
    let no_kernel = || Error::new(Phase::Boot, format!("the image's {from} does not specify a kernel"));
    let entry = parse(&text, &read_grub_variables(root)).ok_or_else(no_kernel)?;
    let reason = describe_missing_values(&entry, &from, has_loader);
    let BlsEntry { kernel, initrd, words, .. } = entry;
    let place = |path: &str| {
        let found = MOUNT_POINTS.iter().map(|mount_point| format!("{mount_point}{path}"));
        found.into_iter().find(|path| root.open_file(path).is_ok()).ok_or_else(|| {
            Error::new(
                Phase::Boot,
                format!(
                    "the image's {from} refers to {path}, which does not exist on the mounted filesystems of the \
                layout"
                ),
            )
        })
    };
    let (cmdline, bootloader_id) = (words.join(" "), read_os_id(root));
    if let Some(reason) = reason {
        let known = BootInfo { kernel: place(&kernel).unwrap_or(kernel), initrd, cmdline, bootloader_id };
        return Ok((BootSource::Firmware { known: known.clone(), reason }, known));
    }
    let initrd = if initrd.is_empty() { String::new() } else { place(&initrd)? };
    let boot = BootInfo { kernel: place(&kernel)?, initrd, cmdline, bootloader_id };
    Ok((BootSource::Config(from), boot))
}

/// Returns the reason why only the image's own boot loader can boot the system; `None` if there is no such reason.
/// There are three possible reasons. First, a path, the root filesystem, or Ignition's arguments for the first boot may
/// depend on variables that are not set in the image. Second, the entry may contain an unquoted semicolon. Third, the
/// entry may not specify the root filesystem although the image has a boot loader; the system then depends on values
/// that this boot loader sets, such as the EFI variables of systemd-boot.
fn describe_missing_values(entry: &BlsEntry, from: &str, has_loader: bool) -> Option<String> {
    let has_root = entry.words.iter().any(|word| ROOT_PARAMETERS.contains(&parameter_name(word)));
    let needs_loader =
        entry.has_unknown_path || !has_root || entry.unset.iter().any(|name| name.starts_with("ignition_"));
    if needs_loader && !entry.unset.is_empty() {
        let names: Vec<String> = entry.unset.iter().map(|name| format!("${name}")).collect();
        return Some(format!("the image's {from} uses {variables}, which is not set", variables = names.join(", ")));
    }
    if entry.has_separator {
        return Some(format!(
            "the image's {from} contains an unquoted semicolon, which boot loaders interpret differently"
        ));
    }
    (has_loader && !has_root).then(|| format!("the image's {from} does not specify the root filesystem (root=)"))
}

/// Returns `ID` from os-release, which distributions use as the name of their boot entry; `image` if the file or its
/// `ID` is missing.
fn read_os_id(root: &NewRoot) -> String {
    let text = root.read_text("/etc/os-release").unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("ID="));
    id.map(|id| id.trim_matches(['"', '\'']).to_owned())
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| "image".to_owned())
}

/// Returns the first entry of a grub.cfg: its first `linux` command and the `initrd` command after it.
fn parse_grub_menu(text: &str, variables: &ShellVariables) -> Option<BlsEntry> {
    let is =
        |word: &str, command: &str| word.strip_prefix(command).is_some_and(|rest| matches!(rest, "" | "16" | "efi"));
    let mut entry: Option<BlsEntry> = None;
    let mut reader = ShellReader::new(text, ShellSyntax::Grub);
    while let Some(words) = reader.read_command(variables) {
        let unset = std::mem::take(&mut reader.unset);
        let Some((command, arguments)) = words.split_first() else { continue };
        let command = command.text.as_str();
        match &mut entry {
            None if is(command, "linux") => {
                let mut found = BlsEntry::default();
                found.set_linux(arguments);
                found.add_unset(unset);
                entry = Some(found);
            }
            Some(found) if is(command, "initrd") => {
                found.set_initrd(arguments);
                found.add_unset(unset);
                break;
            }
            Some(_) if command.starts_with('}') || is(command, "linux") => break,
            _ => {}
        }
    }
    entry.filter(|entry| !entry.kernel.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::boot_info::read_boot_info;
    use super::*;
    use std::fs;
    use std::path::Path;

    const DEBIAN: &str = "set default=0\nif [ x = x ]; then\n  set linux_gfx_mode=keep\nfi\nmenuentry 'Debian' {\n\
        \tlinux\t/boot/vmlinuz-6.1 root=UUID=1-2 ro  console=ttyS0 ${extra} \"quiet\"\n\tinitrd\t/boot/ucode.img /boot/initrd.img-6.1\n}\n\
        menuentry 'old' {\n\tlinux /boot/vmlinuz-5.10 single\n\tinitrd /boot/initrd.img-5.10\n}\n";

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
        assert_eq!(write_missing_boot_info(&root, true).unwrap(), BootSource::Config("/boot/grub/grub.cfg".into()));
        let expected = BootInfo {
            kernel: "/boot/vmlinuz-6.1".into(),
            initrd: "/boot/initrd.img-6.1".into(),
            cmdline: "root=UUID=1-2 ro console=ttyS0 quiet".into(),
            bootloader_id: "debian".into(),
        };
        assert_eq!(read_boot_info(&root).unwrap(), expected);
        // An existing file is preserved.
        assert_eq!(write_missing_boot_info(&root, true).unwrap(), BootSource::BootInfo);

        let entry = |version: u32| format!("linux /vmlinuz-{version}\noptions root=LABEL=r\n");
        let (older, newer) = (entry(5), entry(6));
        let entries = [("boot/loader/entries/a-5.conf", older.as_str()), ("boot/loader/entries/a-6.conf", &newer)];
        let (_dir, root) = tree(&[entries[0], entries[1], ("boot/vmlinuz-6", "k")]);
        write_missing_boot_info(&root, true).unwrap();
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
            let (_dir, root) =
                tree(&[&files[..], &[("boot/vmlinuz", "k"), ("boot/loader/entries/z.old", "")]].concat());
            write_missing_boot_info(&root, true).unwrap();
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
            assert!(matches!(write_missing_boot_info(&root, true).unwrap(), BootSource::Config(_)), "{files:?}");
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
            let source = write_missing_boot_info(&root, true).unwrap();
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
            (
                &[("boot/grub/grub.cfg", "configfile x")],
                "the image's /boot/grub/grub.cfg does not specify a kernel",
                "",
            ),
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
            let error = write_missing_boot_info(&root, false).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
            let source = write_missing_boot_info(&root, true).unwrap();
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
            let source = write_missing_boot_info(&root, has_loader).unwrap();
            assert_eq!(matches!(source, BootSource::Config(_)), is_kexec, "{options}: {source:?}");
            assert_eq!(root.open_file(PATH).is_ok(), is_kexec, "{options}");
        }
    }
}
