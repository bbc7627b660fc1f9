//! The text format of Prometheus, version 0.0.4.

use super::{DurationHistogram, MetricCounts, Metrics};
use crate::display_phase::MACHINE_PHASES;
use common::sync::lock_mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use store::rollouts::{MemberState, RolloutState, RolloutStatistics};

/// Formats all metrics. The metrics of machines and rollouts are omitted if their numbers are unknown. Label values are
/// constants of this program, or step names that were validated on receipt.
pub(crate) fn format_metrics(
    metrics: &Metrics,
    phases: Option<&BTreeMap<String, u64>>,
    rollouts: Option<&RolloutStatistics>,
) -> String {
    let mut text = String::new();
    write_server_health(&mut text, metrics);
    phases.into_iter().for_each(|phases| write_phases(&mut text, phases));
    rollouts.into_iter().for_each(|rollouts| write_rollouts(&mut text, rollouts));
    write_header(&mut text, "waits", "gauge", "Open requests in which a machine waits for its allocation.");
    write_sample(&mut text, "waits", &[], metrics.waiting.load(Ordering::Relaxed));
    let name = "certificate_expiry_timestamp_seconds";
    write_header(
        &mut text,
        name,
        "gauge",
        "Expiration time of each certificate in the file of --tls-cert, in the order of the file.",
    );
    for (index, expiry) in metrics.certificates.get().into_iter().flatten().enumerate() {
        write_sample(&mut text, name, &[("position", &(index + 1).to_string())], expiry);
    }
    write_counts(&mut text, &lock_mutex(&metrics.counts).clone());
    text
}

fn write_server_health(text: &mut String, metrics: &Metrics) {
    write_header(text, "info", "gauge", "Version of the server.");
    write_sample(text, "info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    write_header(text, "healthy", "gauge", "1 if the server can store reports and complete requests, else 0.");
    write_sample(text, "healthy", &[], u8::from(metrics.health.failures().is_empty()));
    write_header(text, "errors_total", "counter", "Requests that the server has failed to complete (status 5xx).");
    write_sample(text, "errors_total", &[], metrics.health.count_errors());
    let name = "audit_entries_lost_total";
    write_header(text, name, "counter", "Entries of the audit log that could not be written to --audit-log.");
    write_sample(text, name, &[], metrics.health.count_lost_audit_entries());
}

/// Writes the numbers of installations and orders, and the durations of steps and database jobs.
fn write_counts(text: &mut String, counts: &MetricCounts) {
    write_header(text, "installs_total", "counter", "Installations that agents have reported as finished, by result.");
    for ((kind, result), count) in &counts.installs {
        write_sample(text, "installs_total", &[("kind", kind), ("result", result)], *count);
    }
    write_header(
        text,
        "orders_total",
        "counter",
        "Events of reinstall orders: placed, taken_back (canceled), begun (started).",
    );
    for (event, count) in &counts.orders {
        write_sample(text, "orders_total", &[("event", event)], *count);
    }
    write_header(text, "image_bytes_total", "counter", "Image bytes fetched by reported installations.");
    write_sample(text, "image_bytes_total", &[], counts.image_bytes);
    write_header(text, "step_seconds", "histogram", "Durations of the steps in reported installations.");
    for (step, histogram) in &counts.steps {
        write_histogram(text, "step_seconds", &[("step", step)], histogram);
    }
    write_header(text, "store_seconds", "histogram", "Durations of database jobs, including their time in the queue.");
    write_histogram(text, "store_seconds", &[], &counts.store);
}

fn write_phases(text: &mut String, phases: &BTreeMap<String, u64>) {
    write_header(text, "machines", "gauge", "Machines, by phase as in `drophammer machine list`.");
    for phase in MACHINE_PHASES {
        write_sample(text, "machines", &[("phase", phase)], phases.get(phase).copied().unwrap_or_default());
    }
}

fn write_rollouts(text: &mut String, rollouts: &RolloutStatistics) {
    write_header(text, "rollouts", "gauge", "Rollouts, by state.");
    for state in RolloutState::ALL {
        write_sample(text, "rollouts", &[("state", state.as_str())], rollouts.count_rollouts(state));
    }
    write_header(text, "rollout_members", "gauge", "Machines of rollouts, by state of their reinstall.");
    for state in MemberState::ALL {
        write_sample(text, "rollout_members", &[("state", state.as_str())], rollouts.count_members(state));
    }
}

fn write_header(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP drophammer_{name} {help}\n# TYPE drophammer_{name} {kind}\n");
}

fn write_sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(text, "drophammer_{name}{labels} {value}");
}

fn write_histogram(text: &mut String, name: &str, labels: &[(&str, &str)], histogram: &DurationHistogram) {
    let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut count = 0;
    for (bound, within) in bounds.zip(&histogram.within) {
        count += within;
        let labels = [labels, &[("le", bound.as_str())]].concat();
        write_sample(text, &format!("{name}_bucket"), &labels, count);
    }
    write_sample(text, &format!("{name}_sum"), labels, histogram.sum);
    write_sample(text, &format!("{name}_count"), labels, count);
}
