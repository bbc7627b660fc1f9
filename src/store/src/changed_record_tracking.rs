//! Versions of the records of machines. Triggers maintain the versions: each change of a record assigns the next
//! version to its machine, in the same transaction. A list of machines therefore reads only the records that have
//! changed since the previous list. Transactions that write are executed one after the other on both engines, so the
//! versions increase in the order of the commits.
//!
//! A SQLite file belongs to one server. This server deletes the versions that it has read, except the last one, from
//! which the numbering continues. In PostgreSQL, the versions are kept, because other servers read them.

use crate::schema::to_postgres;
use crate::sql::{self, Connection};
use crate::{MachineContact, ServerState};
use common::error::Result;

/// Name of the version that is increased if the records of all machines may have changed.
const ALL: &str = "";

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS record_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS record_versions_by_version ON record_versions (version);
";

/// Columns that identify the machines and allocations of a table's rows. The table with the last contacts of machines
/// is not included, because a contact changes with each event. Lists read all contacts at once.
const SOURCES: [(&str, &[&str]); 9] = [
    ("allocations", &["machine", "id"]),
    ("layouts", &["machine"]),
    ("orders", &["machine"]),
    ("boots", &["machine"]),
    ("moves", &["a", "b"]),
    ("barred", &["machine"]),
    ("confirmed", &["machine"]),
    ("former", &["machine"]),
    ("out_of_band", &["machine"]),
];

/// Events of a row, and the names under which a trigger accesses the row before and after the event.
const EVENTS: [(&str, &[&str]); 3] = [("INSERT", &["NEW"]), ("UPDATE", &["OLD", "NEW"]), ("DELETE", &["OLD"])];

/// Columns whose change affects the records of all machines.
const COMMON_SOURCES: [(&str, &str); 2] = [("identity", "id, lost"), ("epoch", "id, restored")];

/// Records of machines that have changed since a version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordChanges {
    /// Version that the last change has assigned.
    pub version: i64,
    /// Ids of the machines and allocations with changed records.
    pub changed: Vec<String>,
    /// True if the records of all machines may have changed.
    pub includes_all: bool,
}

/// Creates the table and its triggers in PostgreSQL, unless they exist. Replacing existing triggers would wait for the
/// transactions of other servers.
pub(crate) fn create_postgres_triggers(connection: &Connection) -> sql::Result<()> {
    let exists = "SELECT to_regproc('advance_record_version') IS NOT NULL";
    if connection.query_row(exists, [], |row| row.get(0))? {
        return Ok(());
    }
    let mut batch = to_postgres(TABLE)
        + "CREATE FUNCTION advance_record_version(changed TEXT) RETURNS void LANGUAGE sql AS $$
               INSERT INTO record_versions (name, version)
                   VALUES (changed, (SELECT coalesce(max(version), 0) + 1 FROM record_versions))
                   ON CONFLICT (name) DO UPDATE SET version = excluded.version
           $$;";
    for (table, columns) in SOURCES {
        for (event, rows) in EVENTS {
            let values = rows.iter().flat_map(|row| columns.iter().map(move |column| format!("{row}.{column}")));
            let advances: String = values.map(|value| format!("PERFORM advance_record_version({value});")).collect();
            batch += &postgres_trigger(table, event, "", &advances);
        }
    }
    let advance = format!("PERFORM advance_record_version('{ALL}');");
    for (table, columns) in COMMON_SOURCES {
        batch += &postgres_trigger(table, "INSERT", "", &advance);
        batch += &postgres_trigger(table, "UPDATE", &format!("OF {columns}"), &advance);
    }
    connection.execute_batch(&batch)
}

fn postgres_trigger(table: &str, event: &str, of: &str, advances: &str) -> String {
    let name = format!("record_versions_{table}_{}", event.to_lowercase());
    format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {advances} RETURN NULL; END $$;
         CREATE TRIGGER {name} AFTER {event} {of} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}();\n"
    )
}

/// Creates the table and its triggers in a SQLite file.
pub(crate) fn create_triggers(connection: &Connection) -> sql::Result<()> {
    let advance = |value: &str| {
        format!(
            "INSERT INTO record_versions (name, version)
                 VALUES ({value}, (SELECT coalesce(max(version), 0) + 1 FROM record_versions))
                 ON CONFLICT (name) DO UPDATE SET version = excluded.version;"
        )
    };
    let mut batch = TABLE.to_owned();
    for (table, columns) in SOURCES {
        for (event, rows) in EVENTS {
            let values = rows.iter().flat_map(|row| columns.iter().map(move |column| format!("{row}.{column}")));
            let advances: String = values.map(|value| advance(&value)).collect();
            let name = format!("record_versions_{table}_{}", event.to_lowercase());
            batch += &format!("CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {table} BEGIN {advances} END;\n");
        }
    }
    for (table, columns) in COMMON_SOURCES {
        for event in ["INSERT".to_owned(), format!("UPDATE OF {columns}")] {
            let name = format!("record_versions_{table}_{}", event[..6].to_lowercase());
            let advance = advance(&format!("'{ALL}'"));
            batch += &format!("CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {table} BEGIN {advance} END;\n");
        }
    }
    connection.execute_batch(&batch)
}

fn read_changes(connection: &Connection, known: i64) -> sql::Result<RecordChanges> {
    let select = "SELECT name, version FROM record_versions WHERE version > ?1 ORDER BY version";
    let changes = connection.prepare_cached(select)?;
    let changes: Vec<(String, i64)> =
        changes.query_map([known], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<sql::Result<_>>()?;
    let Some((_, version)) = changes.last().cloned() else { return read_unchanged(connection, known) };
    let includes_all = changes.iter().any(|(name, _)| name == ALL);
    Ok(RecordChanges { version, changed: changes.into_iter().map(|(name, _)| name).collect(), includes_all })
}

/// Returns no changes if `known` is the last version. If the last version is lower, an older state of the database was
/// restored, and all records may have changed.
fn read_unchanged(connection: &Connection, known: i64) -> sql::Result<RecordChanges> {
    let select = "SELECT coalesce(max(version), 0) FROM record_versions";
    let version = connection.query_row(select, [], |row| row.get(0))?;
    Ok(RecordChanges { version, changed: Vec::new(), includes_all: version < known })
}

impl ServerState {
    /// Returns the records that have changed since the version `known`. Returns `None` if the versions cannot be read
    /// without delaying the requests of machines.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn read_record_changes(&self, known: i64) -> Result<Option<RecordChanges>> {
        if self.reader.is_none() {
            return Ok(None);
        }
        self.read_committed(move |connection| read_changes(connection, known)).await.map(Some)
    }

    /// Returns the records that have changed since the version `known`. Returns `None` for a SQLite file, whose
    /// versions are deleted after they were read for a list of machines. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub fn read_kept_record_changes(&self, known: i64) -> Result<Option<RecordChanges>> {
        if !self.is_shared() {
            return Ok(None);
        }
        self.read_committed_blocking(move |connection| read_changes(connection, known)).map(Some)
    }

    /// Deletes the versions below `known`, unless other servers share the database. All of them must have been read.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn prune_record_versions(&self, known: i64) -> Result<()> {
        if self.is_shared() {
            return Ok(());
        }
        let delete = "DELETE FROM record_versions WHERE version < ?1";
        self.run_deferred(move |transaction| transaction.execute(delete, [known]).map(drop)).await
    }

    /// Returns the stored contacts of all machines, each with the id of its machine. The boots are not included.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_contacts(&self) -> Result<Vec<(String, MachineContact)>> {
        self.read_committed(|connection| {
            let select = "SELECT id, last_seen, last_event, reported IS NOT NULL FROM machines";
            let all = connection.prepare_cached(select)?.query_map([], |row| {
                let (last_seen, last_event, has_reported) = (row.get(1)?, row.get(2)?, row.get(3)?);
                Ok((row.get(0)?, MachineContact { last_seen, last_event, has_reported, boot: None }))
            })?;
            all.collect()
        })
        .await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::schema;

    /// Returns the names whose versions are above `known`, and sets `known` to the last version.
    fn list_changed(connection: &Connection, known: &mut i64) -> Vec<String> {
        let RecordChanges { version, mut changed, .. } = read_changes(connection, *known).unwrap();
        *known = version;
        changed.sort();
        changed
    }

    /// Checks that each change of a record is read as a change of its machine and allocation.
    pub(crate) fn check_changes(connection: &Connection) {
        let mut known = read_changes(connection, 0).unwrap().version;
        for (statement, expected) in [
            ("INSERT INTO allocations (machine, id, created) VALUES ('m', 'a', '')", &["a", "m"][..]),
            ("UPDATE allocations SET succeeded = 1 WHERE id = 'a'", &["a", "m"]),
            ("INSERT INTO machines (id, last_seen) VALUES ('m', 't') ON CONFLICT DO NOTHING", &[]),
            ("UPDATE machines SET last_event = '{}'", &[]),
            ("INSERT INTO confirmed (machine, by, time) VALUES ('m', 'x', '')", &["m"]),
            ("UPDATE confirmed SET machine = 'n' WHERE machine = 'm'", &["m", "n"]),
            ("DELETE FROM confirmed", &["n"]),
            (
                "INSERT INTO moves (id, a, b, allocation, state, live, created) VALUES ('1', 'm', 'n', 'a', '', 1, '')",
                &["m", "n"],
            ),
            ("UPDATE moves SET live = 0", &["m", "n"]),
            (
                "INSERT INTO out_of_band (machine, active, document) VALUES ('m', 1, '{}') ON CONFLICT (machine) DO UPDATE SET active = 1",
                &["m"],
            ),
            ("INSERT INTO former (former, machine) VALUES ('o', 'm')", &["m"]),
            ("INSERT INTO barred (machine, allocation, move) VALUES ('m', 'a', '1')", &["m"]),
            ("INSERT INTO layouts (machine, allocation, layout) VALUES ('m', 'a', 'l')", &["m"]),
            (
                "INSERT INTO orders (machine, allocation, id, image, created, without_marker) VALUES ('m', 'a', 'o', 'i', '', 0)",
                &["m"],
            ),
            (
                "INSERT INTO boots (hash, machine, created, asked_by, while_heard) VALUES (x'01', 'm', '', '', 0)",
                &["m"],
            ),
            ("UPDATE boots SET over = 1", &["m"]),
            ("DELETE FROM allocations", &["a", "m"]),
            ("UPDATE epoch SET sequence = sequence + 1", &[]),
            ("UPDATE epoch SET restored = 't'", &[""]),
            ("DELETE FROM identity", &[]),
            ("INSERT INTO identity (one, id, transactions) VALUES (1, 'i', 0)", &[""]),
            ("UPDATE identity SET transactions = transactions + 1", &[]),
            ("UPDATE identity SET lost = 't'", &[""]),
        ] {
            let blob = if connection.as_postgres().is_some() { r"'\x01'" } else { "x'01'" };
            connection.execute(&statement.replace("x'01'", blob), []).unwrap();
            assert_eq!(list_changed(connection, &mut known), expected, "{statement}");
        }
        assert!(read_changes(connection, 0).unwrap().includes_all && list_changed(connection, &mut known).is_empty());
        // An older state of the database was restored.
        assert!(read_changes(connection, known + 1).unwrap().includes_all);
    }

    #[test]
    fn changes_assign_new_versions_to_machines_and_allocations() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        check_changes(&connection);
    }

    #[test]
    fn rollback_changes_no_version_and_numbers_survive_pruning() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        let mut known = read_changes(&connection, 0).unwrap().version;
        let insert = "INSERT INTO confirmed (machine, by, time) VALUES (?1, 'x', '')";
        let transaction = connection.transaction().unwrap();
        transaction.execute(insert, ["m"]).unwrap();
        drop(transaction);
        assert!(list_changed(&connection, &mut known).is_empty());
        connection.execute(insert, ["m"]).unwrap();
        assert_eq!(list_changed(&connection, &mut known), ["m"]);
        connection.execute("DELETE FROM record_versions WHERE version < ?1", [known]).unwrap();
        connection.execute(insert, ["n"]).unwrap();
        assert_eq!(list_changed(&connection, &mut known), ["n"]);
    }
}
