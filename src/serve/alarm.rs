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
        if self.is_new(&text) {
            self.watch.problem(text);
        }
    }

    /// What is good to know, and needs nothing done.
    pub fn note(&self, text: String) {
        if self.is_new(&text) {
            self.watch.note(text);
        }
    }

    fn is_new(&self, text: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < EVERY);
        let is_new = said.len() < AT_ONCE && !said.contains_key(text);
        if is_new {
            said.insert(text.to_owned(), Instant::now());
        }
        is_new
    }
}
