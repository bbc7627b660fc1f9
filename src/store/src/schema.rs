//! Tables of the database, and the columns that are added to databases of earlier versions.

use super::epoch;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

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
";

/// Index of the MACs in `machines.macs`, which triggers maintain, also for servers of earlier versions. A search in the
/// lists themselves would read all of them, twice for each boot.
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
    CREATE INDEX IF NOT EXISTS machines_unknown ON machines (id) WHERE stranger IS NOT NULL;
";

/// Columns that later versions added, by table:
///
/// * `allocations`: the installation (image, layout, marker, and Kubernetes volumes), the outcome of the last
///   reinstall, and the disks of a first installation that has started. Also the adoption by the operator with the
///   marker that was shown, the marker that waits for confirmation, the fencing token, and the fields of the installed
///   allocation and of the attempt that started last. Also the failure of the last attempt.
/// * `layouts`: the layout, image and fields that were served last, and the order for which they were served.
/// * `orders`: the disks, the boot and the secret digest of the last attempt that has started, and the fencing token.
///   Also the operator's options, and the time at which the last attempt was counted, until the boot of this attempt
///   has registered.
/// * `machines`: whether the machine lacks a machine file, the time of the registration, and whether the machine has
///   started to erase disks since then. Also the last usable UUID that the machine's firmware reported, the time at
///   which the operator freed the machine, and the time of the last report, until a later boot sends an event.
/// * `moves`: the whole record. A database without this column was created by a version that did not support
///   migrations.
/// * `identity`: the time at which this database replaced a lost database.
/// * `out_of_band`: the run. A database without this column was created by a version that did not support these runs.
const LATER: [(&str, &str); 31] = [
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
];

/// Creates the tables, or adds the tables and columns that a database of an earlier version lacks.
pub fn upgrade_schema(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    for (table, column) in LATER {
        let select = "SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2";
        let there = transaction.query_row(select, [table, column], |_| Ok(())).optional()?;
        if there.is_none() {
            transaction.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {column} TEXT"))?;
        }
    }
    transaction.execute_batch(MACS)?;
    convert_tokens(&transaction)?;
    epoch::complete_epoch(&transaction)?;
    transaction.commit()
}

/// Returns whether the database has all columns, so that [`upgrade_schema`] would not add any.
pub(crate) fn is_current_schema(connection: &Connection) -> rusqlite::Result<bool> {
    let mut find = connection.prepare("SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2")?;
    for (table, column) in LATER {
        if !find.exists([table, column])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Converts the machine tokens of earlier versions to boots. These boots must register again.
fn convert_tokens(transaction: &Transaction) -> rusqlite::Result<()> {
    let select = "SELECT 1 FROM sqlite_master WHERE name = 'tokens'";
    if transaction.query_row(select, [], |_| Ok(())).optional()?.is_some() {
        transaction.execute_batch(
            "INSERT OR IGNORE INTO boots (hash, machine, created, asked_by, while_heard)
                 SELECT hash, machine, created, '', 0 FROM tokens;
             DROP TABLE tokens;",
        )?;
    }
    Ok(())
}
