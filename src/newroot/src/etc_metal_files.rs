//! Files in `/etc/metal` that the installer of a metal-stack image expects.

use super::NewRoot;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::error::{Context, Phase, Result};
use model::inventory::Nic;
use operations::{MachineFiles, MakeFilesystem};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Mode of files with passwords and keys.
const SECRET_FILE_MODE: u32 = 0o600;

/// Labels of filesystems that old images look up in `disk.json`.
const DISK_JSON_LABELS: [&str; 3] = ["root", "efi", "varlib"];

/// Writes `install.yaml`, `userdata`, `disk.json`, and `os-parameters` if an OS definition is used. `password` is the
/// console password in `install.yaml`; it is empty if no installer reads the password from this file.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn write_metal_files(
    root: &NewRoot,
    files: &MachineFiles,
    root_uuid: &str,
    password: &str,
    now: OffsetDateTime,
) -> Result<()> {
    let timestamp = now.format(&Rfc3339).context(Phase::Target, || "format the timestamp for install.yaml")?;
    root.write_file(
        "/etc/metal/install.yaml",
        SECRET_FILE_MODE,
        format_install_yaml(files, root_uuid, password, &timestamp).as_bytes(),
    )?;
    if let Some(chosen) = &files.assigned.allocation.definition {
        root.write_file(
            "/etc/metal/os-parameters",
            SECRET_FILE_MODE,
            format_shell_parameters(&chosen.verify_environment()).as_bytes(),
        )?;
    }
    root.write_file("/etc/metal/userdata", SECRET_FILE_MODE, &decode_user_data(&files.assigned.allocation.user_data))?;
    root.write_file("/etc/metal/disk.json", SECRET_FILE_MODE, format_disk_json(&files.made).to_string().as_bytes())
}

/// Formats one key per line. Values are written as JSON, which is also valid YAML.
fn format_install_yaml(files: &MachineFiles, root_uuid: &str, password: &str, timestamp: &str) -> String {
    let allocation = &files.assigned.allocation;
    let nics = files.nics.iter();
    let nics: Vec<Value> = nics.map(describe_nic).collect();
    let entries = [
        ("hostname", json!(allocation.hostname)),
        ("networks", allocation.networks.clone()),
        ("machineuuid", json!(files.machine)),
        ("sshpublickey", json!(allocation.ssh_pub_keys.join("\n"))),
        ("password", json!(password)),
        // This file can contain only one console, which images add to the kernel command line. The last console is
        // used, because the kernel uses the last console as /dev/console.
        ("console", json!(files.assigned.consoles.last().map(String::as_str).unwrap_or_default())),
        ("timestamp", json!(timestamp)),
        ("nics", json!(nics)),
        ("vpn", allocation.vpn.clone()),
        ("role", json!(allocation.role)),
        // If `raidenabled` is true, images include mdadm.conf and the drivers for arrays in their initrd.
        ("raidenabled", json!(files.has_arrays)),
        ("root_uuid", json!(root_uuid)),
        ("firewall_rules", allocation.firewall_rules.clone()),
        ("dns_servers", allocation.dns_servers.clone()),
        ("ntp_servers", allocation.ntp_servers.clone()),
    ];
    entries.map(|(key, value)| format!("{key}: {value}\n")).concat()
}

/// Describes a NIC and its neighbors. Images use the neighbors to find the NICs that are connected to leaf switches.
/// The port ID of a neighbor is used both as its MAC and as its identifier, as metal-stack's own agent does.
pub(crate) fn describe_nic(nic: &Nic) -> Value {
    let neighbors = nic.neighbors.iter().map(|leaf| {
        json!({"mac": leaf.port, "name": leaf.display_name(), "hostname": leaf.hostname, "identifier": leaf.port, "neighbors": []})
    });
    json!({"mac": nic.mac, "name": nic.name, "neighbors": neighbors.collect::<Vec<_>>()})
}

/// Formats the parameters of an OS definition as shell assignments for programs of the installed system.
fn format_shell_parameters(environment: &BTreeMap<String, String>) -> String {
    let told = environment.iter().filter(|(name, _)| name.starts_with("OS_") || name.starts_with("OSP_"));
    told.map(|(name, value)| format!("{name}='{}'\n", value.replace('\'', "'\\''"))).collect()
}

/// Decodes user data, which metal-stack accepts as base64 or plain text.
pub(crate) fn decode_user_data(text: &str) -> Vec<u8> {
    STANDARD.decode(text.trim()).unwrap_or_else(|_| text.as_bytes().to_vec())
}

fn format_disk_json(made: &[MakeFilesystem]) -> Value {
    let labeled = |made: &&MakeFilesystem| made.label.as_deref().is_some_and(|label| DISK_JSON_LABELS.contains(&label));
    let partitions = made
        .iter()
        .filter(labeled)
        .map(|made| json!({"Label": made.label, "Filesystem": made.format.name(), "Properties": {"UUID": made.uuid}}));
    json!({"Device": "legacy", "Partitions": partitions.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::Allocation;
    use model::ganeti_os_definition::SelectedDefinition;
    use model::inventory::lldp::LldpNeighbor;
    use model::layout::FilesystemFormat;
    use operations::PlanAssignment;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use time::macros::datetime;

    fn made() -> Vec<MakeFilesystem> {
        let make = |label: Option<&str>, uuid: &str, format| MakeFilesystem {
            device: "/dev/sda1".into(),
            format,
            label: label.map(str::to_owned),
            uuid: uuid.into(),
            createoptions: vec![],
        };
        vec![
            make(Some("efi"), "1A2B-3C4D", FilesystemFormat::Vfat),
            make(Some("root"), "r-uuid", FilesystemFormat::Ext4),
            make(Some("data"), "d-uuid", FilesystemFormat::Ext4),
            make(None, "n-uuid", FilesystemFormat::Swap),
        ]
    }

    fn allocation() -> Allocation {
        Allocation {
            hostname: "web \"1\": # yes".into(),
            ssh_pub_keys: vec!["ssh-ed25519 AAAA a".into(), "ssh-ed25519 BBBB b".into()],
            console_password: "p'w: {x}".into(),
            networks: json!([{"networkid": "internet", "ips": ["192.0.2.1"]}]),
            role: "machine".into(),
            user_data: STANDARD.encode("#cloud-config\n"),
            ..Allocation::default()
        }
    }

    fn written() -> (tempfile::TempDir, NewRoot) {
        let leaf = LldpNeighbor { hostname: "leaf01".into(), port: "swp1s0".into(), ..LldpNeighbor::default() };
        let (name, mac) = ("eth0".into(), "52:54:00:00:00:01".into());
        let nic = Nic { name, mac, neighbors: vec![leaf], ..Nic::default() };
        let consoles = vec!["tty0".to_owned(), "ttyS0,115200n8".to_owned()];
        let files = MachineFiles {
            machine: "m-1".into(),
            assigned: PlanAssignment { allocation: allocation(), consoles },
            nics: vec![nic],
            has_arrays: true,
            made: made(),
            root_uuid: "of the plan".into(),
        };
        let dir = tempfile::tempdir().unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        write_metal_files(&root, &files, "r-uuid", "p'w: {x}", datetime!(2026-11-21 01:02:03 UTC)).unwrap();
        (dir, root)
    }

    #[test]
    fn install_yaml_has_its_keys_in_order() {
        let (_dir, root) = written();
        let text = root.read_text("/etc/metal/install.yaml").unwrap();
        let keys: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
        let expected = "hostname networks machineuuid sshpublickey password console timestamp nics vpn role raidenabled \
                        root_uuid firewall_rules dns_servers ntp_servers";
        assert_eq!(keys.join(" "), expected);

        let yaml = marked_yaml::parse_yaml(0, &text).unwrap();
        let yaml = yaml.as_mapping().unwrap();
        for (key, expected) in [
            ("hostname", "web \"1\": # yes"),
            ("sshpublickey", "ssh-ed25519 AAAA a\nssh-ed25519 BBBB b"),
            ("password", "p'w: {x}"),
            ("machineuuid", "m-1"),
            ("console", "ttyS0,115200n8"),
            ("timestamp", "2026-11-21T01:02:03Z"),
            ("root_uuid", "r-uuid"),
            ("raidenabled", "true"),
            ("vpn", "null"),
        ] {
            assert_eq!(yaml.get_scalar(key).unwrap().as_str(), expected, "{key}");
        }
        let network = yaml.get_sequence("networks").unwrap().get_mapping(0).unwrap();
        assert_eq!(network.get_scalar("networkid").unwrap().as_str(), "internet");
        let nic = yaml.get_sequence("nics").unwrap().get_mapping(0).unwrap();
        assert_eq!(nic.get_scalar("mac").unwrap().as_str(), "52:54:00:00:00:01");
        let leaf = nic.get_sequence("neighbors").unwrap().get_mapping(0).unwrap();
        for (key, expected) in [("mac", "swp1s0"), ("identifier", "swp1s0"), ("name", "swp1s0"), ("hostname", "leaf01")]
        {
            assert_eq!(leaf.get_scalar(key).unwrap().as_str(), expected, "{key}");
        }
    }

    #[test]
    fn installer_files_are_readable_only_by_root() {
        let (_dir, root) = written();
        for file in ["install.yaml", "userdata", "disk.json"] {
            let mode = fs::metadata(root.path().join("etc/metal").join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{file}");
        }
        assert_eq!(root.read_text("/etc/metal/userdata").unwrap(), "#cloud-config\n");
    }

    #[test]
    fn userdata_is_decoded_or_used_unchanged() {
        let cases = [
            ("", ""),
            ("#!/bin/sh\necho hello\n", "#!/bin/sh\necho hello\n"),
            ("aGVsbG8=", "hello"),
            ("aGVsbG8=\n", "hello"),
            ("aGVsbG8", "aGVsbG8"),
            ("#cloud-config", "#cloud-config"),
        ];
        for (text, expected) in cases {
            assert_eq!(decode_user_data(text), expected.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn disk_json_has_only_the_known_labels() {
        let expected = json!({"Device": "legacy", "Partitions": [
            {"Label": "efi", "Filesystem": "vfat", "Properties": {"UUID": "1A2B-3C4D"}},
            {"Label": "root", "Filesystem": "ext4", "Properties": {"UUID": "r-uuid"}},
        ]});
        assert_eq!(format_disk_json(&made()), expected);
    }

    #[test]
    fn shell_parses_the_parameters_of_the_definition() {
        let parameters = [("ns1", "it's $HOME `id`"), ("lines", "one\ntwo")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let chosen = SelectedDefinition { name: "web".into(), api: 20, parameters, ..SelectedDefinition::default() };
        let text = format_shell_parameters(&chosen.verify_environment());
        assert_eq!(
            text,
            "OSP_LINES='one\ntwo'\nOSP_NS1='it'\\''s $HOME `id`'\nOS_API_VERSION='20'\nOS_NAME='web'\nOS_VARIANT=''\n"
        );
        let script = format!("{text}printf %s \"$OSP_NS1|$OSP_LINES\"");
        let said = linux::process::ToolCommand::new("sh").args(["-c", &script]).run().unwrap();
        assert_eq!(said.stdout, "it's $HOME `id`|one\ntwo");
    }
}
