//! Registration of a boot. Decides whether the boot becomes the machine's current boot. If another boot was active when
//! this boot was requested, also decides what the machine boots.

use super::boot_activity::{BootActivity, MachineBoot};
use super::boot_target::{BootTarget, FileAllocation};
use super::database_file::Durability;
use super::migration_boot::migration_boot;
use super::next_boot::{BootRequestSender, decide_boot, durability_since};
use super::registered_boots::{current_boot, is_revoked, replace_boot};
use super::{ServerState, unknown_machines};
use crate::sql::{self, Transaction, params};
use common::error::Result;

/// Properties of the client that registers a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteringClient {
    pub address: String,
    /// Id of the allocation in the machine file.
    pub allocation: Option<String>,
    /// True if a file in `machines/` describes the machine.
    pub has_file: bool,
}

/// Result of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "a registration contains only one value of this enum, so the size of its largest variant does not matter"
)]
pub enum EnrollOutcome {
    /// The boot is now the machine's current one. Contains the boot target if the target could not be decided when the
    /// boot was requested, because another boot was active then.
    Registered(Option<BootTarget>),
    /// The boot has registered again, from a new address. Contains the previous address.
    AddressChanged(String),
    /// Another boot of the machine is still active. Contains its address.
    Waits(String),
    /// The boot must wait, because there are too many unknown machines.
    TooManyUnknown,
    /// The boot cannot register: after this boot was requested, the machine was freed or another boot registered.
    Rejected,
}

impl ServerState {
    /// Makes this boot the machine's current one, unless another boot is active. The caller must have verified that the
    /// request comes from a privileged process on the machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn enroll_boot(&self, boot: MachineBoot, by: RegisteringClient) -> Result<EnrollOutcome> {
        let (heard, most_unknown) = (self.heard.clone(), self.most_unknown);
        self.run_as_durable_as_needed_for(boot.machine.clone(), move |transaction| {
            let deferred = |enrolled| Ok((enrolled, Durability::Deferred));
            let current = current_boot(transaction, &boot.machine)?;
            if let Some(current) = current.as_ref().filter(|current| current.hash == boot.hash) {
                return deferred(re_enroll(transaction, current, &by.address, &heard)?);
            }
            if is_revoked(transaction, &boot)? {
                return deferred(EnrollOutcome::Rejected);
            }
            let (machine, address) = (&boot.machine, Some(by.address.as_str()));
            if !by.has_file && !unknown_machines::admit_machine(transaction, machine, &heard, most_unknown, address)? {
                return deferred(EnrollOutcome::TooManyUnknown);
            }
            if let Some(active) = current.filter(|current| heard.blocks_registration(current, &by.address)) {
                return deferred(EnrollOutcome::Waits(active.address.unwrap_or_default()));
            }
            let before = transaction.total_changes();
            let next = match by.allocation.filter(|_| boot.while_active) {
                Some(allocation) => {
                    let files = FileAllocation::Allocated(allocation.clone());
                    Some(match migration_boot(transaction, &boot.machine, &files)? {
                        Some(next) => next,
                        None => decide_boot(transaction, &boot.machine, &allocation, BootRequestSender::Agent)?,
                    })
                }
                None => None,
            };
            let durability = durability_since(transaction, before);
            transaction
                .execute("UPDATE orders SET handed = NULL, unregistered = NULL WHERE machine = ?1", [&boot.machine])?;
            replace_boot(transaction, &boot, &by.address)?;
            Ok((EnrollOutcome::Registered(next), durability))
        })
        .await
    }
}

/// Registers the machine's current boot again, possibly from a new address.
fn re_enroll(
    transaction: &Transaction,
    boot: &MachineBoot,
    address: &str,
    heard: &BootActivity,
) -> sql::Result<EnrollOutcome> {
    let before = boot.address.clone().filter(|before| before != address);
    let Some(before) = before else { return Ok(EnrollOutcome::Registered(None)) };
    if heard.is_active(boot) {
        return Ok(EnrollOutcome::Waits(before));
    }
    transaction.execute("UPDATE boots SET address = ?2 WHERE hash = ?1", params![boot.hash, address])?;
    Ok(EnrollOutcome::AddressChanged(before))
}
