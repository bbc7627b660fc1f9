//! Metrics for Prometheus, liveness and readiness.

mod monitoring_endpoints;
mod prometheus;

pub(crate) use monitoring_endpoints::{get_livez, get_metrics, get_readyz};

use common::sync::lock_mutex;
use control::agent_api_types::InstallReport;
use http_server::server_health::ServerHealth;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use time::OffsetDateTime;

/// Maximum number of different step names. The number of names must be limited, because machines send the names. Actual
/// plans have fewer steps.
const MAXIMUM_STEP_NAMES: usize = 100;
const LONGEST_STEP: usize = 60;
const OTHER_STEP: &str = "other";
/// Upper bounds of the buckets of a histogram, in seconds.
const STEP_SECONDS_BUCKETS: [f64; 13] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
const STORE_SECONDS_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Counters since the start of the server.
#[derive(Default)]
pub struct Metrics {
    counts: Mutex<MetricCounts>,
    /// Number of pending requests of machines that wait for their allocation.
    waiting: AtomicU64,
    phases: monitoring_endpoints::CachedPhases,
    /// Problems of the server itself.
    pub health: ServerHealth,
    /// Expiry times of the server's certificates, in seconds since 1970.
    certificates: OnceLock<Vec<i64>>,
}

#[derive(Clone)]
struct MetricCounts {
    /// Number of installations by type and result.
    installs: BTreeMap<(&'static str, &'static str), u64>,
    /// Number of orders by event.
    orders: BTreeMap<&'static str, u64>,
    steps: BTreeMap<String, DurationHistogram>,
    image_bytes: u64,
    store: DurationHistogram,
}

impl Default for MetricCounts {
    fn default() -> MetricCounts {
        let kinds = ["first", "reinstall"].into_iter().flat_map(|kind| [(kind, "success"), (kind, "failure")]);
        MetricCounts {
            installs: kinds.map(|key| (key, 0)).collect(),
            orders: OrderEvent::ALL.map(|what| (what.name(), 0)).into(),
            steps: BTreeMap::new(),
            image_bytes: 0,
            store: DurationHistogram::new(&STORE_SECONDS_BUCKETS),
        }
    }
}

/// Event of a reinstall order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderEvent {
    Placed,
    Cancelled,
    Started,
}

impl OrderEvent {
    const ALL: [OrderEvent; 3] = [OrderEvent::Placed, OrderEvent::Cancelled, OrderEvent::Started];

    fn name(self) -> &'static str {
        match self {
            OrderEvent::Placed => "placed",
            OrderEvent::Cancelled => "taken_back",
            OrderEvent::Started => "begun",
        }
    }
}

/// Histogram of durations.
#[derive(Clone)]
struct DurationHistogram {
    bounds: &'static [f64],
    /// Number of values in each bucket of the histogram. The last element is the number of values above all bounds.
    within: Vec<u64>,
    sum: f64,
}

impl DurationHistogram {
    fn new(bounds: &'static [f64]) -> DurationHistogram {
        DurationHistogram { bounds, within: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            let place = self.bounds.iter().position(|bound| seconds <= *bound).unwrap_or(self.bounds.len());
            self.within[place] += 1;
            self.sum += seconds;
        }
    }
}

/// Guard of a request that waits for an allocation. The request is counted as waiting until the guard is dropped.
pub(crate) struct WaitingGuard(Arc<Metrics>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn count_waiting(self: &Arc<Self>) -> WaitingGuard {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(self.clone())
    }

    /// Sets the expiry times of the server's certificates. Called once, since the certificates are read only at the
    /// start of the server.
    pub fn set_certificates(&self, expiry: Vec<OffsetDateTime>) {
        self.certificates.get_or_init(|| expiry.into_iter().map(OffsetDateTime::unix_timestamp).collect());
    }

    pub(crate) fn count_order(&self, what: OrderEvent) {
        *lock_mutex(&self.counts).orders.entry(what.name()).or_default() += 1;
    }

    /// Records the duration of a database job, including its time in the queue.
    pub fn observe_store_job(&self, took: Duration) {
        lock_mutex(&self.counts).store.observe(took.as_secs_f64());
    }

    /// Counts a report of the end of an installation. The caller must not pass a repeated report.
    pub(crate) fn count_report(&self, report: &InstallReport) {
        let kind = if report.order.is_some() { "reinstall" } else { "first" };
        let result = if report.success { "success" } else { "failure" };
        let mut counts = lock_mutex(&self.counts);
        *counts.installs.entry((kind, result)).or_default() += 1;
        if let Some(burn) = &report.burn {
            counts.image_bytes = counts.image_bytes.saturating_add(burn.bytes);
        }
        for timing in report.timings.iter().take(MAXIMUM_STEP_NAMES) {
            let step = self::step_label(&counts.steps, &timing.stage);
            counts
                .steps
                .entry(step)
                .or_insert_with(|| DurationHistogram::new(&STEP_SECONDS_BUCKETS))
                .observe(timing.seconds);
        }
    }
}

/// Returns the name of a step as a label, or `other` if the name is invalid or the limit of names is reached.
fn step_label(known: &BTreeMap<String, DurationHistogram>, name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = !name.is_empty() && name.len() <= LONGEST_STEP && name.bytes().all(plain);
    match is_name && (known.contains_key(name) || known.len() < MAXIMUM_STEP_NAMES) {
        true => name.to_owned(),
        false => OTHER_STEP.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::StageTime;
    use store::rollouts::{MemberState, RolloutState, RolloutStatistics};

    fn timed(step: &str, seconds: f64) -> StageTime {
        StageTime { stage: step.to_owned(), seconds }
    }

    #[test]
    fn metrics_of_machine_reports_are_bounded() {
        let metrics = Arc::new(Metrics::default());
        let timings = vec![timed("image.burn", 7.0), timed("image.burn", f64::NAN), timed("a\"b\n", 1.0)];
        metrics.count_report(&InstallReport { success: true, timings, ..InstallReport::default() });
        for index in 0..300 {
            let timings = vec![timed(&format!("made-up-{index}"), -1.0)];
            metrics.count_report(&InstallReport { order: Some("o".to_owned()), timings, ..InstallReport::default() });
        }
        metrics.count_order(OrderEvent::Placed);
        metrics.set_certificates(vec![OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_795_806_607)]);
        let waits = metrics.count_waiting();
        let (running, failed) = ((RolloutState::Running, 1), (MemberState::Failed, 3));
        let rollouts = RolloutStatistics { rollouts: vec![running], members: vec![failed] };
        let text = prometheus::format_metrics(
            &metrics,
            Some(&BTreeMap::from([("not installed".to_owned(), 2)])),
            Some(&rollouts),
        );
        for line in [
            "drophammer_installs_total{kind=\"first\",result=\"success\"} 1",
            "drophammer_installs_total{kind=\"reinstall\",result=\"failure\"} 300",
            "drophammer_orders_total{event=\"placed\"} 1",
            "drophammer_orders_total{event=\"begun\"} 0",
            "drophammer_waits 1",
            "drophammer_certificate_expiry_timestamp_seconds{position=\"1\"} 1795806607",
            "drophammer_machines{phase=\"not installed\"} 2",
            "drophammer_rollouts{state=\"running\"} 1",
            "drophammer_rollouts{state=\"halted\"} 0",
            "drophammer_rollout_members{state=\"failed\"} 3",
            "drophammer_rollout_members{state=\"waiting\"} 0",
            "drophammer_machines{phase=\"installed\"} 0",
            "drophammer_step_seconds_bucket{step=\"image.burn\",le=\"5\"} 0",
            "drophammer_step_seconds_bucket{step=\"image.burn\",le=\"10\"} 1",
            "drophammer_step_seconds_bucket{step=\"image.burn\",le=\"+Inf\"} 1",
            "drophammer_step_seconds_sum{step=\"image.burn\"} 7",
            "drophammer_step_seconds_count{step=\"image.burn\"} 1",
            "drophammer_step_seconds_count{step=\"other\"} 1",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
        assert!(text.matches("drophammer_step_seconds_count").count() <= MAXIMUM_STEP_NAMES + 1);
        drop(waits);
        assert!(
            prometheus::format_metrics(&metrics, None, None).contains("\ndrophammer_waits 0\n"),
            "without the database"
        );
    }

    #[test]
    fn every_line_is_prometheus_text() {
        let metrics = Metrics::default();
        metrics.observe_store_job(Duration::from_millis(3));
        let text = prometheus::format_metrics(&metrics, Some(&BTreeMap::new()), Some(&RolloutStatistics::default()));
        let mut typed = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                typed.push(rest.split(' ').next().unwrap().to_owned());
            } else if !line.starts_with("# HELP ") {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                let name = name.split('{').next().unwrap();
                assert!(typed.iter().any(|typed| name.starts_with(typed.as_str())), "{line}");
            }
        }
        assert!(text.contains("drophammer_store_seconds_bucket{le=\"0.005\"} 1\n"), "{text}");
        assert!(typed.len() >= 7 && text.ends_with('\n'));
    }

    #[test]
    fn dashboard_uses_only_existing_metrics() {
        let metrics = Metrics::default();
        metrics.count_report(&InstallReport { timings: vec![timed("image.burn", 1.0)], ..InstallReport::default() });
        let text = prometheus::format_metrics(&metrics, Some(&BTreeMap::new()), Some(&RolloutStatistics::default()));
        let dashboard = include_str!("../../../examples/grafana-dashboard.json");
        let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(parsed["panels"].as_array().unwrap().len() > 5);
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        for rest in dashboard.split("drophammer_").skip(1) {
            let name = rest.split(|c| !is_name(c)).next().unwrap();
            let there = text.lines().any(|line| line.starts_with(&format!("drophammer_{name}")));
            assert!(there, "{name}");
        }
    }
}
