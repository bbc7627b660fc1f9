//! Thread that keeps the snapshot of the operator's directory up to date, and reports the problems of the directory.

use http_server::server_log::ServerLog;
use site::ganeti_os_definitions;
use site::loader::{SiteChanges, SiteLoader, SiteScan};
use site::machine_refresh::{ChangedMachine, RefreshedSite};
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
    Verified(ganeti_os_definitions::VerifyResult),
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
    watch: ServerLog,
    publish: published::Sender<Arc<SiteSnapshot>>,
    /// Current problems, which have been logged.
    logged_problems: BTreeSet<String>,
    /// Current notes, which have been logged.
    noted: BTreeSet<String>,
    /// Latest time for the start of the next scan. A message causes an earlier scan, but not before the time
    /// `earliest`.
    due: Instant,
    earliest: Instant,
}

/// Function that returns a copy of a snapshot in which some machines are up to date.
type Refresh = fn(&mut SiteLoader, &SiteSnapshot, &[ChangedMachine]) -> Option<RefreshedSite>;

/// Pause after a scan, as a multiple of its duration. With ten thousand machine files, a scan takes a second.
const PAUSE_PER_SCAN: u32 = 2;

impl SiteReloader {
    pub fn new(
        state: ServerState,
        loader: SiteLoader,
        watch: ServerLog,
        publish: published::Sender<Arc<SiteSnapshot>>,
    ) -> SiteReloader {
        let (logged_problems, noted, now) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        SiteReloader { state, loader, watch, publish, logged_problems, noted, due: now, earliest: now }
    }

    pub fn run(
        mut self,
        woken: &mpsc::Receiver<ReloadEvent>,
        scan_interval: Duration,
        ready: tokio::sync::oneshot::Sender<()>,
    ) {
        self.try_rescan(scan_interval);
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
            // Any client can wake this thread by registering, so all pending messages are handled with one scan.
            for wake in first.into_iter().chain(woken.try_iter()) {
                match wake {
                    ReloadEvent::Digest(done) => self.loader.store_digest(done),
                    ReloadEvent::Verified(done) => self.loader.store_verdict(done),
                    ReloadEvent::State => self.loader.require_new_snapshot(),
                    ReloadEvent::Machine(machine) => {
                        changed.push(machine);
                        continue;
                    }
                    ReloadEvent::End => return,
                }
                is_wanted = true;
            }
            if !changed.is_empty() && !self.try_refresh(&changed, SiteLoader::refresh_machines) {
                self.loader.require_new_snapshot();
                is_wanted = true;
            }
            let now = Instant::now();
            if now >= self.due || (is_wanted && now >= self.earliest) {
                self.try_rescan(scan_interval);
                is_wanted = false;
            }
        }
    }

    /// Updates machines in the current snapshot with `refresh`, and publishes the result. Returns false if a scan is
    /// necessary.
    fn try_refresh(&mut self, changed: &[ChangedMachine], refresh: Refresh) -> bool {
        let current = self.publish.borrow().clone();
        let refreshed = match catch_unwind(AssertUnwindSafe(|| refresh(&mut self.loader, &current, changed))) {
            Ok(refreshed) => refreshed,
            Err(_) => {
                self.loader.discard_incomplete_scan();
                None
            }
        };
        let Some(RefreshedSite { snapshot, notes }) = refreshed else { return false };
        self.publish.send_replace(Arc::new(snapshot));
        for (path, notes) in notes {
            let prefix = format!("{}:", path.display());
            self.noted.retain(|note| !note.starts_with(&prefix) || notes.contains(note));
            self.log_new_notes(notes);
        }
        true
    }

    /// Logs the notes that are not current yet.
    fn log_new_notes(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if self.noted.insert(note.clone()) {
                self.watch.log_note(note);
            }
        }
    }

    /// Scans the directory. Catches panics, so that one file cannot end the thread.
    fn try_rescan(&mut self, scan_interval: Duration) {
        let began = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| self.rescan())).is_err() {
            self.loader.discard_incomplete_scan();
            self.watch.log_problem("the server's directory cannot be read because of an internal error: the files that were read before stay in force".to_owned());
        }
        let (took, now) = (began.elapsed(), Instant::now());
        (self.earliest, self.due) = (now + took * PAUSE_PER_SCAN, now + scan_interval.max(took * PAUSE_PER_SCAN));
    }

    fn rescan(&mut self) {
        self.state.check_file();
        match self.loader.find_changes() {
            SiteChanges::None => return,
            // The periodic scan has found a file before the request that wrote the file has announced it.
            SiteChanges::Machines(changed) if self.try_refresh(&changed, SiteLoader::apply_found_changes) => return,
            SiteChanges::Machines(_) | SiteChanges::All => {}
        }
        let SiteScan { mut directory, problems, notes } = self.loader.build_snapshot();
        directory.problems.clone_from(&problems);
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for new in problems.difference(&self.logged_problems) {
            self.watch.log_problem(annotate_problem(new, self.loader.directory_path()));
        }
        if problems.is_empty() && !self.logged_problems.is_empty() {
            self.watch.log_note("all files are valid again".to_owned());
        }
        self.logged_problems = problems;
        let notes: BTreeSet<String> = notes.into_iter().collect();
        self.noted.retain(|note| notes.contains(note));
        self.log_new_notes(notes);
        self.publish.send_replace(Arc::new(directory));
    }
}
