//! Which disk is meant.

use super::stacks::{five, whole};
use super::*;

#[test]
fn disks_are_found_by_hints() {
    let mut inventory = five();
    inventory.disks[2].serial = "S45N".to_owned();
    inventory.disks[2].transport = "sata".to_owned();
    let found = |hint: &str, value: &str| {
        let wanted = Disk { hints: [(hint.to_owned(), value.to_owned())].into(), ..whole("/dev/os") };
        find::disk(&wanted, &inventory).map(|disk| disk.name.clone())
    };
    assert_eq!(found("serial", "s45n"), Ok("sdc".to_owned()));
    let none = found("serial", "other").unwrap_err();
    assert!(none.starts_with("device:/dev/os does not exist on given hardware: no disk matches its hints: /dev/sda (serial other: it has none); "), "{none}");
    let several = found("size", ">= 1").unwrap_err();
    assert!(several.contains("its hints match 6 disks: /dev/sda (21.0 GB); "), "{several}");
    assert!(several.contains("/dev/sdc (21.0 GB) serial S45N, tran sata; "), "{several}");
}
