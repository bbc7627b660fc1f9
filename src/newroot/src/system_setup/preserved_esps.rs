//! EFI system partitions that the installation preserves. They may contain files of other systems, which are neither
//! taken for files of the image nor changed.

use operations::Esp;

/// Mount points of the preserved EFI system partitions in the target, except `/boot`: the kernels of the new system are
/// on a partition that is mounted there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PreservedEsps {
    paths: Vec<String>,
}

impl PreservedEsps {
    pub fn from_esps(esps: &[Esp]) -> PreservedEsps {
        let preserved = esps.iter().filter(|esp| esp.preserved);
        PreservedEsps { paths: preserved.filter_map(|esp| esp.path.clone()).filter(|path| path != "/boot").collect() }
    }

    /// Returns whether this path of the target is on a preserved EFI system partition.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let is_below = |mount: &String| path.strip_prefix(mount.as_str()).is_some_and(|rest| rest.starts_with('/'));
        self.paths.iter().any(is_below)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A preserved EFI system partition that is mounted at `/boot/efi`.
    pub(crate) fn at_boot_efi() -> PreservedEsps {
        PreservedEsps { paths: vec!["/boot/efi".to_owned()] }
    }

    #[test]
    fn only_paths_on_preserved_partitions_are_contained() {
        let esp = |path: &str, preserved| Esp { path: Some(path.to_owned()), preserved, ..Esp::default() };
        let unmounted = Esp { preserved: true, ..Esp::default() };
        let esps = [esp("/boot/efi", true), esp("/efi", false), esp("/boot", true), unmounted];
        let preserved = PreservedEsps::from_esps(&esps);
        assert_eq!(preserved, at_boot_efi());
        for (path, expected) in [
            ("/boot/efi/EFI/debian/grub.cfg", true),
            ("/boot/efi", false),
            ("/boot/efix/a", false),
            ("/efi/EFI/debian/grub.cfg", false),
            ("/boot/vmlinuz", false),
        ] {
            assert_eq!(preserved.contains(path), expected, "{path}");
        }
    }
}
