//! Comparison with the partitions and arrays that ironic-python-agent 13.0.0 creates, recorded without hardware.

use super::*;
use crate::inventory::{FirmwareType, Inventory, InventoryDisk};
use crate::layout::{Layout, RequestedSize, read_json};
use serde_json::json;
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;
const IRONIC: &str = include_str!("../../../../testdata/raid/ironic.json");

fn disk(name: &str, gib: u64, rotational: bool) -> InventoryDisk {
    InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes: gib * GIB,
        sector_bytes: 512,
        serial: format!("DH-{name}"),
        rotational,
        transport: if name.starts_with("nvme") { "nvme" } else { "sata" }.to_owned(),
        ..InventoryDisk::default()
    }
}

fn inventory(disks: Vec<InventoryDisk>, firmware: FirmwareType) -> Inventory {
    let mut inventory = Inventory { disks, ..Inventory::default() };
    inventory.system.firmware = firmware;
    inventory
}

/// Returns the inventory that a string such as `2xNVMe+2xHDD` describes.
fn of_words(words: &str, firmware: &str) -> Inventory {
    let mut disks = Vec::new();
    for (count, kind) in words.split('+').map(|part| part.split_once('x').unwrap()) {
        for index in 0..count.parse::<u8>().unwrap() {
            disks.push(match kind {
                "NVMe" => disk(&format!("nvme{index}n1"), 900, false),
                _ => disk(&format!("sd{}", char::from(b'a' + index)), 8000, kind == "HDD"),
            });
        }
    }
    inventory(disks, if firmware == "uefi" { FirmwareType::Uefi } else { FirmwareType::Bios })
}

/// Returns the disk of a partition: `/dev/sda` for `/dev/sda1`, and `/dev/nvme0n1` for `/dev/nvme0n1p1`.
fn disk_of(partition: &str) -> String {
    let trimmed = partition.trim_end_matches(|c: char| c.is_ascii_digit());
    if partition.contains("nvme") { trimmed.trim_end_matches('p') } else { trimmed }.to_owned()
}

/// Name, level and member disks of an array.
type Array = (String, String, Vec<String>);

fn recorded(commands: &Value) -> (Vec<Array>, BTreeMap<String, Vec<Option<u64>>>) {
    let (mut arrays, mut parts) = (Vec::new(), BTreeMap::<String, Vec<Option<u64>>>::new());
    for command in commands.as_array().unwrap().iter().map(|command| command.as_str().unwrap()) {
        let words: Vec<&str> = command.split(' ').collect();
        let after = |word: &str| words[words.iter().position(|one| *one == word).unwrap() + 1];
        if command.starts_with("mdadm --create") {
            let count: usize = after("--raid-devices").parse().unwrap();
            let members = words[words.len() - count..].iter().map(|member| disk_of(member)).collect();
            arrays.push((after("--name").to_owned(), after("--level").to_owned(), members));
        } else if command.contains("mkpart") {
            // `mkpart` gets the end of the partition as an offset on the disk, in GiB.
            let end = words.last().unwrap().strip_suffix("GiB").map(|gib| gib.parse::<u64>().unwrap() * 1024);
            parts.entry(words[1].to_owned()).or_default().push(end);
        }
    }
    (arrays, parts)
}

fn made(layout: &Layout) -> (Vec<Array>, BTreeMap<String, Vec<Option<u64>>>) {
    let arrays = layout.raid.iter().filter(|raid| raid.arrayname != "/dev/md/esp").map(|raid| {
        let name = raid.arrayname.as_str();
        let name = name.strip_prefix("/dev/md/").or(name.strip_prefix("/dev/")).unwrap().to_owned();
        let members = raid.devices.iter().map(|member| disk_of(member.as_str())).collect();
        (name, raid.level.number().to_owned(), members)
    });
    let of_disk = |disk: &crate::layout::DiskSpec| {
        let parts = disk.partitions.iter().filter(|part| part.label.as_deref() != Some("efi"));
        (disk.device.to_string(), parts.map(|part| part.size.as_mib()).collect())
    };
    (arrays.collect(), layout.disks.iter().map(of_disk).collect())
}

#[test]
fn generated_arrays_and_refusals_match_those_of_ironic() {
    let cases: Vec<Value> = serde_json::from_str(IRONIC).unwrap();
    let (mut same, mut refused) = (0, 0);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let inventory = of_words(case["disks"].as_str().unwrap(), case["boot_mode"].as_str().unwrap());
        let config = RaidConfig::parse_config(&json!({"logical_disks": case["logical_disks"]}));
        let layout = config.and_then(|config| config.build_layout("raid", &inventory));
        if case.get("error").is_some() {
            assert!(layout.is_err(), "{name}");
            refused += 1;
            continue;
        }
        let layout =
            layout.unwrap_or_else(|problems| panic!("{name}: {}", common::diagnostic::join_problems(&problems)));
        // The layout does not change when it is serialized and parsed.
        assert_eq!(read_json(&serde_json::to_value(&layout).unwrap()).unwrap().layout, layout, "{name}");
        if case["commands"].as_array().unwrap().is_empty() {
            // Without `controller`, Ironic's agent creates no array and reports no error.
            assert_eq!(name, "seed-004-verbatim-no-controller");
            assert_eq!(
                made(&layout).0,
                [("md0".to_owned(), "1".to_owned(), vec!["/dev/sda".to_owned(), "/dev/sdb".to_owned()])]
            );
            continue;
        }
        let ((arrays, parts), (wanted, ends)) = (made(&layout), recorded(&case["commands"]));
        assert_eq!(arrays, wanted, "{name}");
        assert_eq!(parts.keys().collect::<Vec<_>>(), ends.keys().collect::<Vec<_>>(), "{name}");
        for (disk, ends) in ends {
            let mut begin = 0;
            for (ours, end) in parts[&disk].iter().zip(&ends) {
                // Ironic's agent adds up the requested sizes to compute the end of each partition. The first partition
                // does not start at offset 0, and is therefore smaller than requested.
                assert_eq!(*ours, end.map(|end| end - begin), "{name}: {disk}");
                begin = end.unwrap_or_default();
            }
            assert_eq!(parts[&disk].len(), ends.len(), "{name}: {disk}");
        }
        same += 1;
    }
    assert_eq!((cases.len(), same, refused), (14, 7, 6));
}

/// Returns arguments of the step, in the format of the proposal for deploy templates.
fn seed(level: &str) -> Value {
    json!({"logical_disks": [{"size_gb": "MAX", "raid_level": level, "is_root_volume": true}], "delete_configuration": true})
}

#[test]
fn both_examples_of_the_proposal_become_layouts() {
    let two = of_words("2xSATA", "uefi");
    for level in ["1", "0"] {
        let arguments = seed(level);
        let config = read_step_arrays("raid.create_configuration", arguments.as_object().unwrap()).unwrap();
        let layout = config.build_layout("raid", &two).unwrap();
        let arrays: Vec<String> = layout
            .raid
            .iter()
            .map(|raid| format!("{} {} {}", raid.arrayname, raid.level, raid.devices.len()))
            .collect();
        assert_eq!(arrays, ["/dev/md/esp raid1 2".to_owned(), format!("/dev/md0 raid{level} 2")]);
        let mounted: Vec<String> = layout
            .filesystems
            .iter()
            .map(|one| format!("{} {} {}", one.path.as_deref().unwrap(), one.device, one.format))
            .collect();
        assert_eq!(mounted, ["/boot/efi /dev/md/esp vfat", "/ /dev/md0 ext4"]);
        let [one, _] = &layout.disks[..] else { panic!() };
        assert_eq!(one.hints["serial"], "s== DH-sda");
        assert_eq!(one.partitions[1].size, RequestedSize::Rest);
        assert!(one.wipeonreinstall);
        let problems = config.build_layout("raid", &of_words("1xSATA", "uefi")).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains("has 1 of the 2 devices")), "{problems:?}");
    }
}

#[test]
fn current_ironic_step_names_are_equivalent() {
    let config = |name: &str, arguments: Value| read_step_arrays(name, arguments.as_object().unwrap());
    let disks = json!([{"size_gb": 10, "raid_level": "1", "controller": "software"}]);
    let new =
        config("raid.apply_configuration", json!({"raid_config": {"logical_disks": disks}, "delete_existing": true}));
    assert_eq!(new, config("raid.create_configuration", json!({"logical_disks": disks})));
    let places = |config: std::result::Result<RaidConfig, Vec<Diagnostic>>| -> Vec<String> {
        config.unwrap_err().into_iter().map(|problem| problem.place).collect()
    };
    let wrong = json!({"raid_config": {"logical_disks": [{"size_gb": 0, "raid_level": 1}]}, "delete_existing": false});
    assert_eq!(
        places(config("raid.apply_configuration", wrong)),
        ["delete_existing", "raid_config.logical_disks[0].size_gb", "raid_config.logical_disks[0].raid_level"]
    );
    assert_eq!(places(config("raid.apply_configuration", json!({}))), ["raid_config"]);
    assert_eq!(places(config("raid.create_configuration", json!({"logical_disks": []}))), ["logical_disks"]);
}

#[test]
fn reports_every_problem_of_logical_disks() {
    let disks = json!([
        {"size_gb": "ALL", "raid_level": "7", "controller": "megaraid", "disk_type": "ssd"},
        {"size_gb": 1, "raid_level": "1", "is_root_volume": "yes", "volume_name": "", "physical_disks": [{"rotational": true}]},
        {"size_gb": 1, "raid_level": "1", "is_root_volume": true, "physical_disks": [{"colour": "red"}, 7]},
        {"size_gb": 1, "raid_level": "1", "is_root_volume": true},
        5,
    ]);
    let problems = RaidConfig::parse_config(&json!({"logical_disks": disks, "more": 1})).unwrap_err();
    let places: Vec<&str> = problems.iter().map(|problem| problem.place.as_str()).collect();
    assert_eq!(
        places,
        [
            "more",
            "logical_disks[3].is_root_volume",
            "logical_disks[0].disk_type",
            "logical_disks[0].size_gb",
            "logical_disks[0].raid_level",
            "logical_disks[0].controller",
            "logical_disks[1].is_root_volume",
            "logical_disks[1].volume_name",
            "logical_disks[1].physical_disks",
            "logical_disks[2].physical_disks[0].colour",
            "logical_disks[2].physical_disks[1]",
            "logical_disks[4]",
        ]
    );
}

#[test]
fn physical_disks_are_selected_by_hints_without_removable_disks() {
    let mut machine = of_words("2xNVMe+2xHDD", "uefi");
    let mut stick = disk("sdc", 30, false);
    stick.transport = "usb".to_owned();
    machine.disks.push(stick);
    let read = |disks: Value| RaidConfig::parse_config(&json!({"logical_disks": disks})).unwrap();
    let all = read(json!([{"size_gb": "MAX", "raid_level": "6"}])).build_layout("raid", &machine).unwrap();
    assert_eq!(all.disks.len(), 4);
    let three = [json!({"rotational": true}), json!({"rotational": true}), json!({"rotational": true})];
    let problems = read(json!([{"size_gb": "MAX", "raid_level": "5", "physical_disks": three}]))
        .build_layout("raid", &machine)
        .unwrap_err();
    assert_eq!(problems[0].place, "logical_disks[0].physical_disks[2]");
    // Two disks with the same serial number have no unique attribute, so the layout selects them by their names.
    machine.disks[1].serial = machine.disks[0].serial.clone();
    let flash = [json!({"tran": "nvme"}), json!({"tran": "nvme"})];
    let layout = read(json!([{"size_gb": "MAX", "raid_level": "1", "physical_disks": flash}]))
        .build_layout("raid", &machine)
        .unwrap();
    assert!(layout.disks.iter().all(|disk| disk.hints.is_empty()), "{:?}", layout.disks);
}
