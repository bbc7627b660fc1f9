//! The schema of a machine file, `machines/*.yaml` of `drophammer serve`. It is written here and not derived, because the reader's
//! types carry places in the file; a test compares the fields of both.

use serde_json::{Value, json};

pub fn schema() -> Value {
    let text = |description: &str| json!({"type": ["string", "null"], "description": description});
    let list =
        |description: &str| json!({"type": ["array", "null"], "items": {"type": "string"}, "description": description});
    let any = |description: &str| json!({"description": description});
    let allocation = json!({
        "type": ["object", "null"],
        "description": "What the machine is to become; without one it registers and waits.",
        "additionalProperties": false,
        "required": ["id", "hostname"],
        "anyOf": [{"required": ["image"]}, {"required": ["os"]}],
        "not": {"type": "object", "required": ["image", "os"]},
        "dependentRequired": {"os_parameters": ["os"]},
        "properties": {
            "id": {
                "type": "string",
                "pattern": r"\S",
                "description": "Names this installation. A new id begins anew and wipes every listed disk.",
                "examples": ["storage-7-2026-11"],
            },
            "hostname": {"type": "string", "description": "Of the installed system.", "examples": ["storage-7"]},
            "image": {
                "type": "string",
                "description": "Id of a file of images/. A reinstall takes the image of its order.",
                "examples": ["debian-12.0.20261101"],
            },
            "os": {
                "type": ["string"],
                "pattern": "^[A-Za-z0-9_-]+([+]\\S+)?$",
                "description": "In place of an image: a folder of os/, an OS definition, and its variant.",
                "examples": ["web+small"],
            },
            "os_parameters": {
                "type": ["array", "null"],
                "items": {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_-]*=|-[A-Za-z0-9_][A-Za-z0-9_-]*$)"},
                "description": "What the OS definition is told: KEY=VALUE, and -KEY for what all machines are told otherwise.",
                "examples": [["track=testing", "-proxy"]],
            },
            "filesystemlayout": text(
                "Id of a file of layouts/; without one, the layout whose constraints take the machine's size and the image."
            ),
            "name": text("For people."),
            "project": text("Passed on to the image."),
            "role": text("Passed on to the image."),
            "requested_traits": list("Some of the machine's traits. A deploy template of that name changes the steps of the installation."),
            "ssh_pub_keys": list("Who may log in, as the image's installer understands it."),
            "user_data": text("For the image: cloud-init, ignition or what else it reads."),
            "console_password": {
                "type": ["string", "number", "null"],
                "description": "For the image: the password of its user at the console.",
            },
            "disk_key": {
                "type": ["string", "null"],
                "minLength": 20,
                "description": "What opens the machine's filesystems that are `encrypted: {key: server}`, and the second key of those with `key: tpm2`. It is drawn, not thought up.",
            },
            "erase": {
                "enum": ["quick", "secure", "none", null],
                "default": "quick",
                "description": "How thoroughly disks are erased before they are made anew.",
            },
            "finish": {
                "enum": ["auto", "image", "builtin", "none", null],
                "default": "auto",
                "description": "What makes the image boot on this machine: its installer if it has one or else drophammer, its installer, drophammer, nobody.",
            },
            "give_up": list("Disks whose data the first installation may erase, by serial number, WWN or path in /dev/disk/by-path."),
            "kernel_arguments": list("Further arguments of the installed kernel, one word each."),
            "boot_order": {
                "enum": ["pxe", "disk", "keep", null],
                "default": "pxe",
                "description": "Where the installed system comes among the entries of an EFI firmware: after the network, first, or the order stays.",
            },
            "network": network(),
            "volumes": {
                "type": ["array", "null"],
                "items": {"type": "object"},
                "description": "Volumes of Kubernetes that are prepared on the machine: Volume resources of MetalK8s, and the StorageClass resources that they name.",
            },
            "networks": any("Passed on to the image as it is written."),
            "dns_servers": any("Passed on to the image as it is written."),
            "ntp_servers": any("Passed on to the image as it is written."),
            "firewall_rules": any("Passed on to the image as it is written."),
            "vpn": any("Passed on to the image as it is written."),
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Machine",
        "description": "A file of machines/, as `drophammer serve` reads it.",
        "type": "object",
        "additionalProperties": false,
        "required": ["id"],
        "properties": {
            "id": {
                "type": "string",
                "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
                "description": "SMBIOS UUID, as `dmidecode -s system-uuid` prints it.",
                "examples": ["4c4c4544-0051-3010-8052-b4c04f4d3132"],
            },
            "name": text("For people."),
            "macs": {
                "type": ["array", "null"],
                "items": {"type": "string", "pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"},
                "description": "MAC addresses of its cards. With some, a machine of this id and another MAC gets nothing.",
                "examples": [["52:54:00:aa:00:01"]],
            },
            "smbios_uuid": {
                "type": ["string", "null"],
                "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
                "description": "UUID that its firmware reports, if the id is another one.",
            },
            "size": {
                "type": ["string", "null"],
                "description": "Id of its size, for which layouts have constraints.",
                "examples": ["c1-large-x86"],
            },
            "consoles": {
                "type": ["array", "null"],
                "items": {"type": "string", "pattern": "^[0-9A-Za-z,._:/-]+$"},
                "default": ["tty0", "ttyS0,115200n8"],
                "description": "console= arguments of the kernel; the last one has the shell.",
            },
            "ramdisk_network": {
                "oneOf": [network(), {"type": "null"}],
                "description": "How the ramdisk comes up where DHCP does not say it: version 2 of netplan's format.",
            },
            "traits": list("What can be requested of the machine: CUSTOM_ with capital letters, digits and _, or a trait of os-traits."),
            "locked": {
                "type": ["boolean", "string", "null"],
                "description": "true, or the reason in words: then no reinstall can be ordered.",
            },
            "bmc": {
                "type": ["object", "null"],
                "description": "The management controller that switches the machine. The password is a secret.",
                "additionalProperties": false,
                "required": ["url", "username", "password"],
                "properties": {
                    "url": {
                        "type": "string",
                        "pattern": "^(https?|ipmi)://",
                        "description": "https://HOST for Redfish, with the path of the system where there are several; ipmi://HOST for IPMI.",
                        "examples": ["https://10.1.0.7"],
                    },
                    "username": {"type": "string", "description": "Who may switch it."},
                    "password": {"type": ["string", "number"], "description": "Their password."},
                    "insecure": {"type": ["boolean", "null"], "default": false, "description": "Take any certificate."},
                },
            },
            "allocation": allocation,
        },
    })
}

/// The kinds of devices. What is in them the reader judges, in better words than a schema has.
fn network() -> Value {
    let devices = |description: &str| json!({"type": ["object", "null"], "description": description});
    let fields = json!({
        "version": {"enum": [2, "2", null], "description": "Only version 2 is read."},
        "ethernets": devices("Cards, found by match.macaddress or named by their id."),
        "bonds": devices("Several cards as one."),
        "vlans": devices("Tagged networks on a card or a bond."),
    });
    json!({
        "type": ["object", "null"],
        "description": "The network of the installed system, in version 2 of netplan's format.",
        "additionalProperties": false,
        "properties": {
            "version": fields["version"],
            "ethernets": fields["ethernets"],
            "bonds": fields["bonds"],
            "vlans": fields["vlans"],
            "network": {
                "type": ["object", "null"],
                "description": "The same, as a file of netplan has it.",
                "additionalProperties": false,
                "properties": fields,
            },
        },
    })
}

#[cfg(feature = "serve")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::input;
    use std::collections::BTreeSet;

    const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d3132";

    fn fields(schema: &Value) -> BTreeSet<&str> {
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect()
    }

    /// What the reader says that there is, when it is asked for something that nothing is like.
    fn known(text: &str) -> BTreeSet<String> {
        let said = input::machine(text).unwrap_err();
        let (_, known) = said.split_once("; available: ").unwrap();
        known.lines().next().unwrap().split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn the_schema_has_the_fields_of_the_reader() {
        let schema = schema();
        let machine = known(&format!("id: {ID}\n00: 1\n"));
        assert_eq!(fields(&schema), machine.iter().map(String::as_str).collect());
        let allocation = known(&format!("id: {ID}\nallocation: {{id: a, hostname: h, image: i, 00: 1}}\n"));
        // It was an order once, and is refused.
        let allocation = allocation.iter().map(String::as_str).filter(|name| *name != "reinstall").collect();
        assert_eq!(fields(&schema["properties"]["allocation"]), allocation);
    }

    #[test]
    fn schema_and_reader_agree_on_machines() {
        let validator = jsonschema::draft202012::new(&schema()).unwrap();
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
            assert_eq!(input::machine(&document.to_string()).is_ok(), good, "{document}");
        }
    }
}
