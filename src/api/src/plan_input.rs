//! Inputs for a plan that is computed on the operator's workstation: the machine's registered inventory, and the
//! allocation that the machine would receive.

use super::access::{self, HIDDEN_MACHINE_TEXT};
use super::agent_api::wire_allocation::to_wire_allocation;
use super::base_url::BaseUrls;
use super::migration_requests::machine_requests;
use super::migration_requests::migration_assignment::MigrationForecast;
use super::operator_api::reinstall_plan::{ReinstallQuery, simulate_order};
use super::operator_api::reinstalls::ReinstallRequest;
use super::operator_api::{self, OperatorAuth};
use super::{AppState, machine_identification};
use crate::install_state_enrichment;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use common::type_errors::locate_json_error;
use control::agent_api_types::RegisterRequest;
use http_server::api_error::ApiError;
use model::allocation;
use model::inventory::Inventory;
use serde::{Deserialize, Serialize};
use site::allocation_resolution::{ResolvedAllocation, resolve_allocation, resolve_before_approval};
use site::approved_input_digests::digest_inputs;
use site::effective_allocation::{AllocationDifference, find_allocation_differences, is_unrecorded};
use site::operator_files::{AllocationSpec, MachineSpec};
use site::snapshot::SiteSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{InstallState, StoredRegistration as Row};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub const INPUT_NOT_READY: &str = "the image has no digest yet, the OS definition is not verified yet, or a template generates the layout from an inventory that is not registered yet";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlanInput {
    /// Assignment that the machine would receive, without secrets.
    pub machine: allocation::AssignedMachine,
    /// Reason why the machine would not receive an allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// Differences between the machine file and the installed allocation, as in the list of machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<AllocationDifference>,
    /// True if the server has no record of the installed allocation, in which case a reinstall applies all values of
    /// the machine file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allocation_unrecorded: bool,
    /// Inventory in the machine's last registration. A machine registers when it has booted the ramdisk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<RegisteredInventory>,
    /// Digests of the inputs of the installation, by field of the allocation. Also contains fields that this response
    /// omits, such as user data. Omitted in responses to viewers, because a digest could confirm a guess of a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

impl PlanInput {
    /// Sets the allocation. If it will be installed, also sets the digests of its inputs, except for viewers.
    fn set_allocation(&mut self, assigned: &ResolvedAllocation, install_state: InstallState, base: &str) {
        if assigned.installs && !access::is_viewer() {
            self.inputs = digest_inputs(assigned);
        }
        self.machine.allocation = Some(to_wire_allocation(assigned, install_state, base, false));
    }

    /// Sets the differences from the installed allocation. Returns whether the allocation is installed.
    fn compare_with_installed(&mut self, in_file: &AllocationSpec, install_state: &InstallState) -> bool {
        self.differences = find_allocation_differences(in_file, install_state);
        self.allocation_unrecorded = is_unrecorded(install_state);
        install_state.is_installed()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RegisteredInventory {
    #[schemars(with = "serde_json::Value")]
    pub inventory: Inventory,
    /// Time of the registration according to this server's clock, RFC 3339 in UTC; empty if an earlier version of the
    /// server did not record the time.
    pub time: String,
    pub seconds_ago: u64,
    /// True if the contents of the disks have changed since the registration, because the machine has passed a point
    /// of no return.
    pub outdated: bool,
}

/// `GET /v1/machine/{id}/preview`: returns the inputs for planning the machine with its current orders, or with a
/// reinstall that is not ordered yet.
pub(crate) async fn get_preview(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    Query(query): Query<ReinstallQuery>,
    base: BaseUrls,
    _: OperatorAuth,
) -> Result<Json<PlanInput>, ApiError> {
    let id = id.to_lowercase();
    let reinstall_request = query.into_request(&id);
    let directory = app.directory();
    let described = directory.find_machine(&id);
    let mut preview = PlanInput::default();
    preview.machine.id.clone_from(&id);
    let is_installed = match described {
        Some(machine) => {
            preview.machine.name.clone_from(&machine.name);
            preview.machine.size = machine.size.clone().map(|id| allocation::IdReference { id });
            add_allocation(&mut preview, &app, &directory, machine, reinstall_request.as_ref(), &base.calls).await?
        }
        None => {
            preview.withheld = Some("the machine does not have a file in machines/".to_owned());
            false
        }
    };
    if let Some(allocation) = &mut preview.machine.allocation {
        allocation.blank_only = machine_identification::explain_blank_only(&app, &directory, &id).await?;
    }
    preview.registered = registered_inventory(&app, &id, is_installed).await?;
    if described.is_none() && preview.registered.is_none() {
        let unknown = || {
            ApiError::not_found(format!(
                "machines/ contains no machine {id}, and no machine with this id has registered"
            ))
        };
        return Err(operator_api::explain_file_error(&directory, &id).unwrap_or_else(unknown));
    }
    Ok(Json(preview))
}

/// Adds the allocation that the machine would receive, or the reason why it would not receive an allocation. Returns
/// whether the allocation in the machine file is installed.
async fn add_allocation(
    preview: &mut PlanInput,
    app: &AppState,
    directory: &SiteSnapshot,
    machine: &MachineSpec,
    reinstall_request: Option<&ReinstallRequest>,
    base: &str,
) -> Result<bool, ApiError> {
    let id = &machine.id;
    let foreseen = machine_requests::forecast_migration(app, directory, id).await?;
    let is_hidden =
        app.state.find_live_migration(id).await?.is_some_and(|migration| !app.may_see_migration(&migration));
    match (foreseen, &machine.allocation) {
        (MigrationForecast::Assigned(_) | MigrationForecast::NotWritten(_) | MigrationForecast::Unknown(_), _)
            if is_hidden =>
        {
            preview.withheld = Some(format!("this machine is part of a migration with {HIDDEN_MACHINE_TEXT}"));
        }
        (MigrationForecast::Assigned(given), _) => {
            preview.machine.allocation = Some(given.into_wire(base, false));
        }
        (MigrationForecast::NotWritten(why) | MigrationForecast::Unknown(why), _) => preview.withheld = Some(why),
        (MigrationForecast::Unaffected, Some(allocation)) => {
            let (install_state, resolved) = resolve_for_plan(app, directory, machine, reinstall_request).await?;
            let is_installed = preview.compare_with_installed(allocation, &install_state);
            match resolved {
                Ok(Some(assigned)) => preview.set_allocation(&assigned, install_state, base),
                Ok(None) => preview.withheld = Some(INPUT_NOT_READY.to_owned()),
                Err(why) => preview.withheld = Some(why),
            }
            return Ok(is_installed);
        }
        (MigrationForecast::Unaffected, None) => {
            preview.withheld = Some("the machine file does not contain an allocation".to_owned());
        }
    }
    Ok(false)
}

/// Resolves the allocation that the machine would receive after the order in `reinstall_request`; if
/// `reinstall_request` is `None`, the allocation that it would receive now. The inner error is the reason why the
/// machine would not receive an allocation.
async fn resolve_for_plan(
    app: &AppState,
    directory: &SiteSnapshot,
    machine: &MachineSpec,
    reinstall_request: Option<&ReinstallRequest>,
) -> Result<(InstallState, Result<Option<ResolvedAllocation>, String>), ApiError> {
    let (install_state, resolve): (_, fn(&_, &_, &_) -> _) = match reinstall_request {
        Some(reinstall_request) => {
            (simulate_order(app, reinstall_request).await?.install_state, resolve_before_approval)
        }
        None => (install_state_enrichment::read_full_state(app, machine, &directory.known).await?, resolve_allocation),
    };
    let resolved = resolve(machine, &install_state, &directory.known);
    Ok((install_state, resolved))
}

async fn registered_inventory(
    app: &AppState,
    id: &str,
    is_installed: bool,
) -> Result<Option<RegisteredInventory>, ApiError> {
    let Some(row) = app.state.find_registration(id).await? else { return Ok(None) };
    let machine = id.to_owned();
    let read = app.planner.run_job(id, move || parse_registration(row, &machine, is_installed)).await?;
    read.map_err(|why| ApiError::new(StatusCode::CONFLICT, why))
}

/// Parses a stored registration.
///
/// # Errors
/// Returns an error if the registration is invalid or not supported.
pub fn parse_registration(row: Row, id: &str, is_installed: bool) -> Result<Option<RegisteredInventory>, String> {
    // Parsing may fail, because another version of the server may have stored the registration.
    let register: RegisterRequest = serde_json::from_str(&row.document).map_err(|error| {
        let what = format!("cannot parse the registration of machine {id}: {}", locate_json_error(&error));
        format!("{what}. The machine registers again when it boots the ramdisk")
    })?;
    let Some(inventory) = register.inventory else { return Ok(None) };
    if let Some(why) = inventory.find_exceeded_limit() {
        return Err(format!(
            "the registered inventory of machine {id} cannot be used: {why}; then boot the machine into the ramdisk \
            again"
        ));
    }
    let at = row.time.as_deref().and_then(|time| OffsetDateTime::parse(time, &Rfc3339).ok());
    let seconds_ago = at.map_or(0, |at| (OffsetDateTime::now_utc() - at).whole_seconds().unsigned_abs());
    // If the time of the registration is unknown, the registration is assumed to be older than the installation.
    let outdated = row.has_begun_since || (at.is_none() && is_installed);
    Ok(Some(RegisteredInventory { inventory, time: row.time.unwrap_or_default(), seconds_ago, outdated }))
}
