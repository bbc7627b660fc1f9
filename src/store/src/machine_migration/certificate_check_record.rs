//! Record of the source machines that have checked the target's certificate. A source receives the certificate in a
//! response. The source checks the certificate, and reports any problem, before it sends its next request. That request
//! therefore proves that the source has checked the certificate, and is still running. The record is kept in memory
//! only, because a source sends a request every few seconds.

use common::sync::lock_mutex;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Duration for which the source is considered alive after its last request. A source sends a request every three
/// seconds.
const RECENT: Duration = Duration::from_secs(30);

/// For each source machine, by machine id: the certificate that was sent last, and whether the machine has sent another
/// request since then.
#[derive(Default)]
pub struct CertificateChecks(Mutex<HashMap<String, CertificateCheck>>);

struct CertificateCheck {
    certificate: String,
    asked_again: bool,
    at: Instant,
}

impl CertificateChecks {
    /// Records a request of the source machine, and the certificate in the response. If the response contains no
    /// certificate, deletes the record of the machine.
    pub fn record_call(&self, machine: &str, certificate: Option<&str>) {
        let mut looks = lock_mutex(&self.0);
        let Some(certificate) = certificate else {
            looks.remove(machine);
            return;
        };
        let asked_again = looks.get(machine).is_some_and(|look| look.certificate == certificate);
        let look = CertificateCheck { certificate: certificate.to_owned(), asked_again, at: Instant::now() };
        looks.insert(machine.to_owned(), look);
    }

    /// Returns whether the machine has checked this certificate and is alive.
    pub fn has_checked(&self, machine: &str, certificate: &str) -> bool {
        let is_it =
            |look: &CertificateCheck| look.certificate == certificate && look.asked_again && look.at.elapsed() < RECENT;
        lock_mutex(&self.0).get(machine).is_some_and(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_is_checked_after_a_second_call() {
        let looks = CertificateChecks::default();
        assert!(!looks.has_checked("a", "one"));
        looks.record_call("a", Some("one"));
        assert!(!looks.has_checked("a", "one"), "the machine may be about to reject the certificate");
        looks.record_call("a", Some("one"));
        assert!(looks.has_checked("a", "one") && !looks.has_checked("a", "two") && !looks.has_checked("b", "one"));
        // The target has booted again, with another certificate.
        looks.record_call("a", Some("two"));
        assert!(!looks.has_checked("a", "one") && !looks.has_checked("a", "two"));
        looks.record_call("a", Some("two"));
        assert!(looks.has_checked("a", "two"));
        looks.record_call("a", None);
        looks.record_call("a", Some("two"));
        assert!(!looks.has_checked("a", "two"));
        // The last request of the source is too old.
        looks.record_call("a", Some("two"));
        lock_mutex(&looks.0).get_mut("a").unwrap().at = Instant::now().checked_sub(RECENT).unwrap();
        assert!(!looks.has_checked("a", "two"));
    }
}
