//! Sections in the output of `drophammer machine show`.

use super::format_time;
use crate::server_commands::fact_sections::{format_fact, format_section};
use crate::server_commands::machine_list::{describe_order, machine_name};
use ::api::display_phase::FILE_ERROR;
use ::api::install_timeline::{TimelineEntry, TimelineState};
use ::api::machine_details::{HardwareDetails, MachineDetails, RolloutMembership};
use ::api::operator_api::MachineSummary;
use common::format::{self, format_bytes, format_count, format_seconds, replace_hidden};

/// Formats everything about one machine. `all` lists all machines of the server, from which the names of other machines
/// are taken.
pub(super) fn format_details(details: &MachineDetails, all: &[MachineSummary]) -> String {
    let summary = &details.summary;
    let mut text = format!("{}  {}\n", replace_hidden(summary.display_name()), summary.phase);
    if let Some(failure) = &summary.failure {
        let (stage, time) = (failure.attempt.stage.as_deref().unwrap_or("before its plan"), &failure.attempt.time);
        text += &format_section("Failure");
        text += &format_fact("stage", stage);
        text += &format_fact("reason", &failure.attempt.message);
        if let Some(code) = &failure.attempt.code {
            text += &format_fact("code", &format!("{code}; `drophammer explain {code}` prints causes and remedies"));
        }
        text += &format_fact("next", &failure.remedy);
        text += &format_fact("time", &format!("{} UTC", format_time(time)));
    }
    text += &format_machine(details, all);
    if !details.timeline.is_empty() {
        text += &format_section("Timeline (UTC)");
        text += &format_timeline(&details.timeline);
    }
    text += &format_hardware(details.hardware.as_ref());
    text
}

fn format_machine(details: &MachineDetails, all: &[MachineSummary]) -> String {
    let summary = &details.summary;
    // Without an order, `describe_order` may return the lock, which has its own row.
    let lock = summary.locked.as_ref().filter(|_| summary.order.is_none()).map(|reason| format!("locked: {reason}"));
    let order = Some(describe_order(summary, all)).filter(|order| !order.is_empty() && lock.as_ref() != Some(order));
    let moving = summary.moving.as_ref().map(|moving| moving.describe(machine_name(all, &moving.other)));
    let report = details.report.as_ref().filter(|report| report.success);
    let took = report.map(|report| format_seconds(report.timings.iter().map(|time| time.seconds).sum()));
    let none = || "none; add one with `drophammer machine add`".to_owned();
    let file = details.file.clone().or_else(|| (!summary.unusable).then(none));
    let macs = Some(details.macs.join(" ")).filter(|macs| !macs.is_empty());
    let facts = [
        ("id", Some(summary.id.clone())),
        ("file", file),
        (FILE_ERROR, summary.file_error.clone()),
        ("project", summary.project.clone()),
        ("size", summary.size.clone()),
        ("MACs", macs),
        ("address", summary.address.clone()),
        ("last seen", summary.last_seen.as_deref().map(|seen| format!("{} UTC", format_time(seen)))),
        ("locked", summary.locked.clone()),
        ("allocation", summary.allocation.clone()),
        ("image", summary.image.clone()),
        ("wanted", summary.wanted.clone().filter(|wanted| summary.image.as_ref() != Some(wanted))),
        ("layout", summary.layout.clone()),
        ("order", order.filter(|_| moving.is_none() && !summary.new)),
        ("migration", moving),
        ("rollout", details.rollout.as_ref().map(RolloutMembership::describe)),
        ("installed in", took),
    ];
    let facts = facts.into_iter().filter_map(|(name, value)| Some(format_fact(name, &value?)));
    format_section("Machine") + &facts.collect::<String>()
}

fn format_timeline(timeline: &[TimelineEntry]) -> String {
    let rows = timeline.iter().map(|entry| {
        let state = match (entry.state, entry.seconds) {
            (TimelineState::Running, _) => "running".to_owned(),
            (TimelineState::Failed, Some(seconds)) => format!("FAILED after {}", format_seconds(seconds)),
            (TimelineState::Failed, None) => "FAILED".to_owned(),
            (TimelineState::Done, seconds) => seconds.map(format_seconds).unwrap_or_default(),
        };
        let clock = entry.started.get(11..19).unwrap_or(&entry.started);
        [format!("  {}", replace_hidden(clock)), replace_hidden(&entry.name), state, replace_hidden(&entry.message)]
    });
    format::format_columns(&rows.collect::<Vec<_>>())
}

fn format_hardware(hardware: Option<&HardwareDetails>) -> String {
    let Some(hardware) = hardware else {
        return format_section("Hardware") + "  unknown: the machine has never registered; boot it over PXE once\n";
    };
    let registered = &hardware.registered_hardware;
    let mut text = format_section("Hardware");
    let cores = format_count(registered.cpu_cores as usize, "core", "cores");
    let processors = format!("{cores}, {}", hardware.architecture);
    for (name, value) in [
        ("machine", &hardware.system),
        ("firmware", &hardware.firmware),
        ("processors", &processors),
        ("memory", &format_bytes(registered.memory)),
        ("agent", &hardware.agent),
        ("registered", &format_time(&hardware.registered)),
    ] {
        if !value.is_empty() {
            text += &format_fact(name, value);
        }
    }
    for nic in &registered.nics {
        text += &format_fact("NIC", &format!("{}  {}", nic.name, nic.mac));
    }
    for disk in &hardware.disk_details {
        let size = format_bytes(disk.size_bytes);
        text += &format_fact("disk", &format!("{}  {size}  {}  {}", disk.device, disk.model, disk.serial));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn details() -> MachineDetails {
        let summary = json!({"id": "4c-1", "name": "storage-7", "phase": "failed", "image": null, "wanted": "debian-13",
            "layout": null, "installed": false, "locked": null, "order": null, "attempts": 3, "last_event": null,
            "last_seen": "2026-11-28T10:00:09.25Z", "outcome": null, "address": "10.0.0.7", "allocation": "a1",
            "failure": {"stage": "storage.format", "code": "DH-310", "message": "mkfs.ext4: no\u{1b}[2J\nspace left", "untouched": false,
                "time": "2026-11-28T10:00:08Z", "remedy": "boot the machine over PXE"}});
        let timeline = json!([
            {"name": "Registering", "started": "2026-11-28T10:00:00Z", "seconds": 1.0, "state": "done"},
            {"name": "storage.format", "started": "2026-11-28T10:00:01Z", "seconds": 7.0, "state": "failed"},
        ]);
        let hardware = json!({"registered": "2026-11-28T10:00:00Z", "system": "Dell R640 ABC", "firmware": "", "agent": "",
            "memory": 34_359_738_368u64, "cpu_cores": 16, "disks": [], "nics": [{"mac": "52:54:00:00:00:01", "name": "eno1"}],
            "disk_details": [{"device": "/dev/sda", "size_bytes": 480_103_981_056u64, "model": "SSD", "serial": "S1"}]});
        let all = json!({"summary": summary, "file": "machines/storage-7.yaml", "macs": ["52:54:00:00:00:01"],
            "timeline": timeline, "hardware": hardware, "rollout": {"id": 7, "state": "stopped",
                "member": {"machine": "4c-1", "name": "storage-7", "image": "debian-13", "state": "failed", "reason": "mkfs"}}});
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn failure_reason_is_printed_first() {
        let text = format_details(&details(), &[]);
        let expected = "storage-7  failed\n\nFailure\n  \
             stage          storage.format\n  \
             reason         mkfs.ext4: no [2J\n                 space left\n  \
             code           DH-310; `drophammer explain DH-310` prints causes and remedies\n  \
             next           boot the machine over PXE\n";
        assert!(text.starts_with(expected), "{text}");
        for words in [
            "\nMachine\n  id             4c-1\n",
            "  address        10.0.0.7\n",
            "  wanted         debian-13\n",
            "  rollout        rollout 7 (stopped): failed, mkfs\n",
            "\nTimeline (UTC)\n  10:00:00  Registering     1.0 s",
            "  10:00:01  storage.format  FAILED after 7.0 s",
            "  disk           /dev/sda  480 GB  SSD  S1\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn unregistered_machine_has_no_hardware_and_no_timeline() {
        let text = format_details(&MachineDetails::default(), &[]);
        assert!(text.contains("unknown: the machine has never registered"), "{text}");
        assert!(text.contains("file           none; add one with `drophammer machine add`"), "{text}");
        assert!(!text.contains("Timeline") && !text.contains("Failure"), "{text}");
    }
}
