//! Tests of the machine's identification, and of messages for the operator.

use super::*;
use std::fs;

#[test]
fn uuid_and_linked_nics_identify_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let sys = directory.path();
    let write = |path: &str, text: &str| {
        let path = sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let error = identify_machine(sys, None).unwrap_err().to_string();
    assert!(error.contains("specify its id with --machine"), "{error}");
    for (name, mac, carrier) in [("eth0", "52:54:00:AA:00:01", "0"), ("eth1", "52:54:00:AA:00:02", "1")] {
        write(&format!("class/net/{name}/address"), mac);
        write(&format!("class/net/{name}/carrier"), carrier);
        write(&format!("class/net/{name}/device/vendor"), "0x1af4");
    }
    write("class/net/lo/address", "00:00:00:00:00:00");
    let macs = ["52:54:00:aa:00:02", "52:54:00:aa:00:01"].map(str::to_owned).to_vec();
    assert_eq!(identify_machine(sys, None).unwrap(), (None, macs.clone()));
    write("class/dmi/id/product_uuid", "4C4C4544-0051-3010-8052-B4C04F4E4232\n");
    assert_eq!(identify_machine(sys, None).unwrap(), (Some("4c4c4544-0051-3010-8052-b4c04f4e4232".to_owned()), macs));
    let named = Uuid::from_u128(7);
    assert_eq!(identify_machine(sys, Some(named)).unwrap().0, Some(named.to_string()));
}

#[test]
fn refusal_names_the_command_for_an_order() {
    let text = nothing_ordered_message("machine 4c4c: nothing is ordered", Some("4c4c"));
    assert!(text.contains("4c4c: nothing is ordered\nNothing was changed."), "{text}");
    assert!(text.ends_with("drophammer machine reinstall 4c4c --image IMAGE"), "{text}");
    assert!(nothing_ordered_message("no", None).contains("reinstall ID --image"));
}

#[test]
fn preview_names_both_boot_methods() {
    let text = describe_dry_run(&StopMethod::Systemd, &Err("this machine was booted in BIOS mode".to_owned()));
    for part in
        ["dry run", "systemctl kexec", "systemctl reboot", "BIOS mode: the firmware's boot order would determine"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
