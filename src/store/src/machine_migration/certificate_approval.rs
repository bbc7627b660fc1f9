//! Trust in the two certificates of a migration. A certificate is trusted if the operator has approved it, if the peer
//! can verify it with a shared secret, or if the migration was ordered without approvals. The server sends the target's
//! certificate to the source only once that certificate is trusted, and permits the target to start only once both
//! certificates are trusted. The module performs no I/O.

use super::{CurrentBoots, Migration, MigrationEndpoint, MigrationState};
use model::machine_migration::{MigrationPeer, MigrationSide};
use serde::{Deserialize, Serialize};

/// Minimum number of hexadecimal digits of a fingerprint that the operator must specify: 64 bits.
const FEWEST_DIGITS: usize = 16;
const DIGITS: usize = 64;
const PREFIX: &str = "sha256:";

/// Reason why a certificate is or is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CertificateTrust {
    /// The certificate is not trusted: the migration waits.
    Unapproved,
    /// The operator has compared the fingerprint and approved it.
    Operator,
    /// The peer verifies the certificate with the secret that the ramdisks of both machines contain.
    Secret,
    /// The migration was ordered without approvals.
    Order,
}

impl CertificateTrust {
    pub fn describe(self) -> &'static str {
        match self {
            CertificateTrust::Unapproved => "not approved",
            CertificateTrust::Operator => "approved",
            CertificateTrust::Secret => "verified by the other machine by means of the shared secret in the ramdisks",
            CertificateTrust::Order => "not verified: the migration was ordered with --allow-unapproved",
        }
    }
}

/// Certificate of one machine of a migration, as shown to the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CertificateShown {
    /// Fingerprint of the certificate, `sha256:HEX`, as shown on the console of the machine.
    pub fingerprint: String,
    pub trust: CertificateTrust,
}

impl Migration {
    fn find_endpoint(&self, part: MigrationSide) -> Option<&MigrationEndpoint> {
        match part {
            MigrationSide::Source => self.source_endpoint.as_ref(),
            MigrationSide::Target => self.target_endpoint.as_ref(),
        }
    }

    /// Returns the certificate of the machine with this role; `None` after the copy is complete, or the migration has
    /// ended.
    pub fn certificate_view(&self, part: MigrationSide) -> Option<CertificateShown> {
        let copies = matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying);
        let end = self.find_endpoint(part).filter(|_| copies)?;
        Some(CertificateShown {
            fingerprint: linux::pem_encoding::certificate_fingerprint(&end.certificate)?,
            trust: self.certificate_trust(part),
        })
    }

    /// Returns whether the certificate of the machine with this role is trusted, and the reason.
    pub(crate) fn certificate_trust(&self, part: MigrationSide) -> CertificateTrust {
        let approved = match part {
            MigrationSide::Source => &self.approved.source,
            MigrationSide::Target => &self.approved.target,
        };
        let own =
            self.find_endpoint(part).and_then(|end| linux::pem_encoding::certificate_fingerprint(&end.certificate));
        // A peer that has the secret verifies this machine's certificate itself. An impostor that falsely claims to
        // have the secret gains nothing: the server then only trusts the certificate of the genuine machine.
        let peer_verifies = self.find_endpoint(opposite_role(part)).is_some_and(|end| end.has_secret);
        match own {
            Some(own) if approved.as_ref() == Some(&own) => CertificateTrust::Operator,
            _ if self.allow_unapproved => CertificateTrust::Order,
            Some(_) if peer_verifies => CertificateTrust::Secret,
            _ => CertificateTrust::Unapproved,
        }
    }

    fn is_released(&self, part: MigrationSide) -> bool {
        self.certificate_trust(part) != CertificateTrust::Unapproved
    }

    /// Returns whether at least one of the two certificates is unknown or not trusted.
    pub fn awaits_approval(&self) -> bool {
        [MigrationSide::Source, MigrationSide::Target]
            .into_iter()
            .any(|part| self.find_endpoint(part).is_none() || !self.is_released(part))
    }

    /// Returns whether a missing approval prevents the target from starting to copy. At the start, the target erases
    /// its disks and receives the secrets of the allocation, so both certificates must be trusted. During the copy,
    /// only the target's certificate must be trusted. If the source has booted again, the target may start before the
    /// source's new certificate is approved, and then waits for the approval.
    pub fn approval_is_missing(&self) -> bool {
        match self.state {
            MigrationState::Planned => self.awaits_approval(),
            MigrationState::Copying => !self.is_released(MigrationSide::Target),
            _ => false,
        }
    }

    /// Returns the reason why the target must not start to copy, with the remedy.
    pub fn explain_missing_approval(&self) -> String {
        format!(
            "the certificates of machines {a} and {b} are not both approved: compare the fingerprints that `drophammer machine move {a}` prints with those on the consoles of the machines, and approve the certificates with `drophammer machine move {a} --approve FINGERPRINT --approve FINGERPRINT`",
            a = self.source,
            b = self.target
        )
    }

    /// Returns the certificate and address of the peer of the machine with this role, as sent to this machine. The
    /// source receives the target's certificate only once that certificate is trusted.
    pub fn released_peer(&self, part: MigrationSide, now: CurrentBoots) -> Option<MigrationPeer> {
        let other = opposite_role(part);
        let end = self.present_endpoint(other, now)?;
        let trust = self.certificate_trust(other);
        let is_withheld = part == MigrationSide::Source && trust == CertificateTrust::Unapproved;
        let approved = matches!(trust, CertificateTrust::Operator | CertificateTrust::Order);
        let peer = || MigrationPeer { certificate: end.certificate.clone(), address: end.address.clone(), approved };
        (!is_withheld).then(peer)
    }

    /// Returns the migration with these fingerprints marked as approved.
    ///
    /// # Errors
    /// Returns an error if the migration no longer uses certificates, no fingerprint is specified, or a fingerprint
    /// matches neither of the two current certificates.
    pub(crate) fn approve_certificates(&self, fingerprints: &[String], now: CurrentBoots) -> Result<Migration, String> {
        if !matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) {
            return Err(format!("the migration is {state}: its certificates are no longer used", state = self.state));
        }
        if fingerprints.is_empty() {
            return Err("no fingerprint is specified: use `--approve FINGERPRINT`".to_owned());
        }
        let mut next = self.clone();
        for given in fingerprints {
            let digits = parse_fingerprint(given)?;
            let full = |part| {
                let end = self.present_endpoint(part, now)?;
                linux::pem_encoding::certificate_fingerprint(&end.certificate)
                    .filter(|full| full[PREFIX.len()..].starts_with(&digits))
            };
            match (full(MigrationSide::Source), full(MigrationSide::Target)) {
                (Some(own), _) => next.approved.source = Some(own),
                (None, Some(own)) => next.approved.target = Some(own),
                (None, None) => return Err(self.explain_unknown_fingerprint(given, now)),
            }
        }
        Ok(next)
    }

    fn explain_unknown_fingerprint(&self, given: &str, now: CurrentBoots) -> String {
        let shown = |part, machine: &str| match self
            .present_endpoint(part, now)
            .and_then(|end| linux::pem_encoding::certificate_fingerprint(&end.certificate))
        {
            Some(own) => format!("machine {machine} has the certificate {own}"),
            None => format!("machine {machine} is not waiting in its ramdisk"),
        };
        let given = common::format::replace_hidden(common::format::truncate_bytes(given, PREFIX.len() + DIGITS));
        format!(
            "{given} is not the fingerprint of a current certificate; current certificates: {source_certificate}, {target_certificate}. A machine creates a new certificate in each boot: compare the fingerprint with the machine's console again",
            source_certificate = shown(MigrationSide::Source, &self.source),
            target_certificate = shown(MigrationSide::Target, &self.target)
        )
    }
}

fn opposite_role(part: MigrationSide) -> MigrationSide {
    if part == MigrationSide::Source { MigrationSide::Target } else { MigrationSide::Source }
}

/// Returns the hexadecimal digits of a fingerprint that an operator entered: with or without `sha256:`, and with or
/// without the colons that OpenSSL prints.
fn parse_fingerprint(given: &str) -> Result<String, String> {
    let given = given.trim().to_lowercase();
    let given = given.strip_prefix(PREFIX).unwrap_or(&given);
    let digits: String = given.chars().filter(|digit| *digit != ':').collect();
    let is_one =
        (FEWEST_DIGITS..=DIGITS).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then_some(digits).ok_or_else(|| {
        format!("a fingerprint is the SHA-256 digest of a certificate: specify at least the first {FEWEST_DIGITS} hexadecimal digits of the digest")
    })
}

#[cfg(test)]
mod tests;
