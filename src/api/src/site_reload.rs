//! Thread that keeps the snapshot of the operator's directory up to date, and reports the problems of the directory.

use http_server::server_log::StatusLog;
use site::loader::{SiteLoader, SiteScan};
use site::machine_refresh::ChangedMachine;
use site::os_definitions;
use site::snapshot::SiteSnapshot;
use site::yaml_folder::annotate_problem;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use store::{ServerState, image_digest_cache};
use tokio::sync::watch as published;

/// Message to the thread that reads the directory.
pub enum ReloadEvent {
    Digest(image_digest_cache::DigestResult),
    Verified(os_definitions::VerifyResult),
    /// The state of machines or allocations has changed in the database.
    State,
    /// Only the file or the state of one machine has changed.
    Machine(ChangedMachine),
    End,
}

/// Reads the directory in a separate thread, and publishes snapshots of it.
pub struct SiteReloader {
    state: ServerState,
    loader: SiteLoader,
    watch: StatusLog,
    publish: published::Sender<Arc<SiteSnapshot>>,
    /// Current problems, which have been logged.
    said: BTreeSet<String>,
    /// Current notes, which have been logged.
    noted: BTreeSet<String>,
    /// Latest time of the next scan, and earliest time of a scan that the database causes.
    due: Instant,
    earliest: Instant,
    /// Time at which machines that were updated without a scan are scanned; `None` if no machine was.
    refreshed: Option<Instant>,
    /// Time after which the problems and remarks of these machines are determined.
    settle_after: Duration,
}

/// Pause after a scan, as a multiple of its duration: with ten thousand machine files, a scan takes a second.
const PAUSE_PER_SCAN: u32 = 2;
/// Minimum time after which the problems and remarks of machines that were updated without a scan are determined.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// The same time, as a multiple of the duration of a scan.
const SETTLE_PER_SCAN: u32 = 20;

impl SiteReloader {
    pub fn new(
        state: ServerState,
        loader: SiteLoader,
        watch: StatusLog,
        publish: published::Sender<Arc<SiteSnapshot>>,
    ) -> SiteReloader {
        let (said, noted, now) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        SiteReloader {
            state,
            loader,
            watch,
            publish,
            said,
            noted,
            due: now,
            earliest: now,
            refreshed: None,
            settle_after: SETTLE_AFTER,
        }
    }

    pub fn run(
        mut self,
        woken: &mpsc::Receiver<ReloadEvent>,
        look_every: Duration,
        ready: tokio::sync::oneshot::Sender<()>,
    ) {
        self.try_rescan(look_every);
        let _ = ready.send(());
        let mut is_wanted = false;
        loop {
            let next = if is_wanted { self.earliest.min(self.due) } else { self.due };
            let first = match woken.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(wake) => Some(wake),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            let mut changed = Vec::new();
            // Any client can wake this thread by registering, so a single scan handles all pending messages.
            for wake in first.into_iter().chain(woken.try_iter()) {
                match wake {
                    ReloadEvent::Digest(done) => self.loader.store_digest(done),
                    ReloadEvent::Verified(done) => self.loader.store_verdict(done),
                    ReloadEvent::State => self.loader.mark_stale(),
                    ReloadEvent::Machine(machine) => {
                        changed.push(machine);
                        continue;
                    }
                    ReloadEvent::End => return,
                }
                is_wanted = true;
            }
            if !changed.is_empty() && !self.try_refresh(&changed) {
                self.loader.mark_stale();
                is_wanted = true;
            }
            let now = Instant::now();
            if now >= self.due || (is_wanted && now >= self.earliest) {
                self.try_rescan(look_every);
                is_wanted = false;
            }
        }
    }

    /// Updates machines in the current snapshot, and publishes the result. Returns false if a scan is necessary.
    fn try_refresh(&mut self, changed: &[ChangedMachine]) -> bool {
        let current = self.publish.borrow().clone();
        let refreshed = catch_unwind(AssertUnwindSafe(|| self.loader.refresh_machines(&current, changed)));
        let Ok(Some(snapshot)) = refreshed else { return false };
        self.publish.send_replace(Arc::new(snapshot));
        self.refreshed.get_or_insert_with(Instant::now);
        true
    }

    /// Scans the directory. Catches panics, so that one file cannot end the thread.
    fn try_rescan(&mut self, look_every: Duration) {
        let began = Instant::now();
        if self.refreshed.is_some_and(|refreshed| refreshed.elapsed() >= self.settle_after) {
            self.loader.mark_stale();
            self.refreshed = None;
        }
        if catch_unwind(AssertUnwindSafe(|| self.rescan())).is_err() {
            self.watch.log_problem("the server's directory cannot be read because of an internal error: the files that were read before stay in force".to_owned());
        }
        let (took, now) = (began.elapsed(), Instant::now());
        (self.earliest, self.due) = (now + took * PAUSE_PER_SCAN, now + look_every.max(took * PAUSE_PER_SCAN));
    }

    fn rescan(&mut self) {
        self.state.check_file();
        let began = Instant::now();
        let Some(SiteScan { mut directory, problems, notes }) = self.loader.rescan() else { return };
        self.settle_after = SETTLE_AFTER.max(began.elapsed() * SETTLE_PER_SCAN);
        directory.problems.clone_from(&problems);
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for new in problems.difference(&self.said) {
            self.watch.log_problem(annotate_problem(new, self.loader.directory_path()));
        }
        if problems.is_empty() && !self.said.is_empty() {
            self.watch.log_note("all files are valid again".to_owned());
        }
        self.said = problems;
        let notes: BTreeSet<String> = notes.into_iter().collect();
        for new in notes.difference(&self.noted) {
            self.watch.log_note(new.clone());
        }
        self.noted = notes;
        self.publish.send_replace(Arc::new(directory));
    }
}
