//! Lines for the operator that anybody on the network can bring about: the same is said once a minute, and only so many.

use super::watch::Watch;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 256;

/// Cheap to clone.
#[derive(Clone)]
pub struct Alarms {
    watch: Watch,
    /// When these words were last said.
    said: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Alarms {
    pub fn new(watch: Watch) -> Alarms {
        Alarms { watch, said: Arc::default() }
    }

    pub fn say(&self, text: String) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < EVERY);
        if said.len() < AT_ONCE && !said.contains_key(&text) {
            said.insert(text.clone(), Instant::now());
            self.watch.problem(text);
        }
    }
}
