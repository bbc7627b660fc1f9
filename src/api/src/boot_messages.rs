//! Texts about the boot targets of machines, for events and refusals.

use super::migration_requests::MigrationState;
use model::machine_migration::MigrationSide;
use store::{ATTEMPTS, ReinstallOrder, restore_confirmation};

pub(super) fn describe_attempt(order: &ReinstallOrder) -> String {
    let repeated = match order.unregistered {
        0 | 1 if order.is_final_boot => ", once more, because the attempt has not reported its result".to_owned(),
        0 | 1 => String::new(),
        boots => format!("; no agent has registered after the previous {} boots", boots - 1),
    };
    format!(
        "boots the ramdisk for attempt {attempt} of {ATTEMPTS} to reinstall image {image}{repeated}",
        attempt = order.attempts,
        image = order.image
    )
}

/// Describes the boot of a machine that needs confirmation after a restore: the agent boots the installed system, and
/// reports the install marker.
pub(super) fn describe_unconfirmed(order: &ReinstallOrder) -> String {
    format!(
        "boots the installed system via the ramdisk: the reinstall with image {image} needs confirmation, because the database was restored",
        image = order.image
    )
}

/// Describes the boot of a machine whose migration needs confirmation after a restore. `unconfirmed` is the machine
/// that needs confirmation.
pub(super) fn describe_unconfirmed_migration(unconfirmed: &str) -> String {
    let why = restore_confirmation::explain_confirmation(unconfirmed);
    format!("boots the ramdisk and waits: its migration is withheld, because {why}")
}

pub(super) const RELEASED: &str = "boots the ramdisk and waits: the system on its disks was migrated to another machine, or is a copy of another machine's system";

pub(super) fn describe_migration_role(part: MigrationSide, state: MigrationState) -> String {
    let what = match (part, state) {
        (MigrationSide::Source, MigrationState::Booting) => {
            "waits: another machine has received this machine's system and may be running that system"
        }
        (MigrationSide::Source, _) => "this machine's system will be migrated to another machine",
        (MigrationSide::Target, _) => "this machine will receive another machine's system",
    };
    format!("boots the ramdisk: {what} ({state})")
}

pub(super) fn describe_other_id(id: &str, other: &str) -> String {
    format!(
        "boots its disk: its allocation is installed under machine {other}. If this is the same machine with a new id, run \
         `drophammer machine rename {other} {id}`; otherwise give this machine an allocation with another id"
    )
}

pub(super) fn describe_missing_file(id: &str) -> String {
    format!(
        "boots its disk: machine {id} is installed, but has no valid file in machines/. Restore the file; a \
         file without an allocation frees the machine"
    )
}
