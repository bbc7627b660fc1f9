//! Restore of a PostgreSQL database that several servers have used.

use super::postgres::{error_of, new_database, open_at};
use super::*;
use crate::backup::{back_up_store, restore_database, restore_store};

/// The first server fails after its backup, and the second server cancels an order. PostgreSQL is then lost. The id
/// file in the directory of the first server records exactly the transactions of the backup, although the backup is
/// outdated. The canceled order must not be in force again.
#[test]
fn order_canceled_at_another_server_is_withheld_after_restore() {
    let (Some(address), Some(target)) = (new_database(), new_database()) else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let a = open_at(&address, &dirs[0]);
    install(&a, "m");
    wait(a.place_order("m", "a", "i1", ReinstallOverrides::default(), None));
    let backup = dirs[0].path().join("backup.sqlite");
    back_up_store(Some(&address), dirs[0].path(), &backup).unwrap();
    let before = wait(a.run_job(database_epoch::read_epoch));
    drop(a);
    let b = open_at(&address, &dirs[1]);
    assert!(install_state(&b, "m").order.is_some_and(|order| order.confirmed));
    assert!(matches!(wait(b.cancel_order("m", "a")), CancelOutcome::Done(_)));
    drop(b);

    restore_store(Some(&target), dirs[0].path(), &backup, false).unwrap();
    let a = open_at(&target, &dirs[0]);
    assert!(wait(a.explain_unconfirmed(vec!["m".to_owned()])).is_some());
    assert_ne!(wait(a.run_job(database_epoch::read_epoch)).id, before.id);
    let restored = install_state(&a, "m");
    assert!(restored.unconfirmed && restored.order.is_some_and(|order| !order.confirmed));
    let next = wait(a.decide_next_boot("m", FileAllocation::Allocated("a".to_owned()))).next;
    assert!(!matches!(next, BootTarget::Attempt(_)), "{next:?}");
}

/// A SQLite database belongs to one server again after the restore, so its own backups can be complete.
#[test]
fn backup_of_sqlite_after_return_from_postgresql_is_complete() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    install(&open_at(&address, &dir), "m");
    let [backup, later] = ["backup.sqlite", "later.sqlite"].map(|name| dir.path().join(name));
    back_up_store(Some(&address), dir.path(), &backup).unwrap();
    restore_database(dir.path(), &backup, false).unwrap();
    let confirmed = "UPDATE epoch SET restored = NULL";
    let database = dir.path().join(DATABASE);
    sql::Connection::open(&database).unwrap().execute(confirmed, []).unwrap();
    back_up_store(None, dir.path(), &later).unwrap();
    restore_database(dir.path(), &later, false).unwrap();
    assert_eq!(database_epoch::read_epoch(&sql::Connection::open(&database).unwrap()).unwrap().restored, None);
}

/// A standby that replaces PostgreSQL lacks the last transaction of the second server. The first server has not
/// committed since, but has observed that transaction.
#[test]
fn server_stops_if_a_transaction_of_another_server_is_lost() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    install(&b, "m");
    wait(a.check_pulse());
    let lose = "UPDATE identity SET transactions = transactions - 1";
    wait(b.run_deferred(move |transaction| transaction.execute(lose, [])));
    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    error_of(a.run_job(move |connection| connection.query_row(end, [], |_| Ok(()))));
    error_of(a.check_pulse());
    let why = RUNTIME.with(|runtime| runtime.block_on(a.wait_until_gone()));
    assert!(why.contains("has lost acknowledged changes"), "{why}");
    drop(a);
    let refused = ServerState::open_postgres(&address, dirs[0].path(), Duration::ZERO).err().unwrap().to_string();
    assert!(refused.contains("is older than the last state"), "{refused}");
}
