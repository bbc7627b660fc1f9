//! How much time is left: `DROPHAMMER_UNTIL` names the end, in seconds since 1970. A case that would not end by then is
//! not begun, and is named as not run.

use crate::host::patience;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How long a run over the network takes, with what follows it, on a host of usual speed. This counts until the first
/// run has been measured.
const RUN: Duration = Duration::from_secs(45);

/// What the runs so far have taken.
#[derive(Debug, Default)]
pub struct Budget {
    until: Option<SystemTime>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    runs: u32,
    time: Duration,
}

impl Budget {
    /// As the environment says; without a limit if it says nothing.
    pub fn from_env() -> Budget {
        let said = std::env::var("DROPHAMMER_UNTIL").ok().and_then(|said| said.parse().ok());
        let until = said.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        Budget { until, ..Budget::default() }
    }

    /// Why a case of so many runs is not begun now.
    pub fn refusal(&self, runs: usize) -> Option<String> {
        let left = self.until?.duration_since(SystemTime::now()).unwrap_or_default();
        let needs = self.a_run() * u32::try_from(runs).unwrap_or(u32::MAX);
        (needs > left).then(|| format!("not run: {} s are left, it takes about {} s", left.as_secs(), needs.as_secs()))
    }

    /// Notes how long a case of so many runs took.
    pub fn note(&self, runs: usize, time: Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.runs += u32::try_from(runs).unwrap_or(u32::MAX);
        seen.time += time;
    }

    fn a_run(&self) -> Duration {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.runs == 0 { RUN * u32::try_from(patience()).unwrap_or(u32::MAX) } else { seen.time / seen.runs }
    }
}

/// Nothing is refused without a limit; with one, what has been seen decides.
pub fn self_test() {
    assert_eq!(Budget::default().refusal(1000), None);
    let within =
        |seconds| Budget { until: Some(SystemTime::now() + Duration::from_secs(seconds)), ..Budget::default() };
    let (short, long) = (within(1), within(100_000));
    assert!(short.refusal(1).is_some_and(|words| words.starts_with("not run: ")), "a second is not enough");
    assert_eq!(long.refusal(2), None);
    long.note(2, Duration::from_secs(80_000));
    assert_eq!(long.refusal(2), None);
    assert!(long.refusal(3).is_some_and(|words| words.ends_with("takes about 120000 s")), "{:?}", long.refusal(3));
    let over = Budget { until: Some(SystemTime::UNIX_EPOCH), ..Budget::default() };
    assert!(over.refusal(1).is_some(), "the time is over");
}
