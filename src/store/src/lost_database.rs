//! Installations whose records may have been lost, because this database has replaced a lost one. A machine is
//! affected until this database records a completed installation on it.

use crate::sql::{self, Connection};
use common::timestamp::now;

const MACHINE: &str = "SELECT EXISTS (SELECT 1 FROM identity WHERE lost IS NOT NULL)
     AND NOT EXISTS (SELECT 1 FROM allocations WHERE machine = ?1 AND succeeded = 1)";

/// Records that this database replaces a lost database.
pub(crate) fn record_loss(connection: &Connection) -> sql::Result<()> {
    connection.execute("UPDATE identity SET lost = ?1", [now()]).map(drop)
}

/// Returns whether the record of an installation on the machine may have been lost with an earlier database.
pub(crate) fn is_unremembered(connection: &Connection, machine: &str) -> sql::Result<bool> {
    connection.query_row(MACHINE, [machine], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    #[test]
    fn machine_is_unremembered_after_loss_until_installed() {
        let connection = Connection::open_in_memory().unwrap();
        schema::upgrade_schema(&connection).unwrap();
        assert!(!is_unremembered(&connection, "m").unwrap(), "without an identity");
        connection.execute("INSERT INTO identity (one, id, transactions) VALUES (1, 'i', 0)", []).unwrap();
        assert!(!is_unremembered(&connection, "m").unwrap(), "nothing was lost");
        record_loss(&connection).unwrap();
        assert!(is_unremembered(&connection, "m").unwrap());
        let insert = "INSERT INTO allocations (machine, id, created, succeeded) VALUES (?1, 'a', '', ?2)";
        connection.execute(insert, crate::sql::params!["m", 0]).unwrap();
        connection.execute(insert, crate::sql::params!["n", 1]).unwrap();
        assert!(is_unremembered(&connection, "m").unwrap(), "served, but not installed");
        assert!(!is_unremembered(&connection, "n").unwrap());
    }
}
