//! The firmware's boot entries, through efivarfs. Layouts are the UEFI specification's: 3.1.3 load options, 10.3 device paths.

mod apply;
mod entries;
pub mod loader;
mod network;
mod removal;

pub use apply::apply;
pub use entries::{Changes, OWN, decide, own_label};
pub use network::{NetworkEntry, network_entry, set_boot_next};
pub use removal::remove_variables;

pub use crate::efi::own;
pub use crate::efi::{LoadOption, PartitionLocation, VARIABLES, Variables};

use crate::facts::EntryWanted;
use crate::plan::{BootEntries, Esp};
use std::path::Path;

/// Without entries of ours the firmware still finds what lies there (UEFI specification 3.5.1.1).
const FALLBACK: &str = r"the machine boots through the fallback path \EFI\BOOT of its disks all the same";

/// A kernel that has its command line from its entry has no other place for it.
const NO_FALLBACK: &str = "this image has no boot loader, and does not boot from its disks without them";

/// Makes the firmware's entries what this installation wants, and says what was done, and all entries that there are then. Never
/// an error: with a boot loader the machine boots without them.
pub fn write(directory: &Path, planned: &BootEntries, wanted: &[EntryWanted], say: &dyn Fn(&str)) {
    let needs_them = wanted.iter().any(|entry| !entry.arguments.is_empty());
    let otherwise = if needs_them { NO_FALLBACK } else { FALLBACK };
    let warn = |why: &str| say(&format!("WARNING: boot entries: {why}; {otherwise}"));
    // Where nothing is mounted, there is an empty directory, or none.
    if !std::fs::read_dir(directory).is_ok_and(|mut files| files.next().is_some()) {
        let mount = "mount -t efivarfs efivarfs";
        return warn(&format!("no EFI variables in {0}: try `{mount} {0}`", directory.display()));
    }
    let before = match Variables::read(directory) {
        Ok(Variables { unreadable_order: Some(why), .. }) => return warn(&why),
        Ok(variables) => variables,
        Err(error) => return warn(&error.to_string()),
    };
    let (options, refused) = options(planned, wanted);
    refused.iter().for_each(|why| warn(why));
    let changes = decide(&before, &options, planned.order);
    if changes.is_empty() {
        say("boot entries: all are right already, nothing is written");
    }
    apply(directory, &changes, &before).iter().for_each(|why| warn(why));
    if let Ok(after) = Variables::read(directory) {
        after.to_string().lines().for_each(say);
    }
}

impl From<&Esp> for PartitionLocation {
    fn from(esp: &Esp) -> PartitionLocation {
        PartitionLocation { number: esp.number, guid: esp.guid, first_lba: esp.first_lba, sectors: esp.sectors }
    }
}

/// What is wanted as load options, and what cannot be one.
fn options(planned: &BootEntries, wanted: &[EntryWanted]) -> (Vec<LoadOption>, Vec<String>) {
    let (mut options, mut refused) = (Vec::new(), Vec::new());
    let label = own_label(&planned.label);
    for EntryWanted { esp, loader, arguments } in wanted {
        let option = planned.esps.get(*esp).and_then(|esp| LoadOption::of_file(&label, esp, loader, arguments));
        match option {
            Some(option) => options.push(option),
            None => refused.push(format!("no entry can be made for {loader} on ESP {esp}")),
        }
    }
    (options, refused)
}

#[cfg(test)]
mod tests;
