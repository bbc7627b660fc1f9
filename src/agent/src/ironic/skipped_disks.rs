//! Disks that no step may write, regardless of the step's arguments.

use super::deploy_args::{IronicNode, plan_refusal};
use common::error::Result;
use model::device_name::KernelName;
use model::inventory::{Inventory, InventoryDisk, MdArray};
use model::layout::{Layout, root_device_hints};
use model::storage_graph::{DeviceStack, LayoutMatch};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the disks that no step may write. The node's property `skip_block_devices` is a list of hints that select
/// these disks. Each entry of the list selects all matching disks. The hint `volume_name` selects all disks of the
/// array with that name.
///
/// # Errors
/// Fails if the list is malformed.
pub(crate) fn find_skipped_disks(node: &IronicNode, inventory: &Inventory) -> Result<Vec<KernelName>> {
    let listed = match node.0.get("properties").and_then(|properties| properties.get("skip_block_devices")) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err(plan_refusal("the node's skip_block_devices must be a list")),
    };
    let mut skipped = BTreeSet::new();
    for (index, one) in listed.iter().enumerate() {
        let refuse = |why: &str| plan_refusal(&format!("the node's skip_block_devices[{index}]: {why}"));
        let Some(words) = one.as_object().filter(|words| !words.is_empty()) else {
            return Err(refuse("the entry must be an object with hints"));
        };
        if let Some(name) = words.get("volume_name") {
            let Some(name) = name.as_str().filter(|_| words.len() == 1) else {
                return Err(refuse("`volume_name` must be a string, and cannot be combined with other hints"));
            };
            let named = inventory.arrays.iter().filter(|array| array.name == name);
            skipped.extend(named.flat_map(|array| disks_below_array(array, inventory)));
            continue;
        }
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let hints: BTreeMap<String, String> = words.iter().map(|(hint, value)| (hint.clone(), text(value))).collect();
        if let Some((hint, why)) = root_device_hints::check_hints(&hints).into_iter().next() {
            return Err(refuse(&format!("{hint}: {why}")));
        }
        // Hints without a matching disk are ignored, because a disk that is not connected cannot be erased.
        skipped.extend(
            root_device_hints::find_reported_candidates(&hints, &inventory.disks)
                .into_iter()
                .map(|disk| disk.name.clone()),
        );
    }
    Ok(skipped.into_iter().collect())
}

/// Marks skipped disks in the layout as preserved.
pub(crate) fn preserve_skipped_disks(layout: &mut Layout, inventory: &Inventory, skipped: &[KernelName]) {
    let is_skipped = {
        let found = LayoutMatch::new(layout, inventory);
        let of = |index: usize| found.matched_disk(index).is_some_and(|disk| skipped.contains(&disk.name));
        (0..layout.disks.len()).map(of).collect::<Vec<bool>>()
    };
    for (disk, is_skipped) in layout.disks.iter_mut().zip(is_skipped) {
        disk.wipeonreinstall &= !is_skipped;
    }
}

/// Returns whether the disk is used by an array.
pub(crate) fn is_below_an_array(inventory: &Inventory, disk: &InventoryDisk) -> bool {
    inventory.arrays.iter().any(|array| disks_below_array(array, inventory).contains(&disk.name))
}

fn disks_below_array(array: &MdArray, inventory: &Inventory) -> BTreeSet<KernelName> {
    let stack = DeviceStack::new(inventory);
    array.members.iter().flat_map(|member| stack.disks_below(&stack.kernel_name(&member.device))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::ArrayMember;
    use serde_json::{Map, json};

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn skipped_disks_are_found_by_hints() {
        let disk = |name: &str, serial: &str, size: u64| InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            serial: serial.into(),
            size_bytes: size << 30,
            ..InventoryDisk::default()
        };
        let zeros = [disk("sdd", "0000", 30), disk("sde", "0000", 40)];
        let disks = [vec![disk("sda", "A", 10), disk("sdb", "B", 20), disk("sdc", "C", 20)], zeros.to_vec()].concat();
        let members = vec![ArrayMember { device: "/dev/sdc".into(), ..ArrayMember::default() }];
        let arrays = vec![MdArray { name: "data".into(), members, ..MdArray::default() }];
        let inventory = Inventory { disks, arrays, ..Inventory::default() };
        let skipped = |listed: Value| {
            let node = map(json!({"properties": {"skip_block_devices": listed}}));
            super::find_skipped_disks(&IronicNode(&node), &inventory).map_err(|error| error.to_string())
        };
        for (listed, expected) in [
            (json!(null), &[][..]),
            (json!([]), &[]),
            (json!([{"name": "/dev/sda"}]), &["sda"]),
            (json!([{"serial": "B"}, {"serial": "Z"}]), &["sdb"]),
            (json!([{"size": 20}]), &["sdb", "sdc"]),
            // A placeholder protects all disks that report it.
            (json!([{"serial": "0000"}]), &["sdd", "sde"]),
            (json!([{"serial": "<in> 00"}]), &["sdd", "sde"]),
            (json!([{"volume_name": "data"}, {"volume_name": "other"}]), &["sdc"]),
        ] {
            assert_eq!(skipped(listed).unwrap(), expected);
        }
        for (listed, why) in [
            (json!("sda"), "must be a list"),
            (json!(["sda"]), "skip_block_devices[0]: the entry must be an object"),
            (json!([{"serial": "B"}, {"volume_name": 7}]), "skip_block_devices[1]: `volume_name` must be a string"),
            (json!([{"volume_name": "data", "serial": "B"}]), "cannot be combined"),
            (json!([{"colour": "red"}]), "colour"),
            (json!([{}]), "must be an object with hints"),
        ] {
            let error = skipped(listed.clone()).unwrap_err();
            assert!(error.contains(why) && error.contains("nothing was written"), "{listed}: {error}");
        }
        assert!(super::find_skipped_disks(&IronicNode(&Map::new()), &inventory).unwrap().is_empty());
        let below: Vec<bool> = inventory.disks.iter().map(|disk| is_below_an_array(&inventory, disk)).collect();
        assert_eq!(below, [false, false, true, false, false]);
    }

    #[test]
    fn layout_preserves_skipped_disks() {
        let mut layout = model::layout::read_json(&super::super::step_runner::tests::one_disk()).unwrap().layout;
        let inventory = super::super::step_runner::tests::machine("sata-1");
        preserve_skipped_disks(&mut layout, &inventory, &[]);
        assert!(layout.disks[0].wipeonreinstall);
        preserve_skipped_disks(&mut layout, &inventory, &[inventory.disks[0].name.clone()]);
        assert!(!layout.disks[0].wipeonreinstall);
    }
}
