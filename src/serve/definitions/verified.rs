//! What `verify` of OS definitions has said: run once for each definition and set of parameters, in a thread of their own.

use crate::definition::Chosen;
use crate::verify::{Verdict, verify};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

/// On the server somebody waits at a desk.
const DEADLINE: Duration = Duration::from_secs(20);

/// Of the definition with its parameters.
type Key = [u8; 32];

/// One that has come to an end.
pub struct Done {
    key: Key,
    verdict: Verdict,
}

/// The verdicts that are known, and those that are awaited.
pub struct Verified {
    /// `None` while it runs.
    known: HashMap<Key, Option<Verdict>>,
    /// `None`: nothing is run here.
    queue: Option<mpsc::Sender<(Key, Chosen)>>,
}

impl Verified {
    /// Starts the thread; `done` is called from it, and its answer goes to [`Verified::keep`].
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(done: impl Fn(Done) + Send + 'static) -> std::io::Result<Verified> {
        let (queue, asked) = mpsc::channel::<(Key, Chosen)>();
        let answer = move || {
            for (key, chosen) in asked {
                done(Done { key, verdict: verify(&chosen, DEADLINE) });
            }
        };
        std::thread::Builder::new().name("verify".to_owned()).spawn(answer)?;
        Ok(Verified { known: HashMap::new(), queue: Some(queue) })
    }

    /// Runs nothing: the machine does, before it writes anything.
    pub fn left_to_the_machine() -> Verified {
        Verified { known: HashMap::new(), queue: None }
    }

    /// What it says; `None` when it has to be run first.
    pub fn of(&mut self, chosen: &Chosen) -> Option<Verdict> {
        if !chosen.has_verify() {
            return Some(Verdict::Good);
        }
        let Some(queue) = &self.queue else {
            return Some(Verdict::NotRun("this command runs none".to_owned()));
        };
        // Text and numbers always are JSON.
        let key = Sha256::digest(serde_json::to_vec(chosen).unwrap_or_default()).into();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        self.known.insert(key, None);
        // Without the thread nobody is told, and machines wait.
        let _ = queue.send((key, chosen.clone()));
        None
    }

    pub fn waits(&self) -> bool {
        self.known.values().any(Option::is_none)
    }

    pub fn keep(&mut self, done: Done) {
        self.known.insert(done.key, Some(done.verdict));
    }
}
