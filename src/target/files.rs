//! What a metal-stack image expects in `/etc/metal` before its installer runs.

use super::Root;
use crate::allocation::Allocation;
use crate::error::{Context, Phase, Result};
use crate::inventory::Inventory;
use crate::plan::{MakeFilesystem, Operation, Plan};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// They hold passwords and keys.
const SECRET: u32 = 0o600;

/// The filesystems that old images look for in `disk.json`, by label.
const DISK_JSON_LABELS: [&str; 3] = ["root", "efi", "varlib"];

/// All that the files are made of.
pub struct Machine<'a> {
    pub allocation: &'a Allocation,
    /// The machine's id.
    pub id: &'a str,
    pub inventory: &'a Inventory,
    /// `console=` of the kernel command line, in order.
    pub consoles: &'a [String],
    pub plan: &'a Plan,
    /// UUID of the filesystem that carries `/`.
    pub root_uuid: &'a str,
}

/// Writes `install.yaml`, `userdata` and `disk.json`.
///
/// # Errors
/// One of them cannot be written.
pub fn write(root: &Root, machine: &Machine, now: OffsetDateTime) -> Result<()> {
    let timestamp = now.format(&Rfc3339).context(Phase::Target, || "write the time into install.yaml")?;
    root.write("/etc/metal/install.yaml", SECRET, install_yaml(machine, &timestamp).as_bytes())?;
    root.write("/etc/metal/userdata", SECRET, &userdata(&machine.allocation.user_data))?;
    root.write("/etc/metal/disk.json", SECRET, disk_json(machine.plan).to_string().as_bytes())
}

/// One key a line; each value is JSON, which is YAML too.
fn install_yaml(machine: &Machine, timestamp: &str) -> String {
    let allocation = machine.allocation;
    let nics = machine.inventory.nics.iter();
    let nics: Vec<Value> = nics.map(|nic| json!({"mac": nic.mac, "name": nic.name, "neighbors": []})).collect();
    let entries = [
        ("hostname", json!(allocation.hostname)),
        ("networks", allocation.networks.clone()),
        ("machineuuid", json!(machine.id)),
        ("sshpublickey", json!(allocation.ssh_pub_keys.join("\n"))),
        ("password", json!(allocation.console_password)),
        // The kernel makes the last one /dev/console, and images put one into their command line.
        ("console", json!(machine.consoles.last().map(String::as_str).unwrap_or_default())),
        ("timestamp", json!(timestamp)),
        ("nics", json!(nics)),
        ("vpn", allocation.vpn.clone()),
        ("role", json!(allocation.role)),
        ("raidenabled", json!(has_arrays(machine.plan))),
        ("root_uuid", json!(machine.root_uuid)),
        ("firewall_rules", allocation.firewall_rules.clone()),
        ("dns_servers", allocation.dns_servers.clone()),
        ("ntp_servers", allocation.ntp_servers.clone()),
    ];
    entries.map(|(key, value)| format!("{key}: {value}\n")).concat()
}

/// Images put mdadm.conf and the drivers for it into their initrd then.
fn has_arrays(plan: &Plan) -> bool {
    let mut operations = plan.steps.iter().flat_map(|step| &step.operations);
    operations.any(|operation| matches!(operation, Operation::CreateArray(_) | Operation::AssembleArray { .. }))
}

/// metal-stack takes it in base64 or plain.
fn userdata(text: &str) -> Vec<u8> {
    STANDARD.decode(text.trim()).unwrap_or_else(|_| text.as_bytes().to_vec())
}

fn disk_json(plan: &Plan) -> Value {
    let made = plan.steps.iter().flat_map(|step| &step.operations).filter_map(|operation| match operation {
        Operation::MakeFilesystem(made) => Some(made),
        _ => None,
    });
    let labelled =
        |made: &&MakeFilesystem| made.label.as_deref().is_some_and(|label| DISK_JSON_LABELS.contains(&label));
    let partitions = made
        .filter(labelled)
        .map(|made| json!({"Label": made.label, "Filesystem": made.format.name(), "Properties": {"UUID": made.uuid}}));
    json!({"Device": "legacy", "Partitions": partitions.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Nic;
    use crate::layout::Format;
    use crate::plan::{Mode, Step, StepName};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use time::macros::datetime;

    fn plan() -> Plan {
        let make = |label: Option<&str>, uuid: &str, format| {
            Operation::MakeFilesystem(MakeFilesystem {
                device: "/dev/sda1".into(),
                format,
                label: label.map(str::to_owned),
                uuid: uuid.into(),
                createoptions: vec![],
            })
        };
        let operations = vec![
            make(Some("efi"), "1A2B-3C4D", Format::Vfat),
            make(Some("root"), "r-uuid", Format::Ext4),
            make(Some("data"), "d-uuid", Format::Ext4),
            make(None, "n-uuid", Format::Swap),
        ];
        Plan {
            subject: crate::plan::Subject::default(),
            mode: Mode::Install,
            layout: "default".into(),
            disks: vec![],
            steps: vec![Step { name: StepName::StorageFormat, operations }],
            point_of_no_return: 0,
            fstab: vec![],
            root_uuid: "r-uuid".into(),
            already: None,
            warnings: vec![],
            torn: vec![],
            summary: Default::default(),
            sizes: Default::default(),
            extents: vec![],
        }
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

    fn written() -> (tempfile::TempDir, Root) {
        let (plan, allocation) = (plan(), allocation());
        let nic = Nic { name: "eth0".into(), mac: "52:54:00:00:00:01".into(), ..Nic::default() };
        let inventory = Inventory { nics: vec![nic], ..Inventory::default() };
        let consoles = ["tty0".to_owned(), "ttyS0,115200n8".to_owned()];
        let machine = Machine {
            allocation: &allocation,
            id: "m-1",
            inventory: &inventory,
            consoles: &consoles,
            plan: &plan,
            root_uuid: "r-uuid",
        };
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        write(&root, &machine, datetime!(2026-11-21 01:02:03 UTC)).unwrap();
        (dir, root)
    }

    #[test]
    fn install_yaml_is_yaml_with_the_keys_in_order() {
        let (_dir, root) = written();
        let text = root.read("/etc/metal/install.yaml").unwrap();
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
            ("raidenabled", "false"),
            ("vpn", "null"),
        ] {
            assert_eq!(yaml.get_scalar(key).unwrap().as_str(), expected, "{key}");
        }
        let network = yaml.get_sequence("networks").unwrap().get_mapping(0).unwrap();
        assert_eq!(network.get_scalar("networkid").unwrap().as_str(), "internet");
        let nic = yaml.get_sequence("nics").unwrap().get_mapping(0).unwrap();
        assert_eq!(nic.get_scalar("mac").unwrap().as_str(), "52:54:00:00:00:01");
    }

    #[test]
    fn raid_is_enabled_when_the_plan_makes_or_keeps_an_array() {
        assert!(!has_arrays(&plan()));
        let array = crate::plan::CreateArray {
            device: "/dev/md/root".into(),
            level: crate::layout::RaidLevel::Raid1,
            metadata: "1.2".into(),
            uuid: uuid::Uuid::nil(),
            devices: vec!["/dev/sda1".into(), "/dev/sdb1".into()],
            spares: 0,
            createoptions: vec![],
        };
        let assemble =
            Operation::AssembleArray { device: array.device.clone(), uuid: array.uuid, members: array.devices.clone() };
        for operation in [Operation::CreateArray(array), assemble] {
            let mut plan = plan();
            plan.steps.push(Step { name: StepName::StorageRaid, operations: vec![operation] });
            assert!(has_arrays(&plan));
        }
    }

    #[test]
    fn the_files_are_secret() {
        let (_dir, root) = written();
        for file in ["install.yaml", "userdata", "disk.json"] {
            let mode = fs::metadata(root.path().join("etc/metal").join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{file}");
        }
        assert_eq!(root.read("/etc/metal/userdata").unwrap(), "#cloud-config\n");
    }

    #[test]
    fn userdata_is_decoded_or_taken_as_it_is() {
        let cases = [
            ("", ""),
            ("#!/bin/sh\necho hello\n", "#!/bin/sh\necho hello\n"),
            ("aGVsbG8=", "hello"),
            ("aGVsbG8=\n", "hello"),
            ("aGVsbG8", "aGVsbG8"),
            ("#cloud-config", "#cloud-config"),
        ];
        for (text, expected) in cases {
            assert_eq!(userdata(text), expected.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn disk_json_has_the_three_known_labels() {
        let expected = json!({"Device": "legacy", "Partitions": [
            {"Label": "efi", "Filesystem": "vfat", "Properties": {"UUID": "1A2B-3C4D"}},
            {"Label": "root", "Filesystem": "ext4", "Properties": {"UUID": "r-uuid"}},
        ]});
        assert_eq!(disk_json(&plan()), expected);
    }
}
