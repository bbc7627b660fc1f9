//! eMMC: its boot areas are not used as disks, although the kernel lists them as disks.

use super::*;

#[test]
fn only_the_user_data_area_of_an_emmc_is_a_disk() {
    let inventory = recorded_inventory("hardware/emmc.json");
    assert_eq!(inventory.disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>(), ["mmcblk0"]);
    let planned = |device: &str, hints: &str| {
        let partition =
            |number| if hints.is_empty() { format!("{device}p{number}") } else { format!("{device}{number}") };
        make(
            &layout_of(&format!(
                "id: emmc\nconstraints: {{sizes: [], images: {{}}}}\ndisks:\n- device: {device}\n  hints: {{{hints}}}\n  \
                 wipeonreinstall: true\n  partitions: [{{number: 1, size: 500, gpttype: ef00}}, {{number: 2, size: 0}}]\n\
                 filesystems:\n- {{path: /boot/efi, device: {}, format: vfat}}\n- {{path: /, device: {}, format: ext4}}\n",
                partition(1),
                partition(2)
            )),
            &inventory,
            InstallMode::Install,
        )
    };
    for hints in [
        "rotational: false",
        "size: smallest",
        "size: \">= 16\"",
        "name: /dev/mmcblk0",
        "name: \"<in> mmcblk\"",
        "tran: mmc",
    ] {
        let plan = planned("os", hints).unwrap_or_else(|refusal| panic!("{hints}: {refusal}"));
        assert_eq!(verdicts(&plan), [DiskVerdict::Wipe], "{hints}");
    }
    planned("/dev/mmcblk0", "").unwrap();
    for (device, hints) in [("/dev/mmcblk0boot0", ""), ("os", "name: /dev/mmcblk0boot0"), ("os", "tran: sata")] {
        let refused = reasons(planned(device, hints));
        assert!(refused[0].contains("does not exist on given hardware"), "{refused:?}");
    }
}
