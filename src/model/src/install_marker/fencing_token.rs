//! Fencing tokens, which define the order of the installations that one server has started. A token identifies the
//! history of the server's database, and the position of an installation in that history.
//!
//! A server issues a token for each reinstall order, first installation and migration. The install marker records the
//! token. The agent refuses a reinstall whose token is older than the token in the install marker, because the
//! reinstall was ordered by a server with an outdated database.
//!
//! A token that was read from a disk proves nothing by itself, because any previous owner of the disk may have written
//! it. Such a token can only cause a refusal, which the operator can override.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::cmp::Ordering;
use std::fmt;
use uuid::Uuid;

/// Position of an installation in the history of a server's database.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct FencingToken {
    /// UUID of the database's history. A database that is restored from a backup starts a new history.
    pub database: String,
    /// Number of the installation in this history, from 1 to [`FencingToken::LIMIT`]; 0 if no valid number was read.
    pub sequence: u64,
}

impl FencingToken {
    /// Largest sequence number that a server can issue: the largest signed 64-bit integer, because SQLite stores the
    /// number in this format.
    pub const LIMIT: u64 = i64::MAX.unsigned_abs();

    /// Returns whether a server can have issued this token.
    pub fn is_plausible(&self) -> bool {
        (1..=FencingToken::LIMIT).contains(&self.sequence) && Uuid::try_parse(&self.database).is_ok()
    }

    /// Compares the age of two tokens. Returns `None` if the tokens belong to different histories, or if either of them
    /// is not plausible.
    pub fn compare_age(&self, other: &FencingToken) -> Option<Ordering> {
        let is_comparable = self.is_plausible() && other.is_plausible() && self.database == other.database;
        is_comparable.then(|| self.sequence.cmp(&other.sequence))
    }
}

/// Accepts any JSON value: an error would make the whole marker unreadable, and the marker would be treated as absent.
/// An invalid value becomes a token that is not plausible.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FencingToken, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let database = value.get("database").and_then(Value::as_str).unwrap_or_default();
        let sequence = value.get("sequence").and_then(Value::as_u64).unwrap_or_default();
        Ok(FencingToken { database: database.to_owned(), sequence })
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_plausible() {
            true => write!(f, "number {} of database {}", self.sequence, self.database),
            false => f.write_str("an impossible number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install_marker::InstallMarker;

    const ONE: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";
    const TWO: &str = "7f9619ff-8b86-4d01-b42d-00cf4fc964ff";

    fn token(database: &str, sequence: u64) -> FencingToken {
        FencingToken { database: database.to_owned(), sequence }
    }

    #[test]
    fn only_plausible_tokens_of_the_same_database_are_compared() {
        let five = token(ONE, 5);
        for (other, age) in [
            (token(ONE, 4), Some(Ordering::Greater)),
            (token(ONE, 5), Some(Ordering::Equal)),
            (token(ONE, 6), Some(Ordering::Less)),
            (token(ONE, FencingToken::LIMIT), Some(Ordering::Less)),
            (token(ONE, FencingToken::LIMIT + 1), None),
            (token(ONE, u64::MAX), None),
            (token(ONE, 0), None),
            (token(TWO, 4), None),
            (token("", 4), None),
            (token("one", 4), None),
        ] {
            assert_eq!(five.compare_age(&other), age, "{other:?}");
            assert_eq!(other.compare_age(&five), age.map(Ordering::reverse), "{other:?}");
        }
        assert_eq!(token("x", 4).compare_age(&token("x", 5)), None);
    }

    #[test]
    fn invalid_token_is_parsed_as_implausible() {
        for nonsense in [
            "5",
            "\"5\"",
            "[]",
            "{}",
            r#"{"database": 7, "sequence": 5}"#,
            r#"{"database": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "sequence": -1}"#,
            r#"{"database": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "sequence": 1e99}"#,
            r#"{"database": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "sequence": 18446744073709551615}"#,
            r#"{"database": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "sequence": 99999999999999999999999}"#,
        ] {
            let text =
                format!(r#"{{"machine": "m", "allocation": "a", "image": "i", "layout": "l", "fencing": {nonsense}}}"#);
            let marker: InstallMarker =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{nonsense}: {error}"));
            let read = marker.fencing.unwrap_or_else(|| panic!("{nonsense}"));
            assert!(!read.is_plausible(), "{nonsense}: {read:?}");
            assert_eq!(read.to_string(), "an impossible number");
        }
    }

    #[test]
    fn token_is_optional_and_survives_serialization() {
        let without: InstallMarker =
            serde_json::from_str(r#"{"machine": "m", "allocation": "a", "image": "i", "layout": "l"}"#).unwrap();
        assert_eq!(without.fencing, None);
        assert!(!serde_json::to_string(&without).unwrap().contains("fencing"));
        let with = InstallMarker { fencing: Some(token(ONE, 7)), ..without };
        let read: InstallMarker = serde_json::from_str(&serde_json::to_string(&with).unwrap()).unwrap();
        assert_eq!(read, with);
    }
}
