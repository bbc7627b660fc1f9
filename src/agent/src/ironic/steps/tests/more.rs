//! Arrays, images of whole disks, files, and disks that are left alone.

use super::*;
use common::sync::lock_mutex;

/// A partition for each array on every disk, and the system on the one for it.
fn two_arrays() -> Value {
    json!({"logical_disks": [
        {"size_gb": 10, "raid_level": "1", "controller": "software", "is_root_volume": true},
        {"size_gb": "MAX", "raid_level": "0", "controller": "software", "volume_name": "data"},
    ]})
}

#[test]
fn arrays_make_the_layout_of_a_deploy_in_either_words() {
    let disks = two_arrays()["logical_disks"].clone();
    for (step, args, told) in [
        ("raid.apply_configuration", json!({"raid_config": two_arrays(), "delete_existing": true}), two_arrays()),
        ("create_configuration", json!({"logical_disks": disks, "delete_configuration": true}), two_arrays()),
    ] {
        let bench = Bench::with(Paper::new(machine("five-sata")));
        assert_eq!(bench.run(step, args).unwrap(), told, "{step}");
        let ran = bench.ran();
        assert!(ran.contains(&StageName::StorageRaid) && !ran.contains(&StageName::ImageBurn), "{ran:?}");
        assert!(!bench.steps.is_whole());
        bench.run("burn_image", json!({"image": IMAGE})).unwrap();
        assert!(bench.steps.is_whole());
    }
    // Ironic hands a part of it on in one way, and all of it in another one.
    let whole = json!({"target_raid_config": two_arrays()});
    for node in [whole.clone(), json!({"driver_internal_info": whole, "target_raid_config": {}})] {
        let mut bench = Bench::with(Paper::new(machine("five-sata")));
        bench.node = map(node);
        assert_eq!(bench.run("raid.create_configuration", json!({})).unwrap(), two_arrays());
        assert_eq!(*bench.hands.left.lock().unwrap(), [true]);
        assert!(bench.run("burn_image", json!({"image": IMAGE})).unwrap_err().contains("is nothing"));
    }
}

#[test]
fn arrays_that_cannot_be_are_refused_with_every_reason() {
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
fn only_disks_below_arrays_lose_them_and_one_that_is_left_alone_keeps_all() {
    let bench = Bench::with(Paper::new(machine("raid-lvm")));
    let result = bench.run("raid.delete_configuration", json!({})).unwrap();
    let below: Vec<&str> =
        result["erased"].as_array().unwrap().iter().filter_map(|one| one["device"].as_str()).collect();
    assert_eq!(below, *bench.hands.wiped.lock().unwrap());
    assert!(!below.is_empty());
    let bench = Bench::with(Paper::new(machine("five-sata")));
    assert_eq!(bench.run("raid.delete_configuration", json!({})).unwrap()["erased"], json!([]));

    let mut bench = Bench::with(Paper::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"skip_block_devices": [{"name": "/dev/sda"}]}));
    bench.run("raid.apply_configuration", json!({"raid_config": two_arrays()})).unwrap();
    assert!(!bench.hands.wiped.lock().unwrap().contains(&"/dev/sda".to_owned()));
}

/// As the conductor's own step of that name hands it over.
fn whole_image() -> Value {
    json!({"image_info": {"id": "disk.raw", "urls": ["http://h/disk.raw"], "disk_format": "raw",
        "os_hash_algo": "sha256", "os_hash_value": "ab", "node_uuid": "n-1"}, "configdrive": null})
}

#[test]
fn an_image_of_a_whole_disk_needs_no_layout() {
    let mut bench = Bench::with(Paper::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    bench.run("write_image", whole_image()).unwrap();
    assert_eq!(*bench.hands.wiped.lock().unwrap(), ["/dev/sdc"]);
    let ran = bench.ran();
    assert!(ran.contains(&StageName::ImageBurn) && !ran.contains(&StageName::TargetInstaller), "{ran:?}");
    assert!(lock_mutex(&bench.steps.written).is_some() && bench.steps.is_whole());
    // Whatever begins anew is another deploy.
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(lock_mutex(&bench.steps.written).is_none());
    bench.ran();
    let error = bench.run("write_image", whole_image()).unwrap_err();
    assert!(error.contains("continue with burn_image"), "{error}");
    assert_eq!(bench.ran(), []);
    bench
        .node
        .insert("properties".into(), json!({"skip_block_devices": [{"rotational": true}, {"rotational": false}]}));
    bench.steps.release_all();
    assert!(bench.run("write_image", whole_image()).unwrap_err().contains("no disk that may be written"));
}

/// The firmware is told of an image as it is when that is on its disk, and of what a layout has made with it.
#[test]
fn the_firmware_is_told_what_a_written_image_has() {
    let mut paper = Paper::new(machine("five-sata"));
    paper.inventory.system.firmware = model::inventory::FirmwareType::Uefi;
    paper.brings = machine("installed-default").disks[0].table.clone();
    let mut bench = Bench::with(paper);
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    let error = bench.steps.install_bootloader(false).unwrap_err().to_string();
    assert!(error.contains("no image was installed in this boot"), "{error}");
    bench.run("write_image", whole_image()).unwrap();
    bench.ran();
    bench.steps.install_bootloader(false).unwrap();
    let ran = bench.ran();
    assert!(ran.contains(&StageName::BootEntries) && !ran.iter().any(|stage| stage.is_destructive()), "{ran:?}");
    assert_eq!(*bench.hands.left.lock().unwrap(), [true, true]);
    // Another firmware looks for no entry.
    bench.steps.install_bootloader(true).unwrap();
    assert_eq!(bench.ran(), []);

    let mut paper = Paper::new(machine("five-sata"));
    paper.inventory.system.firmware = model::inventory::FirmwareType::Uefi;
    let mut table = machine("installed-default").disks[0].table.clone().unwrap();
    table.partitions.remove(0);
    paper.brings = Some(table);
    let bench = Bench::with(paper);
    bench.run("write_image", whole_image()).unwrap();
    bench.ran();
    let error = bench.steps.install_bootloader(false).unwrap_err().to_string();
    assert!(error.contains("the image has no EFI system partition"), "{error}");
    assert_eq!(bench.ran(), []);

    let bench = Bench::new();
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(bench.steps.install_bootloader(false).is_err());
    bench.run("burn_image", json!({"image": IMAGE})).unwrap();
    bench.ran();
    bench.steps.install_bootloader(false).unwrap();
    assert_eq!(bench.ran(), []);
}

#[test]
fn files_go_into_what_is_whole() {
    let bench = Bench::with(Paper::new(machine("installed-default")));
    let files = json!({"files": [{"path": "/etc/motd", "partition": "/dev/sda2", "content": "aGVsbG8="}]});
    assert_eq!(bench.run("inject_files", files.clone()).unwrap(), json!({"filesystems": 1}));
    assert!(bench.ran().contains(&StageName::TargetFiles));
    for (place, why) in [(json!(null), "must specify its partition"), (json!(9), "is not a disk, disk partition")] {
        let file = json!({"path": "/etc/motd", "partition": place, "content": ""});
        let error = bench.run("inject_files", json!({"files": [file]})).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    bench.ran();
    assert!(bench.run("inject_files", files).unwrap_err().contains("has not reached the step finish"));
    assert_eq!(bench.ran(), []);
}

#[test]
fn a_disk_that_the_node_leaves_alone_is_kept_by_a_reinstall() {
    let mut bench = Bench::with(Paper::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"skip_block_devices": [{"name": "/dev/sdb"}]}));
    let mut layout = one_disk();
    let data = json!({"device": "/dev/sdb", "wipeonreinstall": true, "partitions": []});
    layout["disks"].as_array_mut().unwrap().push(data);
    let told = |mode: &str| json!({"layout": layout, "mode": mode, "without_marker": mode == "reinstall"});
    let error = bench.run("apply_layout", told("install")).unwrap_err();
    assert!(error.contains("skip_block_devices lists /dev/sdb"), "{error}");
    bench.run("apply_layout", told("reinstall")).unwrap();
    assert_eq!(*bench.hands.wiped.lock().unwrap(), ["/dev/sda"]);
    assert_eq!(*bench.hands.opens.lock().unwrap(), [false, true], "a reinstall looks into what it keeps");
}
