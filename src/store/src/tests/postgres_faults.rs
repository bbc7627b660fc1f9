//! Faults of PostgreSQL and of servers that share it: a server that stops within a transaction, a hung PostgreSQL,
//! TLS, and clocks that differ.

use super::postgres::{disable_group_limit, error_of, new_database, open_at};
use super::*;
use crate::store_address::PostgresAddress;
use ::testing::postgres::{self, PrivatePostgres};
use common::error_code::ErrorCode;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

/// One of two servers is paused within a transaction that writes. PostgreSQL ends the session of the paused server
/// after two seconds; the other server can then write. The paused server stores nothing, and works normally after it is
/// resumed.
#[test]
fn paused_server_does_not_block_the_other() {
    let Some(address) = new_database() else { return };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [paused, other] = [open_at(&address, &dirs[0]), open_at(&address, &dirs[1])];
    let (locked, is_locked) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let insert = "INSERT INTO former (former, machine) VALUES (?1, 'm')";
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| {
            RUNTIME.with(|runtime| {
                runtime.block_on(paused.run_durably(move |transaction| {
                    transaction.execute(insert, ["paused"])?;
                    locked.send(()).unwrap();
                    resumed.recv().unwrap();
                    Ok(())
                }))
            })
        });
        is_locked.recv().unwrap();
        let began = Instant::now();
        wait(other.run_durably(move |transaction| transaction.execute(insert, ["other"])));
        let taken = began.elapsed();
        assert!(taken > Duration::from_secs(1) && taken < Duration::from_secs(8), "{taken:?}");
        resume.send(()).unwrap();
        let error = stopped.join().unwrap().err().unwrap();
        assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    });
    let stored = wait(paused.run_job(|connection| {
        connection
            .prepare("SELECT former FROM former")?
            .query_map([], |row| row.get(0))?
            .collect::<sql::Result<Vec<String>>>()
    }));
    assert_eq!(stored, ["other"]);
}

/// The session ends within a group. The earlier transactions of the group are also not acknowledged, and nothing is
/// stored.
#[test]
fn session_ended_within_a_group_fails_all_its_jobs() {
    let Some(address) = new_database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    disable_group_limit(&state);
    let (until, blocks) = mpsc::channel();
    state.block_thread(blocks);
    let insert = "INSERT INTO former (former, machine) VALUES (?1, 'm')";
    let insert = |name: &'static str, then: &'static str| {
        state.submit_job(move |store| {
            store.run_durably(ChangeScope::All, |transaction| {
                transaction.execute(insert, [name])?;
                transaction.query_row(then, [], |_| Ok(()))
            })
        })
    };
    let end = "SELECT pg_terminate_backend(pg_backend_pid())";
    let jobs = [insert("first", "SELECT 1"), insert("second", end)];
    let after = insert("third", "SELECT 1");
    drop(until);
    for job in jobs {
        let error = error_of(async { database_handle::flatten_answer(job.await) });
        assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
        assert!(error.to_string().contains("terminating connection"), "{error}");
    }
    wait(async { database_handle::flatten_answer(after.await) });
    let stored = wait(state.run_job(|connection| {
        connection.query_row("SELECT max(former) FROM former", [], |row| row.get::<_, String>(0))
    }));
    assert_eq!(stored, "third");
}

/// The host becomes read-only without ending its sessions, like a primary that was demoted. The sessions of both
/// connections are closed, because the host may lack the changes of the new primary.
#[test]
fn sessions_on_a_read_only_host_are_closed() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    let address = PostgresAddress::parse(&server.create_database("desk")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    let change = |setting: &str| {
        server.run_sql("postgres", setting);
        server.run_sql("postgres", "SELECT pg_reload_conf()");
    };
    let insert = "INSERT INTO former (former, machine) VALUES ('f', 'm') ON CONFLICT DO NOTHING";
    let write = || {
        let written = state.run_durably(move |transaction| transaction.execute(insert, []));
        RUNTIME.with(|runtime| runtime.block_on(written))
    };
    let read = || {
        state.read_committed_blocking(|connection| {
            connection.query_row("SELECT count(*) FROM former", [], |row| row.get::<_, i64>(0))
        })
    };
    write().unwrap();
    assert_eq!(read().unwrap(), 1);
    change("ALTER SYSTEM SET default_transaction_read_only = on");
    let error = loop {
        if let Err(error) = write() {
            break error;
        }
    };
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    assert_eq!(read().unwrap_err().code(), ErrorCode::DatabaseUnavailable);
    change("ALTER SYSTEM RESET default_transaction_read_only");
    while write().is_err() || read().is_err() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(read().unwrap(), 1);
}

/// Starts PostgreSQL with TLS and a certificate for 127.0.0.1 that `ca.pem` has issued. Returns the address on which it
/// listens.
fn start_with_tls(server: &PrivatePostgres, files: &Path) -> String {
    let address = format!("127.83.{}.{}", std::process::id() % 250, std::process::id() / 250 % 250 + 1);
    let (key, certificate) = (server.copy_key(&files.join("server.key")), files.join("server.pem"));
    let settings = format!(
        "listen_addresses = '{address}'\nssl = on\nssl_cert_file = '{}'\nssl_key_file = '{}'",
        certificate.display(),
        key.display()
    );
    server.restart_with(&settings, "hostssl all all 127.0.0.0/8 trust\nlocal all all trust\n");
    address
}

/// The certificate of PostgreSQL is verified with the specified authority. A certificate of another authority, and a
/// connection without TLS, are refused.
#[test]
fn connections_over_the_network_use_tls_and_verify_the_certificate() {
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    server.create_database("desk");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tls").canonicalize().unwrap();
    // PostgreSQL runs as its own user, who may be unable to read the directory of the tests.
    let public = tempfile::tempdir_in("/tmp").unwrap();
    for name in ["ca.pem", "server.pem", "server.key", "stranger.pem"] {
        fs::copy(files.join(name), public.path().join(name)).unwrap();
    }
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(public.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let address = start_with_tls(&server, public.path());
    let open = |parameters: String| {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("postgres://postgres@127.0.0.1/desk?hostaddr={address}&{parameters}");
        let opened =
            ServerState::open_postgres(&PostgresAddress::parse(&url).unwrap(), dir.path(), Duration::from_secs(60));
        opened.map(|state| {
            wait(state.run_job(|connection| {
                connection.query_row("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", [], |row| {
                    row.get::<_, bool>(0)
                })
            }))
        })
    };
    let root = |name: &str| format!("sslrootcert={}", public.path().join(name).display());
    assert!(open(format!("sslmode=require&{}", root("ca.pem"))).unwrap(), "the session is encrypted");
    let foreign = open(format!("sslmode=require&{}", root("stranger.pem"))).unwrap_err();
    assert!(foreign.to_string().contains("certificate"), "{foreign}");
    let unverified = open("sslmode=require".to_owned()).unwrap_err();
    assert!(unverified.to_string().contains("certificate"), "the authorities of the host: {unverified}");
    let plain = open("sslmode=disable".to_owned()).unwrap_err();
    assert!(plain.to_string().contains("no encryption"), "{plain}");
}

/// All processes of PostgreSQL are stopped with a signal. Requests fail within the deadline of a call, and succeed
/// after PostgreSQL continues.
#[test]
fn hung_database_fails_requests_within_the_deadline() {
    use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};
    if !postgres::is_installed() {
        return;
    }
    let server = PrivatePostgres::start();
    let address = PostgresAddress::parse(&server.create_database("desk")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let state = open_at(&address, &dir);
    server.signal_all(SIGSTOP);
    let began = Instant::now();
    let error = error_of(state.check_pulse());
    let passed = began.elapsed();
    server.signal_all(SIGCONT);
    assert_eq!(error.code(), ErrorCode::DatabaseUnavailable, "{error}");
    assert!(error.to_string().contains("no response within 20 s"), "{error}");
    assert!(passed < Duration::from_secs(35), "{passed:?}");
    while RUNTIME.with(|runtime| runtime.block_on(state.check_pulse())).is_err() {
        std::thread::sleep(Duration::from_millis(100));
    }
    install(&state, "m");
}
