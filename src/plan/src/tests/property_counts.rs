//! Counts the cases in which a property test has checked something, for example because a plan was accepted. A property
//! must not pass because there were too few such cases.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub(super) struct Judged {
    property: &'static str,
    cases: Cell<usize>,
    judged: RefCell<BTreeMap<&'static str, usize>>,
}

impl Judged {
    pub(crate) fn new(property: &'static str) -> Judged {
        Judged { property, cases: Cell::default(), judged: RefCell::default() }
    }

    /// Counts one case, whatever its result.
    pub(crate) fn case(&self) {
        self.cases.set(self.cases.get() + 1);
    }

    /// Counts this case under `what` if it was checked.
    pub(crate) fn note(&self, what: &'static str, is_judged: bool) {
        *self.judged.borrow_mut().entry(what).or_default() += usize::from(is_judged);
    }

    /// Prints all counts. At least the given percentage of all cases must have been checked for each `what`. The shares
    /// are about a third of the usual values, because the cases are random; 0 is for events that are too rare for a
    /// limit.
    ///
    /// # Panics
    /// Panics if too few cases were checked, or if a count has no share.
    pub(crate) fn assert_shares(&self, shares: &[(&'static str, usize)]) {
        let (cases, judged) = (self.cases.get(), self.judged.borrow());
        for (what, count) in judged.iter() {
            println!("{} ({what}): judged {count} of {cases}", self.property);
        }
        assert!(judged.keys().all(|what| shares.iter().any(|(shared, _)| shared == what)), "{judged:?}");
        for (what, percent) in shares {
            let count = judged.get(what).copied().unwrap_or_default();
            assert!(
                count * 100 >= cases * percent,
                "{} ({what}): judged {count} of {cases}, not {percent} percent",
                self.property
            );
        }
    }
}
