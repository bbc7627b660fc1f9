//! Partition types that are reserved for the system, and the signatures of the partitions that have these types.
//!
//! The type of a partition is a claim: an operator may have reused a partition of an earlier installation without
//! changing its type. A type therefore counts only together with the content that partitions of this type have.

use model::inventory::{DeviceSignature, DiskPartition};

/// Partition type that is reserved for the system.
struct SystemType {
    guid: &'static str,
    name: &'static str,
    content: ExpectedContent,
}

/// Content that partitions of a type have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedContent {
    /// Boot code or other raw data without a signature.
    Unformatted,
    Fat,
    Swap,
    Filesystem,
    /// Filesystem of the image of an operating system. The copy for the next version may be empty.
    ImageCopy,
    /// Hashes of dm-verity.
    Verity,
}

/// Types with their names (UEFI specification; Discoverable Partitions Specification; disk_layout.json of Flatcar).
const SYSTEM_TYPES: [SystemType; 13] = [
    define_type("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system partition", ExpectedContent::Fat),
    define_type("21686148-6449-6e6f-744e-656564454649", "BIOS boot partition", ExpectedContent::Unformatted),
    define_type("9e1a2d38-c612-4316-aa26-8b49521e5a8b", "PReP boot partition", ExpectedContent::Unformatted),
    define_type("bc13c2ff-59e6-4262-a352-b275fd6f7172", "extended boot loader partition", ExpectedContent::Filesystem),
    define_type("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "swap", ExpectedContent::Swap),
    define_type("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "root", ExpectedContent::Filesystem),
    define_type("b921b045-1df0-41c3-af44-4c6f280d3fae", "root", ExpectedContent::Filesystem),
    define_type("8484680c-9521-48c6-9c11-b0720656f69e", "usr", ExpectedContent::Filesystem),
    define_type("2c7357ed-ebd2-46d9-aec1-23d437ec2bf5", "usr verity", ExpectedContent::Verity),
    define_type("7ec6f557-3bc5-4aca-b293-16ef5df639d1", "temporary files", ExpectedContent::Filesystem),
    define_type("5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6", "Flatcar usr", ExpectedContent::ImageCopy),
    define_type("3884dd41-8582-4404-b9a8-e9b84f2df50e", "Flatcar root", ExpectedContent::Filesystem),
    define_type("c95dc21a-df0e-4340-8d7b-26cbfa9a03e0", "Flatcar reserved", ExpectedContent::Unformatted),
];

const fn define_type(guid: &'static str, name: &'static str, content: ExpectedContent) -> SystemType {
    SystemType { guid, name, content }
}

impl ExpectedContent {
    fn includes(self, signatures: &[DeviceSignature]) -> bool {
        let [found] = signatures else {
            return signatures.is_empty() && matches!(self, ExpectedContent::Unformatted | ExpectedContent::ImageCopy);
        };
        match self {
            ExpectedContent::Unformatted => false,
            ExpectedContent::Fat => found.kind == "vfat",
            ExpectedContent::Swap => is_swap_area(found),
            ExpectedContent::Filesystem | ExpectedContent::ImageCopy => found.usage == "filesystem",
            ExpectedContent::Verity => found.kind == "DM_verity_hash",
        }
    }
}

fn find_type(partition: &DiskPartition) -> Option<&'static SystemType> {
    SYSTEM_TYPES.iter().find(|known| partition.kind.eq_ignore_ascii_case(known.guid))
}

/// Returns the name of the partition's type if this type is reserved for the system.
pub(crate) fn name_system_type(partition: &DiskPartition) -> Option<&'static str> {
    find_type(partition).map(|known| known.name)
}

/// Returns whether the type of the partition is reserved for the system, and its content matches the type. A partition
/// with more than one signature never matches, because one of the signatures may belong to data.
pub(crate) fn is_system_partition(partition: &DiskPartition) -> bool {
    find_type(partition).is_some_and(|known| known.content.includes(&partition.signatures))
}

/// Returns whether type and content of the partition show that it contains nothing but a copy of boot files or of an
/// operating system's image. An unmounted filesystem of another type, such as root, may contain data.
pub(crate) fn is_image_copy(partition: &DiskPartition) -> bool {
    let is_copy = |known: &SystemType| matches!(known.content, ExpectedContent::Fat | ExpectedContent::ImageCopy);
    is_system_partition(partition) && find_type(partition).is_some_and(is_copy)
}

/// Returns whether the signature is that of a swap area, with or without a hibernation image.
pub(crate) fn is_swap_area(signature: &DeviceSignature) -> bool {
    signature.kind == "swap" || signature.kind == "swsuspend"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(guid: &str, kinds: &[(&str, &str)]) -> DiskPartition {
        let signatures = kinds.iter().map(|(kind, usage)| DeviceSignature {
            kind: (*kind).to_owned(),
            usage: (*usage).to_owned(),
            ..DeviceSignature::default()
        });
        DiskPartition { kind: guid.to_uppercase(), signatures: signatures.collect(), ..DiskPartition::default() }
    }

    #[test]
    fn a_type_counts_only_with_the_content_of_this_type() {
        const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
        const BIOS: &str = "21686148-6449-6e6f-744e-656564454649";
        const SWAP: &str = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";
        const ROOT: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
        const USR: &str = "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6";
        let (fat, ext4, swap) = (("vfat", "filesystem"), ("ext4", "filesystem"), ("swap", "other"));
        for (guid, kinds, is_system, is_copy) in [
            (ESP, &[fat][..], true, true),
            (ESP, &[], false, false),
            (ESP, &[ext4], false, false),
            (ESP, &[fat, ext4], false, false),
            (BIOS, &[], true, false),
            (BIOS, &[ext4], false, false),
            (SWAP, &[swap], true, false),
            (SWAP, &[ext4], false, false),
            (SWAP, &[], false, false),
            (ROOT, &[ext4], true, false),
            (ROOT, &[("crypto_LUKS", "crypto")], false, false),
            (USR, &[], true, true),
            (USR, &[("btrfs", "filesystem")], true, true),
            ("0fc63daf-8483-4772-8e79-3d69d8477de4", &[fat], false, false),
        ] {
            let partition = partition(guid, kinds);
            assert_eq!(
                (is_system_partition(&partition), is_image_copy(&partition)),
                (is_system, is_copy),
                "{partition:?}"
            );
        }
    }
}
