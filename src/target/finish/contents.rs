//! Boot-relevant contents of a system, reported before its migration; they are verified again at the destination.

use super::{kernel, loader, os_installer, user_data};
use crate::contents::Contents;
use crate::target::{Root, crypttab, installer};

pub fn of(root: &Root) -> Contents {
    let installer = installer::find(root).or_else(|| os_installer::find(root));
    Contents {
        kernels: kernel::images(root),
        init: kernel::init(root).map(str::to_owned),
        installer: installer.map(str::to_owned),
        grub_bios: loader::grub_for_bios(root).map(str::to_owned),
        user_data: user_data::readers(root).into_iter().map(str::to_owned).collect(),
        cryptsetup: Some(crypttab::openers(root).map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    #[test]
    fn what_the_finisher_needs_is_told_by_its_path() {
        let (dir, root) = tree(&[
            ("boot/vmlinuz-6.1", ""),
            ("boot/vmlinuz-6.1.old", ""),
            ("usr/lib/systemd/systemd", ""),
            ("usr/lib/grub/i386-pc/normal.mod", ""),
            ("usr/bin/cloud-init", ""),
            ("usr/sbin/ignition", ""),
            ("usr/bin/os-installer", ""),
            ("usr/bin/cryptsetup", ""),
        ]);
        // As distributions have it: absolute, and within the tree.
        std::fs::create_dir(dir.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/usr/lib/systemd/systemd", dir.path().join("sbin/init")).unwrap();
        let contents = of(&root);
        assert_eq!(contents.kernels, ["/boot/vmlinuz-6.1"]);
        assert_eq!(contents.init.as_deref(), Some("/sbin/init"));
        assert_eq!(contents.installer.as_deref(), Some("/usr/bin/os-installer"));
        assert_eq!(contents.grub_bios.as_deref(), Some("/usr/lib/grub/i386-pc"));
        assert_eq!(contents.user_data, ["/usr/bin/cloud-init", "/usr/sbin/ignition"]);
        assert_eq!(contents.cryptsetup.unwrap(), ["/usr/bin/cryptsetup"]);
        // Of a tree with nothing of it nothing is said, but that nothing opens containers, and a link out of the tree leads nowhere.
        let (dir, root) = tree(&[("etc/hostname", "")]);
        std::fs::create_dir(dir.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("sbin/init")).unwrap();
        assert_eq!(of(&root), Contents { cryptsetup: Some(Vec::new()), ..Contents::default() });
    }
}
