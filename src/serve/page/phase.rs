//! State of a machine in one word. Pure.

use crate::facts::{Event, EventName};
use crate::serve::operator::Listed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    pub word: &'static str,
    pub kind: Kind,
}

/// Presentation of a phase, in addition to its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An operation is in progress.
    Busy,
    Good,
    /// The operator must act.
    Bad,
    Idle,
}

impl Kind {
    /// Returns its class in the style sheet.
    pub fn class(self) -> &'static str {
        match self {
            Kind::Busy => "busy",
            Kind::Good => "good",
            Kind::Bad => "bad",
            Kind::Idle => "idle",
        }
    }
}

fn phase(word: &'static str, kind: Kind) -> Phase {
    Phase { word, kind }
}

impl Phase {
    pub fn of_event(event: EventName) -> Phase {
        match event {
            EventName::PxeBooting => phase("PXE booting", Kind::Busy),
            EventName::Preparing => phase("preparing", Kind::Busy),
            EventName::Registering => phase("registering", Kind::Busy),
            EventName::Waiting => phase("waiting", Kind::Idle),
            EventName::Installing => phase("installing", Kind::Busy),
            EventName::BootingNewKernel => phase("booting new kernel", Kind::Busy),
            EventName::PhonedHome => phase("phoned home", Kind::Good),
            EventName::Alive => phase("alive", Kind::Good),
            EventName::Crashed => phase("failed", Kind::Bad),
            EventName::PlannedReboot => phase("planned reboot", Kind::Busy),
        }
    }

    /// Returns the phase, given the database's records and the machine's last event.
    pub fn of(listed: &Listed, event: Option<&Event>) -> Phase {
        let has_work = listed.allocation.is_some() && (!listed.installed || listed.order.is_some());
        if listed.order.as_ref().is_some_and(|order| order.given_up) {
            return phase("abandoned", Kind::Bad);
        }
        if listed.needs_confirmation && has_work {
            return phase("needs confirmation", Kind::Bad);
        }
        if listed.waits.is_some() {
            return phase("waits for adoption", Kind::Bad);
        }
        if listed.not_clean && listed.order.is_none() {
            return phase("not clean", Kind::Bad);
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
            (Some(event), _) => Phase::of_event(event),
            (None, Some(order)) if order.begun => phase("reinstalling", Kind::Busy),
            (None, Some(_)) => phase("reinstall ordered", Kind::Idle),
            (None, None) if listed.installed => phase("installed", Kind::Good),
            (None, None) if listed.adopted => phase("adopted", Kind::Good),
            (None, None) if listed.allocation.is_some() => phase("not installed", Kind::Idle),
            (None, None) => phase("free", Kind::Idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::operator::{Order, Waits};

    #[test]
    fn the_word_is_that_of_what_matters_most() {
        let free = Listed::default();
        let new = Listed { allocation: Some("a".to_owned()), ..Listed::default() };
        let installed = Listed { installed: true, ..new.clone() };
        let ordered = |begun, given_up| {
            let text = serde_json::json!({"id": "o", "image": "i", "created": "", "attempts": 1, "begun": begun,
                "without_marker": false, "given_up": given_up});
            Listed { order: Some(serde_json::from_value::<Order>(text).unwrap()), ..installed.clone() }
        };
        let unconfirmed = |listed: &Listed| Listed { needs_confirmation: true, ..listed.clone() };
        let waits = Listed { waits: Some(Waits::default()), ..new.clone() };
        let adopted = Listed { adopted: true, ..new.clone() };
        let event = |event| Some(Event { event, message: String::new(), stage: None, seconds: None, progress: None });
        use EventName::{Crashed, Installing, Waiting};
        for (listed, event, word) in [
            (&free, None, "free"),
            (&free, event(Installing), "free"),
            (&new, None, "not installed"),
            (&new, event(Installing), "installing"),
            (&new, event(Waiting), "not installed"),
            (&new, event(Crashed), "failed"),
            (&installed, event(Installing), "installed"),
            (&ordered(false, false), None, "reinstall ordered"),
            (&ordered(true, false), None, "reinstalling"),
            (&ordered(true, false), event(Installing), "installing"),
            (&ordered(true, true), event(Installing), "abandoned"),
            (&waits, event(Installing), "waits for adoption"),
            (&adopted, None, "adopted"),
            (&unconfirmed(&installed), None, "installed"),
            (&unconfirmed(&new), event(Waiting), "needs confirmation"),
            (&unconfirmed(&ordered(false, false)), None, "needs confirmation"),
            (&unconfirmed(&ordered(true, true)), None, "abandoned"),
        ] {
            assert_eq!(Phase::of(listed, event.as_ref()).word, word);
        }
    }
}
