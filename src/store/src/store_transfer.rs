//! Move of the SQLite database of a directory to PostgreSQL, and copies of a PostgreSQL database to and from SQLite
//! files. Backups of both engines are SQLite files.

use crate::backup::lock_directory;
use crate::database_file::{self, DatabaseFile};
use crate::database_id::DatabaseIdentity;
use crate::moved_database_mark::{mark_moved, unmark_moved};
use crate::sql::postgres::PostgresConnection;
use crate::sql::{self, Connection, TransactionKind, convert_error};
use crate::store_address::PostgresAddress;
use crate::table_copy::copy_tables;
use crate::{DATABASE, now, schema};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::output;
use std::path::Path;
use tokio::sync::watch;

/// Moves the SQLite database of the directory to an empty PostgreSQL database. After that, servers refuse to start with
/// the SQLite file.
///
/// # Errors
/// Returns an error if a server is running in the directory, the SQLite database is missing or damaged, the PostgreSQL
/// database is not empty, or the copy differs. In these cases, the SQLite database remains in use.
pub fn move_to_postgres(dir: &Path, address: &PostgresAddress) -> Result<()> {
    let _lock = lock_directory(dir)?;
    let copied = run_outside_runtime(|| move_file(&dir.join(DATABASE), address))?;
    let mut text = format!(
        "{target} contains the records of {source}:\n",
        target = address,
        source = dir.join(DATABASE).display()
    );
    for (table, rows) in copied.iter().filter(|(_, rows)| *rows > 0) {
        text.push_str(&format!("  {table}: {rows}\n"));
    }
    text.push_str(
        "The numbers of rows and the digests of all tables match. From now on, start the server with --store.\n",
    );
    output::print_text(&text)
}

/// Moves a SQLite file. Returns the number of rows of each table.
pub(crate) fn move_file(path: &Path, address: &PostgresAddress) -> Result<Vec<(String, u64)>> {
    if database_file::is_new_database(path)? {
        let message = format!("{file} does not exist, or is empty: there is nothing to move", file = path.display());
        return Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseMissing));
    }
    let source = DatabaseFile::open_even_if_moved(path, watch::channel(None).0)?;
    let failed =
        |error: sql::Error| convert_error(error, &format!("move {file} to the {address}", file = path.display()));
    let target = connect(address)?;
    let transaction = target.transaction().map_err(failed)?;
    if let Some(postgres) = target.as_postgres() {
        postgres.permit_pauses().map_err(failed)?;
    }
    refuse_used_database(&transaction, address)?;
    schema::create_tables(&transaction).map_err(failed)?;
    let snapshot = source.connection.begin(TransactionKind::Read).map_err(failed)?;
    let copied = copy_tables(&snapshot, &transaction).map_err(failed)?;
    drop(snapshot);
    // The file is marked before the commit: if this process is killed in between, no server starts with either
    // database, and the move can be repeated.
    mark_moved(&source.connection, &address.to_string(), &now()).map_err(failed)?;
    match transaction.commit() {
        Err(error @ sql::Error::UnknownOutcome(_)) => Err(failed(error)),
        Err(error) => {
            unmark_moved(&source.connection).map_err(failed)?;
            Err(failed(error))
        }
        Ok(()) => Ok(copied),
    }
}

/// Copies a PostgreSQL database to a new SQLite file, and returns its identity. Servers may be running.
pub(crate) fn copy_to_file(address: &PostgresAddress, part: &Path) -> Result<DatabaseIdentity> {
    let failed = |error: sql::Error| convert_error(error, &format!("copy the {address}"));
    let source = connect(address)?;
    let snapshot = source.begin(TransactionKind::Read).map_err(failed)?;
    let identity = match schema::has_table(&snapshot, "identity").map_err(failed)? {
        true => database_file::read_identity(&snapshot).map_err(failed)?,
        false => None,
    };
    let Some(identity) = identity else {
        let message = format!("the {address} is not a database of `drophammer serve`");
        return Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::Backup));
    };
    let copy = Connection::open(part).map_err(failed)?;
    let transaction = copy.transaction().map_err(failed)?;
    schema::create_tables(&transaction).map_err(failed)?;
    copy_tables(&snapshot, &transaction).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(identity)
}

/// Copies a SQLite file to an empty PostgreSQL database.
pub(crate) fn copy_from_file(file: &Path, address: &PostgresAddress) -> Result<()> {
    let failed =
        |error: sql::Error| convert_error(error, &format!("copy {file} to the {address}", file = file.display()));
    let source = database_file::open_existing(file).map_err(failed)?;
    let target = connect(address)?;
    let transaction = target.transaction().map_err(failed)?;
    if let Some(postgres) = target.as_postgres() {
        postgres.permit_pauses().map_err(failed)?;
    }
    refuse_used_database(&transaction, address)?;
    schema::create_tables(&transaction).map_err(failed)?;
    copy_tables(&source, &transaction).map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// Runs the work on a thread of its own, since a PostgreSQL connection blocks its thread.
pub(crate) fn run_outside_runtime<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let panicked = |_| Err(Error::new(Phase::Serve, "the copy of the database panicked"));
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(panicked))
}

fn connect(address: &PostgresAddress) -> Result<Connection> {
    let connection = PostgresConnection::connect(address.clone());
    let connection = connection.map_err(|error| convert_error(error, &format!("open the {address}")))?;
    Ok(Connection::from_postgres(connection))
}

fn refuse_used_database(target: &Connection, address: &PostgresAddress) -> Result<()> {
    let tables = schema::list_tables(target).map_err(|error| convert_error(error, &address.to_string()))?;
    match tables.first() {
        None => Ok(()),
        Some(table) => {
            let message = format!(
                "the {address} is not empty: it contains the table {table}. Nothing was changed; specify an empty database"
            );
            Err(Error::refusal(Phase::Serve, message).with_code(ErrorCode::DatabaseAddress))
        }
    }
}
