//! IPMI 2.0 over the network, by `ipmitool`. The password is in its environment, which no other user can read, and in no argument.

use super::{Action, Bmc, failed};
use crate::command::{Command, CommandError};
use crate::error::{Error, Phase, Result};
use std::ffi::OsStr;
use std::time::Duration;

const ANSWER: Duration = Duration::from_secs(60);

pub fn act(program: impl AsRef<OsStr>, bmc: &Bmc, host: &str, port: Option<u16>, action: Action) -> Result<()> {
    let port = port.unwrap_or(623).to_string();
    let ask = |words: &[&str]| -> Result<String> {
        let who = ["-I", "lanplus", "-H", host, "-p", &port, "-U", &bmc.username, "-E"];
        // It would ask a person at a terminal, if it were told nothing.
        let command = Command::new(&program).args(who).args(words).env("IPMI_PASSWORD", bmc.password.reveal());
        command.deadline(ANSWER).run().map(|output| output.stdout).map_err(|error| told(host, error))
    };
    match action {
        Action::On => ask(&["chassis", "power", "on"]),
        Action::Off => ask(&["chassis", "power", "off"]),
        // Most controllers refuse to cycle what is off.
        Action::Cycle if ask(&["chassis", "power", "status"])?.trim_end().ends_with("off") => {
            ask(&["chassis", "power", "on"])
        }
        Action::Cycle => ask(&["chassis", "power", "cycle"]),
        Action::Pxe => ask(&["chassis", "bootdev", "pxe"]),
    }
    .map(drop)
}

fn told(host: &str, error: CommandError) -> Error {
    let missing =
        matches!(&error.end, crate::command::End::NotStarted(why) if why.kind() == std::io::ErrorKind::NotFound);
    match missing {
        true => failed(
            "there is no ipmitool on this host: `apt-get install ipmitool`, or Redfish with an https:// address"
                .to_owned(),
        ),
        false => Error::with_source(Phase::Control, format!("the management controller {host}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bmc::Address;
    use crate::pull::Secret;
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
        let at = Address::Ipmi { host: "h".to_owned(), port: None };
        Bmc { at, username: "admin".to_owned(), password: Secret::new("hunter2"), insecure: false }
    }

    #[test]
    fn the_password_is_in_no_argument() {
        let dir = tempfile::tempdir().unwrap();
        let asked = |action, says: &str| {
            let _ = fs::remove_file(dir.path().join("log"));
            act(ipmitool(dir.path(), says), &bmc(), "h", Some(9001), action).unwrap();
            fs::read_to_string(dir.path().join("log")).unwrap()
        };
        let who = "hunter2 -I lanplus -H h -p 9001 -U admin -E chassis";
        assert_eq!(asked(Action::On, ":"), format!("{who} power on\n"));
        assert_eq!(asked(Action::Off, ":"), format!("{who} power off\n"));
        assert_eq!(asked(Action::Pxe, ":"), format!("{who} bootdev pxe\n"));
        let cycled = asked(Action::Cycle, "echo Chassis Power is on");
        assert_eq!(cycled, format!("{who} power status\n{who} power cycle\n"));
        let begun = asked(Action::Cycle, "echo Chassis Power is off");
        assert_eq!(begun, format!("{who} power status\n{who} power on\n"));
    }

    #[test]
    fn what_goes_wrong_is_said_without_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let program = ipmitool(dir.path(), "echo 'Error: Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1");
        let why = act(program, &bmc(), "h", None, Action::On).unwrap_err().to_string();
        assert!(why.starts_with("the management controller h: ") && why.contains("Unable to establish"), "{why}");
        assert!(!why.contains("hunter2"), "{why}");
        let why = act(dir.path().join("none"), &bmc(), "h", None, Action::On).unwrap_err().to_string();
        assert!(why.starts_with("there is no ipmitool on this host"), "{why}");
    }
}
