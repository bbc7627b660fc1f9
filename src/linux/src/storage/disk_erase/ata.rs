//! Erases SATA disks with the command SECURITY ERASE UNIT (ACS-4 7.45), through hdparm.
//!
//! The command requires a password. A temporary password is set before the erase. The disk removes this password when
//! the erase succeeds. After a failure, this module removes the password, because a disk with a password is locked
//! after its next power cycle.

use super::{EraseDeadline, EraseFailure};
use crate::probe::ata_security::{self, AtaSecurity};
use crate::process::ToolCommand;
use common::error::{Error, Phase};
use model::device_name::DevicePath;
use model::inventory::EraseMethod;
use std::path::Path;
use std::time::Duration;

/// Temporary password. The documentation contains this password, so that the operator can unlock a disk that lost power
/// during the erase.
const PASSWORD: &str = "drophammer";

/// Time limit for all commands except the erase itself.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Disk with ATA security commands. Tests implement this trait with a simulated disk.
trait AtaDisk {
    fn read_security(&self) -> Result<AtaSecurity, String>;
    /// Runs `hdparm --user-master u OPTION PASSWORD`.
    fn run_hdparm(&self, option: &str, patience: Duration) -> Result<(), String>;
}

struct HdparmDisk<'a>(&'a DevicePath);

impl AtaDisk for HdparmDisk<'_> {
    fn read_security(&self) -> Result<AtaSecurity, String> {
        ata_security::read_security(Path::new(self.0))
    }

    fn run_hdparm(&self, option: &str, patience: Duration) -> Result<(), String> {
        let command = ToolCommand::new("hdparm").args(["--user-master", "u", option, PASSWORD]).arg(self.0);
        command.deadline(patience).run().map(drop).map_err(|error| error.to_string())
    }
}

/// Erases the disk, and returns the result that the disk reports.
///
/// # Errors
/// Returns an error if the disk does not currently support the method, refuses the command, or would not finish in
/// time. The error is [`EraseFailure::Final`] if the password remains set.
pub(super) fn erase_sata(
    device: &DevicePath,
    method: EraseMethod,
    deadline: EraseDeadline,
) -> Result<String, EraseFailure> {
    erase_disk(&HdparmDisk(device), device, method, deadline)
}

fn erase_disk(
    disk: &dyn AtaDisk,
    device: &DevicePath,
    method: EraseMethod,
    deadline: EraseDeadline,
) -> Result<String, EraseFailure> {
    let before = disk.read_security()?;
    if !before.available_methods().contains(&method) {
        let why = before.find_obstacle().unwrap_or("the disk does not support this erase method");
        return Err(why.to_owned().into());
    }
    let enhanced = method == EraseMethod::AtaEnhancedErase;
    let (option, minutes) = match enhanced {
        true => ("--security-erase-enhanced", before.enhanced_minutes),
        false => ("--security-erase", before.erase_minutes),
    };
    // The duration is checked before the start, because a running erase cannot be stopped, and the disk does not
    // execute other commands during the erase.
    let left = deadline.time_left()?;
    if let Some(minutes) = minutes.filter(|minutes| Duration::from_secs(60 * u64::from(*minutes)) > left) {
        return Err(format!(
            "the erase takes {minutes} min according to the disk, but only {left} min are left",
            left = left.as_secs() / 60
        )
        .into());
    }
    let done = disk.run_hdparm("--security-set-pass", COMMAND_TIMEOUT).and_then(|()| disk.run_hdparm(option, left));
    // The state of the disk is decisive, not the result of hdparm: if no password is set, the disk has completed the
    // erase or is usable again.
    match disk.read_security() {
        Ok(AtaSecurity { enabled: false, .. }) => {}
        _ => clear_password(disk, device)?,
    }
    done?;
    Ok(format!(
        "the disk reports that the {mode}security erase has completed",
        mode = if enhanced { "enhanced " } else { "" }
    ))
}

fn clear_password(disk: &dyn AtaDisk, device: &DevicePath) -> Result<(), EraseFailure> {
    // Unlocking fails on a disk that is not locked, which is not an error.
    let unlocked = disk.run_hdparm("--security-unlock", COMMAND_TIMEOUT);
    let disabled = disk.run_hdparm("--security-disable", COMMAND_TIMEOUT);
    match disk.read_security() {
        Ok(AtaSecurity { enabled: false, .. }) => Ok(()),
        security => {
            let words = [security.err(), unlocked.err(), disabled.err()].into_iter().flatten().collect::<Vec<_>>();
            let what = format!(
                "{device}: a security erase failed, and its password `{PASSWORD}` is still set and will lock the disk \
                 after a power cycle; remove the password with `hdparm --user-master u --security-disable {PASSWORD} \
                 {device}`: {}",
                words.join("; ")
            );
            Err(EraseFailure::Final(Error::new(Phase::Storage, what)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Simulated disk that tracks its security state and records commands.
    struct FakeDisk {
        security: RefCell<AtaSecurity>,
        refuses: &'static [&'static str],
        /// True if the disk reports success although it keeps the password.
        lies: bool,
        commands: RefCell<Vec<String>>,
    }

    impl FakeDisk {
        fn new(refuses: &'static [&'static str]) -> FakeDisk {
            let security = AtaSecurity {
                supported: true,
                enhanced: true,
                erase_minutes: Some(2),
                enhanced_minutes: Some(300),
                ..AtaSecurity::default()
            };
            FakeDisk { security: RefCell::new(security), refuses, lies: false, commands: RefCell::default() }
        }

        fn erase(&self, method: EraseMethod) -> Result<String, String> {
            let deadline = EraseDeadline::after_budget(Duration::from_secs(3600));
            erase_disk(self, &"/dev/sda".into(), method, deadline).map_err(|failure| match failure {
                EraseFailure::Next(why) => why,
                EraseFailure::Final(error) => format!("final: {error}"),
            })
        }
    }

    impl AtaDisk for FakeDisk {
        fn read_security(&self) -> Result<AtaSecurity, String> {
            Ok(self.security.borrow().clone())
        }

        fn run_hdparm(&self, option: &str, _patience: Duration) -> Result<(), String> {
            self.commands.borrow_mut().push(option.to_owned());
            if self.refuses.contains(&option) {
                return Err(format!("{option} refused"));
            }
            self.security.borrow_mut().enabled = option == "--security-set-pass" || self.lies;
            Ok(())
        }
    }

    #[test]
    fn supported_disk_is_erased() {
        let disk = FakeDisk::new(&[]);
        assert_eq!(
            disk.erase(EraseMethod::AtaErase).unwrap(),
            "the disk reports that the security erase has completed"
        );
        assert_eq!(*disk.commands.borrow(), ["--security-set-pass", "--security-erase"]);
        disk.security.borrow_mut().enhanced_minutes = Some(2);
        let reported = disk.erase(EraseMethod::AtaEnhancedErase).unwrap();
        assert_eq!(reported, "the disk reports that the enhanced security erase has completed");
    }

    #[test]
    fn disk_with_an_obstacle_receives_no_command() {
        type Change = fn(&mut AtaSecurity);
        let cases: [(Change, &str); 5] = [
            (|security| security.frozen = true, "the firmware has frozen the disk's security settings"),
            (|security| security.enabled = true, "a password is set on the disk"),
            (|security| security.locked = true, "the disk is locked by a password"),
            (|security| security.supported = false, "the disk does not support ATA security"),
            (
                |security| security.erase_minutes = Some(90),
                "the erase takes 90 min according to the disk, but only 59 min are left",
            ),
        ];
        for (change, expected) in cases {
            let disk = FakeDisk::new(&[]);
            change(&mut disk.security.borrow_mut());
            assert_eq!(disk.erase(EraseMethod::AtaErase).unwrap_err(), expected);
            assert_eq!(*disk.commands.borrow(), [""; 0]);
        }
        let disk = FakeDisk::new(&[]);
        disk.security.borrow_mut().enhanced = false;
        assert_eq!(
            disk.erase(EraseMethod::AtaEnhancedErase).unwrap_err(),
            "the disk does not support this erase method"
        );
    }

    #[test]
    fn password_is_removed_after_a_failure() {
        let disk = FakeDisk::new(&["--security-erase", "--security-unlock"]);
        assert_eq!(disk.erase(EraseMethod::AtaErase).unwrap_err(), "--security-erase refused");
        let commands = ["--security-set-pass", "--security-erase", "--security-unlock", "--security-disable"];
        assert_eq!(*disk.commands.borrow(), commands);
        assert!(!disk.security.borrow().enabled);

        let disk = FakeDisk::new(&["--security-set-pass"]);
        assert_eq!(disk.erase(EraseMethod::AtaErase).unwrap_err(), "--security-set-pass refused");
        assert_eq!(*disk.commands.borrow(), ["--security-set-pass"]);
    }

    #[test]
    fn remaining_password_is_a_final_failure() {
        let refusing = FakeDisk::new(&["--security-erase", "--security-unlock", "--security-disable"]);
        let lying = FakeDisk { lies: true, ..FakeDisk::new(&[]) };
        for disk in [refusing, lying] {
            let error = disk.erase(EraseMethod::AtaErase).unwrap_err();
            assert!(
                error.starts_with(
                    "final: /dev/sda: a security erase failed, and its password `drophammer` is still set"
                ),
                "{error}"
            );
            assert!(error.contains("hdparm --user-master u --security-disable drophammer /dev/sda"), "{error}");
        }
    }
}
