//! Validity of the server's certificates. Clients reject an expired certificate. This module parses the certificates
//! itself, because rustls does not expose their validity.

use rustls::pki_types::CertificateDer;
use std::path::Path;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, PrimitiveDateTime};

/// Remaining validity below which a certificate is reported as a problem, so that the operator renews it.
const RENEWAL: Duration = Duration::days(30);

/// DER tags (X.690) of the parsed values.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

const TIME: &[BorrowedFormatItem] = format_description!("[year][month][day][hour][minute][second]Z");

/// Validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    pub not_before: OffsetDateTime,
    pub not_after: OffsetDateTime,
}

/// Problem with the validity of a certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct ValidityProblem {
    /// True if clients reject the certificate now.
    pub is_rejected: bool,
    pub message: String,
}

impl CertificateValidity {
    /// Reads the validity of an X.509 certificate (RFC 5280, 4.1). Returns `None` if the certificate is malformed.
    pub fn parse(certificate: &CertificateDer) -> Option<CertificateValidity> {
        let (certificate, _) = read_value(certificate, SEQUENCE)?;
        let (fields, _) = read_value(certificate, SEQUENCE)?;
        let fields = read_value(fields, VERSION).map_or(fields, |(_, rest)| rest);
        // Skips serial number, signature algorithm and issuer.
        let fields = (0..3).try_fold(fields, |fields, _| Some(read_any(fields)?.2))?;
        let (validity, _) = read_value(fields, SEQUENCE)?;
        let (not_before, rest) = read_time(validity)?;
        Some(CertificateValidity { not_before, not_after: read_time(rest)?.0 })
    }

    /// Returns the problem of the certificate, if it is invalid now or will expire within 30 days.
    fn find_problem(self, now: OffsetDateTime, what: &str) -> Option<ValidityProblem> {
        let (from, until) = (self.not_before.date(), self.not_after.date());
        let renew = "renew the certificate, and restart the server";
        let (is_rejected, message) = match self.not_after - now {
            _ if now < self.not_before => {
                (true, format!("{what} is not valid before {from}: clients reject it; check the clock of this host"))
            }
            left if left < Duration::ZERO => (true, format!("{what} expired on {until}: clients reject it; {renew}")),
            left if left < RENEWAL => {
                (false, format!("{what} expires on {until}, in {days} days: {renew}", days = left.whole_days()))
            }
            _ => return None,
        };
        Some(ValidityProblem { is_rejected, message })
    }
}

/// Returns the problems of all certificates of a chain, which was read from `file`.
pub fn find_validity_problems(file: &Path, chain: &[CertificateDer], now: OffsetDateTime) -> Vec<ValidityProblem> {
    let each = chain.iter().enumerate().filter_map(|(index, certificate)| {
        let what = match index {
            0 => format!("{}: the certificate", file.display()),
            _ => format!("{file}: certificate {number} of the chain", file = file.display(), number = index + 1),
        };
        CertificateValidity::parse(certificate)?.find_problem(now, &what)
    });
    each.collect()
}

/// Splits off the first DER value. Returns its tag, its contents, and the remaining bytes.
fn read_any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

fn read_value(bytes: &[u8], expected: u8) -> Option<(&[u8], &[u8])> {
    let (tag, contents, rest) = read_any(bytes)?;
    (tag == expected).then_some((contents, rest))
}

/// Reads a time. Two-digit years below 50 belong to this century (RFC 5280, 4.1.2.5.1).
fn read_time(bytes: &[u8]) -> Option<(OffsetDateTime, &[u8])> {
    let (tag, contents, rest) = read_any(bytes)?;
    let text = std::str::from_utf8(contents).ok()?;
    let text = match tag {
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    Some((PrimitiveDateTime::parse(&text, TIME).ok()?.assume_utc(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use time::macros::datetime;

    fn certificate(from: OffsetDateTime, until: OffsetDateTime) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["install.rack".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (from, until);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn validity_is_parsed_in_both_asn1_formats() {
        for (not_before, not_after) in [
            (datetime!(2026-01-02 03:04:05 UTC), datetime!(2027-06-07 08:09:10 UTC)),
            (datetime!(1999-12-31 23:59:59 UTC), datetime!(2049-12-31 23:59:59 UTC)),
            (datetime!(2026-01-01 00:00 UTC), datetime!(2050-01-01 00:00 UTC)),
            (datetime!(2050-01-01 00:00 UTC), datetime!(9999-12-31 23:59:59 UTC)),
        ] {
            let validity = CertificateValidity::parse(&certificate(not_before, not_after));
            assert_eq!(validity, Some(CertificateValidity { not_before, not_after }));
        }
    }

    #[test]
    fn a_malformed_certificate_has_no_validity() {
        let good = certificate(datetime!(2026-01-01 00:00 UTC), datetime!(2027-01-01 00:00 UTC));
        for end in 0..good.len().min(200) {
            assert_eq!(CertificateValidity::parse(&CertificateDer::from(good[..end].to_vec())), None, "{end}");
        }
        for malformed in [&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..], &[0x30, 0x80], &[0x30, 0x89], &[0x31, 0]] {
            assert_eq!(CertificateValidity::parse(&CertificateDer::from(malformed)), None);
        }
    }

    #[test]
    fn certificates_that_expire_within_a_month_are_named() {
        let now = datetime!(2026-11-27 12:00 UTC);
        let (day, file) = (Duration::DAY, Path::new("server.pem"));
        let start = now - day * 100;
        for (from, until, expected) in [
            (start, now + day * 31, None),
            (
                start,
                now + day * 29,
                Some((false, "expires on 2026-12-26, in 29 days: renew the certificate, and restart the server")),
            ),
            (start, now + Duration::HOUR, Some((false, "expires on 2026-11-27, in 0 days: renew the certificate"))),
            (
                start,
                now - Duration::SECOND,
                Some((true, "expired on 2026-11-27: clients reject it; renew the certificate")),
            ),
            (start, now - day * 40, Some((true, "expired on 2026-10-18: clients reject it"))),
            (
                now + day * 4,
                now + day * 400,
                Some((true, "is not valid before 2026-12-01: clients reject it; check the clock")),
            ),
        ] {
            let chain = [certificate(from, until), certificate(start, now + day * 3)];
            let mut found = find_validity_problems(file, &chain, now);
            let of_chain = found.pop().unwrap();
            assert_eq!(
                of_chain.message,
                "server.pem: certificate 2 of the chain expires on 2026-11-30, in 3 days: renew the certificate, and restart the server"
            );
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            for ((is_rejected, words), problem) in expected.iter().zip(&found) {
                assert_eq!(problem.is_rejected, *is_rejected, "{problem:?}");
                assert!(problem.message.starts_with(&format!("server.pem: the certificate {words}")), "{problem:?}");
            }
        }
    }
}
