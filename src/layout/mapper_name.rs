//! Names of logical volumes in the device mapper. LVM gives no volume another name than this, so a volume whose name is
//! too long cannot be activated, and lvcreate fails.

use super::LvmType;

/// DM_NAME_LEN of the kernel, without the closing NUL. UUIDs of LVM have at most 85 bytes, and DM_UUID_LEN is 129.
pub const MAX_MAPPER_NAME_BYTES: usize = 127;

/// Longest suffix of the hidden volumes that LVM activates while it creates a mirror (`_rimage_0`, `_rmeta_0`).
const MIRROR_SUFFIX_BYTES: usize = "_rimage_0".len();

/// Returns the name in /dev/mapper: each hyphen of both names doubled (dm_build_dm_name in lvm2's libdm/libdm-string.c).
pub fn mapper_name(group: &str, volume: &str) -> String {
    format!("{}-{}", group.replace('-', "--"), volume.replace('-', "--"))
}

/// Returns the length of the longest name that the volume needs, if that is more than the kernel takes.
pub fn excessive_mapper_name(group: &str, volume: &str, kind: LvmType) -> Option<usize> {
    let suffix = if kind == LvmType::Raid1 { MIRROR_SUFFIX_BYTES } else { 0 };
    let bytes = mapper_name(group, volume).len() + suffix;
    (bytes > MAX_MAPPER_NAME_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyphens_count_twice_and_mirrors_have_longer_names() {
        for (group, volume, kind, expected) in [
            ("a".repeat(63), "b".repeat(63), LvmType::Linear, None),
            ("a".repeat(63), "b".repeat(64), LvmType::Linear, Some(128)),
            ("a-".repeat(21), "b".repeat(63), LvmType::Linear, None),
            ("a-".repeat(22), "b-".repeat(21), LvmType::Striped, Some(130)),
            ("a".repeat(58), "b".repeat(59), LvmType::Raid1, None),
            ("a".repeat(59), "b".repeat(59), LvmType::Raid1, Some(128)),
        ] {
            assert_eq!(excessive_mapper_name(&group, &volume, kind), expected, "{group} {volume}");
        }
    }
}
