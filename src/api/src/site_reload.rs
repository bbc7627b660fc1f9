//! Thread that keeps the snapshot of the operator's directory up to date, and reports the problems of the directory.

use http_server::server_log::ServerLog;
use site::ganeti_os_definitions;
use site::loader::{SiteChanges, SiteLoader, SiteScan};
use site::machine_refresh::ChangedMachine;
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
    /// Times of the updates of individual machines since the last full scan; `None` if there was no such update.
    refreshed: Option<MachineUpdates>,
    /// Duration of the last full scan.
    scan_duration: Duration,
}

/// Times of the first and the last update of individual machines since the last full scan. The next full scan determines
/// the notes about these machines.
#[derive(Debug, Clone, Copy)]
struct MachineUpdates {
    first: Instant,
    last: Instant,
}

impl MachineUpdates {
    /// Returns whether a full scan is due. During a full scan, machines whose files are created have to wait, so the scan
    /// waits for a pause between the updates, unless it was delayed for long.
    fn is_scan_due(self, scan_duration: Duration, now: Instant) -> bool {
        let (since_first, since_last) = (now - self.first, now - self.last);
        since_last >= SETTLE_AFTER + scan_duration * PAUSE_PER_SCAN
            || since_first >= LONGEST_SETTLING.max(scan_duration * SETTLE_PER_SCAN)
    }
}

/// Function that returns a copy of a snapshot in which some machines are up to date.
type Refresh = fn(&mut SiteLoader, &SiteSnapshot, &[ChangedMachine]) -> Option<SiteSnapshot>;

/// Pause after a scan, as a multiple of its duration. With ten thousand machine files, a scan takes a second.
const PAUSE_PER_SCAN: u32 = 2;
/// Minimum pause between updates of individual machines in which a full scan begins.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// Minimum time after the first update of an individual machine after which a full scan begins without a pause.
const LONGEST_SETTLING: Duration = Duration::from_secs(10);
/// Minimum of this time, as a multiple of the duration of a scan: fewer than one in a hundred machines waits for a scan.
const SETTLE_PER_SCAN: u32 = 200;

impl SiteReloader {
    pub fn new(
        state: ServerState,
        loader: SiteLoader,
        watch: ServerLog,
        publish: published::Sender<Arc<SiteSnapshot>>,
    ) -> SiteReloader {
        let (logged_problems, noted, now) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        SiteReloader {
            state,
            loader,
            watch,
            publish,
            logged_problems,
            noted,
            due: now,
            earliest: now,
            refreshed: None,
            scan_duration: Duration::ZERO,
        }
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
        let refreshed = catch_unwind(AssertUnwindSafe(|| refresh(&mut self.loader, &current, changed)));
        let Ok(Some(snapshot)) = refreshed else { return false };
        self.publish.send_replace(Arc::new(snapshot));
        if changed.is_empty() {
            return true;
        }
        let last = Instant::now();
        let first = self.refreshed.map_or(last, |updates| updates.first);
        self.refreshed = Some(MachineUpdates { first, last });
        true
    }

    /// Scans the directory. Catches panics, so that one file cannot end the thread.
    fn try_rescan(&mut self, scan_interval: Duration) {
        let began = Instant::now();
        if self.refreshed.is_some_and(|updates| updates.is_scan_due(self.scan_duration, began)) {
            self.loader.require_new_snapshot();
        }
        if catch_unwind(AssertUnwindSafe(|| self.rescan())).is_err() {
            self.watch.log_problem("the server's directory cannot be read because of an internal error: the files that were read before stay in force".to_owned());
        }
        let (took, now) = (began.elapsed(), Instant::now());
        (self.earliest, self.due) = (now + took * PAUSE_PER_SCAN, now + scan_interval.max(took * PAUSE_PER_SCAN));
    }

    fn rescan(&mut self) {
        self.state.check_file();
        let began = Instant::now();
        match self.loader.find_changes() {
            SiteChanges::None => return,
            // The periodic scan has found a file before the request that wrote the file has announced it.
            SiteChanges::Machines(changed) if self.try_refresh(&changed, SiteLoader::apply_found_changes) => return,
            SiteChanges::Machines(_) | SiteChanges::All => {}
        }
        let SiteScan { mut directory, problems, notes } = self.loader.build_snapshot();
        (self.scan_duration, self.refreshed) = (began.elapsed(), None);
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
        for new in notes.difference(&self.noted) {
            self.watch.log_note(new.clone());
        }
        self.noted = notes;
        self.publish.send_replace(Arc::new(directory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_scan_waits_for_a_pause_between_updates() {
        let first = Instant::now();
        let second = Duration::from_secs(1);
        for (last, now, scan_duration, is_due) in [
            (0, 1, Duration::ZERO, true),
            (1, 1, Duration::ZERO, false),
            (9, 9, Duration::ZERO, false),
            (10, 10, Duration::ZERO, true),
            (0, 2, second, false),
            (0, 3, second, true),
            (199, 199, second, false),
            (200, 200, second, true),
        ] {
            let updates = MachineUpdates { first, last: first + second * last };
            assert_eq!(updates.is_scan_due(scan_duration, first + second * now), is_due, "{last} {now}");
        }
    }
}
