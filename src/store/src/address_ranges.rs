//! Ranges from which servers assign addresses over DHCP (`serve --range`). An address must be assigned by one server
//! only. Therefore each server registers its range before it assigns addresses. A range that overlaps the range of
//! another server is refused. A registration expires 10 seconds after its last renewal, by the clock of the database.
//!
//! A SQLite file belongs to one server. Registrations of other processes in the file are therefore left over from
//! earlier processes of this server, and are deleted.

use crate::ServerState;
use crate::server_leases::{ServerInstance, compute_lease_end, read_time};
use crate::sql::{self, Row, Transaction, params};
use common::error::Result;
use std::net::Ipv4Addr;

/// SQL statement that creates the table of address ranges.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS address_ranges (
        holder TEXT PRIMARY KEY, server TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        expires INTEGER NOT NULL) STRICT;
";

/// Range of addresses, both ends included, with the name of the server that assigns them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredRange {
    pub server: String,
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
}

impl RegisteredRange {
    fn read(row: &Row) -> sql::Result<RegisteredRange> {
        let address = |column| {
            let number: i64 = row.get(column)?;
            let number = u32::try_from(number);
            number.map(Ipv4Addr::from).map_err(|_| sql::Error::Unsuitable("a registered address is invalid".to_owned()))
        };
        Ok(RegisteredRange { server: row.get(0)?, first: address(1)?, last: address(2)? })
    }
}

/// Result of registering a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeClaim {
    /// The range is registered. Contains the name of this server.
    Registered(String),
    /// Another server assigns some of the addresses.
    Overlaps(RegisteredRange),
}

/// Registers the range of a server, or renews its registration.
fn register_range(
    transaction: &Transaction,
    own: &ServerInstance,
    (first, last): (Ipv4Addr, Ipv4Addr),
) -> sql::Result<RangeClaim> {
    let time = read_time(transaction)?;
    match time {
        Some(time) => transaction.execute("DELETE FROM address_ranges WHERE expires <= ?1", [time])?,
        None => transaction.execute("DELETE FROM address_ranges WHERE holder <> ?1", [own.holder_id()])?,
    };
    let (first, last) = (i64::from(u32::from(first)), i64::from(u32::from(last)));
    let select = "SELECT server, first, last FROM address_ranges
         WHERE holder <> ?1 AND first <= ?3 AND last >= ?2 ORDER BY first LIMIT 1";
    let others =
        transaction.prepare_cached(select)?.query_map(params![own.holder_id(), first, last], RegisteredRange::read)?;
    if let Some(other) = others.collect::<sql::Result<Vec<_>>>()?.into_iter().next() {
        return Ok(RangeClaim::Overlaps(other));
    }
    let upsert = "INSERT INTO address_ranges (holder, server, first, last, expires) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (holder) DO UPDATE SET server = ?2, first = ?3, last = ?4, expires = ?5";
    transaction.execute(upsert, params![own.holder_id(), own.display_name(), first, last, compute_lease_end(time)])?;
    Ok(RangeClaim::Registered(own.display_name().to_owned()))
}

impl ServerState {
    /// Registers the range from which this server assigns addresses, or renews the registration.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn register_address_range(&self, first: Ipv4Addr, last: Ipv4Addr) -> Result<RangeClaim> {
        let own = self.instance.clone();
        self.run_deferred(move |transaction| register_range(transaction, &own, (first, last))).await
    }

    /// Ends the registration of this server.
    ///
    /// # Errors
    /// Returns an error if the database cannot be written.
    pub async fn release_address_range(&self) -> Result<()> {
        let own = self.instance.clone();
        let delete = "DELETE FROM address_ranges WHERE holder = ?1";
        self.run_deferred(move |transaction| transaction.execute(delete, [own.holder_id()]).map(drop)).await
    }
}
