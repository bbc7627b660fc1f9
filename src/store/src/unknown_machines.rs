//! Machines that have no machine file. Any client that sends a request with a new UUID creates the record of such a
//! machine. The number of these records is limited, and each record is deleted a day after the machine's last request.

use super::boot_activity::BootActivity;
use super::registered_boots::current_boot;
use super::{ServerState, now};
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Default of the maximum number of unknown machines. Each of them may store an inventory of 1 MiB; a typical inventory
/// is 20 KiB.
pub const DEFAULT_UNKNOWN_MACHINES_LIMIT: usize = 1024;
/// Divisor of the limit per address: at most 1/`ADDRESS_LIMIT_DIVISOR` of the maximum number of unknown machines may
/// register from one address, so that a single client cannot use up the limit.
const ADDRESS_LIMIT_DIVISOR: usize = 4;
/// Duration after which the record of an unknown machine is deleted if the machine has sent no further request.
const RECORD_LIFETIME: Duration = Duration::hours(24);

/// SQL condition for unknown machines. A machine with an allocation in the database is not unknown, even if its machine
/// file was removed.
const UNKNOWN_MACHINE_CONDITION: &str =
    "stranger IS NOT NULL AND NOT EXISTS (SELECT 1 FROM allocations WHERE machine = machines.id)
     AND NOT EXISTS (SELECT 1 FROM barred WHERE machine = machines.id)";

/// Records an unknown machine. To make room for a machine without a record, deletes expired records and, while the
/// limit `most` is reached, also records of machines that have requested a boot but have not registered. Such a record
/// contains no data of its machine, because a machine sends its data when it registers. Records of machines with an
/// active boot are preserved. Returns false, and does not record the machine, if there is no room for a new record, or
/// if the machine has not registered yet and too many machines have registered from `address`. `address` is `None` if
/// the machine only requests a boot.
pub(crate) fn admit_machine(
    transaction: &Transaction,
    machine: &str,
    heard: &BootActivity,
    most: usize,
    address: Option<&str>,
) -> sql::Result<bool> {
    let select = transaction.prepare_cached("SELECT registered IS NOT NULL FROM machines WHERE id = ?1")?;
    let there: Option<bool> = select.query_row([machine], |row| row.get(0)).optional()?;
    let has_room = match there {
        Some(true) => true,
        Some(false) => within_share(transaction, most, address)?,
        None => within_share(transaction, most, address)? && delete_excess_machine(transaction, heard, most)?,
    };
    if !has_room {
        return Ok(false);
    }
    transaction.execute(
        "INSERT INTO machines (id, last_seen, stranger) VALUES (?1, ?2, '1')
         ON CONFLICT (id) DO UPDATE SET last_seen = ?2, stranger = '1'",
        params![machine, now()],
    )?;
    Ok(true)
}

/// Records that the machine has a machine file.
pub(crate) fn mark_known(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    transaction.execute("UPDATE machines SET stranger = NULL WHERE id = ?1", [machine]).map(drop)
}

impl ServerState {
    /// Records that the machine has a machine file, so that its events and its console log are stored.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_machine_file(&self, machine: &str) -> Result<()> {
        let machine = machine.to_owned();
        self.run_durably_for(machine.clone(), move |transaction| mark_known(transaction, &machine)).await
    }

    /// Returns the ids of the unknown machines that have registered, sorted.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn list_unknown_machines(&self) -> Result<Vec<String>> {
        self.read_committed(|connection| {
            let select = "SELECT id FROM machines WHERE stranger IS NOT NULL AND registered IS NOT NULL ORDER BY id";
            connection.prepare_cached(select)?.query_map([], |row| row.get(0))?.collect()
        })
        .await
    }
}

/// Returns whether one more unknown machine may register from this address.
fn within_share(transaction: &Transaction, most: usize, address: Option<&str>) -> sql::Result<bool> {
    let Some(address) = address else { return Ok(true) };
    let count = format!(
        "SELECT count(*) FROM machines WHERE {UNKNOWN_MACHINE_CONDITION} AND registered IS NOT NULL
         AND EXISTS (SELECT 1 FROM boots WHERE machine = machines.id AND address = ?1)"
    );
    let count: i64 = transaction.prepare_cached(&count)?.query_row([address], |row| row.get(0))?;
    Ok(usize::try_from(count).is_ok_and(|count| count < (most / ADDRESS_LIMIT_DIVISOR).max(1)))
}

/// Deletes records of unknown machines to make room for another one. Returns false if the limit remains reached.
fn delete_excess_machine(transaction: &Transaction, heard: &BootActivity, most: usize) -> sql::Result<bool> {
    let long_ago = (OffsetDateTime::now_utc() - RECORD_LIFETIME).format(&Rfc3339).unwrap_or_default();
    let select = format!(
        "SELECT id, coalesce(last_seen, '') < ?1, registered IS NOT NULL FROM machines WHERE {UNKNOWN_MACHINE_CONDITION}
         ORDER BY registered IS NOT NULL, last_seen"
    );
    let select = transaction.prepare_cached(&select)?;
    let all: Vec<(String, bool, bool)> = select
        .query_map([&long_ago], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<sql::Result<_>>()?;
    let mut left = all.len();
    for (id, is_old, has_registered) in all {
        if !is_old && (has_registered || left < most) {
            continue;
        }
        if !current_boot(transaction, &id)?.is_some_and(|boot| heard.is_active(&boot)) {
            delete_machine(transaction, &id)?;
            left -= 1;
        }
    }
    Ok(left < most)
}

fn delete_machine(transaction: &Transaction, machine: &str) -> sql::Result<()> {
    transaction.execute("DELETE FROM machines WHERE id = ?1", [machine])?;
    for table in ["boots", "events", "log", "history"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE machine = ?1"), [machine])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_token::RequestedBoot;
    use crate::{BootTarget, EnrollOutcome, FileAllocation, MachineBoot, RegisteringClient};
    use control::agent_api_types::RegisterRequest;

    struct Rack {
        state: ServerState,
        _dir: tempfile::TempDir,
    }

    impl Rack {
        fn new(most: usize) -> Rack {
            let dir = tempfile::tempdir().unwrap();
            let quiet = std::time::Duration::from_secs(180);
            let state = ServerState::open(&dir.path().join("drophammer.sqlite"), quiet).unwrap();
            Rack { state: state.with_unknown_machines_limit(most), _dir: dir }
        }

        async fn boot(&self, machine: &str) -> BootTarget {
            self.state.decide_next_boot(machine, FileAllocation::NoMachineFile).await.unwrap().next
        }

        async fn register(&self, machine: &str, address: &str) -> EnrollOutcome {
            let created = OffsetDateTime::now_utc();
            let boot = RequestedBoot { machine: machine.to_owned(), created, while_active: false };
            let hash = crate::token_hash::hash_token(machine);
            let by = RegisteringClient { address: address.to_owned(), allocation: None, has_file: false };
            let outcome = self.state.enroll_boot(MachineBoot::from_request(hash, boot), by).await.unwrap();
            if outcome == EnrollOutcome::Registered(None) {
                self.state.store_registration(machine, "", &RegisterRequest::default()).await.unwrap();
            }
            outcome
        }
    }

    #[tokio::test]
    async fn machines_above_the_limit_do_not_displace_registered_ones() {
        let rack = Rack::new(4);
        let machines = ["a", "b", "c", "d"];
        for (number, machine) in machines.iter().enumerate() {
            assert_eq!(rack.boot(machine).await, BootTarget::Install);
            assert_eq!(rack.register(machine, &format!("10.0.0.{number}")).await, EnrollOutcome::Registered(None));
        }
        // The boots of the machines are not active, as after a restart of the server.
        let state = rack.state.clone().with_same_address_timeout(std::time::Duration::ZERO);
        assert_eq!(state.list_unknown_machines().await.unwrap(), machines);
        assert_eq!(rack.boot("e").await, BootTarget::TooManyUnknown);
        assert_eq!(rack.register("e", "10.0.0.9").await, EnrollOutcome::TooManyUnknown);
        assert_eq!(rack.state.list_unknown_machines().await.unwrap(), machines);
        // Machines that are on record can still boot again.
        assert_eq!(rack.boot("a").await, BootTarget::Install);
        // A machine file makes room.
        rack.state.record_machine_file("b").await.unwrap();
        assert_eq!(rack.boot("e").await, BootTarget::Install);
        assert_eq!(rack.register("e", "10.0.0.9").await, EnrollOutcome::Registered(None));
    }

    #[tokio::test]
    async fn boot_requests_alone_do_not_exhaust_the_limit() {
        let rack = Rack::new(4);
        for number in 0..20 {
            assert_eq!(rack.boot(&format!("flood{number}")).await, BootTarget::Install);
        }
        for (number, machine) in ["a", "b", "c", "d"].iter().enumerate() {
            assert_eq!(
                rack.register(machine, &format!("10.0.0.{number}")).await,
                EnrollOutcome::Registered(None),
                "{machine}"
            );
        }
        assert_eq!(rack.boot("e").await, BootTarget::TooManyUnknown);
    }

    #[tokio::test]
    async fn one_address_cannot_exhaust_the_limit() {
        let rack = Rack::new(8);
        for machine in ["a", "b"] {
            assert_eq!(rack.register(machine, "10.0.0.1").await, EnrollOutcome::Registered(None), "{machine}");
        }
        assert_eq!(rack.register("c", "10.0.0.1").await, EnrollOutcome::TooManyUnknown);
        assert_eq!(rack.register("c", "10.0.0.2").await, EnrollOutcome::Registered(None));
    }
}
