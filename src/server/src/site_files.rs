//! Parsing and validation of the operator's YAML files: their fields and values.

mod agent_allocation;
mod bmc;
mod error_collection;
mod network;
pub mod os_parameters;
mod pull_secret;
mod volumes;
mod workstation_files;
pub mod yaml_node;

pub use workstation_files::{find_network_misfits, find_network_problems, is_agent_document, is_machine_text};
pub use yaml_node::{format_at, suggest_name};

use super::ipxe;
use super::machine_identification::DEFAULT_ID;
use super::os_definitions::DefinitionState;
use crate::bmc::Bmc;
use marked_yaml::{Span, Spanned};
use model::allocation::{BootOrder, FinisherChoice, find_argument_error};
use model::boot_contents::BootContents;
use model::deploy_steps::{EraseMode, traits};
use model::device::identifiers::{is_placeholder_serial, is_placeholder_wwn};
use model::machine_identity::parse_mac;
use model::os_definition::OsSelector;
use model::registry_auth::{PullSecret, SecretText};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::path::{Component, Path};
use uuid::Uuid;
use yaml_node::{deserialize_node, format_position, get_field, parse_document, to_json};

/// Validated `machines/*.yaml`.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    pub id: String,
    pub name: String,
    pub macs: Vec<String>,
    /// UUID that the firmware reports, if it is not the id.
    pub smbios_uuid: Option<Uuid>,
    pub size: Option<String>,
    pub consoles: Vec<String>,
    /// Network configuration of the ramdisk without DHCP, in the format of `drophammer.network=`.
    pub ramdisk_network: Option<String>,
    /// Reason why reinstalls cannot be ordered.
    pub locked: Option<String>,
    /// Controller that switches the machine's power.
    pub bmc: Option<Bmc>,
    pub allocation: Option<AllocationSpec>,
}

/// Assignment of an OS to a machine. Image and layout are ids that the other folders must define. Without a layout, the one whose
/// constraints match the machine's size and the image is chosen.
#[derive(Debug, Clone, Deserialize)]
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
    /// Image; that of the OS definition if `os` is set.
    #[serde(default = "unnamed_image")]
    pub image: Spanned<String>,
    /// OS definition, or a variant of one.
    pub os: Option<Spanned<String>>,
    #[serde(default)]
    os_parameters: Vec<Spanned<String>>,
    /// Parsed `os_parameters`.
    #[serde(skip)]
    pub changes: Vec<os_parameters::SpannedChange>,
    /// Result of resolving `os` in the operator's directory.
    #[serde(skip)]
    pub definition: DefinitionState,
    pub filesystemlayout: Option<Spanned<String>>,
    /// Subset of the machine's traits. A deploy template with such a name changes the steps of the installation.
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
    /// Formerly an order for a reinstall, and now rejected.
    #[serde(default)]
    reinstall: Option<Spanned<String>>,
    /// `quick`, `secure` or `none`.
    #[serde(default)]
    pub erase: EraseMode,
    /// Disks whose data the first installation may erase, by serial number, WWN or path in `/dev/disk/by-path`.
    #[serde(default)]
    pub give_up: Vec<Spanned<String>>,
    /// `auto`, `image`, `builtin` or `none`.
    pub finish: Option<FinisherChoice>,
    #[serde(default)]
    pub kernel_arguments: Vec<Spanned<String>>,
    /// `pxe`, `disk` or `keep`.
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
    /// Fields listed in [`PASSED_ON`] that are set, passed on unchanged.
    #[serde(skip)]
    pub passed_on: serde_json::Map<String, Value>,
}

/// Checks that a serial number, WWN or path can identify a disk.
///
/// # Errors
/// It is a placeholder that many disks report.
fn check_disk_identifier(word: &str) -> Result<(), String> {
    let is_placeholder = word.trim().is_empty() || (is_placeholder_serial(word) && is_placeholder_wwn(word));
    match is_placeholder {
        true => Err(format!("{word:?} is a placeholder that many disks report: it identifies none of them")),
        false => Ok(()),
    }
}

fn unnamed_image() -> Spanned<String> {
    Spanned::new(Span::new_blank(), String::new())
}

/// Fields of an allocation that are interpreted by the agent or the image.
const PASSED_ON: [&str; 7] = ["network", "volumes", "networks", "dns_servers", "ntp_servers", "firewall_rules", "vpn"];

/// Validated `images/*.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    pub id: String,
    pub name: String,
    pub description: String,
    pub at: ImageLocation,
    /// Further URLs of the same image.
    pub mirrors: Vec<String>,
    pub digest: Option<String>,
    /// Registry credentials for the URL and the mirrors.
    pub pull_secrets: Vec<PullSecret>,
    pub finish: Option<FinisherChoice>,
    /// Content of the tree according to the manifest next to the file; not a field of the YAML file.
    pub contents: Option<BootContents>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageLocation {
    Url(String),
    /// Path below `images/`, without `..` and the like.
    File(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    macs: Vec<Spanned<String>>,
    smbios_uuid: Option<Spanned<String>>,
    size: Option<String>,
    consoles: Option<Vec<Spanned<String>>>,
    #[serde(default, rename = "ramdisk_network")]
    _ramdisk_network: Option<IgnoredAny>,
    locked: Option<Spanned<String>>,
    bmc: Option<bmc::RawBmc>,
    #[serde(default)]
    traits: Vec<Spanned<String>>,
    allocation: Option<AllocationSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImage {
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    description: String,
    url: Option<Spanned<String>>,
    file: Option<Spanned<String>>,
    #[serde(default)]
    mirrors: Vec<Spanned<String>>,
    digest: Option<Spanned<String>>,
    pull_secret: Option<pull_secret::RawPullSecret>,
    finish: Option<FinisherChoice>,
}

/// Console arguments of a machine without a file, or whose file lists none.
pub fn default_consoles() -> Vec<String> {
    ["tty0", "ttyS0,115200n8"].map(str::to_owned).to_vec()
}

/// Parses and validates a machine file.
///
/// # Errors
/// All problems, one per line, with line and column in front.
pub fn parse_machine(text: &str) -> Result<MachineSpec, String> {
    let node = parse_document(text)?;
    get_field(&node, "bmc").map_or(Ok(()), bmc::reject_scalar)?;
    let (raw, mut wrong) = error_collection::deserialize_all::<RawMachine>(&node);
    let Some(raw) = raw else { return Err(wrong.join("\n")) };
    let mut check = |value: &Spanned<String>, found: Result<(), String>| {
        if let Err(message) = found
            && error_collection::is_given(value)
        {
            wrong.push(format_at(value, &message));
        }
    };
    let usable = |given: &Spanned<String>| {
        ipxe::parse_uuid(given).and_then(|id| id.ok_or(format!("{} {DEFAULT_ID}", given.as_str())))
    };
    let id = usable(&raw.id);
    let smbios_uuid = raw.smbios_uuid.as_ref().map(|given| (given, usable(given)));
    smbios_uuid.iter().for_each(|(given, uuid)| check(given, uuid.as_ref().map(|_| ()).map_err(String::clone)));
    check(&raw.id, id.as_ref().map(|_| ()).map_err(String::clone));
    let macs: Vec<_> = raw.macs.iter().map(|mac| (mac, parse_mac(mac))).collect();
    macs.iter().for_each(|(given, mac)| check(given, mac.as_ref().map(|_| ()).map_err(String::clone)));
    raw.consoles.iter().flatten().for_each(|console| check(console, ipxe::validate_console(console)));
    let locked = raw.locked.as_ref().map(|given| (given, parse_lock_reason(given)));
    locked.iter().for_each(|(given, locked)| check(given, locked.as_ref().map(|_| ()).map_err(String::clone)));
    raw.traits.iter().for_each(|given| check(given, traits::check_trait(given).map_or(Ok(()), Err)));
    let mut allocation = raw.allocation;
    if let (Some(allocation), Some(given)) = (&mut allocation, get_field(&node, "allocation")) {
        if allocation.id.trim().is_empty() {
            check(&allocation.id, Err("the allocation's id is empty".to_owned()));
        }
        if let Some(order) = &allocation.reinstall {
            let message = format!(
                "reinstalls can no longer be ordered in a file: remove this line, and use `drophammer machine reinstall {} --image IMAGE`",
                *raw.id
            );
            check(order, Err(message));
        }
        for requested in &allocation.requested_traits {
            check(requested, check_requested_trait(requested, &raw.traits));
        }
        for given in &allocation.give_up {
            check(given, check_disk_identifier(given));
        }
        for argument in &allocation.kernel_arguments {
            check(argument, find_argument_error(argument).map_or(Ok(()), |why| Err(why.to_owned())));
        }
        let fields = PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), to_json(get_field(given, name)?))));
        allocation.passed_on = fields.collect();
        wrong.extend(allocation.disk_key.as_ref().and_then(pull_secret::check_disk_key));
        wrong.extend(
            get_field(given, "network").map(|given| network::find_problems("network", given)).unwrap_or_default(),
        );
        wrong.extend(get_field(given, "volumes").map(volumes::find_problems).unwrap_or_default());
        let has_image = get_field(given, "image").is_some();
        wrong.extend(check_definition(allocation, has_image, format_position(given.span().start())));
    }
    let bmc = raw.bmc.zip(get_field(&node, "bmc")).map(|(raw, given)| raw.validate(given));
    wrong.extend(bmc.as_ref().and_then(|bmc| bmc.as_ref().err()).cloned());
    let ramdisk_network =
        get_field(&node, "ramdisk_network").map(|given| network::encode_argument("ramdisk_network", given));
    wrong.extend(ramdisk_network.iter().filter_map(|read| read.as_ref().err()).flatten().cloned());
    match id {
        Ok(id) if wrong.is_empty() => Ok(MachineSpec {
            id,
            name: raw.name,
            macs: macs.into_iter().filter_map(|(_, mac)| mac.ok()).collect(),
            smbios_uuid: smbios_uuid.and_then(|(_, uuid)| uuid.ok()?.parse().ok()),
            size: raw.size,
            consoles: raw.consoles.map_or_else(default_consoles, |all| all.iter().map(|one| one.to_string()).collect()),
            ramdisk_network: ramdisk_network.and_then(Result::ok),
            locked: locked.and_then(|(_, locked)| locked.ok()).flatten(),
            bmc: bmc.and_then(Result::ok),
            allocation,
        }),
        _ => Err(wrong.join("\n")),
    }
}

/// Parses the OS parameters of an allocation, and returns problems of these and of `os`.
fn check_definition(allocation: &mut AllocationSpec, has_image: bool, here: String) -> Vec<String> {
    let (changes, mut wrong) = os_parameters::parse_changes(&allocation.os_parameters);
    allocation.changes = changes;
    match (&allocation.os, allocation.os_parameters.first()) {
        (Some(os), _) if has_image => wrong.push(format_at(os, "an allocation has an os or an image, not both")),
        (Some(os), _) => wrong.extend(OsSelector::parse(os).err().map(|why| format_at(os, &why))),
        (None, Some(first)) => {
            wrong.push(format_at(first, "os_parameters require an os, which the allocation does not name"))
        }
        (None, None) if !has_image => {
            wrong.push(format!("{here}an allocation needs an os or an image: missing field `image`"))
        }
        (None, None) => {}
    }
    wrong
}

/// Checks that the machine has a requested trait.
fn check_requested_trait(requested: &str, traits: &[Spanned<String>]) -> Result<(), String> {
    if traits.iter().any(|one| one.as_str() == requested) {
        return Ok(());
    }
    let has = suggest_name(requested, traits.iter().map(|one| one.as_str()));
    Err(format!("{requested} is not a trait of this machine{has}"))
}

/// Returns why the machine is locked, if it is.
fn parse_lock_reason(given: &str) -> Result<Option<String>, String> {
    match given.trim() {
        "false" => Ok(None),
        "true" => Ok(Some("its file gives no reason".to_owned())),
        // These are rejected, since the operator must not get the opposite: as a reason, `no` would lock the machine.
        "" | "yes" | "no" | "on" | "off" => Err("locked must be true, false, or the reason".to_owned()),
        reason => Ok(Some(reason.to_owned())),
    }
}

/// Parses and validates an image file.
///
/// # Errors
/// As [`parse_machine`].
pub fn parse_image(text: &str) -> Result<ImageSpec, String> {
    let node = parse_document(text)?;
    get_field(&node, "pull_secret").map_or(Ok(()), pull_secret::reject_scalar)?;
    let raw: RawImage = deserialize_node(&node)?;
    let location = match (&raw.url, &raw.file) {
        (Some(url), None) if is_image_url(url) => ImageLocation::Url(url.to_string()),
        (Some(url), None) => return Err(format_at(url, &format!("the url is neither {PLACES}"))),
        (None, Some(file)) if is_relative_path(file) => ImageLocation::File(file.to_string()),
        (None, Some(file)) => return Err(format_at(file, "the file must be a path below images/, without .. in it")),
        (Some(_), Some(file)) => return Err(format_at(file, "an image has a url or a file, not both")),
        (None, None) => return Err(format_at(&raw.id, "the image has neither a url nor a file")),
    };
    let in_registry = |url: &str| url.starts_with("oci");
    for mirror in &raw.mirrors {
        if !is_image_url(mirror) {
            return Err(format_at(mirror, &format!("the mirror is neither {PLACES}")));
        }
        if in_registry(mirror) != raw.url.as_ref().is_some_and(|url| in_registry(url)) {
            return Err(format_at(
                mirror,
                "mirrors of an image in a registry must be in registries, and those of other images must not be",
            ));
        }
    }
    if let Some(digest) = &raw.digest {
        let (kind, hex) = digest.split_once(':').unwrap_or_default();
        let length =
            [("sha256", 64), ("sha512", 128)].iter().find(|(name, _)| *name == kind).map(|(_, length)| *length);
        if length != Some(hex.len()) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format_at(
                digest,
                "the digest is neither sha256: with 64 nor sha512: with 128 hexadecimal digits",
            ));
        }
    }
    if raw.id.trim().is_empty() {
        return Err(format_at(&raw.id, "the image's id is empty"));
    }
    let pull_secret = raw.pull_secret.map(|secret| secret.validate(raw.url.as_ref())).transpose()?;
    let digest = raw.digest.map(|digest| digest.to_lowercase());
    let mirrors = raw.mirrors.iter().map(|mirror| mirror.to_string()).collect();
    let (id, pull_secrets) = (raw.id.to_string(), pull_secret.into_iter().collect());
    let (finish, description) = (raw.finish, raw.description);
    Ok(ImageSpec {
        id,
        name: raw.name,
        description,
        at: location,
        mirrors,
        digest,
        pull_secrets,
        finish,
        contents: None,
    })
}

/// Returns the document as JSON, without validation.
///
/// # Errors
/// The text is not YAML.
pub fn parse_unvalidated(text: &str) -> Result<Value, String> {
    Ok(to_json(&parse_document(text)?))
}

/// URLs from which the agent can fetch an image, for messages.
const PLACES: &str = "http://, https://, file:///PATH nor oci://HOST/REPOSITORY:TAG";

fn is_image_url(url: &str) -> bool {
    ["http://", "https://", "file:///", "oci://", "oci+http://"].iter().any(|scheme| url.starts_with(scheme))
}

fn is_relative_path(path: &str) -> bool {
    !path.is_empty()
        && !path.ends_with('/')
        && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
mod tests;
