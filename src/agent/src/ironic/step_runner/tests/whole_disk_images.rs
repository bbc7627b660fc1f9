//! Images of whole disks.

use super::*;
use operations::DiskIdentity;

/// Returns the arguments that the conductor's own step `write_image` passes.
fn whole_image() -> Value {
    json!({"image_info": {"id": "disk.raw", "urls": ["http://h/disk.raw"], "disk_format": "raw",
        "os_hash_algo": "sha256", "os_hash_value": "ab", "node_uuid": "n-1"}, "configdrive": null})
}

/// Returns a UEFI machine that boots the image after it was written to `/dev/sdc`.
fn bench_with_bootable_image() -> Bench {
    let mut simulated = SimulatedMachine::new(machine("five-sata"));
    simulated.inventory.system.firmware = model::inventory::FirmwareType::Uefi;
    simulated.brings = machine("installed-default").disks[0].table.clone();
    let mut bench = Bench::with(simulated);
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    bench
}

#[test]
fn whole_disk_image_needs_no_layout() {
    let mut bench = Bench::with(SimulatedMachine::new(machine("five-sata")));
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    bench.run("write_image", whole_image()).unwrap();
    assert_eq!(*bench.actions.wiped.lock().unwrap(), ["/dev/sdc"]);
    let ran = bench.ran();
    assert!(ran.contains(&StageName::ImageBurn) && !ran.contains(&StageName::TargetInstaller), "{ran:?}");
    assert!(lock_mutex(&bench.steps.written).is_some() && bench.steps.is_complete_or_unstarted());
    // `apply_layout` is the first step of a deploy, so it starts another deploy.
    bench.run("apply_layout", json!({"layout": one_disk()})).unwrap();
    assert!(lock_mutex(&bench.steps.written).is_none());
    bench.ran();
    let error = bench.run("write_image", whole_image()).unwrap_err();
    assert!(error.contains("continue with `burn_image`"), "{error}");
    assert_eq!(bench.ran(), []);
    bench
        .node
        .insert("properties".into(), json!({"skip_block_devices": [{"rotational": true}, {"rotational": false}]}));
    bench.steps.release_all();
    assert!(bench.run("write_image", whole_image()).unwrap_err().contains("no writable disk"));
}

/// After a whole-disk image was written, the boot entry refers to the partitions of the image. After an installation
/// with a layout, no further boot entry is created.
#[test]
fn boot_entry_refers_to_partitions_of_the_written_image() {
    let bench = bench_with_bootable_image();
    let error = bench.steps.install_bootloader(false).unwrap_err().to_string();
    assert!(error.contains("no image was installed since this machine booted"), "{error}");
    bench.run("write_image", whole_image()).unwrap();
    bench.ran();
    bench.steps.install_bootloader(false).unwrap();
    let ran = bench.ran();
    assert!(ran.contains(&StageName::BootEntries) && !ran.iter().any(|stage| stage.is_destructive()), "{ran:?}");
    assert_eq!(*bench.actions.left.lock().unwrap(), [true, true]);
    // A BIOS does not use boot entries.
    bench.steps.install_bootloader(true).unwrap();
    assert_eq!(bench.ran(), []);

    let mut simulated = SimulatedMachine::new(machine("five-sata"));
    simulated.inventory.system.firmware = model::inventory::FirmwareType::Uefi;
    let mut table = machine("installed-default").disks[0].table.clone().unwrap();
    table.partitions.remove(0);
    simulated.brings = Some(table);
    let bench = Bench::with(simulated);
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
fn partly_written_image_gets_no_boot_entry() {
    let bench = bench_with_bootable_image();
    bench.run("write_image", whole_image()).unwrap();
    *bench.actions.fails_at.lock().unwrap() = Some(StageName::ImageBurn);
    bench.run("write_image", whole_image()).unwrap_err();
    *bench.actions.fails_at.lock().unwrap() = None;
    bench.ran();
    let error = bench.steps.install_bootloader(false).unwrap_err().to_string();
    assert!(error.contains("no image was installed since this machine booted"), "{error}");
    assert_eq!(bench.ran(), []);
}

/// After a disk was reconnected, its kernel name may belong to another disk.
#[test]
fn boot_entry_refers_only_to_the_written_disk() {
    let bench = bench_with_bootable_image();
    bench.run("write_image", whole_image()).unwrap();
    bench.ran();
    let mut other = bench.actions.inventory.disks.iter().find(|disk| disk.name == "sdc").unwrap().clone();
    other.diskseq += 1;
    lock_mutex(&bench.steps.written).as_mut().unwrap().disk = DiskIdentity::from_disk(&other);
    let error = bench.steps.install_bootloader(false).unwrap_err().to_string();
    assert!(error.contains("/dev/sdc is no longer the disk to which the image was written"), "{error}");
    assert_eq!(bench.ran(), []);
}

/// An image of a whole disk has no marker. A marker on another disk belongs to an earlier installation.
#[test]
fn files_are_not_injected_into_an_earlier_installation() {
    let mut simulated = SimulatedMachine::new(machine("five-sata"));
    let marker = InstallMarker { machine: "n-1".into(), ..InstallMarker::default() };
    let device = "/dev/sda".into();
    simulated.inventory.filesystems =
        vec![FilesystemContents { device, marker: Some(marker), ..FilesystemContents::default() }];
    let mut bench = Bench::with(simulated);
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    bench.run("write_image", whole_image()).unwrap();
    bench.ran();
    let error = bench.run("inject_files", json!({"files": [{"path": "/etc/motd", "content": ""}]})).unwrap_err();
    assert!(error.contains("is on /dev/sda, but an image was written to /dev/sdc in this boot"), "{error}");
    assert_eq!(bench.ran(), []);
}

/// The hints match several disks after the image was written, but the files belong to the written disk.
#[test]
fn files_are_injected_into_the_written_disk() {
    let mut simulated = SimulatedMachine::new(machine("five-sata"));
    let mut table = machine("installed-default").disks[0].table.clone().unwrap();
    for partition in &mut table.partitions {
        partition.device = format!("/dev/sdc{}", partition.number).into();
    }
    simulated.brings = Some(table);
    let mut bench = Bench::with(simulated);
    bench.node.insert("properties".into(), json!({"root_device": {"name": "/dev/sdc"}}));
    bench.run("write_image", whole_image()).unwrap();
    bench.node.insert("properties".into(), json!({"root_device": {"tran": "sata"}}));
    let files = json!({"files": [{"path": "/etc/motd", "partition": 2, "content": "aGVsbG8="}]});
    assert_eq!(bench.run("inject_files", files.clone()).unwrap(), json!({"filesystems": 1}));
    // Without the written image, it is unknown which disk is meant.
    bench.steps.release_all();
    let error = bench.run("inject_files", files).unwrap_err();
    assert!(error.contains("root_device is ambiguous"), "{error}");
}
