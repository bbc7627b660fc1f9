//! Computation of the plans of all machines, in the background. Machines are planned one at a time, so that the
//! planner remains available to agents. The page shows the rows that are complete so far.

use super::page_frame::operator_words;
use api::AppState;
use api::rack_plan::machine_rows::{RackRow, plan_machine_row};
use api::rack_plan::{RackChange, RackSnapshot};
use common::sync::lock_mutex;
use site::snapshot::SiteSnapshot;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;

/// Maximum number of stored runs, each of which computes the plans of all machines for one change. A further run
/// replaces the oldest run, which stops if it has not finished.
const RUNS: usize = 4;
/// Duration for which the rows of a run are reused, so that all pages and filters show the same plans.
const REUSED: Duration = Duration::from_secs(300);

/// Recent runs, newest first. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct RackPlanRuns(Arc<Mutex<VecDeque<Arc<RackPlanRun>>>>);

/// Run that computes the plans of all machines, as predicted for a change.
pub(crate) struct RackPlanRun {
    change: RackChange,
    directory: Arc<SiteSnapshot>,
    started: Instant,
    /// Time at which the computation has started, RFC 3339 in UTC.
    pub time: String,
    progress: Mutex<RackPlanProgress>,
    is_finished: watch::Sender<bool>,
}

/// Progress of the computation.
#[derive(Debug, Clone, Default)]
pub(crate) struct RackPlanProgress {
    /// Rows of the machines that are planned.
    pub rows: Vec<RackRow>,
    /// Number of all machines.
    pub total: usize,
    /// Reason why the computation has failed.
    pub failure: Option<String>,
}

impl RackPlanRuns {
    /// Returns a run with this change that is recent or still in progress, or starts a new one. If `again` is true,
    /// does not reuse a finished run. Never reuses a run if the files in the server's directory have changed since the
    /// run started.
    pub(crate) fn find_or_start(&self, app: &Arc<AppState>, change: RackChange, again: bool) -> Arc<RackPlanRun> {
        let directory = app.directory();
        let mut runs = lock_mutex(&self.0);
        let is_usable = |run: &&Arc<RackPlanRun>| {
            let is_recent = !again && run.started.elapsed() < REUSED;
            run.change == change && Arc::ptr_eq(&run.directory, &directory) && (is_recent || !run.is_finished())
        };
        if let Some(run) = runs.iter().find(is_usable) {
            return run.clone();
        }
        runs.retain(|run| run.change != change);
        runs.truncate(RUNS - 1);
        let run = Arc::new(RackPlanRun {
            change,
            directory,
            started: Instant::now(),
            time: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            progress: Mutex::default(),
            is_finished: watch::Sender::new(false),
        });
        runs.push_front(run.clone());
        tokio::spawn(plan_machines(app.clone(), Arc::downgrade(&run)));
        run
    }
}

impl RackPlanRun {
    /// Returns whether the run is complete or has failed.
    pub(crate) fn is_finished(&self) -> bool {
        *self.is_finished.borrow()
    }

    /// Waits until the run is finished, but no longer than `time`.
    pub(crate) async fn wait_until_finished(&self, time: Duration) {
        let mut finished = self.is_finished.subscribe();
        drop(tokio::time::timeout(time, finished.wait_for(|is_finished| *is_finished)).await);
    }

    /// Returns the rows that are complete.
    pub(crate) fn progress(&self) -> RackPlanProgress {
        lock_mutex(&self.progress).clone()
    }

    fn finish(&self, failure: Option<String>) {
        lock_mutex(&self.progress).failure = failure;
        self.is_finished.send_replace(true);
    }
}

/// Plans all machines, one after the other. Stops early if a newer run has replaced this one.
async fn plan_machines(app: Arc<AppState>, run: Weak<RackPlanRun>) {
    let Some(directory) = run.upgrade().map(|run| run.directory.clone()) else { return };
    let server = app.clone();
    let opened = tokio::task::spawn_blocking(move || RackSnapshot::of_server(&server, directory)).await;
    let opened = opened.map_err(|error| error.to_string()).and_then(|opened| opened.map_err(|error| error.to_string()));
    let rack = match opened {
        Ok(rack) => Arc::new(rack),
        Err(why) => {
            run.upgrade().iter().for_each(|run| run.finish(Some(why.clone())));
            return;
        }
    };
    let machines = rack.list_machines();
    run.upgrade().iter().for_each(|run| lock_mutex(&run.progress).total = machines.len());
    for (id, name) in machines {
        let Some(change) = run.upgrade().map(|run| run.change.clone()) else { return };
        let row = plan_machine(&app, rack.clone(), change, id, name).await;
        run.upgrade().iter().for_each(|run| lock_mutex(&run.progress).rows.push(row.clone()));
    }
    run.upgrade().iter().for_each(|run| run.finish(None));
}

async fn plan_machine(
    app: &AppState,
    rack: Arc<RackSnapshot>,
    change: RackChange,
    id: String,
    name: String,
) -> RackRow {
    let machine = id.clone();
    let work = move || rack.predict_machine(&machine, &change).map(|seen| plan_machine_row(seen, None).0);
    match app.planner.run_job(&id, work).await {
        Ok(Ok(row)) => row,
        Ok(Err(error)) => RackRow::unknown(id, name, &error.to_string()),
        // The plan is unknown, because the planner is busy or the computation has failed.
        Err(error) => RackRow::unknown(id, name, &operator_words(error).1),
    }
}
