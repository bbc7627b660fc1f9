//! Phase of a machine, which summarizes its state in a few words.

use crate::AppState;
use crate::operator_api::MachineSummary;
use model::install_report::{EventName, ProgressEvent};
use std::time::Duration;

/// Phase of a machine, as shown in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplayPhase {
    pub word: &'static str,
    pub kind: ObjectFate,
}

/// Category of a phase, which determines its color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFate {
    /// An operation is in progress.
    Busy,
    Good,
    /// The operator must act.
    Bad,
    Idle,
}

impl ObjectFate {
    /// Returns the CSS class of this category.
    pub fn css_class(self) -> &'static str {
        match self {
            ObjectFate::Busy => "busy",
            ObjectFate::Good => "good",
            ObjectFate::Bad => "bad",
            ObjectFate::Idle => "idle",
        }
    }
}

/// Phase of a machine whose file has an error and no version in force.
pub const FILE_ERROR: &str = "file error";

/// Returns the last event that this server has received from the machine, with its age. In contrast to the stored
/// event, this event may report progress. Returns `None` if another server that shares the database has stored a later
/// event.
pub fn find_live_event(app: &AppState, listed: &MachineSummary) -> Option<(ProgressEvent, Duration)> {
    let live = app.watch.live.last_event(&listed.id)?;
    let is_current = !app.state.is_shared() || listed.current_event().is_some_and(|stored| continues(stored, &live.0));
    is_current.then_some(live)
}

/// Returns whether an event is the stored event, or reports progress of the stage whose start was stored. Progress
/// itself is not stored.
fn continues(stored: &ProgressEvent, live: &ProgressEvent) -> bool {
    let identify = |event: &ProgressEvent| (event.event, event.stage.clone(), event.seconds.is_some());
    identify(stored) == identify(live)
}

/// All phases of machines, in the order of their lifecycle. The metrics contain a number for each of them.
pub const MACHINE_PHASES: [&str; 21] = [
    "new",
    "free",
    "not installed",
    "waits for BIOS settings",
    "PXE booting",
    "preparing",
    "registering",
    "installing",
    "installed",
    "adopted",
    "reinstall ordered",
    "reinstalling",
    "failed",
    "BIOS settings failed",
    "reinstall suspended",
    "abandoned",
    "waits for adoption",
    "needs confirmation",
    "not clean",
    "allocated elsewhere",
    FILE_ERROR,
];

/// Names that earlier versions used for phases, each with the current name. Bookmarks may still contain the former
/// names.
const FORMER_PHASE_NAMES: [(&str, &str); 4] = [
    ("given up", "abandoned"),
    ("waits for a decision of the operator", "waits for adoption"),
    ("reinstall begun", "reinstalling"),
    ("to be installed", "not installed"),
];

/// Returns the current name of a phase, given its current or a former name.
pub fn current_word(word: &str) -> &str {
    FORMER_PHASE_NAMES.iter().find(|(former, _)| *former == word).map_or(word, |(_, current)| current)
}

fn new_phase(word: &'static str, kind: ObjectFate) -> DisplayPhase {
    DisplayPhase { word, kind }
}

impl DisplayPhase {
    pub fn of_event(event: EventName) -> DisplayPhase {
        match event {
            EventName::PxeBooting => new_phase("PXE booting", ObjectFate::Busy),
            EventName::Preparing => new_phase("preparing", ObjectFate::Busy),
            EventName::Registering => new_phase("registering", ObjectFate::Busy),
            EventName::Waiting => new_phase("waiting", ObjectFate::Idle),
            EventName::Installing => new_phase("installing", ObjectFate::Busy),
            EventName::BootingNewKernel => new_phase("booting new kernel", ObjectFate::Busy),
            EventName::PhonedHome => new_phase("phoned home", ObjectFate::Good),
            EventName::Alive => new_phase("alive", ObjectFate::Good),
            EventName::Crashed => new_phase("failed", ObjectFate::Bad),
            EventName::PlannedReboot => new_phase("planned reboot", ObjectFate::Busy),
        }
    }

    /// Returns the current phase of a machine. Events that precede the machine's last report are ignored.
    pub fn current(app: &AppState, listed: &MachineSummary) -> DisplayPhase {
        let live = find_live_event(app, listed).map(|(event, _)| event);
        DisplayPhase::of_machine(listed, live.as_ref().or(listed.current_event()))
    }

    /// Returns the phase of a machine, based on the records in the database and the machine's last event.
    pub fn of_machine(listed: &MachineSummary, event: Option<&ProgressEvent>) -> DisplayPhase {
        if listed.new {
            return new_phase("new", ObjectFate::Idle);
        }
        if listed.unusable {
            return new_phase(FILE_ERROR, ObjectFate::Bad);
        }
        if listed.elsewhere {
            return new_phase("allocated elsewhere", ObjectFate::Bad);
        }
        let has_work = listed.allocation.is_some() && (!listed.installed || listed.order.is_some());
        if listed.order.as_ref().is_some_and(|order| order.is_suspended()) {
            return new_phase("reinstall suspended", ObjectFate::Bad);
        }
        if listed.order.as_ref().is_some_and(|order| order.given_up) {
            return new_phase("abandoned", ObjectFate::Bad);
        }
        if listed.needs_confirmation && (has_work || listed.moving.is_some()) {
            return new_phase("needs confirmation", ObjectFate::Bad);
        }
        if let Some(progress) = listed.out_of_band.as_ref().filter(|_| has_work) {
            return match progress.failed {
                true => new_phase("BIOS settings failed", ObjectFate::Bad),
                false => new_phase("waits for BIOS settings", ObjectFate::Busy),
            };
        }
        if listed.waits.is_some() {
            return new_phase("waits for adoption", ObjectFate::Bad);
        }
        let has_failed = has_work && listed.failure.is_some();
        if listed.not_clean && listed.order.is_none() && !has_failed {
            return new_phase("not clean", ObjectFate::Bad);
        }
        let says = event.map(|event| event.event).filter(|event| {
            matches!(
                event,
                EventName::PxeBooting
                    | EventName::Preparing
                    | EventName::Registering
                    | EventName::Installing
                    | EventName::Crashed
            )
        });
        match (says.filter(|_| has_work), &listed.order) {
            (Some(event), _) => DisplayPhase::of_event(event),
            (None, Some(order)) if order.started => new_phase("reinstalling", ObjectFate::Busy),
            (None, Some(_)) => new_phase("reinstall ordered", ObjectFate::Idle),
            (None, None) if listed.installed => new_phase("installed", ObjectFate::Good),
            (None, None) if listed.adopted => new_phase("adopted", ObjectFate::Good),
            (None, None) if has_failed => new_phase("failed", ObjectFate::Bad),
            (None, None) if listed.allocation.is_some() => new_phase("not installed", ObjectFate::Idle),
            (None, None) => new_phase("free", ObjectFate::Idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration_requests::MigrationState;
    use crate::migration_requests::machine_migration_view::MachineMigration;
    use crate::operator_api::{ReinstallOrder, WaitingMarker};
    use crate::out_of_band::progress::OutOfBandProgress;
    use model::install_report::TransferProgress;
    use model::machine_migration::MigrationSide;

    #[test]
    fn former_phase_names_in_bookmarks_still_work() {
        for (former, current) in [
            ("given up", "abandoned"),
            ("waits for a decision of the operator", "waits for adoption"),
            ("reinstall begun", "reinstalling"),
            ("to be installed", "not installed"),
            ("installed", "installed"),
            ("unknown", "unknown"),
            ("", ""),
        ] {
            assert_eq!(current_word(former), current);
        }
    }

    #[test]
    fn displayed_phase_is_the_most_important_state() {
        let free = MachineSummary::default();
        let new = MachineSummary { allocation: Some("a".to_owned()), ..MachineSummary::default() };
        let installed = MachineSummary { installed: true, ..new.clone() };
        let ordered = |started, given_up| {
            let text = serde_json::json!({"id": "o", "image": "i", "created": "", "attempts": 1, "begun": started,
                "without_marker": false, "given_up": given_up});
            MachineSummary { order: Some(serde_json::from_value::<ReinstallOrder>(text).unwrap()), ..installed.clone() }
        };
        let unconfirmed = |listed: &MachineSummary| MachineSummary { needs_confirmation: true, ..listed.clone() };
        let waits = MachineSummary { waits: Some(WaitingMarker::default()), ..new.clone() };
        let remote = |failed| MachineSummary {
            out_of_band: Some(OutOfBandProgress { failed, ..OutOfBandProgress::default() }),
            ..new.clone()
        };
        let adopted = MachineSummary { adopted: true, ..new.clone() };
        let migration = MachineMigration {
            id: String::new(),
            part: MigrationSide::Target,
            other: String::new(),
            state: MigrationState::Booting,
            certificate: None,
        };
        let migrating = MachineSummary { moving: Some(migration), ..installed.clone() };
        let failed = |listed: &MachineSummary| MachineSummary { failure: Some(Default::default()), ..listed.clone() };
        let not_clean = |listed: &MachineSummary| MachineSummary { not_clean: true, ..listed.clone() };
        let event =
            |event| Some(ProgressEvent { event, message: String::new(), stage: None, seconds: None, progress: None });
        use EventName::{Crashed, Installing, Waiting};
        for (listed, event, word) in [
            (&free, None, "free"),
            (&free, event(Installing), "free"),
            (&new, None, "not installed"),
            (&new, event(Installing), "installing"),
            (&new, event(Waiting), "not installed"),
            (&new, event(Crashed), "failed"),
            (&failed(&new), None, "failed"),
            (&failed(&new), event(Installing), "installing"),
            (&failed(&installed), None, "installed"),
            (&not_clean(&new), None, "not clean"),
            (&not_clean(&failed(&new)), None, "failed"),
            (&not_clean(&failed(&free)), None, "not clean"),
            (&failed(&ordered(false, false)), None, "reinstall ordered"),
            (&MachineSummary { new: true, ..free.clone() }, event(Installing), "new"),
            (&installed, event(Installing), "installed"),
            (&ordered(false, false), None, "reinstall ordered"),
            (&ordered(true, false), None, "reinstalling"),
            (&ordered(true, false), event(Installing), "installing"),
            (&ordered(true, true), event(Installing), "abandoned"),
            (&ordered(false, true), event(Installing), "reinstall suspended"),
            (&MachineSummary { unusable: true, ..free.clone() }, event(Installing), "file error"),
            (&MachineSummary { elsewhere: true, ..new.clone() }, event(Installing), "allocated elsewhere"),
            (&waits, event(Installing), "waits for adoption"),
            (&adopted, None, "adopted"),
            (&remote(false), event(Waiting), "waits for BIOS settings"),
            (&remote(true), None, "BIOS settings failed"),
            (&unconfirmed(&installed), None, "installed"),
            (&unconfirmed(&migrating), None, "needs confirmation"),
            (&unconfirmed(&new), event(Waiting), "needs confirmation"),
            (&unconfirmed(&ordered(false, false)), None, "needs confirmation"),
            (&unconfirmed(&ordered(true, true)), None, "abandoned"),
        ] {
            assert_eq!(DisplayPhase::of_machine(listed, event.as_ref()).word, word);
            assert!(MACHINE_PHASES.contains(&word), "{word}");
        }
        // The event that follows the report of the failure was lost.
        let lost = MachineSummary { last_event: event(Installing), ended: true, ..failed(&new) };
        assert_eq!(DisplayPhase::of_machine(&lost, lost.current_event()).word, "failed");
    }

    #[test]
    fn only_progress_of_the_stored_stage_continues_the_stored_event() {
        let event = |event, stage: &str, progress: Option<u64>| ProgressEvent {
            event,
            message: String::new(),
            stage: Some(stage.to_owned()),
            seconds: None,
            progress: progress.map(|bytes| TransferProgress { bytes, ..TransferProgress::default() }),
        };
        use EventName::{Crashed, Installing};
        let stored = event(Installing, "image.burn", None);
        for (live, expected) in [
            (stored.clone(), true),
            (event(Installing, "image.burn", Some(7)), true),
            (event(Installing, "storage.wipe", Some(7)), false),
            (event(Crashed, "image.burn", None), false),
            (ProgressEvent { seconds: Some(1.0), ..stored.clone() }, false),
        ] {
            assert_eq!(continues(&stored, &live), expected, "{live:?}");
        }
    }
}
