//! What comes before a plan on a machine: the tools are there, its disks have appeared, and all that is on them was assembled and read.

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

/// Names missing tools before anything happens, not in the middle of an install.
///
/// # Errors
/// The ramdisk was built without them.
pub fn require_tools() -> Result<()> {
    let missing = command::missing(&storage::tools());
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the ramdisk has no {}: build it again with initramfs/build", missing.join(", "));
    Err(Error::new(Phase::Settings, message))
}

/// Opens what it finds in there, and tells what does not open.
pub type Open<'a> = dyn FnMut(&Inventory) -> Vec<Failed> + 'a;

/// Waits until every disk of the layout is found and the disks have stopped changing. `still` says how long at most.
///
/// # Errors
/// What is there cannot be read.
pub fn late_disks(layout: &Layout) -> Result<()> {
    let are_there =
        |inventory: &Inventory| layout.disks.iter().all(|disk| topology::find::disk(disk, inventory).is_ok());
    wait_for_disks(DiskPatience::LAYOUT, Instant::now(), &are_there)
}

/// Waits until every disk is found that earlier boots of a pool machine have seen, and the disks have stopped changing. The time since
/// `began` counts.
///
/// # Errors
/// What is there cannot be read.
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

/// Assembles everything on the disks and reads the inventory. The content of an array is visible only while the array runs.
///
/// # Errors
/// What is there cannot be assembled or read.
pub fn assembled_inventory() -> Result<Inventory> {
    assembled_and(None)
}

/// The same on a machine whose disks are only read: they refuse writes from before the first of them is looked at, until these locks are
/// given up.
///
/// # Errors
/// What is there cannot be assembled, read or locked.
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

/// [`assembled_inventory`] after `open` has opened more.
///
/// # Errors
/// What is there cannot be assembled or read.
pub fn assembled_and(open: Option<&mut Open>) -> Result<Inventory> {
    let mut assembled = assemble::assemble(&disks()?)?;
    let failed = open.map(|open| open_within(&mut assembled, open)).transpose()?;
    // Unlock before the inventory is read: it would show a disk that this program has locked as write-protected.
    assembled.unlock()?;
    let mut inventory = survey::read(Depth::Deep)?;
    assembled.mark(&mut inventory);
    inventory.failed.extend(failed.into_iter().flatten());
    opened::note_untried(&mut inventory);
    assembled.look(&mut inventory)?;
    Ok(inventory)
}

/// The disks still refuse writes.
fn open_within(assembled: &mut assemble::Assembled, open: &mut Open) -> Result<Vec<Failed>> {
    let opened = survey::read(Depth::Deep).map(|inventory| open(&inventory));
    opened.and_then(|failed| assembled.build_again().map(|()| failed)).inspect_err(|_| {
        // The first error tells more than an error of the unlocking.
        let _ = assembled.unlock();
    })
}
