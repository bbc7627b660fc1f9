//! Targets that a machine can boot, and what the operator's files contain about it.

use super::migration::MigrationState;
use super::order_records::ReinstallOrder;
use model::migration::MigrationSide;

/// Content of the operator's files about a machine that boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAllocation {
    /// The file contains this allocation.
    Allocated(String),
    /// The file contains no allocation.
    Free,
    /// There is no usable file.
    Nothing,
}

/// Boot target of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootTarget {
    /// The ramdisk: the machine will be installed, or waits for its file or its allocation.
    Install,
    /// The ramdisk, for an attempt at this order.
    Attempt(ReinstallOrder),
    /// The ramdisk, which boots the installed system: the order needs confirmation, because the database was restored.
    Unconfirmed(ReinstallOrder),
    /// The disk: the machine is installed, and no reinstall is ordered.
    Disk,
    /// The disk: no attempt at this order has passed the point of no return, and the order is dropped.
    Dropped(ReinstallOrder),
    /// The disk: the database records the allocation of this machine as installed under this other machine id.
    Elsewhere(String),
    /// The disk: the machine is installed, and does not have a usable file.
    NoFile,
    /// The ramdisk without the agent: this order has started and was abandoned. The operator must intervene.
    Stop(ReinstallOrder),
    /// The ramdisk, for its role in a migration.
    Moving(MigrationSide, MigrationState),
    /// The ramdisk, where it waits: its disks contain the system of another machine.
    Released,
    /// Refuses the boot: the machine does not have a file, and the limit of such machines is reached.
    Crowded,
}
