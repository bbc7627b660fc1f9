//! JSON Schema of a machine file, `machines/*.yaml` of `drophammer serve`. It is written by hand, because the Rust
//! types also contain positions in the file, which would become part of a derived schema. A test checks that schema and
//! Rust types have the same fields.

use serde_json::{Value, json};

/// Returns the schema of an optional text.
fn text(description: &str) -> Value {
    json!({"type": ["string", "null"], "description": description})
}

/// Returns the schema of an optional list of strings.
fn list(description: &str) -> Value {
    json!({"type": ["array", "null"], "items": {"type": "string"}, "description": description})
}

/// Returns the schema of a value that the schema does not restrict.
fn any(description: &str) -> Value {
    json!({ "description": description })
}

fn allocation_schema() -> Value {
    let Value::Object(mut properties) = image_properties() else { return Value::Null };
    properties.extend([("network".to_owned(), network_schema())]);
    if let Value::Object(others) = system_properties() {
        properties.extend(others);
    }
    json!({
        "type": ["object", "null"],
        "description": "Target state of the machine; without an allocation, the machine registers and waits.",
        "additionalProperties": false,
        "required": ["id", "hostname"],
        "anyOf": [{"required": ["image"]}, {"required": ["os"]}],
        "not": {"type": "object", "required": ["image", "os"]},
        "dependentRequired": {"os_parameters": ["os"]},
        "properties": properties,
    })
}

/// Returns the fields of an allocation that determine what is installed.
fn image_properties() -> Value {
    json!({
        "id": {
            "type": "string",
            "pattern": r"\S",
            "description": "Id of this installation. If the id changes, the machine is installed again, and every disk of the layout is wiped.",
            "examples": ["storage-7-2026-11"],
        },
        "hostname": {"type": "string", "description": "Host name of the installed system.", "examples": ["storage-7"]},
        "image": {
            "type": "string",
            "description": "Id of an image in images/. A reinstall uses the image in the reinstall order.",
            "examples": ["debian-12.0.20261101"],
        },
        "os": {
            "type": ["string"],
            "pattern": "^[A-Za-z0-9_-]+([+]\\S+)?$",
            "description": "OS definition (a directory in os/) and its variant, instead of an image.",
            "examples": ["web+small"],
        },
        "os_parameters": {
            "type": ["array", "null"],
            "items": {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_-]*=|-[A-Za-z0-9_][A-Za-z0-9_-]*$)"},
            "description": "Parameters of the OS definition: KEY=VALUE sets a parameter; -KEY omits a parameter that is set for all machines.",
            "examples": [["track=testing", "-proxy"]],
        },
        "filesystemlayout": text(
            "Id of a layout in layouts/; by default, the layout whose constraints match the machine's size and the image."
        ),
        "name": text("Display name."),
        "project": text("Value that is passed unchanged to the image's installer."),
        "role": text("Value that is passed unchanged to the image's installer."),
        "requested_traits": list("Traits of the machine that this installation requests. A deploy template with the name of a requested trait changes the steps of the installation."),
    })
}

/// Returns the fields of an allocation with the configuration of the installed system.
fn system_properties() -> Value {
    json!({
        "ssh_pub_keys": list("SSH public keys with which users may log in; the image's installer interprets the list."),
        "user_data": text("User data for the image, in the format of cloud-init, Ignition or another program in the image."),
        "console_password": {
            "type": ["string", "number", "null"],
            "description": "Console password of the image's user.",
        },
        "disk_key": {
            "type": ["string", "null"],
            "minLength": 20,
            "description": "Passphrase of the machine's filesystems with `encrypted: {key: server}`, and the second key of the filesystems with `key: tpm2`. The passphrase must be random.",
        },
        "erase": {
            "enum": ["quick", "secure", "none", null],
            "default": "quick",
            "description": "Method of erasing disks before new contents are written to them.",
        },
        "finish": {
            "enum": ["auto", "image", "builtin", "none", null],
            "default": "auto",
            "description": "Program that makes the image bootable on this machine: auto (the image's installer if the image has one, otherwise drophammer), image (the image's installer), builtin (drophammer), none (no program).",
        },
        "give_up": list("Disks whose data the first installation may erase, by serial number, WWN or path in /dev/disk/by-path."),
        "kernel_arguments": list("Additional arguments of the installed kernel, one word each."),
        "boot_order": {
            "enum": ["pxe", "disk", "keep", null],
            "default": "pxe",
            "description": "Position of the installed system in the boot order of EFI firmware: pxe (the network first, then the installed system), disk (the installed system first), keep (the boot order is unchanged).",
        },
        "volumes": {
            "type": ["array", "null"],
            "items": {"type": "object"},
            "description": "Kubernetes volumes to prepare on the machine: Volume resources of MetalK8s, and the StorageClass resources that they name.",
        },
        "networks": any("Value that is passed unchanged to the image's installer."),
        "dns_servers": any("IP addresses of DNS servers, as objects with `ip` or as strings."),
        "ntp_servers": any("IP addresses or host names of NTP servers, as objects with `address` or as strings."),
        "firewall_rules": any("Value that is passed unchanged to the image's installer."),
        "vpn": any("Value that is passed unchanged to the image's installer."),
    })
}

const UUID_PATTERN: &str = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$";

fn macs_schema() -> Value {
    json!({
        "type": ["array", "null"],
        "items": {"type": "string", "pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"},
        "description": "MAC addresses of the machine's NICs. If the list is not empty, a machine that has this id, but none of these MAC addresses, is refused.",
        "examples": [["52:54:00:aa:00:01"]],
    })
}

fn metal_networks_schema() -> Value {
    json!({
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "required": ["networkid"],
            "properties": {"networkid": {"type": "string", "minLength": 1}},
        },
        "description": "Networks of metal-stack that an allocation request may select by their ids.",
    })
}

pub(crate) fn machine_schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Machine",
        "description": "A machine file, in machines/ of a server's directory.",
        "type": "object",
        "additionalProperties": false,
        "required": ["id"],
        "properties": machine_properties(),
    })
}

/// Returns the fields of a machine file.
fn machine_properties() -> Value {
    json!({
        "id": {
            "type": "string",
            "pattern": UUID_PATTERN,
            "description": "SMBIOS UUID, as `dmidecode -s system-uuid` prints it.",
            "examples": ["4c4c4544-0051-3010-8052-b4c04f4d3132"],
        },
        "name": text("Display name."),
        "macs": macs_schema(),
        "smbios_uuid": {
            "type": ["string", "null"],
            "pattern": UUID_PATTERN,
            "description": "UUID that the machine's firmware reports, if this UUID differs from the id.",
        },
        "project": {
            "type": ["string", "null"],
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$",
            "description": "Project of the machine. Users who are restricted to other projects cannot see the machine.",
            "examples": ["blue"],
        },
        "size": {
            "type": ["string", "null"],
            "description": "Id of the machine's size. The constraints of layouts select sizes by this id.",
            "examples": ["c1-large-x86"],
        },
        "consoles": {
            "type": ["array", "null"],
            "items": {"type": "string", "pattern": "^[0-9A-Za-z,._:/-]+$"},
            "default": ["tty0", "ttyS0,115200n8"],
            "description": "Values of console= arguments of the ramdisk's kernel. The log and the shell of the ramdisk are on the last console.",
        },
        "ramdisk_network": {
            "oneOf": [network_schema(), {"type": "null"}],
            "description": "Network configuration of the ramdisk for networks without DHCP, in version 2 of netplan's format.",
        },
        "networks": metal_networks_schema(),
        "traits": list("Traits that installations can request: CUSTOM_ with capital letters, digits and _, or a trait of os-traits."),
        "locked": {
            "type": ["boolean", "string", "null"],
            "description": "Lock of the machine: true, or a string with the reason. Reinstalls of a locked machine are refused.",
        },
        "bmc": bmc_schema(),
        "allocation": allocation_schema(),
    })
}

fn bmc_schema() -> Value {
    json!({
        "type": ["object", "null"],
        "description": "The machine's management controller (BMC). The password is a secret.",
        "additionalProperties": false,
        "required": ["url", "username", "password"],
        "properties": {
            "url": {
                "type": "string",
                "pattern": "^(https?|ipmi)://",
                "description": "https://HOST for Redfish, with the path of the system if the controller manages several systems; ipmi://HOST for IPMI.",
                "examples": ["https://10.1.0.7"],
            },
            "username": {"type": "string", "description": "User with the privilege to switch the power of the machine."},
            "password": {"type": ["string", "number"], "description": "Password of the user in the field `username`."},
            "insecure": {"type": ["boolean", "null"], "default": false, "description": "Accept any certificate."},
        },
    })
}

/// Returns the schema of a network, which lists only the types of devices. The parser of machine files checks the
/// fields of the devices, because its messages are better than those of a schema.
fn network_schema() -> Value {
    let devices = |description: &str| json!({"type": ["object", "null"], "description": description});
    let fields = json!({
        "version": {"enum": [2, "2", null], "description": "Only version 2 is supported."},
        "ethernets": devices("NICs. Without match.macaddress, the id of a NIC is the name of the interface."),
        "bonds": devices("Bonds of several NICs."),
        "vlans": devices("Tagged networks on a NIC or a bond."),
    });
    json!({
        "type": ["object", "null"],
        "description": "Network configuration in version 2 of netplan's format.",
        "additionalProperties": false,
        "properties": {
            "version": fields["version"],
            "ethernets": fields["ethernets"],
            "bonds": fields["bonds"],
            "vlans": fields["vlans"],
            "network": {
                "type": ["object", "null"],
                "description": "Alternative to the fields `version`, `ethernets`, `bonds` and `vlans`: the same four fields, nested below `network` as in netplan's files.",
                "additionalProperties": false,
                "properties": fields,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use site::operator_files;
    use std::collections::BTreeSet;

    const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d3132";

    fn fields(schema: &Value) -> BTreeSet<&str> {
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// Returns the fields that the error message lists if an unknown field resembles none of the known fields.
    fn known(text: &str) -> BTreeSet<String> {
        let said = operator_files::parse_machine(text).unwrap_err();
        let (_, known) = said.split_once("; available: ").unwrap();
        known.lines().next().unwrap().split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn machine_schema_has_the_fields_of_the_parser() {
        let schema = machine_schema();
        let machine = known(&format!("id: {ID}\n00: 1\n"));
        assert_eq!(fields(&schema), machine.iter().map(String::as_str).collect());
        let allocation = known(&format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i, 00: 1}}\n"));
        // Earlier versions ordered a reinstall by this field, which is now rejected.
        let allocation = allocation.iter().map(String::as_str).filter(|name| *name != "reinstall").collect();
        assert_eq!(fields(&schema["properties"]["allocation"]), allocation);
    }

    #[test]
    fn schema_and_parser_agree_on_machines() {
        let validator = jsonschema::draft202012::new(&machine_schema()).unwrap();
        for (document, good) in [
            (json!({"id": ID}), true),
            (json!({"id": ID, "macs": ["52-54-00-AA-00-01"], "locked": true, "allocation": null}), true),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "image": "i", "erase": "secure"}}), true),
            (
                json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "image": "i", "network": {"ethernets": {"lan0": {}}}}}),
                true,
            ),
            (
                json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "image": "i", "network": {"wifis": {}}}}),
                false,
            ),
            (json!({"id": ID, "ramdisk_network": {"ethernets": {"eth0": {"addresses": ["10.0.0.7/24"]}}}}), true),
            (json!({"id": ID, "ramdisk_network": {"wifis": {}}}), false),
            (json!({"id": ID, "networks": [{"networkid": "internet", "asn": 42}]}), true),
            (json!({"id": ID, "networks": [{"asn": 42}]}), false),
            (json!({"id": ID, "networks": "internet"}), false),
            (
                json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "os": "web+small", "os_parameters": ["a=b", "-c_d", "e="]}}),
                true,
            ),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "os": "web", "image": "i"}}), false),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "os": "we b"}}), false),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "os": "web", "os_parameters": ["a"]}}), false),
            (
                json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "image": "i", "os_parameters": ["a=b"]}}),
                false,
            ),
            (json!({}), false),
            (json!({"id": "7"}), false),
            (json!({"id": ID, "mac": []}), false),
            (json!({"id": ID, "macs": ["52:54"]}), false),
            (json!({"id": ID, "consoles": ["tty0 init=/bin/sh"]}), false),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h"}}), false),
            (json!({"id": ID, "allocation": {"id": " ", "hostname": "h", "image": "i"}}), false),
            (json!({"id": ID, "allocation": {"id": "a", "hostname": "h", "image": "i", "erase": "quickly"}}), false),
        ] {
            assert_eq!(validator.is_valid(&document), good, "{document}");
            assert_eq!(operator_files::parse_machine(&document.to_string()).is_ok(), good, "{document}");
        }
    }
}
