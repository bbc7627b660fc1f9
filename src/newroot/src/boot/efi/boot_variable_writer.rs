//! Writes boot variables and reads them back. If the firmware rejects a change, a warning with a remedy is reported
//! instead of an error.

use super::entry_changes::BootEntryChanges;
use linux::efi::variables::{self, BootVariables, entry_name};
use nix::libc;
use std::io;
use std::path::Path;

/// Applies the changes. Returns the failures, each with a remedy.
pub(crate) fn apply_changes(directory: &Path, changes: &BootEntryChanges, variables: &BootVariables) -> Vec<String> {
    let mut refused = Vec::new();
    // Entries of former installations are removed before new entries are written, to free space in the firmware.
    for number in &changes.remove {
        let name = entry_name(*number);
        refused.extend(
            variables::remove_variable(directory, &name).err().map(|error| FailedChange::new("remove", &name, &error)),
        );
    }
    let mut missing = Vec::new();
    for (number, value) in &changes.write {
        if let Err(error) = write_and_verify(directory, &entry_name(*number), value) {
            missing.push(*number);
            refused.push(error);
        }
    }
    let order = changes.order.iter().flatten().copied().filter(|number| {
        // An entry that could not be overwritten keeps its old value. It stays in the boot order only if it was already
        // there.
        !missing.contains(number) || variables.position_in_order(*number).is_some()
    });
    let order: Vec<u16> = order.collect();
    if changes.order.is_some() && order != variables.order {
        let value: Vec<u8> = order.iter().flat_map(|number| number.to_le_bytes()).collect();
        refused.extend(write_and_verify(directory, "BootOrder", &value).err());
    }
    FailedChange::group_warnings(refused)
}

fn write_and_verify(directory: &Path, name: &str, value: &[u8]) -> Result<(), FailedChange> {
    variables::write_variable(directory, name, value).map_err(|error| FailedChange::new("write", name, &error))?;
    if variables::read_variable(directory, name).as_deref() == Some(value) {
        return Ok(());
    }
    Err(FailedChange {
        what: format!("EFI variable {name}: the firmware did not store the written value"),
        advice: BOOT_ORDER_REMEDY,
    })
}

/// Failed change of a variable, with a remedy.
struct FailedChange {
    what: String,
    advice: &'static str,
}

const FULL: &str = "the firmware has no space left; remove unneeded entries (`efibootmgr -v`, `efibootmgr -B -b NUMBER`) and \
    crash dumps (`rm /sys/firmware/efi/efivars/dump-*`), then reboot: many firmwares free space only during a reboot";

const READ_ONLY: &str = "EFI variables are read-only because of a kernel parameter (`efi=noruntime`), a firmware \
    setting or kernel lockdown";

const BOOT_ORDER_REMEDY: &str = "set the boot order in the firmware's setup, or update the firmware";

impl FailedChange {
    fn new(act: &str, name: &str, error: &io::Error) -> FailedChange {
        let advice = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => FULL,
            Some(libc::EROFS | libc::EPERM | libc::EACCES) => READ_ONLY,
            _ => BOOT_ORDER_REMEDY,
        };
        FailedChange { what: format!("{act} {name}: {error}"), advice }
    }

    /// Combines all failures with the same remedy into one warning.
    fn group_warnings(refused: Vec<FailedChange>) -> Vec<String> {
        let all = [FULL, READ_ONLY, BOOT_ORDER_REMEDY].into_iter().map(|advice| {
            let of_it = refused.iter().filter(|refused| refused.advice == advice);
            (of_it.map(|refused| refused.what.as_str()).collect::<Vec<_>>().join("; "), advice)
        });
        all.filter(|(what, _)| !what.is_empty()).map(|(what, advice)| format!("{what}: {advice}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::efi::variables::{testing, variable_path};
    use std::fs;
    use std::os::unix::fs::symlink;

    fn changes() -> BootEntryChanges {
        let write = vec![(1, b"one".to_vec()), (2, b"two".to_vec())];
        BootEntryChanges { remove: vec![7], write, order: Some(vec![3, 1, 2]), ours: vec![1, 2], network: None }
    }

    fn firmware() -> (tempfile::TempDir, BootVariables) {
        let directory = tempfile::tempdir().unwrap();
        testing::write(directory.path(), "BootOrder", &[7, 0, 3, 0, 9, 0, 9, 0]);
        testing::write(directory.path(), "Boot0007", b"former");
        let variables = BootVariables::read(directory.path()).unwrap();
        (directory, variables)
    }

    #[test]
    fn changes_are_written_to_the_variables() {
        let (directory, before) = firmware();
        testing::write(directory.path(), "Boot0001", b"a longer one");
        assert_eq!(apply_changes(directory.path(), &changes(), &before), Vec::<String>::new());
        let after = BootVariables::read(directory.path()).unwrap();
        assert_eq!(after.order, [3, 1, 2]);
        assert_eq!(after.entries, [(1, b"one".to_vec()), (2, b"two".to_vec())].into());
        let attributes = fs::read(variable_path(directory.path(), "Boot0001")).unwrap()[..4].to_vec();
        assert_eq!(attributes, [7, 0, 0, 0]);
    }

    #[test]
    fn full_variable_store_causes_a_warning() {
        let (directory, before) = firmware();
        symlink("/dev/full", variable_path(directory.path(), "Boot0002")).unwrap();
        let warnings = apply_changes(directory.path(), &changes(), &before);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("write Boot0002: No space left on device"), "{warnings:?}");
        assert!(warnings[0].contains("efibootmgr -B") && warnings[0].contains("dump-"), "{warnings:?}");
        assert_eq!(BootVariables::read(directory.path()).unwrap().order, [3, 1]);
    }

    #[test]
    fn lost_or_refused_change_is_a_warning() {
        let (directory, before) = firmware();
        symlink("/dev/null", variable_path(directory.path(), "Boot0001")).unwrap();
        fs::remove_file(variable_path(directory.path(), "Boot0007")).unwrap();
        fs::create_dir(variable_path(directory.path(), "Boot0007")).unwrap();
        let warnings = apply_changes(directory.path(), &changes(), &before);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("remove Boot0007: Is a directory"), "{warnings:?}");
        assert!(
            warnings[0]
                .contains("; EFI variable Boot0001: the firmware did not store the written value: set the boot order"),
            "{warnings:?}"
        );
        for (number, words) in [(libc::EROFS, "read-only"), (libc::EPERM, "lockdown"), (libc::EIO, "setup")] {
            let refused = FailedChange::new("write", "BootOrder", &io::Error::from_raw_os_error(number));
            assert!(refused.advice.contains(words), "{}", refused.advice);
        }
    }
}
