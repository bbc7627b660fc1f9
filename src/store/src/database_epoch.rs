//! Epoch of the database, and the fencing tokens that the database issues.
//!
//! A database has the same epoch from its creation until it is restored from a backup. The restored database starts a
//! new epoch, because its counter may be lower than that of the replaced database, and could repeat numbers that the
//! replaced database has issued. Each reinstall order, first installation and migration receives a [`FencingToken`]:
//! the id of the epoch and the next number. Tokens in the install markers on machines' disks never change the
//! counter.

use super::json_columns::{parse_column, to_json_column};
use crate::sql::{self, Connection, OptionalExtension, Transaction, params};
use model::install_marker::FencingToken;
use uuid::Uuid;

/// Current epoch of the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// UUID of the epoch.
    pub id: String,
    /// Time of the restore, as RFC 3339 in UTC; `None` if no machine needs confirmation.
    pub restored: Option<String>,
}

/// Reads the epoch. Returns an error if it is missing, because the database may have been restored.
pub(crate) fn read_epoch(connection: &Connection) -> sql::Result<Epoch> {
    let select = connection.prepare_cached("SELECT id, restored FROM epoch")?;
    select.query_row([], |row| Ok(Epoch { id: row.get(0)?, restored: row.get(1)? }))
}

/// Issues the next fencing token.
///
/// # Errors
/// Returns an error if the database cannot be written, or all numbers of the epoch are used.
pub fn issue_token(transaction: &Transaction) -> sql::Result<FencingToken> {
    let update = "UPDATE epoch SET sequence = sequence + 1 WHERE sequence < ?1 RETURNING id, sequence";
    transaction.query_row(update, [i64::MAX], |row| {
        let sequence: i64 = row.get(1)?;
        let out_of_range = |error: std::num::TryFromIntError| sql::Error::conversion(1, error);
        Ok(FencingToken { database: row.get(0)?, sequence: u64::try_from(sequence).map_err(out_of_range)? })
    })
}

/// Starts the first epoch of a database without an epoch, and issues tokens for open reinstall orders that have none.
/// Databases of earlier versions have neither epochs nor tokens.
pub(crate) fn complete_epoch(transaction: &Transaction) -> sql::Result<()> {
    let insert = "INSERT INTO epoch (one, id, sequence) VALUES (1, ?1, 0) ON CONFLICT DO NOTHING";
    transaction.execute(insert, [Uuid::new_v4().to_string()])?;
    let orders = transaction.prepare("SELECT rowid FROM orders WHERE fencing IS NULL ORDER BY created, rowid")?;
    let orders: Vec<i64> = orders.query_map([], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for order in orders {
        let token = to_json_column(&issue_token(transaction)?)?;
        transaction.execute("UPDATE orders SET fencing = ?2 WHERE rowid = ?1", params![order, token])?;
    }
    Ok(())
}

/// Starts a new epoch after a restore. Every machine then needs confirmation.
pub(crate) fn start_restored_epoch(transaction: &Transaction, now: &str) -> sql::Result<()> {
    let update = "UPDATE epoch SET id = ?1, sequence = 0, restored = ?2";
    transaction.execute(update, [&Uuid::new_v4().to_string(), now])?;
    transaction.execute("DELETE FROM confirmed", []).map(drop)
}

/// Returns the recorded fencing token of an allocation. If the allocation is not installed, and the token is missing or
/// of an earlier epoch, issues and records a new token.
pub(crate) fn find_or_issue_token(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
) -> sql::Result<Option<FencingToken>> {
    let select = "SELECT fencing, succeeded FROM allocations WHERE machine = ?1 AND id = ?2";
    let row = transaction.query_row(select, [machine, allocation], |row| Ok((parse_column(row, 0)?, row.get(1)?)));
    let (token, is_installed): (Option<FencingToken>, bool) = row.optional()?.unwrap_or_default();
    let epoch = read_epoch(transaction)?;
    if is_installed || token.as_ref().is_some_and(|token| token.database == epoch.id) {
        return Ok(token);
    }
    let token = issue_token(transaction)?;
    let update = "UPDATE allocations SET fencing = ?3 WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation, to_json_column(&token)?])?;
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;
    use std::cmp::Ordering;

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        connection
    }

    #[test]
    fn fencing_tokens_increase_within_an_epoch() {
        let connection = database();
        let transaction = connection.transaction().unwrap();
        let [one, two] = [(); 2].map(|()| issue_token(&transaction).unwrap());
        assert_eq!((one.sequence, two.compare_age(&one)), (1, Some(Ordering::Greater)));
        assert_eq!(read_epoch(&transaction).unwrap(), Epoch { id: one.database.clone(), restored: None });
        complete_epoch(&transaction).unwrap();
        assert_eq!(read_epoch(&transaction).unwrap().id, one.database, "a start does not begin another epoch");
        start_restored_epoch(&transaction, "2026-11-01T00:00:00Z").unwrap();
        let restored = issue_token(&transaction).unwrap();
        assert!(restored.is_plausible() && restored.compare_age(&two).is_none());
        assert_eq!(read_epoch(&transaction).unwrap().restored.as_deref(), Some("2026-11-01T00:00:00Z"));
    }

    #[test]
    fn last_fencing_token_is_issued_only_once() {
        let connection = database();
        let transaction = connection.transaction().unwrap();
        transaction.execute("UPDATE epoch SET sequence = ?1", [i64::MAX - 1]).unwrap();
        let last = issue_token(&transaction).unwrap();
        assert_eq!((last.sequence, last.is_plausible()), (FencingToken::LIMIT, true));
        assert!(issue_token(&transaction).is_err());
    }

    #[test]
    fn database_without_epoch_is_an_error() {
        let connection = database();
        connection.execute("DELETE FROM epoch", []).unwrap();
        assert!(read_epoch(&connection).is_err());
        assert!(super::super::install_state::read_install_state(&connection, "m", "a").is_err());
    }
}
