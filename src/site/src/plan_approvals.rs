//! Plans that the operator has approved: one `approved/ID.yaml` per machine (`drophammer site plan --approve`).
//!
//! An approval applies to one installation, including all of its attempts. The approval is no longer in force once the
//! installation is reported as successful, because the machine then has a new install marker. Removing the file
//! withdraws the approval. An invalid or unreadable file does not count as withdrawn: no installation is served to the
//! machine until the operator has corrected or removed the file.

use crate::yaml_folder::{YamlFolder, format_problem};
use common::error_code::ErrorCode;
use model::allocation::ApprovedPlan;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
pub use store::plan_approval::{Approval, parse_approval, render_approval};
use store::required_approval::RequiredApproval;
use store::{InstallState, ReinstallOrder};

pub(crate) const FOLDER: &str = "approved";

/// Approvals of all machines.
#[derive(Debug, Clone, Default)]
pub struct Approvals {
    /// Approvals by machine id; an error is the reason why the approval file of this machine cannot be used.
    all: BTreeMap<String, Result<Arc<Approval>, String>>,
    /// Reason why the folder cannot be read; `None` if the folder was read. An unreadable folder may contain an
    /// approval for any machine.
    unread: Option<String>,
    /// True if installations are served only to machines with an approval (`--approved-only`).
    pub only: bool,
    /// True if approvals are ignored, for plans that the operator has not approved yet.
    pub(crate) ignored: bool,
}

impl Approvals {
    /// Collects the approvals from the folder, and reports the approvals that cannot be used.
    pub(crate) fn new(folder: &YamlFolder<Approval>, only: bool, problems: &mut Vec<String>) -> Approvals {
        let before = problems.len();
        folder.report_unread(problems);
        let unread = problems.get(before).cloned();
        let mut all = BTreeMap::new();
        for (path, entry) in &folder.entries {
            let id = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            let read = entry
                .newest
                .as_ref()
                .map_err(ToString::to_string)
                .and_then(|read| check_machine_id(read, &id).map(|()| read));
            let read = read.map_err(|why| format_problem(path, &why, false));
            problems.extend(read.as_ref().err().cloned());
            all.insert(id, read.map(|read| Arc::new(read.clone())));
        }
        Approvals { all, unread, only, ignored: false }
    }

    /// Returns whether an approval file exists for the machine, usable or not.
    pub fn contains(&self, machine: &str) -> bool {
        self.all.contains_key(machine)
    }

    /// If the machine's approval applies to an allocation other than `allocation`, returns the id of that allocation.
    /// Otherwise, or if the machine has no usable approval, returns `None`.
    pub fn other_allocation(&self, machine: &str, allocation: &str) -> Option<String> {
        let approved = &self.all.get(machine)?.as_ref().ok()?.verdicts.allocation;
        (approved != allocation).then(|| approved.clone())
    }

    /// Returns the machine's approval, or `None` if the machine has no approval or the approved installation has
    /// completed. `install_state` is the state of the allocation to which the approval applies. If the approval
    /// cannot be used, the inner error contains the reason.
    pub fn find_in_force(&self, machine: &str, install_state: &InstallState) -> Option<Result<Arc<Approval>, String>> {
        let approval = self.all.get(machine).cloned().or_else(|| self.unread.clone().map(Err))?;
        let is_spent = approval.as_ref().is_ok_and(|approval| approval.is_spent(&install_state.last_installation()));
        (!is_spent).then_some(approval)
    }

    /// Returns the approval that is in force for the machine, in the form that the agent receives. Returns `None` if no
    /// approval is in force, and none is required.
    ///
    /// # Errors
    /// Returns an error if no installation may be served to the machine, because the approval cannot be used, is
    /// required but missing, or is not the approval that the reinstall order requires.
    pub fn approval_for_agent(
        &self,
        machine: &str,
        install_state: &InstallState,
    ) -> Result<Option<ApprovedPlan>, String> {
        match &install_state.approved {
            Some(Ok(approval)) => {
                self.check_order(machine, install_state, Some(approval.digest())).map(|()| Some(approval.to_wire()))
            }
            Some(Err(why)) => Err(format!(
                "the machine's approval cannot be used, and nothing is installed without it: {why}; approve the plan again: \
                 `drophammer site plan DIR --machine {machine} --approve`"
            )),
            None if self.only => Err(format!(
                "the machine's plan is not approved, but --approved-only requires an approval: approve the plan with `drophammer site plan DIR --machine {machine} --approve`"
            )),
            None => self.check_order(machine, install_state, None).map(|()| None),
        }
    }

    /// Returns the reason why the machine's reinstall order is withheld, because another approval or none is in force;
    /// `None` if the order is not withheld for this reason.
    pub(crate) fn explain_withheld_order(&self, machine: &str, install_state: &InstallState) -> Option<String> {
        let digest = match &install_state.approved {
            Some(Ok(approval)) => Some(approval.digest()),
            Some(Err(_)) => return None,
            None => None,
        };
        self.check_order(machine, install_state, digest).err()
    }

    /// Checks that the machine's reinstall order may be carried out with the approval in force. `digest` is the
    /// digest of the approved plan; `None` if no approval is in force.
    fn check_order(&self, machine: &str, install_state: &InstallState, digest: Option<&str>) -> Result<(), String> {
        let is_withheld = |order: &&ReinstallOrder| !order.is_suspended() && !order.accepts_approval(digest);
        let order = install_state.order.as_ref().filter(|_| !self.ignored).filter(is_withheld);
        let Some(order) = order else { return Ok(()) };
        let approve = format!("approve the plan again with `drophammer site plan DIR --machine {machine} --approve`");
        let cancel = format!("cancel the reinstall with `drophammer machine reinstall {machine} --cancel`");
        let why = match (&order.required_approval, digest) {
            (Some(RequiredApproval::Plan(required)), Some(digest)) => format!(
                "the reinstall order requires the approved plan {required}, but plan {digest} is approved: order the \
                 reinstall again, or restore the previous approval"
            ),
            (Some(RequiredApproval::Plan(required)), None) => format!(
                "the reinstall order requires the approved plan {required}, but no approval is in force: restore the \
                 file {FOLDER}/{machine}.yaml, or {remedy}",
                remedy = if order.started { approve } else { cancel }
            ),
            _ => {
                format!("the plan of the reinstall was approved for the machine's previous id: {approve}, or {cancel}")
            }
        };
        Err(ErrorCode::ApprovalMismatch.annotate(why))
    }
}

fn check_machine_id(approval: &Approval, id: &str) -> Result<(), String> {
    let machine = &approval.verdicts.machine;
    match machine == id {
        true => Ok(()),
        false => Err(format!("the plan is for machine {machine}, but the file is named after {id}")),
    }
}

/// Returns the path of a machine's approval file.
pub fn approval_path(dir: &Path, machine: &str) -> std::path::PathBuf {
    dir.join(FOLDER).join(format!("{machine}.yaml"))
}
