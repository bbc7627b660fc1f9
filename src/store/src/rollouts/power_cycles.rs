//! Power cycles of members. The transactions that claim a power cycle, or permit a request to the controller, also
//! read the member's order. Therefore no machine is power-cycled after its order was canceled.

use super::progress::observe_member;
use super::records::{read_member, read_state, store_member};
use super::{MemberState, RolloutMember, RolloutState};
use crate::install_state::read_install_state;
use crate::server_leases::{ActionOrigin, LeaseClaim, LeasedAction, ServerLease};
use crate::server_leases::{claim_lease, has_switched, permit_request};
use crate::sql::{self, Transaction};
use crate::{ServerState, now};
use common::error::Result;

/// Id of a rollout, and number of a member.
type MemberKey = (i64, usize);

impl ServerState {
    /// Claims the power cycle of an ordered member's machine. Refuses a machine that was power-cycled before, or has
    /// booted in the meantime, and all machines of a halted rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn claim_power_cycle(&self, key: MemberKey) -> Result<LeaseClaim> {
        let own = self.instance.clone();
        self.run_durably(move |transaction| {
            let due = find_ordered(transaction, key)?.filter(|member| member.record.power_cycled.is_empty());
            let is_halted = read_state(transaction, key.0)? == Some(RolloutState::Halted);
            let Some(mut member) = due.filter(|_| !is_halted) else { return Ok(LeaseClaim::Refused) };
            let claim = claim_lease(transaction, &own, &member.machine, to_action(key), None)?;
            if matches!(claim, LeaseClaim::Claimed(_)) {
                (member.record.power_cycled, member.record.reason) = (now(), String::new());
                store_member(transaction, key.0, key.1, &member)?;
            }
            Ok(claim)
        })
        .await
    }

    /// Takes over a power cycle whose lease has ended, if its order is still open and the machine has not booted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn resume_power_cycle(&self, key: MemberKey, former: ServerLease) -> Result<LeaseClaim> {
        let own = self.instance.clone();
        self.run_durably(move |transaction| match find_ordered(transaction, key)? {
            Some(member) => claim_lease(transaction, &own, &member.machine, to_action(key), Some(&former)),
            None => Ok(LeaseClaim::Refused),
        })
        .await
    }

    /// Permits the next request of a power cycle. Refuses it if the order was canceled or the machine has booted.
    /// After the power was switched, the request is permitted in any case, because a machine that was switched off
    /// must be switched on again.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written. The request must then not be sent.
    pub async fn permit_power_cycle(&self, key: MemberKey, lease: &ServerLease, switches: bool) -> Result<bool> {
        let lease = lease.clone();
        self.permit_within_lease(move |transaction, own| {
            let is_due = has_switched(transaction, &lease)? || find_ordered(transaction, key)?.is_some();
            Ok(is_due && permit_request(transaction, own, &lease, switches)?)
        })
        .await
    }

    /// Returns whether the machine of the member waits for a power cycle.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn is_power_cycle_due(&self, key: MemberKey) -> Result<bool> {
        self.run_durably(move |transaction| Ok(find_ordered(transaction, key)?.is_some())).await
    }

    /// Records that an ordered member requires the attention of the operator, with the reason.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_member_problem(&self, key: MemberKey, reason: String) -> Result<()> {
        self.run_durably(move |transaction| {
            let Some(mut member) = find_ordered(transaction, key)? else { return Ok(()) };
            member.record.reason = reason;
            store_member(transaction, key.0, key.1, &member)
        })
        .await
    }
}

fn to_action(key: MemberKey) -> LeasedAction {
    let (rollout, number) = key;
    LeasedAction::new(ActionOrigin::Rollout { rollout, number }, "cycle", format!("rollout {rollout}"))
}

/// Returns the member if its order is open and its machine has not booted since the order. Reads the order itself,
/// since the stored state of the member may be outdated. After a restore, the member is not returned until the operator
/// has confirmed the order and the machine: the order may have been canceled after the backup.
fn find_ordered(transaction: &Transaction, (id, number): MemberKey) -> sql::Result<Option<RolloutMember>> {
    let member = read_member(transaction, id, number)?.filter(|member| member.state == MemberState::Ordered);
    let Some(member) = member else { return Ok(None) };
    let is_open = observe_member(transaction, &member)?.0 == MemberState::Ordered;
    let is_confirmed = !read_install_state(transaction, &member.machine, &member.record.allocation)?.unconfirmed;
    Ok((is_open && is_confirmed).then_some(member))
}
