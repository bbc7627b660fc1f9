//! Preparation of a plan: checks that tools exist, waits until the disks have appeared, and assembles and reads
//! everything on the disks.

mod disk_settling;
mod opaque_object_refusal;
pub(crate) mod order_number_check;
pub(crate) mod passphrase_prompt;
pub(crate) mod preserved_container_unlock;
pub(crate) mod reinstall_without_order;
pub(crate) mod state_from_markers;

use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use disk_settling::{DiskSettling, DiskWaitLimits};
use linux::console_log;
use linux::probe::{self, ProbeDepth};
use linux::process;
use linux::storage::read_only_assembly::ReadOnlyAssembly;
use linux::storage::write_protection::WriteLocks;
use linux::storage::{self, interrupted_gpt_edit, read_only_assembly};
use model::device_name::DevicePath;
use model::inventory::{InspectionFailure, Inventory};
use model::layout::Layout;
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use model::pool_machine_disks::{self, KnownDisk};
use model::storage_graph;
use std::thread;
use std::time::{Duration, Instant};

/// Checks before the installation that all required tools exist, so that the installation does not fail halfway because
/// a tool is missing.
///
/// # Errors
/// Fails if the ramdisk lacks a tool.
pub(crate) fn require_tools() -> Result<()> {
    let missing = process::find_missing_tools(&storage::required_tools());
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the ramdisk lacks {tools}; rebuild the ramdisk with scripts/build-ramdisk",
        tools = missing.join(", ")
    );
    Err(Error::new(Phase::Settings, message).with_code(ErrorCode::RamdiskToolMissing))
}

/// Function that unlocks the encrypted containers of an inventory. Returns the containers that remain locked.
pub(crate) type UnlockContainers<'a> = dyn FnMut(&Inventory) -> Vec<InspectionFailure> + 'a;

/// Waits until every disk of the layout has appeared and the disks have stopped changing, within the time limits in
/// `disk_settling`.
///
/// # Errors
/// Fails if the inventory cannot be read.
pub(crate) fn wait_for_layout_disks(layout: &Layout) -> Result<()> {
    let are_there = |inventory: &Inventory| {
        layout.disks.iter().all(|disk| storage_graph::disk_lookup::find_disk(disk, inventory).is_ok())
    };
    wait_for_disks(DiskWaitLimits::LAYOUT, Instant::now(), &are_there)
}

/// Waits until all disks recorded by earlier boots of a pool machine have appeared, and the set of disks has stopped
/// changing. The time limits are measured from `began`.
///
/// # Errors
/// Fails if the inventory cannot be read.
pub(crate) fn wait_for_known_disks(known: &[KnownDisk], began: Instant) -> Result<()> {
    let patience = if known.is_empty() { DiskWaitLimits::FIRST_BOOT } else { DiskWaitLimits::POOL };
    let are_there = |inventory: &Inventory| {
        let missing = pool_machine_disks::find_missing(known, &inventory.disks);
        !known.is_empty() && missing.iter().all(|disk| disk.written_off)
    };
    wait_for_disks(patience, began, &are_there)
}

fn wait_for_disks(patience: DiskWaitLimits, began: Instant, are_there: &dyn Fn(&Inventory) -> bool) -> Result<()> {
    let mut still = DiskSettling::with_patience(patience);
    loop {
        let inventory = probe::read_inventory(ProbeDepth::Shallow)?;
        if still.is_over(&inventory.disks, are_there(&inventory), began.elapsed()) {
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Registers preserved partitions with the kernel if an interrupted attempt has damaged the first copy of a partition
/// table. Examines only disks that the layout preserves in part, and does not write to them.
///
/// # Errors
/// Fails if the inventory or a partition table cannot be read, or if the kernel refuses a partition.
pub(crate) fn register_preserved_partitions(layout: &Layout) -> Result<()> {
    let graph = LayoutGraph::from_layout(layout);
    let preserved = PreservedObjects::from_graph(&graph);
    let mut renewed = layout.disks.iter().filter(|disk| preserved.includes_part_of(disk)).peekable();
    if renewed.peek().is_none() {
        return Ok(());
    }
    let inventory = probe::read_inventory(ProbeDepth::Shallow)?;
    for disk in renewed.filter_map(|disk| storage_graph::disk_lookup::find_disk(disk, &inventory).ok()) {
        let registered = interrupted_gpt_edit::register_backup_partitions(&disk.device)?;
        if !registered.is_empty() {
            console_log::print_line(&format!(
                "{device}: the first copy of the partition table is damaged, as after an interrupted attempt; the \
                 partitions of its second copy are used",
                device = disk.device
            ));
        }
    }
    Ok(())
}

/// Assembles everything on the disks and reads the inventory. The contents of an array are visible only while the array
/// is running.
///
/// # Errors
/// Fails if the disks cannot be assembled or read.
pub(crate) fn read_assembled_inventory() -> Result<Inventory> {
    read_assembled_with(None)
}

/// Like [`read_assembled_inventory`], but for a machine whose disks must not be written. The disks are made read-only
/// before they are first read, and stay read-only until the returned locks are released.
///
/// # Errors
/// Fails if the disks cannot be assembled, read or locked.
pub(crate) fn read_locked_inventory() -> Result<(Inventory, WriteLocks)> {
    let assembled = read_only_assembly::assemble_read_only(&list_disks()?)?;
    let mut inventory = probe::read_inventory(ProbeDepth::Deep)?;
    assembled.mark_inventory(&mut inventory);
    let locks = assembled.inspect_and_keep_locks(&mut inventory)?;
    Ok((inventory, locks))
}

/// Inspection of the disks of a machine that is not installed yet.
pub(crate) struct DiskInspection {
    pub inventory: Result<Inventory>,
    /// Devices that the inspection has started, and that could not be stopped; `None` if all were stopped.
    pub running: Option<ReadOnlyAssembly>,
}

/// Reads the inventory as [`read_locked_inventory`] does, and then stops everything that was assembled. The disks are
/// read-only until then.
pub(crate) fn inspect_disks() -> DiskInspection {
    let assembled = list_disks().and_then(|disks| read_only_assembly::assemble_read_only(&disks));
    let mut assembled = match assembled {
        Ok(assembled) => assembled,
        Err(error) => return DiskInspection { inventory: Err(error), running: None },
    };
    let inventory = probe::read_inventory(ProbeDepth::Deep).and_then(|mut inventory| {
        assembled.mark_inventory(&mut inventory);
        assembled.inspect_locked(&mut inventory).map(|()| inventory)
    });
    let stopped = assembled.take_down();
    let running = stopped.is_err().then_some(assembled);
    if let Err(error) = stopped {
        console_log::print_line(&format!("{error}; this is tried again before the installation"));
    }
    DiskInspection { inventory, running }
}

fn list_disks() -> Result<Vec<DevicePath>> {
    Ok(probe::read_inventory(ProbeDepth::Shallow)?.disks.into_iter().map(|disk| disk.device).collect())
}

/// Reads the inventory with [`read_assembled_inventory`] after `open` has unlocked the encrypted containers.
///
/// # Errors
/// Fails if the disks cannot be assembled or read.
pub(crate) fn read_assembled_with(open: Option<&mut UnlockContainers>) -> Result<Inventory> {
    let mut assembled = read_only_assembly::assemble_read_only(&list_disks()?)?;
    let failed = open.map(|open| unlock_assembled(&mut assembled, open)).transpose()?;
    // The disks are made writable before the inventory is read. Otherwise, the inventory would describe the disks that
    // this program has locked as write-protected disks.
    assembled.unlock_disks()?;
    let mut inventory = probe::read_inventory(ProbeDepth::Deep)?;
    assembled.mark_inventory(&mut inventory);
    inventory.failed.extend(failed.into_iter().flatten());
    preserved_container_unlock::record_untried_containers(&mut inventory);
    assembled.inspect_filesystems(&mut inventory)?;
    Ok(inventory)
}

/// Unlocks containers while the disks are read-only.
fn unlock_assembled(
    assembled: &mut read_only_assembly::ReadOnlyAssembly,
    open: &mut UnlockContainers,
) -> Result<Vec<InspectionFailure>> {
    let opened = probe::read_inventory(ProbeDepth::Deep).map(|inventory| open(&inventory));
    opened.and_then(|failed| assembled.assemble_again().map(|()| failed)).inspect_err(|_| {
        // Unlocking the containers has failed. If the disks also cannot be made writable again, the first error is
        // the more informative one.
        let _ = assembled.unlock_disks();
    })
}
