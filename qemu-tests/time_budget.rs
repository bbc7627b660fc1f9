//! Time budget of a test run, which ends at the time in `DROPHAMMER_UNTIL`, in seconds since 1970. A case that would
//! not finish in time is not started, and is reported as not run.

use crate::host_tools::patience;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Assumed duration of a run with all its checks on a typical host. It is used until the first run was measured.
const RUN: Duration = Duration::from_secs(45);

/// Durations measured so far.
#[derive(Debug, Default)]
pub struct TimeBudget {
    until: Option<SystemTime>,
    seen: Mutex<MeasuredRuns>,
}

/// Number of finished runs, and their total duration.
#[derive(Debug, Default, Clone, Copy)]
struct MeasuredRuns {
    runs: u32,
    time: Duration,
}

impl TimeBudget {
    /// Reads the budget from the environment. Without the variable, there is no limit.
    pub fn from_env() -> TimeBudget {
        let value = std::env::var("DROPHAMMER_UNTIL").ok().and_then(|value| value.parse().ok());
        let until = value.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        TimeBudget { until, ..TimeBudget::default() }
    }

    /// Returns the reason why a case with this number of runs must not be started; `None` if it may be started.
    pub fn explain_refusal(&self, runs: usize) -> Option<String> {
        let left = self.until?.duration_since(SystemTime::now()).unwrap_or_default();
        let needs = self.estimate_run_time() * u32::try_from(runs).unwrap_or(u32::MAX);
        (needs > left).then(|| format!("not run: {} s are left, it takes about {} s", left.as_secs(), needs.as_secs()))
    }

    /// Records the duration of a case with this number of runs.
    pub fn record_runs(&self, runs: usize, time: Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.runs += u32::try_from(runs).unwrap_or(u32::MAX);
        seen.time += time;
    }

    fn estimate_run_time(&self) -> Duration {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.runs == 0 { RUN * u32::try_from(patience()).unwrap_or(u32::MAX) } else { seen.time / seen.runs }
    }
}

/// Tests that all cases are started without a limit, and that the measured durations decide if there is a limit.
pub fn self_test() {
    assert_eq!(TimeBudget::default().explain_refusal(1000), None);
    let within =
        |seconds| TimeBudget { until: Some(SystemTime::now() + Duration::from_secs(seconds)), ..TimeBudget::default() };
    let (short, long) = (within(1), within(100_000));
    assert!(short.explain_refusal(1).is_some_and(|words| words.starts_with("not run: ")), "a second is not enough");
    assert_eq!(long.explain_refusal(2), None);
    long.record_runs(2, Duration::from_secs(80_000));
    assert_eq!(long.explain_refusal(2), None);
    assert!(
        long.explain_refusal(3).is_some_and(|words| words.ends_with("takes about 120000 s")),
        "{:?}",
        long.explain_refusal(3)
    );
    let over = TimeBudget { until: Some(SystemTime::UNIX_EPOCH), ..TimeBudget::default() };
    assert!(over.explain_refusal(1).is_some(), "the time limit has passed");
}
