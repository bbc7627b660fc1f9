//! Limit on the number of steps of a computation. Steps are counted instead of time, so that a computation that exceeds
//! the limit is aborted at the same step on every machine.

use std::cell::Cell;

/// Maximum number of steps. Each disk in a result counts as a step, and so does each compared pair of devices. A
/// machine with 800 disks below each of 300 volumes needs about 2 million steps.
const MAXIMUM: usize = 4_000_000;

/// Counter of steps with a maximum. Results are incomplete and must not be used once the maximum was exceeded.
#[derive(Debug)]
pub struct StepBudget {
    taken: Cell<usize>,
    maximum: usize,
}

impl StepBudget {
    pub fn bounded() -> StepBudget {
        StepBudget { taken: Cell::new(0), maximum: MAXIMUM }
    }

    pub(crate) fn unlimited() -> StepBudget {
        StepBudget { taken: Cell::new(0), maximum: usize::MAX }
    }

    /// Adds steps to the counter. Returns whether the number of steps is still within the maximum.
    pub(crate) fn take_steps(&self, count: usize) -> bool {
        self.taken.set(self.taken.get().saturating_add(count));
        !self.is_exhausted()
    }

    pub fn is_exhausted(&self) -> bool {
        self.taken.get() > self.maximum
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_budget_remains_exhausted() {
        let steps = StepBudget::bounded();
        assert!(steps.take_steps(MAXIMUM) && !steps.is_exhausted());
        assert!(!steps.take_steps(1) && !steps.take_steps(0) && steps.is_exhausted());
        assert!(!steps.take_steps(usize::MAX));
        assert_eq!(steps.taken(), usize::MAX);
        assert!(StepBudget::unlimited().take_steps(usize::MAX));
    }
}
