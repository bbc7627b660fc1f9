//! Properties of the graph of all layouts.

use super::testing::*;
use super::*;
use crate::layout::RaidLevel;
use proptest::prelude::*;

#[test]
fn graph_links_disks_partitions_arrays_and_filesystems() {
    let seeds = seeds();
    let (_, layout) = seeds.iter().find(|(name, _)| *name == "storage").unwrap();
    let graph = LayoutGraph::from_layout(layout);
    let names: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
    let devices = ["/dev/sda", "/dev/sdb", "/dev/sda1", "/dev/sda2", "/dev/sdb1", "/dev/sdb2", "/dev/md1", "/dev/md2"];
    assert_eq!(names[..8], devices);
    assert_eq!(names[8..], ["/boot/efi", "/"]);
    assert_eq!(graph.nodes[6].below, [2, 4], "md1 of sda1 and sdb1");
    assert_eq!(graph.nodes[6].above, [8], "/boot/efi on md1");
    assert_eq!(graph.roots().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn graph_of_a_valid_layout_has_no_missing_device() {
    for (name, layout) in seeds().into_iter().chain(rich()) {
        let graph = LayoutGraph::from_layout(&layout);
        assert!(graph.nodes.iter().all(|node| node.item != LayoutItem::Missing), "{name}");
    }
}

#[test]
fn spares_are_the_last_devices_of_an_array() {
    let layout = nested();
    let graph = LayoutGraph::from_layout(&layout);
    let node = |name: &str| graph.nodes.iter().position(|node| node.name == name).unwrap();
    let md6 = node("/dev/md6");
    let spares: Vec<usize> = (0..graph.nodes.len()).filter(|member| graph.is_spare(md6, *member)).collect();
    assert_eq!(spares, [node("/dev/nvme5n1"), node("/dev/nvme6n1")]);
}

#[test]
fn cycle_of_arrays_is_broken() {
    let layout = Layout {
        raid: vec![
            raid("/dev/md0", RaidLevel::Raid1, &["/dev/md1"], 0, &[]),
            raid("/dev/md1", RaidLevel::Raid1, &["/dev/md0", "/dev/md1"], 0, &[]),
        ],
        ..Layout::default()
    };
    let graph = LayoutGraph::from_layout(&layout);
    assert_eq!(graph.nodes.iter().filter(|node| node.item == LayoutItem::Missing).count(), 2);
    assert_eq!(graph.roots().count(), 2);
}

proptest! {
    #[test]
    fn every_node_is_reachable_from_a_root(layout in any_layout()) {
        let graph = LayoutGraph::from_layout(&layout);
        let mut reached = vec![false; graph.nodes.len()];
        let mut open: Vec<usize> = graph.roots().collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                open.extend(&graph.nodes[node].above);
            }
        }
        prop_assert!(reached.iter().all(|reached| *reached));
        for (index, node) in graph.nodes.iter().enumerate() {
            prop_assert!(node.above.iter().all(|above| graph.nodes[*above].below.contains(&index)));
            prop_assert!(node.below.iter().all(|below| graph.nodes[*below].above.contains(&index)));
            prop_assert!(!node.below.iter().any(|below| graph.reach_below([*below]).contains(&index)), "no cycle");
        }
    }
}
