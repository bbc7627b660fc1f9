//! Check whether PostgreSQL can store more data, after a statement has failed for lack of space.
//!
//! On a full tablespace, statements that fit into existing pages still succeed. The periodic check of the database is
//! such a statement. A server that relied on this check alone would report that it is ready although it cannot store
//! reports.

use super::PostgresConnection;

/// Statements that require new pages: the value is stored uncompressed, outside of its row. The transaction that
/// executes them must be rolled back, which frees the pages.
const ALLOCATE_PAGES: &str = "CREATE TABLE space_check (content BYTEA);
     ALTER TABLE space_check ALTER COLUMN content SET STORAGE EXTERNAL;
     INSERT INTO space_check SELECT decode(repeat('00', 262144), 'hex')";

impl PostgresConnection {
    /// Returns whether a statement failed for lack of space, and no later check found free space.
    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space.get()
    }

    /// Records that a check found free space.
    pub(crate) fn record_free_space(&self) {
        self.lacks_space.set(false);
    }

    /// Allocates pages in the current transaction, which must be rolled back.
    ///
    /// # Errors
    /// Returns an error if there is no space, or the database is unavailable.
    pub(crate) fn allocate_pages(&self) -> super::Result<()> {
        self.execute_batch(ALLOCATE_PAGES)
    }
}
