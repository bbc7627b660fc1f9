//! Has the machine that is moved looked at the certificate of the one that receives? It does so when it is told of it, and says what is
//! wrong before it asks again. So it has once it has asked again, and it lives. Nothing of that outlives the server: it is asked every few seconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// It asks every three seconds. One that has not for so long is not taken for one that lives.
const RECENT: Duration = Duration::from_secs(30);

/// By the machine that is moved.
#[derive(Default)]
pub struct Looks(Mutex<HashMap<String, Look>>);

struct Look {
    certificate: String,
    asked_again: bool,
    at: Instant,
}

impl Looks {
    /// The machine that is moved has asked, and is told of this certificate, or of none.
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
