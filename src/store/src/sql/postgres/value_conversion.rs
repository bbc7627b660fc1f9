//! Conversion of values to and from the types of PostgreSQL.

use crate::sql::{Error, Result, Row, Value, ValueKind};
use std::error::Error as StdError;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSqlOwned, IsNull, ToSql, Type, to_sql_checked};

/// Returns the type of a column or parameter.
pub(super) fn column_type(kind: ValueKind) -> Type {
    match kind {
        ValueKind::Integer => Type::INT8,
        ValueKind::Real => Type::FLOAT8,
        ValueKind::Text => Type::TEXT,
        ValueKind::Blob => Type::BYTEA,
    }
}

impl ToSql for Value {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Value::Null(_) => Ok(IsNull::Yes),
            Value::Integer(number) => number.to_sql(of, out),
            Value::Real(number) => number.to_sql(of, out),
            Value::Text(text) => text.to_sql(of, out),
            Value::Blob(bytes) => bytes.to_sql(of, out),
        }
    }

    /// Returns true: statements are prepared with the types of their values.
    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Reads all columns of a row.
pub(super) fn read_row(row: &tokio_postgres::Row) -> Result<Row> {
    (0..row.len()).map(|column| read_column(row, column)).collect::<Result<_>>().map(Row)
}

fn read_column(row: &tokio_postgres::Row, column: usize) -> Result<Value> {
    let of = row.columns().get(column).map_or(Type::UNKNOWN, |column| column.type_().clone());
    match of {
        Type::BOOL => read(row, column, ValueKind::Integer, |is: bool| Value::Integer(i64::from(is))),
        Type::INT2 => read(row, column, ValueKind::Integer, |number: i16| Value::Integer(i64::from(number))),
        Type::INT4 => read(row, column, ValueKind::Integer, |number: i32| Value::Integer(i64::from(number))),
        Type::INT8 => read(row, column, ValueKind::Integer, Value::Integer),
        Type::FLOAT8 => read(row, column, ValueKind::Real, Value::Real),
        Type::BYTEA => read(row, column, ValueKind::Blob, Value::Blob),
        Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => read(row, column, ValueKind::Text, Value::Text),
        other => Err(Error::conversion(column, format!("type {other} is not supported"))),
    }
}

fn read<T: FromSqlOwned>(
    row: &tokio_postgres::Row,
    column: usize,
    kind: ValueKind,
    wrap: impl FnOnce(T) -> Value,
) -> Result<Value> {
    let value: Option<T> = row.try_get(column).map_err(|error| Error::conversion(column, error))?;
    Ok(value.map_or(Value::Null(kind), wrap))
}
