//! Verdicts of the `verify` programs of OS definitions. Each runs once per definition and set of parameters, in a separate thread.

use crate::definition::Chosen;
use crate::verify::{Verdict, verify};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

/// Timeout of a `verify`. It is short, since the operator waits for the result.
const DEADLINE: Duration = Duration::from_secs(20);

/// Digest of a definition with its parameters.
type Key = [u8; 32];

/// Result of a completed `verify`.
pub struct Done {
    key: Key,
    verdict: Verdict,
}

/// Known and pending verdicts.
pub struct Verified {
    /// `None` while `verify` runs.
    known: HashMap<Key, Option<Verdict>>,
    /// `None` if this process does not run `verify`.
    queue: Option<mpsc::Sender<(Key, Chosen)>>,
}

impl Verified {
    /// Starts the thread. It calls `done` with each result, which must be passed to [`Verified::keep`].
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// Leaves `verify` to the machine, which runs it before it writes anything.
    pub fn left_to_the_machine() -> Verified {
        Verified { known: HashMap::new(), queue: None }
    }

    /// Returns the verdict; `None` if `verify` must run first.
    pub fn of(&mut self, chosen: &Chosen) -> Option<Verdict> {
        if !chosen.has_verify() {
            return Some(Verdict::Good);
        }
        let Some(queue) = &self.queue else {
            return Some(Verdict::NotRun("this command does not run verify programs".to_owned()));
        };
        // Cannot fail: text and numbers are always valid JSON.
        let key = Sha256::digest(serde_json::to_vec(chosen).unwrap_or_default()).into();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        self.known.insert(key, None);
        // Without the thread no verdict arrives, and machines keep waiting.
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
