//! Durations of past installations, from which the durations of planned installations are estimated.

use common::error::Result;
use model::install_report::StageTime;
use serde::Deserialize;
use site::snapshot::SiteSnapshot;
use std::collections::HashMap;
use store::ServerState;

/// Durations of the machines' last installations, in seconds.
pub(super) struct InstallDurations {
    by_machine: HashMap<String, f64>,
    /// Durations by the size of the machine, sorted.
    by_size: HashMap<String, Vec<f64>>,
}

/// Fields of a report from which durations are read.
#[derive(Deserialize)]
struct InstallTimings {
    success: bool,
    #[serde(default)]
    timings: Vec<StageTime>,
}

impl InstallDurations {
    /// Reads the durations from the reports of the machines.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub(super) fn read(state: &ServerState, directory: &SiteSnapshot) -> Result<InstallDurations> {
        let mut durations = InstallDurations { by_machine: HashMap::new(), by_size: HashMap::new() };
        for (machine, report) in state.list_reports_blocking()? {
            // A report that cannot be parsed is skipped: a newer version may have stored it in another format.
            let Ok(InstallTimings { success: true, timings }) = serde_json::from_str(&report) else { continue };
            let seconds: f64 = timings.iter().map(|stage| stage.seconds).sum();
            if seconds > 0.0 && seconds.is_finite() {
                let size = directory.find_machine(&machine).and_then(|machine| machine.size.clone());
                durations.by_size.entry(size.unwrap_or_default()).or_default().push(seconds);
                durations.by_machine.insert(machine, seconds);
            }
        }
        durations.by_size.values_mut().for_each(|all| all.sort_by(f64::total_cmp));
        Ok(durations)
    }

    /// Returns the duration of the machine's last installation or, if it is unknown, the median of all machines of its
    /// size.
    pub(super) fn estimate_seconds(&self, id: &str, size: Option<&str>) -> Option<f64> {
        let of_size = || {
            let all = self.by_size.get(size?)?;
            all.get(all.len() / 2).copied()
        };
        self.by_machine.get(id).copied().or_else(of_size)
    }
}
