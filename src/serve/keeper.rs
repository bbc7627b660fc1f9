//! Thread that keeps the snapshot of the operator's directory up to date, and reports problems.

use super::definitions;
use super::digest;
use super::directory::{Directory, Loader, Seen};
use super::state::State;
use super::watch::Watch;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::watch as published;

/// Message to the thread.
pub enum Wake {
    Digest(digest::Done),
    Verified(definitions::Done),
    /// The state of a machine or allocation has changed.
    State,
    End,
}

/// Reads the directory in a separate thread, and publishes snapshots of it.
pub struct Keeper {
    state: State,
    loader: Loader,
    watch: Watch,
    publish: published::Sender<Arc<Directory>>,
    /// Problems that have been logged.
    said: BTreeSet<String>,
    /// Notes that have been logged.
    noted: BTreeSet<String>,
}

impl Keeper {
    pub fn new(state: State, loader: Loader, watch: Watch, publish: published::Sender<Arc<Directory>>) -> Keeper {
        Keeper { state, loader, watch, publish, said: BTreeSet::new(), noted: BTreeSet::new() }
    }

    pub fn run(mut self, woken: &mpsc::Receiver<Wake>, look_every: Duration, ready: tokio::sync::oneshot::Sender<()>) {
        self.try_to_look();
        let _ = ready.send(());
        loop {
            let first = match woken.recv_timeout(look_every) {
                Ok(wake) => Some(wake),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            // Registrations of any client wake this thread: a single scan serves all pending ones.
            for wake in first.into_iter().chain(woken.try_iter()) {
                match wake {
                    Wake::Digest(done) => self.loader.digest_done(done),
                    Wake::Verified(done) => self.loader.verified(done),
                    Wake::State => self.loader.refresh(),
                    Wake::End => return,
                }
            }
            self.try_to_look();
        }
    }

    /// Scans the directory. A panic caused by one file must not end the thread.
    fn try_to_look(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.look())).is_err() {
            self.watch.problem("reading the directory panicked: the last snapshot stays in force".to_owned());
        }
    }

    fn look(&mut self) {
        self.state.look();
        let Some(Seen { mut directory, problems, notes }) = self.loader.look() else { return };
        directory.problems.clone_from(&problems);
        let problems: BTreeSet<String> = problems.into_iter().collect();
        for new in problems.difference(&self.said) {
            self.watch.problem(new.clone());
        }
        if problems.is_empty() && !self.said.is_empty() {
            self.watch.note("all files are valid again".to_owned());
        }
        self.said = problems;
        let notes: BTreeSet<String> = notes.into_iter().collect();
        for new in notes.difference(&self.noted) {
            self.watch.note(new.clone());
        }
        self.noted = notes;
        self.publish.send_replace(Arc::new(directory));
    }
}
