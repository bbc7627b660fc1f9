//! What machines have said on their consoles, in parts.

use super::State;
use crate::error::Result;
use crate::serve::token::Hash;
use rusqlite::{Row, params};

/// Kept of a machine, in bytes: of the last installation everything, and the end of the one before. Each part counts for some more, so that
/// there are not too many of them.
const KEPT: i64 = 256 << 10;
const PART: i64 = 128;

/// A part of what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogKept {
    /// Of which boot.
    pub boot: Hash,
    /// Bytes that were said before it since the boot, and its own, as they were sent.
    pub start: u64,
    pub bytes: u64,
    /// When it came.
    pub time: String,
    pub text: String,
}

impl LogKept {
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

impl State {
    /// Keeps a part, in the place of one that began with the same byte. Of a machine without a file nothing is kept. A power failure of the
    /// server may lose it.
    ///
    /// # Errors
    /// The database's.
    pub async fn keep_log(&self, machine: &str, part: LogKept) -> Result<()> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            let LogKept { boot, start, bytes, time, text } = part;
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT OR REPLACE INTO log (machine, boot, start, bytes, time, text) SELECT ?1, ?2, ?3, ?4, ?5, ?6
                 WHERE NOT EXISTS (SELECT 1 FROM machines WHERE id = ?1 AND stranger IS NOT NULL)",
                params![machine, boot, signed(start), signed(bytes), time, text],
            )?;
            transaction.execute(
                "DELETE FROM log WHERE machine = ?1 AND id IN (SELECT id FROM (SELECT id,
                 sum(length(CAST(text AS BLOB)) + ?3) OVER (ORDER BY id DESC) AS newer FROM log WHERE machine = ?1) WHERE newer > ?2)",
                params![machine, KEPT, PART],
            )?;
            transaction.commit()
        })
        .await
    }

    /// What is kept, the oldest first.
    ///
    /// # Errors
    /// The database's.
    pub async fn log(&self, machine: &str) -> Result<Vec<LogKept>> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            let select = "SELECT boot, start, bytes, time, text FROM log WHERE machine = ?1 ORDER BY id";
            connection.prepare_cached(select)?.query_map([machine], read)?.collect()
        })
        .await
    }
}

fn read(row: &Row) -> rusqlite::Result<LogKept> {
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let (start, bytes) = (number(row.get(1)?), number(row.get(2)?));
    Ok(LogKept { boot: row.get(0)?, start, bytes, time: row.get(3)?, text: row.get(4)? })
}

/// SQLite's integers are signed.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
