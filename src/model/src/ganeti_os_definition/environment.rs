//! Environment variables of the programs of a definition, exactly as Ganeti 3.0 sets them. `testdata/definitions`
//! contains the environments that Ganeti itself builds (`scripts/compare-ganeti`).

use super::parameters::variable_name;
use super::{PATH, SelectedDefinition};
use std::collections::BTreeMap;

/// Properties of the machine. The program `create` receives them as the properties of a Ganeti instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GanetiInstance {
    pub name: String,
    pub uuid: String,
    /// Time of creation, in seconds since 1970, including fractions of a second.
    pub created: String,
    pub changed: String,
    pub primary_node: String,
    pub hypervisor: String,
    pub disks: Vec<GanetiDisk>,
    pub nics: Vec<GanetiNic>,
    /// Hypervisor parameters of the Ganeti instance, by name.
    pub settings: BTreeMap<String, String>,
    pub reinstall: bool,
}

/// Disk that `create` may write to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GanetiDisk {
    pub path: String,
    pub uuid: String,
    pub size_mib: u64,
    pub name: Option<String>,
}

/// Network interface of the machine, as passed to `create`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GanetiNic {
    pub mac: String,
    pub uuid: String,
    pub name: Option<String>,
    pub ip: Option<String>,
    pub mode: String,
    pub link: Option<String>,
}

type EnvironmentVariables = BTreeMap<String, String>;

impl SelectedDefinition {
    /// Returns the environment of `verify`. The environment contains no properties of a machine, because `verify` also
    /// checks default values that apply to all machines.
    pub fn verify_environment(&self) -> EnvironmentVariables {
        let own = [
            ("OS_API_VERSION", self.api.to_string()),
            ("OS_NAME", self.name.clone()),
            ("OS_VARIANT", self.variant.clone()),
            ("DEBUG_LEVEL", "0".to_owned()),
            ("PATH", PATH.to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(self.parameters.iter().map(|(name, value)| (variable_name(name), value.clone()))).collect()
    }

    /// Returns the environment of `create`.
    pub fn create_environment(&self, instance: &GanetiInstance) -> EnvironmentVariables {
        let mut all = self.verify_environment();
        let mut add = |name: &str, value: &str| drop(all.insert(name.to_owned(), value.to_owned()));
        for (name, value) in [
            ("INSTANCE_NAME", &instance.name),
            ("INSTANCE_OS", &self.selector().to_string()),
            ("INSTANCE_UUID", &instance.uuid),
            ("INSTANCE_CTIME", &instance.created),
            ("INSTANCE_MTIME", &instance.changed),
            ("INSTANCE_PRIMARY_NODE", &instance.primary_node),
            ("HYPERVISOR", &instance.hypervisor),
            ("DISK_COUNT", &instance.disks.len().to_string()),
            ("NIC_COUNT", &instance.nics.len().to_string()),
        ] {
            add(name, value);
        }
        // The variable is always empty, because a machine has no secondary nodes.
        add("INSTANCE_SECONDARY_NODES", "");
        for (index, disk) in instance.disks.iter().enumerate() {
            let mut add = |name: &str, value: &str| add(&format!("DISK_{index}_{name}"), value);
            add("ACCESS", "rw");
            add("UUID", &disk.uuid);
            add("SIZE", &disk.size_mib.to_string());
            add("PATH", &disk.path);
            add("BACKEND_TYPE", "block");
            disk.name.iter().for_each(|name| add("NAME", name));
        }
        for (index, nic) in instance.nics.iter().enumerate() {
            let mut add = |name: &str, value: &str| add(&format!("NIC_{index}_{name}"), value);
            add("MAC", &nic.mac);
            add("UUID", &nic.uuid);
            add("MODE", &nic.mode);
            for (name, value) in [("NAME", &nic.name), ("IP", &nic.ip), ("LINK", &nic.link)] {
                value.iter().for_each(|value| add(name, value));
            }
            if nic.mode == "bridged" {
                add("BRIDGE", nic.link.as_deref().unwrap_or_default());
            }
        }
        instance.settings.iter().for_each(|(name, value)| add(&format!("INSTANCE_HV_{name}"), value));
        if instance.reinstall {
            add("INSTANCE_REINSTALL", "1");
        }
        all
    }
}
