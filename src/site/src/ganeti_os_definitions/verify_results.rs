//! Verdicts of the `verify` programs of OS definitions. `verify` runs once for each combination of a definition and
//! parameters, in a separate thread.

use linux::verify_program::{VerifyVerdict, run_verify};
use model::ganeti_os_definition::SelectedDefinition;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

/// Timeout of the `verify` program. The timeout is short, because the operator waits for the result.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(20);

/// Digest of a definition together with its parameters.
type VerifyKey = [u8; 32];

/// Result of a completed run of a `verify` program.
pub struct VerifyResult {
    key: VerifyKey,
    verdict: VerifyVerdict,
}

/// Runs the `verify` program for parameters that an operator is about to store. The verdict is not cached.
///
/// # Errors
/// Returns an error if `verify` refuses the parameters. If `verify` cannot run here, the parameters are accepted: the
/// machine runs `verify` before it writes anything to its disks.
pub fn verify_now(chosen: &SelectedDefinition) -> Result<(), String> {
    if !chosen.has_verify() {
        return Ok(());
    }
    match run_verify(chosen, VERIFY_TIMEOUT) {
        VerifyVerdict::Refused(why) => {
            Err(format!("the verify program of {os} refuses these parameters: {why}", os = chosen.selector()))
        }
        VerifyVerdict::Good | VerifyVerdict::NotRun(_) => Ok(()),
    }
}

/// Cache of the verdicts of `verify` programs, including pending verdicts.
pub struct VerifyCache {
    /// Verdicts by digest; `None` while `verify` runs.
    known: HashMap<VerifyKey, Option<VerifyVerdict>>,
    /// Queue of the thread that runs `verify`; `None` if this process does not run `verify`.
    queue: Option<mpsc::Sender<(VerifyKey, SelectedDefinition)>>,
}

impl VerifyCache {
    /// Starts the thread that runs `verify`. The thread calls `done` with each result. The caller must pass the result
    /// to [`VerifyCache::store_result`].
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(done: impl Fn(VerifyResult) + Send + 'static) -> std::io::Result<VerifyCache> {
        let (queue, requests) = mpsc::channel::<(VerifyKey, SelectedDefinition)>();
        let answer = move || {
            for (key, chosen) in requests {
                done(VerifyResult { key, verdict: run_verify(&chosen, VERIFY_TIMEOUT) });
            }
        };
        std::thread::Builder::new().name("verify".to_owned()).spawn(answer)?;
        Ok(VerifyCache { known: HashMap::new(), queue: Some(queue) })
    }

    /// Creates a cache that does not run `verify`. The machine runs `verify` before it writes anything to its disks.
    pub fn disabled() -> VerifyCache {
        VerifyCache { known: HashMap::new(), queue: None }
    }

    /// Returns the verdict, or `None` if `verify` is still running or has been queued by this call.
    pub(crate) fn get_verdict(&mut self, chosen: &SelectedDefinition) -> Option<VerifyVerdict> {
        if !chosen.has_verify() {
            return Some(VerifyVerdict::Good);
        }
        let Some(queue) = &self.queue else {
            return Some(VerifyVerdict::NotRun("this command does not run verify programs".to_owned()));
        };
        // Serialization cannot fail, because text and numbers can always be represented as JSON.
        let key = Sha256::digest(serde_json::to_vec(chosen).unwrap_or_default()).into();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        self.known.insert(key, None);
        // `send` fails only if the thread has exited. No verdict will then arrive, so machines keep waiting.
        let _ = queue.send((key, chosen.clone()));
        None
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.known.values().any(Option::is_none)
    }

    pub(crate) fn store_result(&mut self, done: VerifyResult) {
        self.known.insert(done.key, Some(done.verdict));
    }
}
