//! Approval that a reinstall order requires. If the plan of the reinstall was approved when the order was placed, the
//! order is carried out only with this approval: if the approval is removed or replaced, the order is withheld.

use super::reinstall_order_records::{ReinstallOrder, read_order, store_order};
use crate::sql::{self, Transaction};
use serde::{Deserialize, Serialize};

/// Approval that a reinstall order requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequiredApproval {
    /// Approval of the plan with this digest.
    Plan(String),
    /// Any approval. The machine was renamed after the order was placed, and an approval applies to one id only.
    AnyPlan,
}

impl ReinstallOrder {
    /// Returns whether the order may be carried out with the approval that is in force. `digest` is the digest of the
    /// approved plan; `None` if no approval is in force. An order that has started can neither be canceled nor
    /// replaced, so another approval is accepted for its next attempts.
    pub fn accepts_approval(&self, digest: Option<&str>) -> bool {
        match (&self.required_approval, digest) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(RequiredApproval::Plan(required)), Some(digest)) => self.started || required == digest,
            (Some(RequiredApproval::AnyPlan), Some(_)) => true,
        }
    }
}

/// Adapts the orders of a renamed machine: the approvals that they require apply only to the previous id.
pub(crate) fn rename_requirements(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    let select = transaction.prepare_cached("SELECT allocation FROM orders WHERE machine = ?1")?;
    let allocations: Vec<String> = select.query_map([machine], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for allocation in allocations {
        let order = read_order(transaction, machine, &allocation)?;
        if let Some(mut order) = order.filter(|order| order.required_approval.is_some()) {
            order.required_approval = Some(RequiredApproval::AnyPlan);
            store_order(transaction, machine, &allocation, &order)?;
        }
    }
    Ok(())
}
