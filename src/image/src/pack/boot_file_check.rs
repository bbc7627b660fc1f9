//! Checks by file names whether a tree contains a kernel and an init program, and can therefore boot a machine. The
//! result is only used for a warning.

use std::fs;
use std::path::Path;

/// Directories that may contain kernels, each with the prefixes of the kernels' names. If the list of prefixes is
/// empty, all `*.efi` files match.
const KERNELS: [(&str, &[&str]); 4] = [
    ("boot", &["vmlinuz", "vmlinux", "Image", "kernel", "bzImage"]),
    ("boot/EFI/Linux", &[]),
    ("boot/efi/EFI/Linux", &[]),
    ("efi/EFI/Linux", &[]),
];

/// Directories with one subdirectory for each kernel version. A subdirectory may contain the kernel.
const MODULES: [&str; 2] = ["usr/lib/modules", "lib/modules"];

const INITS: [&str; 7] = [
    "sbin/init",
    "usr/sbin/init",
    "usr/lib/systemd/systemd",
    "lib/systemd/systemd",
    "init",
    "bin/init",
    "usr/bin/init",
];

/// Returns a warning if the tree has no kernel or no init.
pub(crate) fn find_missing(tree: &Path) -> Option<String> {
    let is_there = |name: &str| fs::symlink_metadata(tree.join(name)).is_ok();
    let has_kernel = KERNELS.iter().any(|(directory, names)| {
        list_entries(&tree.join(directory)).iter().any(|entry| match names {
            [] => entry.to_lowercase().ends_with(".efi"),
            names => names.iter().any(|name| entry.starts_with(name)),
        })
    }) || MODULES.iter().any(|directory| {
        list_entries(&tree.join(directory)).iter().any(|version| is_there(&format!("{directory}/{version}/vmlinuz")))
    });
    let what = match (has_kernel, INITS.into_iter().any(is_there)) {
        (true, true) => return None,
        (false, true) => "no kernel (boot/vmlinuz*, usr/lib/modules/*/vmlinuz, or a unified kernel image in EFI/Linux)",
        (true, false) => "no init (sbin/init or usr/lib/systemd/systemd)",
        (false, false) => "neither a kernel nor an init program",
    };
    Some(format!("{folder} contains {what}: a machine cannot boot from this image alone", folder = tree.display()))
}

/// Returns the names in a directory. Returns an empty list if the directory does not exist.
fn list_entries(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).into_iter().flatten().flatten();
    listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn bootable_trees_have_a_kernel_and_an_init() {
        for names in [
            &["boot/vmlinuz-6.1.0-1-amd64", "usr/sbin/init"][..],
            &["boot/vmlinuz", "usr/lib/systemd/systemd"],
            &["usr/lib/modules/6.12.0/vmlinuz", "sbin/init"],
            &["boot/efi/EFI/Linux/debian.EFI", "init"],
        ] {
            assert_eq!(find_missing(tree(names).path()), None, "{names:?}");
        }
        // Debian's /sbin/init is a symlink. The symlink counts as init, even if its target does not exist in the tree.
        let root = tree(&["boot/vmlinuz-6", "lib/x"]);
        fs::create_dir(root.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/lib/systemd/none", root.path().join("sbin/init")).unwrap();
        assert_eq!(find_missing(root.path()), None);
    }

    #[test]
    fn missing_kernel_or_init_is_named() {
        for (names, says) in [
            (&["etc/hostname"][..], "contains neither a kernel nor an init program: a machine"),
            (&["sbin/init", "boot/config-6"], "contains no kernel (boot/vmlinuz*"),
            (&["sbin/init", "boot/efi/EFI/Linux/readme", "lib/modules/6/modules.dep"], "contains no kernel"),
            (&["boot/vmlinuz-6", "usr/lib/systemd/systemd-udevd"], "contains no init (sbin/init"),
        ] {
            let why = find_missing(tree(names).path()).unwrap();
            assert!(why.contains(says), "{why}");
        }
    }
}
