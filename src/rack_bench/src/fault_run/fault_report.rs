//! Result of a run with faults: the faults by type, with their takeover times, and the violations by invariant.

use super::fault_injector::InjectedFault;
use super::fault_plan::FaultKind;
use super::history::CallRecord;
use super::history_checker::{HistoryInvariant, InvariantViolation};
use super::takeover_times::measure_takeovers;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Maximum number of violations, and of failures, that the text report lists.
const MAXIMUM_LISTED_VIOLATIONS: usize = 20;

/// Figures of all faults of one type. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FaultFigures {
    pub kind: FaultKind,
    pub count: usize,
    pub affected_machines: usize,
    pub median_takeover: f64,
    pub p99_takeover: f64,
    pub longest_takeover: f64,
    /// Longest time until both servers were ready after the end of the fault.
    pub longest_recovery: f64,
}

/// Result of a run with faults.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FaultReport {
    pub machines: u32,
    pub finished: usize,
    pub installations: usize,
    pub reinstalls: usize,
    pub calls: usize,
    pub seed: u64,
    pub seconds: f64,
    pub faults: Vec<FaultFigures>,
    /// Measured shifts of clocks in seconds, each with the number of faults with this shift.
    pub clock_shifts: BTreeMap<i64, usize>,
    pub invariants: BTreeMap<HistoryInvariant, usize>,
    pub violations: Vec<InvariantViolation>,
    /// Reasons why machines were not installed.
    pub failures: Vec<String>,
}

/// Summarizes the faults by type. `calls` must be sorted by their end.
pub fn summarize_faults(faults: &[InjectedFault], calls: &[CallRecord]) -> Vec<FaultFigures> {
    let summarize = |kind: FaultKind| {
        let of_kind: Vec<&InjectedFault> = faults.iter().filter(|injected| injected.fault.kind == kind).collect();
        let mut takeovers = Vec::new();
        // A wrong clock interrupts no requests, so no takeover is measured.
        for injected in of_kind.iter().filter(|_| kind != FaultKind::ClockWrong) {
            let mut affected: Vec<u32> = injected.clients.iter().filter_map(machine_number).collect();
            affected.sort_unstable();
            affected.dedup();
            takeovers.extend(measure_takeovers(calls, &affected, injected.began));
        }
        takeovers.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (takeovers.len() as f64 * share).ceil() as usize;
            takeovers.get(index.saturating_sub(1)).copied().unwrap_or_default()
        };
        FaultFigures {
            kind,
            count: of_kind.len(),
            affected_machines: takeovers.len(),
            median_takeover: at(0.5),
            p99_takeover: at(0.99),
            longest_takeover: at(1.0),
            longest_recovery: of_kind.iter().map(|injected| injected.recovery).fold(0.0, f64::max),
        }
    };
    FaultKind::ALL.into_iter().map(summarize).collect()
}

/// Returns the number of the machine with this address; `None` for the address of the operator.
fn machine_number(address: &IpAddr) -> Option<u32> {
    let IpAddr::V4(address) = address else { return None };
    u32::from(*address).checked_sub(u32::from(Ipv4Addr::new(127, 1, 0, 0)))
}

impl FaultReport {
    /// Returns the duration of the longest takeover in seconds.
    pub fn longest_takeover(&self) -> f64 {
        self.faults.iter().map(|figures| figures.longest_takeover).fold(0.0, f64::max)
    }

    /// Returns the tables of faults and invariants.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let count: usize = self.faults.iter().map(|figures| figures.count).sum();
        // The result is ignored, because writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{} machines, {} installations, {} reinstalls, {count} faults in {:.0} s, {} calls, seed {}\n",
            self.machines, self.installations, self.reinstalls, self.seconds, self.calls, self.seed
        );
        let _ = writeln!(
            text,
            "{:<58} {:>5} {:>8} {:>8} {:>8} {:>8}",
            "fault", "count", "machines", "median", "p99", "longest"
        );
        for figures in &self.faults {
            let _ = writeln!(
                text,
                "{:<58} {:>5} {:>8} {:>6.2} s {:>6.2} s {:>6.2} s",
                figures.kind.describe(),
                figures.count,
                figures.affected_machines,
                figures.median_takeover,
                figures.p99_takeover,
                figures.longest_takeover
            );
        }
        let shifts: Vec<String> =
            self.clock_shifts.iter().map(|(shift, count)| format!("{shift:+} s ({count} times)")).collect();
        let _ = writeln!(text, "\nmeasured shift of the clock: {}", shifts.join(", "));
        for (invariant, count) in &self.invariants {
            let _ = writeln!(text, "{count:>5} {}", invariant.describe_violation());
        }
        for violation in self.violations.iter().take(MAXIMUM_LISTED_VIOLATIONS) {
            let _ = writeln!(
                text,
                "violation: machine {}: {}: {}",
                violation.machine,
                violation.invariant.describe_violation(),
                violation.detail
            );
        }
        for failure in self.failures.iter().take(MAXIMUM_LISTED_VIOLATIONS) {
            let _ = writeln!(text, "failure: {failure}");
        }
        text
    }
}

/// Counts the violations of each invariant.
pub fn count_violations(violations: &[InvariantViolation]) -> BTreeMap<HistoryInvariant, usize> {
    let count = |invariant| violations.iter().filter(|violation| violation.invariant == invariant).count();
    HistoryInvariant::ALL.into_iter().map(|invariant| (invariant, count(invariant))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_run::fault_plan::PlannedFault;
    use std::time::Duration;

    #[test]
    fn faults_are_summarized_by_type_for_the_connected_machines() {
        let fault =
            PlannedFault { kind: FaultKind::ServerKilled, server: 0, duration: Duration::ZERO, clock_shift: 600 };
        let clients = vec![IpAddr::from([127, 1, 0, 5]), IpAddr::from([127, 1, 0, 5]), IpAddr::from([127, 0, 0, 1])];
        let injected = InjectedFault { fault, began: 10.0, clients, recovery: 1.5, clock_shift: 0 };
        let call = |machine| CallRecord { machine, began: 9.0, ended: 12.0, is_acknowledged: true };
        let figures = summarize_faults(&[injected], &[call(5), call(6)]);
        let killed = &figures[0];
        assert_eq!((killed.count, killed.affected_machines, killed.longest_takeover), (1, 1, 2.0));
        assert_eq!((killed.longest_recovery, figures[1].count), (1.5, 0));
    }

    #[test]
    fn the_text_contains_all_faults_and_invariants() {
        let violation = InvariantViolation {
            invariant: HistoryInvariant::StartUnique,
            machine: 3,
            detail: "boots 1 and 2".to_owned(),
        };
        let report = FaultReport {
            machines: 4,
            finished: 3,
            installations: 4,
            reinstalls: 3,
            calls: 9,
            seed: 1,
            seconds: 60.0,
            faults: summarize_faults(&[], &[]),
            clock_shifts: BTreeMap::from([(600, 2)]),
            invariants: count_violations(std::slice::from_ref(&violation)),
            violations: vec![violation],
            failures: vec!["machine 3: refused".to_owned()],
        };
        let text = report.to_text();
        for expected in
            ["server paused", "+600 s (2 times)", "    1 duplicated points of no return", "boots 1 and 2", "refused"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
