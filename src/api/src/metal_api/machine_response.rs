//! Machines in metal-api's format. metal-api's clients reject responses that lack a required field. Therefore fields
//! with values that this server does not know are empty, and flags of unsupported features are false.

use super::allocation_response::AllocationResponse;
use super::api_refusal::{ApiRefusal, ApiResult};
use super::sizes::{SizeResponse, machine_size_response};
use crate::AppState;
use crate::base_url::BaseUrls;
use crate::operator_api::{MachineSummary, OperatorAuth};
use crate::plan_input::{PlanInput, get_preview};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use control::agent_api_types::{HardwareDisk, HardwareNic, RegisterRequest, RegisteredBios};
use model::install_report::{EventName, ProgressEvent};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Value of the field `liveliness`, because the server does not monitor the events of machines.
const UNKNOWN: &str = "Unknown";

/// A machine in a response.
#[derive(Serialize, JsonSchema)]
pub struct MachineResponse {
    id: String,
    name: String,
    description: String,
    tags: Vec<String>,
    size: Option<SizeResponse>,
    /// Registered hardware. This field and `bios` are empty if the machine has not registered.
    hardware: MachineHardware,
    bios: RegisteredBios,
    /// Allocation without secrets.
    allocation: Option<AllocationResponse>,
    /// Reason why the machine does not receive its allocation.
    withheld: Option<String>,
    state: LockState,
    /// Empty, since this server does not control the LED of the chassis.
    ledstate: LedState,
    /// Always `Unknown`. The time of the last event is in `events`.
    liveliness: &'static str,
    events: MachineEvents,
}

/// Response to a reinstall order: the machine in metal-api's format, with additional fields from the summary of the
/// machine.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct ReinstallResponse(Map<String, Value>);

impl ReinstallResponse {
    pub(super) fn new(machine: &MachineResponse, summary: &MachineSummary) -> ReinstallResponse {
        let [mut fields, machine] = [json!(summary), json!(machine)].map(into_object);
        fields.extend(machine);
        ReinstallResponse(fields)
    }
}

impl JsonSchema for ReinstallResponse {
    fn schema_name() -> Cow<'static, str> {
        "OrderedMachine".into()
    }

    fn json_schema(schemas: &mut SchemaGenerator) -> Schema {
        let mut schema = MachineSummary::json_schema(schemas).to_value();
        let machine = MachineResponse::json_schema(schemas).to_value();
        let properties = schema["properties"].as_object_mut().into_iter();
        properties.for_each(|properties| properties.extend(into_object(machine["properties"].clone())));
        let names: BTreeSet<&str> = [&schema, &machine]
            .into_iter()
            .flat_map(|schema| schema["required"].as_array())
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        schema["required"] = json!(names);
        Schema::from(into_object(schema))
    }
}

fn into_object(document: Value) -> Map<String, Value> {
    match document {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[derive(Serialize, JsonSchema)]
struct MachineHardware {
    memory: u64,
    cpu_cores: u32,
    disks: Vec<HardwareDisk>,
    nics: Vec<MachineNic>,
}

#[derive(Serialize, JsonSchema)]
struct MachineNic {
    mac: String,
    name: String,
    /// MAC address of the NIC. metal-api uses the MAC if a NIC has no other identifier.
    identifier: String,
    /// Always empty, since this server does not manage switches.
    neighbors: Vec<HardwareNic>,
}

#[derive(Serialize, JsonSchema)]
struct LockState {
    /// `LOCKED` if the machine is locked; otherwise empty.
    value: &'static str,
    description: String,
    /// Name and version of the agent; empty if the machine has not registered.
    metal_hammer_version: String,
}

#[derive(Default, Serialize, JsonSchema)]
struct LedState {
    value: &'static str,
    description: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct MachineEvents {
    /// The last event of the machine.
    log: Vec<LoggedEvent>,
    last_event_time: Option<String>,
    /// Always false, since this server does not detect crash loops. `failed_machine_reclaim` is also always false.
    crash_loop: bool,
    failed_machine_reclaim: bool,
}

#[derive(Serialize, JsonSchema)]
struct LoggedEvent {
    time: Option<String>,
    event: EventName,
    message: String,
}

/// Returns the machine with this id, which must have a machine file or have registered.
pub(super) async fn machine_response(app: &Arc<AppState>, id: &str, base: &BaseUrls) -> ApiResult<MachineResponse> {
    let base = BaseUrls { calls: base.calls.clone(), files: base.files.clone() };
    let shown = get_preview(State(app.clone()), Path(id.to_owned()), Query::default(), base, OperatorAuth).await;
    let Json(PlanInput { machine, withheld, .. }) = shown.map_err(|error| match error.status() {
        StatusCode::NOT_FOUND => ApiRefusal::not_found(super::machines::KIND, id),
        _ => ApiRefusal::from(error),
    })?;
    let directory = app.directory();
    let described = directory.find_machine(id);
    let allocation = machine.allocation.or_else(|| {
        let mut told = described?.allocation.as_ref()?.to_agent_allocation();
        told.user_data.clear();
        told.console_password.clear();
        told.vpn = Value::Null;
        Some(told)
    });
    let locked = described.and_then(|machine| machine.locked.clone());
    let registered = app.state.find_registration(id).await?;
    let registered: Option<RegisterRequest> =
        registered.and_then(|registered| serde_json::from_str(&registered.document).ok());
    let RegisterRequest { hardware, bios, agent, .. } = registered.unwrap_or_default();
    let (last_seen, last_event) = app.state.last_event(id).await?.unzip();
    Ok(MachineResponse {
        id: id.to_owned(),
        name: machine.name,
        description: String::new(),
        tags: Vec::new(),
        size: machine.size.map(|size| machine_size_response(&directory, &size.id)),
        hardware: MachineHardware {
            memory: hardware.memory,
            cpu_cores: hardware.cpu_cores,
            disks: hardware.disks,
            nics: hardware.nics.into_iter().map(MachineNic::from).collect(),
        },
        bios,
        allocation: allocation.map(|allocation| AllocationResponse::new(&allocation)),
        withheld,
        state: LockState {
            value: if locked.is_some() { "LOCKED" } else { "" },
            description: locked.unwrap_or_default(),
            metal_hammer_version: agent,
        },
        ledstate: LedState::default(),
        liveliness: UNKNOWN,
        events: machine_events(last_seen, last_event.as_deref()),
    })
}

/// Returns the last event of a machine in metal-api's format. Omits an event in the format of a newer version.
fn machine_events(last_seen: Option<String>, last_event: Option<&str>) -> MachineEvents {
    let event: Option<ProgressEvent> = last_event.and_then(|event| serde_json::from_str(event).ok());
    let logged =
        |event: ProgressEvent| LoggedEvent { time: last_seen.clone(), event: event.event, message: event.message };
    MachineEvents {
        log: event.into_iter().map(logged).collect(),
        last_event_time: last_seen,
        crash_loop: false,
        failed_machine_reclaim: false,
    }
}

impl From<HardwareNic> for MachineNic {
    fn from(nic: HardwareNic) -> MachineNic {
        let HardwareNic { mac, name } = nic;
        MachineNic { identifier: mac.clone(), mac, name, neighbors: Vec::new() }
    }
}
