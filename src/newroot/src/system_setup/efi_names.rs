//! Names of EFI programs, which contain the architecture: `BOOTX64.EFI`, `grubaa64.efi`.

use super::file_search::find_matching;
use crate::NewRoot;
use model::architecture::Architecture;

/// Path, on an ESP, of the program that the firmware starts if there is no boot entry for this ESP (UEFI specification,
/// 3.5.1.1).
const FALLBACK: &str = "/EFI/BOOT/BOOT{EFI}.EFI";

/// Replaces the placeholders in a name or path: `{efi}` by `x64`, `{EFI}` by `X64`, `{grub}` by `x86_64-efi`, and
/// `{cpu}` by `x86_64`, or by the corresponding names of another architecture.
pub(crate) fn expand_names(pattern: &str, architecture: Architecture) -> String {
    let suffix = architecture.efi_suffix();
    pattern
        .replace("{efi}", suffix)
        .replace("{EFI}", &suffix.to_uppercase())
        .replace("{grub}", architecture.grub_efi_platform())
        .replace("{cpu}", architecture.kernel_name())
}

/// Returns the path of the program that the firmware starts without a boot entry.
pub(crate) fn fallback_path(architecture: Architecture) -> String {
    expand_names(FALLBACK, architecture)
}

/// Returns the first file that matches one of these patterns, whose placeholders are replaced.
pub(crate) fn find_first_for(root: &NewRoot, patterns: &[&str], architecture: Architecture) -> Option<String> {
    patterns.iter().find_map(|pattern| find_matching(root, &expand_names(pattern, architecture)).into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_the_architecture() {
        let all = "BOOT{EFI}.EFI grub{efi}.efi {grub} {cpu}";
        assert_eq!(expand_names(all, Architecture::Amd64), "BOOTX64.EFI grubx64.efi x86_64-efi x86_64");
        assert_eq!(expand_names(all, Architecture::Arm64), "BOOTAA64.EFI grubaa64.efi arm64-efi aarch64");
        assert_eq!(fallback_path(Architecture::Arm64), "/EFI/BOOT/BOOTAA64.EFI");
    }
}
