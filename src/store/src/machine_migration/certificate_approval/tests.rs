//! Tests of certificates, including those of machines that impersonate source or target.

use super::*;
use crate::machine_migration::testing::{carried as has, ordered, start};
use crate::machine_migration::{ApprovedCertificates, MigrationEvent};
use crate::token_hash::TokenHash;

const A1: TokenHash = [1; 32];
const B1: TokenHash = [11; 32];
const B2: TokenHash = [12; 32];

/// Returns a PEM text, which need not be a valid certificate, because only its fingerprint is used.
fn certificate(boot: TokenHash) -> String {
    linux::pem_encoding::encode_pem("CERTIFICATE", &boot)
}

fn end(boot: TokenHash, has_secret: bool) -> MigrationEndpoint {
    MigrationEndpoint { certificate: certificate(boot), address: "192.0.2.1:1".to_owned(), boot, has_secret }
}

fn now(b: TokenHash) -> CurrentBoots {
    CurrentBoots { source: Some(A1), target: Some(b) }
}

/// Returns a migration whose machines both wait in their ramdisks.
fn planned(allow_unapproved: bool, secrets: [bool; 2]) -> Migration {
    let migration = Migration { allow_unapproved, ..ordered() };
    let migration = migration
        .apply_event(&MigrationEvent::Waiting(MigrationSide::Source, end(A1, secrets[0]), Some(Box::new(has()))))
        .unwrap();
    migration.apply_event(&MigrationEvent::Waiting(MigrationSide::Target, end(B1, secrets[1]), None)).unwrap()
}

fn fingerprint(boot: TokenHash) -> String {
    linux::pem_encoding::certificate_fingerprint(&certificate(boot)).unwrap()
}

fn approve(migration: &Migration, fingerprints: &[String], b: TokenHash) -> Result<Migration, String> {
    migration.apply_event(&MigrationEvent::Approved { fingerprints: fingerprints.to_vec(), now: now(b) })
}

fn begins(migration: &Migration, boot: TokenHash) -> Result<Migration, String> {
    migration.apply_event(&MigrationEvent::StartRequested { start: start(boot, &ordered().disks), now: now(boot) })
}

#[test]
fn unapproved_receiver_is_not_released_to_the_sender() {
    let migration = planned(false, [false, false]);
    assert_eq!(migration.released_peer(MigrationSide::Source, now(B1)), None);
    let told = migration.released_peer(MigrationSide::Target, now(B1)).unwrap();
    assert!(
        !told.approved && told.certificate == certificate(A1),
        "its plan needs it, and its agent does not trust it"
    );
    assert!(migration.awaits_approval() && begins(&migration, B1).unwrap_err().contains("--approve FINGERPRINT"));
    // One approved certificate of the two does not suffice.
    for one in [A1, B1] {
        let half = approve(&migration, &[fingerprint(one)], B1).unwrap();
        assert!(half.awaits_approval() && begins(&half, B1).is_err());
        assert_eq!(half.released_peer(MigrationSide::Source, now(B1)).is_some(), one == B1);
    }
    let both = approve(&migration, &[fingerprint(A1), fingerprint(B1)], B1).unwrap();
    assert!(!both.awaits_approval() && both.released_peer(MigrationSide::Source, now(B1)).unwrap().approved);
    assert!(both.released_peer(MigrationSide::Target, now(B1)).unwrap().approved);
    assert_eq!(begins(&both, B1).unwrap().state, MigrationState::Copying);
}

#[test]
fn each_boot_requires_its_own_approval() {
    let migration = approve(&planned(false, [false, false]), &[fingerprint(A1), fingerprint(B1)], B1).unwrap();
    let copying = begins(&migration, B1).unwrap();
    for migration in [migration, copying] {
        let again =
            migration.apply_event(&MigrationEvent::Waiting(MigrationSide::Target, end(B2, false), None)).unwrap();
        assert_eq!(again.certificate_trust(MigrationSide::Target), CertificateTrust::Unapproved);
        assert_eq!(again.released_peer(MigrationSide::Source, now(B2)), None);
        assert!(begins(&again, B2).is_err(), "an impostor would take over the allocation without an erasure");
        assert!(approve(&again, &[fingerprint(B1)], B2).is_err(), "that boot has ended");
        assert!(begins(&approve(&again, &[fingerprint(B2)], B2).unwrap(), B2).is_ok());
    }
    // If the source boots again during the copy, its new certificate must be approved before it sends data. The target
    // may start again without this approval.
    let copying = begins(&planned(true, [false, false]), B1).unwrap();
    let again = copying
        .apply_event(&MigrationEvent::Waiting(MigrationSide::Source, end([2; 32], false), Some(Box::new(has()))))
        .unwrap();
    let again = Migration { allow_unapproved: false, ..again };
    let again = approve(&again, &[fingerprint(B1)], B1);
    assert!(again.is_ok_and(|again| !again.approval_is_missing() && again.awaits_approval()));
}

/// A machine that claims to have the secret verifies its peer. The claim therefore replaces the approval of the peer's
/// certificate, but not the approval of the machine's own certificate.
#[test]
fn secret_of_a_machine_replaces_approval_of_its_peer() {
    for (secrets, trust) in [
        ([true, true], [CertificateTrust::Secret; 2]),
        ([false, true], [CertificateTrust::Secret, CertificateTrust::Unapproved]),
        ([true, false], [CertificateTrust::Unapproved, CertificateTrust::Secret]),
    ] {
        let migration = planned(false, secrets);
        assert_eq!(
            [migration.certificate_trust(MigrationSide::Source), migration.certificate_trust(MigrationSide::Target)],
            trust,
            "{secrets:?}"
        );
        assert_eq!(migration.released_peer(MigrationSide::Source, now(B1)).is_some(), secrets[0]);
        assert!(
            migration.released_peer(MigrationSide::Source, now(B1)).is_none_or(|peer| !peer.approved),
            "the agent verifies the signature"
        );
    }
    let migration = planned(true, [false, false]);
    assert_eq!(migration.certificate_trust(MigrationSide::Target), CertificateTrust::Order);
    assert!(
        migration.released_peer(MigrationSide::Source, now(B1)).unwrap().approved && begins(&migration, B1).is_ok()
    );
}

#[test]
fn approval_requires_a_matching_fingerprint() {
    let migration = planned(false, [false, false]);
    let b = fingerprint(B1);
    let digits = &b["sha256:".len()..];
    let pairs: Vec<&str> = (0..32).map(|at| &digits[2 * at..2 * at + 2]).collect();
    for good in
        [b.clone(), digits.to_owned(), digits[..16].to_owned(), pairs.join(":").to_uppercase(), format!(" {b} ")]
    {
        let approved = approve(&migration, std::slice::from_ref(&good), B1).unwrap();
        assert_eq!(approved.approved, ApprovedCertificates { source: None, target: Some(b.clone()) }, "{good}");
    }
    for bad in
        ["", "sha256:", &digits[..15], &format!("{digits}0"), "0123456789abcdef", "ffffffffffffffff", "a\u{1b}[2J"]
    {
        assert!(approve(&migration, &[b.clone(), bad.to_owned()], B1).is_err(), "{bad}");
    }
    let why = approve(&migration, &["0123456789abcdef".to_owned()], B1).unwrap_err();
    assert!(why.contains(&b) && why.contains(&fingerprint(A1)), "{why}");
    assert!(approve(&migration, &[], B1).is_err());
    // A machine that has booted again, and does not wait in its ramdisk yet, has no valid certificate.
    assert!(approve(&migration, std::slice::from_ref(&b), B2).unwrap_err().contains("machine b is not waiting"));
    let done = Migration { state: MigrationState::Done, ..migration };
    assert!(approve(&done, &[b], B1).unwrap_err().contains("the migration is done"));
}
