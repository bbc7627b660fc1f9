//! Tests that apply to PostgreSQL only: several servers on one database, and a database that becomes unavailable.

use super::lossy_proxy::{Loss, LossyProxy};
use super::*;
use crate::store_address::PostgresAddress;
use crate::{DATABASE, backup, changed_record_tracking, database_id, store_transfer};
use ::testing::postgres::{self, PrivatePostgres};
use common::error_code::ErrorCode;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns an empty database of the shared server; `None` if PostgreSQL is not installed.
pub(super) fn new_database() -> Option<PostgresAddress> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = postgres::shared()?;
    let name = format!("own{}", COUNT.fetch_add(1, Ordering::Relaxed));
    Some(PostgresAddress::parse(&server.create_database(&name)).unwrap())
}

pub(super) fn open_at(address: &PostgresAddress, dir: &TempDir) -> ServerState {
    ServerState::open_postgres(address, dir.path(), Duration::from_secs(60)).unwrap()
}

/// Limits groups by the number of transactions only, so that a busy host does not end a group early.
pub(super) fn disable_group_limit(state: &ServerState) {
    let disabled = state.submit_job(|store| {
        store.connection.as_postgres().iter().for_each(|postgres| postgres.disable_group_limit());
        Ok(())
    });
    wait(async { database_handle::flatten_answer(disabled.await) });
}

pub(super) fn error_of<T>(work: impl Future<Output = Result<T>>) -> common::error::Error {
    RUNTIME.with(|runtime| runtime.block_on(work)).err().unwrap()
}

fn order_of(state: &ServerState) -> ReinstallOrder {
    match wait(state.place_order("m", "a", "i1", ReinstallOverrides::default(), None)) {
        OrderOutcome::Placed { order, .. } => order,
        other => panic!("{other:?}"),
    }
}

#[test]
fn changes_of_records_assign_new_versions() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let state = open_at(&address, &dirs[0]);
    // The second server finds the triggers of the first one.
    drop(open_at(&address, &dirs[1]));
    let checked = state.submit_job(|store| {
        changed_record_tracking::tests::check_changes(&store.connection);
        Ok(())
    });
    wait(async { database_handle::flatten_answer(checked.await) });
}

#[test]
fn two_servers_share_all_records_and_start_an_order_once() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    install(&a, "m");
    assert!(install_state(&b, "m").succeeded);
    let order = order_of(&a);
    // Both servers count attempts in the same record.
    for (server, attempt) in [(&a, 1), (&b, 2), (&a, 3)] {
        let files = FileAllocation::Allocated("a".to_owned());
        let next = wait(server.decide_next_boot("m", files)).next;
        assert!(matches!(&next, BootTarget::Attempt(order) if order.attempts <= attempt), "{attempt} {next:?}");
    }
    let results: Vec<OrderStart> = std::thread::scope(|scope| {
        let starts = [&a, &b].map(|server| scope.spawn(|| wait(server.start_order("m", "a", &order.id, start()))));
        starts.into_iter().map(|started| started.join().unwrap()).collect()
    });
    let first = results.iter().filter(|started| matches!(started, OrderStart::Permitted(_, true))).count();
    assert_eq!(first, 1, "{results:?}");
    wait(b.handle_report("m", "a", BOOT, &report(true, &order.id)));
    assert_eq!(wait(a.start_order("m", "a", &order.id, start())), OrderStart::NotInForce);
}

#[test]
fn concurrent_servers_issue_each_fencing_token_once() {
    let Some(address) = new_database() else { return };
    let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let issue = |dir: &TempDir| {
        let state = open_at(&address, dir);
        (0..30).map(|_| wait(state.run_durably(database_epoch::issue_token)).sequence).collect::<Vec<_>>()
    };
    let mut all: Vec<u64> = std::thread::scope(|scope| {
        let servers: Vec<_> = dirs.iter().map(|dir| scope.spawn(|| issue(dir))).collect();
        servers.into_iter().flat_map(|server| server.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (1..=90).collect::<Vec<u64>>());
}

#[test]
fn boot_activity_is_shared_between_servers() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [a, b] =
        dirs.each_ref().map(|dir| ServerState::open_postgres(&address, dir.path(), Duration::from_secs(3600)).unwrap());
    let boot = [9; 32];
    a.heard.record_call(&boot);
    assert_eq!(b.heard.last_call(&boot), None);
    wait(a.check_pulse());
    wait(b.check_pulse());
    assert!(b.heard.last_call(&boot).is_some());
}

#[test]
fn tokens_before_a_restore_are_not_comparable() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    let before = wait(state.run_durably(database_epoch::issue_token));
    let backup = dir.path().join("backup.sqlite");
    backup::back_up_store(Some(&address), dir.path(), &backup).unwrap();
    install(&state, "m");
    let Some(target) = new_database() else { return };
    let refused = backup::restore_store(Some(&target), dir.path(), &backup, false).unwrap_err().to_string();
    assert!(refused.contains("is older than the state of"), "{refused}");
    backup::restore_store(Some(&target), dir.path(), &backup, true).unwrap();
    let restored = open_at(&target, &dir);
    let after = wait(restored.run_durably(database_epoch::issue_token));
    assert!(after.compare_age(&before).is_none(), "tokens of different epochs cannot be compared");
    assert!(wait(restored.explain_unconfirmed(vec!["m".to_owned()])).is_some());
    // The server with the old database cannot commit to the new one, and the old database is no longer accepted.
    assert!(ServerState::open_postgres(&address, dir.path(), Duration::ZERO).is_err());
    let used = backup::restore_store(Some(&target), dir.path(), &backup, true).unwrap_err().to_string();
    assert!(used.contains("is not empty"), "{used}");
}

#[test]
fn a_backup_of_postgresql_is_restored_to_sqlite() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    install(&state, "m");
    order_of(&state);
    let backup = dir.path().join("backup.sqlite");
    backup::back_up_store(Some(&address), dir.path(), &backup).unwrap();
    backup::restore_database(dir.path(), &backup, false).unwrap();
    let file =
        database_file::DatabaseFile::open(&dir.path().join(DATABASE), tokio::sync::watch::channel(None).0).unwrap();
    let found = install_state::read_install_state(&file.connection, "m", "a").unwrap();
    assert!(found.succeeded && found.order.is_some(), "{found:?}");
    assert!(found.unconfirmed, "another server may have committed after the backup");
}

/// Makes a directory with a SQLite database in which a machine is installed.
fn sqlite_directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(DATABASE);
    let file = database_file::DatabaseFile::open(&path, tokio::sync::watch::channel(None).0).unwrap();
    let insert = "INSERT INTO allocations (machine, id, created, succeeded) VALUES ('m', 'a', 'now', 1)";
    file.connection.execute(insert, []).unwrap();
    dir
}

#[test]
fn moved_database_no_longer_starts_and_overwrites_none() {
    let (Some(address), Some(other)) = (new_database(), new_database()) else { return };
    let dir = sqlite_directory();
    let lock = backup::lock_directory(dir.path()).unwrap();
    let running = store_transfer::move_to_postgres(dir.path(), &address).unwrap_err().to_string();
    assert!(running.contains("stop that server first"), "{running}");
    drop(lock);
    open_at(&other, &tempfile::tempdir().unwrap());
    let used = store_transfer::move_to_postgres(dir.path(), &other).unwrap_err();
    assert!(used.to_string().contains("is not empty") && used.code() == ErrorCode::DatabaseAddress, "{used}");
    store_transfer::move_to_postgres(dir.path(), &address).unwrap();
    let path = dir.path().join(DATABASE);
    let refused = database_file::DatabaseFile::open(&path, tokio::sync::watch::channel(None).0).err().unwrap();
    assert!(refused.to_string().contains("was moved to PostgreSQL database"), "{refused}");
    assert_eq!(refused.code(), ErrorCode::DatabaseMoved);
    let unread = ServerState::open_to_read(&path).err().unwrap();
    assert_eq!(unread.code(), ErrorCode::DatabaseMoved, "outdated records are not read: {unread}");
    let state = open_at(&address, &dir);
    assert!(install_state(&state, "m").succeeded);
    let again = store_transfer::move_to_postgres(dir.path(), &address).unwrap_err().to_string();
    assert!(again.contains("is not empty"), "{again}");
}

#[test]
fn a_missing_or_damaged_source_is_not_moved() {
    let Some(address) = new_database() else { return };
    let empty = tempfile::tempdir().unwrap();
    assert!(
        store_transfer::move_to_postgres(empty.path(), &address).unwrap_err().to_string().contains("nothing to move")
    );
    let dir = sqlite_directory();
    let path = dir.path().join(DATABASE);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(7);
    fs::write(&path, bytes).unwrap();
    let damaged = store_transfer::move_to_postgres(dir.path(), &address).unwrap_err().to_string();
    assert!(damaged.contains("damaged") || damaged.contains("malformed"), "{damaged}");
    open_at(&address, &tempfile::tempdir().unwrap());
}

#[test]
fn directory_refuses_foreign_and_outdated_databases() {
    let (Some(one), Some(other)) = (new_database(), new_database()) else { return };
    let dir = tempfile::tempdir().unwrap();
    install(&open_at(&one, &dir), "m");
    let refused = ServerState::open_postgres(&other, dir.path(), Duration::ZERO).err().unwrap().to_string();
    assert!(refused.contains("does not have an id"), "{refused}");
    open_at(&other, &tempfile::tempdir().unwrap());
    let refused = ServerState::open_postgres(&other, dir.path(), Duration::ZERO).err().unwrap().to_string();
    assert!(refused.contains("belongs to another directory"), "{refused}");
    let second = tempfile::tempdir().unwrap();
    let state = open_at(&one, &second);
    wait(state.run_durably(|transaction| transaction.execute("UPDATE identity SET transactions = 1", [])));
    let refused = ServerState::open_postgres(&one, dir.path(), Duration::ZERO).err().unwrap().to_string();
    assert!(refused.contains("is older than the last state"), "{refused}");
    assert!(database_id::id_path(&dir.path().join(DATABASE)).exists());
}

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    wait(state.run_durably(|transaction| transaction.execute("UPDATE schema_version SET version = 99", [])));
    let refused = ServerState::open_postgres(&address, dir.path(), Duration::ZERO).err().unwrap().to_string();
    assert!(refused.contains("version 99") && refused.contains("up to 3"), "{refused}");
}

/// A server of a newer version upgrades the schema while this server runs.
#[test]
fn running_server_stops_after_the_schema_was_upgraded() {
    let raise = "UPDATE schema_version SET version = 99";
    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    for in_new_session in [false, true] {
        let Some(address) = new_database() else { return };
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [old, newer] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
        wait(newer.run_durably(move |transaction| transaction.execute(raise, [])));
        if in_new_session {
            error_of(old.run_job(move |connection| connection.query_row(end, [], |_| Ok(()))));
            error_of(old.free_machine("m"));
        } else {
            error_of(old.check_pulse());
        }
        let why = RUNTIME.with(|runtime| runtime.block_on(old.wait_until_gone()));
        let words = "to schema version 99, but this server supports versions up to 3";
        assert!(why.contains(words) && why.contains("Install the newer version"), "{why}");
        assert!(!wait(newer.is_recorded("m")), "the old server has stored nothing");
    }
}

#[test]
fn schema_version_2_is_upgraded_with_its_records() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    wait(state.free_machine("m"));
    wait(state.run_durably(|transaction| {
        transaction.execute_batch("DROP TABLE address_ranges")?;
        transaction.execute("UPDATE schema_version SET version = 2", [])
    }));
    let upgraded = open_at(&address, &dir);
    let version = wait(upgraded.run_job(|connection| {
        connection.query_row("SELECT version FROM schema_version", [], |row| row.get::<_, i64>(0))
    }));
    assert_eq!(version, 3);
    assert!(wait(upgraded.is_recorded("m")));
    wait(upgraded.register_address_range([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
}

/// PostgreSQL crashes and is unavailable for a while. Requests fail with the reason, no acknowledged transaction is
/// lost, and the server continues without a restart.
#[test]
fn requests_fail_until_the_database_is_available_again() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    let address = PostgresAddress::parse(&server.create_database("desk")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    install(&state, "m");
    let order = order_of(&state);
    let mut changes = state.changes();
    RUNTIME.with(|runtime| runtime.block_on(state.wait_for_change(&mut changes)));
    server.stop();
    for _ in 0..3 {
        let error = error_of(state.start_order("m", "a", &order.id, start()));
        assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
        assert!(error.to_string().contains("PostgreSQL is unavailable"), "{error}");
        assert!(!error.to_string().contains("user="), "{error}");
    }
    assert_eq!(error_of(state.check_pulse()).code(), ErrorCode::DatabaseUnavailable);
    server.resume();
    while RUNTIME.with(|runtime| runtime.block_on(state.check_pulse())).is_err() {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(install_state(&state, "m").order.map(|order| order.id), Some(order.id.clone()));
    assert!(matches!(wait(state.start_order("m", "a", &order.id, start())), OrderStart::Permitted(_, true)));
    // After the connection is restored, all waiting requests read the database again.
    let scope = RUNTIME.with(|runtime| runtime.block_on(state.wait_for_change(&mut changes)));
    assert_eq!(scope, ChangeScope::All);
}

#[test]
fn too_many_connections_are_an_unavailable_database() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    let name = address.to_string();
    let name = name.split(' ').nth(2).unwrap();
    let server = postgres::shared().unwrap();
    server.run_sql("postgres", "DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'desk') THEN CREATE ROLE desk LOGIN SUPERUSER; END IF; END $$");
    server.run_sql("postgres", &format!("CREATE ROLE \"{name}\" LOGIN CONNECTION LIMIT 0"));
    let url = server.url(name).replace("user=postgres", &format!("user={name}"));
    let refused = ServerState::open_postgres(&PostgresAddress::parse(&url).unwrap(), dir.path(), Duration::ZERO);
    let refused = refused.err().unwrap();
    assert_eq!(refused.code(), ErrorCode::DatabaseUnavailable, "{refused}");
    drop(state);
}

/// The session ends within a transaction, before its commit: nothing is stored, and the next request succeeds.
#[test]
fn session_ended_before_commit_stores_nothing() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    let error = error_of(state.run_durably(move |transaction| {
        transaction.execute("INSERT INTO former (former, machine) VALUES ('a', 'b')", [])?;
        transaction.query_row(end, [], |_| Ok(()))
    }));
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    let count =
        |state: &ServerState| {
            wait(state.run_job(|connection| {
                connection.query_row("SELECT count(*) FROM former", [], |row| row.get::<_, i64>(0))
            }))
        };
    assert_eq!(count(&state), 0);
    // A transaction with a failed statement cannot be committed, even if the error was ignored.
    let ignored = error_of(state.run_durably(|transaction| {
        transaction.execute("INSERT INTO former (former, machine) VALUES ('a', 'b')", [])?;
        let _ = transaction.execute("INSERT INTO former (former, machine) VALUES ('a', 'b')", []);
        Ok(())
    }));
    assert!(ignored.to_string().contains("a statement of the transaction has failed"), "{ignored}");
    assert_eq!(count(&state), 0);
}

/// Either the commit or the response to it is lost. In both cases, the error states that the outcome is unknown, and
/// the next request sees the actual state.
#[test]
fn connection_lost_during_commit_has_unknown_outcome() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    server.create_database("desk");
    let proxy = LossyProxy::start(&server);
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&PostgresAddress::parse(&proxy.url("desk")).unwrap(), &dir);
    for (loss, name, is_stored) in [(Loss::Response, "a", true), (Loss::Request, "b", false)] {
        proxy.arm(loss);
        let insert = "INSERT INTO former (former, machine) VALUES (?1, 'm')";
        let error = error_of(state.run_durably(move |transaction| transaction.execute(insert, [name])));
        assert!(error.to_string().contains("may or may not be stored"), "{error}");
        assert_eq!(error.code(), ErrorCode::DatabaseUnavailable);
        let select = "SELECT 1 FROM former WHERE former = ?1";
        assert_eq!(wait(state.run_job(move |connection| connection.prepare(select)?.exists([name]))), is_stored);
    }
}
