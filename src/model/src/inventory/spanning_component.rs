//! Components of objects that span several devices.

use crate::device::DevicePath;
use serde::{Deserialize, Serialize};

/// Value of [`SpanningComponent::whole`] for an xfs with an external log, and for that log.
pub const XFS_LOG: &str = "xfs and its external log";

/// Value of [`SpanningComponent::whole`] for an xfs with a realtime device. Nothing on the realtime device identifies its
/// filesystem.
pub const XFS_REALTIME: &str = "xfs and its realtime device";

/// Device with a component, as identified by its own superblock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanningComponent {
    /// Path as spelled by the disk, partition or stacked device: `/dev/sda1`.
    pub device: DevicePath,
    /// libblkid's TYPE of its signature.
    pub kind: String,
    /// Description of the object that the components form.
    pub whole: String,
    /// Identifier of that object, shared by all its components.
    pub id: String,
    pub role: ComponentRole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComponentRole {
    /// Unusable without a component that serves it.
    NeedsAnother,
    Serves,
    /// Component of an object with an unknown number of components.
    Peer,
    /// Component of an object with this number of components, more than one.
    OneOf(u64),
}
