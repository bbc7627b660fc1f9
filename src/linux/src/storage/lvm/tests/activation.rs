//! Activation of volumes: with copies that synchronize, without one of the disks, and after an assembly for inspection.

use super::*;

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_copies_synchronize_after_the_next_activation() {
    let disks = TestDisks::take("vda vdb");
    let all = disks.all();
    create_group(&group("vg00", all, "")).unwrap();
    create_volume(&volume("vg00/safe", all, 600, LvmType::Raid1)).unwrap();
    let before = status("/dev/vg00/safe");
    assert!(before.contains(" frozen "), "{before}");
    put("/dev/vg00/safe", 500 << 20, b"content");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(status("/dev/vg00/safe"), before);
    deactivate_group("vg00", all).unwrap();
    activate_volumes("vg00", &words("safe"), all).unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !status("/dev/vg00/safe").contains(" AA 1228800/1228800 idle ") && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
    }
    let after = status("/dev/vg00/safe");
    assert!(after.contains(" AA 1228800/1228800 idle "), "before: {before}, after: {after}");
    assert_eq!(get("/dev/vg00/safe", 500 << 20, 7), b"content");
    deactivate_group("vg00", all).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_group_without_one_of_its_disks_is_activated() {
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    create_group(&group("vg-0", all, "")).unwrap();
    // The volume is on the first two disks.
    create_volume(&volume("vg-0/safe", all, 100, LvmType::Raid1)).unwrap();
    put("/dev/vg-0/safe", 8 << 20, &[7; 4096]);
    deactivate_group("vg-0", all).unwrap();
    for gone in 0..2 {
        let saved = get(&all[gone], 0, 2 << 20);
        signature_wipe::wipe_ends(&all[gone]).unwrap();
        let left: Vec<DevicePath> = all.iter().filter(|disk| **disk != all[gone]).cloned().collect();
        // The disks were assembled for inspection before.
        let mut assembled = crate::storage::read_only_assembly::assemble_read_only(&left).unwrap();
        assembled.unlock_disks().unwrap();
        assert_eq!(assembled.notes, Vec::<String>::new());
        assert_eq!(get("/dev/mapper/vg--0-safe", 8 << 20, 4096), [7; 4096]);
        left.iter().for_each(|disk| release_above(disk).unwrap());
        activate_volumes("vg-0", &words("safe"), &left).unwrap();
        let expected = [" DA ", " AD "][gone];
        assert!(status("/dev/vg-0/safe").contains(expected), "{}", status("/dev/vg-0/safe"));
        assert_eq!(get("/dev/vg-0/safe", 8 << 20, 4096), [7; 4096]);
        put("/dev/vg-0/safe", 16 << 20, &[8; 4096]);
        deactivate_group("vg-0", &left).unwrap();
        verify_unused(&left).unwrap();
        put(&all[gone], 0, &saved);
        activate_volumes("vg-0", &words("safe"), all).unwrap();
        // Wait until the copies are synchronized for the next iteration.
        for _ in 0..100 {
            if status("/dev/vg-0/safe").contains(" AA 204800/204800 ") {
                break;
            }
            let _ =
                ToolCommand::new("lvm").args(["lvchange", "--refresh", "vg-0/safe"]).env("DM_DISABLE_UDEV", "1").run();
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(status("/dev/vg-0/safe").contains(" AA 204800/204800 "), "{}", status("/dev/vg-0/safe"));
        assert_eq!(get("/dev/vg-0/safe", 16 << 20, 4096), [8; 4096]);
        deactivate_group("vg-0", all).unwrap();
    }
    activate_volumes("vg-0", &words("safe"), all).unwrap();
    run_lvm("lvcreate", all, words::<String>("--type linear --size 100m --name only vg-0 /dev/vdb")).unwrap();
    deactivate_group("vg-0", all).unwrap();
    signature_wipe::wipe_ends(&all[1]).unwrap();
    let left = [all[0].clone(), all[2].clone()];
    let error = activate_volumes("vg-0", &words("only"), &left).unwrap_err().to_string();
    assert!(
        error.starts_with("activate logical volumes only of volume group vg-0: ") && error.contains("partial"),
        "{error}"
    );
    // A missing copy of another volume does not prevent the activation.
    activate_volumes("vg-0", &words("safe"), &left).unwrap();
    assert!(fs::metadata("/dev/vg-0/only").is_err());
    deactivate_group("vg-0", &left).unwrap();
}

#[test]
#[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
fn vm_lvm_stack_assembled_for_inspection_is_restarted() {
    let disks = TestDisks::take("vda vdb vdc");
    let all = disks.all();
    let uuid = uuid::Uuid::new_v4();
    let below = operations::CreateArray {
        device: "/dev/md/below".into(),
        level: model::layout::RaidLevel::Raid1,
        metadata: "1.2".into(),
        uuid,
        devices: operations::ArraySlot::parse_list(&all[..2]),
        spares: 0,
        createoptions: vec![],
    };
    mdadm::create_array(&below).unwrap();
    let physical = [below.device.clone(), all[2].clone()];
    create_group(&group("vg00", &physical, "")).unwrap();
    for (name, kind) in
        [("vg00/safe", LvmType::Raid1), ("vg00/fast", LvmType::Striped), ("vg00/plain", LvmType::Linear)]
    {
        create_volume(&volume(name, &physical, 64, kind)).unwrap();
        put(format!("/dev/{name}"), 8 << 20, &[7; 4096]);
    }
    let above = uuid::Uuid::new_v4();
    let make =
        format!("--create /dev/md/above --run --homehost=any --level=1 --raid-devices=2 --uuid={}", above.simple());
    let make = ToolCommand::new("mdadm").args(words::<String>(&make)).args(["/dev/vg00/plain", "missing"]);
    make.env("MDADM_NO_UDEV", "1").run().unwrap();
    mdadm::stop_array(&"/dev/md/above".into()).unwrap();
    deactivate_group("vg00", &physical).unwrap();
    mdadm::stop_array(&"/dev/md/below".into()).unwrap();

    let mut looked = crate::storage::read_only_assembly::assemble_read_only(all).unwrap();
    looked.unlock_disks().unwrap();
    let found = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assert!(found.arrays.iter().filter(|array| [uuid, above].contains(&array.uuid)).all(|it| it.running.is_some()));
    assert!(found.groups[0].volumes.iter().all(|volume| volume.running.is_some()), "{:?}", found.groups);
    all.iter().for_each(|disk| crate::storage::teardown::release_above(disk).unwrap());
    mdadm::assemble_array(&"/dev/md/below".into(), uuid, &all[..2]).unwrap();
    activate_volumes("vg00", &words("safe fast plain"), &physical).unwrap();
    mdadm::assemble_array(&"/dev/md/above".into(), above, &words("/dev/vg00/plain")).unwrap();
    for name in ["safe", "fast"] {
        assert_eq!(get(format!("/dev/vg00/{name}"), 8 << 20, 4096), [7; 4096], "{name}");
        put(format!("/dev/vg00/{name}"), 8 << 20, &[9; 4096]);
    }
    mdadm::stop_array(&"/dev/md/above".into()).unwrap();
    deactivate_group("vg00", &physical).unwrap();
    mdadm::stop_array(&"/dev/md/below".into()).unwrap();
    verify_unused(all).unwrap();
}
