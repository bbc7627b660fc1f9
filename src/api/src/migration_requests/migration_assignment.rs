//! Responses to the two machines of a migration when they request their allocation, and predictions of these responses.
//! The module performs no I/O.

use super::{CurrentBoots, Migration, MigrationState};
use crate::agent_api::wire_allocation::to_wire_allocation;
use model::allocation::{Allocation, ApprovedPlan};
use model::install_marker::AttemptRecord;
use model::machine_migration::{MigrationOffer, MigrationSide};
use site::allocation_resolution::{ResolvedAllocation, resolve_allocation};
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use store::{FirstInstall, InstallState};

/// Allocation that is sent to a machine, together with the migration if the machine is part of one.
pub(crate) struct Assignment {
    pub assigned: ResolvedAllocation,
    pub install_state: InstallState,
    pub moving: Option<MigrationOffer>,
}

/// Returns the source machine, or `None` if the file of the source machine cannot be read, or does not contain the
/// migrated allocation.
pub(crate) fn find_source<'d>(directory: &'d SiteSnapshot, migration: &Migration) -> Option<&'d MachineSpec> {
    let has_it =
        |machine: &&MachineSpec| machine.allocation.as_ref().is_some_and(|has| *has.id == migration.allocation);
    directory.find_machine(&migration.source).filter(has_it)
}

/// Returns the allocation of the source machine, or `None` if the allocation cannot be migrated: it must be installed,
/// and no reinstall may be pending.
pub(crate) fn resolve_installed(
    directory: &SiteSnapshot,
    migration: &Migration,
    install_state: &InstallState,
) -> Option<ResolvedAllocation> {
    let machine = find_source(directory, migration)?;
    if !install_state.succeeded || install_state.order.is_some() {
        return None;
    }
    resolve_allocation(machine, install_state, &directory.known).ok().flatten().filter(|assigned| !assigned.installs)
}

/// Returns the response to the source machine.
pub(crate) fn assign_source(
    migration: Migration,
    now: CurrentBoots,
    assigned: ResolvedAllocation,
    install_state: InstallState,
) -> Assignment {
    let moving =
        MigrationOffer { carried: None, disks: Vec::new(), ..build_offer(migration, MigrationSide::Source, now) };
    Assignment { assigned, install_state, moving: Some(moving) }
}

/// Returns the response to the target machine, with the approval that is in force for the target's plan. The target
/// treats the migration as a first installation.
pub(crate) fn assign_target(
    migration: Migration,
    now: CurrentBoots,
    mut assigned: ResolvedAllocation,
    of_sender: InstallState,
    approved: Option<ApprovedPlan>,
    directory: &SiteSnapshot,
) -> Assignment {
    assigned.approved = approved;
    let image = directory.known.images.get(&assigned.image.id).cloned().flatten();
    assigned.image.finish = image.and_then(|image| image.finish);
    let install_state =
        InstallState { fencing: migration.fencing.clone(), ..target_install_state(&migration, of_sender) };
    Assignment { assigned, install_state, moving: Some(build_offer(migration, MigrationSide::Target, now)) }
}

fn build_offer(migration: Migration, part: MigrationSide, now: CurrentBoots) -> MigrationOffer {
    let (peer, awaits_approval) = (migration.released_peer(part, now), migration.awaits_approval());
    let started = migration.state == MigrationState::Copying;
    MigrationOffer {
        order: migration.id,
        part,
        started,
        awaits_approval,
        peer,
        carried: migration.carried,
        disks: migration.disks,
    }
}

/// Returns the state of the allocation on the target machine: a first installation that is not finished. The record of
/// the attempt contains no image, since a migration transfers the installed system. `of_sender` is the state of the
/// allocation on the source machine.
fn target_install_state(migration: &Migration, of_sender: InstallState) -> InstallState {
    let started = migration.started_copy.as_ref();
    let secret_digest = started.and_then(|started| started.secret_digest.clone());
    let first = FirstInstall {
        disks: started.map(|started| started.disks.clone()).unwrap_or_default(),
        record: secret_digest.map(|secret_digest| AttemptRecord { secret_digest, image: None }),
        ..FirstInstall::default()
    };
    let former = of_sender.former.into_iter().chain([migration.source.clone()]).collect();
    InstallState { created: of_sender.created, first: Some(first), former, ..InstallState::default() }
}

impl Assignment {
    /// Converts the allocation for an agent. Secrets are omitted if the agent does not need them (on the source) or
    /// already has them (on the target, after its point of no return).
    pub(crate) fn into_wire(self, base: &str, has_not_begun: bool) -> Allocation {
        let Assignment { assigned, install_state, moving } = self;
        let receives = moving.as_ref().is_some_and(|moving| moving.part == MigrationSide::Target);
        Allocation { moving, ..to_wire_allocation(&assigned, install_state, base, has_not_begun && receives) }
    }
}

/// Predicted effect of a migration on a machine whose ramdisk has not contacted the server yet.
pub(crate) enum MigrationForecast {
    /// The migration does not affect the machine.
    Unaffected,
    /// The disks of the machine will not be written, for this reason.
    NotWritten(String),
    /// The effect cannot be predicted yet, for this reason.
    Unknown(String),
    /// The response that the target will receive once the source waits in its ramdisk, and from which the target will
    /// make its plan.
    Assigned(Box<Assignment>),
}

/// Predicts the effect of the migration on `machine`. `of_sender` is the state of the allocation on the source machine.
pub(crate) fn forecast_for_machine(
    migration: Migration,
    machine: &str,
    of_sender: InstallState,
    approved: Option<ApprovedPlan>,
    directory: &SiteSnapshot,
) -> MigrationForecast {
    let (a, b) = (directory.display_name(&migration.source), directory.display_name(&migration.target));
    match (migration.role_of(machine), migration.state) {
        (_, MigrationState::Done | MigrationState::Cancelled | MigrationState::Refused)
        | (MigrationSide::Target, MigrationState::Booting) => MigrationForecast::Unaffected,
        (MigrationSide::Source, state) => MigrationForecast::NotWritten(format!(
            "the system of this machine is migrated to machine {b} ({state}): the disks of this machine are only read"
        )),
        (MigrationSide::Target, state) if migration.carried.is_none() => MigrationForecast::Unknown(format!(
            "this machine receives the system of machine {a} ({state}); the contents of that system are unknown until machine {a} waits in its ramdisk for the migration"
        )),
        (MigrationSide::Target, state) => match resolve_installed(directory, &migration, &of_sender) {
            None => MigrationForecast::Unknown(format!(
                "this machine receives the system of machine {a} ({state}), but the file of machine {a} cannot be read, or does not contain the migrated allocation"
            )),
            Some(assigned) => {
                let given = assign_target(migration, CurrentBoots::default(), assigned, of_sender, approved, directory);
                MigrationForecast::Assigned(Box::new(given))
            }
        },
    }
}
