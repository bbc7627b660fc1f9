//! Requests over IPMI. A script replaces ipmitool and simulates a controller. Each quirk of a controller is shell
//! code in this script.

use super::*;
use PowerAction::{Cycle, Off, On, Pxe};
use model::bmc::BmcAddress;
use model::inventory::FirmwareType;
use model::secret_text::SecretText;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use testing::executables::write_executable;

const GUID: &str = "4c4c4544-0051-3010-8031-b2c04f333633";

const CONTROLLER: &str = r#"
case "$*" in
*"power status") echo "Chassis Power is $(cat power)" ;;
*"power on") echo on >power ;;
*"power off") echo off >power ;;
*"bootdev none") echo 8000 >flags ;;
*"bootdev pxe options=efiboot") echo a004 >flags ;;
*"bootdev pxe") echo 8004 >flags ;;
*"bootparam get 5") printf 'Boot parameter version: 1\n Boot parameter data: %s000000\n' "$(cat flags)" ;;
*"mc guid") echo "System GUID  : $(cat guid)" ;;
esac
"#;

/// Returns a quirk: the controller rejects these requests with this message.
fn rejects(requests: &str, message: &str) -> String {
    format!("case \"$*\" in {requests}) echo '{message}' >&2; exit 1 ;; esac")
}

/// Starts a controller whose machine has this power state.
fn controller(power: &str, quirk: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [("power", power), ("flags", "8000"), ("guid", GUID), ("log", "")] {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let script =
        format!("#!/bin/sh\ncd {}\necho \"$IPMI_PASSWORD $*\" >>log\n{quirk}\n{CONTROLLER}", dir.path().display());
    write_executable(&dir.path().join("ipmitool"), &script);
    dir
}

fn perform(dir: &Path, action: PowerAction, target: &TargetMachine) -> Result<Option<String>> {
    let at = BmcAddress::Ipmi { host: "h".to_owned(), port: None };
    let bmc = Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false };
    perform_action(dir.join("ipmitool"), &bmc, ("h", Some(9001)), (action, target), &Unguarded)
}

fn perform_anywhere(dir: &TempDir, action: PowerAction) -> Result<Option<String>> {
    perform(dir.path(), action, &TargetMachine::default())
}

/// Returns the requests that change the machine, without the arguments that all requests have.
fn changes(dir: &TempDir) -> Vec<String> {
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let all = log.lines().map(|line| line.strip_prefix("hunter2 -I lanplus -H h -p 9001 -U admin -E ").expect(line));
    let is_read = |line: &&str| ["power status", "get 5", "mc guid"].iter().any(|read| line.ends_with(read));
    all.filter(|line| !is_read(line)).map(str::to_owned).collect()
}

const KEEP_FLAGS: &str = "raw 0x00 0x08 0x03 0x08";
const PXE_EFI: &str = "chassis bootdev pxe options=efiboot";

#[test]
fn power_state_is_read_without_changes() {
    let target = TargetMachine { uuid: Some(GUID.to_owned()), ..TargetMachine::default() };
    for (reported, expected) in [("on", PowerState::On), ("off", PowerState::Off), ("", PowerState::Unknown)] {
        let dir = controller(reported, "");
        let (state, warning) = read_state(dir.path(), &target).unwrap();
        assert_eq!((state, warning, changes(&dir)), (expected, None, Vec::new()), "{reported}");
    }
    let dir = controller("on", "");
    fs::write(dir.path().join("guid"), "4c4c4544-0051-3010-8031-b2c04f333634").unwrap();
    let (state, warning) = read_state(dir.path(), &target).unwrap();
    assert!(state == PowerState::On && warning.unwrap().contains("but the request was for machine"));
    let dir = controller("on", &rejects("*", "Unable to establish IPMI v2 session"));
    let why = read_state(dir.path(), &target).unwrap_err().to_string();
    assert!(why.contains("management controller h"), "{why}");
}

fn read_state(dir: &Path, target: &TargetMachine) -> Result<(PowerState, Option<String>)> {
    let at = BmcAddress::Ipmi { host: "h".to_owned(), port: None };
    let bmc = Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false };
    read_power_state(dir.join("ipmitool"), &bmc, ("h", Some(9001)), target)
}

#[test]
fn each_action_is_requested_and_read_back() {
    let present_state = |requests| rejects(requests, "Command not supported in present state");
    for (quirk, power, action, expected) in [
        (String::new(), "off", On, &["chassis power on"][..]),
        (String::new(), "on", On, &[]),
        (String::new(), "on", Off, &["chassis power off"]),
        (String::new(), "off", Off, &[]),
        (String::new(), "on", Cycle, &["chassis power cycle"]),
        (String::new(), "off", Cycle, &["chassis power on"]),
        (String::new(), "on", Pxe, &[KEEP_FLAGS, PXE_EFI]),
        // The controller rejects the request, but the machine reaches the requested state.
        (
            format!("case \"$*\" in *'power off') echo off >power ;; esac; {}", present_state("*'power off'")),
            "on",
            Off,
            &["chassis power off"],
        ),
        (present_state("*cycle"), "on", Cycle, &["chassis power cycle", "chassis power off", "chassis power on"]),
        (present_state("*raw*"), "on", Pxe, &[KEEP_FLAGS, PXE_EFI]),
        (
            rejects(
                "*OPERATOR*) ;; *",
                "Set Session Privilege Level to ADMINISTRATOR failed: Insufficient privilege level",
            ),
            "off",
            On,
            &["-L OPERATOR chassis power on"],
        ),
        (
            rejects("*'-C 3 '*) ;; *", "Error in open session response message : no matching cipher suite"),
            "off",
            On,
            &["-C 3 chassis power on"],
        ),
        (
            rejects("*'-C 17 '*) ;; *", "Error in open session response message : invalid authentication algorithm"),
            "off",
            On,
            &["-C 17 chassis power on"],
        ),
        (
            format!(
                "{}\n{}",
                rejects("*'-C 3 '*) ;; *", "Error in open session response message : no matching cipher suite"),
                rejects("*OPERATOR*) ;; *", "Error in open session response message : invalid role")
            ),
            "off",
            On,
            &["-C 3 -L OPERATOR chassis power on"],
        ),
    ] {
        let dir = controller(power, &quirk);
        perform_anywhere(&dir, action).unwrap_or_else(|error| panic!("{quirk} {action:?}: {error}"));
        assert_eq!(changes(&dir), expected, "{quirk} {action:?}");
        let power = fs::read_to_string(dir.path().join("power")).unwrap();
        assert_eq!(power.trim() == "on", action != Off, "{quirk} {action:?}");
    }
}

#[test]
fn pxe_request_uses_boot_mode_of_machine() {
    for (firmware, expected) in
        [(Some(FirmwareType::Uefi), PXE_EFI), (None, PXE_EFI), (Some(FirmwareType::Bios), "chassis bootdev pxe")]
    {
        let dir = controller("on", "");
        let warning = perform(dir.path(), Pxe, &TargetMachine { firmware, ..TargetMachine::default() }).unwrap();
        assert_eq!((changes(&dir)[1].as_str(), warning), (expected, None));
    }
}

#[test]
fn boot_flags_are_read_back() {
    let reports = |flags: &str| format!("case \"$*\" in *'bootdev pxe'*) echo {flags} >flags; exit ;; esac");
    for (quirk, flags, expected) in [
        (reports("a004"), "8000", Ok(None)),
        (reports("e004"), "8000", Ok(None)),
        (reports("8004"), "8000", Err("reports the boot flags 80 04, not a0 04")),
        (reports("2004"), "8000", Err("reports the boot flags 20 04, not a0 04")),
        (reports("a008"), "8000", Err("reports the boot flags a0 08, not a0 04")),
        // ipmi_sim reports only the device, as a controller does after the flags have expired. The response therefore
        // proves nothing.
        (reports("0004"), "8000", Ok(Some("neither whether this device is in force"))),
        (reports("0004"), "0004", Ok(Some("neither whether this device is in force"))),
        (reports("0004"), "no", Ok(Some("neither whether this device is in force"))),
        ("case \"$*\" in *bootdev*) exit ;; esac".to_owned(), "0004", Err("reports the boot flags 00 04, not a0 04")),
        ("case \"$*\" in *bootdev*) exit ;; esac".to_owned(), "8000", Err("reports the boot flags 80 00, not a0 04")),
        (rejects("*bootparam*", "Parameter not supported"), "8000", Ok(Some("does not report its boot flags"))),
        ("case \"$*\" in *bootparam*) exit ;; esac".to_owned(), "8000", Ok(Some("does not report its boot flags"))),
        (rejects("*'bootdev pxe'*", "Invalid data field in request"), "8000", Err("Invalid data field in request")),
    ] {
        let dir = controller("on", &quirk);
        fs::write(dir.path().join("flags"), flags).unwrap();
        match (perform_anywhere(&dir, Pxe), expected) {
            (Ok(None), Ok(None)) => {}
            (Ok(Some(actual)), Ok(Some(expected))) => assert!(actual.contains(expected), "{quirk}: {actual}"),
            (Err(actual), Err(expected)) => assert!(actual.to_string().contains(expected), "{quirk}: {actual}"),
            (actual, _) => panic!("{quirk} {flags}: {actual:?}, not {expected:?}"),
        }
    }
}

#[test]
fn a_change_without_effect_fails_with_both_values() {
    for (power, action, expected) in [
        ("on", Off, "management controller h accepted the request, but reports power state on, not off"),
        ("off", On, "reports power state off, not on"),
        ("off", Cycle, "reports power state off, not on"),
    ] {
        let dir = controller(power, "case \"$*\" in *'power on'|*'power off') exit ;; esac");
        let error = perform_anywhere(&dir, action).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn errors_do_not_contain_the_password() {
    for (quirk, expected) in [
        (rejects("*", "Error: Unable to establish IPMI v2 / RMCP+ session"), "Unable to establish"),
        (rejects("*'power on'", "Set Chassis Power Control to Up/On failed: Unspecified error"), "Unspecified error"),
        (rejects("*", "Insufficient privilege level"), "Insufficient privilege level"),
        (rejects("*", "no matching cipher suite"), "no matching cipher suite"),
    ] {
        let dir = controller("off", &quirk);
        let why = perform_anywhere(&dir, On).unwrap_err().to_string();
        assert!(why.starts_with("management controller h: ") && why.contains(expected), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
        fs::remove_file(dir.path().join("ipmitool")).unwrap();
        let why = perform_anywhere(&dir, On).unwrap_err().to_string();
        assert!(why.starts_with("ipmitool is not installed on this host"), "{why}");
    }
}

/// The GUID of some controllers differs from the firmware's UUID, so a difference only causes a warning.
#[test]
fn differing_guid_is_a_warning() {
    let warned = |guid: &str, machine: Option<&str>| {
        let dir = controller("off", "");
        fs::write(dir.path().join("guid"), guid).unwrap();
        perform(dir.path(), Off, &TargetMachine { uuid: machine.map(str::to_owned), ..TargetMachine::default() })
            .unwrap()
    };
    for same in [
        GUID,
        "44454c4c-5100-1030-8031-b2c04f333633",
        "3336334f-c0b2-3180-1030-510044454c4c",
        "00000000-0000-0000-0000-000000000000",
        "03000200-0400-0500-0006-000700080009",
        "none",
    ] {
        assert_eq!(warned(same, Some(GUID)), None, "{same}");
    }
    let other = "aaaaaaaa-0051-3010-8031-b2c04f333633";
    let why = warned(other, Some(GUID)).unwrap();
    assert!(why.contains(GUID) && why.contains(other), "{why}");
    assert_eq!(warned(other, None), None);
}

/// The GUID is compared before the first change.
#[test]
fn controller_of_another_known_machine_is_refused() {
    let [own, other] = ["4c4c4544-0051-3010-8052-b4c04f4d0001", GUID];
    for reported in [other, "44454c4c-5100-1030-8031-b2c04f333633", "3336334f-c0b2-3180-1030-510044454c4c"] {
        for uuid in [Some(own.to_owned()), None] {
            let other_uuids = vec![other.parse().unwrap()];
            let target = TargetMachine { uuid, other_uuids, ..TargetMachine::default() };
            for action in [On, Off, Cycle, Pxe] {
                let dir = controller(if action == On { "off" } else { "on" }, "");
                fs::write(dir.path().join("guid"), reported).unwrap();
                let error = perform(dir.path(), action, &target).unwrap_err();
                assert!(error.is_refusal() && error.to_string().contains("belongs to machine 4c4c4544"), "{error}");
                assert_eq!(changes(&dir), [] as [String; 0], "{action:?}");
                let (_, warning) = read_state(dir.path(), &target).unwrap();
                assert!(warning.is_some_and(|warning| warning.contains(other)), "the state can be read");
            }
        }
    }
}
