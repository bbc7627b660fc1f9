//! Tables of the database, and the columns that are added to databases of earlier versions.

use super::{
    address_ranges, changed_record_tracking, database_epoch, login_sessions, oidc_users, postgres_backup, server_leases,
};
use crate::sql::{self, Connection, OptionalExtension, Transaction, ValueKind};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS machines (
        id TEXT PRIMARY KEY, macs TEXT NOT NULL DEFAULT '[]', name TEXT NOT NULL DEFAULT '', registered TEXT,
        last_seen TEXT, last_event TEXT) STRICT;
    CREATE TABLE IF NOT EXISTS boots (
        hash BLOB PRIMARY KEY, machine TEXT NOT NULL, created TEXT NOT NULL, asked_by TEXT NOT NULL,
        while_heard INTEGER NOT NULL, address TEXT, begun INTEGER NOT NULL DEFAULT 0, over INTEGER) STRICT;
    CREATE INDEX IF NOT EXISTS boots_of_machine ON boots (machine);
    CREATE TABLE IF NOT EXISTS allocations (
        machine TEXT NOT NULL, id TEXT NOT NULL, created TEXT NOT NULL, succeeded INTEGER NOT NULL DEFAULT 0,
        report TEXT, PRIMARY KEY (machine, id)) STRICT;
    CREATE INDEX IF NOT EXISTS allocations_by_id ON allocations (id);
    CREATE TABLE IF NOT EXISTS layouts (
        machine TEXT NOT NULL, allocation TEXT NOT NULL, layout TEXT NOT NULL, PRIMARY KEY (machine, allocation)) STRICT;
    CREATE TABLE IF NOT EXISTS orders (
        machine TEXT NOT NULL, allocation TEXT NOT NULL, id TEXT NOT NULL, image TEXT NOT NULL, created TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0, begun INTEGER NOT NULL DEFAULT 0, without_marker INTEGER NOT NULL,
        given_up INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (machine, allocation)) STRICT;
    CREATE TABLE IF NOT EXISTS events (
        id INTEGER PRIMARY KEY, machine TEXT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS events_of_machine ON events (machine, id);
    CREATE TABLE IF NOT EXISTS log (
        id INTEGER PRIMARY KEY, machine TEXT NOT NULL, boot BLOB NOT NULL, start INTEGER NOT NULL, bytes INTEGER NOT NULL,
        time TEXT NOT NULL, text TEXT NOT NULL, UNIQUE (machine, boot, start)) STRICT;
    CREATE TABLE IF NOT EXISTS digests (
        path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS identity (
        one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, transactions INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS former (former TEXT PRIMARY KEY, machine TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS moves (
        id TEXT PRIMARY KEY, a TEXT NOT NULL, b TEXT NOT NULL, allocation TEXT NOT NULL, state TEXT NOT NULL,
        live INTEGER NOT NULL, created TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS moves_live ON moves (live);
    CREATE TABLE IF NOT EXISTS barred (
        machine TEXT NOT NULL, allocation TEXT NOT NULL, move TEXT NOT NULL, PRIMARY KEY (machine, allocation)) STRICT;
    CREATE TABLE IF NOT EXISTS epoch (
        one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, sequence INTEGER NOT NULL CHECK (sequence >= 0),
        restored TEXT) STRICT;
    CREATE TABLE IF NOT EXISTS out_of_band (
        machine TEXT PRIMARY KEY, active INTEGER NOT NULL, document TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS out_of_band_active ON out_of_band (active);
    CREATE TABLE IF NOT EXISTS confirmed (machine TEXT PRIMARY KEY, by TEXT NOT NULL, time TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS history (
        id INTEGER PRIMARY KEY, machine TEXT NOT NULL, time TEXT NOT NULL, entry TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS history_of_machine ON history (machine, id);
    CREATE TABLE IF NOT EXISTS rollouts (
        id INTEGER PRIMARY KEY, state TEXT NOT NULL, active INTEGER NOT NULL, document TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS rollout_members (
        rollout INTEGER NOT NULL, number INTEGER NOT NULL, machine TEXT NOT NULL, state TEXT NOT NULL,
        document TEXT NOT NULL, PRIMARY KEY (rollout, number)) STRICT;
    CREATE INDEX IF NOT EXISTS rollout_members_of_machine ON rollout_members (machine, rollout);
    CREATE INDEX IF NOT EXISTS rollout_members_by_state ON rollout_members (rollout, state, number);
    CREATE TABLE IF NOT EXISTS users (
        name TEXT PRIMARY KEY, role TEXT NOT NULL, projects TEXT NOT NULL, disabled INTEGER NOT NULL,
        created TEXT NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS user_tokens (
        hash TEXT PRIMARY KEY, user_name TEXT NOT NULL, name TEXT NOT NULL, created TEXT NOT NULL, expires TEXT,
        last_used TEXT, revoked TEXT, UNIQUE (user_name, name)) STRICT;
    CREATE TABLE IF NOT EXISTS audit (
        id INTEGER PRIMARY KEY, time TEXT NOT NULL, who TEXT NOT NULL, token TEXT NOT NULL, role TEXT NOT NULL,
        address TEXT NOT NULL, request TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, action TEXT NOT NULL,
        object TEXT NOT NULL, outcome TEXT NOT NULL, status INTEGER, committed INTEGER NOT NULL, changes TEXT NOT NULL,
        reason TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS audit_of_object ON audit (object, id);
";

/// Documents of the operator, which are used only on PostgreSQL. `document_source` contains a row once documents have
/// been stored: the revision and the author of the last change.
const DOCUMENT_TABLES: &str = "
    CREATE TABLE IF NOT EXISTS documents (
        path TEXT PRIMARY KEY, text TEXT NOT NULL, executable INTEGER NOT NULL, revision INTEGER NOT NULL,
        changed TEXT NOT NULL, changed_by TEXT NOT NULL) STRICT;
    CREATE INDEX IF NOT EXISTS documents_by_revision ON documents (revision);
    CREATE TABLE IF NOT EXISTS document_source (
        one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, changed TEXT NOT NULL,
        changed_by TEXT NOT NULL) STRICT;
";

/// Index of the MACs in `machines.macs`, on SQLite only. Without it, each boot would read the MACs of all machines
/// twice. Triggers maintain the index, so it is correct even after changes by a server of an earlier version.
const MACS: &str = "
    CREATE TABLE IF NOT EXISTS machine_macs (
        mac TEXT NOT NULL, machine TEXT NOT NULL, PRIMARY KEY (mac, machine)) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS machine_macs_of_machine ON machine_macs (machine);
    CREATE TRIGGER IF NOT EXISTS machine_macs_inserted AFTER INSERT ON machines WHEN json_valid(NEW.macs) BEGIN
        INSERT OR IGNORE INTO machine_macs SELECT lower(value), NEW.id FROM json_each(NEW.macs) WHERE type = 'text'; END;
    CREATE TRIGGER IF NOT EXISTS machine_macs_updated AFTER UPDATE OF id, macs ON machines
        WHEN (OLD.macs IS NOT NEW.macs OR OLD.id IS NOT NEW.id) AND json_valid(NEW.macs) BEGIN
        DELETE FROM machine_macs WHERE machine = OLD.id;
        INSERT OR IGNORE INTO machine_macs SELECT lower(value), NEW.id FROM json_each(NEW.macs) WHERE type = 'text'; END;
    CREATE TRIGGER IF NOT EXISTS machine_macs_deleted AFTER DELETE ON machines BEGIN
        DELETE FROM machine_macs WHERE machine = OLD.id; END;
    INSERT OR IGNORE INTO machine_macs SELECT lower(each.value), machines.id
        FROM machines, json_each(iif(json_valid(macs), macs, '[]')) AS each WHERE each.type = 'text';
    DROP INDEX IF EXISTS machines_by_macs;
";

/// Index of the machines without a machine file.
const DEFAULT_UNKNOWN_MACHINES_LIMIT: &str =
    "CREATE INDEX IF NOT EXISTS machines_unknown ON machines (id) WHERE stranger IS NOT NULL";

/// Columns that later versions added, by table:
///
/// * `allocations`: the installation (image, layout, marker, and Kubernetes volumes), the outcome of the last
///   reinstall, the disks of a first installation that has started, and the failure of the last attempt. The table also
///   contains the adoption by the operator with the marker that was shown, the marker that waits for confirmation, the
///   fencing token, and the fields of the installed allocation and of the attempt that started last.
/// * `layouts`: the layout, image and fields that were served last, and the order for which they were served.
/// * `orders`: the disks, the boot and the secret digest of the last attempt that has started, and the fencing token.
///   The table also contains the operator's options, and the time at which the last attempt was counted, until the boot
///   of this attempt has registered.
/// * `machines`: whether the machine lacks a machine file, the time of the registration, and whether the machine has
///   started to erase disks since then. The table also contains the last usable UUID that the machine's firmware
///   reported, the time at which the operator freed the machine, and the time of the last report, until a later boot
///   sends an event.
/// * `moves`: the whole record. A database without this column was created by a version that did not support
///   migrations.
/// * `identity`: the time at which this database replaced a lost database.
/// * `digests`: the inode of the file. A digest without this column was computed by an earlier version, and is computed
///   again.
/// * `out_of_band`: the run of steps through the management controller. A database without this column was created by a
///   version that did not support these runs.
const LATER_COLUMNS: [(&str, &str); 33] = [
    ("allocations", "image"),
    ("allocations", "layout"),
    ("allocations", "marker"),
    ("allocations", "outcome"),
    ("allocations", "begun"),
    ("allocations", "adopted"),
    ("allocations", "waits"),
    ("allocations", "volumes"),
    ("allocations", "fencing"),
    ("layouts", "document"),
    ("layouts", "image"),
    ("layouts", "for_order"),
    ("orders", "disks"),
    ("orders", "words"),
    ("orders", "handed"),
    ("orders", "fencing"),
    ("machines", "stranger"),
    ("machines", "registered_at"),
    ("machines", "begun_since"),
    ("machines", "smbios_uuid"),
    ("moves", "document"),
    ("identity", "lost"),
    ("machines", "freed"),
    ("orders", "attempt"),
    ("allocations", "adopted_marker"),
    ("layouts", "fields"),
    ("allocations", "started_fields"),
    ("allocations", "fields"),
    ("out_of_band", "document"),
    ("allocations", "failure"),
    ("machines", "reported"),
    ("orders", "unregistered"),
    ("digests", "inode"),
];

/// Version of the schema. A change of the tables increases the version if servers of earlier versions would misread the
/// changed tables, or would fail to write data that later versions require: a server with schema version 2, for
/// example, does not register its address range. Columns that earlier versions can ignore do not increase the version.
const VERSION: i64 = 3;

/// Creates the tables, or adds the tables and columns that a database of an earlier version lacks.
///
/// # Errors
/// Returns an error if the database was written by a newer version, or cannot be written.
pub fn upgrade_schema(connection: &Connection) -> sql::Result<()> {
    let transaction = connection.transaction()?;
    create_tables(&transaction)?;
    convert_tokens(&transaction)?;
    database_epoch::complete_epoch(&transaction)?;
    transaction.commit()
}

/// Creates the tables and columns that are missing.
pub(crate) fn create_tables(transaction: &Transaction) -> sql::Result<()> {
    check_version(transaction)?;
    let of_modules = [oidc_users::TABLES, server_leases::TABLES, address_ranges::TABLES, login_sessions::TABLES];
    let tables = [TABLES, DOCUMENT_TABLES].concat() + &of_modules.concat();
    match transaction.as_postgres() {
        Some(_) => transaction.execute_batch(&(postgres_tables(&tables) + POSTGRES_CALLS))?,
        None => transaction.execute_batch(&tables)?,
    }
    for (table, column) in LATER_COLUMNS {
        if !has_column(transaction, table, column)? {
            transaction
                .execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {column} {}", text_type(transaction)))?;
        }
    }
    match transaction.as_postgres() {
        Some(_) => {
            transaction.execute_batch(&postgres_mac_index())?;
            changed_record_tracking::create_postgres_triggers(transaction)?;
        }
        None => {
            transaction.execute_batch(MACS)?;
            changed_record_tracking::create_triggers(transaction)?;
        }
    }
    transaction.execute_batch(DEFAULT_UNKNOWN_MACHINES_LIMIT)
}

/// Tables that are not copied: tables that exist on one engine or in backups only, and the leases, address ranges and
/// login sessions of running servers.
const OWN_TABLES: [&str; 9] = [
    "boot_calls",
    "schema_version",
    "moved_to",
    "machine_macs",
    "record_versions",
    "server_leases",
    "address_ranges",
    "login_sessions",
    postgres_backup::TABLE,
];

/// Returns the tables that are copied to another database: all except [`OWN_TABLES`].
pub(crate) fn list_tables(connection: &Connection) -> sql::Result<Vec<String>> {
    let select = match connection.as_postgres() {
        Some(_) => "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1",
        None => "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1",
    };
    let tables: Vec<String> =
        connection.prepare(select)?.query_map([], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    Ok(tables.into_iter().filter(|table| !OWN_TABLES.contains(&table.as_str())).collect())
}

/// Returns the names of a table's columns.
pub(crate) fn list_columns(connection: &Connection, table: &str) -> sql::Result<Vec<String>> {
    let select = match connection.as_postgres() {
        Some(_) => {
            "SELECT CAST(column_name AS TEXT) FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = ?1 ORDER BY ordinal_position"
        }
        None => "SELECT name FROM pragma_table_info(?1) ORDER BY cid",
    };
    connection.prepare(select)?.query_map([table], |row| row.get(0))?.collect()
}

/// Returns the types of columns. On SQLite, returns [`ValueKind::Text`] for all columns, because SQLite does not need
/// the type of a NULL value.
pub(crate) fn column_kinds(connection: &Connection, table: &str, columns: &[String]) -> sql::Result<Vec<ValueKind>> {
    if connection.as_postgres().is_none() {
        return Ok(vec![ValueKind::Text; columns.len()]);
    }
    let select = "SELECT CAST(data_type AS TEXT) FROM information_schema.columns
         WHERE table_schema = current_schema() AND table_name = ?1 AND column_name = ?2";
    let select = connection.prepare(select)?;
    let kind = |column: &String| {
        let name: String = select.query_row([table, column], |row| row.get(0))?;
        Ok(match name.as_str() {
            "bigint" => ValueKind::Integer,
            "bytea" => ValueKind::Blob,
            "double precision" => ValueKind::Real,
            _ => ValueKind::Text,
        })
    };
    columns.iter().map(kind).collect()
}

/// Returns whether the database has all columns, i.e. [`upgrade_schema`] would not add any.
pub(crate) fn is_current_schema(connection: &Connection) -> sql::Result<bool> {
    for (table, column) in LATER_COLUMNS {
        if !has_column(connection, table, column)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// For each boot: the time of its most recent request. Servers that share a PostgreSQL database exchange these times.
const POSTGRES_CALLS: &str = "CREATE TABLE IF NOT EXISTS boot_calls (boot BYTEA PRIMARY KEY, called BIGINT NOT NULL);";

/// Index of the MACs in `machines.macs` on PostgreSQL; see [`MACS`]. A query must contain the same expression.
fn postgres_mac_index() -> String {
    format!("CREATE INDEX IF NOT EXISTS machines_mac_array ON machines USING gin (({POSTGRES_MAC_ARRAY}))")
}

/// Expression that returns the MACs in `machines.macs` as an array of PostgreSQL. Unlike a conversion to JSON, it never
/// fails.
pub(crate) const POSTGRES_MAC_ARRAY: &str = r#"string_to_array(translate(lower(macs), '[]" ', ''), ',')"#;

/// Converts the statements that create the tables to PostgreSQL. Texts are compared by bytes, as in SQLite. Tables
/// whose rows are ordered by SQLite's `rowid` get a column of this name.
fn postgres_tables(tables: &str) -> String {
    let ordered = |table: &str| format!("CREATE TABLE IF NOT EXISTS {table} (");
    let mut tables = to_postgres(tables);
    for table in ROWID_TABLES {
        let with_number = format!("{}rowid BIGINT GENERATED BY DEFAULT AS IDENTITY,", ordered(table));
        tables = tables.replace(&ordered(table), &with_number);
    }
    tables
}

/// Converts the types of statements that create tables.
pub(crate) fn to_postgres(tables: &str) -> String {
    tables
        .replace(") STRICT;", ");")
        .replace(") STRICT, WITHOUT ROWID;", ");")
        .replace("INTEGER PRIMARY KEY", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY")
        .replace(" INTEGER", " BIGINT")
        .replace(" BLOB", " BYTEA")
        .replace(" TEXT", &format!(" {POSTGRES_TEXT}"))
}

/// Tables whose rows are ordered by `rowid`.
pub(crate) const ROWID_TABLES: [&str; 2] = ["orders", "moves"];
const POSTGRES_TEXT: &str = "TEXT COLLATE \"C\"";

fn text_type(connection: &Connection) -> &'static str {
    if connection.as_postgres().is_some() { POSTGRES_TEXT } else { "TEXT" }
}

/// Returns whether the table exists.
pub(crate) fn has_table(connection: &Connection, table: &str) -> sql::Result<bool> {
    let select = match connection.as_postgres() {
        Some(_) => "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?1",
        None => "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1",
    };
    connection.prepare(select)?.exists([table])
}

fn has_column(connection: &Connection, table: &str, column: &str) -> sql::Result<bool> {
    let select = match connection.as_postgres() {
        Some(_) => {
            "SELECT 1 FROM information_schema.columns
             WHERE table_schema = current_schema() AND table_name = ?1 AND column_name = ?2"
        }
        None => "SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2",
    };
    connection.prepare(select)?.exists([table, column])
}

/// Records the version of the schema, and refuses a newer version: servers of several versions may share a PostgreSQL
/// database, and the program of a SQLite file may be replaced with an earlier version.
fn check_version(transaction: &Transaction) -> sql::Result<()> {
    if transaction.as_postgres().is_some() {
        transaction.execute_batch(
            "CREATE TABLE IF NOT EXISTS schema_version (
                one BIGINT PRIMARY KEY CHECK (one = 1), version BIGINT NOT NULL)",
        )?;
    }
    if refuse_newer_version(transaction)? == Some(VERSION) {
        return Ok(());
    }
    if transaction.as_postgres().is_none() {
        return transaction.execute_batch(&format!("PRAGMA user_version = {VERSION}"));
    }
    let insert = "INSERT INTO schema_version (one, version) VALUES (1, ?1)
         ON CONFLICT (one) DO UPDATE SET version = ?1";
    transaction.execute(insert, [VERSION]).map(drop)
}

/// Returns the version of the schema; `None` if no version is recorded yet. SQLite files without a version were written
/// by versions of the program up to schema version 3.
///
/// # Errors
/// Returns an error if the version is newer than that of this program.
pub(crate) fn refuse_newer_version(connection: &Connection) -> sql::Result<Option<i64>> {
    let version = match connection.as_postgres() {
        Some(_) => connection.query_row(VERSION_QUERY, [], |row| row.get(0)).optional()?,
        None => {
            let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            (version > 0).then_some(version)
        }
    };
    version.map_or(Ok(()), compare_version)?;
    Ok(version)
}

/// Query of the schema version in a PostgreSQL database.
pub(crate) const VERSION_QUERY: &str = "SELECT version FROM schema_version";

/// Refuses a schema version that is newer than that of this program.
pub(crate) fn compare_version(version: i64) -> sql::Result<()> {
    match version > VERSION {
        true => Err(sql::Error::NewerSchema { version, supported: VERSION }),
        false => Ok(()),
    }
}

/// Converts the machine tokens of earlier versions to boots. These boots must register again.
fn convert_tokens(transaction: &Transaction) -> sql::Result<()> {
    if has_table(transaction, "tokens")? {
        transaction.execute_batch(
            "INSERT INTO boots (hash, machine, created, asked_by, while_heard)
                 SELECT hash, machine, created, '', 0 FROM tokens WHERE true ON CONFLICT DO NOTHING;
             DROP TABLE tokens;",
        )?;
    }
    Ok(())
}
