//! Lifecycle of a Kubernetes volume, according to the diagrams in the design proposal of MetalK8s' operator. The
//! module performs no I/O.
//!
//! MetalK8s prepares a volume with a Salt job. This server uses the installation of the machine instead of the job,
//! so a new volume waits for the next installation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Phase in the status of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeState {
    /// The storage of the volume is being prepared, or will be prepared.
    Pending,
    /// The storage of the volume is prepared, and the volume has a PersistentVolume.
    Available,
    Failed,
    /// The storage of the volume is being released, or will be released.
    Terminating,
}

/// Phases of a PersistentVolume in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PersistentVolumePhase {
    Pending,
    Available,
    Bound,
    Released,
    Failed,
}

/// The PersistentVolume of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PersistentVolumeStatus {
    pub phase: PersistentVolumePhase,
    /// True if the PersistentVolume is marked for deletion.
    pub terminating: bool,
}

/// State of the job that prepares or reclaims the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageJob {
    None,
    InProgress,
    Failed,
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "MetalK8s defines this state; drophammer never reports it, because drophammer's storage jobs run \
                during installations"
        )
    )]
    NotFound,
    Succeeded,
    /// The job has succeeded, and its success is recorded in the volume.
    Done,
}

/// Observed state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObservedVolume {
    pub valid: bool,
    /// True if the volume is marked for deletion.
    pub deleted: bool,
    /// `None` until the volume is first reconciled.
    pub state: Option<VolumeState>,
    pub persistent: Option<PersistentVolumeStatus>,
    pub job: StorageJob,
}

/// Next action of the reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifecycleStep {
    /// Do nothing until the volume changes.
    DoNothing,
    /// Do nothing, and reconcile again in ten seconds.
    Wait,
    Fail,
    Prepare,
    Unprepare,
    /// Delete the record of the job, so that the job is started again.
    DeleteJobRecord,
    /// Record that the job has succeeded.
    RecordSuccess,
    /// Create a PersistentVolume, and make the volume available.
    Publish,
    /// Delete the PersistentVolume.
    Unpublish,
    /// Remove the finalizers, so that Kubernetes deletes the volume and its PersistentVolume.
    RemoveFinalizers,
}

/// Returns the next step of the reconciliation loop. `seen` is `None` if the volume does not exist.
pub(crate) fn next_step(seen: Option<&ObservedVolume>) -> LifecycleStep {
    let Some(seen) = seen else { return LifecycleStep::DoNothing };
    match (seen.valid, seen.deleted, seen.state, seen.persistent) {
        (false, ..) => LifecycleStep::Fail,
        (true, true, ..) => finalize_step(seen),
        (true, false, Some(VolumeState::Failed), _) => LifecycleStep::DoNothing,
        (true, false, _, Some(PersistentVolumeStatus { phase: PersistentVolumePhase::Failed, .. })) => {
            LifecycleStep::Fail
        }
        (true, false, _, Some(_)) => LifecycleStep::DoNothing,
        (true, false, _, None) => deploy_step(seen.job),
    }
}

fn deploy_step(job: StorageJob) -> LifecycleStep {
    match job {
        StorageJob::None => LifecycleStep::Prepare,
        StorageJob::Done => LifecycleStep::Publish,
        other => poll_step(other),
    }
}

fn finalize_step(seen: &ObservedVolume) -> LifecycleStep {
    match (seen.state, seen.persistent) {
        // The storage of the volume is still being prepared, so the deletion waits until the preparation has ended.
        (Some(VolumeState::Pending), _) => LifecycleStep::Wait,
        (_, None) => reclaim_step(seen.job),
        (_, Some(PersistentVolumeStatus { terminating: false, .. })) => LifecycleStep::Unpublish,
        (_, Some(PersistentVolumeStatus { phase, terminating: true })) => match phase {
            PersistentVolumePhase::Pending | PersistentVolumePhase::Bound => LifecycleStep::Wait,
            PersistentVolumePhase::Available | PersistentVolumePhase::Released | PersistentVolumePhase::Failed => {
                reclaim_step(seen.job)
            }
        },
    }
}

fn reclaim_step(job: StorageJob) -> LifecycleStep {
    match job {
        StorageJob::None => LifecycleStep::Unprepare,
        StorageJob::Done => LifecycleStep::RemoveFinalizers,
        other => poll_step(other),
    }
}

fn poll_step(job: StorageJob) -> LifecycleStep {
    match job {
        StorageJob::Failed => LifecycleStep::Fail,
        StorageJob::NotFound => LifecycleStep::DeleteJobRecord,
        StorageJob::Succeeded => LifecycleStep::RecordSuccess,
        StorageJob::InProgress | StorageJob::None | StorageJob::Done => LifecycleStep::Wait,
    }
}

/// Returns whether the deletion of a volume would take effect at once, according to the decision tree of MetalK8s.
pub(crate) fn can_be_deleted(state: Option<VolumeState>, persistent: Option<PersistentVolumePhase>) -> bool {
    match (state, persistent) {
        (None | Some(VolumeState::Pending | VolumeState::Terminating), _) => false,
        (Some(VolumeState::Failed | VolumeState::Available), None) => true,
        (Some(VolumeState::Failed | VolumeState::Available), Some(phase)) => match phase {
            PersistentVolumePhase::Pending | PersistentVolumePhase::Bound => false,
            PersistentVolumePhase::Available | PersistentVolumePhase::Released | PersistentVolumePhase::Failed => true,
        },
    }
}

/// Performs steps until the volume waits for an installation or no step remains. Returns the resulting state, or `None`
/// if the volume is deleted. The longest sequence has five steps.
pub(crate) fn reconcile_state(mut seen: ObservedVolume) -> Option<VolumeState> {
    for _ in 0..8 {
        match next_step(Some(&seen)) {
            LifecycleStep::DoNothing | LifecycleStep::Wait => break,
            LifecycleStep::Fail if seen.state == Some(VolumeState::Failed) => break,
            LifecycleStep::Fail => seen.state = Some(VolumeState::Failed),
            LifecycleStep::Prepare => (seen.state, seen.job) = (Some(VolumeState::Pending), StorageJob::InProgress),
            LifecycleStep::Unprepare => {
                (seen.state, seen.job) = (Some(VolumeState::Terminating), StorageJob::InProgress)
            }
            LifecycleStep::DeleteJobRecord => seen.job = StorageJob::None,
            LifecycleStep::RecordSuccess => seen.job = StorageJob::Done,
            LifecycleStep::Publish => {
                seen.persistent =
                    Some(PersistentVolumeStatus { phase: PersistentVolumePhase::Available, terminating: false });
                (seen.state, seen.job) = (Some(VolumeState::Available), StorageJob::None);
            }
            LifecycleStep::Unpublish => {
                seen.persistent =
                    seen.persistent.map(|persistent| PersistentVolumeStatus { terminating: true, ..persistent });
            }
            LifecycleStep::RemoveFinalizers => return None,
        }
    }
    seen.state
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeState::Pending => "Pending",
            VolumeState::Available => "Available",
            VolumeState::Failed => "Failed",
            VolumeState::Terminating => "Terminating",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::StorageJob::{Done, InProgress, NotFound, Succeeded};
    use super::*;

    const NEW: ObservedVolume =
        ObservedVolume { valid: true, deleted: false, state: None, persistent: None, job: StorageJob::None };

    fn backed(phase: PersistentVolumePhase, terminating: bool) -> Option<PersistentVolumeStatus> {
        Some(PersistentVolumeStatus { phase, terminating })
    }

    /// Tests every path through the diagrams "Reconciliation loop (top level)", "Volume Deployment" and "Volume
    /// Finalization".
    #[test]
    fn next_step_matches_every_path_of_the_diagrams() {
        let of = |state: VolumeState| ObservedVolume { state: Some(state), ..NEW };
        let available = ObservedVolume {
            persistent: backed(PersistentVolumePhase::Available, false),
            ..of(VolumeState::Available)
        };
        let pending = |job: StorageJob| ObservedVolume { job, ..of(VolumeState::Pending) };
        let deleted = |seen: ObservedVolume| ObservedVolume { deleted: true, ..seen };
        let failed = of(VolumeState::Failed);
        let going =
            |phase: PersistentVolumePhase| deleted(ObservedVolume { persistent: backed(phase, true), ..available });
        let reclaimed = |job: StorageJob| deleted(ObservedVolume { job, ..of(VolumeState::Terminating) });
        let rows = [
            // Diagram "Reconciliation loop (top level)".
            ("does not exist", None, LifecycleStep::DoNothing),
            ("not valid", Some(ObservedVolume { valid: false, ..NEW }), LifecycleStep::Fail),
            (
                "not valid, and marked for deletion",
                Some(deleted(ObservedVolume { valid: false, ..available })),
                LifecycleStep::Fail,
            ),
            ("failed", Some(failed), LifecycleStep::DoNothing),
            ("backed and healthy", Some(available), LifecycleStep::DoNothing),
            (
                "backed and bound",
                Some(ObservedVolume { persistent: backed(PersistentVolumePhase::Bound, false), ..available }),
                LifecycleStep::DoNothing,
            ),
            (
                "not healthy",
                Some(ObservedVolume { persistent: backed(PersistentVolumePhase::Failed, false), ..available }),
                LifecycleStep::Fail,
            ),
            // Diagram "Volume Deployment".
            ("no job", Some(NEW), LifecycleStep::Prepare),
            ("job failed", Some(pending(StorageJob::Failed)), LifecycleStep::Fail),
            ("job not found", Some(pending(NotFound)), LifecycleStep::DeleteJobRecord),
            ("job succeeded", Some(pending(Succeeded)), LifecycleStep::RecordSuccess),
            ("job in progress", Some(pending(InProgress)), LifecycleStep::Wait),
            ("job done", Some(pending(Done)), LifecycleStep::Publish),
            // Diagram "Volume Finalization".
            ("deleted while pending", Some(deleted(pending(InProgress))), LifecycleStep::Wait),
            ("deleted, backed", Some(deleted(available)), LifecycleStep::Unpublish),
            ("deleted, still bound", Some(going(PersistentVolumePhase::Bound)), LifecycleStep::Wait),
            ("deleted, still pending", Some(going(PersistentVolumePhase::Pending)), LifecycleStep::Wait),
            ("deleted, unused", Some(going(PersistentVolumePhase::Available)), LifecycleStep::Unprepare),
            ("deleted, released", Some(going(PersistentVolumePhase::Released)), LifecycleStep::Unprepare),
            ("deleted, failed", Some(going(PersistentVolumePhase::Failed)), LifecycleStep::Unprepare),
            ("deleted, not backed", Some(deleted(failed)), LifecycleStep::Unprepare),
            // The storage of the volume is reclaimed.
            ("unprepare failed", Some(reclaimed(StorageJob::Failed)), LifecycleStep::Fail),
            ("unprepare not found", Some(reclaimed(NotFound)), LifecycleStep::DeleteJobRecord),
            ("unprepare succeeded", Some(reclaimed(Succeeded)), LifecycleStep::RecordSuccess),
            ("unprepare in progress", Some(reclaimed(InProgress)), LifecycleStep::Wait),
            ("unprepare done", Some(reclaimed(Done)), LifecycleStep::RemoveFinalizers),
        ];
        for (row, seen, expected) in rows {
            assert_eq!(next_step(seen.as_ref()), expected, "{row}");
        }
    }

    #[test]
    fn deletion_follows_every_leaf_of_the_decision_tree() {
        use PersistentVolumePhase::{Available, Bound, Failed, Pending, Released};
        for state in [None, Some(VolumeState::Pending), Some(VolumeState::Terminating)] {
            for phase in [None, Some(Pending), Some(Available), Some(Bound), Some(Released), Some(Failed)] {
                assert!(!can_be_deleted(state, phase), "{state:?} {phase:?}");
            }
        }
        for state in [VolumeState::Failed, VolumeState::Available] {
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
    fn repeated_steps_lead_to_settled_volume_state() {
        let deleted = ObservedVolume { deleted: true, ..NEW };
        let available = Some(VolumeState::Available);
        for (seen, expected) in [
            (NEW, Some(VolumeState::Pending)),
            (ObservedVolume { job: InProgress, state: Some(VolumeState::Pending), ..NEW }, Some(VolumeState::Pending)),
            (ObservedVolume { job: Succeeded, ..NEW }, available),
            (ObservedVolume { job: StorageJob::Failed, ..NEW }, Some(VolumeState::Failed)),
            (ObservedVolume { job: NotFound, ..NEW }, Some(VolumeState::Pending)),
            (ObservedVolume { valid: false, ..NEW }, Some(VolumeState::Failed)),
            (
                ObservedVolume {
                    state: available,
                    persistent: backed(PersistentVolumePhase::Available, false),
                    ..deleted
                },
                Some(VolumeState::Terminating),
            ),
            (
                ObservedVolume { state: available, persistent: backed(PersistentVolumePhase::Bound, false), ..deleted },
                available,
            ),
            (ObservedVolume { state: Some(VolumeState::Terminating), job: Succeeded, ..deleted }, None),
        ] {
            assert_eq!(reconcile_state(seen), expected, "{seen:?}");
        }
    }
}
