//! Copy of all tables from one database to another. The two databases may be of different engines.
//!
//! The copy is verified: for each table, the number of rows and a digest of all values must equal the source.

use crate::schema::{self, ROWID_TABLES};
use crate::sql::{self, Connection, Row, Transaction, Value, params};
use sha2::{Digest, Sha256};

/// Number of rows that are read and written at once.
const BATCH: usize = 200;

/// Number of rows and digest of a table. The digest does not depend on the order of the rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TableDigest {
    pub rows: u64,
    sum: [u128; 2],
}

impl TableDigest {
    fn add_row(&mut self, row: &Row) {
        let mut hash = Sha256::new();
        for value in &row.0 {
            // Each value is preceded by its type and length, so that different rows never have the same encoding.
            let (kind, bytes): (u8, Vec<u8>) = match value {
                Value::Null(_) => (0, Vec::new()),
                Value::Integer(number) => (1, number.to_be_bytes().to_vec()),
                Value::Real(number) => (2, number.to_be_bytes().to_vec()),
                Value::Text(text) => (3, text.clone().into_bytes()),
                Value::Blob(bytes) => (4, bytes.clone()),
            };
            hash.update([kind]);
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let half =
            |range: std::ops::Range<usize>| hash[range].iter().fold(0, |sum, byte| (sum << 8) | u128::from(*byte));
        self.rows += 1;
        self.sum = [self.sum[0].wrapping_add(half(0..16)), self.sum[1].wrapping_add(half(16..32))];
    }
}

/// Copies all tables into a database that has the tables, but no rows, and compares the copy with the source. Returns
/// the number of rows of each table.
///
/// # Errors
/// Returns an error if a database cannot be read or written, or the copy differs from the source.
pub(crate) fn copy_tables(from: &Connection, to: &Transaction) -> sql::Result<Vec<(String, u64)>> {
    let mut copied = Vec::new();
    for table in schema::list_tables(from)? {
        if !schema::has_table(to, &table)? {
            return Err(sql::Error::Unsuitable(format!(
                "this version of drophammer does not support the table {table} of the source database"
            )));
        }
        let columns = common_columns(from, to, &table)?;
        let mut source = TableDigest::default();
        read_batches(from, &table, &columns, |rows| {
            rows.iter().for_each(|row| source.add_row(row));
            insert_rows(to, &table, &columns, rows)
        })?;
        let mut target = TableDigest::default();
        read_batches(to, &table, &columns, |rows| {
            rows.iter().for_each(|row| target.add_row(row));
            Ok(())
        })?;
        if source != target {
            return Err(sql::Error::Unsuitable(format!(
                "table {table}: the copy differs from the source: it has {copied} rows instead of {expected} rows, or \
                other values",
                copied = target.rows,
                expected = source.rows
            )));
        }
        advance_sequences(to, &table)?;
        copied.push((table, source.rows));
    }
    Ok(copied)
}

/// Copies a table without comparing the copy with the source.
///
/// # Errors
/// Returns an error if a database cannot be read or written.
pub(crate) fn copy_table(from: &Connection, to: &Transaction, table: &str) -> sql::Result<()> {
    let columns = common_columns(from, to, table)?;
    read_batches(from, table, &columns, |rows| insert_rows(to, table, &columns, rows))
}

/// Returns the columns that both databases have. Other columns of the source are leftovers of earlier versions.
fn common_columns(from: &Connection, to: &Connection, table: &str) -> sql::Result<Vec<String>> {
    let present = schema::list_columns(to, table)?;
    let columns = schema::list_columns(from, table)?;
    let mut columns: Vec<String> = columns.into_iter().filter(|column| present.contains(column)).collect();
    if ROWID_TABLES.contains(&table) && !columns.iter().any(|column| column == "rowid") {
        columns.push("rowid".to_owned());
    }
    Ok(columns)
}

fn read_batches(
    from: &Connection,
    table: &str,
    columns: &[String],
    mut use_rows: impl FnMut(Vec<Row>) -> sql::Result<()>,
) -> sql::Result<()> {
    let columns = columns.join(", ");
    if from.as_postgres().is_some() {
        // A cached `FETCH` statement has the columns of the cursor's first use, so each table has its own cursor.
        from.execute_batch(&format!("DECLARE rows_of_{table} NO SCROLL CURSOR FOR SELECT {columns} FROM {table}"))?;
        loop {
            let rows = from.query(&format!("FETCH {BATCH} FROM rows_of_{table}"), &[])?;
            if rows.is_empty() {
                return from.execute_batch(&format!("CLOSE rows_of_{table}"));
            }
            use_rows(rows)?;
        }
    }
    let select = format!("SELECT rowid, {columns} FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT {BATCH}");
    let mut last = i64::MIN;
    loop {
        let mut rows = from.query(&select, &params![last])?;
        match rows.last() {
            Some(row) => last = row.get(0)?,
            None => return Ok(()),
        }
        rows.iter_mut().for_each(|row| drop(row.0.remove(0)));
        use_rows(rows)?;
    }
}

fn insert_rows(to: &Transaction, table: &str, columns: &[String], rows: Vec<Row>) -> sql::Result<()> {
    let kinds = schema::column_kinds(to, table, columns)?;
    let places = |row: usize| {
        let numbers: Vec<String> =
            (1..=columns.len()).map(|column| format!("?{}", row * columns.len() + column)).collect();
        format!("({})", numbers.join(", "))
    };
    let places: Vec<String> = (0..rows.len()).map(places).collect();
    let insert = format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), places.join(", "));
    let typed = |row: Row| {
        row.0
            .into_iter()
            .zip(&kinds)
            .map(|(value, kind)| match value {
                Value::Null(_) => Value::Null(*kind),
                value => value,
            })
            .collect::<Vec<_>>()
    };
    to.execute(&insert, rows.into_iter().flat_map(typed).collect::<Vec<Value>>()).map(drop)
}

/// Advances the sequences of PostgreSQL's identity columns past the values in the copied rows.
fn advance_sequences(to: &Transaction, table: &str) -> sql::Result<()> {
    if to.as_postgres().is_none() {
        return Ok(());
    }
    let select = "SELECT column_name FROM information_schema.columns
         WHERE table_schema = current_schema() AND table_name = ?1 AND is_identity = 'YES'";
    let columns: Vec<String> = to.prepare(select)?.query_map([table], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for column in columns {
        let advance =
            format!("SELECT setval(pg_get_serial_sequence(?1, ?2), coalesce((SELECT max({column}) FROM {table}), 1))");
        to.query_row(&advance, [table, &column], |_| Ok(()))?;
    }
    Ok(())
}
