//! Installations whose records may have been lost, because this database has replaced a lost one. A machine is
//! affected until this database records a completed installation on it.

use crate::sql::{self, Connection};
use common::timestamp::now;

const MAY_HAVE_LOST_RECORD_QUERY: &str = "SELECT EXISTS (SELECT 1 FROM identity WHERE lost IS NOT NULL)
     AND NOT EXISTS (SELECT 1 FROM allocations WHERE machine = ?1 AND succeeded = 1)";

/// Records that this database replaces a lost database.
pub(crate) fn record_loss(connection: &Connection) -> sql::Result<()> {
    connection.execute("UPDATE identity SET lost = ?1", [now()]).map(drop)
}

/// Returns whether the record of an installation on the machine may have been lost with an earlier database.
pub(crate) fn may_have_lost_record(connection: &Connection, machine: &str) -> sql::Result<bool> {
    connection.query_row(MAY_HAVE_LOST_RECORD_QUERY, [machine], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn record_may_be_lost_until_the_machine_is_installed() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        assert!(!may_have_lost_record(&connection, "m").unwrap(), "without an identity");
        connection.execute("INSERT INTO identity (one, id, transactions) VALUES (1, 'i', 0)", []).unwrap();
        assert!(!may_have_lost_record(&connection, "m").unwrap(), "nothing was lost");
        record_loss(&connection).unwrap();
        assert!(may_have_lost_record(&connection, "m").unwrap());
        let insert = "INSERT INTO allocations (machine, id, created, succeeded) VALUES (?1, 'a', '', ?2)";
        connection.execute(insert, crate::sql::params!["m", 0]).unwrap();
        connection.execute(insert, crate::sql::params!["n", 1]).unwrap();
        assert!(may_have_lost_record(&connection, "m").unwrap(), "served, but not installed");
        assert!(!may_have_lost_record(&connection, "n").unwrap());
    }
}
