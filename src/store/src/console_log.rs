//! Console logs of machines, in chunks.

use super::ServerState;
use crate::sql::{self, Row, params};
use crate::token_hash::TokenHash;
use common::error::Result;

/// Maximum size of a machine's stored log, in bytes. This is enough for the log of the last installation, and the end
/// of the log before it. [`CHUNK_OVERHEAD_BYTES`] are added to the size of each chunk, so that the number of chunks is
/// also limited.
const MAXIMUM_LOG_BYTES: i64 = 256 << 10;
/// Number of bytes that are added to the size of each chunk when the size of a log is computed.
const CHUNK_OVERHEAD_BYTES: i64 = 128;

/// Chunk of a console log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Number of the chunk, which increases from chunk to chunk. Ignored when the chunk is stored.
    pub number: i64,
    /// Hash of the token of the boot that sent the chunk.
    pub boot: TokenHash,
    /// Offset of the chunk in the log of the boot, in bytes as sent by the machine.
    pub start: u64,
    /// Length of the chunk, in bytes as sent by the machine.
    pub bytes: u64,
    /// Time at which the chunk was received.
    pub time: String,
    pub text: String,
}

impl LogChunk {
    pub fn end_offset(&self) -> u64 {
        self.start.saturating_add(self.bytes)
    }
}

impl ServerState {
    /// Stores a chunk, and replaces a stored chunk that has the same offset. Stores nothing for a machine that has no
    /// machine file. If the server loses power, the chunk may be lost.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn store_log_chunk(&self, machine: &str, part: LogChunk) -> Result<()> {
        let machine = machine.to_owned();
        self.run_deferred(move |transaction| {
            let LogChunk { boot, start, bytes, time, text, .. } = part;
            // A stored chunk with the same offset is deleted, so that the new chunk gets a new number.
            let replaced = "DELETE FROM log WHERE machine = ?1 AND boot = ?2 AND start = ?3";
            transaction.execute(replaced, params![machine, boot, to_signed(start)])?;
            transaction.execute(
                "INSERT INTO log (machine, boot, start, bytes, time, text) SELECT ?1, ?2, ?3, ?4, ?5, ?6
                 WHERE NOT EXISTS (SELECT 1 FROM machines WHERE id = ?1 AND stranger IS NOT NULL)",
                params![machine, boot, to_signed(start), to_signed(bytes), time, text],
            )?;
            transaction.execute(
                "DELETE FROM log WHERE machine = ?1 AND id IN (SELECT id FROM (SELECT id,
                 sum(octet_length(text) + ?3) OVER (ORDER BY id DESC) AS newer FROM log WHERE machine = ?1) sizes
                 WHERE newer > ?2)",
                params![machine, MAXIMUM_LOG_BYTES, CHUNK_OVERHEAD_BYTES],
            )?;
            Ok(())
        })
        .await
    }

    /// Returns the stored chunks, the oldest first.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn read_log(&self, machine: &str) -> Result<Vec<LogChunk>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT boot, start, bytes, time, text, id FROM log WHERE machine = ?1 ORDER BY id";
            connection.prepare_cached(select)?.query_map([machine], read_chunk)?.collect()
        })
        .await
    }
}

fn read_chunk(row: &Row) -> sql::Result<LogChunk> {
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let (start, bytes) = (number(row.get(1)?), number(row.get(2)?));
    Ok(LogChunk { boot: row.get(0)?, start, bytes, time: row.get(3)?, text: row.get(4)?, number: row.get(5)? })
}

/// Converts an unsigned number to the type of SQLite's integers, which are signed. A number that is too large becomes
/// the maximum of this type.
fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
