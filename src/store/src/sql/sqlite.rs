//! Statements on SQLite.

use super::{Result, Row, Value, ValueKind};
use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

/// Number of prepared statements that a connection caches. The store has fewer statements.
pub(super) const STATEMENTS_CACHED: usize = 256;

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null(_) => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(*number),
            Value::Real(number) => ValueRef::Real(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

pub(super) fn execute(connection: &Connection, sql: &str, values: &[Value]) -> Result<usize> {
    Ok(connection.prepare_cached(sql)?.execute(params_from_iter(values))?)
}

pub(super) fn query(connection: &Connection, sql: &str, values: &[Value]) -> Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map(params_from_iter(values), |row| {
        (0..columns).map(|column| read_value(row.get_ref(column)?, column)).collect::<rusqlite::Result<_>>().map(Row)
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn read_value(value: ValueRef<'_>, column: usize) -> rusqlite::Result<Value> {
    let no_text = |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error));
    Ok(match value {
        ValueRef::Null => Value::Null(ValueKind::Text),
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => Value::Text(String::from_utf8(text.to_vec()).map_err(no_text)?),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    })
}

/// Rolls back the open transaction. After some errors, SQLite has rolled it back already.
pub(super) fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        // If this fails, the connection cannot begin another transaction, and each later call reports an error.
        let _ = connection.execute_batch("ROLLBACK");
    }
}
