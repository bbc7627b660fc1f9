//! Durations of requests, and the report of a run.

use common::sync::lock_mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of failures that the report lists.
const MAXIMUM_LISTED_FAILURES: usize = 10;

/// Figures collected during a run.
#[derive(Default)]
pub struct RunFigures {
    durations: Mutex<BTreeMap<&'static str, Vec<u32>>>,
    /// Number of requests that were answered with `Retry-After` or failed temporarily. Requests that the client repeats
    /// itself are not counted.
    pub delayed: AtomicU64,
    /// Number of events and parts of logs that were not delivered.
    pub undelivered: AtomicU64,
    /// Number of machines that have received the allocation of another machine, or no allocation although the server
    /// has woken them.
    pub wrong: AtomicU64,
}

/// Latency distribution of one request type, in milliseconds.
#[derive(Debug, Serialize)]
pub struct DurationSummary {
    pub requests: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Result of a run that measures the server.
#[derive(Debug, Serialize)]
pub struct RackReport {
    pub machines: u32,
    pub installed: u32,
    pub lost: u32,
    pub seconds: f64,
    pub machines_per_second: f64,
    pub wrong_allocations: u64,
    pub delayed: u64,
    pub undelivered: u64,
    pub requests: BTreeMap<&'static str, DurationSummary>,
    /// The first failures of machines.
    pub failures: Vec<String>,
}

impl RunFigures {
    /// Records the time since `began` as the duration of a request.
    pub fn record(&self, request: &'static str, began: Instant) {
        self.record_duration(request, began.elapsed());
    }

    pub fn record_duration(&self, request: &'static str, duration: Duration) {
        let microseconds = u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
        lock_mutex(&self.durations).entry(request).or_default().push(microseconds);
    }

    /// Runs the request, and records its duration.
    pub async fn measure<T>(&self, request: &'static str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = work.await;
        self.record(request, began);
        result
    }

    pub fn report(&self, machines: u32, installed: u32, seconds: f64, mut failures: Vec<String>) -> RackReport {
        let mut durations = std::mem::take(&mut *lock_mutex(&self.durations));
        failures.truncate(MAXIMUM_LISTED_FAILURES);
        RackReport {
            machines,
            installed,
            lost: machines - installed,
            seconds,
            machines_per_second: f64::from(installed) / seconds,
            wrong_allocations: self.wrong.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
            undelivered: self.undelivered.load(Ordering::Relaxed),
            requests: durations.iter_mut().map(|(name, all)| (*name, summarize(all))).collect(),
            failures,
        }
    }
}

fn summarize(all: &mut [u32]) -> DurationSummary {
    all.sort_unstable();
    let at = |share: f64| {
        let index = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len().max(1)) - 1;
        all.get(index).map_or(0.0, |microseconds| f64::from(*microseconds) / 1000.0)
    };
    DurationSummary { requests: all.len(), p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let mut all: Vec<u32> = (1..=200).rev().map(|number| number * 1000).collect();
        let summary = summarize(&mut all);
        assert_eq!((summary.requests, summary.p50_ms, summary.p99_ms, summary.max_ms), (200, 100.0, 198.0, 200.0));
        let none = summarize(&mut []);
        assert_eq!((none.requests, none.p50_ms, none.max_ms), (0, 0.0, 0.0));
        assert_eq!(summarize(&mut [7000]).p99_ms, 7.0);
    }

    #[tokio::test]
    async fn a_report_counts_lost_machines_and_shows_the_first_failures() {
        let figures = RunFigures::default();
        figures.measure("register", async {}).await;
        let failures = (0..30).map(|number| number.to_string()).collect();
        let report = figures.report(100, 70, 35.0, failures);
        assert_eq!(
            (report.lost, report.machines_per_second, report.failures.len()),
            (30, 2.0, MAXIMUM_LISTED_FAILURES)
        );
        assert_eq!(report.requests["register"].requests, 1);
    }
}
