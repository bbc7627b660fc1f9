//! LUKS containers. Operations that create, open and close them contain the key, which is never printed.

use model::device::DevicePath;
use model::layout::KeySource;
use model::registry_auth::SecretText;
use serde::Serialize;
use uuid::Uuid;

/// A LUKS2 container on a whole device, and the mapping to its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LuksContainer {
    /// Disk, partition, array or logical volume, named as during the installation.
    pub device: DevicePath,
    /// UUID in the header of the container.
    pub uuid: Uuid,
    /// `/dev/mapper/luks-UUID`.
    pub mapping: DevicePath,
    /// Sector size of the device.
    pub sector_bytes: u32,
    /// Source of the key.
    #[serde(rename = "key")]
    pub source: KeySource,
    /// Passphrase. With `tpm2` it is the additional passphrase, which may be empty.
    #[serde(skip)]
    pub key: SecretText,
    /// Whether a key exists but was not available to this plan: offline, or in a boot that has already received it once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withheld: bool,
}

impl LuksContainer {
    pub fn new(device: DevicePath, uuid: Uuid, sector_bytes: u32, source: KeySource, key: SecretText) -> LuksContainer {
        let mapping = format!("/dev/mapper/luks-{uuid}").into();
        LuksContainer { device, uuid, mapping, sector_bytes, source, key, withheld: false }
    }
}

/// Opens a preserved container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenContainer {
    pub container: LuksContainer,
    /// Whether the new system must not write to it.
    pub read_only: bool,
}

/// A line of crypttab, with the content of its key file, if any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrypttabEntry {
    pub uuid: Uuid,
    /// `luks`, and options derived from the mount options for a device that may be absent.
    pub options: Vec<String>,
    /// Mount point that requires the container; `None` if the system starts without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_at: Option<String>,
    /// Content of the key file. If empty, the passphrase is requested at boot.
    #[serde(skip)]
    pub key: SecretText,
}

impl CrypttabEntry {
    /// Option that makes systemd unlock the container with the TPM of the machine.
    pub const BY_TPM: &'static str = "tpm2-device=auto";

    pub fn is_by_tpm(&self) -> bool {
        self.options.iter().any(|option| option == Self::BY_TPM)
    }
}
