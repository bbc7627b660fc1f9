//! Targets that a machine can boot, and the allocation according to the operator's files.

use super::machine_migration::MigrationState;
use super::reinstall_order_records::ReinstallOrder;
use model::machine_migration::MigrationSide;

/// Allocation of a machine according to the operator's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAllocation {
    /// The machine file contains this allocation.
    Allocated(String),
    /// The machine file contains no allocation.
    Free,
    /// The machine does not have a usable machine file.
    NoMachineFile,
}

impl FileAllocation {
    /// Returns the allocation in the machine file.
    pub(crate) fn allocation(&self) -> Option<&str> {
        match self {
            FileAllocation::Allocated(allocation) => Some(allocation),
            FileAllocation::Free | FileAllocation::NoMachineFile => None,
        }
    }
}

/// Target that a machine boots, and the reason for this target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootTarget {
    /// The ramdisk: the machine will be installed, or waits for its machine file or its allocation.
    Install,
    /// The ramdisk, which attempts to carry out this reinstall order.
    Attempt(ReinstallOrder),
    /// The ramdisk, whose agent boots the installed system. The database was restored, so the reinstall order must
    /// first be confirmed by the operator.
    Unconfirmed(ReinstallOrder),
    /// The disk: the machine is installed, and no reinstall is ordered.
    Disk,
    /// The disk: the reinstall order is suspended, because its attempts are used up, and none of them has passed the
    /// point of no return.
    Suspended(ReinstallOrder),
    /// The disk: the database records the allocation as installed under another machine id, which this variant
    /// contains.
    InstalledElsewhere(String),
    /// The disk: the machine is installed, but does not have a usable machine file.
    NoFile,
    /// The ramdisk without the agent. The reinstall order was abandoned after its point of no return, so the operator
    /// must intervene.
    AbandonedAfterErase(ReinstallOrder),
    /// The ramdisk, for the machine's role in a migration.
    MigrationRamdisk(MigrationSide, MigrationState),
    /// The ramdisk, in which the machine waits. The database was restored, so the state of the machine's migration must
    /// first be confirmed by the operator. Contains the id of the machine that needs confirmation.
    UnconfirmedMigration(String),
    /// The ramdisk, in which the machine waits, because the system on its disks now belongs to another machine.
    MigratedAway,
    /// No boot: the machine does not have a machine file, and the limit of unknown machines is reached.
    TooManyUnknown,
}

impl BootTarget {
    /// Returns whether the machine must not boot the system on its disks, even if its ramdisk cannot be loaded. That is
    /// the case if the system is incomplete, or may run on another machine.
    pub fn excludes_disk(&self) -> bool {
        match self {
            BootTarget::Attempt(order) => order.started,
            BootTarget::AbandonedAfterErase(_)
            | BootTarget::MigrationRamdisk(..)
            | BootTarget::UnconfirmedMigration(_)
            | BootTarget::MigratedAway => true,
            _ => false,
        }
    }

    /// Returns whether the machine boots the system on its disks.
    pub(crate) fn boots_disk(&self) -> bool {
        matches!(
            self,
            BootTarget::Disk | BootTarget::Suspended(_) | BootTarget::InstalledElsewhere(_) | BootTarget::NoFile
        )
    }
}
