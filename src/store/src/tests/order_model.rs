//! Model of the expected state of an order after each step, computed without the database.

use super::*;

/// Event of an installed machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Order,
    Boot,
    Begin,
    Success,
    Untouched,
    Failed,
    /// A failure in the verification of the preserved disks.
    Changed,
    /// A report of success for the previous order, or for an order that never existed.
    Stale,
    StaleFailure,
    /// A report of success without the id of an order.
    Nameless,
    Cancel,
}

pub(super) const STEPS: [Step; 11] = [
    Step::Order,
    Step::Boot,
    Step::Begin,
    Step::Success,
    Step::Untouched,
    Step::Failed,
    Step::Changed,
    Step::Stale,
    Step::StaleFailure,
    Step::Nameless,
    Step::Cancel,
];

/// Expected state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Installed image.
    pub(super) image: String,
    pub(super) open: Option<OpenOrder>,
    pub(super) orders: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenOrder {
    pub(super) image: String,
    pub(super) attempts: u32,
    pub(super) started: bool,
    pub(super) given_up: bool,
    /// True if the ramdisk was served once more after the last attempt.
    pub(super) is_final: bool,
    /// True if an attempt at this order has started.
    pub(super) seen: bool,
}

impl Expected {
    pub(super) fn after(&self, step: Step) -> Expected {
        let mut next = self.clone();
        let Some(open) = self.open.clone() else {
            if step == Step::Order {
                next.orders += 1;
                next.open = Some(OpenOrder::new(next.orders, false));
            }
            return next;
        };
        let OpenOrder { attempts, started, given_up, is_final, seen, .. } = open;
        next.open = match step {
            Step::Order if started && !given_up => self.open.clone(),
            Step::Order => {
                next.orders += 1;
                Some(OpenOrder::new(next.orders, started))
            }
            Step::Boot if attempts < 3 && !given_up => Some(OpenOrder { attempts: attempts + 1, ..open }),
            // The last attempt may have succeeded, so it can report once more before the order is abandoned.
            Step::Boot if started && !given_up && !is_final => Some(OpenOrder { is_final: true, ..open }),
            // An order that has not started is suspended, and remains.
            Step::Boot => Some(OpenOrder { given_up: true, ..open }),
            Step::Begin if given_up && !started => self.open.clone(),
            Step::Begin => Some(OpenOrder { started: true, seen: true, ..open }),
            Step::Success if seen => {
                next.image = open.image;
                None
            }
            // No attempt at this order has started, so the report is refused.
            Step::Success => self.open.clone(),
            // The attempt has written nothing, even if it has announced its start.
            Step::Untouched => None,
            Step::Failed => Some(OpenOrder { started: true, given_up: given_up || attempts >= 3, ..open }),
            // The order is abandoned, however many attempts remain.
            Step::Changed => Some(OpenOrder { started: true, given_up: true, ..open }),
            Step::Cancel if !started => None,
            Step::Cancel | Step::Stale | Step::StaleFailure | Step::Nameless => self.open.clone(),
        };
        next
    }

    pub(super) fn of(install_state: &InstallState, orders: u32) -> Expected {
        let open = install_state.order.clone().map(|order| OpenOrder {
            image: order.image,
            attempts: order.attempts,
            started: order.started,
            given_up: order.given_up,
            is_final: order.is_final_boot,
            seen: order.attempt.is_some(),
        });
        Expected { image: install_state.image.clone().unwrap(), open, orders }
    }
}

impl OpenOrder {
    fn new(number: u32, started: bool) -> OpenOrder {
        OpenOrder { image: format!("i{number}"), attempts: 0, started, given_up: false, is_final: false, seen: false }
    }
}

/// Simulated machine, with the reinstall orders that were placed for it so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Actor {
    pub(super) machine: String,
    /// Id of the last order that the agent received, even if the order is no longer open.
    pub(super) seen: String,
    pub(super) stale: String,
    pub(super) orders: u32,
}

impl Actor {
    pub(super) fn act(&mut self, state: &ServerState, step: Step) {
        let Actor { machine, .. } = self;
        let told = |order: &str, success, untouched| InstallReport { untouched, ..report(success, order) };
        let say = |report: InstallReport| drop(wait(state.handle_report(machine, allocation(machine), BOOT, &report)));
        match step {
            Step::Order => {
                let image = format!("i{}", self.orders + 1);
                if let OrderOutcome::Placed { order, .. } =
                    wait(state.place_order(machine, allocation(machine), &image, ReinstallOverrides::default(), None))
                {
                    self.orders += 1;
                    self.stale = std::mem::replace(&mut self.seen, order.id);
                }
            }
            Step::Boot => drop(boot_and_register(state, machine)),
            Step::Begin => drop(wait(state.start_order(machine, allocation(machine), &self.seen, start()))),
            Step::Success => say(told(&self.seen, true, false)),
            Step::Untouched => say(told(&self.seen, false, true)),
            Step::Failed => say(told(&self.seen, false, false)),
            Step::Changed => {
                let step = Some("storage.prove_kept".to_owned());
                say(InstallReport { step, ..told(&self.seen, false, false) });
            }
            Step::Stale => say(told(&format!("{}?", self.stale), true, false)),
            Step::StaleFailure => say(told(&self.stale, false, true)),
            Step::Nameless => say(told("", true, false)),
            Step::Cancel => drop(wait(state.cancel_order(machine, allocation(machine)))),
        }
    }
}
