//! What a machine of a pool goes through before it waits: its leaves are heard, and its disks are empty.

use super::ending::Failure;
use super::{Agent, marked, remembered};
use crate::allocation::Allocation;
use crate::control::Pool;
use crate::error::{Error, Phase, Result};
use crate::inventory::Inventory;
use crate::inventory::lldp::{self, Heard, Leaves};
use crate::layout::Layout;
use crate::plan::{self, Leaves as Left, Owner, Plan, Subject};
use crate::ready;
use crate::session::{Session, Trust};
use crate::survey::lldp as ears;
use crate::text::{CONSOLE_COLUMNS, folded};
use std::time::Duration;

/// Switches speak every 10 to 30 seconds; a link takes its time to come up.
const LISTEN: Duration = Duration::from_secs(180);

impl Agent {
    /// What the cards hear of the leaves. A machine that does not hear both is registered all the same: the control plane says what it
    /// thinks of that.
    pub(super) fn listen(&self, inventory: &Inventory) -> Result<Vec<Heard>> {
        let heard = ears::listen(&inventory.nics, LISTEN, &|line| println!("{line}"))?;
        let leaves = lldp::leaves(&heard);
        println!("{}", ears::in_words(&leaves));
        Ok(match leaves {
            Leaves::Both(cards) => cards,
            Leaves::TooFew { .. } | Leaves::TooMany(_) => heard,
        })
    }

    /// Erases every disk, unless what is on them belongs to whoever has the machine.
    pub(super) fn make_empty(&self, pool: &dyn Pool) -> Result<(), Box<Failure>> {
        let at = |step: &'static str| move |error| Box::new(Failure::before_the_plan(step, error));
        ready::require_tools().map_err(at("tools"))?;
        ready::late_disks(&Layout::default()).map_err(at("plan"))?;
        let inventory = ready::assembled_inventory().map_err(at("plan"))?;
        let at_stake = inventory.disks.iter().any(|disk| !disk.removable && !disk.blank);
        let allocation = match pool.allocated(at_stake).map_err(at("control.wait"))? {
            true => self.control.machine().map_err(at("control.wait"))?.allocation,
            false => None,
        };
        match self.erasure(&inventory, allocation.as_ref()) {
            Ok(None) => Ok(()),
            Ok(Some(plan)) => self.erase(&plan, allocation.unwrap_or_default()),
            Err(error) => Err(Box::new(Failure { allocation: allocation.unwrap_or_default(), ..*at("plan")(error) })),
        }
    }

    pub(super) fn erasure(&self, inventory: &Inventory, allocation: Option<&Allocation>) -> Result<Option<Plan>> {
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
        plan::empty(inventory, owner, subject).map_err(|refusal| Error::new(Phase::Plan, refusal.to_string()))
    }

    fn erase(&self, plan: &Plan, allocation: Allocation) -> Result<(), Box<Failure>> {
        let text = plan.to_string();
        println!(
            "\nThe disks of this machine are made empty for its next owner.\n\n{}",
            folded(&text, CONSOLE_COLUMNS)
        );
        let mut session = Session::new(self.reporter.clone(), self.control.clone(), Trust::default());
        let done = session.run(plan);
        done.map_err(|failure| Box::new(Failure::of_the_plan(failure, allocation, text)))?;
        session.leave(Left::Complete);
        Ok(())
    }
}

/// The inventory with what its cards have heard.
pub fn with_leaves(mut inventory: Inventory, heard: &[Heard]) -> Inventory {
    for nic in &mut inventory.nics {
        let own = heard.iter().find(|heard| heard.nic == nic.name);
        nic.neighbours = own.map(|heard| heard.neighbours.clone()).unwrap_or_default();
    }
    inventory
}
