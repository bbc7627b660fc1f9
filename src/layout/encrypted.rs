//! LUKS between a device and its filesystem or the group on it, and who has the key.

use super::fields::{Field, Fields, Reader};
use super::spellings::one_of;
use super::{Layout, VolumeGroup};
use crate::device::LayoutPath;
use serde::Serialize;
use std::fmt;

const ENCRYPTED: [Field; 1] = [Field { name: "key", also: &[] }];

/// A LUKS2 container, which takes all of the device: around a filesystem, or around each physical volume of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Encrypted {
    /// Where the key comes from.
    pub key: KeySource,
}

/// Where the key of a container comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum KeySource {
    /// The control plane, with the allocation.
    Server,
    /// `/etc/drophammer/disk.key` of the ramdisk.
    File,
    /// Nobody: the machine's TPM 2 seals a key that is made with the container.
    Tpm2,
    /// A passphrase: a person types it at the console when it is installed, and whenever it boots.
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
    /// All that is encrypted, filesystems and groups.
    pub fn encrypted(&self) -> impl Iterator<Item = Encrypted> {
        let groups = self.volumegroups.iter().filter_map(|group| group.encrypted);
        self.filesystems.iter().filter_map(|filesystem| filesystem.encrypted).chain(groups)
    }

    /// The encrypted group of which this device is a volume.
    pub fn encrypted_group(&self, device: &LayoutPath) -> Option<&VolumeGroup> {
        let volume = self.logicalvolumes.iter().find(|volume| volume.device() == *device)?;
        self.volumegroups.iter().find(|group| group.name == volume.volumegroup && group.encrypted.is_some())
    }
}

pub(super) fn read(reader: &mut Reader, fields: &Fields) -> Option<Encrypted> {
    let (node, place) = (fields.get("encrypted")?, fields.at("encrypted"));
    let fields = reader.fields(node, &place, &ENCRYPTED)?;
    // The stand-in that no rule refuses; the place is in `unread`.
    let key = one_of(reader, &fields, "key", "key", &KeySource::ALL.map(|key| (key.name(), key)));
    Some(Encrypted { key: key.unwrap_or(KeySource::Server) })
}
