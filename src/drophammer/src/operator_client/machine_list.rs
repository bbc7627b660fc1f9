//! Table of the machines, as `drophammer machine list` prints it.

use ::server::operator::{MachineSummary, ReinstallOrder, WaitingMarker};
use ::server::out_of_band::progress::OutOfBandProgress;
use common::format;

pub(super) fn format_machines(all: &[MachineSummary]) -> String {
    let mut rows = vec![
        ["name", "id", "size", "image", "wanted", "reinstall", "last seen", "last event", "last reinstall"]
            .map(str::to_owned),
    ];
    let or_none = |text: Option<&str>| text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    rows.extend(all.iter().map(|machine| {
        let event = machine.last_event.as_ref().map(|event| match &event.stage {
            Some(stage) => format!("{} {stage}", event.event),
            None => event.event.to_string(),
        });
        [
            or_none(Some(&machine.name)),
            machine.id.clone(),
            or_none(machine.size.as_deref()),
            installed_image(machine),
            or_none(machine.wanted.as_deref()),
            or_none(Some(&describe_order(machine, all))),
            or_none(machine.last_seen.as_deref()),
            or_none(event.as_deref()),
            or_none(describe_result(machine).as_deref()),
        ]
    }));
    format::format_columns(&rows)
}

pub(super) fn describe_order(machine: &MachineSummary, all: &[MachineSummary]) -> String {
    if let Some(moving) = &machine.moving {
        return moving.describe(machine_name(all, &moving.other));
    }
    if machine.new {
        return "new".to_owned();
    }
    match (&machine.order, &machine.locked) {
        (Some(order), _) if order.given_up => format!("{} abandoned", order.image),
        _ if machine.out_of_band.is_some() => {
            machine.out_of_band.as_ref().map(OutOfBandProgress::describe).unwrap_or_default()
        }
        (order, _) if machine.needs_confirmation => describe_unconfirmed(order.as_ref(), machine.on_disk.as_ref()),
        (Some(order), _) => {
            let begun = if order.begun { ", started" } else { "" };
            let applied = if order.apply_allocation { ", applies the file" } else { "" };
            format!("{} attempt {} of {}{begun}{applied}", order.image, order.attempts, machine.attempts)
        }
        (None, Some(_)) => "locked".to_owned(),
        (None, None) if machine.not_clean => "not clean: boot the machine over PXE".to_owned(),
        (None, None) if machine.waits.is_some() => "waits with a marker".to_owned(),
        (None, None) if machine.allocation.is_some() && !machine.installed => "not installed".to_owned(),
        (None, None) => String::new(),
    }
}

/// Describes a machine that needs confirmation: its reinstall order, and the unrecorded installation that the machine
/// has found on its disks.
fn describe_unconfirmed(order: Option<&ReinstallOrder>, on_disk: Option<&WaitingMarker>) -> String {
    let order = order.map(|order| format!("{} ", order.image)).unwrap_or_default();
    let on_disk =
        on_disk.map(|found| format!(", its disks have {}", format::replace_hidden(&found.image))).unwrap_or_default();
    format!("{order}needs confirmation{on_disk}")
}

/// Returns the name of the machine with this id, or the id if the machine has no name.
pub(super) fn machine_name<'a>(all: &'a [MachineSummary], id: &'a str) -> &'a str {
    let named = all.iter().find(|machine| machine.id == id && !machine.name.is_empty());
    named.map_or(id, |machine| machine.name.as_str())
}

/// Returns the result of the last reinstall or, if no reinstall has ended, the failure of the first installation.
fn describe_result(machine: &MachineSummary) -> Option<String> {
    let failure = machine.failure.as_ref().map(|failure| &failure.attempt);
    let failed = || failure.map(|failure| format!("FAILED: {}", shorten(&failure.to_string())));
    machine.outcome.as_ref().map(describe_outcome).or_else(failed)
}

/// Returns the image and the result of the last reinstall, and the first 60 characters of the message about this
/// result. The server's log contains the whole message.
fn describe_outcome(outcome: &::server::operator::ReinstallOutcome) -> String {
    let how = if outcome.success { "done" } else { "FAILED" };
    format!("{how} {}: {}", outcome.image, shorten(&outcome.message))
}

/// Returns the first 60 characters of the first line.
fn shorten(message: &str) -> String {
    let start: String = message.lines().next().unwrap_or_default().chars().take(60).collect();
    format::replace_hidden(&start)
}

/// Returns the installed image. The image is marked as `(claimed)` if it is known only from an install marker that the
/// operator has adopted.
fn installed_image(machine: &MachineSummary) -> String {
    let claim = if machine.claimed { " (claimed)" } else { "" };
    format!("{}{claim}", machine.image.as_deref().unwrap_or("-"))
}
