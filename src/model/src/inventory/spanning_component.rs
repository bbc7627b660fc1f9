//! Components of filesystems and other objects that span several devices.

use crate::device_name::DevicePath;
use serde::{Deserialize, Serialize};

/// Value of [`SpanningComponent::whole`] for an xfs filesystem with an external log, and for its log device.
pub const XFS_LOG: &str = "xfs and its external log";

/// Value of [`SpanningComponent::whole`] for an xfs filesystem with a realtime device. The realtime device itself
/// contains nothing that identifies its filesystem.
pub const XFS_REALTIME: &str = "xfs and its realtime device";

/// Value of [`SpanningComponent::whole`] for a seed device of btrfs. Filesystems that were created on top of the seed
/// have UUIDs that differ from the UUID of the seed, and their superblocks do not contain the UUID of the seed.
pub const BTRFS_SEED: &str = "btrfs with a seed device";

/// Device that, according to its superblock, is a component of an object that spans several devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanningComponent {
    /// Device path, spelled as in the entry of the disk, partition or stacked device: `/dev/sda1`.
    pub device: DevicePath,
    /// Type of its signature as reported by libblkid (TYPE).
    pub kind: String,
    /// Description of the object that the components form.
    pub whole: String,
    /// Identifier of the object that the components form. All components of an object contain the same identifier.
    pub id: String,
    pub role: ComponentRole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComponentRole {
    /// Component that cannot be used without a component that has the role [`ComponentRole::Serves`].
    NeedsAnother,
    Serves,
    /// Component of an object whose number of components is unknown.
    Peer,
    /// Component of an object that has this number of components, which is at least two.
    OneOf(u64),
}
