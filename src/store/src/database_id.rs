//! Id file next to the database. It contains the random id of the database and the number of its durable transactions.
//! The id distinguishes the database from other databases, and the number distinguishes the database from its older
//! copies.

use common::error::{Context, Error, Phase, Result};
use linux::atomic_file::replace_file;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Id of a database, and the number of its durable transactions, which shows how recent its content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseIdentity {
    pub id: String,
    /// Number of durable transactions; signed like SQLite's integers.
    pub transactions: i64,
}

impl DatabaseIdentity {
    pub(crate) fn generate() -> DatabaseIdentity {
        DatabaseIdentity { id: uuid::Uuid::new_v4().to_string(), transactions: 0 }
    }

    /// Formats the content of the id file. The length is always the same, so that the file can be overwritten in place.
    fn format_line(&self) -> String {
        format!("{} {:020}\n", self.id, self.transactions)
    }

    fn parse_line(text: &str) -> Option<DatabaseIdentity> {
        let (id, transactions) = text.trim_end().split_once(' ')?;
        Some(DatabaseIdentity {
            id: uuid::Uuid::parse_str(id).ok()?.to_string(),
            transactions: transactions.parse().ok()?,
        })
    }
}

/// Returns the path of the id file of a database.
pub fn id_path(database: &Path) -> PathBuf {
    database.with_extension("id")
}

/// Reads an id file. Returns `None` if it does not exist.
///
/// # Errors
/// Returns an error if the file cannot be read, or its content is invalid.
pub(crate) fn read_id_file(path: &Path) -> Result<Option<DatabaseIdentity>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.context(Phase::Serve, || format!("read {}", path.display()))?,
    };
    match DatabaseIdentity::parse_line(&text) {
        Some(identity) => Ok(Some(identity)),
        None => Err(Error::new(
            Phase::Serve,
            format!(
                "{} does not contain an id and a number: restore it from a backup of the directory, or restore the database \
                with `drophammer serve restore`, which recreates this file",
                path.display()
            ),
        )),
    }
}

/// Returns whether a database with content existed at this path: its id file records transactions, or cannot be read.
pub(crate) fn had_transactions(database: &Path) -> bool {
    read_id_file(&id_path(database)).map_or(true, |is| is.is_some_and(|is| is.transactions > 0))
}

/// Writes an id file atomically. Replaces an existing id file.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub(crate) fn write_id_file(path: &Path, identity: &DatabaseIdentity) -> Result<()> {
    let what = || format!("write {}", path.display());
    let new = path.with_extension("id.new");
    let line = identity.format_line();
    replace_file(path, &new, line.as_bytes(), Permissions::from_mode(0o600)).context(Phase::Serve, what)?;
    sync_folder(path)
}

/// Overwrites the number of transactions in the id file, which must exist and belong to this database. The digits of
/// the number lie within one disk sector, so that a power failure leaves either the old or the new number.
///
/// # Errors
/// Returns an error if the file is missing, belongs to another database, or cannot be written.
pub(crate) fn update_count(path: &Path, identity: &DatabaseIdentity) -> Result<()> {
    if read_id_file(path)?.is_none_or(|is| is.id != identity.id) {
        let message = format!("{file} is missing, or belongs to another database", file = path.display());
        return Err(Error::new(Phase::Serve, message));
    }
    let opened = OpenOptions::new().write(true).open(path);
    let written = opened.and_then(|file| {
        file.write_all_at(identity.format_line().as_bytes(), 0)?;
        file.sync_data()
    });
    written.context(Phase::Serve, || format!("write {}", path.display()))
}

/// Syncs the folder of this file, so that a rename in it is durable.
///
/// # Errors
/// Returns an error if the folder cannot be opened or synced.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.context(Phase::Serve, || format!("sync {}", folder.display()))
}

/// Checks that the database belongs to the id file next to it, and returns its identity. A database without an identity
/// gets a new one. `name` describes the database in the error.
pub(crate) fn check_identity(
    database: &Path,
    name: &str,
    is_new: bool,
    own: Option<DatabaseIdentity>,
) -> Result<DatabaseIdentity> {
    let file = id_path(database);
    let beside = if is_new { None } else { read_id_file(&file)? };
    let what = match (own, beside) {
        (Some(own), Some(beside)) if own.id == beside.id && own.transactions >= beside.transactions => return Ok(own),
        (Some(own), Some(beside)) if own.id == beside.id => format!(
            "the database is older than the last state of this directory: {} records {} transactions, but the database contains only {}",
            file.display(),
            beside.transactions,
            own.transactions
        ),
        (Some(own), Some(beside)) => {
            format!("the database belongs to another directory: its id is {}, not {}", own.id, beside.id)
        }
        (Some(own), None) => format!(
            "the database has the id {}, but the file {} next to the database is missing",
            own.id,
            file.display()
        ),
        (None, Some(beside)) if beside.transactions > 0 => {
            format!(
                "the database does not have an id, but {} has id {}: the database is older than that file, or belongs to another directory",
                file.display(),
                beside.id
            )
        }
        // An earlier start of the server was interrupted after it wrote the id file, and before it wrote the id to the
        // database.
        (None, Some(beside)) => return Ok(beside),
        (None, None) => {
            let fresh = DatabaseIdentity::generate();
            write_id_file(&file, &fresh)?;
            return Ok(fresh);
        }
    };
    let message = format!(
        "{name}: {what}. The server does not start: machines whose installation is not in the database would be installed again, and their preserved data would be lost. Restore the correct database with `drophammer serve restore`, which rejects a wrong database"
    );
    Err(Error::new(Phase::Serve, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_count_is_written_only_for_its_database() {
        let dir = tempfile::tempdir().unwrap();
        let path = id_path(&dir.path().join("drophammer.sqlite"));
        assert_eq!(read_id_file(&path).unwrap(), None);
        let mut identity = DatabaseIdentity::generate();
        assert!(update_count(&path, &identity).unwrap_err().to_string().contains("drophammer.id is missing"));
        write_id_file(&path, &identity).unwrap();
        identity.transactions = 1234;
        update_count(&path, &identity).unwrap();
        assert_eq!(read_id_file(&path).unwrap().unwrap(), identity);
        assert!(update_count(&path, &DatabaseIdentity::generate()).is_err());
        fs::write(&path, "nonsense\n").unwrap();
        assert!(read_id_file(&path).unwrap_err().to_string().contains("drophammer.id does not contain an id"));
    }
}
