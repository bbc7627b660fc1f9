//! The text format of Prometheus, version 0.0.4.

use super::{Histogram, Metrics, PHASES};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// Formats all metrics. Labels are names defined here, or names of steps that were validated on receipt.
pub fn text(metrics: &Metrics, phases: &BTreeMap<&'static str, u64>) -> String {
    let counts = metrics.counts().clone();
    let mut text = String::new();
    head(&mut text, "info", "gauge", "Version of the server.");
    line(&mut text, "info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    head(&mut text, "machines", "gauge", "Machines with a file, by phase.");
    for phase in PHASES {
        line(&mut text, "machines", &[("phase", phase)], phases.get(phase).copied().unwrap_or_default());
    }
    head(&mut text, "waits", "gauge", "Requests of machines that are waiting for an allocation.");
    line(&mut text, "waits", &[], metrics.waiting.load(Ordering::Relaxed));
    head(&mut text, "installs_total", "counter", "Installations whose end was reported.");
    for ((kind, result), count) in &counts.installs {
        line(&mut text, "installs_total", &[("kind", kind), ("result", result)], *count);
    }
    head(&mut text, "orders_total", "counter", "Events of orders to reinstall.");
    for (event, count) in &counts.orders {
        line(&mut text, "orders_total", &[("event", event)], *count);
    }
    head(&mut text, "image_bytes_total", "counter", "Bytes of images fetched by reported installations.");
    line(&mut text, "image_bytes_total", &[], counts.image_bytes);
    head(&mut text, "step_seconds", "histogram", "Durations of the steps of reported installations.");
    for (step, histogram) in &counts.steps {
        histogram_lines(&mut text, "step_seconds", &[("step", step)], histogram);
    }
    head(&mut text, "store_seconds", "histogram", "Durations of database jobs, including their time in the queue.");
    histogram_lines(&mut text, "store_seconds", &[], &counts.store);
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP drophammer_{name} {help}\n# TYPE drophammer_{name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(text, "drophammer_{name}{labels} {value}");
}

fn histogram_lines(text: &mut String, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
    let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    let mut count = 0;
    for (bound, within) in bounds.zip(&histogram.within) {
        count += within;
        let labels = [labels, &[("le", bound.as_str())]].concat();
        line(text, &format!("{name}_bucket"), &labels, count);
    }
    line(text, &format!("{name}_sum"), labels, histogram.sum);
    line(text, &format!("{name}_count"), labels, count);
}
