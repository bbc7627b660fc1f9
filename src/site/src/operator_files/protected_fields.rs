//! Fields of a machine file that other requests of operators change: the allocation, the lock and the disk key. An
//! outdated copy of the file would undo these changes. The fields are read without validating the file, so that an
//! invalid file is protected as well.

use super::{MachineSpec, parse_unvalidated};
use model::secret_text::SecretText;
use serde_json::Value;

/// Protected fields of one machine file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedFields {
    /// Id of the machine, in lower case.
    pub id: String,
    /// Id of the allocation; `None` if the file does not contain an allocation.
    pub allocation: Option<String>,
    /// Reason of the lock; `None` if the machine is not locked.
    pub locked: Option<String>,
    /// Key of encrypted filesystems.
    pub disk_key: Option<SecretText>,
}

impl ProtectedFields {
    /// Reads the fields from the text of a machine file. Returns `None` if the text is not YAML, or does not contain
    /// the id of a machine.
    pub fn read(text: &str) -> Option<ProtectedFields> {
        let document = parse_unvalidated(text).ok()?;
        let read = |value: &Value| match value {
            Value::Null => None,
            Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            other => Some(other.to_string()),
        };
        let allocation = &document["allocation"];
        Some(ProtectedFields {
            id: read(&document["id"])?.to_lowercase(),
            allocation: read(&allocation["id"]),
            locked: read(&document["locked"]).filter(|reason| reason != "false"),
            disk_key: read(&allocation["disk_key"]).map(SecretText::new),
        })
    }

    /// Returns the fields of a valid machine file.
    pub fn from_machine(machine: &MachineSpec) -> ProtectedFields {
        let allocation = machine.allocation.as_ref();
        ProtectedFields {
            id: machine.id.clone(),
            allocation: allocation.map(|allocation| allocation.id.to_string()),
            locked: machine.locked.clone(),
            disk_key: allocation.and_then(|allocation| allocation.disk_key.as_deref().cloned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(id: &str, [allocation, locked, disk_key]: [Option<&str>; 3]) -> ProtectedFields {
        ProtectedFields {
            id: id.to_owned(),
            allocation: allocation.map(str::to_owned),
            locked: locked.map(str::to_owned),
            disk_key: disk_key.map(SecretText::new),
        }
    }

    #[test]
    fn fields_of_invalid_files_are_read() {
        for (text, expected) in [
            ("id: M1\n", Some(fields("m1", [None, None, None]))),
            (
                "id: m1\nunknown: [1]\nlocked: disk check\nallocation: {id: a1, disk_key: \"12\"}\n",
                Some(fields("m1", [Some("a1"), Some("disk check"), Some("12")])),
            ),
            ("id: m1\nlocked: true\nallocation: text\n", Some(fields("m1", [None, Some("true"), None]))),
            ("id: m1\nlocked: false\nallocation:\n", Some(fields("m1", [None, None, None]))),
            ("name: x\n", None),
            ("id: [\n", None),
            ("", None),
        ] {
            assert_eq!(ProtectedFields::read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_valid_file_and_its_text_have_equal_fields() {
        let text = "id: 4C4C4544-0051-3010-8052-B4C04F4D0001\nname: one\nlocked: disk check\n\
            allocation:\n  id: a1\n  hostname: h\n  image: i\n  filesystemlayout: l\n  disk_key: 0123456789abcdef0123\n";
        let machine = super::super::parse_machine(text).unwrap();
        assert_eq!(ProtectedFields::read(text), Some(ProtectedFields::from_machine(&machine)));
    }
}
