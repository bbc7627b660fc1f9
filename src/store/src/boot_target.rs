//! Targets that a machine can boot, and the content of the operator's files about the machine.

use super::machine_migration::MigrationState;
use super::order_records::ReinstallOrder;
use model::machine_migration::MigrationSide;

/// Content of the operator's files about a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileAllocation {
    /// The machine file contains this allocation.
    Allocated(String),
    /// The machine file contains no allocation.
    Free,
    /// The machine does not have a usable machine file.
    Nothing,
}

/// Target that a machine boots, with the reason for this decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootTarget {
    /// The ramdisk: the machine will be installed, or waits for its machine file or its allocation.
    Install,
    /// The ramdisk, which attempts to carry out this reinstall order.
    Attempt(ReinstallOrder),
    /// The ramdisk, whose agent boots the installed system. The reinstall order needs the operator's confirmation,
    /// because the database was restored.
    Unconfirmed(ReinstallOrder),
    /// The disk: the machine is installed, and no reinstall is ordered.
    Disk,
    /// The disk. The reinstall order is abandoned, since all of its attempts have ended before the point of no return.
    Dropped(ReinstallOrder),
    /// The disk. According to the database, the machine's allocation is installed under another machine id. Contains
    /// that id.
    Elsewhere(String),
    /// The disk: the machine is installed, but does not have a usable machine file.
    NoFile,
    /// The ramdisk without the agent. The reinstall order was abandoned after its point of no return, and the operator
    /// must intervene.
    Stop(ReinstallOrder),
    /// The ramdisk, for the machine's role in a migration.
    Moving(MigrationSide, MigrationState),
    /// The ramdisk, in which the machine waits: its disks contain a system that belongs to another machine.
    Released,
    /// No boot: the machine does not have a machine file, and the limit of unknown machines is reached.
    Crowded,
}

impl BootTarget {
    /// Returns whether the machine must not boot the system on its disks, even if its ramdisk cannot be loaded. That is
    /// the case if the system is incomplete, or may run on another machine.
    pub fn excludes_disk(&self) -> bool {
        match self {
            BootTarget::Attempt(order) => order.begun,
            BootTarget::Stop(_) | BootTarget::Moving(..) | BootTarget::Released => true,
            _ => false,
        }
    }
}
