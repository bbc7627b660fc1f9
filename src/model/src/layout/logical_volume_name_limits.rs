//! Maximum lengths of the names of logical volumes. If a name is longer, lvcreate fails, or LVM cannot activate the
//! volume.

use super::LvmType;

/// Maximum length of a device mapper name: DM_NAME_LEN of the kernel, without the closing NUL. The limit for UUIDs
/// (DM_UUID_LEN, 129) cannot be exceeded, because LVM's UUIDs are at most 85 bytes long.
const MAX_MAPPER_NAME_BYTES: usize = 127;

/// Maximum length of group name and volume name together, in bytes: NAME_LEN minus three separators and the closing NUL
/// (vg_validate in lvm2's lib/metadata/metadata.c). A hyphen counts as one byte, although device mapper names contain
/// it twice.
const MAX_NAMES_BYTES: usize = 124;

/// Length of the longest suffix that LVM appends to the name of a mirror, for temporary mappings. LVM looks up these
/// mappings when it deactivates the mirror. If a name with this suffix is too long, LVM can create the mirror but
/// cannot deactivate it.
const MIRROR_SUFFIX_BYTES: usize = "_rimage_0-missing_0_0".len();

/// Returns the name in /dev/mapper, with all hyphens doubled (dm_build_dm_name in lvm2's libdm/libdm-string.c).
pub(crate) fn mapper_name(group: &str, volume: &str) -> String {
    format!("{}-{}", group.replace('-', "--"), volume.replace('-', "--"))
}

/// Returns the length limit that the names of a group and a volume exceed; `None` if they are within the limits. The
/// text can follow the word "has": `130 bytes in …`.
pub fn explain_excessive_name(group: &str, volume: &str, kind: LvmType) -> Option<String> {
    let suffix = if kind == LvmType::Raid1 { MIRROR_SUFFIX_BYTES } else { 0 };
    let (mapper, names) = (mapper_name(group, volume).len() + suffix, group.len() + volume.len());
    if mapper > MAX_MAPPER_NAME_BYTES {
        return Some(format!("{mapper} bytes in its device mapper name, which is limited to {MAX_MAPPER_NAME_BYTES}"));
    }
    (names > MAX_NAMES_BYTES).then(|| format!("{names} bytes in both names, which LVM limits to {MAX_NAMES_BYTES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapper_names_double_hyphens_and_add_suffixes_for_mirrors() {
        for (group, volume, kind, expected) in [
            ("a".repeat(62), "b".repeat(62), LvmType::Linear, None),
            ("a".repeat(62), "b".repeat(63), LvmType::Linear, Some("125 bytes in both names")),
            ("a".repeat(63), "b".repeat(64), LvmType::Linear, Some("128 bytes in its device mapper name")),
            ("a-".repeat(21), "b".repeat(63), LvmType::Linear, None),
            ("a-".repeat(22), "b-".repeat(21), LvmType::Striped, Some("130 bytes in its device mapper name")),
            ("a".repeat(52), "b".repeat(53), LvmType::Raid1, None),
            ("a".repeat(53), "b".repeat(53), LvmType::Raid1, Some("128 bytes in its device mapper name")),
        ] {
            let found = explain_excessive_name(&group, &volume, kind);
            match expected {
                None => assert_eq!(found, None, "{group} {volume}"),
                Some(words) => assert!(found.as_ref().is_some_and(|why| why.starts_with(words)), "{found:?}"),
            }
        }
    }
}
