//! List of the machines, which clients may request in pages and filter.

use super::summary_cache::ListedSummary;
use super::{MachineFailure, MachineSummary, OperatorAuth, WaitingMarker};
use crate::AppState;
use crate::access;
use crate::display_phase::{DisplayPhase, current_word};
use crate::migration_requests::machine_migration_view::MachineMigration;
use crate::out_of_band::progress::OutOfBandProgress;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use common::format::compare_natural;
use http_server::api_error::ApiError;
use serde::Deserialize;
use site::effective_allocation::{find_allocation_differences, is_unrecorded};
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use site::unusable_files::UnusableMachine;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::MachineRecords;

/// Number of machines whose records are read at once.
pub(super) const AT_ONCE: usize = 64;
/// Maximum number of machines whose records are read without the cache. For so few machines, the cache would be slower,
/// since it reads the time of the last contact for every machine.
const UNCACHED: usize = 4 * AT_ONCE;

/// Page and filters of a list of machines. Without parameters, all machines are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
pub struct MachineListQuery {
    /// Maximum number of listed machines. If the response contains fewer machines, no further machines follow.
    pub limit: Option<usize>,
    /// Id of the last machine on the previous page, after which this list begins.
    pub after: Option<String>,
    /// Phase of the listed machines, or several phases separated by commas. Case is ignored, as in `image` and `q`.
    pub phase: Option<String>,
    /// Id of the image that is installed on the listed machines, or will be installed; or several ids separated by
    /// commas.
    pub image: Option<String>,
    /// Text that the name, the id or a MAC of the listed machines contains.
    pub q: Option<String>,
}

impl MachineListQuery {
    /// Returns whether the machine's name, id or one of its MACs contains the text `q`.
    fn matches_text(&self, machine: ListedMachine<'_>) -> bool {
        let Some(text) = self.q.as_ref().map(|text| text.to_lowercase()) else { return true };
        let contains = |value: &str| value.to_lowercase().contains(&text);
        match machine {
            ListedMachine::Described(machine) => {
                contains(&machine.name) || contains(&machine.id) || machine.macs.iter().any(|mac| contains(mac))
            }
            ListedMachine::Unusable(id, machine) => contains(&machine.name) || contains(id),
            ListedMachine::New(id) => contains(id),
        }
    }

    fn matches_state(&self, machine: &MachineSummary) -> bool {
        let phase = machine.phase.to_lowercase();
        let has_phase = |wanted: &String| wanted.to_lowercase().split(',').any(|word| phase == current_word(word));
        let images = || [&machine.image, &machine.wanted].into_iter().flatten();
        let is_used = |image: &str| images().any(|named| named.eq_ignore_ascii_case(image));
        let has_image = |wanted: &String| wanted.split(',').any(is_used);
        self.phase.as_ref().is_none_or(has_phase) && self.image.as_ref().is_none_or(has_image)
    }
}

/// Machine in a list.
#[derive(Clone, Copy)]
enum ListedMachine<'a> {
    Described(&'a Arc<MachineSpec>),
    /// Id of a machine whose file has an error, and has no version in force.
    Unusable(&'a str, &'a UnusableMachine),
    /// Id of a machine that has registered, but has no machine file.
    New(&'a str),
}

impl ListedMachine<'_> {
    fn id(&self) -> &str {
        match self {
            ListedMachine::Described(machine) => &machine.id,
            ListedMachine::Unusable(id, _) | ListedMachine::New(id) => id,
        }
    }
}

/// `GET /v1/machines`: lists the machines, sorted by name in natural order. Machines whose files have no valid version
/// follow, and then machines without a machine file.
pub(crate) async fn get_machines(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    query: Result<Query<MachineListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let found = find_selected_machines(&app, &query).await?;
    let body = Body::from(join_as_array(&found));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Joins the summaries, which are already encoded as JSON, to a JSON array.
fn join_as_array(machines: &[Arc<ListedSummary>]) -> Bytes {
    let length = machines.iter().map(|machine| machine.json.len() + 1).sum::<usize>();
    let mut text = Vec::with_capacity(length + 2);
    text.push(b'[');
    for (index, machine) in machines.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&machine.json);
    }
    text.push(b']');
    text.into()
}

/// Returns the machines that have a machine file, sorted by name, followed by the machines whose files have no valid
/// version, and by the other machines that have registered, each sorted by id.
pub async fn list_with_new_machines(app: &AppState) -> Result<Vec<MachineSummary>, ApiError> {
    list_selected_machines(app, &MachineListQuery::default()).await
}

/// Returns the machines that the query selects, in the order of [`list_with_new_machines`].
///
/// # Errors
/// Returns an error if the query is invalid, or the database cannot be read or written.
pub async fn list_selected_machines(app: &AppState, query: &MachineListQuery) -> Result<Vec<MachineSummary>, ApiError> {
    let found = find_selected_machines(app, query).await?;
    Ok(found.iter().map(|machine| machine.summary.clone()).collect())
}

/// Returns the number of machines in each phase. Counts the machines of [`list_with_new_machines`].
///
/// # Errors
/// Returns an error if the database cannot be read.
pub(crate) async fn count_phases(app: &AppState) -> Result<BTreeMap<String, u64>, ApiError> {
    let mut phases = BTreeMap::new();
    for machine in find_selected_machines(app, &MachineListQuery::default()).await? {
        *phases.entry(machine.summary.phase.clone()).or_default() += 1;
    }
    Ok(phases)
}

async fn find_selected_machines(app: &AppState, query: &MachineListQuery) -> Result<Vec<Arc<ListedSummary>>, ApiError> {
    if query.limit == Some(0) {
        return Err(ApiError::bad_request("limit: must be at least 1"));
    }
    let directory = app.directory();
    let unknown = match access::current_projects() {
        None => app.state.list_unknown_machines().await?,
        // A user with projects does not see machines without a machine file, since these machines do not belong to a
        // project.
        Some(_) => Vec::new(),
    };
    let errors = &directory.machine_errors;
    let unusable = errors.unusable_machines().map(|(id, machine)| ListedMachine::Unusable(id, machine));
    let is_new = |id: &&String| directory.find_machine(id).is_none() && errors.find_unusable(id).is_none();
    let new = unknown.iter().filter(is_new).map(|id| ListedMachine::New(id));
    let described = sort_by_name(&directory).into_iter().map(ListedMachine::Described);
    let all: Vec<_> = described.chain(unusable).chain(new).collect();
    let first = match &query.after {
        None => 0,
        Some(after) => {
            let gone = || {
                ApiError::bad_request(format!(
                    "`after`: the list does not contain machine {after:?}; request the list from the start"
                ))
            };
            all.iter().position(|machine| machine.id() == after).ok_or_else(gone)? + 1
        }
    };
    let mut selected: Vec<_> = all.into_iter().skip(first).filter(|machine| query.matches_text(*machine)).collect();
    let limit = query.limit.unwrap_or(usize::MAX);
    if query.phase.is_none() && query.image.is_none() {
        selected.truncate(limit);
    }
    let (mut found, uncached) = summarize_cached(app, &selected).await?;
    found.retain(|machine| query.matches_state(&machine.summary));
    for part in uncached.chunks(AT_ONCE) {
        if found.len() >= limit {
            break;
        }
        let summaries = summarize_part(app, part).await?;
        for summary in summaries.into_iter().filter(|machine| query.matches_state(machine)) {
            found.push(Arc::new(ListedSummary::new(summary)?));
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// Returns the summaries in the cache, and the machines whose summaries are not cached. The cache contains machines
/// with a machine file, and is used only for long lists.
async fn summarize_cached<'a>(
    app: &AppState,
    all: &'a [ListedMachine<'a>],
) -> Result<(Vec<Arc<ListedSummary>>, &'a [ListedMachine<'a>]), ApiError> {
    let described = |machine: &ListedMachine| match machine {
        ListedMachine::Described(machine) => Some(Arc::clone(machine)),
        ListedMachine::Unusable(..) | ListedMachine::New(_) => None,
    };
    if all.len() <= UNCACHED {
        return Ok((Vec::new(), all));
    }
    let machines: Vec<_> = all.iter().map_while(described).collect();
    Ok(match app.summaries.summarize_machines(app, &machines).await? {
        Some(found) => (found, &all[machines.len()..]),
        None => (Vec::new(), all),
    })
}

async fn summarize_part(app: &AppState, part: &[ListedMachine<'_>]) -> Result<Vec<MachineSummary>, ApiError> {
    let keys = part.iter().map(|machine| match machine {
        ListedMachine::Described(machine) => record_key(machine),
        ListedMachine::Unusable(id, _) | ListedMachine::New(id) => ((*id).to_owned(), None),
    });
    let records = app.state.read_machine_records(keys.collect()).await?;
    let summaries = part.iter().zip(records).map(|(machine, records)| match machine {
        ListedMachine::Described(machine) => summarize_records(app, machine, records),
        ListedMachine::Unusable(id, unusable) => {
            let UnusableMachine { name, problem } = (*unusable).clone();
            let contact = MachineSummary::from_contact(id, records.contact);
            add_phase(app, MachineSummary { name, file_error: Some(problem), unusable: true, ..contact })
        }
        ListedMachine::New(id) => {
            add_phase(app, MachineSummary { new: true, ..MachineSummary::from_contact(id, records.contact) })
        }
    });
    Ok(summaries.collect())
}

fn sort_by_name(directory: &SiteSnapshot) -> Vec<&Arc<MachineSpec>> {
    let mut machines: Vec<_> = directory.shared_machines().collect();
    machines.sort_by(|one, other| compare_natural(&one.name, &other.name).then_with(|| one.id.cmp(&other.id)));
    machines
}

/// Returns the summary of a machine that is not known from a valid machine file: its file has an error, or it has
/// registered and has no file. Returns `None` if neither applies.
pub async fn summarize_new_machine(app: &AppState, id: &str) -> Result<Option<MachineSummary>, ApiError> {
    let directory = app.directory();
    if let Some(unusable) = directory.machine_errors.find_unusable(id) {
        return Ok(summarize_part(app, &[ListedMachine::Unusable(id, unusable)]).await?.pop());
    }
    if !app.state.is_recorded(id).await? {
        return Ok(None);
    }
    Ok(summarize_part(app, &[ListedMachine::New(id)]).await?.pop())
}

/// Adds the phase to a summary.
fn add_phase(app: &AppState, summary: MachineSummary) -> MachineSummary {
    let phase = DisplayPhase::current(app, &summary).word.to_owned();
    MachineSummary { phase, ..summary }
}

/// Returns the machines that have a machine file, sorted by name.
pub async fn list_machines(app: &AppState) -> Result<Vec<MachineSummary>, ApiError> {
    let directory = app.directory();
    let all: Vec<_> = sort_by_name(&directory).into_iter().map(ListedMachine::Described).collect();
    let (found, uncached) = summarize_cached(app, &all).await?;
    let mut found: Vec<_> = found.iter().map(|machine| machine.summary.clone()).collect();
    for part in uncached.chunks(AT_ONCE) {
        found.extend(summarize_part(app, part).await?);
    }
    Ok(found)
}

/// Returns the summary of a machine that has a machine file.
pub async fn summarize_machine(app: &AppState, machine: &MachineSpec) -> Result<MachineSummary, ApiError> {
    let records = app.state.read_machine_records(vec![record_key(machine)]).await?.pop();
    let unread = || ApiError::not_found(format!("machine {machine} has no records", machine = machine.id));
    Ok(summarize_records(app, machine, records.ok_or_else(unread)?))
}

/// Returns the ids of a machine and its allocation, which identify the records of the machine.
pub(super) fn record_key(machine: &MachineSpec) -> (String, Option<String>) {
    (machine.id.clone(), machine.allocation.as_ref().map(|allocation| allocation.id.to_string()))
}

pub(super) fn summarize_records(app: &AppState, machine: &MachineSpec, records: MachineRecords) -> MachineSummary {
    let MachineRecords { install_state, contact, migration, run, may_run_previous_system } = records;
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
    let moving = migration.map(|migration| {
        let is_visible = app.may_see_migration(&migration);
        let moving = MachineMigration::from_migration(&machine.id, migration);
        if is_visible { moving } else { moving.hide_peer() }
    });
    let reported = install_state.waits.as_ref().map(WaitingMarker::from_marker);
    let waits = reported.clone().filter(|_| !install_state.is_installed() && install_state.elsewhere.is_none());
    let stored = install_state.layout.as_ref().and_then(|layout| layout.get("id")?.as_str().map(str::to_owned));
    let in_file = machine.allocation.as_ref().map(|allocation| allocation.image.to_string());
    let order = install_state.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
    let run = run.filter(|run| run.is_for(allocation.as_deref().unwrap_or_default(), order));
    let out_of_band = run.as_ref().and_then(OutOfBandProgress::from_run);
    let differences = machine.allocation.as_ref().map(|file| find_allocation_differences(file, &install_state));
    let failure = install_state.failure.clone();
    let summary = MachineSummary {
        differences: differences.unwrap_or_default(),
        allocation_unrecorded: is_unrecorded(&install_state),
        name: machine.name.clone(),
        project: machine.project.clone(),
        size: machine.size.clone(),
        allocation,
        wanted: install_state.order.as_ref().map(|order| order.image.clone()).or(in_file),
        image: install_state.image,
        layout: stored.or(install_state.layout_id).filter(|_| install_state.succeeded),
        installed: install_state.succeeded,
        adopted: install_state.adopted,
        claimed: install_state.is_claimed,
        waits,
        needs_confirmation: install_state.unconfirmed,
        not_clean: may_run_previous_system,
        on_disk: reported.filter(|_| install_state.unconfirmed && install_state.succeeded),
        locked: machine.locked.clone(),
        file_error: app.directory().machine_errors.problem(&machine.id).map(str::to_owned),
        elsewhere: install_state.elsewhere.is_some(),
        out_of_band,
        order: install_state.order,
        moving,
        outcome: install_state.outcome,
        ..MachineSummary::from_contact(&machine.id, contact)
    };
    let failure = failure.map(|attempt| MachineFailure::new(attempt, &summary));
    add_phase(app, MachineSummary { failure, ..summary })
}
