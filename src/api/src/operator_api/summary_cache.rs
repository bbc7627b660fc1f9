//! Cache of the summaries of machines. With ten thousand machines, reading all records takes longer than an operator
//! should wait for a list, although almost all records are the same as for the previous list.
//!
//! A cached summary is valid if the machine file is unchanged, and the versions in the database
//! (`store::changed_record_tracking`) show that the machine's records are unchanged. The last contact of the machine
//! is not cached, but read for each list. The caller must request only summaries of machines that the user may
//! access. Summaries of machines in a migration are not cached, since they depend on the user.

use super::MachineSummary;
use super::machine_list::{AT_ONCE, record_key, summarize_records};
use crate::AppState;
use crate::display_phase::DisplayPhase;
use axum::body::Bytes;
use http_server::api_error::ApiError;
use model::install_report::ProgressEvent;
use site::operator_files::MachineSpec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{COPY_FROM, MachineBoot, MachineContact, ServerState};
use tokio::sync::Mutex;

/// Number of record versions that this cache reads from the database, before it deletes the versions in the database
/// that it no longer needs.
const READ_VERSIONS: usize = 1000;

/// Pause between refreshes of the cache.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Time since the last list for which the cache is refreshed.
const REFRESHED_AFTER_LIST: Duration = Duration::from_secs(60);

/// Cache of the summaries of all machines that have a machine file.
#[derive(Default)]
pub struct SummaryCache(Mutex<CachedSummaries>);

#[derive(Default)]
struct CachedSummaries {
    /// Version of the records from which the summaries were made.
    version: i64,
    machines: HashMap<String, CachedSummary>,
    /// Number of versions that were read since the last deletion.
    read_versions: usize,
    /// Time of the last list that was read from the cache.
    listed: Option<Instant>,
}

struct CachedSummary {
    machine: Arc<MachineSpec>,
    boot: Option<MachineBoot>,
    contact: MachineContact,
    /// Last event that the server has received, which might not be stored yet.
    live: Option<ProgressEvent>,
    listed: Arc<ListedSummary>,
}

/// Summary of a machine, together with its JSON text.
pub(crate) struct ListedSummary {
    pub summary: MachineSummary,
    pub json: Bytes,
}

impl ListedSummary {
    pub(crate) fn new(summary: MachineSummary) -> Result<ListedSummary, ApiError> {
        let json = serde_json::to_vec(&summary).map_err(|error| {
            let why = format!("machine {}: cannot encode its summary: {error}", summary.id);
            ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, why)
        })?;
        Ok(ListedSummary { summary, json: json.into() })
    }
}

impl CachedSummary {
    /// Updates the parts of the summary that depend on the last contact of the machine.
    fn update_contact(
        &mut self,
        app: &AppState,
        stored: Option<MachineContact>,
        live: Option<ProgressEvent>,
    ) -> Result<(), ApiError> {
        let mut contact = MachineContact { boot: self.boot.take(), ..stored.unwrap_or_default() };
        app.state.add_last_call(&mut contact);
        if contact != self.contact || live != self.live {
            let of_contact = MachineSummary::from_contact(&self.machine.id, contact.clone());
            let MachineSummary { last_seen, last_event, ended, address, .. } = of_contact;
            let summary = MachineSummary { last_seen, last_event, ended, address, ..self.listed.summary.clone() };
            let phase = DisplayPhase::current(app, &summary).word.to_owned();
            self.listed = Arc::new(ListedSummary::new(MachineSummary { phase, ..summary })?);
            (self.contact, self.live) = (contact.clone(), live);
        }
        self.boot = contact.boot;
        Ok(())
    }
}

impl CachedSummaries {
    /// Removes the summaries whose records have changed. Returns false if the database does not maintain versions.
    async fn remove_outdated(&mut self, app: &AppState) -> Result<bool, ApiError> {
        let Some(changes) = app.state.read_record_changes(self.version).await? else { return Ok(false) };
        if changes.includes_all {
            self.machines.clear();
        } else if !changes.changed.is_empty() {
            let changed: HashSet<&str> = changes.changed.iter().map(String::as_str).collect();
            self.machines.retain(|id, cached| {
                let allocation = cached.machine.allocation.as_ref();
                !changed.contains(id.as_str()) && !allocation.is_some_and(|own| changed.contains(own.id.as_str()))
            });
        }
        self.version = changes.version;
        self.read_versions += changes.changed.len();
        if self.read_versions > READ_VERSIONS {
            app.state.prune_record_versions(self.version).await?;
            self.read_versions = 0;
        }
        Ok(true)
    }

    /// Returns the cached summary of the machine, updated with the machine's last contact.
    fn find_summary(
        &mut self,
        app: &AppState,
        machine: &Arc<MachineSpec>,
        contact: Option<MachineContact>,
    ) -> Result<Option<Arc<ListedSummary>>, ApiError> {
        let Some(cached) = self.machines.get_mut(&machine.id) else { return Ok(None) };
        if !Arc::ptr_eq(&cached.machine, machine) {
            if *cached.machine != **machine {
                return Ok(None);
            }
            cached.machine = machine.clone();
        }
        if cached.listed.summary.file_error.as_deref() != app.directory().machine_errors.problem(&machine.id) {
            return Ok(None);
        }
        cached.update_contact(app, contact, last_live_event(app, &machine.id))?;
        Ok(Some(cached.listed.clone()))
    }

    /// Reads the records of some of the machines, caches their summaries, and returns the summaries.
    async fn read_part(
        &mut self,
        app: &AppState,
        state: &ServerState,
        part: &[Arc<MachineSpec>],
    ) -> Result<Vec<Arc<ListedSummary>>, ApiError> {
        let keys = part.iter().map(|machine| record_key(machine)).collect();
        let records = state.read_machine_records(keys).await?;
        let mut all = Vec::with_capacity(part.len());
        for (machine, records) in part.iter().zip(records) {
            let (contact, live) = (records.contact.clone(), last_live_event(app, &machine.id));
            let listed = Arc::new(ListedSummary::new(summarize_records(app, machine, records))?);
            all.push(listed.clone());
            if listed.summary.moving.is_none() {
                let (machine, boot) = (machine.clone(), contact.boot.clone());
                let cached = CachedSummary { machine, boot, contact, live, listed };
                self.machines.insert(cached.machine.id.clone(), cached);
            }
        }
        Ok(all)
    }
}

/// Returns the handle from which the records of this number of machines are read fastest.
async fn open_records(app: &AppState, machines: usize) -> Result<ServerState, ApiError> {
    if machines < COPY_FROM { Ok(app.state.clone()) } else { Ok(app.state.with_record_copy().await?) }
}

fn last_live_event(app: &AppState, id: &str) -> Option<ProgressEvent> {
    app.watch.live.last_event(id).map(|(event, _)| event)
}

impl SummaryCache {
    /// Returns the summaries of these machines, in their order. Returns `None` if the database does not maintain
    /// versions of records, because several servers can share it.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub(crate) async fn summarize_machines(
        &self,
        app: &AppState,
        machines: &[Arc<MachineSpec>],
    ) -> Result<Option<Vec<Arc<ListedSummary>>>, ApiError> {
        let mut cache = self.0.lock().await;
        cache.listed = Some(Instant::now());
        if !cache.remove_outdated(app).await? {
            return Ok(None);
        }
        let mut contacts: HashMap<String, MachineContact> = app.state.list_contacts().await?.into_iter().collect();
        let mut listed: Vec<Option<Arc<ListedSummary>>> = Vec::with_capacity(machines.len());
        for machine in machines {
            let contact = contacts.remove(&machine.id);
            listed.push(cache.find_summary(app, machine, contact)?);
        }
        let missing: Vec<usize> = (0..machines.len()).filter(|index| listed[*index].is_none()).collect();
        let state = open_records(app, missing.len()).await?;
        for part in missing.chunks(AT_ONCE) {
            let specs: Vec<_> = part.iter().map(|index| machines[*index].clone()).collect();
            for (index, summary) in part.iter().zip(cache.read_part(app, &state, &specs).await?) {
                listed[*index] = Some(summary);
            }
        }
        let directory = app.whole_directory();
        if cache.machines.len() > directory.machines().count() {
            cache.machines.retain(|id, _| directory.find_machine(id).is_some());
        }
        Ok(Some(listed.into_iter().flatten().collect()))
    }

    /// Reads the summaries of machines whose records have changed, so that the next list does not have to wait for
    /// them. Does nothing if no list was requested recently.
    async fn refresh(&self, app: &AppState) -> Result<(), ApiError> {
        let mut cache = self.0.lock().await;
        let is_used = cache.listed.is_some_and(|listed| listed.elapsed() < REFRESHED_AFTER_LIST);
        if !is_used || !cache.remove_outdated(app).await? {
            return Ok(());
        }
        let directory = app.whole_directory();
        let is_missing = |machine: &&Arc<MachineSpec>| !cache.machines.contains_key(&machine.id);
        let missing: Vec<Arc<MachineSpec>> = directory.shared_machines().filter(is_missing).cloned().collect();
        let state = open_records(app, missing.len()).await?;
        for part in missing.chunks(AT_ONCE) {
            cache.read_part(app, &state, part).await?;
        }
        Ok(())
    }
}

/// Refreshes the cache while lists are requested. With many installations in progress, hundreds of records change
/// between two lists.
pub async fn refresh_summaries(app: Arc<AppState>) {
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        // An unavailable database is reported by the next list.
        let _ = app.summaries.refresh(&app).await;
    }
}
