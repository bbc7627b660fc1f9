//! Parsing and validation of the operator's YAML files.

mod agent_allocation;
mod bmc;
mod error_collection;
mod image_file;
mod k8s_volumes;
mod machine_file;
mod machine_file_detection;
mod machine_networks;
mod network_config_validation;
pub(crate) mod os_parameters;
mod protected_fields;
mod pull_secret;
pub(crate) mod recorded_allocation;
pub mod yaml_node;

pub use image_file::parse_image;
pub use k8s_volumes::parse_resources;
pub use machine_file::{DEFAULT_ID, consoles_for, default_consoles, parse_machine};
pub use machine_file_detection::{find_network_misfits, find_network_problems, is_agent_document, is_machine_text};
pub use protected_fields::ProtectedFields;
pub use yaml_node::{format_at, replace_positions, suggest_name};

use crate::ganeti_os_definition_state::DefinitionState;
use marked_yaml::{Span, Spanned};
use model::allocation::{BootOrder, FinisherChoice};
use model::architecture::Architecture;
use model::bmc::Bmc;
use model::deploy_steps::EraseMode;
use model::image_boot_contents::BootContents;
use model::registry_auth::PullSecret;
use model::secret_text::SecretText;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use uuid::Uuid;
use yaml_node::{parse_document, to_json};

/// Content of a machine file (`machines/*.yaml`), validated.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineSpec {
    pub id: String,
    pub name: String,
    /// Project of the machine. The access of users can be restricted to projects.
    pub project: Option<String>,
    pub macs: Vec<String>,
    /// UUID that the machine's firmware reports; `None` if this UUID is the machine's id.
    pub smbios_uuid: Option<Uuid>,
    pub size: Option<String>,
    pub consoles: Vec<String>,
    /// Network configuration of the ramdisk for networks without DHCP, encoded as the value of `drophammer.network=`.
    pub ramdisk_network: Option<String>,
    /// Reason why the machine is locked. Nothing can be ordered for a locked machine.
    pub locked: Option<String>,
    /// Management controller that switches the machine's power.
    pub bmc: Option<Bmc>,
    /// Traits of the machine. A trait with the name of a deploy template enables this template on the machine.
    pub traits: Vec<Spanned<String>>,
    /// Networks of metal-stack that an allocation request may select by `networkid`.
    pub networks: Vec<Value>,
    pub allocation: Option<AllocationSpec>,
}

impl MachineSpec {
    /// Returns the reason why the machine is locked, with the command that unlocks it; `None` if it is not locked.
    pub fn explain_lock(&self) -> Option<String> {
        let reason = self.locked.as_ref()?;
        let name = if self.name.is_empty() { &self.id } else { &self.name };
        Some(format!("locked: {reason}; to unlock it, run `drophammer machine unlock {name}`"))
    }
}

/// Desired state of a machine. The image and the layout are specified by ids, which must exist in `images/` and
/// `layouts/`. If no layout is specified, the layout whose constraints match the machine's size and the image applies.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocationSpec {
    pub id: Spanned<String>,
    pub hostname: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub project: String,
    #[serde(default)]
    pub role: String,
    /// Id of the image. If `os` is set, the id of the OS definition's image.
    #[serde(default = "unnamed_image")]
    pub image: Spanned<String>,
    /// Name of an OS definition, with or without a variant.
    pub os: Option<Spanned<String>>,
    #[serde(default)]
    os_parameters: Vec<Spanned<String>>,
    /// Parsed `os_parameters`.
    #[serde(skip)]
    pub changes: Vec<os_parameters::SpannedChange>,
    /// State of the definition that `os` names, as found in the operator's directory.
    #[serde(skip)]
    pub definition: DefinitionState,
    pub filesystemlayout: Option<Spanned<String>>,
    /// Requested traits, a subset of the machine's traits. A deploy template with the name of a requested trait changes
    /// the steps of the installation.
    #[serde(default)]
    pub requested_traits: Vec<Spanned<String>>,
    #[serde(default)]
    pub ssh_pub_keys: Vec<String>,
    #[serde(default)]
    pub user_data: String,
    #[serde(default)]
    pub console_password: String,
    /// Key of encrypted filesystems with `key: server`.
    pub disk_key: Option<Spanned<SecretText>>,
    /// Field with which earlier versions ordered a reinstall. A file that contains this field is rejected.
    #[serde(default)]
    reinstall: Option<Spanned<String>>,
    /// Method of erasing disks: `quick`, `secure` or `none`.
    #[serde(default)]
    pub erase: EraseMode,
    /// Disks whose data the first installation may erase, by serial number, WWN or path in `/dev/disk/by-path`.
    #[serde(default)]
    pub give_up: Vec<Spanned<String>>,
    /// Program that makes the installed system bootable: `auto`, `image`, `builtin` or `none`.
    pub finish: Option<FinisherChoice>,
    #[serde(default)]
    pub kernel_arguments: Vec<Spanned<String>>,
    /// Boot order of the firmware after the installation: `pxe`, `disk` or `keep`.
    #[serde(default)]
    pub boot_order: BootOrder,
    #[serde(default, rename = "network")]
    _network: Option<IgnoredAny>,
    #[serde(default, rename = "volumes")]
    _volumes: Option<IgnoredAny>,
    #[serde(default, rename = "networks")]
    _networks: Option<IgnoredAny>,
    #[serde(default, rename = "dns_servers")]
    _dns_servers: Option<IgnoredAny>,
    #[serde(default, rename = "ntp_servers")]
    _ntp_servers: Option<IgnoredAny>,
    #[serde(default, rename = "firewall_rules")]
    _firewall_rules: Option<IgnoredAny>,
    #[serde(default, rename = "vpn")]
    _vpn: Option<IgnoredAny>,
    /// Fields that the agent or the image interprets. The server passes them on unchanged.
    #[serde(skip)]
    pub passed_on: serde_json::Map<String, Value>,
}

fn unnamed_image() -> Spanned<String> {
    Spanned::new(Span::new_blank(), String::new())
}

/// Content of an image file (`images/*.yaml`), validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    pub id: String,
    pub name: String,
    pub description: String,
    pub at: ImageLocation,
    /// Further URLs from which the same image can be fetched.
    pub mirrors: Vec<String>,
    pub digest: Option<String>,
    /// Registry credentials for the URL of the image and for its mirrors.
    pub pull_secrets: Vec<PullSecret>,
    pub finish: Option<FinisherChoice>,
    /// Architecture of the machines for which the image is built.
    pub architecture: Option<Architecture>,
    /// Files of the image, as listed in the manifest next to the image. The YAML file does not contain this field.
    pub contents: Option<BootContents>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageLocation {
    Url(String),
    /// Path below `images/`, without components such as `..`.
    File(String),
}

/// Checks a file in `os/` with parameters of OS definitions, without checking whether the definitions exist.
///
/// # Errors
/// Returns all problems, one per line, with line and column in front.
pub fn check_os_parameters(text: &str) -> Result<(), String> {
    os_parameters::parse_site_parameters(text).map(drop)
}

/// Converts a YAML document to JSON, without validating its fields.
///
/// # Errors
/// Returns an error if the text is not YAML.
pub fn parse_unvalidated(text: &str) -> Result<Value, String> {
    Ok(to_json(&parse_document(text)?))
}

#[cfg(test)]
mod tests;
