//! All data of one machine, for `drophammer machine show`, `events`, `logs` and `history`.

use super::AppState;
use super::console_log;
use super::display_phase::find_live_event;
use super::install_timeline::{TimelineEntry, build_timeline};
use super::operator_api::{self, MachineSummary, OperatorAuth};
use super::rollouts::{self, MemberView, RolloutState};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use control::agent_api_types::{InstallReport, RegisterRequest, RegisteredHardware};
use http_server::api_error::ApiError;
use model::architecture::Architecture;
use model::install_report::ProgressEvent;
use model::inventory::Inventory;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
pub use store::HistoryEntry;

/// Maximum number of events in a response.
const EVENTS: u32 = 5000;

/// One machine: its summary, file, hardware, last report, and the timeline of its last installation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineDetails {
    pub summary: MachineSummary,
    /// Path of the machine file; absent if the machine has no file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// MACs in the machine file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<String>,
    /// Hardware with which the machine registered; absent if the machine has never registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareDetails>,
    /// Report of the last installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<InstallReport>,
    /// Membership in the newest rollout of the machine; absent if the user does not have access to all machines of the
    /// rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutMembership>,
    /// Phases and stages since the machine last booted over PXE, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<TimelineEntry>,
}

/// Membership of a machine in a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RolloutMembership {
    /// Id of the rollout.
    pub id: i64,
    /// State of the rollout.
    pub state: RolloutState,
    pub member: MemberView,
}

impl RolloutMembership {
    /// Returns the machine's membership in its newest rollout; `None` if there is none that the user may access.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_newest(app: &AppState, machine: &str) -> Result<Option<RolloutMembership>, ApiError> {
        let membership = rollouts::find_membership(app, machine).await?;
        Ok(membership.map(|(id, state, member)| RolloutMembership { id, state, member }))
    }

    /// Describes the membership, such as `rollout 7 (running): installing`.
    pub fn describe(&self) -> String {
        let RolloutMembership { id, state, member } = self;
        let reason = if member.reason.is_empty() { String::new() } else { format!(", {}", member.reason) };
        format!("rollout {id} ({state}): {}{reason}", member.state)
    }
}

/// Hardware of a registered machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HardwareDetails {
    /// Time of the registration, as RFC 3339 in UTC; empty if the time is not on record.
    pub registered: String,
    /// Vendor, product and serial number of the machine.
    pub system: String,
    /// Vendor, version and date of the firmware.
    pub firmware: String,
    /// Architecture of the machine: `amd64` or `arm64`.
    #[serde(default)]
    pub architecture: Architecture,
    /// Name and version of the agent.
    pub agent: String,
    #[serde(flatten)]
    pub registered_hardware: RegisteredHardware,
    /// Disks with their models and serial numbers; empty if the machine sent no inventory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk_details: Vec<DiskDetails>,
}

/// Disk of a registered machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DiskDetails {
    pub device: String,
    pub size_bytes: u64,
    pub model: String,
    pub serial: String,
}

/// Event of a machine, with the time at which the server received it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StoredEvent {
    pub time: String,
    #[serde(flatten)]
    pub event: ProgressEvent,
}

/// Text of a console log, from a given position to its current end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ConsoleText {
    pub text: String,
    /// Position of the end of the text, to be sent as `after` in the next request.
    pub next: i64,
}

/// Query of `GET /v1/machine/{id}/log`.
#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct LogQuery {
    /// Position at which the text begins: `next` of an earlier response.
    #[serde(default)]
    after: i64,
}

/// `GET /v1/machine/{id}/details`: returns all data of one machine.
pub(crate) async fn get_details(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<MachineDetails>, ApiError> {
    let id = id.to_lowercase();
    let directory = app.directory();
    let machine = directory.find_machine(&id);
    let summary = match machine {
        Some(machine) => operator_api::summarize_machine(&app, machine).await?,
        None => operator_api::summarize_new_machine(&app, &id).await?.ok_or_else(|| unknown_machine(&id))?,
    };
    let report = match summary.allocation.as_deref() {
        Some(allocation) => app.state.last_report(&id, allocation).await?,
        None => None,
    };
    let hardware = match app.state.find_registration(&id).await? {
        Some(row) => app.planner.run_job(&id, move || HardwareDetails::parse(&row)).await?,
        None => None,
    };
    let file = directory.machine_files.get(&id).map(|path| path.strip_prefix(&app.dir).unwrap_or(path));
    Ok(Json(MachineDetails {
        file: file.map(|path| path.display().to_string()),
        macs: machine.map(|machine| machine.macs.clone()).unwrap_or_default(),
        hardware,
        // The report is ignored if it cannot be parsed: another version of drophammer may have stored it in another
        // format.
        report: report.and_then(|report| serde_json::from_str(&report).ok()),
        rollout: RolloutMembership::find_newest(&app, &id).await?,
        timeline: read_timeline(&app, &summary).await?,
        summary,
    }))
}

impl HardwareDetails {
    /// Parses a stored registration. Returns `None` if this version does not support the registration.
    fn parse(row: &store::StoredRegistration) -> Option<HardwareDetails> {
        let register: RegisterRequest = serde_json::from_str(&row.document).ok()?;
        let inventory = register.inventory.unwrap_or_default();
        let join = |parts: [&str; 3]| parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let (system, bios) = (&inventory.system, &register.bios);
        Some(HardwareDetails {
            registered: row.time.clone().unwrap_or_default(),
            system: join([&system.vendor, &system.product, &system.serial]),
            firmware: join([&bios.vendor, &bios.version, &bios.date]),
            architecture: system.architecture,
            agent: register.agent,
            registered_hardware: register.hardware,
            disk_details: list_disks(&inventory),
        })
    }
}

fn list_disks(inventory: &Inventory) -> Vec<DiskDetails> {
    let disks = inventory.disks.iter().map(|disk| DiskDetails {
        device: disk.device.to_string(),
        size_bytes: disk.size_bytes,
        model: disk.model.clone(),
        serial: disk.serial.clone(),
    });
    disks.collect()
}

/// `GET /v1/machine/{id}/events`: returns the stored events of a machine, the oldest first.
pub(crate) async fn get_events(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<Vec<StoredEvent>>, ApiError> {
    let id = id.to_lowercase();
    require_machine(&app, &id).await?;
    read_events(&app, &id).await.map(Json)
}

/// `GET /v1/machine/{id}/history`: returns the orders and the finished installations of a machine, successful or
/// failed, the oldest first.
pub(crate) async fn get_history(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<Vec<HistoryEntry>>, ApiError> {
    let id = id.to_lowercase();
    require_machine(&app, &id).await?;
    Ok(Json(app.state.list_history(&id).await?))
}

/// `GET /v1/machine/{id}/log`: returns the console log of a machine, or the part that follows the position `after`.
pub(crate) async fn get_log(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Json<ConsoleText>, ApiError> {
    let Query(LogQuery { after }) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let id = id.to_lowercase();
    require_machine(&app, &id).await?;
    let log = app.state.read_log(&id).await?;
    let next = log.last().map_or(after, |chunk| chunk.number);
    Ok(Json(ConsoleText { text: console_log::format_log_after(&log, after), next }))
}

/// Returns the timeline of the machine's last installation.
///
/// # Errors
/// Returns an error if the database fails.
pub async fn read_timeline(app: &AppState, machine: &MachineSummary) -> Result<Vec<TimelineEntry>, ApiError> {
    let running = find_live_event(app, machine).map(|(event, _)| event);
    Ok(build_timeline(&read_events(app, &machine.id).await?, running.as_ref(), machine.ended))
}

async fn read_events(app: &AppState, id: &str) -> Result<Vec<StoredEvent>, ApiError> {
    let stored = app.state.list_events(id, EVENTS).await?;
    // Events that this version cannot parse are omitted.
    let parsed = stored.into_iter().filter_map(|(time, event)| {
        let event = serde_json::from_str(&event).ok()?;
        Some(StoredEvent { time, event })
    });
    Ok(parsed.collect())
}

async fn require_machine(app: &AppState, id: &str) -> Result<(), ApiError> {
    let is_known = app.directory().find_machine(id).is_some() || app.state.is_recorded(id).await?;
    if is_known { Ok(()) } else { Err(unknown_machine(id)) }
}

fn unknown_machine(id: &str) -> ApiError {
    ApiError::not_found(format!("machines/ contains no machine {id}, and no machine with this id has registered"))
}
