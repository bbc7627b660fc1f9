//! Boot loaders on a preserved EFI system partition with files of other systems.

use super::super::super::preserved_esps::tests::at_boot_efi;
use super::*;

const OTHER_GRUB: (&str, &str) = ("boot/efi/EFI/almalinux/grubx64.efi", "other /EFI/almalinux\0");
const OTHER_CONFIG: (&str, &str) = ("boot/efi/EFI/almalinux/grub.cfg", "configuration of another system\n");

/// Boot loader of Debian. Its directory is built into its signed GRUB.
const SHIM: &str = "/EFI/debian/shimx64.efi";

/// Makes a tree bootable whose EFI system partition also contains GRUB of another distribution. Returns the path of the
/// boot loader that is started, and the logged lines.
fn booted_next_to_another(system: &str, files: &[(&str, &str)]) -> (String, Vec<String>) {
    let (_dir, root) = tree(&[&BASE[..], &[OTHER_GRUB, OTHER_CONFIG], files].concat());
    let wants = BootRequirements { system: system.into(), preserved_esps: at_boot_efi(), ..uefi() };
    let (result, _, said) = booted(&root, &wants);
    for (path, content) in [OTHER_GRUB, OTHER_CONFIG] {
        assert_eq!(root.read_text(&format!("/{path}")).unwrap(), content, "{path}");
    }
    (result.unwrap().entries[0].loader.replace('\\', "/"), said)
}

#[test]
fn grub_of_another_system_is_neither_used_nor_configured() {
    let modules = ("usr/lib/grub/x86_64-efi/ext2.mod", "");
    let mkimage = ("usr/bin/grub-mkimage", "");
    for (files, expected) in
        [(&[modules, mkimage][..], "/EFI/fedora/grubx64.efi"), (&[], "/EFI/fedora/vmlinuz-6.1"), (&DEBIAN[..], SHIM)]
    {
        let (loader, said) = booted_next_to_another("fedora", files);
        assert_eq!(loader, expected);
        let skipped = "/boot/efi/EFI/almalinux/grubx64.efi is not used, because the EFI system partition is preserved";
        assert!(said.iter().any(|line| line.starts_with(skipped)), "{said:?}");
    }
}

#[test]
fn grub_in_the_directory_of_the_image_is_used() {
    for (system, directory) in [("fedora", "fedora"), ("rhel", "redhat"), ("rocky", "Rocky")] {
        let path = format!("boot/efi/EFI/{directory}/grubx64.efi");
        let image = format!("grub /EFI/{directory}\0");
        let (loader, _) = booted_next_to_another(system, &[(&path, &image)]);
        assert_eq!(loader, format!("/EFI/{directory}/grubx64.efi"));
    }
}
