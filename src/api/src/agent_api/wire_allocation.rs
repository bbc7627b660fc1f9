//! Conversion of a machine's allocation to the format that the agent receives.

use super::secrets;
use crate::AppState;
use crate::install_state_enrichment;
use common::encoding::percent_encode;
use http_server::api_error::ApiError;
use model::allocation;
use model::deploy_steps::StepList;
use model::install_marker::RecordedVolume;
use model::install_report::PreparedVolume;
use model::secret_text::SecretText;
use serde_json::Value;
use site::allocation_resolution::{ResolvedAllocation, resolve_allocation};
use site::operator_files::{ImageLocation, ImageSpec};
use site::snapshot::SiteSnapshot;
use store::{ATTEMPTS, InstallState, ReinstallOrder};

/// Returns the machine's allocation with its installation state. Returns `None` if the allocation cannot be carried
/// out; the reason was logged when the directory was read.
pub(crate) async fn find_assignment(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
) -> Result<Option<(ResolvedAllocation, InstallState)>, ApiError> {
    let Some(machine) = directory.find_machine(id) else { return Ok(None) };
    if machine.allocation.is_none() {
        return Ok(None);
    }
    let install_state =
        install_state_enrichment::read_full_state(app, machine, &directory.known).await?.without_withheld_order();
    let assigned = resolve_allocation(machine, &install_state, &directory.known).ok().flatten();
    Ok(assigned.map(|assigned| (assigned, install_state)))
}

/// Converts an allocation for the agent. If the machine is installed and no reinstall is ordered, the allocation
/// identifies the installed system, which the agent boots. The image then has no URL, so the agent cannot install the
/// image.
///
/// Secrets are sent separately by `secrets`. The parameters of an OS definition are also secret, but are included if
/// `with_parameters` is true, because the `verify` program of the definition needs them before the plan is made.
pub fn to_wire_allocation(
    assigned: &ResolvedAllocation,
    install_state: InstallState,
    base: &str,
    with_parameters: bool,
) -> allocation::Allocation {
    let ResolvedAllocation { allocation, layout, steps, installs, approved, .. } = assigned;
    let succeeded = install_state.is_installed();
    let told = allocation.to_agent_allocation();
    let has_volumes = !told.volumes.is_null() || !install_state.volumes.is_empty();
    let prepared_volumes = has_volumes.then(|| install_state.volumes.iter().map(recorded_volume).collect());
    allocation::Allocation {
        created: install_state.created,
        image: to_wire_image(&assigned.image, base, *installs),
        filesystemlayout: layout.clone(),
        definition: allocation.definition.for_machine(with_parameters).filter(|_| *installs),
        user_data: String::new(),
        console_password: String::new(),
        disk_key_withheld: !with_parameters && *installs && !told.disk_key.is_empty(),
        disk_key: SecretText::default(),
        separate_secrets: secrets::requestable_fields(assigned, with_parameters),
        vpn: Value::Null,
        reinstall: install_state.order.is_some(),
        fencing: match &install_state.order {
            Some(order) => order.fencing.clone(),
            None => install_state.fencing.filter(|_| *installs || !succeeded),
        },
        order: install_state.order.map(to_wire_order),
        installed: install_state.marker,
        // Agents of earlier versions do not support steps. They erase disks as the field `erase` specifies.
        erase: if steps.is_empty() { allocation.erase } else { StepList::from_received(steps).erase_mode() },
        steps: steps.clone(),
        succeeded,
        attempt_record: install_state.first.as_ref().and_then(|first| first.record.clone()),
        begun_on: install_state.first.map(|first| first.disks).unwrap_or_default(),
        unremembered: install_state.unremembered && !succeeded,
        former_machines: install_state.former,
        approved: approved.clone(),
        prepared_volumes,
        ..told
    }
}

fn to_wire_image(image: &ImageSpec, base: &str, installs: bool) -> allocation::AllocatedImage {
    let place = match &image.at {
        ImageLocation::Url(url) => url.clone(),
        ImageLocation::File(file) => format!("{base}/images/{}", percent_encode(file, "/")),
    };
    allocation::AllocatedImage {
        id: image.id.clone(),
        name: image.name.clone(),
        url: if installs { place } else { String::new() },
        mirrors: if installs { image.mirrors.clone() } else { Vec::new() },
        digest: image.digest.clone().filter(|_| installs),
        pull_secrets: Vec::new(),
        finish: image.finish,
        architecture: image.architecture.filter(|_| installs),
        contents: image.contents.clone().filter(|_| installs),
    }
}

fn to_wire_order(order: ReinstallOrder) -> allocation::OrderedReinstall {
    allocation::OrderedReinstall {
        id: order.id,
        attempt: order.attempts.max(1),
        attempts: ATTEMPTS,
        started: order.started,
        without_marker: order.without_marker,
        change_promise: order.change_promise,
        give_up: order.give_up,
        leave_locked: order.leave_locked,
        replace_newer: order.replace_newer,
        confirmed: order.confirmed,
        disks: order.disks,
        attempt_record: order.attempt.and_then(|attempt| attempt.record),
    }
}

/// Converts a volume that the last installation reported. The disks of the volume are not included, because the install
/// marker on the machine records them.
fn recorded_volume(volume: &PreparedVolume) -> RecordedVolume {
    let PreparedVolume { name, uid, path, .. } = volume.clone();
    RecordedVolume { name, uid, path, ..RecordedVolume::default() }
}
