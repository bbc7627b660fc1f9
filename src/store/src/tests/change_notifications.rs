//! Notifications about the changes of other servers that share a PostgreSQL database.

use super::postgres::{disable_group_limit, new_database, open_at};
use super::*;

#[test]
fn change_notifies_the_other_server_of_its_machines() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    let mut changes = b.changes();
    let mut next_scope = || RUNTIME.with(|runtime| runtime.block_on(b.wait_for_change(&mut changes)));
    // The server may have missed changes while it was not connected.
    assert_eq!(next_scope(), ChangeScope::All);
    for machine in ["m", "n"] {
        wait(a.free_machine(machine));
        assert_eq!(next_scope(), ChangeScope::from_machine(machine));
    }
    let insert = "INSERT INTO former (former, machine) VALUES ('f', 'm')";
    wait(a.run_durably(move |transaction| transaction.execute(insert, [])));
    assert_eq!(next_scope(), ChangeScope::All);
    wait(b.free_machine("m"));
    wait(a.free_machine("n"));
    assert_eq!(next_scope(), ChangeScope::from_machine("n"), "the own change is ignored");
}

#[test]
fn transactions_of_a_group_notify_the_other_server_together() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    let mut changes = b.changes();
    let mut next_scope = || RUNTIME.with(|runtime| runtime.block_on(b.wait_for_change(&mut changes)));
    assert_eq!(next_scope(), ChangeScope::All);
    disable_group_limit(&a);
    let (until, blocks) = std::sync::mpsc::channel();
    a.block_thread(blocks);
    let job = |machine: &'static str, sql: &'static str| {
        a.submit_job(move |store| {
            store.run_durably(ChangeScope::from_machine(machine), |transaction| transaction.execute(sql, []))
        })
    };
    let insert = "INSERT INTO machines (id, last_seen) VALUES ('m', 't')";
    let jobs = [job("m", insert), job("failed", "INSERT INTO missing VALUES (1)"), job("n", "DELETE FROM former")];
    let last = job("o", "UPDATE machines SET last_seen = 'u'");
    drop(until);
    let results = RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let mut results = Vec::new();
            for job in jobs {
                results.push(job.await.unwrap().is_ok());
            }
            assert_eq!(last.await.unwrap().unwrap(), 1);
            results
        })
    });
    assert_eq!(results, [true, false, true]);
    let expected = ["m", "o"].map(str::to_owned);
    assert_eq!(next_scope(), ChangeScope::Machines(expected.into()), "only committed changes");
}
