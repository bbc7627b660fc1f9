//! Allocations: the image, layout and settings that the control plane assigns to a machine. No other module depends on
//! the wire format of allocations.
//!
//! The format is the part of metal-api's `v1.MachineResponse` that an installer needs. drophammer adds these fields to
//! the allocation: `order`, `installed`, `erase`, `steps`, `begun_on`, `attempt_record`, `unremembered`,
//! `former_machines`, `definition`, `finish`, `network`, `kernel_arguments`, `boot_order`, `volumes`,
//! `prepared_volumes`, `disk_key`, `separate_secrets`, `give_up`, `approved`, `blank_only`, `moving`, `fencing`. To the
//! image it adds `architecture`, `digest`, `mirrors`, `pull_secrets`, `finish` and `contents`.

mod secrets;

pub use secrets::{ReleasedSecrets, SecretField, SecretPurpose, SecretsRequest};

mod reinstall_order_number;

pub use reinstall_order_number::OrderNumber;

mod value_rules;

pub use value_rules::{
    ServerKind, find_argument_error, find_hostname_error, find_key_line_error, find_public_key_error, normalize_servers,
};

use crate::architecture::Architecture;
use crate::deploy_steps::{EraseMode, TemplateStep};
use crate::ganeti_os_definition::SelectedDefinition;
use crate::image_boot_contents::BootContents;
use crate::install_marker::{AttemptRecord, FencingToken, InstallMarker, RecordedDisk, RecordedVolume};
use crate::k8s_volume::{self, K8sVolume};
use crate::layout::{self, ParsedLayout};
use crate::machine_migration::{self, MigrationAnswer, MigrationOffer, MigrationStatus};
use crate::registry_auth::PullSecret;
use crate::secret_text::SecretText;
use common::diagnostic::Diagnostic;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Machine as returned by `GET /v1/machine/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Machine"))]
pub struct AssignedMachine {
    /// UUID of the machine, as reported by its firmware.
    pub id: String,
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<IdReference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Latest migration in which the machine takes or took part. The field remains present after the migration has
    /// ended. drophammer extension.
    #[serde(default, rename = "move", skip_serializing_if = "Option::is_none")]
    pub newest_move: Option<MigrationStatus>,
}

impl AssignedMachine {
    /// Returns the state of the migration with the id `order`, according to this response.
    pub fn migration_status(&self, order: &str) -> MigrationAnswer<'_> {
        let part = self.allocation.as_ref().and_then(|allocation| allocation.moving.as_ref());
        machine_migration::interpret_answer(order, part, self.newest_move.as_ref())
    }
}

/// Reference to an object by its id, in the format of metal-api.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct IdReference {
    pub id: String,
}

/// Desired state of a machine: its image, layout and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Allocation {
    /// Id of the allocation. The install marker on the disks records this id, so that an installed machine is not
    /// installed again.
    #[serde(rename = "allocationuuid")]
    pub id: String,
    #[serde(default)]
    pub created: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub project: String,
    pub hostname: String,
    /// Role of the machine: `machine` or `firewall`.
    #[serde(default)]
    pub role: String,
    pub image: AllocatedImage,
    /// Layout, with the field names and values of the control plane; see [`Allocation::parse_layout`].
    #[cfg_attr(feature = "schema", schemars(with = "crate::layout::Layout", description = "Desired disk layout."))]
    pub filesystemlayout: Value,
    /// Networks of metal-stack. This field and the fields `dns_servers`, `ntp_servers`, `firewall_rules` and `vpn` are
    /// passed unchanged to the image's installer.
    #[serde(default)]
    pub networks: Value,
    /// Network configuration of the installed system, in version 2 of netplan's format. drophammer extension.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub network: Value,
    #[serde(default)]
    pub ssh_pub_keys: Vec<String>,
    /// User data for the installed system, in base64. A text that is not valid base64 is used as the user data itself,
    /// as in metal-stack.
    #[serde(default)]
    pub user_data: String,
    #[serde(default)]
    pub console_password: String,
    #[serde(default)]
    pub dns_servers: Value,
    #[serde(default)]
    pub ntp_servers: Value,
    #[serde(default)]
    pub firewall_rules: Value,
    #[serde(default)]
    pub vpn: Value,
    /// OS definition to which the image belongs, with the values of its parameters. drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<SelectedDefinition>,
    /// Component that makes the image bootable on this machine. This field takes precedence over the field `finish` of
    /// the image. drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinisherChoice>,
    /// Additional arguments for the installed kernel. drophammer extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_arguments: Vec<String>,
    /// Position of the installed system in the boot order of UEFI firmware. drophammer extension.
    #[serde(default)]
    pub boot_order: BootOrder,
    /// Kubernetes volumes that are prepared on the machine, and their storage classes; see
    /// [`Allocation::parse_volumes`]. drophammer extension.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub volumes: Value,
    /// Kubernetes volumes that the control plane lists as `Available`; `None` if the control plane does not list
    /// volumes. drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_volumes: Option<Vec<RecordedVolume>>,
    /// Key of the machine's encrypted filesystems with `key: server`. drophammer extension.
    #[serde(default, skip_serializing_if = "SecretText::is_empty")]
    pub disk_key: SecretText,
    /// True if a disk key exists but is omitted from this response. The key is omitted in responses to operators, and
    /// to a machine that boots again after its installation has passed the point of no return.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_key_withheld: bool,
    /// Names of the secret fields that this response omits. The control plane sends these fields only on a separate
    /// request. drophammer extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub separate_secrets: Vec<SecretField>,
    /// Key of the encrypted filesystems with `key: file`. The agent reads the key from the ramdisk; the key is never
    /// transmitted.
    #[serde(skip)]
    pub file_key: SecretText,
    /// Key of the encrypted filesystems with `key: prompt`. It is typed at the console, and never transmitted.
    #[serde(skip)]
    pub prompt_key: SecretText,
    /// True if the installation is a reinstall. A reinstall preserves the disks with `wipeonreinstall: false`.
    #[serde(default)]
    pub reinstall: bool,
    /// True if this installation also preserves existing data on disks with `wipeonreinstall: false`, as a reinstall
    /// does. Never transmitted.
    #[serde(skip)]
    pub keeps: bool,
    /// Reinstall order. Like `installed`, this field is a drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<OrderedReinstall>,
    /// Fencing token of this reinstall, first installation or migration. The install marker will contain this token.
    /// drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<FencingToken>,
    /// Install marker of the last finished installation, as stored by the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<InstallMarker>,
    /// Method of erasing disks before new contents are written to them. drophammer extension.
    #[serde(default)]
    pub erase: EraseMode,
    /// Complete list of the steps to run. If no template changes the default steps, the list is empty, and the default
    /// steps run. drophammer extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<TemplateStep>,
    /// Disks that the first installation may erase even if they cannot be read or identified. Each disk is specified by
    /// serial number, WWN or path in `/dev/disk/by-path`. For a reinstall, the reinstall order contains this list
    /// instead. drophammer extension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_up: Vec<String>,
    /// True if the machine or the operator (`drophammer machine adopt`) has reported that the installation is finished.
    #[serde(default)]
    pub succeeded: bool,
    /// Disks of a first installation that has passed the point of no return but has not been completed. The
    /// installation may continue only on these disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun_on: Vec<RecordedDisk>,
    /// Record of the last attempt at this first installation that passed the point of no return. Only the install
    /// marker of this attempt proves that the installation was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
    /// True if the control plane may have lost the record of an installation on this machine. In that case, a disk
    /// that the layout does not identify by serial number or WWN is erased only if it is blank or listed in `give_up`.
    /// drophammer extension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unremembered: bool,
    /// Ids that this machine had before it was renamed. An install marker that contains one of these ids belongs to
    /// this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_machines: Vec<String>,
    /// Plan that the operator has approved. The agent refuses any other plan. drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<ApprovedPlan>,
    /// Reason why this machine might not be the one that the machine file describes; `None` if its identity is certain.
    /// If a reason is set, only blank disks are erased. drophammer extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank_only: Option<String>,
    /// Role of this machine in a migration. If this field is set, it takes precedence over all other fields. drophammer
    /// extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<MigrationOffer>,
}

/// Approved verdicts of a plan (`plan::ApprovalSummary`), and the hash of their canonical form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ApprovedPlan {
    /// `sha256:HEX` of the canonical form of the verdicts.
    pub sha256: String,
    pub verdicts: Value,
    /// Digests of the inputs of the plan, by field of the allocation. The server compares these digests; agents do not
    /// receive them. Empty if the plan was saved by an earlier version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

/// Reinstall that an operator has ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct OrderedReinstall {
    pub id: String,
    /// Number of this attempt, from 1 to `attempts`.
    pub attempt: u32,
    pub attempts: u32,
    /// True if an earlier attempt at this order has reported that it passed the point of no return. The earlier attempt
    /// may have erased the install marker.
    #[serde(default, rename = "begun")]
    pub started: bool,
    /// True if the operator confirms that the disk with the install marker was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// True if the operator accepts that `wipeonreinstall` in the layout differs from the wipe policy in the install
    /// marker. The value in the layout then applies.
    #[serde(default)]
    pub change_promise: bool,
    /// Disks whose data may be erased. Each disk is specified by serial number, WWN or path in `/dev/disk/by-path`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_up: Vec<String>,
    /// UUIDs of the preserved LUKS containers that may stay locked. The reinstall may erase the only copy of their
    /// keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leave_locked: Vec<String>,
    /// True if the reinstall may replace an installation on the disks that is newer than the reinstall order or unknown
    /// to the control plane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_newer: bool,
    /// True if the operator has placed or confirmed this reinstall order after the control plane's database was last
    /// restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// Disks of the last attempt that passed the point of no return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
    /// Record of the last attempt that passed the point of no return. Only the install marker of this attempt proves
    /// that the reinstall order was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
}

/// Operating system image and its location.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields, rename = "Image"))]
pub struct AllocatedImage {
    /// Id of the image, such as `debian-12.0.20261101`.
    pub id: String,
    #[serde(default)]
    pub name: String,
    /// URL of the image: `http://`, `https://`, `file:///PATH` or `oci://HOST/REPOSITORY:TAG`.
    pub url: String,
    /// Alternative URLs of the image, in the order in which they are tried after `url`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Digest of the file at `url`, or of the image's manifest in a registry: `sha256:HEX` or `sha512:HEX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Credentials for the registries of `url` and `mirrors`, one for each registry that requires authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<PullSecret>,
    /// Component that makes the image bootable on a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinisherChoice>,
    /// Architecture of the machines for which the image is built; `None` if the control plane does not specify it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// Bootable contents of the image, as listed in its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<BootContents>,
}

/// Component that makes the unpacked image bootable, by configuring boot loader, users and network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FinisherChoice {
    /// The installer in the image makes the image bootable if the image contains an installer; otherwise drophammer
    /// does.
    #[default]
    Auto,
    /// The installer in the image makes the image bootable. The installation fails if the image does not contain an
    /// installer.
    Image,
    /// drophammer itself makes the image bootable, even if the image contains an installer.
    Builtin,
    /// No component: the image boots without changes.
    None,
}

/// Position of the installed system in the boot order of an EFI firmware.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BootOrder {
    /// The entry of the installed system comes after the network entries. The machine can then be reinstalled over the
    /// network without an action at its console.
    #[default]
    Pxe,
    /// The entry of the installed system comes before all other entries.
    Disk,
    /// The boot order is not changed.
    Keep,
}

impl Allocation {
    /// Parses the layout.
    ///
    /// # Errors
    /// Returns all problems of the layout, each with its path in the document.
    pub fn parse_layout(&self) -> Result<ParsedLayout, Vec<Diagnostic>> {
        layout::read_json(&self.filesystemlayout)
    }

    /// Parses the list of Kubernetes volumes.
    ///
    /// # Errors
    /// Returns all problems of the list, each with its path in the document.
    pub fn parse_volumes(&self) -> Result<Vec<K8sVolume>, Vec<Diagnostic>> {
        k8s_volume::parse_volumes(&self.volumes)
    }

    /// Returns the id of the reinstall order; `None` for a first installation.
    pub fn order_id(&self) -> Option<&str> {
        self.order.as_ref().map(|order| order.id.as_str()).filter(|id| !id.is_empty())
    }
    /// Returns the field `finish` of the allocation if it is set, otherwise the field `finish` of the image. Returns
    /// the default if neither field is set.
    pub fn finisher(&self) -> FinisherChoice {
        self.finish.or(self.image.finish).unwrap_or_default()
    }
}

/// Source of information about earlier installations of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordSource {
    /// Records of the control plane.
    #[default]
    ControlPlane,
    /// Records on the disks only. The control plane has no records of installations, or has lost them.
    DisksOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finisher_of_the_allocation_overrides_that_of_the_image() {
        let both = |allocation: Option<FinisherChoice>, image: Option<FinisherChoice>| {
            let image = AllocatedImage { finish: image, ..AllocatedImage::default() };
            Allocation { finish: allocation, image, ..Allocation::default() }.finisher()
        };
        assert_eq!(both(None, None), FinisherChoice::Auto);
        assert_eq!(both(None, Some(FinisherChoice::None)), FinisherChoice::None);
        assert_eq!(both(Some(FinisherChoice::Builtin), Some(FinisherChoice::None)), FinisherChoice::Builtin);
        assert_eq!(both(Some(FinisherChoice::Auto), Some(FinisherChoice::None)), FinisherChoice::Auto);
    }
}
