//! IPMI 2.0 over the network with `ipmitool`. The password is passed in the environment, which other users cannot read, and never as an
//! argument.

use super::{PowerAction, bmc_refusal};
use common::error::{Error, Phase, Result};
use linux::process::{CommandError, ToolCommand};
use model::bmc::Bmc;
use model::machine_identity::{is_same_uuid, parse_usable_uuid};
use std::ffi::OsStr;
use std::time::Duration;
use uuid::Uuid;

const ANSWER: Duration = Duration::from_secs(60);

/// Performs the action. Returns a warning if the controller reports the UUID of another machine.
pub(crate) fn perform_action(
    program: impl AsRef<OsStr>,
    bmc: &Bmc,
    (host, port): (&str, Option<u16>),
    action: PowerAction,
    machine: Option<&str>,
) -> Result<Option<String>> {
    let port = port.unwrap_or(623).to_string();
    let ask = |words: &[&str]| -> Result<String> {
        let who = ["-I", "lanplus", "-H", host, "-p", &port, "-U", &bmc.username, "-E"];
        // Without `-E`, ipmitool would prompt for the password on the terminal.
        let command = ToolCommand::new(&program).args(who).args(words).env("IPMI_PASSWORD", bmc.password.reveal());
        command.deadline(ANSWER).run().map(|output| output.stdout).map_err(|error| explain_failure(host, error))
    };
    match action {
        PowerAction::On => ask(&["chassis", "power", "on"]),
        PowerAction::Off => ask(&["chassis", "power", "off"]),
        // Most controllers refuse to cycle a machine that is off.
        PowerAction::Cycle if ask(&["chassis", "power", "status"])?.trim_end().ends_with("off") => {
            ask(&["chassis", "power", "on"])
        }
        PowerAction::Cycle => ask(&["chassis", "power", "cycle"]),
        PowerAction::Pxe => ask(&["chassis", "bootdev", "pxe"]),
    }?;
    let Some(wanted) = machine.and_then(parse_usable_uuid) else { return Ok(None) };
    // Not all controllers have a GUID.
    let reported = ask(&["mc", "guid"]).ok().and_then(|text| reported_guid(&text));
    Ok(reported.filter(|reported| !is_same_guid(*reported, wanted)).map(|reported| {
        format!(
            "management controller {host} reports the GUID {reported}, but the request was for machine {wanted}: check its address, unless \
             this controller's GUID always differs from the UUID of the firmware, as with many models"
        )
    }))
}

/// Returns the GUID in the output of `ipmitool mc guid`, if it identifies a machine.
fn reported_guid(text: &str) -> Option<Uuid> {
    let line = text.lines().find(|line| line.trim_start().starts_with("System GUID"))?;
    parse_usable_uuid(line.split_once(':')?.1)
}

/// Returns whether both GUIDs are the same in one of the byte orders that controllers and ipmitool use: RFC 4122, SMBIOS, and the reversed
/// order of either (IPMI 2.0, 20.8).
fn is_same_guid(reported: Uuid, wanted: Uuid) -> bool {
    let mut bytes = *reported.as_bytes();
    bytes.reverse();
    is_same_uuid(reported, wanted) || is_same_uuid(Uuid::from_bytes(bytes), wanted)
}

fn explain_failure(host: &str, error: CommandError) -> Error {
    let missing = matches!(&error.end, linux::process::ProcessFailure::NotStarted(why) if why.kind() == std::io::ErrorKind::NotFound);
    match missing {
        true => bmc_refusal(
            "ipmitool is not installed on this host: run `apt-get install ipmitool`, or use Redfish with an https:// address"
                .to_owned(),
        ),
        false => Error::with_source(Phase::Control, format!("management controller {host}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::bmc::BmcAddress;
    use model::registry_auth::SecretText;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    /// Notes what it is told, and says this.
    fn ipmitool(dir: &Path, says: &str) -> PathBuf {
        let program = dir.join("ipmitool");
        let log = dir.join("log");
        let script = format!("#!/bin/sh\necho \"$IPMI_PASSWORD $*\" >>{}\n{says}\n", log.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    fn bmc() -> Bmc {
        let at = BmcAddress::Ipmi { host: "h".to_owned(), port: None };
        Bmc { at, username: "admin".to_owned(), password: SecretText::new("hunter2"), insecure: false }
    }

    #[test]
    fn the_password_is_in_no_argument() {
        let dir = tempfile::tempdir().unwrap();
        let asked = |action, says: &str| {
            let _ = fs::remove_file(dir.path().join("log"));
            perform_action(ipmitool(dir.path(), says), &bmc(), ("h", Some(9001)), action, None).unwrap();
            fs::read_to_string(dir.path().join("log")).unwrap()
        };
        let who = "hunter2 -I lanplus -H h -p 9001 -U admin -E chassis";
        assert_eq!(asked(PowerAction::On, ":"), format!("{who} power on\n"));
        assert_eq!(asked(PowerAction::Off, ":"), format!("{who} power off\n"));
        assert_eq!(asked(PowerAction::Pxe, ":"), format!("{who} bootdev pxe\n"));
        let cycled = asked(PowerAction::Cycle, "echo Chassis Power is on");
        assert_eq!(cycled, format!("{who} power status\n{who} power cycle\n"));
        let begun = asked(PowerAction::Cycle, "echo Chassis Power is off");
        assert_eq!(begun, format!("{who} power status\n{who} power on\n"));
    }

    #[test]
    fn what_goes_wrong_is_said_without_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let program = ipmitool(dir.path(), "echo 'Error: Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1");
        let why = perform_action(program, &bmc(), ("h", None), PowerAction::On, None).unwrap_err().to_string();
        assert!(why.starts_with("management controller h: ") && why.contains("Unable to establish"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
        let why = perform_action(dir.path().join("none"), &bmc(), ("h", None), PowerAction::On, None)
            .unwrap_err()
            .to_string();
        assert!(why.starts_with("ipmitool is not installed on this host"), "{why}");
    }

    /// A controller's GUID is a claim that may be another one than the firmware's UUID, so that it refuses nothing.
    #[test]
    fn another_guid_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let warned = |guid: &str, machine: Option<&str>| {
            let program = ipmitool(dir.path(), &format!("echo 'System GUID  : {guid}'"));
            perform_action(program, &bmc(), ("h", None), PowerAction::Off, machine).unwrap()
        };
        let own = "4c4c4544-0051-3010-8031-b2c04f333633";
        for same in [
            own,
            "44454c4c-5100-1030-8031-b2c04f333633",
            "3336334f-c0b2-3180-1030-510044454c4c",
            "00000000-0000-0000-0000-000000000000",
            "03000200-0400-0500-0006-000700080009",
            "none",
        ] {
            assert_eq!(warned(same, Some(own)), None, "{same}");
        }
        let other = "aaaaaaaa-0051-3010-8031-b2c04f333633";
        let why = warned(other, Some(own)).unwrap();
        assert!(why.contains(own) && why.contains(other), "{why}");
        assert_eq!(warned(other, None), None);
    }
}
