//! LUKS containers: what makes, opens and closes them carries the key, which nothing prints.

use crate::device::DevicePath;
use crate::layout::KeySource;
use crate::pull::Secret;
use serde::Serialize;
use uuid::Uuid;

/// A LUKS2 container that takes all of a device, and the mapping through which its content is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Disk, partition, array or logical volume, where it is found while the installation runs.
    pub device: DevicePath,
    /// Of the container's header.
    pub uuid: Uuid,
    /// `/dev/mapper/luks-UUID`.
    pub mapping: DevicePath,
    /// Of the device.
    pub sector_bytes: u32,
    /// Where the key comes from.
    #[serde(rename = "key")]
    pub source: KeySource,
    /// With `tpm2`, the second one, which may be none.
    #[serde(skip)]
    pub key: Secret,
    /// There is a key, and this plan was not told it: on a desk, or once more in a boot that had it already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

impl Container {
    pub fn new(device: DevicePath, uuid: Uuid, sector_bytes: u32, source: KeySource, key: Secret) -> Container {
        let mapping = format!("/dev/mapper/luks-{uuid}").into();
        Container { device, uuid, mapping, sector_bytes, source, key, withheld: false }
    }
}

/// Open a container that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenContainer {
    pub container: Container,
    /// Nothing of the new system is to write to it.
    pub read_only: bool,
}

/// A line of crypttab, and the file with the key, if it has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrypttabEntry {
    pub uuid: Uuid,
    /// `luks`, and what the mount options say of a device that may be missing.
    pub options: Vec<String>,
    /// Mount point that cannot do without it; none where the system starts without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_at: Option<String>,
    /// Empty: whoever starts the system is asked.
    #[serde(skip)]
    pub key: Secret,
}

impl CrypttabEntry {
    /// The option by which systemd asks the machine's TPM.
    pub const BY_TPM: &'static str = "tpm2-device=auto";

    pub fn is_by_tpm(&self) -> bool {
        self.options.iter().any(|option| option == Self::BY_TPM)
    }
}
