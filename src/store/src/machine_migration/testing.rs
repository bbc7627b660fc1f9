//! Migrations for tests.

use super::*;

pub fn ordered() -> Migration {
    let disk = RecordedDisk {
        device: "/dev/sda".to_owned(),
        serial: "N1".to_owned(),
        size_bytes: 1,
        ..RecordedDisk::default()
    };
    Migration {
        id: "o1".to_owned(),
        source: "a".to_owned(),
        target: "b".to_owned(),
        allocation: "a1".to_owned(),
        state: MigrationState::Ordered,
        created: String::new(),
        fencing: None,
        marker: None,
        disks: vec![disk],
        carried: None,
        source_endpoint: None,
        target_endpoint: None,
        started_copy: None,
        failures: 0,
        failed: None,
        left: None,
        source_problem: String::new(),
        target_problem: String::new(),
        files: false,
        allow_unapproved: true,
        approved: ApprovedCertificates::default(),
    }
}

pub fn carried() -> MigratedMachine {
    let marker = InstallMarker { machine: "a".to_owned(), allocation: "a1".to_owned(), ..InstallMarker::default() };
    MigratedMachine { marker, ..MigratedMachine::default() }
}

pub fn end(boot: TokenHash) -> MigrationEndpoint {
    MigrationEndpoint {
        certificate: format!("certificate {}", boot[0]),
        address: String::new(),
        boot,
        has_secret: false,
    }
}

pub fn start(boot: TokenHash, disks: &[RecordedDisk]) -> AttemptStart {
    AttemptStart { by: boot, disks: disks.to_vec(), ..AttemptStart::default() }
}
