//! Disks, one file a kernel interface or tool. Typed input, typed output, no decisions: those are in the plan.

pub mod assemble;
mod btrfs;
pub mod busy;
pub mod erase;
pub mod filesystem;
pub mod fit;
pub mod gpt;
pub mod grow;
pub mod identify;
mod journal;
pub mod kernel;
pub mod lock;
pub mod look;
mod loops;
pub mod luks;
pub mod lvm;
pub mod memory;
pub mod mount;
pub mod overlay;
pub mod prepare;
pub mod raid;
pub mod rehearse;
pub mod release;
mod scratch;
pub mod trial;
pub mod wipe;
pub mod writeback;
pub mod zeros;

#[cfg(test)]
mod features;
#[cfg(test)]
pub(crate) mod loopdev;
#[cfg(test)]
pub(crate) mod vmdisks;

/// The tools that an installation needs. hdparm is not among them: a disk offers its security erase only where hdparm
/// is there.
pub fn tools() -> Vec<&'static str> {
    [filesystem::TOOLS, raid::TOOLS, lvm::TOOLS, release::TOOLS].concat()
}
