//! A property judges only the cases in which there is something to judge, such as a plan. It counts them here, so that it cannot
//! pass because there were too few.

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

    /// Counts one more case, whatever comes of it.
    pub(crate) fn case(&self) {
        self.cases.set(self.cases.get() + 1);
    }

    /// Counts this case under `what` if `is_judged`.
    pub(crate) fn note(&self, what: &'static str, is_judged: bool) {
        *self.judged.borrow_mut().entry(what).or_default() += usize::from(is_judged);
    }

    /// Prints all counts. Each `what` must have been judged in at least so many percent of all cases. The shares are about a third
    /// of what is usual, since the cases are drawn at random; 0 is for what is too rare for one.
    ///
    /// # Panics
    /// Too few cases were judged, or something was counted that has no share.
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
