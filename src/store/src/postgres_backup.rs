//! Mark in a backup of a PostgreSQL database. Any number of servers can commit to such a database, but the id file of a
//! server's directory records only the commits of this server. The number in the id file therefore does not prove that
//! the backup contains all transactions: another server may have continued after the backup.

use crate::schema;
use crate::sql::{self, Connection, Transaction};

/// Table that exists only in backups of PostgreSQL databases.
pub(crate) const TABLE: &str = "postgres_backup";

/// Marks a copy of a PostgreSQL database.
pub(crate) fn mark_backup(copy: &Transaction) -> sql::Result<()> {
    copy.execute_batch(&format!("CREATE TABLE {TABLE} (one INTEGER PRIMARY KEY) STRICT"))
}

/// Returns whether the file is a backup of a PostgreSQL database.
pub(crate) fn is_marked(backup: &Connection) -> sql::Result<bool> {
    schema::has_table(backup, TABLE)
}

/// Removes the mark from a restored SQLite database, which belongs to one server again.
pub(crate) fn remove_mark(restored: &Transaction) -> sql::Result<()> {
    restored.execute_batch(&format!("DROP TABLE IF EXISTS {TABLE}"))
}
