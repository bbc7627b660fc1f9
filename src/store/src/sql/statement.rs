//! Statements and their rows.

use super::value::{ColumnIndex, FromValue, Params, Value};
use super::{Connection, Error, Result};

/// Row of a query. Contains copies of the values, so that other statements can run while the rows are read.
#[derive(Debug, Clone)]
pub struct Row(pub(crate) Vec<Value>);

impl Row {
    /// Returns the value of a column.
    ///
    /// # Errors
    /// Returns an error if the row has no such column, or the value has another type.
    pub fn get<I: ColumnIndex, T: FromValue>(&self, column: I) -> Result<T> {
        let column = column.to_index();
        let value = self
            .0
            .get(column)
            .ok_or_else(|| Error::conversion(column, "internal error: the query does not return this column"))?;
        T::from_value(value).ok_or_else(|| Error::unexpected_type(column, T::KIND))
    }
}

/// Statement that can be executed repeatedly.
pub struct Statement<'c> {
    connection: &'c Connection,
    sql: String,
}

impl<'c> Statement<'c> {
    pub(super) fn new(connection: &'c Connection, sql: &str) -> Statement<'c> {
        Statement { connection, sql: sql.to_owned() }
    }

    /// Returns all rows of the query, mapped by `map`.
    ///
    /// # Errors
    /// Returns an error if the query fails. If `map` fails for a row, its error is the item of this row in the result.
    pub fn query_map<T>(
        &self,
        params: impl Params,
        map: impl FnMut(&Row) -> Result<T>,
    ) -> Result<std::vec::IntoIter<Result<T>>> {
        let rows = self.connection.query(&self.sql, &params.to_values())?;
        Ok(rows.iter().map(map).collect::<Vec<_>>().into_iter())
    }

    /// Returns the first row of the query, mapped by `map`.
    ///
    /// # Errors
    /// Fails as [`Connection::query_row`] does.
    pub fn query_row<T>(&self, params: impl Params, map: impl FnOnce(&Row) -> Result<T>) -> Result<T> {
        self.connection.query_row(&self.sql, params, map)
    }

    /// Returns whether the query returns a row.
    ///
    /// # Errors
    /// Returns an error if the query fails.
    pub fn exists(&self, params: impl Params) -> Result<bool> {
        Ok(!self.connection.query(&self.sql, &params.to_values())?.is_empty())
    }
}
