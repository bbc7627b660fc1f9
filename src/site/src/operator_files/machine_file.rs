//! Parsing and validation of `machines/*.yaml`.

use super::yaml_node::{format_at, format_position, get_field, parse_document, suggest_name, to_json};
use super::{
    AllocationSpec, MachineSpec, bmc, error_collection, k8s_volumes, machine_networks, network_config_validation,
    os_parameters, pull_secret,
};
use crate::boot_value_validation;
use common::error_code::ErrorCode;
use marked_yaml::{Node, Spanned};
use model::allocation::{
    ServerKind, find_argument_error, find_hostname_error, find_public_key_error, normalize_servers,
};
use model::architecture::Architecture;
use model::deploy_steps::traits;
use model::disk_identifiers::{is_placeholder_serial, is_placeholder_wwn};
use model::ganeti_os_definition::OsSelector;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Message for an id that is a default value of a vendor, with the remedy.
pub const DEFAULT_ID: &str = "is a vendor default, which other machines may also report: choose a new UUID and list \
`macs`. To keep installations under this id, use `drophammer machine rename OLD NEW`";

/// Fields of an allocation that the server passes on, because the agent or the image interprets them.
pub(super) const PASSED_ON: [&str; 7] =
    ["network", "volumes", "networks", "dns_servers", "ntp_servers", "firewall_rules", "vpn"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    id: Spanned<String>,
    #[serde(default)]
    name: String,
    project: Option<Spanned<String>>,
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
    #[serde(default, rename = "networks")]
    _networks: Option<IgnoredAny>,
    allocation: Option<AllocationSpec>,
}

/// Returns the default console arguments, for machines that have no machine file, or whose file does not list consoles.
pub fn default_consoles() -> Vec<String> {
    ["tty0", "ttyS0,115200n8"].map(str::to_owned).to_vec()
}

/// Returns the consoles of a machine of this architecture. If the machine file specifies none, the default consoles for
/// the architecture are returned: the first serial port of an arm64 server is a PL011 (`ttyAMA0`).
pub fn consoles_for(consoles: Vec<String>, architecture: Architecture) -> Vec<String> {
    match architecture {
        Architecture::Arm64 if consoles == default_consoles() => {
            ["tty0", "ttyAMA0,115200n8"].map(str::to_owned).to_vec()
        }
        Architecture::Amd64 | Architecture::Arm64 => consoles,
    }
}

/// Parses and validates a machine file.
///
/// # Errors
/// Returns all problems, one per line, with line and column in front.
pub fn parse_machine(text: &str) -> Result<MachineSpec, String> {
    let node = parse_document(text)?;
    get_field(&node, "bmc").map_or(Ok(()), bmc::reject_scalar)?;
    let (raw, mut wrong) = error_collection::deserialize_all::<RawMachine>(&node);
    let Some(raw) = raw else { return Err(wrong.join("\n")) };
    let mut check = |value: &Spanned<String>, found| add_problem(&mut wrong, value, found);
    let usable = |given: &Spanned<String>| {
        boot_value_validation::parse_uuid(given).and_then(|id| id.ok_or(format!("{} {DEFAULT_ID}", given.as_str())))
    };
    let id = usable(&raw.id);
    let smbios_uuid = raw.smbios_uuid.as_ref().map(|given| (given, usable(given)));
    smbios_uuid.iter().for_each(|(given, uuid)| check(given, uuid.as_ref().map(|_| ()).map_err(String::clone)));
    check(&raw.id, id.as_ref().map(|_| ()).map_err(String::clone));
    let macs: Vec<_> = raw.macs.iter().map(|mac| (mac, model::machine_identity::parse_mac(mac))).collect();
    macs.iter().for_each(|(given, mac)| check(given, mac.as_ref().map(|_| ()).map_err(String::clone)));
    raw.consoles.iter().flatten().for_each(|console| check(console, boot_value_validation::validate_console(console)));
    let locked = raw.locked.as_ref().map(|given| (given, parse_lock_reason(given)));
    locked.iter().for_each(|(given, locked)| check(given, locked.as_ref().map(|_| ()).map_err(String::clone)));
    raw.project.iter().for_each(|given| check(given, store::users::check_name(given)));
    raw.traits.iter().for_each(|given| check(given, traits::check_trait(given).map_or(Ok(()), Err)));
    let mut allocation = raw.allocation;
    if let (Some(allocation), Some(given)) = (&mut allocation, get_field(&node, "allocation")) {
        wrong.extend(check_allocation(allocation, given, &raw.id, &raw.traits));
    }
    let bmc = raw.bmc.zip(get_field(&node, "bmc")).map(|(raw, given)| raw.validate(given));
    wrong.extend(bmc.as_ref().and_then(|bmc| bmc.as_ref().err()).cloned());
    let ramdisk_network = get_field(&node, "ramdisk_network")
        .map(|given| network_config_validation::encode_argument("ramdisk_network", given));
    wrong.extend(ramdisk_network.iter().filter_map(|read| read.as_ref().err()).flatten().cloned());
    let networks = get_field(&node, "networks").map(machine_networks::parse_networks);
    wrong.extend(networks.iter().filter_map(|read| read.as_ref().err()).flatten().cloned());
    match id {
        Ok(id) if wrong.is_empty() => Ok(MachineSpec {
            id,
            name: raw.name,
            project: raw.project.map(|project| project.to_string()),
            macs: macs.into_iter().filter_map(|(_, mac)| mac.ok()).collect(),
            smbios_uuid: smbios_uuid.and_then(|(_, uuid)| uuid.ok()?.parse().ok()),
            size: raw.size,
            consoles: raw.consoles.map_or_else(default_consoles, |all| all.iter().map(|one| one.to_string()).collect()),
            ramdisk_network: ramdisk_network.and_then(Result::ok),
            locked: locked.and_then(|(_, locked)| locked.ok()).flatten(),
            bmc: bmc.and_then(Result::ok),
            traits: raw.traits,
            networks: networks.and_then(Result::ok).unwrap_or_default(),
            allocation,
        }),
        _ => Err(wrong.join("\n")),
    }
}

/// Adds a problem with the position of the value. If the value is a placeholder, adds nothing, since the missing
/// field is already reported.
fn add_problem(wrong: &mut Vec<String>, value: &Spanned<String>, found: Result<(), String>) {
    if let Err(message) = found
        && error_collection::is_given(value)
    {
        wrong.push(format_at(value, &message));
    }
}

/// Validates the allocation of the machine with this id, and sets the fields that are not deserialized. Returns all
/// problems.
fn check_allocation(
    allocation: &mut AllocationSpec,
    given: &Node,
    id: &str,
    machine_traits: &[Spanned<String>],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |value: &Spanned<String>, found| add_problem(&mut wrong, value, found);
    if allocation.id.trim().is_empty() {
        check(&allocation.id, Err("the allocation's id is empty".to_owned()));
    }
    if let Some(order) = &allocation.reinstall {
        let message = format!(
            "reinstalls can no longer be ordered in a file: remove this line, and use `drophammer machine reinstall {machine} --image IMAGE`",
            machine = id
        );
        check(order, Err(ErrorCode::ReinstallInFile.annotate(message)));
    }
    for requested in &allocation.requested_traits {
        check(requested, check_requested_trait(requested, machine_traits));
    }
    for given in &allocation.give_up {
        check(given, check_disk_identifier(given));
    }
    for argument in &allocation.kernel_arguments {
        check(argument, find_argument_error(argument).map_or(Ok(()), |why| Err(why.to_owned())));
    }
    let fields = PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), to_json(get_field(given, name)?))));
    allocation.passed_on = fields.collect();
    wrong.extend(check_login(allocation, given));
    for kind in [ServerKind::Dns, ServerKind::Ntp] {
        wrong.extend(normalize_server_field(allocation, given, kind));
    }
    wrong.extend(allocation.disk_key.as_ref().and_then(pull_secret::check_disk_key));
    wrong.extend(
        get_field(given, "network")
            .map(|given| network_config_validation::find_problems("network", given))
            .unwrap_or_default(),
    );
    wrong.extend(get_field(given, "volumes").map(k8s_volumes::find_problems).unwrap_or_default());
    let has_image = get_field(given, "image").is_some();
    wrong.extend(check_definition(allocation, has_image, format_position(given.span().start())));
    wrong
}

/// Returns the problems of the host name and the SSH keys.
fn check_login(allocation: &AllocationSpec, given: &Node) -> Vec<String> {
    let hostname = get_field(given, "hostname").filter(|_| !allocation.hostname.is_empty());
    let hostname = hostname.zip(find_hostname_error(&allocation.hostname)).map(|(node, why)| format_node(node, why));
    let keys = get_field(given, "ssh_pub_keys").and_then(Node::as_sequence);
    let keys = keys.into_iter().flat_map(|keys| keys.iter()).zip(&allocation.ssh_pub_keys);
    hostname
        .into_iter()
        .chain(keys.filter_map(|(node, key)| Some(format_node(node, find_public_key_error(key)?))))
        .collect()
}

/// Converts a list of servers to metal-api's format. Returns the problems of the list.
fn normalize_server_field(allocation: &mut AllocationSpec, given: &Node, kind: ServerKind) -> Vec<String> {
    let Some((node, value)) = get_field(given, kind.field()).zip(allocation.passed_on.get_mut(kind.field())) else {
        return Vec::new();
    };
    match normalize_servers(kind, value) {
        Ok(servers) => *value = servers,
        Err(problems) => return problems.iter().map(|problem| format_node(node, &problem.to_string())).collect(),
    }
    Vec::new()
}

fn format_node(node: &Node, message: &str) -> String {
    format!("{}{message}", format_position(node.span().start()))
}

/// Parses the OS parameters of an allocation. Returns the problems of `os_parameters` and of `os`.
fn check_definition(allocation: &mut AllocationSpec, has_image: bool, here: String) -> Vec<String> {
    let (changes, mut wrong) = os_parameters::parse_changes(&allocation.os_parameters);
    allocation.changes = changes;
    match (&allocation.os, allocation.os_parameters.first()) {
        (Some(os), _) if has_image => {
            wrong.push(format_at(os, "the allocation has both `os` and `image`: specify one"))
        }
        (Some(os), _) => wrong.extend(OsSelector::parse(os).err().map(|why| format_at(os, &why))),
        (None, Some(first)) => {
            wrong.push(format_at(first, "`os_parameters` require an `os`, which the allocation does not specify"))
        }
        (None, None) if !has_image => {
            wrong.push(format!("{here}the allocation has neither `os` nor `image`: specify one"))
        }
        (None, None) => {}
    }
    wrong
}

/// Checks that a requested trait is a trait of the machine.
fn check_requested_trait(requested: &str, traits: &[Spanned<String>]) -> Result<(), String> {
    if traits.iter().any(|one| one.as_str() == requested) {
        return Ok(());
    }
    let has = suggest_name(requested, traits.iter().map(|one| one.as_str()));
    Err(format!("{requested} is not a trait of this machine{has}"))
}

/// Returns the reason why the machine is locked, or `None` if it is not locked.
fn parse_lock_reason(given: &str) -> Result<Option<String>, String> {
    match given.trim() {
        "false" => Ok(None),
        "true" => Ok(Some("the machine file does not specify a reason".to_owned())),
        // These words mean true or false in YAML 1.1. They are rejected, since `no` would otherwise lock the machine
        // with the reason "no".
        "" | "yes" | "no" | "on" | "off" => Err("`locked` must be true, false, or the reason for the lock".to_owned()),
        reason => Ok(Some(reason.to_owned())),
    }
}

/// Checks that a string can be the serial number, WWN or path of a single disk.
///
/// # Errors
/// Returns an error if the string is a placeholder that many disks report.
fn check_disk_identifier(word: &str) -> Result<(), String> {
    let is_placeholder = word.trim().is_empty() || (is_placeholder_serial(word) && is_placeholder_wwn(word));
    match is_placeholder {
        true => Err(format!("{word:?} does not identify a disk: it is a placeholder that many disks report")),
        false => Ok(()),
    }
}
