//! Columns of the database that contain JSON.

use crate::sql::{self, Row};
use serde::de::DeserializeOwned;

/// Parses a column that contains JSON. Returns an error if the value cannot be parsed. If such a value were treated
/// as missing, a layout other than the stored one might be used.
pub fn parse_column<T: DeserializeOwned>(row: &Row, column: usize) -> sql::Result<Option<T>> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| sql::Error::conversion(column, error))
}

/// Serializes a value to JSON for a column.
pub fn to_json_column(value: &impl serde::Serialize) -> sql::Result<String> {
    serde_json::to_string(value).map_err(|error| sql::Error::conversion(0, error))
}
