//! Conversion of an allocation in a machine file to and from the fields that the server records for an installation.

use super::AllocationSpec;
use crate::ganeti_os_definition_state::DefinitionState;
use common::type_errors::locate_json_error;
use marked_yaml::{Span, Spanned};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use store::{AllocationFields, InstalledAllocation};

/// Field with the keys of the VPN. No other field in `PASSED_ON` is secret.
const VPN: &str = "vpn";
/// Field with the Kubernetes volumes. Volumes are separate resources, and are always taken from the machine file.
pub(crate) const VOLUMES: &str = "volumes";
/// Field with the key of encrypted filesystems, some of which a reinstall preserves.
pub(crate) const DISK_KEY: &str = "disk_key";
/// Field with the name of the OS definition.
pub(crate) const OS: &str = "os";
/// Field with the parameters of the OS definition, which may contain secrets.
pub(crate) const OS_PARAMETERS: &str = "os_parameters";

impl AllocationSpec {
    /// Returns the fields that an installation takes from the machine file. Omits the image, the layout and `give_up`,
    /// to which separate rules apply.
    pub fn to_fields(&self) -> AllocationFields {
        let mut plain = Map::new();
        let mut insert = |name: &str, value: Value| {
            if !is_unset(&value) {
                plain.insert(name.to_owned(), value);
            }
        };
        let texts = |all: &[Spanned<String>]| all.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        insert("hostname", to_value(&self.hostname));
        insert("name", to_value(&self.name));
        insert("project", to_value(&self.project));
        insert("role", to_value(&self.role));
        insert("requested_traits", to_value(&texts(&self.requested_traits)));
        insert("ssh_pub_keys", to_value(&self.ssh_pub_keys));
        insert("erase", to_value(&self.erase));
        insert("finish", to_value(&self.finish));
        insert("kernel_arguments", to_value(&texts(&self.kernel_arguments)));
        insert("boot_order", to_value(&self.boot_order));
        insert(OS, to_value(&self.os.as_deref()));
        let passed_on = self.passed_on.iter().filter(|(name, _)| *name != VPN);
        passed_on.for_each(|(name, value)| insert(name, value.clone()));
        AllocationFields { plain, secrets: self.secret_fields() }
    }

    fn secret_fields(&self) -> BTreeMap<String, String> {
        let set = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let parameters: Vec<&str> = self.os_parameters.iter().map(|parameter| parameter.as_str()).collect();
        let secrets = [
            ("user_data", set(&self.user_data)),
            ("console_password", set(&self.console_password)),
            (DISK_KEY, self.disk_key.as_ref().and_then(|key| set(key.reveal()))),
            (OS_PARAMETERS, (!parameters.is_empty()).then(|| to_value(&parameters).to_string())),
            (VPN, self.passed_on.get(VPN).filter(|vpn| !is_unset(vpn)).map(Value::to_string)),
        ];
        secrets.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Returns the allocation with the recorded fields. The volumes and `disk_key` are taken from the machine file. The
    /// OS definition, and secrets other than `disk_key`, are also taken from the machine file, if they were set at the
    /// installation.
    ///
    /// # Errors
    /// Returns an error if a newer version has recorded a value that this version does not support.
    pub(crate) fn with_recorded_fields(&self, record: &InstalledAllocation) -> Result<AllocationSpec, String> {
        let fields = &record.plain;
        let spanned = |texts: Vec<String>| {
            texts.into_iter().map(|text| Spanned::new(Span::new_blank(), text)).collect::<Vec<Spanned<String>>>()
        };
        let mut kept = AllocationSpec {
            hostname: read_field(fields, "hostname")?,
            name: read_field(fields, "name")?,
            project: read_field(fields, "project")?,
            role: read_field(fields, "role")?,
            requested_traits: spanned(read_field(fields, "requested_traits")?),
            ssh_pub_keys: read_field(fields, "ssh_pub_keys")?,
            erase: read_field(fields, "erase")?,
            finish: read_field(fields, "finish")?,
            kernel_arguments: spanned(read_field(fields, "kernel_arguments")?),
            boot_order: read_field(fields, "boot_order")?,
            ..self.clone()
        };
        for name in super::machine_file::PASSED_ON.into_iter().filter(|name| ![VPN, VOLUMES].contains(name)) {
            match fields.get(name) {
                Some(value) => drop(kept.passed_on.insert(name.to_owned(), value.clone())),
                None => drop(kept.passed_on.remove(name)),
            }
        }
        let is_unset = |name: &str| !record.has_secret(name);
        if is_unset("user_data") {
            kept.user_data.clear();
        }
        if is_unset("console_password") {
            kept.console_password.clear();
        }
        if is_unset(VPN) {
            kept.passed_on.remove(VPN);
        }
        if !fields.contains_key(OS) {
            kept.os = None;
            kept.os_parameters.clear();
            kept.changes.clear();
            kept.definition = DefinitionState::Unnamed;
        }
        Ok(kept)
    }
}

/// Returns whether a field with this value is equivalent to a missing field.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Converts a value to JSON. The type of the value must always be representable as JSON.
fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn read_field<T: DeserializeOwned + Default>(fields: &Map<String, Value>, name: &str) -> Result<T, String> {
    let Some(value) = fields.get(name) else { return Ok(T::default()) };
    T::deserialize(value)
        .map_err(|error| format!("the recorded value of {name} is not supported: {}", locate_json_error(&error)))
}

#[cfg(test)]
mod tests {
    use crate::operator_files::{AllocationSpec, parse_machine};
    use serde_json::json;
    use store::InstalledAllocation;

    const FULL: &str = "  name: n
  project: p
  role: machine
  ssh_pub_keys: [ssh-rsa AAAA]
  user_data: u
  console_password: c
  disk_key: '0123456789012345678901'
  erase: secure
  finish: builtin
  kernel_arguments: [quiet]
  boot_order: disk
  dns_servers: [{ip: 1.1.1.1}]
  ntp_servers: [{address: t}]
  networks: [{vrf: 3}]
  vpn: {auth_key: v}
";

    fn parse(rest: &str) -> AllocationSpec {
        let text = format!(
            "id: 4c4c4544-0051-3010-8031-b2c04f333633\nallocation:\n  id: a\n  hostname: h\n  image: i\n{rest}"
        );
        parse_machine(&text).unwrap().allocation.unwrap()
    }

    fn agent_document(allocation: &AllocationSpec) -> serde_json::Value {
        json!(allocation.to_agent_allocation())
    }

    #[test]
    fn every_field_is_restored_from_its_record() {
        let full = parse(FULL);
        let record = InstalledAllocation::from_fields(full.to_fields());
        // Fields of the file that were not set at the installation are removed. Secrets that were set cannot be
        // restored.
        let later = full.with_recorded_fields(&InstalledAllocation::from_fields(parse("").to_fields())).unwrap();
        assert_eq!(agent_document(&later), agent_document(&parse("  disk_key: '0123456789012345678901'\n")));
        let secrets =
            "  user_data: u\n  console_password: c\n  disk_key: '0123456789012345678901'\n  vpn: {auth_key: v}\n";
        let kept = parse(secrets).with_recorded_fields(&record).unwrap();
        assert_eq!(agent_document(&kept), agent_document(&full));
        assert_eq!(kept.to_fields(), full.to_fields());
    }

    #[test]
    fn secrets_are_not_among_the_plain_fields() {
        let fields = parse(FULL).to_fields();
        assert_eq!(fields.secrets.keys().collect::<Vec<_>>(), ["console_password", "disk_key", "user_data", "vpn"]);
        let record = serde_json::to_string(&InstalledAllocation::from_fields(fields)).unwrap();
        assert!(!record.contains("0123456789012345678901") && !record.contains("auth_key"), "{record}");
    }

    #[test]
    fn a_value_of_a_newer_version_is_refused() {
        let mut record = InstalledAllocation::from_fields(parse("").to_fields());
        record.plain.insert("erase".to_owned(), json!("thrice"));
        let why = parse("").with_recorded_fields(&record).unwrap_err();
        assert!(why.starts_with("the recorded value of erase is not supported: "), "{why}");
    }
}
