//! Role of a machine in its migration, as shown to the operator.

use super::super::access::HIDDEN_MACHINE_TEXT;
use super::certificate_approval::CertificateShown;
use super::{Migration, MigrationState};
use model::machine_migration::MigrationSide;
use serde::{Deserialize, Serialize};

/// Role of a machine in a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineMigration {
    /// Id of the migration order.
    pub id: String,
    pub part: MigrationSide,
    /// Id of the peer machine; empty if the user is not allowed to see this machine.
    pub other: String,
    pub state: MigrationState,
    /// Certificate that the machine sent in its last boot for the migration; absent once the migration no longer uses
    /// certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateShown>,
}

impl MachineMigration {
    pub(crate) fn from_migration(machine: &str, migration: Migration) -> MachineMigration {
        let part = migration.role_of(machine);
        let certificate = migration.certificate_view(part);
        MachineMigration {
            part,
            other: migration.other_machine(machine).to_owned(),
            id: migration.id,
            state: migration.state,
            certificate,
        }
    }

    /// Removes the id of the peer machine, and the certificate, which only an operator of both machines can approve.
    pub(crate) fn hide_peer(self) -> MachineMigration {
        MachineMigration { other: String::new(), certificate: None, ..self }
    }

    /// Describes the machine's role and the state of the migration, such as `migrates to two, copying`. `name` is the
    /// name of the peer.
    pub fn describe(&self, name: &str) -> String {
        let name = if self.other.is_empty() { HIDDEN_MACHINE_TEXT } else { name };
        let way = match self.part {
            MigrationSide::Source => "migrates to",
            MigrationSide::Target => "receives",
        };
        format!("{way} {name}, {}", self.state)
    }
}
