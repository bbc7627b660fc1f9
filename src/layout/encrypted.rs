//! LUKS between a device and its filesystem, and who has the key.

use super::fields::{Field, Fields, Reader};
use super::spellings::one_of;
use serde::Serialize;
use std::fmt;

const ENCRYPTED: [Field; 1] = [Field { name: "key", also: &[] }];

/// The filesystem lies in a LUKS2 container, which takes all of the device.
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
    /// A person at the console. It is refused: nobody is asked here.
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

pub(super) fn read(reader: &mut Reader, fields: &Fields) -> Option<Encrypted> {
    let (node, place) = (fields.get("encrypted")?, fields.at("encrypted"));
    let fields = reader.fields(node, &place, &ENCRYPTED)?;
    // The stand-in that no rule refuses; the place is in `unread`.
    let key = one_of(reader, &fields, "key", "key", &KeySource::ALL.map(|key| (key.name(), key)));
    Some(Encrypted { key: key.unwrap_or(KeySource::Server) })
}
