//! Keeps the picture of the operator's directory up to date, in a thread of its own, and says what is wrong with it.

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

/// What the thread that looks at the directory hears.
pub enum Wake {
    Digest(digest::Done),
    Verified(definitions::Done),
    /// Of an allocation.
    State,
    End,
}

/// Keeps the published picture of the directory up to date, in a thread of its own.
pub struct Keeper {
    state: State,
    loader: Loader,
    watch: Watch,
    publish: published::Sender<Arc<Directory>>,
    /// Problems that have been said, and notes.
    said: BTreeSet<String>,
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
            // Registrations of any client wake this thread: all that wait cost one look.
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

    /// A file that makes the reader panic must not keep the others from being read.
    fn try_to_look(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.look())).is_err() {
            self.watch.problem("reading the directory has panicked: what was read before stays in force".to_owned());
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
            self.watch.note("every file is good again".to_owned());
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
