//! Requests of the two machines, and the responses, which contain instructions for the agents.

use super::*;
use api::migration_requests::{MigrationRole, MigrationState};
use model::machine_migration::{MigrationAnswer, MigrationOffer, MigrationSide, interpret_answer as heard};
use proptest::prelude::*;
use site::allocation_resolution::resolve_allocation;
use store::boot_token::RequestedBoot;
use store::machine_migration::Migration;
use store::testing::*;
use store::{BootTarget, FileAllocation, MachineBoot, registered_boots};
use time::OffsetDateTime;

impl MigrationModel {
    pub(super) fn boot(&mut self, part: MigrationSide) -> Result<(), TestCaseError> {
        let given = self.sides[index(part)].picture.as_ref();
        let given = match given.map(|machine| machine.allocation.as_ref().map(|allocation| allocation.id.to_string())) {
            Some(Some(allocation)) => FileAllocation::Allocated(self.spelled(part, allocation)),
            Some(None) => FileAllocation::Free,
            None => FileAllocation::NoMachineFile,
        };
        let next = self.transact(|transaction| {
            let given = effective_files(transaction, id(part), given.clone())?;
            choose_boot(transaction, id(part), &given, false, &silent_boots())
        });
        match next {
            BootTarget::Disk | BootTarget::InstalledElsewhere(_) | BootTarget::NoFile | BootTarget::Suspended(_) => {
                self.sides[index(part)].leave();
                self.may_run(part, &format!("{next:?} by {given:?}"))
            }
            _ => {
                self.boots += 1;
                let hash = [self.boots; 32];
                self.transact(|transaction| {
                    let (machine, created) = (id(part).to_owned(), OffsetDateTime::now_utc());
                    let boot = RequestedBoot { machine, created, while_active: false };
                    registered_boots::replace_boot(transaction, &MachineBoot::from_request(hash, boot), "")
                });
                let side = &mut self.sides[index(part)];
                (side.before, side.boot, side.runs) = (side.boot, Some(hash), false);
                side.stands_for = None;
                Ok(())
            }
        }
    }

    /// Checks how an agent that waits in the ramdisk interprets the response: the agent may stop waiting only if the
    /// response states explicitly and truthfully that the migration has ended.
    fn is_heard_rightly(&self, part: MigrationSide, moving: Option<&MigrationOffer>) -> Result<(), TestCaseError> {
        let Some(order) = &self.sides[index(part)].stands_for else { return Ok(()) };
        let newest = find_last(&self.database, id(part)).unwrap().map(|migration| migration.to_status());
        let state = |order: &str| -> Migration {
            let select = "SELECT document FROM moves WHERE id = ?1";
            self.database.query_row(select, [order], |row| parse_column(row, 0)).unwrap().unwrap()
        };
        let (migration, said) = (state(order), heard(order, moving, newest.as_ref()));
        match said {
            MigrationAnswer::Role(_) => {
                prop_assert!(migration.state.is_open() && migration.state != MigrationState::Booting, "{migration:?}")
            }
            MigrationAnswer::Waiting(state) => {
                prop_assert!(migration.state.is_open() && migration.state.name() == state, "{state} {migration:?}")
            }
            MigrationAnswer::Done => {
                prop_assert!(migration.state == MigrationState::Done && self.received, "{migration:?}")
            }
            MigrationAnswer::Ended => {
                prop_assert!(!migration.state.is_open(), "its end is reported too early: {migration:?}")
            }
            MigrationAnswer::Unmentioned => {
                prop_assert!(false, "the response does not mention the migration {migration:?}")
            }
        }
        // A server of an earlier version sends a response without this field. The agent must never interpret it as the
        // end of the migration, whatever the files contain.
        let old = heard(order, moving, None);
        prop_assert!(matches!(old, MigrationAnswer::Role(_) | MigrationAnswer::Unmentioned), "{old:?}");
        Ok(())
    }

    pub(super) fn read_allocation(&mut self, part: MigrationSide) -> Result<(), TestCaseError> {
        if self.sides[index(part)].boot.is_none() {
            return Ok(());
        }
        let moving = self.moving(part);
        self.is_heard_rightly(part, moving.as_ref())?;
        let now = read_current_boots(&self.database, A, B).unwrap();
        let hands = find_live(&self.database, id(part))
            .unwrap()
            .map_or(MigrationRole::Unaffected, |migration| migration.role_in(id(part), now));
        let of = match hands {
            MigrationRole::Waiting => return Ok(()),
            MigrationRole::Source | MigrationRole::Target => MigrationSide::Source,
            MigrationRole::Unaffected => part,
        };
        let Some(machine) = self.sides[index(of)].picture.clone() else { return Ok(()) };
        let Some(allocation) = &machine.allocation else { return Ok(()) };
        let allocation = self.spelled(of, allocation.id.to_string());
        let install_state = read_install_state(&self.database, id(of), &allocation).unwrap();
        let Ok(Some(assigned)) = resolve_allocation(&machine, &install_state, &self.known) else { return Ok(()) };
        match (hands, part, assigned.installs) {
            (MigrationRole::Unaffected, _, false) => {
                // The agent boots the installed system, and does not send further requests.
                self.sides[index(part)].leave();
                self.may_run(part, &format!("{allocation} is installed"))
            }
            (MigrationRole::Unaffected, MigrationSide::Source, true) => {
                let open = find_live(&self.database, A).unwrap().is_some_and(|migration| migration.state.is_open());
                prop_assert!(allocation == NEW && !open, "A receives {allocation} to install");
                Ok(())
            }
            // The target may only install a new allocation, which replaces the system that the migration has started to
            // write.
            (MigrationRole::Unaffected, MigrationSide::Target, true) => {
                prop_assert!(allocation == NEW, "B receives {allocation} as a first installation");
                Ok(())
            }
            // A migrated system must never be installed from an image, so no allocation that permits this is sent to
            // the source or the target.
            _ => Ok(()),
        }
    }

    /// Returns the migration role of the machine, as `migration_requests::machine_requests` does. A machine has a
    /// role only if A's file is readable and contains the migrated allocation.
    fn moving(&self, part: MigrationSide) -> Option<MigrationOffer> {
        let now = read_current_boots(&self.database, A, B).unwrap();
        let migration = find_live(&self.database, id(part)).unwrap()?;
        if !matches!(migration.role_in(id(part), now), MigrationRole::Source | MigrationRole::Target) {
            return None;
        }
        let given = self.sides[0].picture.as_ref()?.allocation.as_ref()?;
        let is_it = given.id.as_str() == migration.allocation;
        is_it.then(|| MigrationOffer {
            order: migration.id.clone(),
            part,
            started: migration.state == MigrationState::Copying,
            awaits_approval: false,
            peer: None,
            carried: None,
            disks: Vec::new(),
        })
    }
}
