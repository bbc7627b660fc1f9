//! Erasure of machines with disks that are attached by USB.

use super::*;

/// An external disk need not belong to the node. A root disk that `root_device` selects belongs to the node.
#[test]
fn usb_disk_is_erased_only_if_root_device_selects_it() {
    let usb = || {
        let mut inventory = machine("five-sata");
        inventory.disks[4].transport = "usb".to_owned();
        Bench::with(SimulatedMachine::new(inventory))
    };
    for step in ["erase_devices", "erase_devices_metadata"] {
        let bench = usb();
        let result = bench.run(step, json!({})).unwrap();
        assert_eq!(result["left_alone"], json!(["sde"]), "{step}");
        assert_eq!(*bench.actions.wiped.lock().unwrap(), ["/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"]);
        let mut bench = usb();
        bench.node.insert("properties".into(), json!({"root_device": {"tran": "usb"}}));
        let result = bench.run(step, json!({})).unwrap();
        assert_eq!(result["left_alone"], json!([]), "{step}");
        assert_eq!(bench.actions.wiped.lock().unwrap().len(), 5, "{step}");
    }
}
