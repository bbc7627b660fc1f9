//! Preparation of a pool machine before it waits: LLDP neighbours are detected, and the disks are erased.

use super::ending::Failure;
use super::{Agent, marked, remembered};
use crate::allocation::Allocation;
use crate::console::say;
use crate::control::Pool;
use crate::error::{Error, Phase, Result};
use crate::inventory::Inventory;
use crate::inventory::lldp::{self, Heard, Leaves};
use crate::plan::pool_disks::{self, ConnectedDisk, KnownDisk};
use crate::plan::{self, Leaves as Left, Owner, Plan, Subject};
use crate::ready;
use crate::session::{Session, Trust};
use crate::survey::{self, Depth, lldp as ears};
use crate::text::{CONSOLE_COLUMNS, folded};
use std::time::{Duration, Instant};

/// Time to wait for LLDP. Switches send every 10 to 30 seconds, and links need time to come up.
const LISTEN: Duration = Duration::from_secs(180);

impl Agent {
    /// Returns the LLDP neighbours of the network interfaces. A machine that does not detect both leaves is registered anyway, and the
    /// control plane decides.
    pub(super) fn listen(&self, inventory: &Inventory) -> Result<Vec<Heard>> {
        let heard = ears::listen(&inventory.nics, LISTEN, &say)?;
        let leaves = lldp::leaves(&heard);
        say(&ears::in_words(&leaves));
        Ok(match leaves {
            Leaves::Both(cards) => cards,
            Leaves::TooFew { .. } | Leaves::TooMany(_) => heard,
        })
    }

    /// Waits for the disks of earlier boots. Returns the inventory and the missing disks. All of them stay recorded, since the following
    /// registration contains only those that are present.
    pub(super) fn await_known_disks(&self, pool: &dyn Pool, began: Instant) -> Result<(Inventory, Vec<KnownDisk>)> {
        let known = pool.known_disks()?;
        ready::known_disks(&known, began)?;
        let inventory = survey::read(Depth::Deep)?;
        let missing = pool_disks::find_missing(&known, &inventory.disks);
        for disk in &missing {
            say(&format!("{disk} was present at an earlier boot, but was not found"));
        }
        remember(pool, &inventory, &missing);
        Ok((inventory, missing))
    }

    /// Erases every disk unless the disks contain the installation of the current owner. `missing` are disks of earlier boots.
    pub(super) fn make_empty(&mut self, pool: &dyn Pool, missing: &[KnownDisk]) -> Result<(), Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        ready::require_tools().map_err(at("tools"))?;
        let inventory = ready::assembled_inventory().map_err(at("plan"))?;
        let at_stake = inventory.disks.iter().any(|disk| !disk.removable && !disk.blank);
        let allocation = match pool.allocated(at_stake).map_err(at("control.wait"))? {
            true => self.control.machine().map_err(at("control.wait"))?.allocation,
            false => None,
        };
        let plan = match self.erasure(&inventory, allocation.as_ref(), missing) {
            Ok(plan) => plan,
            Err(error) => {
                return Err(Box::new(Failure { allocation: allocation.unwrap_or_default(), ..*at("plan")(error) }));
            }
        };
        let is_free = allocation.is_none();
        let has_disks = inventory.disks.iter().any(|disk| !disk.removable);
        if plan.is_some() || !has_disks {
            self.erased = Some(inventory.disks.iter().map(ConnectedDisk::from).collect());
        }
        if let Some(plan) = plan {
            self.erase(&plan, allocation.unwrap_or_default())?;
        }
        if is_free && !missing.is_empty() {
            let lost = missing.iter().map(|disk| KnownDisk { written_off: true, ..disk.clone() });
            remember(pool, &inventory, &lost.collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Erases disks that were connected after the others had been erased, since they may contain data of the last owner.
    pub(super) fn erase_newcomers(&self, allocation: &Allocation) -> Result<(), Box<Failure>> {
        let failure = |error| Box::new(Failure::before_the_plan("plan", error));
        let Some(erased) = &self.erased else { return Ok(()) };
        let there = survey::read(Depth::Shallow).map_err(failure)?;
        if pool_disks::find_newcomers(erased, &there).is_none() {
            return Ok(());
        }
        let inventory = ready::assembled_inventory().map_err(failure)?;
        let Some(newcomers) = pool_disks::find_newcomers(erased, &inventory) else { return Ok(()) };
        for disk in &newcomers.disks {
            say(&format!("{} was connected after the other disks had been erased", disk.device));
        }
        match self.erasure(&newcomers, Some(allocation), &[]).map_err(failure)? {
            Some(plan) => self.erase(&plan, allocation.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn erasure(
        &self,
        inventory: &Inventory,
        allocation: Option<&Allocation>,
        missing: &[KnownDisk],
    ) -> Result<Option<Plan>> {
        let owner = match allocation {
            None => Owner::Nobody,
            Some(of @ Allocation { id, reinstall, succeeded, .. }) => {
                let reinstall = *reinstall || marked::keeps(&self.machine, of, inventory);
                Owner::Somebody { allocation: id, reinstall, installed: *succeeded }
            }
        };
        if let Some(allocation) = allocation {
            marked::nothing_is_lost(&self.machine, allocation, inventory)?;
        }
        if let Owner::Somebody { allocation, reinstall: false, installed: false } = owner
            && !plan::is_installed(inventory, &self.machine, allocation)
        {
            remembered::all_was_looked_into(inventory)?;
        }
        let (machine, image) = (self.machine.clone(), "nothing".to_owned());
        let subject = Subject { machine, image, ..Subject::default() };
        let planned = plan::empty(inventory, owner, missing, subject);
        planned.map_err(|refusal| Error::new(Phase::Plan, refusal.to_string()))
    }

    fn erase(&self, plan: &Plan, allocation: Allocation) -> Result<(), Box<Failure>> {
        let text = plan.to_string();
        say(&format!(
            "\nThe disks of this machine will be erased for its next owner.\n\n{}",
            folded(&text, CONSOLE_COLUMNS)
        ));
        let mut session = Session::new(self.reporter.clone(), self.control.clone(), Trust::default());
        let done = session.run(plan);
        done.map_err(|failure| Box::new(Failure::of_the_plan(failure, allocation, text)))?;
        session.leave(Left::Complete);
        Ok(())
    }
}

/// Records the disks for later boots. A machine without storage for the record continues, and its next boot does not wait for specific
/// disks.
fn remember(pool: &dyn Pool, inventory: &Inventory, missing: &[KnownDisk]) {
    let disks = pool_disks::remember(&inventory.disks, missing);
    if let Err(error) = pool.remember_disks(&disks) {
        tracing::warn!("{error}; a disk that is slow to appear at the next boot may be overlooked");
    }
}

/// Returns the message of the event `Waiting`, which operators read.
pub(super) fn purpose_of_waiting(missing: &[KnownDisk]) -> String {
    let missing: Vec<String> = missing.iter().map(KnownDisk::to_string).collect();
    match missing.is_empty() {
        true => "for an allocation".to_owned(),
        false => format!("for an allocation; disks not found and not erased: {}", missing.join(", ")),
    }
}

/// Adds LLDP neighbours to an inventory.
pub fn with_leaves(mut inventory: Inventory, heard: &[Heard]) -> Inventory {
    for nic in &mut inventory.nics {
        let own = heard.iter().find(|heard| heard.nic == nic.name);
        nic.neighbours = own.map(|heard| heard.neighbours.clone()).unwrap_or_default();
    }
    inventory
}
