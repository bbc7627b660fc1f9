//! Tests of the arrays of `target_raid_config`, and of deploys onto them.

use super::*;

/// Returns a configuration of two arrays on all disks. The first array contains the system.
fn two_arrays() -> Value {
    json!({"logical_disks": [
        {"size_gb": 10, "raid_level": "1", "controller": "software", "is_root_volume": true},
        {"size_gb": "MAX", "raid_level": "0", "controller": "software", "volume_name": "data"},
    ]})
}

#[test]
fn arrays_become_the_layout_with_either_step_name() {
    let disks = two_arrays()["logical_disks"].clone();
    for (step, args, told) in [
        ("raid.apply_configuration", json!({"raid_config": two_arrays(), "delete_existing": true}), two_arrays()),
        ("create_configuration", json!({"logical_disks": disks, "delete_configuration": true}), two_arrays()),
    ] {
        let bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
        assert_eq!(bench.run(step, args).unwrap(), told, "{step}");
        let ran = bench.ran();
        assert!(ran.contains(&StageName::StorageRaid) && !ran.contains(&StageName::ImageBurn), "{ran:?}");
        assert!(!bench.steps.is_complete_or_unstarted());
        bench.run("burn_image", json!({"image": IMAGE})).unwrap();
        assert!(bench.steps.is_complete_or_unstarted());
    }
    // Ironic passes a part of the configuration in one field, and all of it in another.
    let whole = json!({"target_raid_config": two_arrays()});
    for node in [whole.clone(), json!({"driver_internal_info": whole, "target_raid_config": {}})] {
        let mut bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
        bench.node = map(node);
        assert_eq!(bench.run("raid.create_configuration", json!({})).unwrap(), two_arrays());
        assert_eq!(*bench.actions.left.lock().unwrap(), [true]);
        assert!(bench.run("burn_image", json!({"image": IMAGE})).unwrap_err().contains("is nothing"));
    }
}

#[test]
fn impossible_arrays_are_refused_with_every_reason() {
    let bench = Bench::new();
    for (step, args, why) in [
        ("raid.create_configuration", json!({}), "the node lacks a target_raid_config"),
        ("raid.apply_configuration", json!({}), "raid_config: "),
        ("raid.apply_configuration", json!({"raid_config": two_arrays(), "delete_existing": false}), "delete_existing"),
        ("raid.apply_configuration", json!({"raid_config": two_arrays()}), "nothing was written"),
        ("create_configuration", json!({"logical_disks": [{"size_gb": 0, "raid_level": "7"}]}), "raid_level"),
    ] {
        let error = bench.run(step, args).unwrap_err();
        assert!(error.contains(why), "{step}: {error}");
    }
    assert_eq!(bench.ran(), []);
}

#[test]
fn only_unskipped_disks_below_arrays_are_erased() {
    let bench = Bench::with(SimulatedMachine::new(machine("raid-lvm")));
    let result = bench.run("raid.delete_configuration", json!({})).unwrap();
    let below: Vec<&str> =
        result["erased"].as_array().unwrap().iter().filter_map(|one| one["device"].as_str()).collect();
    assert_eq!(below, *bench.actions.wiped.lock().unwrap());
    assert!(!below.is_empty());
    let bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    assert_eq!(bench.run("raid.delete_configuration", json!({})).unwrap()["erased"], json!([]));

    let mut bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"skip_block_devices": [{"name": "/dev/sda"}]}));
    bench.run("raid.apply_configuration", json!({"raid_config": two_arrays()})).unwrap();
    assert!(!bench.actions.wiped.lock().unwrap().contains(&"/dev/sda".to_owned()));
}
