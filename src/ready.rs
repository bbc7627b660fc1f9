//! Preparation of a plan: tools exist, disks have appeared, and everything on them is assembled and read.

pub mod asked;
pub mod file_order;
pub mod marked;
mod opaque;
pub mod opened;
pub mod remembered;
mod still;

use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use crate::inventory::{Failed, Inventory};
use crate::layout::Layout;
use crate::plan::pool_disks::{self, KnownDisk};
use crate::storage::lock::Locks;
use crate::storage::{self, assemble};
use crate::survey::{self, Depth};
use crate::{command, topology};
use std::thread;
use std::time::{Duration, Instant};
use still::{DiskPatience, Stillness};

/// Checks that all tools exist, rather than failing in the middle of an installation.
///
/// # Errors
/// Fails if the ramdisk lacks a tool.
pub fn require_tools() -> Result<()> {
    let missing = command::missing(&storage::tools());
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the ramdisk lacks {}; rebuild it with initramfs/build", missing.join(", "));
    Err(Error::new(Phase::Settings, message))
}

/// Function that unlocks containers of an inventory. Returns those that it could not unlock.
pub type Open<'a> = dyn FnMut(&Inventory) -> Vec<Failed> + 'a;

/// Waits until every disk of the layout has appeared and the disks have stopped changing. `still` defines the time limits.
///
/// # Errors
/// Fails if the inventory cannot be read.
pub fn late_disks(layout: &Layout) -> Result<()> {
    let are_there =
        |inventory: &Inventory| layout.disks.iter().all(|disk| topology::find::disk(disk, inventory).is_ok());
    wait_for_disks(DiskPatience::LAYOUT, Instant::now(), &are_there)
}

/// Waits until all disks of earlier boots of a pool machine have appeared and the disks have stopped changing. The time since `began`
/// counts.
///
/// # Errors
/// Fails if the inventory cannot be read.
pub fn known_disks(known: &[KnownDisk], began: Instant) -> Result<()> {
    let patience = if known.is_empty() { DiskPatience::FIRST_BOOT } else { DiskPatience::POOL };
    let are_there = |inventory: &Inventory| {
        let missing = pool_disks::find_missing(known, &inventory.disks);
        !known.is_empty() && missing.iter().all(|disk| disk.written_off)
    };
    wait_for_disks(patience, began, &are_there)
}

fn wait_for_disks(patience: DiskPatience, began: Instant, are_there: &dyn Fn(&Inventory) -> bool) -> Result<()> {
    let mut still = Stillness::with_patience(patience);
    loop {
        let inventory = survey::read(Depth::Shallow)?;
        if still.is_over(&inventory.disks, are_there(&inventory), began.elapsed()) {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Assembles everything on the disks and reads the inventory. The contents of an array are visible only while it runs.
///
/// # Errors
/// Fails if the disks cannot be assembled or read.
pub fn assembled_inventory() -> Result<Inventory> {
    assembled_and(None)
}

/// Like [`assembled_inventory`], for a machine whose disks must not be written: they are read-only before they are first read, until the
/// returned locks are released.
///
/// # Errors
/// Fails if the disks cannot be assembled, read or locked.
pub fn locked_inventory() -> Result<(Inventory, Locks)> {
    let assembled = assemble::assemble(&disks()?)?;
    let mut inventory = survey::read(Depth::Deep)?;
    assembled.mark(&mut inventory);
    let locks = assembled.look_and_stay_locked(&mut inventory)?;
    Ok((inventory, locks))
}

fn disks() -> Result<Vec<DevicePath>> {
    Ok(survey::read(Depth::Shallow)?.disks.into_iter().map(|disk| disk.device).collect())
}

/// Like [`assembled_inventory`], after `open` has unlocked containers.
///
/// # Errors
/// Fails if the disks cannot be assembled or read.
pub fn assembled_and(open: Option<&mut Open>) -> Result<Inventory> {
    let mut assembled = assemble::assemble(&disks()?)?;
    let failed = open.map(|open| open_within(&mut assembled, open)).transpose()?;
    // Unlock before the inventory is read, which would otherwise report disks locked by this program as write-protected.
    assembled.unlock()?;
    let mut inventory = survey::read(Depth::Deep)?;
    assembled.mark(&mut inventory);
    inventory.failed.extend(failed.into_iter().flatten());
    opened::note_untried(&mut inventory);
    assembled.look(&mut inventory)?;
    Ok(inventory)
}

/// Unlocks containers while the disks are read-only.
fn open_within(assembled: &mut assemble::Assembled, open: &mut Open) -> Result<Vec<Failed>> {
    let opened = survey::read(Depth::Deep).map(|inventory| open(&inventory));
    opened.and_then(|failed| assembled.build_again().map(|()| failed)).inspect_err(|_| {
        // The first error is more informative than an error of the unlocking.
        let _ = assembled.unlock();
    })
}
