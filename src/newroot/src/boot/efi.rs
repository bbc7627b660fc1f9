//! Boot entries of the firmware, read and written through efivarfs. Load options are described in section 3.1.3 of the
//! UEFI specification, and device paths in section 10.3.

mod boot_variable_writer;
mod entry_changes;
mod installed_system_boot_next;
pub mod loader_search;
mod network_boot_next;
mod variable_removal;

pub(crate) use boot_variable_writer::apply_changes;
pub(crate) use entry_changes::{add_label_prefix, decide_changes};
pub use installed_system_boot_next::{boot_installed_system_next, boot_written_entry_next};
pub use network_boot_next::{NetworkEntry, find_pxe_entry, set_boot_next};
pub use variable_removal::remove_variables;

pub use linux::efi::{BootVariables, LoadOption, PartitionLocation, VARIABLES, drophammer_variables};

use common::error::{Error, Phase, Result};
use model::install_report::BootEntryRequest;
use operations::WriteBootEntries;
use std::cell::RefCell;
use std::path::Path;

/// Text for warnings about missing boot entries if the disks contain a boot loader (UEFI specification 3.5.1.1).
const FALLBACK: &str = r"the machine boots from the fallback path \EFI\BOOT on its disks instead";

/// Text for messages about missing boot entries if the firmware can start the system only through its boot entry.
const NO_FALLBACK: &str = "without boot entries, the machine cannot boot from its disks, because they contain no boot \
     loader at the fallback path \\EFI\\BOOT";

/// Writes the boot entries of this installation. Logs the changes and all resulting entries. Returns the numbers of the
/// entries that the firmware has stored. Failures are only logged as warnings if a boot loader on the disks can be
/// started without a boot entry.
///
/// # Errors
/// Fails if the entries are required, and the firmware has not stored any of them in the boot order: the firmware could
/// then not start the system.
pub fn write_boot_entries(
    directory: &Path,
    planned: &WriteBootEntries,
    wanted: &[BootEntryRequest],
    say: &dyn Fn(&str),
) -> Result<Vec<u16>> {
    let is_required = wanted.iter().any(|entry| entry.required);
    let otherwise = if is_required { NO_FALLBACK } else { FALLBACK };
    let warnings = RefCell::new(Vec::new());
    let warn = |why: &str| {
        say(&format!("WARNING: boot entries: {why}; {otherwise}"));
        warnings.borrow_mut().push(why.to_owned());
    };
    let (stored, is_in_order) = store_entries(directory, planned, wanted, say, &warn);
    if is_required && !is_in_order {
        let why = warnings.into_inner().join("; ");
        let message = format!("boot entries: {why}; {otherwise}; install GRUB or systemd-boot there in the image");
        return Err(Error::new(Phase::Boot, message));
    }
    Ok(stored)
}

/// Writes the boot entries. Returns the numbers of the entries that the firmware has stored, and whether the boot order
/// contains one of them.
fn store_entries(
    directory: &Path,
    planned: &WriteBootEntries,
    wanted: &[BootEntryRequest],
    say: &dyn Fn(&str),
    warn: &dyn Fn(&str),
) -> (Vec<u16>, bool) {
    let before = match read_variables(directory) {
        Ok(variables) => variables,
        Err(why) => {
            warn(&why);
            return (Vec::new(), false);
        }
    };
    let (options, refused) = build_load_options(planned, wanted);
    refused.iter().for_each(|why| warn(why));
    let changes = decide_changes(&before, &options, planned.order, &planned.preserved);
    if changes.is_empty() {
        say("boot entries: already up to date");
    }
    apply_changes(directory, &changes, &before).iter().for_each(|why| warn(why));
    let after = match read_variables(directory) {
        Ok(variables) => variables,
        Err(why) => {
            warn(&why);
            return (Vec::new(), false);
        }
    };
    after.to_string().lines().for_each(say);
    let is_stored = |number: &u16| {
        after.entries.get(number).is_some_and(|value| options.iter().any(|option| option.to_bytes() == *value))
    };
    let stored: Vec<u16> = changes.ours.into_iter().filter(is_stored).collect();
    let is_in_order = stored.iter().any(|number| after.position_in_order(*number).is_some());
    (stored, is_in_order)
}

/// Reads the boot configuration.
///
/// # Errors
/// Returns the reason if the variables or the boot order cannot be read.
fn read_variables(directory: &Path) -> std::result::Result<BootVariables, String> {
    // If efivarfs is not mounted, its directory is empty or missing.
    if !std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_some()) {
        let folder = directory.display();
        return Err(format!("found no EFI variables in {folder}; try `mount -t efivarfs efivarfs {folder}`"));
    }
    match BootVariables::read(directory) {
        Ok(BootVariables { unreadable_order: Some(why), .. }) => Err(why),
        Ok(variables) => Ok(variables),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the load options, and a message for each requested entry that cannot be encoded as a load option.
fn build_load_options(planned: &WriteBootEntries, wanted: &[BootEntryRequest]) -> (Vec<LoadOption>, Vec<String>) {
    let (mut options, mut refused) = (Vec::new(), Vec::new());
    let label = add_label_prefix(&planned.label);
    for BootEntryRequest { esp, loader, arguments, .. } in wanted {
        let Some(esp) = planned.esps.get(*esp) else {
            refused.push(format!(
                "cannot create an entry for {loader}: the entry is for the EFI system partition with the index {index}, but the machine has only {count} of these partitions", index = esp + 1, count = planned.esps.len()));
            continue;
        };
        match LoadOption::for_file(&label, esp, loader, arguments) {
            Some(option) => options.push(option),
            None => refused.push(format!("cannot create an entry for {loader} on ESP {esp}: the loader's path is empty, too long, or contains control characters", esp = esp.device)),
        }
    }
    (options, refused)
}

#[cfg(test)]
mod tests;
