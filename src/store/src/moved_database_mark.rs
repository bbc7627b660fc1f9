//! Mark in a SQLite database whose content was moved to PostgreSQL. Without the mark, a server that is started with
//! this file by mistake would act on outdated records.

use crate::schema;
use crate::sql::{self, Connection, OptionalExtension};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use std::path::Path;

/// Records that the content of this SQLite database was moved to the database `to`.
pub(crate) fn mark_moved(connection: &Connection, to: &str, now: &str) -> sql::Result<()> {
    connection.execute_batch("PRAGMA synchronous=FULL")?;
    let transaction = connection.transaction()?;
    transaction
        .execute_batch("CREATE TABLE IF NOT EXISTS moved_to (target TEXT NOT NULL, time TEXT NOT NULL) STRICT")?;
    transaction.execute("DELETE FROM moved_to", [])?;
    transaction.execute("INSERT INTO moved_to (target, time) VALUES (?1, ?2)", [to, now])?;
    transaction.commit()
}

/// Removes the mark from the SQLite database, which can then be used again.
pub(crate) fn unmark_moved(connection: &Connection) -> sql::Result<()> {
    connection.execute("DELETE FROM moved_to", []).map(drop)
}

/// Refuses a SQLite database whose content was moved.
///
/// # Errors
/// Returns an error if the database is marked as moved, or cannot be read.
pub(crate) fn refuse_moved_database(connection: &Connection, path: &Path) -> Result<()> {
    let what = || format!("open the database {}", path.display());
    if !schema::has_table(connection, "moved_to").context(Phase::Serve, what)? {
        return Ok(());
    }
    let select = "SELECT target, time FROM moved_to";
    let moved = connection.query_row(select, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let Some((target, time)) = moved.optional().context(Phase::Serve, what)? else { return Ok(()) };
    let message = format!(
        "{}: cannot use this database: it was moved to {target} at {time}; start the server with --store. To \
         return to SQLite, back up the PostgreSQL database with `drophammer serve backup`, and restore the backup with \
         `drophammer serve restore`",
        path.display()
    );
    Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseMoved))
}
