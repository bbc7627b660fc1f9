//! Record of the source machines that have checked the target's certificate. A source receives the certificate in a response, and reports
//! any problem with it before it calls again. Its next call therefore shows that it has checked the certificate, and is alive. Nothing is
//! stored on disk, since it calls every few seconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after its last call for which the source counts as alive. It calls every three seconds.
const RECENT: Duration = Duration::from_secs(30);

/// Last certificate that each source machine received, by machine.
#[derive(Default)]
pub struct Looks(Mutex<HashMap<String, Look>>);

struct Look {
    certificate: String,
    asked_again: bool,
    at: Instant,
}

impl Looks {
    /// Notes that the source machine has called, and receives this certificate, or none.
    pub fn told(&self, machine: &str, certificate: Option<&str>) {
        let mut looks = self.looks();
        let Some(certificate) = certificate else {
            looks.remove(machine);
            return;
        };
        let asked_again = looks.get(machine).is_some_and(|look| look.certificate == certificate);
        let look = Look { certificate: certificate.to_owned(), asked_again, at: Instant::now() };
        looks.insert(machine.to_owned(), look);
    }

    /// Returns whether the machine has checked this certificate, and is alive.
    pub fn has_looked(&self, machine: &str, certificate: &str) -> bool {
        let is_it = |look: &Look| look.certificate == certificate && look.asked_again && look.at.elapsed() < RECENT;
        self.looks().get(machine).is_some_and(is_it)
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<String, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_looked_when_it_has_asked_again_since_it_was_told() {
        let looks = Looks::default();
        assert!(!looks.has_looked("a", "one"));
        looks.told("a", Some("one"));
        assert!(!looks.has_looked("a", "one"), "it may be about to say that it does not take it");
        looks.told("a", Some("one"));
        assert!(looks.has_looked("a", "one") && !looks.has_looked("a", "two") && !looks.has_looked("b", "one"));
        // The other machine has booted again.
        looks.told("a", Some("two"));
        assert!(!looks.has_looked("a", "one") && !looks.has_looked("a", "two"));
        looks.told("a", Some("two"));
        assert!(looks.has_looked("a", "two"));
        looks.told("a", None);
        looks.told("a", Some("two"));
        assert!(!looks.has_looked("a", "two"));
        // It is silent since.
        looks.told("a", Some("two"));
        looks.looks().get_mut("a").unwrap().at = Instant::now().checked_sub(RECENT).unwrap();
        assert!(!looks.has_looked("a", "two"));
    }
}
