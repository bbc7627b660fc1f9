//! Plan of the faults of a run, determined by a seed.

use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    ServerKilled,
    ServerPaused,
    ServerUnreachable,
    DatabaseUnreachable,
    PostgresRestarted,
    PostgresCrashed,
    PostgresHung,
    ClockWrong,
}

impl FaultKind {
    pub const ALL: [FaultKind; 8] = [
        FaultKind::ServerKilled,
        FaultKind::ServerPaused,
        FaultKind::ServerUnreachable,
        FaultKind::DatabaseUnreachable,
        FaultKind::PostgresRestarted,
        FaultKind::PostgresCrashed,
        FaultKind::PostgresHung,
        FaultKind::ClockWrong,
    ];

    pub fn describe(self) -> &'static str {
        match self {
            FaultKind::ServerKilled => "server killed (SIGKILL), started again",
            FaultKind::ServerPaused => "server paused (SIGSTOP)",
            FaultKind::ServerUnreachable => "network between load balancer and server cut",
            FaultKind::DatabaseUnreachable => "network between server and PostgreSQL cut",
            FaultKind::PostgresRestarted => "PostgreSQL restarted",
            FaultKind::PostgresCrashed => "PostgreSQL crashed (immediate shutdown), started again",
            FaultKind::PostgresHung => "PostgreSQL paused (SIGSTOP of all its processes)",
            FaultKind::ClockWrong => "clock of a server 10 minutes off",
        }
    }

    /// Returns whether the fault affects both servers, so that neither can take over the work of the other.
    pub fn affects_both_servers(self) -> bool {
        matches!(self, FaultKind::PostgresRestarted | FaultKind::PostgresCrashed | FaultKind::PostgresHung)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PlannedFault {
    pub kind: FaultKind,
    /// Index of the affected server.
    pub server: usize,
    /// Duration of the fault, without the time that a restart takes.
    pub duration: Duration,
    /// Shift of the clock in seconds, for [`FaultKind::ClockWrong`].
    pub clock_shift: i64,
}

/// Range of the durations of most faults, in seconds.
const FAULT_SECONDS: std::ops::Range<f64> = 2.0..3.5;
/// Amount by which a wrong clock is shifted, in seconds.
const CLOCK_SHIFT: i64 = 600;

/// Plans `count` faults. All types of faults are equally frequent. The first pause of a server lasts `longest_pause`;
/// all other faults are short.
pub fn plan_faults(count: usize, seed: u64, longest_pause: Duration) -> Vec<PlannedFault> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut faults, mut cycle) = (Vec::with_capacity(count), Vec::new());
    let mut was_paused = false;
    while faults.len() < count {
        if cycle.is_empty() {
            cycle = FaultKind::ALL.to_vec();
            random.shuffle(&mut cycle);
        }
        let Some(kind) = cycle.pop() else { break };
        let seconds = FAULT_SECONDS.start + random.f64() * (FAULT_SECONDS.end - FAULT_SECONDS.start);
        let is_long = kind == FaultKind::ServerPaused && !std::mem::replace(&mut was_paused, true);
        let duration = if is_long { longest_pause } else { Duration::from_secs_f64(seconds) };
        let clock_shift = if random.bool() { CLOCK_SHIFT } else { -CLOCK_SHIFT };
        faults.push(PlannedFault { kind, server: random.usize(..2), duration, clock_shift });
        was_paused |= kind == FaultKind::ServerPaused;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_a_plan_with_equally_frequent_faults() {
        let minute = Duration::from_secs(60);
        let plan = plan_faults(200, 7, minute);
        assert_eq!(plan, plan_faults(200, 7, minute));
        assert_ne!(plan, plan_faults(200, 8, minute));
        for kind in FaultKind::ALL {
            assert_eq!(plan.iter().filter(|fault| fault.kind == kind).count(), 25, "{kind:?}");
        }
        assert_eq!(plan.iter().filter(|fault| fault.duration == minute).count(), 1);
        assert!(plan.iter().any(|fault| fault.server == 0) && plan.iter().any(|fault| fault.server == 1));
        assert_eq!(plan_faults(0, 7, minute), []);
    }
}
