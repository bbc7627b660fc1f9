//! Progress of the steps that run through a machine's management controller before its installation, and the decision
//! whether the installation is served to a boot.
//!
//! Each machine has at most one run. A run belongs to one reinstall order, or to the first installation of one
//! allocation. Completed steps are never repeated for the same reinstall order or first installation. The server
//! records each change before it sends the request to the controller.

use super::boot_activity::MachineBoot;
use super::database_file::Durability;
use super::install_attempt::ATTEMPTS;
use super::json_columns::{parse_column, to_json_column};
use super::registered_boots::current_boot;
use super::server_leases::{AbandonedLease, release_lease};
use super::{ServerState, TokenHash};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use common::error::Result;
use common::timestamp::now;
use model::deploy_steps::OutOfBandStep;
use serde::{Deserialize, Serialize};

/// Phase of the step that is currently run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// The step has not changed anything yet.
    Ready,
    /// The server may have sent the request that makes the step's change.
    Changing,
    /// The controller has accepted the change, and the server may have requested the restart that applies it.
    Restarting,
    /// The controller has accepted the restart.
    Booting,
    /// The controller has accepted a change that needs no restart.
    Settling,
    /// All steps are completed and verified.
    Done,
    /// A step has failed, and nothing is installed.
    Failed,
}

/// Installation for which steps must run.
#[derive(Debug, Clone, PartialEq)]
pub struct OutOfBandRequest {
    pub allocation: String,
    /// Id of the reinstall order; empty for a first installation.
    pub order: String,
    /// Steps in the order in which they run.
    pub steps: Vec<OutOfBandStep>,
}

/// Run of the steps for one installation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutOfBandRun {
    pub machine: String,
    pub allocation: String,
    /// Id of the reinstall order; empty for a first installation.
    pub order: String,
    pub steps: Vec<OutOfBandStep>,
    /// Number of completed steps.
    pub completed: usize,
    pub phase: RunPhase,
    /// Time at which the phase began, in RFC 3339.
    pub since: String,
    /// Time of the last restart; empty if there was none. The installation is served only to boots that were requested
    /// after this restart.
    pub restarted: String,
    /// Number of restarts that were requested for the current step.
    pub restarts: u32,
    /// True if the restart of the current step may have been requested, but no response is recorded.
    #[serde(default)]
    pub restart_sent: bool,
    /// Number of failures since the list of steps was last changed.
    pub failures: u32,
    /// Reason for the last failure; empty if no step has failed.
    pub message: String,
}

/// Response to a boot that requests its installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootAdmission {
    /// The steps are completed, and the boot was requested after the last restart.
    Admitted,
    /// The boot must wait. Contains true if this request has started the steps.
    Waits(bool),
}

/// Decision about a boot that requests its installation.
#[derive(Debug, PartialEq)]
enum AdmissionDecision {
    Admit,
    Wait,
    Start(OutOfBandRun),
}

impl OutOfBandRun {
    fn new(machine: &str, wanted: &OutOfBandRequest) -> OutOfBandRun {
        let OutOfBandRequest { allocation, order, steps } = wanted.clone();
        OutOfBandRun {
            machine: machine.to_owned(),
            allocation,
            order,
            steps,
            completed: 0,
            phase: RunPhase::Ready,
            since: now(),
            restarted: String::new(),
            restarts: 0,
            restart_sent: false,
            failures: 0,
            message: String::new(),
        }
    }

    /// Returns the run with a new phase, which begins at the time `since`.
    pub fn with_phase(&self, phase: RunPhase, since: String) -> OutOfBandRun {
        OutOfBandRun { phase, since, ..self.clone() }
    }

    /// Returns the step that runs now; `None` if all steps are completed.
    pub fn current_step(&self) -> Option<&OutOfBandStep> {
        self.steps.get(self.completed)
    }

    /// Returns whether the run belongs to this allocation and this reinstall order (empty for a first installation).
    pub fn is_for(&self, allocation: &str, order: &str) -> bool {
        self.allocation == allocation && self.order == order
    }

    /// Returns whether the server must continue to run the steps.
    fn is_active(&self) -> bool {
        !matches!(self.phase, RunPhase::Done | RunPhase::Failed)
    }
}

/// Decides whether the machine with this boot receives its installation.
fn decide_admission(stored: Option<&OutOfBandRun>, wanted: &OutOfBandRequest, boot: &MachineBoot) -> AdmissionDecision {
    let new = OutOfBandRun::new(&boot.machine, wanted);
    let Some(run) = stored.filter(|run| run.is_for(&wanted.allocation, &wanted.order)) else {
        return AdmissionDecision::Start(new);
    };
    if run.steps != wanted.steps {
        // Steps that were already completed for this installation, and are unchanged, are not repeated.
        let same = run.steps.iter().zip(&wanted.steps).take(run.completed).take_while(|(old, new)| old == new);
        return AdmissionDecision::Start(OutOfBandRun {
            completed: same.count(),
            restarted: run.restarted.clone(),
            ..new
        });
    }
    let is_newer = |time: &str| time.is_empty() || boot.is_newer_than(time);
    match run.phase {
        RunPhase::Done if is_newer(&run.restarted) => AdmissionDecision::Admit,
        RunPhase::Failed if run.failures < ATTEMPTS && is_newer(&run.since) => AdmissionDecision::Start(OutOfBandRun {
            restarts: 0,
            restart_sent: false,
            ..run.with_phase(RunPhase::Ready, now())
        }),
        _ => AdmissionDecision::Wait,
    }
}

impl ServerState {
    /// Decides whether the installation is served to the boot, and starts the run of its steps if necessary.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn admit_boot(&self, boot: &MachineBoot, wanted: OutOfBandRequest) -> Result<BootAdmission> {
        let (boot, since) = (boot.clone(), self.shared_timestamp());
        self.run_as_durable_as_needed_for(boot.machine.clone(), move |transaction| {
            let stored = read_run(transaction, &boot.machine)?;
            // A delayed request of an earlier boot must not start anything.
            let is_current = is_current(transaction, &boot.machine, boot.hash)?;
            Ok(match decide_admission(stored.as_ref(), &wanted, &boot) {
                AdmissionDecision::Admit => (BootAdmission::Admitted, Durability::Deferred),
                AdmissionDecision::Start(run) if is_current => {
                    store_run(transaction, &OutOfBandRun { since, ..run })?;
                    (BootAdmission::Waits(true), Durability::Synced)
                }
                AdmissionDecision::Wait | AdmissionDecision::Start(_) => {
                    (BootAdmission::Waits(false), Durability::Deferred)
                }
            })
        })
        .await
    }

    /// Returns the runs of steps that the server must continue, each with the current boot of its machine.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_active_runs(&self) -> Result<Vec<(OutOfBandRun, Option<MachineBoot>)>> {
        self.run_job(|connection| {
            let select = connection.prepare_cached("SELECT document FROM out_of_band WHERE active = 1")?;
            let runs = select.query_map([], |row| parse_column(row, 0))?.collect::<sql::Result<Vec<_>>>()?;
            let with_boot = |run: OutOfBandRun| {
                let boot = current_boot(connection, &run.machine)?;
                Ok((run, boot))
            };
            runs.into_iter().flatten().map(with_boot).collect()
        })
        .await
    }

    /// Returns the last run of steps through the machine's management controller.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_out_of_band_run(&self, machine: &str) -> Result<Option<OutOfBandRun>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| read_run(connection, &machine)).await
    }

    /// Releases the abandoned lease of a step. If the former server had no permission to change the power state, also
    /// records that no restart was requested, so that another server may request it. Returns whether the lease was
    /// released.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn release_step(&self, abandoned: AbandonedLease) -> Result<bool> {
        self.run_durably(move |transaction| {
            let AbandonedLease { lease, may_have_switched, .. } = &abandoned;
            if !release_lease(transaction, lease)? {
                return Ok(false);
            }
            let run = read_run(transaction, &lease.machine)?.filter(|run| run.restart_sent && !may_have_switched);
            run.map_or(Ok(()), |run| store_run(transaction, &OutOfBandRun { restart_sent: false, ..run }))?;
            Ok(true)
        })
        .await
    }

    /// Replaces the stored run of steps with `new`, or deletes it if `new` is `None`. Does nothing if the stored run
    /// has changed in the meantime. Returns whether the run was replaced or deleted. When the run enters
    /// [`RunPhase::Booting`], the current boot of the machine ends.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn replace_run(&self, old: &OutOfBandRun, new: Option<OutOfBandRun>) -> Result<bool> {
        let old = old.clone();
        self.run_durably_for(old.machine.clone(), move |transaction| {
            if read_run(transaction, &old.machine)?.as_ref() != Some(&old) {
                return Ok(false);
            }
            match new {
                Some(new) => {
                    store_run(transaction, &new)?;
                    if new.phase == RunPhase::Booting && old.phase != RunPhase::Booting {
                        let end = "UPDATE boots SET over = 0 WHERE machine = ?1 AND over IS NULL AND begun = 0";
                        transaction.execute(end, [&new.machine])?;
                    }
                }
                None => drop(transaction.execute("DELETE FROM out_of_band WHERE machine = ?1", [&old.machine])?),
            }
            Ok(true)
        })
        .await
    }
}

fn is_current(connection: &Connection, machine: &str, hash: TokenHash) -> sql::Result<bool> {
    Ok(current_boot(connection, machine)?.is_some_and(|boot| boot.hash == hash))
}

pub(crate) fn read_run(connection: &Connection, machine: &str) -> sql::Result<Option<OutOfBandRun>> {
    let select = "SELECT document FROM out_of_band WHERE machine = ?1";
    connection.prepare_cached(select)?.query_row([machine], |row| parse_column(row, 0)).optional().map(Option::flatten)
}

fn store_run(transaction: &Transaction, run: &OutOfBandRun) -> sql::Result<()> {
    let insert = "INSERT INTO out_of_band (machine, active, document) VALUES (?1, ?2, ?3)
         ON CONFLICT (machine) DO UPDATE SET active = ?2, document = ?3";
    transaction.execute(insert, params![run.machine, run.is_active(), to_json_column(run)?]).map(drop)
}

/// Returns whether the steps of this reinstall order were started and are not completed. Boots that the steps trigger
/// must not count as attempts of the order.
pub(crate) fn is_unfinished(connection: &Connection, machine: &str, order: &str) -> sql::Result<bool> {
    Ok(read_run(connection, machine)?.is_some_and(|run| run.order == order && run.phase != RunPhase::Done))
}

/// Transfers the run of steps of a machine to the machine's new id.
pub(crate) fn rename_run(transaction: &Transaction, old: &str, new: &str) -> sql::Result<()> {
    let run = read_run(transaction, old)?;
    transaction.execute("DELETE FROM out_of_band WHERE machine IN (?1, ?2)", [old, new])?;
    run.map_or(Ok(()), |run| store_run(transaction, &OutOfBandRun { machine: new.to_owned(), ..run }))
}

/// Deletes the run of steps of a freed machine. Otherwise, a later installation would count the steps as completed.
pub(crate) fn delete_run(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    transaction.execute("DELETE FROM out_of_band WHERE machine = ?1", [machine]).map(drop)
}

#[cfg(test)]
mod tests;
