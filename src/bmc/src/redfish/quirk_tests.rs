//! Tests of each quirk of the test double, with each operation that the quirk affects. They check the requests and
//! the results.

use super::test_double::*;
use super::*;
use crate::switch_power;
use model::inventory::FirmwareType;

fn target(firmware: Option<FirmwareType>) -> TargetMachine {
    TargetMachine { uuid: Some(UUID.to_owned()), firmware, ..TargetMachine::default() }
}

fn switch(double: &RedfishDouble, action: PowerAction) -> Result<Option<String>> {
    switch_power(&double.bmc(), action, &target(None), &crate::Unguarded)
}

const SYSTEM_UEFI: &str = "PATCH 1 UEFI";
const SYSTEM_ONLY: &str = "PATCH 1 -";
const SETTINGS_UEFI: &str = "PATCH SD UEFI";

#[test]
fn pxe_boot_is_set_once_despite_every_quirk() {
    for (quirks, expected) in [
        (&[][..], &[SYSTEM_UEFI][..]),
        (&[Slash(301)], &[SYSTEM_UEFI; 2]),
        (&[Slash(302)], &[SYSTEM_UEFI; 2]),
        (&[Slash(307)], &[SYSTEM_UEFI; 2]),
        (&[Slash(308)], &[SYSTEM_UEFI; 2]),
        (&[SlashAbsolute], &[SYSTEM_UEFI; 2]),
        (&[ModeLost], &[SYSTEM_UEFI]),
        (&[ModeRequired], &[SYSTEM_UEFI]),
        (&[ModeReadOnly], &[SYSTEM_UEFI, SYSTEM_ONLY]),
        (&[ModeMissing], &[SYSTEM_ONLY]),
        (&[EtagInDocument], &[SYSTEM_UEFI]),
        (&[EtagWeak], &[SYSTEM_UEFI; 2]),
        (&[EtagDoubled], &[SYSTEM_UEFI; 2]),
        (&[EtagCompressed], &[SYSTEM_UEFI; 2]),
        (&[EtagRejected], &[SYSTEM_UEFI; 2]),
        (&[EtagUnknown], &[SYSTEM_UEFI; 2]),
        (&[SettingsOnly], &[SYSTEM_UEFI, SETTINGS_UEFI]),
        (&[SettingsSilent], &[SYSTEM_UEFI, SETTINGS_UEFI]),
        (&[SettingsOther], &[SYSTEM_UEFI]),
        (&[DeadLinks], &[SYSTEM_UEFI]),
        (&[SettingsOnly, ModeReadOnly], &[SYSTEM_UEFI, SETTINGS_UEFI, "PATCH SD -"]),
        (&[SettingsOnly, EtagWeak], &[SYSTEM_UEFI, SYSTEM_UEFI, SETTINGS_UEFI, SETTINGS_UEFI]),
        (&[Lag(4)], &[SYSTEM_UEFI]),
        (&[Unavailable(3)], &[SYSTEM_UEFI]),
        (&[ErrorDespiteChange], &[SYSTEM_UEFI]),
        (&[SessionOnly], &[SYSTEM_UEFI]),
        (&[BasicOffered], &[SYSTEM_UEFI]),
        (&[Paged], &[SYSTEM_UEFI]),
        // The first request is rejected, because the session has expired.
        (&[SessionExpires(2)], &[SYSTEM_UEFI; 2]),
        (&[SessionOnly, Slash(308)], &[SYSTEM_UEFI; 2]),
        (&[AlwaysContinuous], &[SYSTEM_UEFI]),
        (&[Closes(1)], &[SYSTEM_UEFI]),
        (&[Closes(5)], &[SYSTEM_UEFI]),
        (&[Closes(50)], &[SYSTEM_UEFI]),
    ] {
        let double = RedfishDouble::start("On", quirks);
        let warning = switch(&double, PowerAction::Pxe).unwrap_or_else(|error| panic!("{quirks:?}: {error}"));
        assert_eq!(double.state().boot, ["Once", "Pxe", "UEFI"], "{quirks:?}");
        assert_eq!(warning.is_some(), quirks == [AlwaysContinuous], "{quirks:?}: {warning:?}");
        assert_eq!(double.changes(), expected, "{quirks:?}");
    }
}

#[test]
fn power_actions_succeed_despite_every_quirk() {
    const OFF_ON: &[&str] = &["POST ForceOff", "POST On"];
    for (quirks, power, action, expected) in [
        (&[][..], "Off", PowerAction::On, &["POST On"][..]),
        (&[], "On", PowerAction::Off, &["POST ForceOff"]),
        (&[], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[], "Off", PowerAction::Cycle, &["POST On"]),
        // No request is sent for a machine that is already in the requested state.
        (&[Conflict], "On", PowerAction::On, &[]),
        (&[Conflict], "Off", PowerAction::Off, &[]),
        (&[Slash(308)], "On", PowerAction::Off, &["POST ForceOff"; 2]),
        (&[Slash(301)], "On", PowerAction::Cycle, &["POST ForceRestart"; 2]),
        (&[SlashAbsolute], "Off", PowerAction::On, &["POST On"; 2]),
        (&[ActionInfo, Types(&["On", "ForceOff"])], "On", PowerAction::Cycle, OFF_ON),
        (&[ActionInfo, Slash(308)], "On", PowerAction::Off, &["POST ForceOff"; 2]),
        (&[Types(&["ForceOn", "ForceOff"])], "Off", PowerAction::On, &["POST ForceOn"]),
        (&[Types(&["On", "ForceOff", "PowerCycle"])], "On", PowerAction::Cycle, &["POST PowerCycle"]),
        (&[Types(&["On", "ForceOff", "ForcePowerCycle"])], "On", PowerAction::Cycle, &["POST ForcePowerCycle"]),
        (&[Types(&["On", "ForceOff", "GracefulRestart"])], "On", PowerAction::Cycle, OFF_ON),
        (&[Types(&["On", "ForceOff"]), Lag(3)], "On", PowerAction::Cycle, OFF_ON),
        (
            &[Types(&["On", "ForceOff"]), BusyAfterOff(2)],
            "On",
            PowerAction::Cycle,
            &["POST ForceOff", "POST On", "POST On", "POST On"],
        ),
        (&[TypesUnlisted], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[DeadLinks], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[Types(&[])], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (
            &[TypesUnlisted, Types(&["On", "ForceOff"])],
            "On",
            PowerAction::Cycle,
            &["POST ForceRestart", "POST PowerCycle", "POST ForcePowerCycle", "POST ForceOff", "POST On"],
        ),
        (&[Lag(5)], "On", PowerAction::Off, &["POST ForceOff"]),
        (&[Unavailable(3)], "On", PowerAction::Off, &["POST ForceOff"]),
        (&[SessionOnly], "On", PowerAction::Off, &["POST ForceOff"]),
        (&[BasicOffered], "On", PowerAction::Off, &["POST ForceOff"]),
        (&[SessionExpires(1)], "On", PowerAction::Off, &["POST ForceOff"; 2]),
        (&[ResetTime], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[ResetTime, Lag(3)], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[Closes(1)], "On", PowerAction::Cycle, &["POST ForceRestart"]),
        (&[Closes(50)], "On", PowerAction::Off, &["POST ForceOff"]),
    ] {
        let double = RedfishDouble::start(power, quirks);
        switch(&double, action).unwrap_or_else(|error| panic!("{quirks:?} {action:?}: {error}"));
        assert_eq!(double.changes(), expected, "{quirks:?} {action:?}");
        assert_eq!(double.state().power == "On", action != PowerAction::Off, "{quirks:?} {action:?}");
    }
}

#[test]
fn a_change_without_effect_fails_with_both_values() {
    for (quirks, power, action, expected) in [
        (
            &[Ignores][..],
            "On",
            PowerAction::Off,
            "accepted the reset type ForceOff, but reports PowerState On, not Off",
        ),
        (&[Ignores], "Off", PowerAction::On, "PowerState Off, not On"),
        (&[Ignores], "Off", PowerAction::Cycle, "PowerState Off, not On"),
        (&[Ignores, Types(&["On", "ForceOff"])], "On", PowerAction::Cycle, "PowerState On, not Off"),
        (
            &[Ignores, ResetTime],
            "On",
            PowerAction::Cycle,
            "reset type ForceRestart, but reports no restart: LastResetTime is still",
        ),
        (&[PowerUnknown], "On", PowerAction::Off, "PowerState unknown, not Off"),
        (&[Ignores], "On", PowerAction::Pxe, "BootSourceOverrideTarget=None instead of Pxe"),
        (&[ModeIgnored], "On", PowerAction::Pxe, "BootSourceOverrideMode=Legacy instead of UEFI"),
        (&[BootMissing], "On", PowerAction::Pxe, "BootSourceOverrideTarget=unknown instead of Pxe"),
        (&[PxeMissing], "On", PowerAction::Pxe, "cannot boot from Pxe; supported targets: None, Hdd"),
        (&[ModeLost, ModeReadOnly], "On", PowerAction::Pxe, "BootSourceOverrideMode=Legacy instead of UEFI"),
        (
            &[Types(&["On", "GracefulShutdown"])],
            "On",
            PowerAction::Off,
            "does not support any of the reset types ForceOff; supported types: On, GracefulShutdown",
        ),
        (&[Forbidden], "On", PowerAction::Off, "403 Forbidden: The role lacks privileges for this."),
        (&[Forbidden], "On", PowerAction::Pxe, "403 Forbidden: The role lacks privileges for this."),
        (&[PasswordChange], "On", PowerAction::Cycle, "403 Forbidden: The password must be changed first."),
        (
            &[NoSession],
            "On",
            PowerAction::On,
            "rejected the username and password: session required; opening a session has also failed",
        ),
        (&[RedirectsForever], "On", PowerAction::On, "redirects /redfish/v1/Systems more than 4 times"),
    ] {
        let double = RedfishDouble::start(power, quirks);
        let error = switch(&double, action).unwrap_err();
        let why = error.to_string();
        assert!(
            error.is_refusal() && why.contains(expected) && !why.contains("hunter2"),
            "{quirks:?} {action:?}: {why}"
        );
        assert!(why.contains(&double.url()), "{why}");
    }
}

#[test]
fn registered_firmware_type_selects_the_boot_mode() {
    for (present, firmware, quirks, expected) in [
        ("Legacy", Some(FirmwareType::Uefi), &[][..], Ok("UEFI")),
        ("UEFI", Some(FirmwareType::Uefi), &[ModeReadOnly], Ok("UEFI")),
        ("UEFI", Some(FirmwareType::Bios), &[], Ok("Legacy")),
        ("Legacy", None, &[ModeLost], Ok("Legacy")),
        ("Legacy", Some(FirmwareType::Bios), &[ModeReadOnly], Ok("Legacy")),
        ("Legacy", Some(FirmwareType::Uefi), &[ModeMissing], Ok("Legacy")),
        // A UEFI installation does not start from a legacy boot, so the override is not changed.
        ("Legacy", Some(FirmwareType::Uefi), &[ModeReadOnly], Err("PropertyNotWritable: BootSourceOverrideMode")),
    ] {
        let double = RedfishDouble::start("On", quirks);
        double.state().boot[2] = present.to_owned();
        let done = switch_power(&double.bmc(), PowerAction::Pxe, &target(firmware), &crate::Unguarded)
            .map_err(|error| error.to_string());
        let boot = double.state().boot.clone();
        match expected {
            Ok(mode) => {
                assert_eq!((done, &boot[1..]), (Ok(None), &["Pxe", mode].map(str::to_owned)[..]), "{firmware:?}")
            }
            Err(why) => assert!(done.unwrap_err().contains(why) && boot[1] == "None", "{firmware:?} {boot:?}"),
        }
    }
}

#[test]
fn session_is_deleted_and_used_without_other_credentials() {
    let double = RedfishDouble::start("On", &[SessionOnly]);
    switch(&double, PowerAction::Off).unwrap();
    assert!(double.state().session_has_ended());
    let requests = double.requests();
    assert_eq!(requests.last().unwrap().line(), "DELETE /redfish/v1/Sessions/7");
    let logins: Vec<_> = requests.iter().filter(|request| request.path == "/redfish/v1/Sessions").collect();
    assert!(logins.len() == 1 && logins[0].authorization.is_none());
    let is_both =
        |request: &testing::http::Request| request.authorization.is_some() && request.header("x-auth-token").is_some();
    assert!(!requests.iter().any(is_both));
    let wrong = Bmc { password: model::secret_text::SecretText::new("hunter3"), ..double.bmc() };
    let why = switch_power(&wrong, PowerAction::Off, &target(None), &crate::Unguarded).unwrap_err().to_string();
    assert!(why.contains("opening a session has also failed") && !why.contains("hunter"), "{why}");
}
