//! Record of an allocation as it was installed, so that a reinstall can preserve its fields. Secrets are recorded as
//! salted digests, which show whether a secret has changed without revealing its value. Therefore the database and its
//! backups contain no secrets.
//!
//! The record is stored with the layout when the allocation is served to the machine. At the point of no return, it
//! becomes the record of the attempt. When the success of the attempt is reported, it becomes the record of the
//! installation.

use super::ServerState;
use super::json_columns::to_json_column;
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::encoding::encode_hex;
use common::error::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Values of an allocation's fields, by their names in the machine file. Fields that are not set are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocationFields {
    pub plain: Map<String, Value>,
    pub secrets: BTreeMap<String, String>,
}

/// Record of the fields with which an allocation was installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledAllocation {
    /// Values of the fields that are not secret.
    #[serde(rename = "fields")]
    pub plain: Map<String, Value>,
    /// Random text (salt) that is included in each digest, so that equal secrets of two machines have different
    /// digests.
    salt: String,
    /// Digests of the secrets, by the names of their fields.
    digests: BTreeMap<String, String>,
}

impl InstalledAllocation {
    pub fn from_fields(fields: AllocationFields) -> InstalledAllocation {
        let salt = uuid::Uuid::new_v4().to_string();
        let mut record = InstalledAllocation { plain: fields.plain, salt, digests: BTreeMap::new() };
        record.replace_secrets(&fields.secrets);
        record
    }

    /// Returns the names of the secrets that were set when the allocation was installed.
    pub fn secret_names(&self) -> impl Iterator<Item = &String> {
        self.digests.keys()
    }

    /// Returns whether the secret was set when the allocation was installed.
    pub fn has_secret(&self, name: &str) -> bool {
        self.digests.contains_key(name)
    }

    /// Returns whether the secret had this value when the allocation was installed. The value `None` means that the
    /// secret was not set.
    pub fn is_same_secret(&self, name: &str, value: Option<&str>) -> bool {
        self.digests.get(name) == value.map(|value| self.digest_secret(name, value)).as_ref()
    }

    fn replace_secrets(&mut self, secrets: &BTreeMap<String, String>) {
        let digests = secrets.iter().map(|(name, value)| (name.clone(), self.digest_secret(name, value)));
        let digests: Vec<_> = digests.collect();
        self.digests.extend(digests);
    }

    fn digest_secret(&self, name: &str, value: &str) -> String {
        let mut hash = Sha256::new();
        for part in [&self.salt, name, value] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        encode_hex(hash.finalize())
    }
}

impl ServerState {
    /// Updates the record with the secrets that are being sent to the machine, because the machine file may have
    /// changed since the allocation was served. If the machine has passed the point of no return during this boot
    /// (`has_begun`), updates the attempt's record instead of the served allocation's record.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_sent_secrets(
        &self,
        machine: &str,
        allocation: &str,
        has_begun: bool,
        secrets: BTreeMap<String, String>,
    ) -> Result<()> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        let (table, id, column) =
            if has_begun { ("allocations", "id", "started_fields") } else { ("layouts", "allocation", "fields") };
        self.run_durably_for(machine.clone(), move |transaction| {
            let select = format!("SELECT {column} FROM {table} WHERE machine = ?1 AND {id} = ?2");
            let stored = transaction.query_row(&select, [&machine, &allocation], |row| {
                super::json_columns::parse_column::<InstalledAllocation>(row, 0)
            });
            let Some(mut record) = stored.optional()?.flatten() else { return Ok(()) };
            if secrets.iter().any(|(name, value)| !record.is_same_secret(name, Some(value))) {
                record.replace_secrets(&secrets);
                let update = format!("UPDATE {table} SET {column} = ?3 WHERE machine = ?1 AND {id} = ?2");
                transaction.execute(&update, params![machine, allocation, to_json_column(&record)?])?;
            }
            Ok(())
        })
        .await
    }
}

/// Copies the record of the served allocation to the attempt. Called when the attempt passes its point of no return.
/// If the served allocation has no record, as in databases of earlier versions, removes the record of the attempt.
pub(crate) fn start_record(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let update = "UPDATE allocations SET started_fields =
             (SELECT fields FROM layouts WHERE layouts.machine = ?1 AND layouts.allocation = ?2)
         WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, [machine, allocation]).map(drop)
}

/// Makes the record of the last attempt the record of the installation. The caller must have verified that the attempt
/// succeeded.
pub(crate) fn complete_record(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let update = "UPDATE allocations SET fields = started_fields, started_fields = NULL WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, [machine, allocation]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(secrets: &[(&str, &str)]) -> InstalledAllocation {
        let secrets = secrets.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        InstalledAllocation::from_fields(AllocationFields { plain: Map::new(), secrets })
    }

    #[test]
    fn a_secret_is_compared_and_not_revealed() {
        let record = record(&[("user_data", "hunter2"), ("console_password", "")]);
        for (name, value, is_same) in [
            ("user_data", Some("hunter2"), true),
            ("user_data", Some("hunter3"), false),
            ("user_data", None, false),
            ("console_password", Some("hunter2"), false),
            ("console_password", Some(""), true),
            ("console_password", None, false),
            ("vpn", None, true),
            ("vpn", Some(""), false),
        ] {
            assert_eq!(record.is_same_secret(name, value), is_same, "{name} {value:?}");
        }
        let stored = serde_json::to_string(&record).unwrap();
        assert!(!stored.contains("hunter2"), "{stored}");
        assert_eq!(serde_json::from_str::<InstalledAllocation>(&stored).unwrap(), record);
    }

    #[test]
    fn equal_secrets_of_two_machines_have_different_digests() {
        let [one, other] = [record(&[("user_data", "x")]), record(&[("user_data", "x")])];
        assert_ne!(one.digests, other.digests);
        // The digests of two fields differ, even if the concatenations of field name and value are equal.
        let fields = record(&[("a", "bc"), ("ab", "c")]);
        assert_ne!(fields.digests["a"], fields.digests["ab"]);
    }
}
