//! Report of a machine's last installation: result, durations, erased disks and preserved objects.

use api::access;
use common::format::{format_bytes, format_seconds};
use control::agent_api_types::InstallReport;
use maud::{Markup, html};
use model::install_report::{PreservationProof, StageTime};
use std::collections::BTreeSet;

/// Shows the report of the last installation.
pub(crate) fn show_report(report: &InstallReport) -> Markup {
    let failed = report.step.as_deref().map(|step| format!("Failed at {step}")).unwrap_or_else(|| "Failed".to_owned());
    html! {
        h2 { "Last installation" }
        p.words.problem[!report.success] {
            strong { (if report.success { "Installed" } else { &failed }) ": " } (access::visible_message(report.reason()))
            @if report.untouched { " All disks are unchanged." }
        }
        @if !report.timings.is_empty() { (show_timings(&report.timings)) }
        @if let Some(burn) = &report.burn { p { "Image: " (burn) } }
        @if let Some(peak) = report.peak_rss_bytes { p.faint { "Peak memory of the agent: " (format_bytes(peak)) } }
        @if !report.plan.is_empty() {
            h3 { "Plan, as printed" }
            pre tabindex="0" { (report.plan) }
        }
        @if !report.erased.is_empty() {
            h3 { "Erased disks" }
            div.scroll tabindex="0" { table {
                tr { th { "Disk" } th { "Serial" } th { "Proof" } th.number { "Took" } }
                @for disk in &report.erased {
                    tr { td { code { (disk.device) } } td { (disk.serial) } td { (disk.proof) } td.number { (format_seconds(disk.seconds)) } }
                }
            } }
        }
        @if !report.kept.is_empty() { h3 { "Proofs that preserved objects are unchanged" } (show_preserved(&report.kept)) }
    }
}

/// Shows the durations of the stages as a bar and a table.
fn show_timings(timings: &[StageTime]) -> Markup {
    let known = |time: &StageTime| if time.seconds.is_finite() { time.seconds.max(0.0) } else { 0.0 };
    let sum: f64 = timings.iter().map(known).sum::<f64>().max(0.001);
    let mut left = 0.0;
    let parts = timings.iter().enumerate().map(|(index, time)| {
        let width = known(time) / sum * 100.0;
        let part = (format!("{left:.2}%"), format!("{width:.2}%"), format!("c{}", index % 8), time);
        left += width;
        part
    });
    let parts: Vec<_> = parts.collect();
    html! {
        h3 { "Duration by step: " (format_seconds(sum)) }
        svg.bar role="img" aria-label="Duration by step, as in the table below" {
            @for (left, width, color, time) in &parts {
                rect class=(color) x=(left) y="0" width=(width) height="28" {
                    title { (time.stage) " " (format_seconds(time.seconds)) }
                }
            }
        }
        table {
            @for (_, _, color, time) in &parts {
                tr {
                    td { svg.key { rect class=(color) width="100%" height="100%" {} } (time.stage) }
                    td.number { (format_seconds(time.seconds)) }
                    td.number { (format!("{:.0} %", known(time) / sum * 100.0)) }
                }
            }
        }
    }
}

/// Shows the identifying properties of each preserved object, read before the first stage and after the last stage.
fn show_preserved(kept: &[PreservationProof]) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            tr { th { "Object" } th { "Identified by" } th { "Before" } th { "After" } th { "Result" } }
            @for proof in kept {
                @let names: BTreeSet<&String> = proof.before.keys().chain(proof.after.keys()).collect();
                @for (index, name) in names.into_iter().enumerate() {
                    @let (before, after) = (proof.before.get(name), proof.after.get(name));
                    tr {
                        td { @if index == 0 { (proof.object) } }
                        td { (name) }
                        td.mono { (before.map(String::as_str).unwrap_or("-")) }
                        td.mono { (after.map(String::as_str).unwrap_or("-")) }
                        @if before == after { td.good { span.word { "same" } } } @else { td.bad { span.word { "CHANGED" } } }
                    }
                }
            }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_preservation_proof_is_marked() {
        let map = |value: &str| [("uuid".to_owned(), value.to_owned())].into();
        let proof = PreservationProof { object: "disk /dev/sdb".to_owned(), before: map("1"), after: map("2") };
        let same = PreservationProof { after: map("1"), ..proof.clone() };
        assert!(show_preserved(&[proof]).0.contains("CHANGED"));
        let shown = show_preserved(&[same]).0;
        assert!(!shown.contains("CHANGED") && shown.contains("same"));
    }

    #[test]
    fn invalid_durations_draw_no_bar() {
        let time = |seconds| StageTime { stage: "s".to_owned(), seconds };
        let text = show_timings(&[time(f64::NAN), time(f64::INFINITY), time(-1.0), time(3.0)]).0;
        assert!(text.contains("width=\"100.00%\"") && !text.contains("width=\"NaN"), "{text}");
    }
}
