//! First steps after a restore from a backup: all machines are marked as unconfirmed, and the operator gets
//! instructions.

use crate::sql::{self, Connection};
use crate::{database_epoch, now, rollouts, schema};
use common::format;
use std::path::Path;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Record of one allocation in a restored database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RestoredRecord {
    pub machine: String,
    pub name: String,
    pub allocation: String,
    /// State of the allocation according to the database, as shown to the operator.
    pub record: String,
    /// Pending installation or migration, which is withheld until the machine is confirmed; empty if there is none.
    pub withheld: String,
}

/// Upgrades the database to the current schema, and starts a new epoch. Returns all records, and the time of the newest
/// entry.
pub(crate) fn mark_unconfirmed(connection: &Connection) -> sql::Result<(Vec<RestoredRecord>, Option<String>)> {
    schema::upgrade_schema(connection)?;
    let transaction = connection.transaction()?;
    database_epoch::start_restored_epoch(&transaction, &now())?;
    rollouts::halt_restored(&transaction)?;
    let (records, newest) = (read_records(&transaction)?, find_newest_entry(&transaction)?);
    transaction.commit()?;
    Ok((records, newest))
}

fn read_records(connection: &Connection) -> sql::Result<Vec<RestoredRecord>> {
    let all = connection.prepare(
        "SELECT a.machine, coalesce(m.name, ''), a.id, a.succeeded, coalesce(a.image, ''), a.adopted IS NOT NULL,
             a.begun IS NOT NULL, coalesce(o.image, ''), coalesce(o.begun, 0), o.id IS NOT NULL,
             coalesce((SELECT v.state FROM moves v WHERE v.live = 1 AND v.allocation = a.id LIMIT 1), '')
         FROM allocations a LEFT JOIN machines m ON m.id = a.machine
             LEFT JOIN orders o ON o.machine = a.machine AND o.allocation = a.id
         ORDER BY 2, 1, 3",
    )?;
    let rows = all.query_map([], |row| {
        let (image, ordered): (String, String) = (row.get(4)?, row.get(7)?);
        let (succeeded, adopted, started): (bool, bool, bool) = (row.get(3)?, row.get(5)?, row.get(6)?);
        let (order_begun, is_ordered): (u32, bool) = (row.get(8)?, row.get(9)?);
        let migration: String = row.get(10)?;
        let record = match (succeeded, adopted, started) {
            (true, ..) => format!("installed: {}", if image.is_empty() { "unknown image" } else { &image }),
            (false, true, _) => "adopted".to_owned(),
            (false, false, true) => "first installation started".to_owned(),
            (false, false, false) => "not installed".to_owned(),
        };
        let withheld = match (succeeded || adopted, is_ordered, migration.is_empty()) {
            (_, _, false) => format!("migration ({migration})"),
            (true, true, true) if order_begun > 0 => format!("reinstall with {ordered} (started)"),
            (true, true, true) => format!("reinstall with {ordered}"),
            (true, false, true) => String::new(),
            (false, _, true) => "first installation".to_owned(),
        };
        Ok(RestoredRecord { machine: row.get(0)?, name: row.get(1)?, allocation: row.get(2)?, record, withheld })
    });
    rows?.collect()
}

/// Returns the time of the newest database entry that has a timestamp, as RFC 3339 in UTC. Times in this form can be
/// compared as text.
fn find_newest_entry(connection: &Connection) -> sql::Result<Option<String>> {
    let select = "SELECT max(time) FROM (
         SELECT max(last_seen) AS time FROM machines UNION ALL SELECT max(created) FROM allocations
         UNION ALL SELECT max(created) FROM orders UNION ALL SELECT max(created) FROM moves
         UNION ALL SELECT max(time) FROM events) times";
    connection.query_row(select, [], |row| row.get(0))
}

/// Describes the age of a restored database, its records, and how the operator confirms them.
pub(crate) fn describe_restore(records: &[RestoredRecord], newest: Option<&str>, dir: &Path) -> String {
    let age = newest.map_or_else(|| "The age of the backup is unknown".to_owned(), describe_age);
    let mut rows = vec![["machine", "name", "allocation", "on record", "withheld"].map(str::to_owned)];
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { format::replace_hidden(text) };
    rows.extend(records.iter().map(|record| {
        [&record.machine, &record.name, &record.allocation, &record.record, &record.withheld].map(|cell| or_dash(cell))
    }));
    format!(
        "{age}. Later changes are not on record, so every machine needs confirmation: until a machine is confirmed, no first \
        installation, reinstall or migration of it is carried out, and its installed system boots.\n\n{}\n\
         Compare each record with the machine. Then start the server for {}, and confirm the records that are correct:\n  \
         drophammer machine confirm ID...\n\
         Correct all other records first: `machine reinstall ID --cancel` if the order was carried out or is obsolete, `machine adopt ID` if the machine \
         was installed later, `machine move A --cancel` or `--finish` for a migration. `machine confirm --all` confirms all machines, also \
         those that are added later.\n",
        format::format_columns(&rows),
        dir.display()
    )
}

fn describe_age(newest: &str) -> String {
    let time = OffsetDateTime::parse(newest, &Rfc3339).ok();
    let seconds = time.map(|time| (OffsetDateTime::now_utc() - time).whole_seconds().max(0));
    let ago = seconds.map(|seconds| format!(", {} ago", format::format_seconds(seconds as f64))).unwrap_or_default();
    format!("The newest entry of the backup is from {time}{ago}", time = format::replace_hidden(newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_records_are_listed_with_withheld_actions() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        connection
            .execute_batch(
                "INSERT INTO machines (id, name, last_seen) VALUES ('m1', 'one', '2026-10-05T00:00:00Z');
                 INSERT INTO allocations (machine, id, created, succeeded, image) VALUES
                     ('m1', 'a1', '2026-10-01T00:00:00Z', 1, 'debian-12'), ('m2', 'a2', '2026-10-02T00:00:00Z', 1, NULL),
                     ('m3', 'a3', '2026-10-03T00:00:00Z', 0, NULL), ('m5', 'a5', '2026-10-03T00:00:00Z', 1, 'debian-11');
                 INSERT INTO allocations (machine, id, created, begun) VALUES ('m4', 'a4', '2026-10-03T00:00:00Z', '{}');
                 INSERT INTO orders (machine, allocation, id, image, created, without_marker, begun) VALUES
                     ('m1', 'a1', 'o1', 'debian-13', '2026-10-04T00:00:00Z', 0, 0),
                     ('m2', 'a2', 'o2', 'debian-13', '2026-10-04T00:00:00Z', 0, 1);
                 INSERT INTO moves (id, a, b, allocation, state, live, created) VALUES
                     ('v1', 'm5', 'm6', 'a5', 'copying', 1, '2026-10-04T00:00:00Z');",
            )
            .unwrap();
        let (records, newest) = mark_unconfirmed(&connection).unwrap();
        let short: Vec<_> = records
            .iter()
            .map(|record| (record.machine.as_str(), record.record.as_str(), record.withheld.as_str()))
            .collect();
        assert_eq!(
            short,
            [
                ("m2", "installed: unknown image", "reinstall with debian-13 (started)"),
                ("m3", "not installed", "first installation"),
                ("m4", "first installation started", "first installation"),
                ("m5", "installed: debian-11", "migration (copying)"),
                ("m1", "installed: debian-12", "reinstall with debian-13"),
            ]
        );
        let text = describe_restore(&records, newest.as_deref(), Path::new("/srv/drophammer"));
        for words in ["2026-10-05T00:00:00Z", "one", "drophammer machine confirm ID", "/srv/drophammer"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(describe_restore(&[], None, Path::new(".")).contains("age of the backup is unknown"));
    }
}
