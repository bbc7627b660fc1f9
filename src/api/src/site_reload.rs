//! Thread that keeps the snapshot of the operator's directory up to date, and reports the problems of the directory.

use http_server::server_log::StatusLog;
use site::loader::{SiteLoader, SiteScan};
use site::os_definitions;
use site::snapshot::SiteSnapshot;
use site::yaml_folder::annotate_problem;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::{ServerState, image_digest_cache};
use tokio::sync::watch as published;

/// Message to the thread that reads the directory.
pub enum ReloadEvent {
    Digest(image_digest_cache::DigestResult),
    Verified(os_definitions::VerifyResult),
    /// The state of a machine or an allocation has changed in the database.
    State,
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
}

impl SiteReloader {
    pub fn new(
        state: ServerState,
        loader: SiteLoader,
        watch: StatusLog,
        publish: published::Sender<Arc<SiteSnapshot>>,
    ) -> SiteReloader {
        SiteReloader { state, loader, watch, publish, said: BTreeSet::new(), noted: BTreeSet::new() }
    }

    pub fn run(
        mut self,
        woken: &mpsc::Receiver<ReloadEvent>,
        look_every: Duration,
        ready: tokio::sync::oneshot::Sender<()>,
    ) {
        self.try_rescan();
        let _ = ready.send(());
        loop {
            let first = match woken.recv_timeout(look_every) {
                Ok(wake) => Some(wake),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            // Any client can wake this thread by registering, so a single scan handles all pending messages.
            for wake in first.into_iter().chain(woken.try_iter()) {
                match wake {
                    ReloadEvent::Digest(done) => self.loader.store_digest(done),
                    ReloadEvent::Verified(done) => self.loader.store_verdict(done),
                    ReloadEvent::State => self.loader.mark_stale(),
                    ReloadEvent::End => return,
                }
            }
            self.try_rescan();
        }
    }

    /// Scans the directory. Catches panics, so that one file cannot end the thread.
    fn try_rescan(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.rescan())).is_err() {
            self.watch.log_problem("cannot read the server's directory because of an internal error: the last snapshot of the directory stays in force".to_owned());
        }
    }

    fn rescan(&mut self) {
        self.state.check_file();
        let Some(SiteScan { mut directory, problems, notes }) = self.loader.rescan() else { return };
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
