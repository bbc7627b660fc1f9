//! `/etc/metal/machine-details.yaml` and `machine-allocation.yaml` for metal-stack's `os-installer`.
//!
//! `machine-allocation.yaml` is a `MachineAllocation` of version 2 of metal-stack's API, converted from fields of
//! version 1.

use crate::NewRoot;
use crate::etc_metal_files::{decode_user_data, describe_nic};
use common::error::Result;
use model::allocation::{ServerKind, normalize_servers};
use operations::MachineFiles;
use serde_json::{Map, Value, json};

/// Role of a machine that is a firewall.
pub(super) const FIREWALL: &str = "firewall";
const DETAILS: &str = "/etc/metal/machine-details.yaml";
const ALLOCATION: &str = "/etc/metal/machine-allocation.yaml";

/// Mode of files with passwords and keys.
const SECRET_FILE_MODE: u32 = 0o600;

/// Writes `machine-details.yaml` and `machine-allocation.yaml`. `password` is the console password, or empty to omit
/// it.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn write_machine_files(root: &NewRoot, files: &MachineFiles, root_uuid: &str, password: &str) -> Result<()> {
    root.write_file(DETAILS, SECRET_FILE_MODE, format_details(files, root_uuid, password).as_bytes())?;
    root.write_file(ALLOCATION, SECRET_FILE_MODE, format_allocation(files).as_bytes())
}

fn format_details(files: &MachineFiles, root_uuid: &str, password: &str) -> String {
    let nics = files.nics.iter().map(|nic| match nic.neighbors.is_empty() {
        true => json!({"mac": nic.mac, "name": nic.name}),
        false => describe_nic(nic),
    });
    format_lines(&[
        ("id", json!(files.machine)),
        ("nics", nics.collect()),
        ("password", json!(password)),
        ("console", json!(files.assigned.consoles.last().map(String::as_str).unwrap_or_default())),
        ("raidenabled", json!(files.has_arrays)),
        ("root_uuid", json!(root_uuid)),
    ])
}

fn format_allocation(files: &MachineFiles) -> String {
    let allocation = &files.assigned.allocation;
    let kind = if allocation.role == FIREWALL { "FIREWALL" } else { "MACHINE" };
    let fields = [
        ("uuid", json!(allocation.id)),
        ("name", json!(allocation.name)),
        ("project", json!(allocation.project)),
        ("networks", convert_list(&allocation.networks, convert_network)),
        ("hostname", json!(allocation.hostname)),
        ("ssh_public_keys", json!(allocation.ssh_pub_keys)),
        ("userdata", json!(String::from_utf8_lossy(&decode_user_data(&allocation.user_data)).trim())),
        ("allocation_type", json!(format!("MACHINE_ALLOCATION_TYPE_{kind}"))),
        ("firewall_rules", convert_firewall_rules(&allocation.firewall_rules)),
        ("dns_servers", normalize_servers(ServerKind::Dns, &allocation.dns_servers).unwrap_or_default()),
        ("ntp_servers", normalize_servers(ServerKind::Ntp, &allocation.ntp_servers).unwrap_or_default()),
        ("vpn", select_fields(&allocation.vpn, &[("address", "control_plane_address"), ("auth_key", "auth_key")])),
    ];
    let given: Vec<(&str, Value)> = fields.into_iter().filter(|(_, value)| !is_empty(value)).collect();
    format_lines(&given)
}

/// Formats one key per line. Values are written as JSON, which is also valid YAML.
fn format_lines(entries: &[(&str, Value)]) -> String {
    entries.iter().map(|(key, value)| format!("{key}: {value}\n")).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn convert_list(list: &Value, spell: impl Fn(&Value) -> Value) -> Value {
    list.as_array().into_iter().flatten().map(spell).collect()
}

/// Returns the fields in `names` that `from` contains, under their names in version 2.
fn select_fields(from: &Value, names: &[(&str, &str)]) -> Value {
    let given = names.iter().filter_map(|(old, new)| Some(((*new).to_owned(), from.get(*old)?.clone())));
    Value::Object(given.filter(|(_, value)| !is_empty(value)).collect())
}

fn convert_network(from: &Value) -> Value {
    let names = [
        ("networkid", "network"),
        ("prefixes", "prefixes"),
        ("destinationprefixes", "destination_prefixes"),
        ("ips", "ips"),
        ("vrf", "vrf"),
        ("asn", "asn"),
        ("projectid", "project"),
    ];
    let is = |name: &str| from.get(name).and_then(Value::as_bool).unwrap_or_default();
    let kind = match (is("underlay"), is("private"), is("shared")) {
        (true, ..) => "UNDERLAY",
        (_, true, true) => "CHILD_SHARED",
        (_, true, false) => "CHILD",
        (_, false, _) => "EXTERNAL",
    };
    let nat = if is("nat") { "IPV4_MASQUERADE" } else { "NONE" };
    let mut fields = into_object(select_fields(from, &names));
    fields.insert("network_type".to_owned(), json!(format!("NETWORK_TYPE_{kind}")));
    fields.insert("nat_type".to_owned(), json!(format!("NAT_TYPE_{nat}")));
    Value::Object(fields)
}

fn convert_firewall_rules(from: &Value) -> Value {
    let rule = |rule: &Value| {
        let names = [("comment", "comment"), ("ports", "ports"), ("to", "to"), ("from", "from")];
        let mut fields = into_object(select_fields(rule, &names));
        if let Some(protocol) = rule.get("protocol").and_then(Value::as_str) {
            fields.insert("protocol".to_owned(), json!(format!("IP_PROTOCOL_{}", protocol.to_uppercase())));
        }
        Value::Object(fields)
    };
    let list = |name: &str| (name.to_owned(), convert_list(from.get(name).unwrap_or(&Value::Null), rule));
    Value::Object([list("egress"), list("ingress")].into_iter().filter(|(_, rules)| !is_empty(rules)).collect())
}

fn into_object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::Allocation;
    use model::inventory::Nic;
    use operations::PlanAssignment;

    fn files(allocation: Allocation) -> MachineFiles {
        MachineFiles {
            machine: "m-1".into(),
            assigned: PlanAssignment { allocation, consoles: vec!["tty0".into(), "ttyS1,115200n8".into()] },
            nics: vec![Nic { name: "eth0".into(), mac: "52:54:00:00:00:01".into(), ..Nic::default() }],
            has_arrays: true,
            ..MachineFiles::default()
        }
    }

    #[test]
    fn details_contain_machine_data_outside_of_the_allocation() {
        let expected = "\
id: \"m-1\"
nics: [{\"mac\":\"52:54:00:00:00:01\",\"name\":\"eth0\"}]
password: \"p\"
console: \"ttyS1,115200n8\"
raidenabled: true
root_uuid: \"r-uuid\"
";
        assert_eq!(format_details(&files(Allocation::default()), "r-uuid", "p"), expected);
    }

    #[test]
    fn allocation_is_written_in_api_v2_format() {
        let firewall = Allocation {
            id: "a-1".into(),
            hostname: "fw".into(),
            role: "firewall".into(),
            ssh_pub_keys: vec!["ssh-ed25519 AAAA".into()],
            user_data: "I2Nsb3VkLWNvbmZpZwo=".into(),
            networks: json!([
                {"networkid": "internet", "ips": ["192.0.2.7"], "prefixes": ["192.0.2.0/24"], "vrf": 7,
                 "destinationprefixes": ["0.0.0.0/0"], "asn": 4_200_000_007_u32, "nat": true, "private": false},
                {"networkid": "own", "private": true, "ips": []},
                {"networkid": "storage", "private": true, "shared": true, "projectid": "p-2"},
                {"networkid": "underlay", "underlay": true},
            ]),
            dns_servers: json!([{"ip": "10.0.0.53"}]),
            ntp_servers: json!([{"address": "10.0.0.123"}]),
            firewall_rules: json!({"egress": [{"protocol": "TCP", "ports": [443], "to": ["0.0.0.0/0"], "comment": ""}], "ingress": []}),
            vpn: json!({"address": "vpn.example.org", "auth_key": "k", "connected": false}),
            ..Allocation::default()
        };
        let expected = "\
uuid: \"a-1\"
networks: [{\"asn\":4200000007,\"destination_prefixes\":[\"0.0.0.0/0\"],\"ips\":[\"192.0.2.7\"],\"nat_type\":\"NAT_TYPE_IPV4_MASQUERADE\",\"network\":\"internet\",\"network_type\":\"NETWORK_TYPE_EXTERNAL\",\"prefixes\":[\"192.0.2.0/24\"],\"vrf\":7},{\"nat_type\":\"NAT_TYPE_NONE\",\"network\":\"own\",\"network_type\":\"NETWORK_TYPE_CHILD\"},{\"nat_type\":\"NAT_TYPE_NONE\",\"network\":\"storage\",\"network_type\":\"NETWORK_TYPE_CHILD_SHARED\",\"project\":\"p-2\"},{\"nat_type\":\"NAT_TYPE_NONE\",\"network\":\"underlay\",\"network_type\":\"NETWORK_TYPE_UNDERLAY\"}]
hostname: \"fw\"
ssh_public_keys: [\"ssh-ed25519 AAAA\"]
userdata: \"#cloud-config\"
allocation_type: \"MACHINE_ALLOCATION_TYPE_FIREWALL\"
firewall_rules: {\"egress\":[{\"ports\":[443],\"protocol\":\"IP_PROTOCOL_TCP\",\"to\":[\"0.0.0.0/0\"]}]}
dns_servers: [{\"ip\":\"10.0.0.53\"}]
ntp_servers: [{\"address\":\"10.0.0.123\"}]
vpn: {\"auth_key\":\"k\",\"control_plane_address\":\"vpn.example.org\"}
";
        assert_eq!(format_allocation(&files(firewall)), expected);
        let least = format_allocation(&files(Allocation { networks: json!("odd"), ..Allocation::default() }));
        assert_eq!(least, "allocation_type: \"MACHINE_ALLOCATION_TYPE_MACHINE\"\n");
    }
}
