//! List of those contents of an image on which an installation depends, such as kernels and the image's own installer.
//! `drophammer image pack` writes the list to the manifest of the image.

use super::{boot_kernel, boot_loader, image_architecture, metal_os_installer, user_data};
use crate::{NewRoot, crypttab, image_installer};
use model::image_boot_contents::BootContents;

pub fn list_boot_contents(root: &NewRoot) -> BootContents {
    let installer = image_installer::find_installer(root).or_else(|| metal_os_installer::find_os_installer(root));
    BootContents {
        architecture: image_architecture::recognize_architecture(root),
        kernels: boot_kernel::list_kernel_images(root),
        init: boot_kernel::find_init(root).map(str::to_owned),
        installer: installer.map(str::to_owned),
        grub_bios: boot_loader::grub_for_bios(root).map(str::to_owned),
        user_data: user_data::find_readers(root).into_iter().map(str::to_owned).collect(),
        cryptsetup: Some(crypttab::find_openers(root).map(str::to_owned).collect()),
        unsupported_network: netconfig::find_unsupported(&|path| root.path_exists(path)).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    #[test]
    fn boot_contents_are_listed_by_path() {
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
        // Distributions contain such an absolute link to a file within the tree.
        std::fs::create_dir(dir.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/usr/lib/systemd/systemd", dir.path().join("sbin/init")).unwrap();
        let contents = list_boot_contents(&root);
        assert_eq!(contents.kernels, ["/boot/vmlinuz-6.1"]);
        assert_eq!(contents.init.as_deref(), Some("/sbin/init"));
        assert_eq!(contents.installer.as_deref(), Some("/usr/bin/os-installer"));
        assert_eq!(contents.grub_bios.as_deref(), Some("/usr/lib/grub/i386-pc"));
        assert_eq!(contents.user_data, ["/usr/bin/cloud-init", "/usr/sbin/ignition"]);
        assert_eq!(contents.cryptsetup.unwrap(), ["/usr/bin/cryptsetup"]);
        // In a tree without these files, the boot contents consist only of an empty list of cryptsetup programs. A
        // link that leads out of the tree is not followed.
        let (dir, root) = tree(&[("etc/hostname", "")]);
        std::fs::create_dir(dir.path().join("sbin")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("sbin/init")).unwrap();
        assert_eq!(list_boot_contents(&root), BootContents { cryptsetup: Some(Vec::new()), ..BootContents::default() });
    }
}
