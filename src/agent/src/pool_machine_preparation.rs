//! Preparation of a pool machine before it waits for an allocation: LLDP neighbors are detected, and the disks are
//! erased.

use super::failure_handling::InstallFailure;
use super::plan_refusal::{plan_refusal_error, print_refused_plan};
use super::{InstallAgent, reinstall_without_order, state_from_markers};
use crate::executor::{ImageTrust, PlanExecutor};
use crate::preflight;
use common::error::Result;
use common::format::{CONSOLE_COLUMNS, fold_lines};
use control::MachinePool;
use linux::console_log::print_line;
use linux::probe::{self, ProbeDepth, lldp_receiver as ears};
use model::allocation::Allocation;
use model::inventory::Inventory;
use model::inventory::lldp::{self, LeafSearch, NicNeighbors};
use model::layout::root_device_hints;
use model::pool_machine_disks::{self, ConnectedDisk, KnownDisk};
use operations::FailureState as Left;
use plan::{Plan, PlanSubject, PoolAllocation};
use std::time::{Duration, Instant};

/// Time to wait for LLDP. Switches send every 10 to 30 seconds, and links need time to come up.
const LISTEN: Duration = Duration::from_secs(180);

impl InstallAgent {
    /// Returns the LLDP neighbors of the network interfaces. A machine that does not detect both leaf switches
    /// registers anyway, and the control plane decides whether to accept the machine.
    pub(super) fn detect_lldp_neighbors(&self, inventory: &Inventory) -> Result<Vec<NicNeighbors>> {
        let heard = ears::receive_neighbors(&inventory.nics, LISTEN, &print_line)?;
        let leaves = lldp::select_leaves(&heard);
        print_line(&ears::describe_search(&leaves));
        Ok(match leaves {
            LeafSearch::Both(nics) => nics,
            LeafSearch::TooFew { .. } | LeafSearch::TooMany(_) => heard,
        })
    }

    /// Waits for the disks that earlier boots recorded. Returns the inventory and the missing disks. Records both the
    /// present and the missing disks for later boots, because the registration that follows reports only the present
    /// disks.
    pub(super) fn await_known_disks(
        &self,
        pool: &dyn MachinePool,
        began: Instant,
    ) -> Result<(Inventory, Vec<KnownDisk>)> {
        let known = pool.known_disks()?;
        preflight::wait_for_known_disks(&known, began)?;
        let inventory = probe::read_inventory(ProbeDepth::Deep)?;
        let missing = pool_machine_disks::find_missing(&known, &inventory.disks);
        for disk in &missing {
            print_line(&format!("{disk} was present during an earlier boot, but is absent now"));
        }
        record_disks(pool, &inventory, &missing);
        Ok((inventory, missing))
    }

    /// Erases every disk, unless the disks contain the installation of the current owner. `missing` lists the absent
    /// disks that earlier boots recorded.
    pub(super) fn erase_for_next_owner(
        &mut self,
        pool: &dyn MachinePool,
        missing: &[KnownDisk],
    ) -> Result<(), Box<InstallFailure>> {
        let at = |step: &'static str| move |error| Box::new(InstallFailure::new_before_plan(step, error));
        preflight::require_tools().map_err(at("tools"))?;
        let inventory = preflight::read_assembled_inventory().map_err(at("plan"))?;
        let at_stake = inventory.disks.iter().any(|disk| !disk.removable && !disk.blank);
        let allocation = match pool.is_allocated(at_stake).map_err(at("control.wait"))? {
            true => self.control.fetch_machine().map_err(at("control.wait"))?.allocation,
            false => None,
        };
        let plan = match self.plan_erasure(&inventory, allocation.as_ref(), missing) {
            Ok(plan) => plan,
            Err(error) => {
                return Err(Box::new(InstallFailure {
                    allocation: allocation.unwrap_or_default(),
                    ..*at("plan")(error)
                }));
            }
        };
        let is_free = allocation.is_none();
        let has_disks = !inventory.disks.iter().all(root_device_hints::is_portable);
        if plan.is_some() || !has_disks {
            self.erased = Some(inventory.disks.iter().map(ConnectedDisk::from).collect());
        }
        if let Some(plan) = plan {
            self.run_erasure(&plan, allocation.unwrap_or_default())?;
        }
        if is_free && !missing.is_empty() {
            let lost = missing.iter().map(|disk| KnownDisk { written_off: true, ..disk.clone() });
            record_disks(pool, &inventory, &lost.collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Erases disks that were connected only after the other disks had been erased. Such disks may contain data of the
    /// previous owner.
    pub(super) fn erase_newcomers(&self, allocation: &Allocation) -> Result<(), Box<InstallFailure>> {
        let failure = |error| Box::new(InstallFailure::new_before_plan("plan", error));
        let Some(erased) = &self.erased else { return Ok(()) };
        let there = probe::read_inventory(ProbeDepth::Shallow).map_err(failure)?;
        if pool_machine_disks::find_newcomers(erased, &there).is_none() {
            return Ok(());
        }
        let inventory = preflight::read_assembled_inventory().map_err(failure)?;
        let Some(newcomers) = pool_machine_disks::find_newcomers(erased, &inventory) else { return Ok(()) };
        for disk in &newcomers.disks {
            print_line(&format!(
                "disk {device} was connected after the other disks had been erased",
                device = disk.device
            ));
        }
        match self.plan_erasure(&newcomers, Some(allocation), &[]).map_err(failure)? {
            Some(plan) => self.run_erasure(&plan, allocation.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn plan_erasure(
        &self,
        inventory: &Inventory,
        allocation: Option<&Allocation>,
        missing: &[KnownDisk],
    ) -> Result<Option<Plan>> {
        let owner = match allocation {
            None => PoolAllocation::Unallocated,
            Some(of @ Allocation { id, reinstall, succeeded, .. }) => {
                let reinstall = *reinstall || reinstall_without_order::preserves_disks(&self.machine, of, inventory);
                PoolAllocation::Allocated { allocation: id, reinstall, installed: *succeeded }
            }
        };
        if let Some(allocation) = allocation {
            reinstall_without_order::refuse_data_loss(&self.machine, allocation, inventory)?;
        }
        if let PoolAllocation::Allocated { allocation, reinstall: false, installed: false } = owner
            && !plan::is_installed(inventory, &self.machine, allocation)
        {
            state_from_markers::require_all_read(inventory)?;
        }
        let (machine, image) = (self.machine.clone(), "nothing".to_owned());
        let subject = PlanSubject { machine, image, ..PlanSubject::default() };
        let planned = plan::plan_emptying(inventory, owner, missing, subject);
        planned.map_err(|refusal| {
            print_refused_plan(&refusal);
            plan_refusal_error(&refusal)
        })
    }

    fn run_erasure(&self, plan: &Plan, allocation: Allocation) -> Result<(), Box<InstallFailure>> {
        let text = plan.to_string();
        print_line(&format!(
            "\nThe disks of this machine will be erased for its next owner.\n\n{plan}",
            plan = fold_lines(&text, CONSOLE_COLUMNS)
        ));
        let mut session = PlanExecutor::new(self.reporter.clone(), self.control.clone(), ImageTrust::default());
        let done = session.run_plan(plan);
        done.map_err(|failure| Box::new(InstallFailure::from_plan_failure(failure, allocation, text)))?;
        session.leave_session(Left::Complete);
        Ok(())
    }
}

/// Records the disks for later boots. A machine that cannot store the record continues. At its next boot, it does not
/// know which disks to wait for.
fn record_disks(pool: &dyn MachinePool, inventory: &Inventory, missing: &[KnownDisk]) {
    let disks = pool_machine_disks::disks_to_record(&inventory.disks, missing);
    if let Err(error) = pool.remember_disks(&disks) {
        tracing::warn!("{error}; at the next boot, a disk that the kernel detects late may be overlooked");
    }
}

/// Returns the message of the event `Waiting`. Operators see this message.
pub(super) fn describe_wait(missing: &[KnownDisk]) -> String {
    let missing: Vec<String> = missing.iter().map(KnownDisk::to_string).collect();
    match missing.is_empty() {
        true => "for an allocation".to_owned(),
        false => format!(
            "for an allocation; these disks were absent and are therefore not erased: {missing_disks}",
            missing_disks = missing.join(", ")
        ),
    }
}

/// Adds LLDP neighbors to an inventory.
pub(crate) fn add_lldp_neighbors(mut inventory: Inventory, heard: &[NicNeighbors]) -> Inventory {
    for nic in &mut inventory.nics {
        let own = heard.iter().find(|heard| heard.nic == nic.name);
        nic.neighbors = own.map(|heard| heard.neighbors.clone()).unwrap_or_default();
    }
    inventory
}
