//! Release of the two certificates of a migration. The server passes the target's certificate to the source, and lets the target start,
//! only once each certificate is vouched for by the operator, by a secret that the peer has, or by an order that requires no approval. Pure.

use super::{End, Move, MoveState, Present};
use crate::carried::{self, Part, Peer};
use serde::{Deserialize, Serialize};

/// Shortest prefix of a fingerprint that identifies a certificate: 64 bits.
const FEWEST_DIGITS: usize = 16;
const DIGITS: usize = 64;
const PREFIX: &str = "sha256:";

/// Fingerprints that the operator approved. A machine has another certificate after each boot, and needs another approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedCertificates {
    pub sender: Option<String>,
    pub receiver: Option<String>,
}

/// Party that vouches for a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CertificateTrust {
    /// Not vouched for: the migration waits.
    Unapproved,
    /// The operator, who compared the fingerprint.
    Operator,
    /// The peer, whose ramdisk has the secret of both machines and verifies the signature.
    Secret,
    /// The order, which requires no approval.
    Order,
}

impl CertificateTrust {
    pub fn in_words(self) -> &'static str {
        match self {
            CertificateTrust::Unapproved => "not approved",
            CertificateTrust::Operator => "approved",
            CertificateTrust::Secret => "verified by the other machine, whose ramdisk has the secret",
            CertificateTrust::Order => "not verified: the migration was ordered with --allow-unapproved",
        }
    }
}

/// Certificate of one machine of a migration, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CertificateShown {
    /// `sha256:HEX`, as on the console of the machine.
    pub fingerprint: String,
    pub trust: CertificateTrust,
}

impl Move {
    fn end(&self, part: Part) -> Option<&End> {
        match part {
            Part::Send => self.sender.as_ref(),
            Part::Receive => self.receiver.as_ref(),
        }
    }

    /// Returns the certificate of the machine with that role, if the migration may still copy.
    pub fn certificate(&self, part: Part) -> Option<CertificateShown> {
        let copies = matches!(self.state, MoveState::Ordered | MoveState::Planned | MoveState::Copying);
        let end = self.end(part).filter(|_| copies)?;
        Some(CertificateShown { fingerprint: carried::fingerprint(&end.certificate)?, trust: self.trust(part) })
    }

    /// Returns who vouches for the certificate of the machine with that role.
    pub fn trust(&self, part: Part) -> CertificateTrust {
        let approved = match part {
            Part::Send => &self.approved.sender,
            Part::Receive => &self.approved.receiver,
        };
        let own = self.end(part).and_then(|end| carried::fingerprint(&end.certificate));
        // A machine that claims the secret verifies its peer itself. An impostor gains no trust by that: the claim
        // releases the certificate of the peer, not its own.
        let peer_verifies = self.end(peer(part)).is_some_and(|end| end.has_secret);
        match own {
            Some(own) if approved.as_ref() == Some(&own) => CertificateTrust::Operator,
            _ if self.allow_unapproved => CertificateTrust::Order,
            Some(_) if peer_verifies => CertificateTrust::Secret,
            _ => CertificateTrust::Unapproved,
        }
    }

    fn is_released(&self, part: Part) -> bool {
        self.trust(part) != CertificateTrust::Unapproved
    }

    /// Returns whether the certificate of at least one of the machines is not released, or not known yet.
    pub fn awaits_approval(&self) -> bool {
        [Part::Send, Part::Receive].into_iter().any(|part| self.end(part).is_none() || !self.is_released(part))
    }

    /// Returns whether the target must not start, since it would erase its disks and receive the secrets of the allocation. While it
    /// copies, only a new boot of the target itself matters, since another boot of the source is awaited.
    pub fn approval_is_missing(&self) -> bool {
        match self.state {
            MoveState::Planned => self.awaits_approval(),
            MoveState::Copying => !self.is_released(Part::Receive),
            _ => false,
        }
    }

    /// Returns why the target must not start, with the remedy.
    pub fn missing_approval(&self) -> String {
        format!(
            "the certificates of machines {a} and {b} are not both approved: compare the fingerprints that `drophammer machine move {a}` prints with the consoles of the \
             machines, and approve them with `drophammer machine move {a} --approve FINGERPRINT --approve FINGERPRINT`",
            a = self.a,
            b = self.b
        )
    }

    /// Returns the peer of the machine with that role, for that machine. The source receives only a released certificate.
    pub fn peer_of(&self, part: Part, now: Present) -> Option<Peer> {
        let other = peer(part);
        let end = self.peer(other, now)?;
        let trust = self.trust(other);
        let is_withheld = part == Part::Send && trust == CertificateTrust::Unapproved;
        let approved = matches!(trust, CertificateTrust::Operator | CertificateTrust::Order);
        let peer = || Peer { certificate: end.certificate.clone(), address: end.address.clone(), approved };
        (!is_withheld).then(peer)
    }

    /// Approves the certificates with these fingerprints.
    ///
    /// # Errors
    /// A fingerprint matches neither of the current certificates.
    pub fn approve(&self, fingerprints: &[String], now: Present) -> Result<Move, String> {
        if !matches!(self.state, MoveState::Ordered | MoveState::Planned | MoveState::Copying) {
            return Err(format!("the migration is {}: its certificates are no longer used", self.state));
        }
        if fingerprints.is_empty() {
            return Err("no fingerprint is given: `--approve FINGERPRINT`".to_owned());
        }
        let mut next = self.clone();
        for given in fingerprints {
            let digits = digits(given)?;
            let full = |part| {
                let end = self.peer(part, now)?;
                carried::fingerprint(&end.certificate).filter(|full| full[PREFIX.len()..].starts_with(&digits))
            };
            match (full(Part::Send), full(Part::Receive)) {
                (Some(own), _) => next.approved.sender = Some(own),
                (None, Some(own)) => next.approved.receiver = Some(own),
                (None, None) => return Err(self.unknown(given, now)),
            }
        }
        Ok(next)
    }

    fn unknown(&self, given: &str, now: Present) -> String {
        let shown =
            |part, machine: &str| match self.peer(part, now).and_then(|end| carried::fingerprint(&end.certificate)) {
                Some(own) => format!("machine {machine} has {own}"),
                None => format!("machine {machine} is not waiting in its ramdisk"),
            };
        let given = crate::text::clean(crate::text::cut(given, PREFIX.len() + DIGITS));
        format!(
            "{given} is not the fingerprint of a current certificate: {}, {}. A machine has another certificate after each boot: compare it with the console again",
            shown(Part::Send, &self.a),
            shown(Part::Receive, &self.b)
        )
    }
}

fn peer(part: Part) -> Part {
    if part == Part::Send { Part::Receive } else { Part::Send }
}

/// Hexadecimal digits of a fingerprint as operators write it: with or without `sha256:`, with colons as OpenSSL prints it.
fn digits(given: &str) -> Result<String, String> {
    let given = given.trim().to_lowercase();
    let given = given.strip_prefix(PREFIX).unwrap_or(&given);
    let digits: String = given.chars().filter(|digit| *digit != ':').collect();
    let is_one =
        (FEWEST_DIGITS..=DIGITS).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then_some(digits).ok_or_else(|| {
        format!("a fingerprint is the SHA-256 of a certificate, of which at least the first {FEWEST_DIGITS} hexadecimal digits are required")
    })
}

#[cfg(test)]
mod tests;
