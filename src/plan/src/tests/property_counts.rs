//! Counter of the cases in which a property test has checked its property, for example because a plan was accepted. A
//! property test must not pass only because it had too few of these cases.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub(super) struct PropertyCounts {
    property: &'static str,
    cases: Cell<usize>,
    judged: RefCell<BTreeMap<&'static str, usize>>,
}

impl PropertyCounts {
    pub(crate) fn new(property: &'static str) -> PropertyCounts {
        PropertyCounts { property, cases: Cell::default(), judged: RefCell::default() }
    }

    /// Counts one case, regardless of its result.
    pub(crate) fn case(&self) {
        self.cases.set(self.cases.get() + 1);
    }

    /// Counts this case under `what` if it was checked.
    pub(crate) fn note(&self, what: &'static str, is_judged: bool) {
        *self.judged.borrow_mut().entry(what).or_default() += usize::from(is_judged);
    }

    /// Prints all counts, and asserts for each `what` that at least the given percentage of all cases was checked.
    /// Because the cases are random, the percentages are about a third of the usual values, and 0 for very rare
    /// events.
    ///
    /// # Panics
    /// Panics if too few cases were checked, or if a count has no percentage.
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
