//! What the agent makes of an allocation.

use super::*;
use crate::inventory::{Disk, Filesystem, Partition, Table};
use crate::marker::Marker;

const LAYOUT: &str = "id: alone
disks: [{device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 0}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4}]
";

fn inventory(marker: Option<Marker>) -> Inventory {
    let part = Partition { number: 1, device: "/dev/sda1".into(), ..Partition::default() };
    let table = Some(Table { kind: "gpt".into(), guid: None, partitions: vec![part] });
    let disk = Disk { name: "sda".into(), device: "/dev/sda".into(), table, ..Disk::default() };
    let filesystem = Filesystem { device: "/dev/sda1".into(), marker, ..Filesystem::default() };
    Inventory { disks: vec![disk], filesystems: vec![filesystem], ..Inventory::default() }
}

/// The server has noted that the first attempt begins, and its answer was lost.
#[test]
fn an_attempt_that_never_heard_the_answer_did_not_begin() {
    let layout = crate::layout::read_yaml(LAYOUT).unwrap().layout;
    let marker = Marker { machine: "m".into(), allocation: "a".into(), order: "o-1".into(), ..Marker::default() };
    for (there, begun) in
        [(Some(marker.clone()), false), (None, true), (Some(Marker { order: "o-2".into(), ..marker }), true)]
    {
        let order = Some(Order { id: "o-2".into(), begun: true, ..Order::default() });
        let mut allocation = Allocation { id: "a".into(), order, reinstall: true, ..Allocation::default() };
        correct_begun("m", &mut allocation, &layout, &inventory(there.clone()));
        let order = allocation.order.as_ref().unwrap();
        assert_eq!((order.begun, waiver(order)), (begun, begun.then_some(Waiver::Begun)), "{there:?}");
    }
}
