//! Rollouts in a database that was restored from a backup. The server power-cycles a member's machine only after the
//! operator has confirmed the machine and resumed the rollout.

use super::progress::observe_member;
use super::records::{list_ids, list_members_in_progress, store_member};
use super::summary::{read_summary, store_rollout};
use super::{MemberState, RolloutState};
use crate::server_leases::{self, ActionOrigin};
use crate::sql::{self, Transaction};

/// Halts all rollouts that have not ended, because the backup may lack the results of some members. Deletes the leases
/// on management controllers: they belong to a server process that has exited, and their actions must not be continued.
pub(crate) fn halt_restored(transaction: &Transaction) -> sql::Result<()> {
    let interrupted = server_leases::delete_leases(transaction)?;
    for id in list_ids(transaction, true)? {
        let Some(mut rollout) = read_summary(transaction, id)? else { continue };
        if rollout.record.limits.power_cycle {
            mark_members(transaction, id, &interrupted)?;
        }
        if matches!(rollout.state, RolloutState::Running | RolloutState::Stopped) {
            rollout.state = RolloutState::Halted;
            rollout.record.reason =
                "the database was restored from a backup: check the records of the machines, and run \
                `drophammer machine confirm` first"
                    .to_owned();
            store_rollout(transaction, &rollout)?;
        }
    }
    Ok(())
}

/// Records for each ordered member how the operator continues it. A power cycle that was not completed at the time of
/// the backup is carried out after the rollout is resumed; a completed power cycle is not repeated.
fn mark_members(transaction: &Transaction, id: i64, interrupted: &[ActionOrigin]) -> sql::Result<()> {
    for (number, mut member) in list_members_in_progress(transaction, id)? {
        if member.state != MemberState::Ordered || observe_member(transaction, &member)?.0 != MemberState::Ordered {
            continue;
        }
        if interrupted.contains(&ActionOrigin::Rollout { rollout: id, number }) {
            member.record.power_cycled.clear();
        }
        let next = match member.record.power_cycled.is_empty() {
            true => format!("and then `drophammer rollout resume {id}`, which power-cycles the machine"),
            false => {
                "and power-cycle the machine if it does not boot its ramdisk: the server has already power-cycled it"
                    .to_owned()
            }
        };
        let machine = &member.machine;
        member.record.reason =
            format!("the database was restored from a backup: run `drophammer machine confirm {machine}`, {next}");
        store_member(transaction, id, number, &member)?;
    }
    Ok(())
}
