//! Tests with the device stacks of small machines, and comparison with a search through the whole inventory.

use super::*;
use crate::inventory::StackedDeviceKind;
use proptest::prelude::*;

fn inventory(disks: &str, stacked: &str) -> Inventory {
    let (disks, stacked) = (serde_json::from_str(disks).unwrap(), serde_json::from_str(stacked).unwrap());
    Inventory { disks, stacked, ..Inventory::default() }
}

/// The kernel name contains an exclamation mark for the slash in the path below `/dev`.
#[test]
fn devices_on_a_disk_in_a_subdirectory_are_found() {
    let inventory = inventory(
        r#"[{"name": "cciss!c0d0", "device": "/dev/cciss/c0d0", "size_bytes": 0, "sector_bytes": 512, "table": {"kind": "gpt",
            "partitions": [{"number": 1, "device": "/dev/cciss/c0d0p1", "start_bytes": 0, "size_bytes": 0}]}}]"#,
        r#"[{"name": "dm-0", "device": "/dev/mapper/vg00-root", "kind": "volume", "below": ["cciss!c0d0p1"], "size_bytes": 0}]"#,
    );
    let stack = DeviceStack::new(&inventory);
    let part = DevicePath::from("/dev/cciss/c0d0p1");
    assert_eq!(stack.kernel_name(&part), "cciss!c0d0p1");
    assert_eq!(stack.disks_below(&"dm-0".into()), ["cciss!c0d0".into()].into());
    assert_eq!(stack.holders(&stack.kernel_name(&part)), ["dm-0".into()].into());
    assert_eq!(stack.topmost_first(&"cciss!c0d0".into()), ["dm-0", "cciss!c0d0p1", "cciss!c0d0"]);
}

#[test]
fn holders_and_members_contribute_to_the_stack() {
    let inventory = inventory(
        r#"[{"name": "sda", "device": "/dev/sda", "size_bytes": 0, "sector_bytes": 512, "uses": [{"holder": "md9"}]},
            {"name": "sdb", "device": "/dev/sdb", "size_bytes": 0, "sector_bytes": 512, "uses": [{"holder": "sda"}]}]"#,
        r#"[{"name": "md9", "device": "/dev/md9", "kind": "array", "below": ["sdb", "sdx"], "size_bytes": 0}]"#,
    );
    let stack = DeviceStack::new(&inventory);
    let disks = |name: &str| stack.disks_below(&name.into()).iter().map(KernelName::to_string).collect::<Vec<_>>();
    assert_eq!(disks("md9"), ["sda", "sdb", "sdx"]);
    assert_eq!(disks("sda"), ["sda"], "a disk is not on top of anything");
    assert_eq!(disks("nobody"), ["nobody"]);
}

#[test]
fn mapper_name_decodes_to_group_and_volume() {
    for (mapping, name) in [
        ("vg0-lv--0", Some("vg0/lv-0")),
        ("csi--lvm-varlib", Some("csi-lvm/varlib")),
        ("a--b--c-d", Some("a-b-c/d")),
        ("mpatha", None),
        ("", None),
    ] {
        assert_eq!(decode_mapping_name(mapping).as_deref(), name, "{mapping}");
    }
}

/// Generates inventories with disks `a` and `b`, each with one partition, and with mappings on arbitrary devices,
/// including themselves and unknown devices.
fn any_inventory() -> impl Strategy<Value = Inventory> {
    let names = || proptest::sample::select(vec!["a", "a1", "b", "b1", "d0", "d1", "d2", "d3", "d4", "x", "y"]);
    let links = move || proptest::collection::vec(names(), 0..4);
    proptest::collection::vec((links(), links()), 9..=9).prop_map(|links| {
        let uses =
            |index: usize| links[index].1.iter().map(|name| DeviceUse::Holder((*name).into())).collect::<Vec<_>>();
        let part = |disk: &str, index: usize| DiskPartition {
            device: format!("/dev/{disk}1").into(),
            uses: uses(index),
            ..DiskPartition::default()
        };
        let disk = |name: &str, index: usize| InventoryDisk {
            name: name.into(),
            device: format!("/dev/{name}").into(),
            uses: uses(index),
            table: Some(DiskTable { partitions: vec![part(name, index + 2)], ..DiskTable::default() }),
            ..InventoryDisk::default()
        };
        let mapping = |number: usize| StackedDevice {
            name: format!("d{number}").as_str().into(),
            device: format!("/dev/mapper/d{number}").into(),
            kind: StackedDeviceKind::Other,
            below: links[4 + number].0.iter().map(|name| (*name).into()).collect(),
            uses: uses(4 + number),
            ..StackedDevice::default()
        };
        Inventory {
            disks: vec![disk("a", 0), disk("b", 1)],
            stacked: (0..5).map(mapping).collect(),
            ..Inventory::default()
        }
    })
}

/// Returns the expected result of [`DeviceStack::disks_below`], by a separate walk.
fn walked_disks(stack: &DeviceStack, name: &KernelName) -> BTreeSet<KernelName> {
    let below = |node: &usize| match &stack.graph.nodes[*node] {
        LayerNode { item: StackUnit::Disk(_), .. } => Vec::new(),
        node => node.below.clone(),
    };
    match stack.graph.find(name) {
        Some(node) => {
            traversal::find_ends([node], below).into_iter().map(|node| stack.graph.nodes[node].name.clone()).collect()
        }
        None => [name.clone()].into(),
    }
}

fn walked_holders(stack: &DeviceStack, name: &KernelName) -> BTreeSet<KernelName> {
    traversal::reach_all([name.clone()], |name| stack.holders(name).into_iter().collect())
}

fn walked_one_thing(stack: &DeviceStack, name: &KernelName, other: &KernelName) -> bool {
    walked_disks(stack, name).contains(other)
        || walked_disks(stack, other).contains(name)
        || !walked_holders(stack, name).is_disjoint(&walked_holders(stack, other))
}

proptest! {
    #[test]
    fn index_results_match_those_of_traversals(inventory in any_inventory()) {
        let stack = DeviceStack::new(&inventory);
        let names = ["a", "a1", "b", "b1", "d0", "d1", "d2", "d3", "d4", "x", "y", "z"].map(KernelName::from);
        let combined = stack.combine_values(|disk| u8::from(*disk == "a") + 2 * u8::from(*disk == "b"));
        let mut apart: Vec<&KernelName> = Vec::new();
        for name in &names {
            let disks = walked_disks(&stack, name);
            prop_assert_eq!(stack.disks_below(name), disks.clone());
            let value = u8::from(disks.contains("a")) + 2 * u8::from(disks.contains("b"));
            prop_assert_eq!(stack.combined_value(&combined, name).unwrap_or_default(), value);
            for other in &names {
                prop_assert_eq!(stack.is_one_object(name, other), walked_one_thing(&stack, name, other));
                let mut both = walked_disks(&stack, other);
                both.extend(disks.clone());
                prop_assert_eq!(stack.disks_below_all([name, other]), both);
            }
            if !apart.iter().any(|seen| walked_one_thing(&stack, seen, name)) {
                apart.push(name);
            }
            prop_assert_eq!(stack.kernel_name(&name.device_path()), inventory.resolve_kernel_name(&name.device_path()));
        }
        prop_assert_eq!(stack.count_distinct(&names), apart.len());
    }

    /// If several stacks are stopped one after the other, each device is stopped once, in the order of the complete
    /// stacks.
    #[test]
    fn already_stopped_devices_are_omitted(inventory in any_inventory()) {
        let stack = DeviceStack::new(&inventory);
        let (mut seen, mut known) = (BTreeSet::new(), BTreeSet::new());
        for name in ["d1", "a", "b", "d4", "d0"].map(KernelName::from) {
            let all = stack.topmost_first(&name).into_iter().filter(|name| seen.insert(name.clone()));
            let all: Vec<KernelName> = all.collect();
            let new = stack.topmost_first_except(&known, &name);
            known.extend(new.iter().cloned());
            prop_assert_eq!(new, all);
        }
    }
}
