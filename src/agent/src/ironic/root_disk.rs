//! Root disk of a node: the disk to which the deploy interface `direct` writes its image.

use super::deploy_args::{IronicNode, plan_refusal};
use common::error::Result;
use model::device_name::KernelName;
use model::inventory::{Inventory, InventoryDisk};
use model::layout::root_device_hints;
use model::storage_graph::{DeviceStack, disk_lookup};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum size, in bytes, of a root disk that is selected without hints. Ironic's own agent has the same minimum.
const MINIMUM_ROOT_DISK_BYTES: u64 = 4 << 30;

/// Name of the partition, and label of the filesystem, of a config drive.
pub(crate) const CONFIG_DRIVE: &str = "config-2";

/// Returns the root disk.
///
/// | hints in `root_device` | disks that may be written | result |
/// |---|---|---|
/// | present | one disk matches | this disk |
/// | present | several disks match | refused: the order of kernel names may differ between boots |
/// | absent | one disk is the smallest of those with at least 4 GiB | this disk |
/// | absent | several disks are equally small, and exactly one contains an earlier system of the node | this disk |
/// | absent | several disks are equally small, and none has a partition table, a signature or a use | one of them: first a blank disk, then the first slot |
/// | absent | several disks are equally small, and any other content | refused: one of them may contain data |
///
/// # Errors
/// Fails if no disk matches, or if it is unknown which of several disks is meant.
pub(crate) fn find_root_disk<'a>(
    node: &IronicNode,
    inventory: &'a Inventory,
    skipped: &[KernelName],
) -> Result<&'a InventoryDisk> {
    let hints = read_hints(node);
    if let Some((hint, why)) = root_device_hints::check_hints(&hints).into_iter().next() {
        return Err(plan_refusal(&format!("root_device: {hint}: {why}")));
    }
    if let Some(placeholder) = root_device_hints::find_placeholder(&hints) {
        return Err(plan_refusal(&format!("root_device: {}: {placeholder}", placeholder.hint)));
    }
    let mut found = root_device_hints::find_candidates(&hints, &inventory.disks);
    found.retain(|disk| !skipped.contains(&disk.name));
    if hints.is_empty() {
        return find_smallest_disk(node, inventory, found);
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let words: Vec<String> = hints.iter().map(|(hint, value)| format!("{hint}: {value}")).collect();
            Err(plan_refusal(&format!("no writable disk matches root_device {}", words.join(", "))))
        }
        several => Err(plan_refusal(&disk_lookup::describe_ambiguity("root_device", several, inventory))),
    }
}

/// Returns the disks that are removable or attached by USB, but belong to the node, because `root_device` explicitly
/// selects them.
pub(crate) fn find_portable_root_disks(node: &IronicNode, inventory: &Inventory) -> Vec<KernelName> {
    let hints = read_hints(node);
    let found = root_device_hints::find_candidates(&hints, &inventory.disks).into_iter();
    found.filter(|disk| root_device_hints::is_portable(disk)).map(|disk| disk.name.clone()).collect()
}

fn read_hints(node: &IronicNode) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    node.root_device().into_iter().flatten().map(|(hint, value)| (hint.clone(), text(value))).collect()
}

/// Returns the smallest disk of sufficient size. If several disks are equally small, their contents decide.
fn find_smallest_disk<'a>(
    node: &IronicNode,
    inventory: &Inventory,
    mut found: Vec<&'a InventoryDisk>,
) -> Result<&'a InventoryDisk> {
    found.retain(|disk| disk.size_bytes >= MINIMUM_ROOT_DISK_BYTES);
    let least = found.iter().map(|disk| disk.size_bytes).min();
    found.retain(|disk| Some(disk.size_bytes) == least);
    let marked = disks_with_marker(node, inventory);
    let is_installed = |disk: &InventoryDisk| marked.contains(&disk.name) || has_config_drive(disk);
    let installed: Vec<&InventoryDisk> = found.iter().copied().filter(|disk| is_installed(disk)).collect();
    if let ([one], _) | (_, [one]) = (found.as_slice(), installed.as_slice()) {
        return Ok(one);
    }
    if found.iter().any(|disk| plan::has_contents(disk)) {
        return Err(plan_refusal(&format!(
            "the node has no root_device, and its smallest disks have the same size, but are not empty: {disks}; set \
             root_device, for example to the serial number of the disk, or erase the disks with the step erase_devices_metadata",
            disks = disk_lookup::describe_candidates(&found)
        )));
    }
    let by_slot =
        |disk: &&InventoryDisk| (!disk.blank, disk.by_path.is_empty(), disk.by_path.clone(), disk.name.clone());
    found.into_iter().min_by_key(by_slot).ok_or_else(|| plan_refusal("no writable disk has at least 4 GiB"))
}

/// Returns the disks below filesystems with an install marker of this node.
fn disks_with_marker(node: &IronicNode, inventory: &Inventory) -> BTreeSet<KernelName> {
    let stack = DeviceStack::new(inventory);
    let is_own = |machine: &str| !machine.is_empty() && machine == node.uuid();
    let marked = inventory
        .filesystems
        .iter()
        .filter(|filesystem| filesystem.marker.as_ref().is_some_and(|marker| is_own(&marker.machine)));
    marked.flat_map(|filesystem| stack.disks_below(&stack.kernel_name(&filesystem.device))).collect()
}

/// Returns whether the disk has a config drive, which Ironic writes only to the root disk.
fn has_config_drive(disk: &InventoryDisk) -> bool {
    let mut partitions = disk.table.iter().flat_map(|table| &table.partitions);
    partitions.any(|partition| {
        let labels = partition.signatures.iter().map(|signature| &signature.label);
        labels.chain([&partition.label]).any(|label| label.eq_ignore_ascii_case(CONFIG_DRIVE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::InstallMarker;
    use model::inventory::{DiskPartition, DiskTable, FilesystemContents};
    use serde_json::{Map, json};

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn disk(name: &str, gib: u64) -> InventoryDisk {
        InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            size_bytes: gib << 30,
            ..InventoryDisk::default()
        }
    }

    fn selected(node: Value, inventory: &Inventory, skipped: &[&str]) -> Result<String, String> {
        let (node, skipped) = (map(node), skipped.iter().map(|name| (*name).into()).collect::<Vec<KernelName>>());
        find_root_disk(&IronicNode(&node), inventory, &skipped)
            .map(|disk| disk.name.to_string())
            .map_err(|error| error.to_string())
    }

    fn with_partition(label: &str) -> Option<DiskTable> {
        let partitions = vec![DiskPartition { label: label.to_owned(), ..DiskPartition::default() }];
        Some(DiskTable { kind: "gpt".to_owned(), partitions, ..DiskTable::default() })
    }

    #[test]
    fn hints_or_sufficient_size_select_the_root_disk() {
        let disks = vec![disk("sdc", 8), disk("sdb", 8), disk("sda", 100), disk("sdd", 2)];
        let inventory = Inventory { disks, ..Inventory::default() };
        let root = |node: Value, skipped: &[&str]| selected(node, &inventory, skipped);
        assert_eq!(root(json!({}), &[]).unwrap(), "sdb");
        assert_eq!(root(json!({}), &["sdb", "sdc"]).unwrap(), "sda");
        let hinted = json!({"properties": {"root_device": {"size": 100}}});
        assert_eq!(root(hinted.clone(), &[]).unwrap(), "sda");
        assert!(root(hinted, &["sda"]).unwrap_err().contains("matches root_device size: 100"));
        let both = json!({"properties": {"root_device": {"size": 100}}, "instance_info": {"root_device": {"name": "/dev/sdc"}}});
        assert_eq!(root(both, &[]).unwrap(), "sdc");
        assert!(root(json!({"properties": {"root_device": {"colour": "red"}}}), &[]).unwrap_err().contains("colour"));
        assert!(root(json!({}), &["sda", "sdb", "sdc"]).unwrap_err().contains("has at least 4 GiB"));
    }

    #[test]
    fn refuses_hints_that_match_several_disks() {
        let disks = vec![disk("sda", 8), disk("sdb", 8), InventoryDisk { serial: "C0".into(), ..disk("sdc", 9) }];
        let inventory = Inventory { disks, ..Inventory::default() };
        for hints in [json!({"size": 8}), json!({"size": "smallest"}), json!({"rotational": false})] {
            let node = json!({"properties": {"root_device": hints}});
            let error = selected(node.clone(), &inventory, &[]).unwrap_err();
            assert!(error.contains("root_device is ambiguous: its hints match"), "{error}");
            assert!(error.contains("/dev/sda") && error.contains("nothing was written"), "{error}");
            assert_eq!(selected(node, &inventory, &["sda", "sdc"]).unwrap(), "sdb");
        }
    }

    /// Without hints, equally small disks are common: the data of one of them must not be erased.
    #[test]
    fn contents_decide_between_equally_small_disks() {
        let root = |change: fn(&mut Inventory)| {
            let mut disks = vec![disk("sda", 8), disk("sdb", 8), disk("sdc", 9)];
            for (disk, slot) in disks.iter_mut().zip(["2", "1", "3"]) {
                disk.by_path = format!("/dev/disk/by-path/pci-{slot}");
            }
            let mut inventory = Inventory { disks, ..Inventory::default() };
            change(&mut inventory);
            selected(json!({"uuid": "n-1"}), &inventory, &[])
        };
        fn put_marker(inventory: &mut Inventory, machine: &str) {
            let marker = Some(InstallMarker { machine: machine.into(), ..InstallMarker::default() });
            let device = "/dev/sda".into();
            inventory.filesystems.push(FilesystemContents { device, marker, ..FilesystemContents::default() });
            inventory.disks[0].table = with_partition("");
        }
        assert_eq!(root(|_| {}).unwrap(), "sdb", "first slot");
        assert_eq!(root(|inventory| inventory.disks[0].blank = true).unwrap(), "sda");
        assert_eq!(root(|inventory| inventory.disks[0].table = with_partition("config-2")).unwrap(), "sda");
        assert_eq!(root(|inventory| put_marker(inventory, "n-1")).unwrap(), "sda");
        // The other disk contains data.
        let both = root(|inventory| {
            put_marker(inventory, "n-1");
            inventory.disks[1].table = with_partition("data");
        });
        assert_eq!(both.unwrap(), "sda");
        let refused: [fn(&mut Inventory); 4] = [
            |inventory| inventory.disks[0].table = with_partition("data"),
            |inventory| inventory.disks[1].unreadable = Some("Input/output error".to_owned()),
            |inventory| put_marker(inventory, "n-2"),
            |inventory| inventory.disks[..2].iter_mut().for_each(|disk| disk.table = with_partition("CONFIG-2")),
        ];
        for (index, change) in refused.into_iter().enumerate() {
            let error = root(change).expect_err(&index.to_string());
            assert!(error.contains("no root_device") && error.contains("/dev/sda"), "{index}: {error}");
        }
    }

    #[test]
    fn usb_disk_belongs_to_the_node_only_if_root_device_selects_it() {
        let usb = InventoryDisk { transport: "usb".into(), ..disk("sdb", 8) };
        let inventory = Inventory { disks: vec![disk("sda", 8), usb], ..Inventory::default() };
        for (hints, expected) in [(json!({}), &[][..]), (json!({"size": 8}), &[]), (json!({"tran": "usb"}), &["sdb"])] {
            let node = map(json!({"properties": {"root_device": hints}}));
            assert_eq!(find_portable_root_disks(&IronicNode(&node), &inventory), expected);
        }
    }
}
