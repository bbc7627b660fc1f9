//! Machines that have no machine file. Any client that sends a request with a new UUID creates the record of such a
//! machine. The number of these records is limited, and each record is deleted a day after the machine's last request.

use super::boot_activity::BootActivity;
use super::boots::current_boot;
use super::{ServerState, now};
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

/// Default of the maximum number of unknown machines. Each of them may store an inventory of 1 MiB; a typical inventory
/// has 20 KiB.
pub const UNKNOWN_MACHINES: usize = 1024;
/// Part of the unknown machines that may have registered from the same address, so that one client cannot use up the
/// limit.
const SHARE_OF_ADDRESS: usize = 4;
/// Duration after which the record of an unknown machine is deleted if the machine has sent no further request.
const KEPT: Duration = Duration::hours(24);

/// SQL condition for unknown machines. A machine with an allocation in the database is not unknown, even if its machine
/// file was removed.
const ALL: &str = "stranger IS NOT NULL AND NOT EXISTS (SELECT 1 FROM allocations WHERE machine = machines.id)
     AND NOT EXISTS (SELECT 1 FROM barred WHERE machine = machines.id)";

/// Records an unknown machine. Deletes the records of outdated unknown machines and, if the limit `most` is reached, of
/// machines that have only requested a boot: such a record contains nothing that the machine's registration does not
/// send again. Returns false if the limit is reached by machines that have registered. `address` is the address from which
/// the machine registers, or `None` if it only requests a boot.
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
        None => within_share(transaction, most, address)? && make_room(transaction, heard, most)?,
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
        self.run_durably(move |transaction| mark_known(transaction, &machine)).await
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

/// Returns whether another unknown machine may register from this address.
fn within_share(transaction: &Transaction, most: usize, address: Option<&str>) -> sql::Result<bool> {
    let Some(address) = address else { return Ok(true) };
    let count = format!(
        "SELECT count(*) FROM machines WHERE {ALL} AND registered IS NOT NULL
         AND EXISTS (SELECT 1 FROM boots WHERE machine = machines.id AND address = ?1)"
    );
    let count: i64 = transaction.prepare_cached(&count)?.query_row([address], |row| row.get(0))?;
    Ok(usize::try_from(count).is_ok_and(|count| count < (most / SHARE_OF_ADDRESS).max(1)))
}

/// Makes room for another unknown machine.
fn make_room(transaction: &Transaction, heard: &BootActivity, most: usize) -> sql::Result<bool> {
    let long_ago = (OffsetDateTime::now_utc() - KEPT).format(&Rfc3339).unwrap_or_default();
    let select = format!(
        "SELECT id, coalesce(last_seen, '') < ?1, registered IS NOT NULL FROM machines WHERE {ALL}
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
    use crate::{BootTarget, EnrollOutcome, Enrollment, FileAllocation, MachineBoot};
    use control::api_types::RegisterRequest;

    struct Rack {
        state: ServerState,
        _dir: tempfile::TempDir,
    }

    impl Rack {
        fn new(most: usize) -> Rack {
            let dir = tempfile::tempdir().unwrap();
            let quiet = std::time::Duration::from_secs(180);
            let state = ServerState::open(&dir.path().join("drophammer.sqlite"), quiet).unwrap();
            Rack { state: state.with_most_unknown(most), _dir: dir }
        }

        async fn boot(&self, machine: &str) -> BootTarget {
            self.state.decide_next_boot(machine, FileAllocation::Nothing).await.unwrap().next
        }

        async fn register(&self, machine: &str, address: &str) -> EnrollOutcome {
            let created = OffsetDateTime::now_utc();
            let boot = RequestedBoot { machine: machine.to_owned(), created, while_active: false };
            let hash = crate::token::hash_token(machine);
            let by = Enrollment { address: address.to_owned(), allocation: None, has_file: false };
            let outcome = self.state.enroll_boot(MachineBoot::from_request(hash, boot), by).await.unwrap();
            if outcome == EnrollOutcome::Yes(None) {
                self.state.store_registration(machine, "", &RegisterRequest::default()).await.unwrap();
            }
            outcome
        }
    }

    #[tokio::test]
    async fn a_machine_above_the_limit_waits_and_displaces_none_that_has_registered() {
        let rack = Rack::new(4);
        let machines = ["a", "b", "c", "d"];
        for (number, machine) in machines.iter().enumerate() {
            assert_eq!(rack.boot(machine).await, BootTarget::Install);
            assert_eq!(rack.register(machine, &format!("10.0.0.{number}")).await, EnrollOutcome::Yes(None));
        }
        // Without the activity of their boots, as after a restart of the server.
        let state = rack.state.clone().with_quiet_at_same_address(std::time::Duration::ZERO);
        assert_eq!(state.list_unknown_machines().await.unwrap(), machines);
        assert_eq!(rack.boot("e").await, BootTarget::Crowded);
        assert_eq!(rack.register("e", "10.0.0.9").await, EnrollOutcome::Crowded);
        assert_eq!(rack.state.list_unknown_machines().await.unwrap(), machines);
        // The others boot again as often as they like.
        assert_eq!(rack.boot("a").await, BootTarget::Install);
        // A machine file makes room.
        rack.state.record_machine_file("b").await.unwrap();
        assert_eq!(rack.boot("e").await, BootTarget::Install);
        assert_eq!(rack.register("e", "10.0.0.9").await, EnrollOutcome::Yes(None));
    }

    #[tokio::test]
    async fn requests_for_boots_alone_do_not_use_up_the_limit() {
        let rack = Rack::new(4);
        for number in 0..20 {
            assert_eq!(rack.boot(&format!("flood{number}")).await, BootTarget::Install);
        }
        for (number, machine) in ["a", "b", "c", "d"].iter().enumerate() {
            assert_eq!(
                rack.register(machine, &format!("10.0.0.{number}")).await,
                EnrollOutcome::Yes(None),
                "{machine}"
            );
        }
        assert_eq!(rack.boot("e").await, BootTarget::Crowded);
    }

    #[tokio::test]
    async fn one_address_may_use_only_a_part_of_the_limit() {
        let rack = Rack::new(8);
        for machine in ["a", "b"] {
            assert_eq!(rack.register(machine, "10.0.0.1").await, EnrollOutcome::Yes(None), "{machine}");
        }
        assert_eq!(rack.register("c", "10.0.0.1").await, EnrollOutcome::Crowded);
        assert_eq!(rack.register("c", "10.0.0.2").await, EnrollOutcome::Yes(None));
    }
}
