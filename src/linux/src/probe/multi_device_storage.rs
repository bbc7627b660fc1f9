//! Components of objects that span several devices, such as filesystems with an external journal. Components belong to
//! the same object if their superblocks contain the same object ID.
//!
//! Components of md arrays and LVM volume groups are excluded, because mdadm and lvm report these objects completely.

use super::device_contents::device_node;
use super::sysfs::ProbeRoots;
use model::device_name::DevicePath;
use model::inventory::{
    BTRFS_SEED, ComponentRole, DeviceSignature, Inventory, SpanningComponent, XFS_LOG, XFS_REALTIME,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use uuid::Uuid;

/// Description of a component type.
struct ComponentKind {
    /// Type of the component as reported by libblkid (TYPE).
    signature: &'static str,
    /// Description, for messages, of the object that the components form together.
    whole: &'static str,
    id: ObjectIdSource,
    role: ComponentRole,
    /// Condition, in addition to the type, under which the device is a component.
    when: ComponentCondition,
}

/// Location of the ID of the object to which the component belongs.
enum ObjectIdSource {
    /// The ID is the UUID that libblkid reports.
    Signature,
    /// Binary UUID of 16 bytes at this offset; invalid if all bytes are zero.
    Bytes(u64),
    /// Text at this offset; the second number is the length of the text in bytes.
    Text(u64, usize),
    /// UUID of the filesystem that is stored in a record of an xfs log.
    XfsLog,
}

enum ComponentCondition {
    Always,
    /// The device is a component if the eight bytes at this offset are all zero.
    Zero(u64),
    /// The device is a component if the eight bytes at this offset are not all zero.
    NotZero(u64),
    /// The device is a component if the little-endian number of eight bytes at this offset contains this bit.
    BitSet(u64, u64),
}

const JOURNAL: &str = "filesystem and its external journal";

/// Types of components. Components are recognized by the following fields. ext: `s_journal_uuid` of `struct
/// ext4_super_block`, which is zero for an internal journal. xfs: `sb_logstart` and `sb_rblocks` of `struct xfs_dsb`;
/// the records of an external log contain the UUID of the filesystem, but a realtime device contains no ID. bcache:
/// `set_uuid` of `struct cache_sb_disk`; this field is preceded by `version`, and is zero in a backing device without a
/// cache. btrfs: the bit `BTRFS_SUPER_FLAG_SEEDING` in `flags` of `struct btrfs_super_block`. Stratis: the pool UUID in
/// the static header. BlueStore: the UUID in the text of the label, which is the same on data, DB and WAL devices. ZFS:
/// the UUID of the pool, as reported by libblkid; the members of the pool are in nested lists, which are not parsed.
const COMPONENT_TYPES: [ComponentKind; 11] = [
    component_kind(
        "ext2",
        JOURNAL,
        ObjectIdSource::Bytes(1024 + 0xd0),
        ComponentRole::NeedsAnother,
        ComponentCondition::Always,
    ),
    component_kind(
        "ext3",
        JOURNAL,
        ObjectIdSource::Bytes(1024 + 0xd0),
        ComponentRole::NeedsAnother,
        ComponentCondition::Always,
    ),
    component_kind(
        "ext4",
        JOURNAL,
        ObjectIdSource::Bytes(1024 + 0xd0),
        ComponentRole::NeedsAnother,
        ComponentCondition::Always,
    ),
    component_kind("jbd", JOURNAL, ObjectIdSource::Signature, ComponentRole::Serves, ComponentCondition::Always),
    component_kind(
        "xfs",
        XFS_LOG,
        ObjectIdSource::Signature,
        ComponentRole::NeedsAnother,
        ComponentCondition::Zero(48),
    ),
    component_kind(
        "xfs_external_log",
        XFS_LOG,
        ObjectIdSource::XfsLog,
        ComponentRole::Serves,
        ComponentCondition::Always,
    ),
    component_kind(
        "xfs",
        XFS_REALTIME,
        ObjectIdSource::Signature,
        ComponentRole::NeedsAnother,
        ComponentCondition::NotZero(16),
    ),
    component_kind(
        "btrfs",
        BTRFS_SEED,
        ObjectIdSource::Signature,
        ComponentRole::Serves,
        ComponentCondition::BitSet(BTRFS_SUPERBLOCK + 0x38, 1 << 32),
    ),
    component_kind(
        "stratis",
        "stratis pool",
        ObjectIdSource::Text(512 + 32, 32),
        ComponentRole::Peer,
        ComponentCondition::Always,
    ),
    component_kind(
        "ceph_bluestore",
        "Ceph BlueStore",
        ObjectIdSource::Text(23, 36),
        ComponentRole::Peer,
        ComponentCondition::Always,
    ),
    component_kind("zfs_member", "zpool", ObjectIdSource::Signature, ComponentRole::Peer, ComponentCondition::Always),
];

/// Filesystems that record the number of their devices in the superblock. Each entry contains the offset and the length
/// of that field in bytes. The fields are `num_devices` of btrfs' `struct btrfs_super_block` (little-endian), and
/// `nr_devices` of bcachefs' `struct bch_sb`.
const DEVICE_COUNT_FIELDS: [(&str, u64, usize); 2] =
    [("btrfs", BTRFS_SUPERBLOCK + 0x88, 8), ("bcachefs", 4096 + 123, 1)];

/// Offset of the first superblock of btrfs.
const BTRFS_SUPERBLOCK: u64 = 0x10000;

const fn component_kind(
    signature: &'static str,
    whole: &'static str,
    id: ObjectIdSource,
    role: ComponentRole,
    when: ComponentCondition,
) -> ComponentKind {
    ComponentKind { signature, whole, id, role, when }
}

const BCACHE_VERSION: u64 = 4096 + 16;
const BCACHE_SET: u64 = 4096 + 56;

/// Versions of backing devices: `BCACHE_SB_VERSION_…` of the kernel's drivers/md/bcache/bcache_ondisk.h.
const BCACHE_BACKING: [u64; 3] = [1, 4, 6];

/// Returns the components on all devices. Unreadable devices are skipped; the inventory lists them as unreadable.
pub(super) fn read_components(roots: &ProbeRoots, inventory: &Inventory) -> Vec<SpanningComponent> {
    let mut parts = Vec::new();
    // Partitions inside a logical volume are skipped, because they belong to a virtual machine.
    let inside = inventory.partitions_inside_volumes();
    for (device, signatures) in inventory.all_signatures().filter(|(device, _)| !inside.contains(device)) {
        let file = File::open(device_node(roots, &inventory.resolve_kernel_name(device)));
        let bytes = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            file.as_ref().ok()?.read_exact_at(&mut bytes, at).ok()?;
            Some(bytes)
        };
        parts.extend(signatures.iter().flat_map(|signature| find_components(device, signature, &bytes)));
    }
    parts
}

type ReadBytes<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

fn find_components(device: &DevicePath, signature: &DeviceSignature, bytes: ReadBytes) -> Vec<SpanningComponent> {
    let kinds = COMPONENT_TYPES.iter().filter(|kind| kind.signature == signature.kind && kind.when.is_met(bytes));
    let parts = kinds.filter_map(|kind| {
        let (whole, id) = (kind.whole.to_owned(), kind.id.read_id(signature, bytes)?);
        Some(SpanningComponent { device: device.clone(), kind: signature.kind.clone(), whole, id, role: kind.role })
    });
    parts
        .chain(find_bcache_component(device, signature, bytes))
        .chain(find_counted_component(device, signature, bytes))
        .collect()
}

/// Returns the device as a component of a filesystem with several devices; `None` if the filesystem has a single
/// device.
fn find_counted_component(
    device: &DevicePath,
    signature: &DeviceSignature,
    bytes: ReadBytes,
) -> Option<SpanningComponent> {
    let (kind, at, length) = DEVICE_COUNT_FIELDS.into_iter().find(|(kind, ..)| *kind == signature.kind)?;
    let mut count = [0; 8];
    count[..length].copy_from_slice(&bytes(at, length)?);
    let count = Some(u64::from_le_bytes(count)).filter(|count| *count > 1)?;
    let (device, kind) = (device.clone(), kind.to_owned());
    Some(SpanningComponent {
        device,
        whole: kind.clone(),
        kind,
        id: ObjectIdSource::Signature.read_id(signature, bytes)?,
        role: ComponentRole::OneOf(count),
    })
}

/// Returns the device as a component of bcache. Backing and caching devices have the same signature and differ in the
/// version of their superblock.
fn find_bcache_component(
    device: &DevicePath,
    signature: &DeviceSignature,
    bytes: ReadBytes,
) -> Option<SpanningComponent> {
    if signature.kind != "bcache" {
        return None;
    }
    let backing = BCACHE_BACKING.contains(&parse_u64(&bytes(BCACHE_VERSION, 8)?)?);
    Some(SpanningComponent {
        device: device.clone(),
        kind: signature.kind.clone(),
        whole: "bcache and its cache".to_owned(),
        id: ObjectIdSource::Bytes(BCACHE_SET).read_id(signature, bytes)?,
        role: if backing { ComponentRole::NeedsAnother } else { ComponentRole::Serves },
    })
}

impl ObjectIdSource {
    fn read_id(&self, signature: &DeviceSignature, bytes: ReadBytes) -> Option<String> {
        let id = match self {
            ObjectIdSource::Signature => signature.uuid.clone(),
            ObjectIdSource::Bytes(at) => {
                let uuid = Uuid::from_slice(&bytes(*at, 16)?).ok()?;
                if uuid.is_nil() { String::new() } else { uuid.to_string() }
            }
            ObjectIdSource::Text(at, length) => super::sysfs::to_printable(&bytes(*at, *length)?),
            ObjectIdSource::XfsLog => parse_xfs_log_uuid(&bytes(0, XFS_LOG_SEARCH_BYTES)?)?,
        };
        Some(id).filter(|id| !id.is_empty())
    }
}

impl ComponentCondition {
    fn is_met(&self, bytes: ReadBytes) -> bool {
        let is_zero = |at: u64| bytes(at, 8).map(|bytes| bytes.iter().all(|byte| *byte == 0));
        match self {
            ComponentCondition::Always => true,
            ComponentCondition::Zero(at) => is_zero(*at) == Some(true),
            ComponentCondition::NotZero(at) => is_zero(*at) == Some(false),
            ComponentCondition::BitSet(at, bit) => {
                bytes(*at, 8).and_then(|bytes| parse_u64(&bytes)).is_some_and(|number| number & bit != 0)
            }
        }
    }
}

/// Size of the area in which libblkid searches for a log record (libblkid/src/superblocks/xfs.c).
const XFS_LOG_SEARCH_BYTES: usize = 256 << 10;

/// Returns the UUID of the filesystem from the first log record. The field is `h_fs_uuid` of `struct xlog_rec_header`
/// (fs/xfs/libxfs/xfs_log_format.h); libblkid reports it as LOGUUID instead of UUID.
fn parse_xfs_log_uuid(log: &[u8]) -> Option<String> {
    const MAGIC: [u8; 4] = 0xfeed_babe_u32.to_be_bytes();
    const SECTOR_BYTES: usize = 512;
    const UUID: std::ops::Range<usize> = 304..320;
    let records = log.chunks(SECTOR_BYTES).filter(|sector| sector.starts_with(&MAGIC));
    let uuids = records.filter_map(|record| Uuid::from_slice(record.get(UUID)?).ok());
    uuids.filter(|uuid| !uuid.is_nil()).map(|uuid| uuid.to_string()).next()
}

fn parse_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "7d2f1c1e-0000-4000-8000-000000000001";

    fn parts(kind: &str, uuid: &str, content: &[(u64, &[u8])]) -> Vec<(String, String, ComponentRole)> {
        let mut disk = vec![0; XFS_LOG_SEARCH_BYTES];
        for (at, bytes) in content {
            disk[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
        }
        let signature = DeviceSignature { kind: kind.to_owned(), uuid: uuid.to_owned(), ..DeviceSignature::default() };
        let bytes = |at: u64, length: usize| disk.get(at as usize..at as usize + length).map(<[u8]>::to_vec);
        find_components(&"/dev/sda1".into(), &signature, &bytes)
            .into_iter()
            .map(|part| (part.whole, part.id, part.role))
            .collect()
    }

    #[test]
    fn every_component_type_yields_its_object_and_role() {
        let id = Uuid::parse_str(WHOLE).unwrap();
        let id = id.as_bytes().as_slice();
        let hex = WHOLE.replace('-', "");
        let label = format!("bluestore block device\n{WHOLE}\n");
        let one = 1u64.to_le_bytes();
        let (needs, serves) = (ComponentRole::NeedsAnother, ComponentRole::Serves);
        type Case<'a> = (&'a str, &'a str, &'a [(u64, &'a [u8])], &'a [(&'a str, &'a str, ComponentRole)]);
        let (btrfs, seeding) = (0x10000 + 0x88, 0x10000 + 0x38);
        let cases: [Case; 25] = [
            ("ext4", "own", &[(1232, id)], &[(JOURNAL, WHOLE, needs)]),
            ("ext3", "own", &[(1232, id)], &[(JOURNAL, WHOLE, needs)]),
            // Internal journal.
            ("ext4", "own", &[], &[]),
            ("jbd", WHOLE, &[], &[(JOURNAL, WHOLE, serves)]),
            ("xfs", WHOLE, &[], &[(XFS_LOG, WHOLE, needs)]),
            ("xfs", WHOLE, &[(48, &one)], &[]),
            ("xfs", WHOLE, &[(48, &one), (16, &one)], &[(XFS_REALTIME, WHOLE, needs)]),
            // Log record in the third sector.
            (
                "xfs_external_log",
                "",
                &[(1024, &0xfeed_babe_u32.to_be_bytes()), (1328, id)],
                &[(XFS_LOG, WHOLE, serves)],
            ),
            ("xfs_external_log", "", &[(1328, id)], &[]),
            ("bcache", "own", &[(4112, &one), (4152, id)], &[("bcache and its cache", WHOLE, needs)]),
            ("bcache", "own", &[(4112, &3u64.to_le_bytes()), (4152, id)], &[("bcache and its cache", WHOLE, serves)]),
            // Backing device without a cache.
            ("bcache", "own", &[(4112, &one)], &[]),
            ("stratis", "own", &[(544, hex.as_bytes())], &[("stratis pool", &hex, ComponentRole::Peer)]),
            ("stratis", "own", &[], &[]),
            ("ceph_bluestore", "", &[(0, label.as_bytes())], &[("Ceph BlueStore", WHOLE, ComponentRole::Peer)]),
            ("zfs_member", "1234567890", &[], &[("zpool", "1234567890", ComponentRole::Peer)]),
            ("btrfs", WHOLE, &[(btrfs, &3u64.to_le_bytes())], &[("btrfs", WHOLE, ComponentRole::OneOf(3))]),
            ("btrfs", WHOLE, &[(btrfs, &one)], &[]),
            ("btrfs", WHOLE, &[], &[]),
            ("btrfs", WHOLE, &[(seeding, &(1u64 << 32).to_le_bytes())], &[(BTRFS_SEED, WHOLE, serves)]),
            ("btrfs", WHOLE, &[(seeding, &1u64.to_le_bytes())], &[]),
            ("bcachefs", WHOLE, &[(4219, &[2])], &[("bcachefs", WHOLE, ComponentRole::OneOf(2))]),
            ("bcachefs", WHOLE, &[(4219, &[1, 9])], &[]),
            ("vfat", "1A2B-3C4D", &[], &[]),
            ("jbd", "", &[], &[]),
        ];
        for (kind, uuid, content, expected) in cases {
            let found = parts(kind, uuid, content);
            let found: Vec<_> = found.iter().map(|(whole, id, role)| (whole.as_str(), id.as_str(), *role)).collect();
            assert_eq!(found, expected, "{kind}");
        }
    }

    #[test]
    fn seed_device_of_btrfs_is_recognized() {
        use super::super::simulated_machine::{FakeMachine, ran};
        let tree = FakeMachine::new();
        tree.disk("sda", "../../..", 256 << 20);
        let path = tree.path("dev/sda").to_str().unwrap().to_owned();
        ran("mkfs.btrfs", &["-q", "-f", &path]);
        let parts = || {
            let inventory = super::super::read_inventory_at(&tree.roots(), super::super::ProbeDepth::Deep).unwrap();
            inventory.parts.into_iter().map(|part| (part.whole, part.role)).collect::<Vec<_>>()
        };
        assert_eq!(parts(), []);
        ran("btrfstune", &["-f", "-S", "1", &path]);
        assert_eq!(parts(), [(BTRFS_SEED.to_owned(), ComponentRole::Serves)]);
    }

    /// The filesystem is created by mkfs.xfs. libblkid does not report a UUID for its log.
    #[test]
    fn xfs_refers_to_its_external_log_and_realtime_device() {
        use super::super::simulated_machine::{FakeMachine, ran};
        let tree = FakeMachine::new();
        for (name, size_mib) in [("sda", 400), ("sdb", 70), ("sdc", 100)] {
            tree.disk(name, "../../..", size_mib << 20);
        }
        let path = |name: &str| tree.path(&format!("dev/{name}")).to_str().unwrap().to_owned();
        let (log, realtime) = (format!("logdev={},size=64m", path("sdb")), format!("rtdev={}", path("sdc")));
        ran("mkfs.xfs", &["-q", "-f", "-l", &log, "-r", &realtime, &path("sda")]);
        let inventory = super::super::read_inventory_at(&tree.roots(), super::super::ProbeDepth::Deep).unwrap();
        let uuid = &inventory.disks[0].signatures[0].uuid;
        let parts: Vec<_> =
            inventory.parts.iter().map(|part| (part.device.as_str(), part.whole.as_str(), part.role)).collect();
        assert_eq!(
            parts,
            [
                ("/dev/sda", XFS_LOG, ComponentRole::NeedsAnother),
                ("/dev/sda", XFS_REALTIME, ComponentRole::NeedsAnother),
                ("/dev/sdb", XFS_LOG, ComponentRole::Serves)
            ]
        );
        assert!(inventory.parts.iter().all(|part| part.id == *uuid), "{:?}", inventory.parts);
    }
}
