//! LUKS encryption of filesystems and physical volumes, and the sources of their keys.

use super::field_reader::{FieldNames, LayoutFields, LayoutReader};
use super::parser::read_one_of;
use super::{Layout, VolumeGroupSpec};
use crate::device_name::LayoutPath;
use serde::Serialize;
use std::fmt;

const ENCRYPTED: [FieldNames; 1] = [FieldNames { name: "key", also: &[] }];

/// LUKS2 container below a filesystem or a physical volume. It occupies the whole device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct EncryptionSpec {
    /// Source of the container's key.
    pub key: KeySource,
}

/// Source of the key of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeySource {
    /// The control plane, which supplies the key for the allocation.
    Server,
    /// The file `/etc/drophammer/disk.key` of the ramdisk.
    File,
    /// A random key that is sealed by the machine's TPM 2 and stored nowhere else.
    Tpm2,
    /// A passphrase that is typed at the console during the installation and at each boot.
    Prompt,
}

impl KeySource {
    pub const ALL: [KeySource; 4] = [KeySource::Server, KeySource::File, KeySource::Tpm2, KeySource::Prompt];

    pub fn name(self) -> &'static str {
        match self {
            KeySource::Server => "server",
            KeySource::File => "file",
            KeySource::Tpm2 => "tpm2",
            KeySource::Prompt => "prompt",
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Layout {
    /// Returns the encryption of each filesystem and group that is encrypted.
    pub fn encryption_specs(&self) -> impl Iterator<Item = EncryptionSpec> {
        let groups = self.volumegroups.iter().filter_map(|group| group.encrypted);
        self.filesystems.iter().filter_map(|filesystem| filesystem.encrypted).chain(groups)
    }

    /// Returns the volume group of this logical volume if the group is encrypted; otherwise `None`.
    pub fn find_encrypted_group(&self, device: &LayoutPath) -> Option<&VolumeGroupSpec> {
        let volume = self.logicalvolumes.iter().find(|volume| volume.device_path() == *device)?;
        self.volumegroups.iter().find(|group| group.name == volume.volumegroup && group.encrypted.is_some())
    }
}

pub(super) fn read_encryption(reader: &mut LayoutReader, fields: &LayoutFields) -> Option<EncryptionSpec> {
    let (node, place) = (fields.get("encrypted")?, fields.path_of("encrypted"));
    let fields = reader.read_fields(node, &place, &ENCRYPTED)?;
    // If the key source cannot be read, it is listed in `unread`, and replaced by a key source that violates no rule.
    let key = read_one_of(reader, &fields, "key", "key", &KeySource::ALL.map(|key| (key.name(), key)));
    Some(EncryptionSpec { key: key.unwrap_or(KeySource::Server) })
}
