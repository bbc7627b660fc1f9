//! Inspection of the disks while the machine waits for its allocation. The control plane stores the result, so that an
//! operator can derive a layout from the machine that another installer has installed. The disks are not written.

use super::{InstallAgent, WAIT};
use crate::preflight::DiskInspection;
use common::error::{Context, Phase, Result};
use linux::console_log::print_line;
use model::allocation::{Allocation, AssignedMachine};
use model::inventory::Inventory;
use std::time::Duration;

/// Time that the machine waits for an allocation before it inspects its disks. An allocation that already exists is
/// thus carried out without delay, and disks that appear late are inspected too.
const WAIT_BEFORE_INSPECTION: Duration = Duration::from_secs(10);

impl InstallAgent {
    /// Waits for the allocation. If the machine has none yet, calls `inspect`, and registers the machine again with the
    /// contents of its disks.
    pub(super) fn await_allocation(
        &mut self,
        inspect: &dyn Fn() -> DiskInspection,
    ) -> Result<(AssignedMachine, Allocation)> {
        let mut is_inspected = !self.control.stores_inventory();
        loop {
            let patience = if is_inspected { WAIT } else { WAIT_BEFORE_INSPECTION };
            if self.control.wait_for_allocation(patience)? {
                let machine = self.control.fetch_machine()?;
                if let Some(allocation) = machine.allocation.clone() {
                    return Ok((machine, allocation));
                }
            } else if !is_inspected {
                self.register_contents(inspect());
                is_inspected = true;
            }
        }
    }

    /// Registers the inspected inventory. A failure is only logged, because the machine has already registered.
    fn register_contents(&mut self, inspection: DiskInspection) {
        self.inspection = inspection.running;
        let registered = inspection.inventory.and_then(|mut inventory| {
            for object in inventory.find_opaque_objects() {
                print_line(&format!("not inspected: {object}: {reason}", reason = object.reason));
            }
            remove_secrets(&mut inventory);
            self.control.register_machine(&inventory)
        });
        match registered {
            Ok(()) => print_line("the contents of the disks were read and registered; nothing was written"),
            Err(error) => print_line(&format!(
                "the machine is registered without the contents of its disks, because the inspection has failed: {error}"
            )),
        }
    }

    /// Stops devices that the inspection could not stop, because they were in use.
    ///
    /// # Errors
    /// Fails if a device is still in use. A plan must not be made then: it would treat the read-only devices of the
    /// inspection as devices of the installed system.
    pub(super) fn end_inspection(&mut self) -> Result<()> {
        if let Some(running) = &mut self.inspection {
            let what = || "stop the devices of the inspection; boot the machine again";
            running.take_down().context(Phase::Storage, what)?;
        }
        self.inspection = None;
        Ok(())
    }
}

/// Removes secrets that a layout does not require: the secrets of install markers, and passwords in fstabs.
fn remove_secrets(inventory: &mut Inventory) {
    for filesystem in &mut inventory.filesystems {
        if let Some(marker) = &mut filesystem.marker {
            marker.secret = None;
        }
        if let Some(fstab) = &mut filesystem.fstab {
            *fstab = fstab.split_inclusive('\n').map(remove_passwords).collect();
        }
    }
}

/// Removes the values of options such as `password=`, with which network filesystems are mounted.
fn remove_passwords(line: &str) -> String {
    let redact = |option: &str| match option.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("pass") => format!("{name}="),
        _ => option.to_owned(),
    };
    let redact_field = |field: &str| field.split(',').map(redact).collect::<Vec<_>>().join(",");
    let is_blank = |text: char| text.is_ascii_whitespace();
    line.split_inclusive(is_blank)
        .map(|field| {
            let text = field.trim_end_matches(is_blank);
            redact_field(text) + &field[text.len()..]
        })
        .collect()
}

#[cfg(test)]
mod tests;
