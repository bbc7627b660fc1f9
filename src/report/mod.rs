//! Events, progress and timings: to the console at once, to the control plane when it can take them. Never blocks,
//! never fails an install.

use crate::control::wire::{EventName, Progress, StepTime};
use crate::error::Result;
use std::sync::Mutex;
use std::time::Instant;

/// Tells people and the control plane how the install goes.
#[derive(Default)]
pub struct Reporter {
    timings: Mutex<Vec<StepTime>>,
}

impl Reporter {
    /// A new phase of the machine's life.
    pub fn phase(&self, event: EventName, message: &str) {
        println!("{event}: {message}");
    }

    /// Runs one step of the plan: its name before, its seconds after, both as events.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let result = work();
        if let Ok(mut timings) = self.timings.lock() {
            timings.push(StepTime { step: name.to_owned(), seconds: began.elapsed().as_secs_f64() });
        }
        result
    }

    /// A line for the console that belongs to the running step.
    pub fn say(&self, line: &str) {
        println!("    {line}");
    }

    /// How far the image is; called often, shown now and then.
    pub fn progress(&self, progress: Progress) {
        println!("    {progress:?}");
    }

    /// Seconds by step so far.
    pub fn timings(&self) -> Vec<StepTime> {
        self.timings.lock().map(|timings| timings.clone()).unwrap_or_default()
    }
}
