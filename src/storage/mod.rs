//! Disk operations, one file for each kernel interface or tool. Typed input, typed output; all decisions are made by
//! the plan.

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

/// Returns the tools that an installation requires. hdparm is optional: without it, ATA security erase is not used.
pub fn tools() -> Vec<&'static str> {
    [filesystem::TOOLS, raid::TOOLS, lvm::TOOLS, release::TOOLS].concat()
}
