//! Lifecycle of a Kubernetes volume in MetalK8s' operator, translated from the diagrams of its proposal. Pure.
//!
//! A Salt job there corresponds to an installation of the machine here, so a volume waits for the next one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Phase in the status of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum State {
    /// Its storage is being prepared, or will be.
    Pending,
    /// Its storage is prepared and has a PersistentVolume.
    Available,
    Failed,
    /// Its storage is being released, or will be.
    Terminating,
}

/// Phases of a PersistentVolume in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Pending,
    Available,
    Bound,
    Released,
    Failed,
}

/// The PersistentVolume of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persistent {
    pub phase: Phase,
    /// Marked for deletion.
    pub terminating: bool,
}

/// State of the job that prepares or reclaims the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    None,
    InProgress,
    Failed,
    NotFound,
    Succeeded,
    /// Succeeded, and recorded as such.
    Done,
}

/// Observed state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub valid: bool,
    /// Marked for deletion.
    pub deleted: bool,
    /// `None` until the volume is first reconciled.
    pub state: Option<State>,
    pub persistent: Option<Persistent>,
    pub job: Job,
}

/// Next action of the reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// No action and no reschedule.
    Rest,
    /// No action; reconcile again in ten seconds.
    Wait,
    Fail,
    Prepare,
    Unprepare,
    /// Unset the job, so that it is started again.
    Forget,
    /// Record the job as done.
    Note,
    /// Create a PersistentVolume, and make the volume available.
    Publish,
    /// Delete the PersistentVolume.
    Withdraw,
    /// Remove the finalizers, so that both objects are deleted.
    Release,
}

/// Top level of the reconciliation loop. `None`: the volume does not exist.
pub fn next(seen: Option<&Seen>) -> Step {
    let Some(seen) = seen else { return Step::Rest };
    match (seen.valid, seen.deleted, seen.state, seen.persistent) {
        (false, ..) => Step::Fail,
        (true, true, ..) => finalize(seen),
        (true, false, Some(State::Failed), _) => Step::Rest,
        (true, false, _, Some(Persistent { phase: Phase::Failed, .. })) => Step::Fail,
        (true, false, _, Some(_)) => Step::Rest,
        (true, false, _, None) => deploy(seen.job),
    }
}

fn deploy(job: Job) -> Step {
    match job {
        Job::None => Step::Prepare,
        Job::Done => Step::Publish,
        other => poll(other),
    }
}

fn finalize(seen: &Seen) -> Step {
    match (seen.state, seen.persistent) {
        // Wait for the creation to terminate.
        (Some(State::Pending), _) => Step::Wait,
        (_, None) => reclaim(seen.job),
        (_, Some(Persistent { terminating: false, .. })) => Step::Withdraw,
        (_, Some(Persistent { phase, terminating: true })) => match phase {
            Phase::Pending | Phase::Bound => Step::Wait,
            Phase::Available | Phase::Released | Phase::Failed => reclaim(seen.job),
        },
    }
}

fn reclaim(job: Job) -> Step {
    match job {
        Job::None => Step::Unprepare,
        Job::Done => Step::Release,
        other => poll(other),
    }
}

fn poll(job: Job) -> Step {
    match job {
        Job::Failed => Step::Fail,
        Job::NotFound => Step::Forget,
        Job::Succeeded => Step::Note,
        Job::InProgress | Job::None | Job::Done => Step::Wait,
    }
}

/// Decision tree: returns whether deleting the volume would take effect immediately.
pub fn can_be_deleted(state: Option<State>, persistent: Option<Phase>) -> bool {
    match (state, persistent) {
        (None | Some(State::Pending | State::Terminating), _) => false,
        (Some(State::Failed | State::Available), None) => true,
        (Some(State::Failed | State::Available), Some(phase)) => match phase {
            Phase::Pending | Phase::Bound => false,
            Phase::Available | Phase::Released | Phase::Failed => true,
        },
    }
}

/// Performs steps until one must wait for an installation. The longest sequence has five.
pub fn settle(mut seen: Seen) -> Option<State> {
    for _ in 0..8 {
        match next(Some(&seen)) {
            Step::Rest | Step::Wait => break,
            Step::Fail if seen.state == Some(State::Failed) => break,
            Step::Fail => seen.state = Some(State::Failed),
            Step::Prepare => (seen.state, seen.job) = (Some(State::Pending), Job::InProgress),
            Step::Unprepare => (seen.state, seen.job) = (Some(State::Terminating), Job::InProgress),
            Step::Forget => seen.job = Job::None,
            Step::Note => seen.job = Job::Done,
            Step::Publish => {
                seen.persistent = Some(Persistent { phase: Phase::Available, terminating: false });
                (seen.state, seen.job) = (Some(State::Available), Job::None);
            }
            Step::Withdraw => {
                seen.persistent = seen.persistent.map(|is| Persistent { terminating: true, ..is });
            }
            Step::Release => return None,
        }
    }
    seen.state
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Pending => "Pending",
            State::Available => "Available",
            State::Failed => "Failed",
            State::Terminating => "Terminating",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Job::{Done, InProgress, NotFound, Succeeded};
    use super::*;

    const NEW: Seen = Seen { valid: true, deleted: false, state: None, persistent: None, job: Job::None };

    fn backed(phase: Phase, terminating: bool) -> Option<Persistent> {
        Some(Persistent { phase, terminating })
    }

    /// Each way through the diagrams "Reconciliation loop (top level)", "Volume Deployment" and "Volume Finalization".
    #[test]
    fn every_row_of_the_diagrams() {
        let of = |state: State| Seen { state: Some(state), ..NEW };
        let available = Seen { persistent: backed(Phase::Available, false), ..of(State::Available) };
        let pending = |job: Job| Seen { job, ..of(State::Pending) };
        let deleted = |seen: Seen| Seen { deleted: true, ..seen };
        let failed = of(State::Failed);
        let going = |phase: Phase| deleted(Seen { persistent: backed(phase, true), ..available });
        let reclaimed = |job: Job| deleted(Seen { job, ..of(State::Terminating) });
        let rows = [
            // Top level.
            ("does not exist", None, Step::Rest),
            ("not valid", Some(Seen { valid: false, ..NEW }), Step::Fail),
            ("not valid, and marked for deletion", Some(deleted(Seen { valid: false, ..available })), Step::Fail),
            ("failed", Some(failed), Step::Rest),
            ("backed and healthy", Some(available), Step::Rest),
            ("backed and bound", Some(Seen { persistent: backed(Phase::Bound, false), ..available }), Step::Rest),
            ("not healthy", Some(Seen { persistent: backed(Phase::Failed, false), ..available }), Step::Fail),
            // Deployment.
            ("no job", Some(NEW), Step::Prepare),
            ("job failed", Some(pending(Job::Failed)), Step::Fail),
            ("job not found", Some(pending(NotFound)), Step::Forget),
            ("job succeeded", Some(pending(Succeeded)), Step::Note),
            ("job in progress", Some(pending(InProgress)), Step::Wait),
            ("job done", Some(pending(Done)), Step::Publish),
            // Finalization.
            ("deleted while pending", Some(deleted(pending(InProgress))), Step::Wait),
            ("deleted, backed", Some(deleted(available)), Step::Withdraw),
            ("deleted, still bound", Some(going(Phase::Bound)), Step::Wait),
            ("deleted, still pending", Some(going(Phase::Pending)), Step::Wait),
            ("deleted, unused", Some(going(Phase::Available)), Step::Unprepare),
            ("deleted, released", Some(going(Phase::Released)), Step::Unprepare),
            ("deleted, failed", Some(going(Phase::Failed)), Step::Unprepare),
            ("deleted, not backed", Some(deleted(failed)), Step::Unprepare),
            // Its storage is reclaimed.
            ("unprepare failed", Some(reclaimed(Job::Failed)), Step::Fail),
            ("unprepare not found", Some(reclaimed(NotFound)), Step::Forget),
            ("unprepare succeeded", Some(reclaimed(Succeeded)), Step::Note),
            ("unprepare in progress", Some(reclaimed(InProgress)), Step::Wait),
            ("unprepare done", Some(reclaimed(Done)), Step::Release),
        ];
        for (row, seen, expected) in rows {
            assert_eq!(next(seen.as_ref()), expected, "{row}");
        }
    }

    #[test]
    fn every_leaf_of_the_deletion_tree() {
        use Phase::{Available, Bound, Failed, Pending, Released};
        for state in [None, Some(State::Pending), Some(State::Terminating)] {
            for phase in [None, Some(Pending), Some(Available), Some(Bound), Some(Released), Some(Failed)] {
                assert!(!can_be_deleted(state, phase), "{state:?} {phase:?}");
            }
        }
        for state in [State::Failed, State::Available] {
            for (phase, expected) in [
                (None, true),
                (Some(Pending), false),
                (Some(Available), true),
                (Some(Bound), false),
                (Some(Released), true),
                (Some(Failed), true),
            ] {
                assert_eq!(can_be_deleted(Some(state), phase), expected, "{state:?} {phase:?}");
            }
        }
    }

    #[test]
    fn steps_lead_to_where_something_has_to_happen() {
        let deleted = Seen { deleted: true, ..NEW };
        let available = Some(State::Available);
        for (seen, expected) in [
            (NEW, Some(State::Pending)),
            (Seen { job: InProgress, state: Some(State::Pending), ..NEW }, Some(State::Pending)),
            (Seen { job: Succeeded, ..NEW }, available),
            (Seen { job: Job::Failed, ..NEW }, Some(State::Failed)),
            (Seen { job: NotFound, ..NEW }, Some(State::Pending)),
            (Seen { valid: false, ..NEW }, Some(State::Failed)),
            (
                Seen { state: available, persistent: backed(Phase::Available, false), ..deleted },
                Some(State::Terminating),
            ),
            (Seen { state: available, persistent: backed(Phase::Bound, false), ..deleted }, available),
            (Seen { state: Some(State::Terminating), job: Succeeded, ..deleted }, None),
        ] {
            assert_eq!(settle(seen), expected, "{seen:?}");
        }
    }
}
