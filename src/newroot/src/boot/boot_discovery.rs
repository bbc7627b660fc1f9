//! Boot parameters of a generic image without an installer, which are taken from its Boot Loader Specification entries,
//! or from the first entry of GRUB's menu.

use super::BootInfo;
use super::boot_info::{PATH, write_boot_info};
use crate::NewRoot;
use crate::system_setup::bls::{self, BlsEntry, parse_options};
use common::error::{Context, Error, Phase, Result};
use common::format::natural_sort_key;

const ENTRIES: [&str; 3] = ["/boot/loader/entries", "/efi/loader/entries", "/boot/efi/loader/entries"];
const GRUB: [&str; 2] = ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"];

/// Prefixes that are tried for paths in a boot loader's configuration. These paths are relative to the filesystem that
/// the boot loader reads, and the mount point of this filesystem is unknown.
const BEGINNINGS: [&str; 4] = ["", "/boot", "/efi", "/boot/efi"];

/// Writes boot-info.yaml, as an installer would, unless it exists. Returns the file from which the boot parameters were taken.
///
/// # Errors
/// Fails if the image contains no supported boot loader configuration, or if the configuration refers to missing files.
pub fn write_missing_boot_info(root: &NewRoot) -> Result<Option<String>> {
    if root.open_file(PATH).is_ok() {
        return Ok(None);
    }
    let (from, boot) = find_boot_config(root)?;
    write_boot_info(&boot, root)?;
    Ok(Some(from))
}

fn find_boot_config(root: &NewRoot) -> Result<(String, BootInfo)> {
    for directory in ENTRIES {
        // The entry of the newest kernel usually has the last name. The specification's own order also depends on the
        // contents of the entries.
        let names = root.list_names(directory).unwrap_or_default();
        let newest =
            names.iter().filter_map(|name| name.strip_suffix(".conf")).max_by_key(|&name| natural_sort_key(name));
        if let Some(name) = newest {
            return read_boot_config(root, format!("{directory}/{name}.conf"), bls::parse_entry);
        }
    }
    for path in GRUB {
        if root.open_file(path).is_ok() {
            return read_boot_config(root, path.to_owned(), parse_grub_menu);
        }
    }
    let looked = [&ENTRIES[..], &GRUB].concat().join(", ");
    let what = format!(
        "the image does not specify a kernel to boot: it contains neither {PATH} nor an installer that writes it, and none of {looked}"
    );
    Err(Error::new(Phase::Boot, what))
}

fn read_boot_config(root: &NewRoot, from: String, parse: fn(&str) -> Option<BlsEntry>) -> Result<(String, BootInfo)> {
    let text = root.read_text(&from).context(Phase::Boot, || format!("{from} of the image"))?;
    let no_kernel = || Error::new(Phase::Boot, format!("{from} of the image does not specify a kernel"));
    let BlsEntry { kernel, initrd, words } = parse(&text).ok_or_else(no_kernel)?;
    let place = |path: &str| {
        let found = BEGINNINGS.iter().map(|beginning| format!("{beginning}{path}"));
        found.into_iter().find(|path| root.open_file(path).is_ok()).ok_or_else(|| {
            Error::new(
                Phase::Boot,
                format!(
                    "{from} of the image refers to {path}, which does not exist in the mounted filesystems of the \
                layout"
                ),
            )
        })
    };
    let initrd = if initrd.is_empty() { String::new() } else { place(&initrd)? };
    let boot = BootInfo { kernel: place(&kernel)?, initrd, cmdline: words.join(" "), bootloader_id: read_os_id(root) };
    Ok((from, boot))
}

/// Returns `ID` of os-release, which distributions use as the name of their boot entry; `image` if it is missing.
fn read_os_id(root: &NewRoot) -> String {
    let text = root.read_text("/etc/os-release").unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("ID="));
    id.map(|id| id.trim_matches(['"', '\'']).to_owned())
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| "image".to_owned())
}

/// Returns the first entry of a grub.cfg: its first `linux` command and the `initrd` command after it.
fn parse_grub_menu(text: &str) -> Option<BlsEntry> {
    let is = |line: &str, command: &str| {
        let word = line.split_whitespace().next().unwrap_or_default();
        word.strip_prefix(command).is_some_and(|rest| matches!(rest, "" | "16" | "efi"))
    };
    let mut lines = text.lines().map(str::trim).skip_while(|line| !is(line, "linux"));
    let linux = lines.next()?;
    let initrd = lines.take_while(|line| !line.starts_with('}') && !is(line, "linux")).find(|line| is(line, "initrd"));
    let kernel = linux.split_whitespace().nth(1)?;
    let words = linux.split_once(kernel).map(|(_, words)| parse_options(words).collect()).unwrap_or_default();
    let initrd = initrd.and_then(|line| line.split_whitespace().skip(1).last()).unwrap_or_default();
    Some(BlsEntry { kernel: strip_grub_device(kernel), initrd: strip_grub_device(initrd), words })
}

/// Removes GRUB's device from a path, such as `($root)/boot/vmlinuz`.
fn strip_grub_device(path: &str) -> String {
    path.split_once(')').map_or(path, |(_, path)| path).trim_matches(['"', '\'']).to_owned()
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
    fn the_first_entry_of_grubs_menu_is_taken() {
        let debian = BlsEntry {
            kernel: "/boot/vmlinuz-6.1".into(),
            initrd: "/boot/initrd.img-6.1".into(),
            words: words("root=UUID=1-2 ro console=ttyS0 quiet"),
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
            assert_eq!(parse_grub_menu(text), expected, "{text}");
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
    fn what_is_found_becomes_the_boot_info_that_was_missing() {
        let own = ("etc/os-release", "NAME=x\nID=\"debian\"\n");
        let grub = ("boot/grub/grub.cfg", DEBIAN);
        let (_dir, root) = tree(&[own, grub, ("boot/vmlinuz-6.1", "k"), ("boot/initrd.img-6.1", "i")]);
        assert_eq!(write_missing_boot_info(&root).unwrap().as_deref(), Some("/boot/grub/grub.cfg"));
        let expected = BootInfo {
            kernel: "/boot/vmlinuz-6.1".into(),
            initrd: "/boot/initrd.img-6.1".into(),
            cmdline: "root=UUID=1-2 ro console=ttyS0 quiet".into(),
            bootloader_id: "debian".into(),
        };
        assert_eq!(read_boot_info(&root).unwrap(), expected);
        // An existing file is preserved.
        assert_eq!(write_missing_boot_info(&root).unwrap(), None);

        let entry = |version: u32| format!("linux /vmlinuz-{version}\noptions root=LABEL=r\n");
        let (older, newer) = (entry(5), entry(6));
        let entries = [("boot/loader/entries/a-5.conf", older.as_str()), ("boot/loader/entries/a-6.conf", &newer)];
        let (_dir, root) = tree(&[entries[0], entries[1], ("boot/vmlinuz-6", "k")]);
        write_missing_boot_info(&root).unwrap();
        let boot = read_boot_info(&root).unwrap();
        assert_eq!(
            (boot.kernel.as_str(), boot.initrd.as_str(), boot.cmdline.as_str()),
            ("/boot/vmlinuz-6", "", "root=LABEL=r")
        );
        assert_eq!(boot.bootloader_id, "image");
    }

    #[test]
    fn the_newest_entry_is_booted() {
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
            let texts = names.map(|name| format!("linux /vmlinuz\noptions name={name}\n"));
            let files: Vec<_> = paths.iter().zip(&texts).map(|(path, text)| (path.as_str(), text.as_str())).collect();
            let (_dir, root) =
                tree(&[&files[..], &[("boot/vmlinuz", "k"), ("boot/loader/entries/z.old", "")]].concat());
            write_missing_boot_info(&root).unwrap();
            assert_eq!(read_boot_info(&root).unwrap().cmdline, format!("name={newest}"));
        }
    }

    #[test]
    fn what_does_not_say_what_it_boots_is_refused() {
        let cases: [(&[(&str, &str)], &str); 4] = [
            (&[("etc/hostname", "x")], "the image does not specify a kernel to boot"),
            (&[("boot/grub/grub.cfg", "configfile x")], "/boot/grub/grub.cfg of the image does not specify a kernel"),
            (
                &[("boot/grub/grub.cfg", DEBIAN)],
                "refers to /boot/initrd.img-6.1, which does not exist in the mounted filesystems",
            ),
            (
                &[("boot/grub/grub.cfg", DEBIAN), ("boot/initrd.img-6.1", "i")],
                "refers to /boot/vmlinuz-6.1, which does not exist in the mounted filesystems",
            ),
        ];
        for (files, says) in cases {
            let (_dir, root) = tree(files);
            let error = write_missing_boot_info(&root).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }
}
