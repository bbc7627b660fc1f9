//! What the control plane assigned to a machine. Nothing else knows this wire format.
//!
//! The shape is metal-api's `v1.MachineResponse`, as far as an installer needs it. drophammer adds these fields of the
//! allocation: `order`, `installed`, `erase`, `steps`, `begun_on`, `attempt_record`, `unremembered`, `former_machines`, `definition`, `finish`, `network`, `kernel_arguments`,
//! `boot_order`, `volumes`, `prepared_volumes`, `disk_key`, `separate_secrets`, `give_up`, `approved`, `blank_only`, `moving`, `fencing`, and of its image `digest`, `mirrors`, `pull_secrets`, `finish` and `contents`.

mod secrets;

pub use secrets::{ReleasedSecrets, SecretField, SecretPurpose, SecretsRequest};

mod order_number;

pub use order_number::OrderNumber;

use crate::carried::{self, Moving, Newest, Said};
use crate::contents::Contents;
use crate::definition::Chosen;
use crate::layout::{self, Parsed};
use crate::marker::{AttemptRecord, FencingToken, MarkedDisk, Marker, RecordedVolume};
use crate::problem::Problem;
use crate::pull::{PullSecret, Secret};
use crate::steps::{Erase, Wanted};
use crate::volume::{self, Volume};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A machine as `GET /v1/machine/{id}` returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Machine {
    /// UUID of the machine's firmware.
    pub id: String,
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// The newest move of which the machine is part, also one that has ended. The field is drophammer's own.
    #[serde(default, rename = "move", skip_serializing_if = "Option::is_none")]
    pub newest_move: Option<Newest>,
}

impl Machine {
    /// What this answer says of the move with that id.
    pub fn says_of(&self, order: &str) -> Said<'_> {
        let part = self.allocation.as_ref().and_then(|allocation| allocation.moving.as_ref());
        carried::said(order, part, self.newest_move.as_ref())
    }
}

/// metal-api refers to things as objects with an id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Named {
    pub id: String,
}

/// What the machine is to become.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Allocation {
    /// Id of the allocation. The marker on the disks has it too, so that an installed machine is not installed again.
    #[serde(rename = "allocationuuid")]
    pub id: String,
    #[serde(default)]
    pub created: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub project: String,
    pub hostname: String,
    /// `machine` or `firewall`.
    #[serde(default)]
    pub role: String,
    pub image: Image,
    /// The layout in the control plane's spelling; see [`Allocation::layout`].
    #[cfg_attr(feature = "schema", schemars(with = "crate::layout::Layout", description = "What the disks become."))]
    pub filesystemlayout: Value,
    /// Passed on unchanged to the image's installer; so are `dns_servers`, `ntp_servers`, `firewall_rules` and `vpn`.
    #[serde(default)]
    pub networks: Value,
    /// Addresses of the installed system, in version 2 of netplan's format. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub network: Value,
    #[serde(default)]
    pub ssh_pub_keys: Vec<String>,
    /// Base64. Text that is not valid base64 is taken as plain text, as metal-stack does.
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
    /// The OS definition that the image belongs to, with its parameters. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Chosen>,
    /// What makes the image boot on this machine. It goes before the image's own word. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// Further arguments of the installed kernel. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_arguments: Vec<String>,
    /// Where the installed system comes among the entries of an EFI firmware. The field is drophammer's own.
    #[serde(default)]
    pub boot_order: BootOrder,
    /// Volumes of Kubernetes that are prepared on the machine, with their storage classes; see [`Allocation::volumes`]. The field is
    /// drophammer's own.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub volumes: Value,
    /// Volumes of Kubernetes that the control plane lists as `Available`; none from a control plane that does not list them. The field is
    /// drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_volumes: Option<Vec<RecordedVolume>>,
    /// What opens the machine's encrypted filesystems that have `key: server`. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub disk_key: Secret,
    /// There is one, and it is not told here: on a desk, and in a boot whose installation has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_key_withheld: bool,
    /// Fields that the control plane releases separately, when the installation needs them. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub separate_secrets: Vec<SecretField>,
    /// The same of those that have `key: file`: the ramdisk's own. No wire has it.
    #[serde(skip)]
    pub file_key: Secret,
    /// The same of those that have `key: prompt`: what a person has typed. No wire has it.
    #[serde(skip)]
    pub prompt_key: Secret,
    /// Install the image anew, and keep the disks that the layout keeps.
    #[serde(default)]
    pub reinstall: bool,
    /// An installation that keeps the disks which the layout keeps, where they carry what this machine had before. No wire has it.
    #[serde(skip)]
    pub keeps: bool,
    /// The order behind `reinstall`. The field is drophammer's own, as is `installed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Fencing token of this order, first installation or migration. The install marker records it. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<FencingToken>,
    /// The marker of the last finished installation, as the control plane remembers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installed: Option<Marker>,
    /// How thoroughly disks are erased before they are made anew. The field is drophammer's own.
    #[serde(default)]
    pub erase: Erase,
    /// All steps that run, where templates have a word in it: those of the installation as templates have changed them. Then what is
    /// not in the list does not run. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Wanted>,
    /// Disks whose data the first installation may erase although they cannot be looked into or nothing identifies the disk: by serial
    /// number, WWN or path in `/dev/disk/by-path`. A reinstall has those of its order. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_up: Vec<String>,
    /// A finished installation was reported, by the machine or by the operator (`drophammer machine adopt`).
    #[serde(default)]
    pub succeeded: bool,
    /// Disks of a first installation that has begun and is not finished. It may go on only with these disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun_on: Vec<MarkedDisk>,
    /// Record of the last attempt at that installation. Only its own install marker proves that the installation was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
    /// An installation on this machine may have been forgotten: a disk that the layout does not identify by serial number or WWN is erased
    /// only if it is blank or given up. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unremembered: bool,
    /// Ids that this machine had before it was renamed. A marker with one of these ids belongs to this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_machines: Vec<String>,
    /// The plan that the operator has approved: another one is refused. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Approved>,
    /// Reason why this may be another machine than the one of its file: then only blank disks are erased. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blank_only: Option<String>,
    /// This machine's part in a move of a whole machine, which goes before all else. The field is drophammer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Moving>,
}

/// What the operator has approved of a plan: [`crate::plan::Verdicts`], and the hash of their canonical form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Approved {
    /// `sha256:HEX`.
    pub sha256: String,
    pub verdicts: Value,
}

/// A reinstall that an operator has ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Order {
    pub id: String,
    /// Number of this attempt, from 1. `attempts` is the number of the last one.
    pub attempt: u32,
    pub attempts: u32,
    /// An earlier attempt has reported that it passes the point of no return. The marker may be gone already.
    #[serde(default)]
    pub begun: bool,
    /// The operator knows that the disk with the marker was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// The layout promises other things of a disk than the marker does, and the operator wants what the layout promises.
    #[serde(default)]
    pub change_promise: bool,
    /// Disks whose data the operator gives up, by serial number, WWN or path in `/dev/disk/by-path`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub give_up: Vec<String>,
    /// The operator replaces the installation on the disks, also one that is newer than the order or unknown to the control plane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace_newer: bool,
    /// The operator has placed or confirmed this order since the control plane's database was last restored from a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The disks of the last attempt that has begun.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
    /// Record of that attempt. Only its own install marker proves that the order was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
}

/// The operating system, and where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Image {
    /// `debian-12.0.20261101`.
    pub id: String,
    #[serde(default)]
    pub name: String,
    /// `http://`, `https://`, `file:///PATH` or `oci://HOST/REPOSITORY:TAG`.
    pub url: String,
    /// Other places with the same bytes, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// `sha256:HEX` or `sha512:HEX` of the file at `url`. For an image in a registry: of its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What opens the registries of `url` and `mirrors`, one for each that wants a password.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<PullSecret>,
    /// What makes it boot on a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// What its manifest tells of the tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
}

/// What makes a machine that boots of the image's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The image's installer if it has one, else drophammer.
    #[default]
    Auto,
    /// The image's installer. Without one the installation fails.
    Image,
    /// drophammer, whatever the image has.
    Builtin,
    /// Nobody: the image boots as it is.
    None,
}

/// Where the installed system comes among the entries of an EFI firmware.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BootOrder {
    /// After the network, so that a reinstall needs nobody at the machine.
    #[default]
    Pxe,
    /// First.
    Disk,
    /// The order stays as it is.
    Keep,
}

impl Allocation {
    /// The layout in the program's own types.
    ///
    /// # Errors
    /// Every problem of the layout, with its place.
    pub fn layout(&self) -> Result<Parsed, Vec<Problem>> {
        layout::read_json(&self.filesystemlayout)
    }

    /// The volumes of Kubernetes in the program's own types.
    ///
    /// # Errors
    /// Every problem of the list, with its place.
    pub fn volumes(&self) -> Result<Vec<Volume>, Vec<Problem>> {
        volume::read(&self.volumes)
    }

    /// Id of the order; none for an install.
    pub fn order_id(&self) -> Option<&str> {
        self.order.as_ref().map(|order| order.id.as_str()).filter(|id| !id.is_empty())
    }
    /// The allocation's word, else the image's.
    pub fn finish(&self) -> Finish {
        self.finish.or(self.image.finish).unwrap_or_default()
    }
}

/// Why a word cannot be an argument of the installed kernel. Boot loaders have rules of their own for what is quoted.
pub fn wrong_argument(word: &str) -> Option<&'static str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\$`;&|<>(){}".contains(&byte);
    match word {
        "" => Some("an argument of the kernel is empty"),
        _ if !word.bytes().all(is_plain) => {
            Some("an argument of the kernel is one word of letters, digits and signs like - _ . , : = / @ + %")
        }
        _ if word.starts_with("root=") => Some("root= follows from the layout: take it out"),
        _ => None,
    }
}

/// Why a name cannot be the installed system's (RFC 1123; Linux takes 64 bytes).
pub fn wrong_hostname(name: &str) -> Option<&'static str> {
    let is_label = |label: &str| {
        let is_word = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_word && !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
    };
    match name {
        _ if name.len() > 64 => Some("a hostname has 64 characters at most"),
        _ if !name.split('.').all(is_label) => Some("a hostname is made of letters, digits, hyphens and dots"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocation_goes_before_its_image() {
        let both = |allocation: Option<Finish>, image: Option<Finish>| {
            let image = Image { finish: image, ..Image::default() };
            Allocation { finish: allocation, image, ..Allocation::default() }.finish()
        };
        assert_eq!(both(None, None), Finish::Auto);
        assert_eq!(both(None, Some(Finish::None)), Finish::None);
        assert_eq!(both(Some(Finish::Builtin), Some(Finish::None)), Finish::Builtin);
        assert_eq!(both(Some(Finish::Auto), Some(Finish::None)), Finish::Auto);
    }

    #[test]
    fn arguments_and_names_are_plain_words() {
        for good in ["quiet", "nvme_core.io_timeout=300", "ip=dhcp", "module_blacklist=a,b", "hugepages=1G:4"] {
            assert_eq!(wrong_argument(good), None, "{good}");
        }
        for bad in ["", "a b", "a\nb", "a=\"b\"", "$x", "a;b", "root=/dev/sda1", "ä"] {
            assert!(wrong_argument(bad).is_some(), "{bad}");
        }
        for good in ["a", "web-1", "web-1.example.org", "7"] {
            assert_eq!(wrong_hostname(good), None, "{good}");
        }
        let long = "a".repeat(65);
        for bad in ["", "a b", "-a", "a-", "a..b", "a_b", "web\n1", &long] {
            assert!(wrong_hostname(bad).is_some(), "{bad}");
        }
    }
}
