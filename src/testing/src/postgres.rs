//! Private PostgreSQL server for the tests of one process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Directory of Debian's PostgreSQL 15.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// Unprivileged user as which the server runs if the test runs as root.
const USER: &str = "postgres";

/// Returns whether tests can use PostgreSQL. Tests that require PostgreSQL are skipped if it is not installed, except
/// in CI, where no test may be skipped.
///
/// # Panics
/// Panics in CI if PostgreSQL is not installed.
pub fn is_installed() -> bool {
    let is_installed = Path::new(PROGRAMS).join("initdb").exists();
    require_in_ci(is_installed, std::env::var_os("CI").is_some());
    is_installed
}

fn require_in_ci(is_installed: bool, is_ci: bool) {
    assert!(is_installed || !is_ci, "PostgreSQL 15 is not installed, and in CI a skipped test must not pass");
}

/// Running server in a temporary directory. It listens only on a UNIX socket in this directory.
pub struct PrivatePostgres {
    dir: PathBuf,
    keeper: Mutex<Option<Child>>,
}

impl PrivatePostgres {
    /// Creates and starts a server. The server ends when the process ends, or when the value is dropped.
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn start() -> PrivatePostgres {
        let (dir, is_root) = (create_directory(), nix::unistd::geteuid().is_root());
        let initdb = ["-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"];
        run(as_user(is_root, "initdb").args(initdb).current_dir(&dir));
        append(&dir.join("data/postgresql.conf"), "listen_addresses = ''\nmax_connections = 300\n");
        let server = PrivatePostgres { dir, keeper: Mutex::default() };
        server.resume();
        server
    }

    /// Creates and starts a standby of this server. From then on, each synchronous commit of this server waits until
    /// the standby has received it.
    ///
    /// # Panics
    /// Panics if the standby does not start, or does not receive changes within 30 seconds.
    pub fn start_standby(&self) -> PrivatePostgres {
        let dir = create_directory();
        let mut copy = as_user(nix::unistd::geteuid().is_root(), "pg_basebackup");
        copy.args(["-D", "data", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-U", USER, "-h"]).arg(&self.dir);
        run(copy.current_dir(&dir));
        let standby = PrivatePostgres { dir, keeper: Mutex::default() };
        standby.resume();
        self.run_sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.run_sql("postgres", "SELECT pg_reload_conf()");
        for _ in 0..600 {
            if self.run_sql("postgres", "SELECT sync_state FROM pg_stat_replication") == "sync" {
                return standby;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the standby does not receive changes");
    }

    /// Makes a standby accept writes, and waits until it does.
    ///
    /// # Panics
    /// Panics if the server is not a standby.
    pub fn promote(&self) {
        let mut promote = as_user(nix::unistd::geteuid().is_root(), "pg_ctl");
        run(promote.args(["promote", "-D", "data"]).current_dir(&self.dir));
    }

    /// Kills all processes of the server, as a crash of its host would.
    ///
    /// # Panics
    /// Panics if the server does not run.
    pub fn kill(&self) {
        self.signal_all(nix::sys::signal::Signal::SIGKILL);
        // Without this file, the shell that ends the server does not signal another process with the same id.
        std::fs::remove_file(self.dir.join("data/postmaster.pid")).unwrap();
    }

    /// Starts the server again after [`PrivatePostgres::stop`], and waits until it accepts connections.
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn resume(&self) {
        let is_root = nix::unistd::geteuid().is_root();
        let mut server = as_user(is_root, "postgres");
        server.args(["-D", "data", "-k"]).arg(&self.dir).args(["-c", "fsync=off"]);
        server.args(["-c", "full_page_writes=off", "-c", "log_min_messages=error"]);
        let command: Vec<String> = std::iter::once(server.get_program())
            .chain(server.get_args())
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        // The shell ends the server when the standard input of the shell is closed, which also happens if the test is
        // killed.
        let script = "\"$@\" >>log 2>&1 </dev/null & server=$!; read -r word; \
            kill -QUIT \"$(head -n1 data/postmaster.pid 2>/dev/null || echo $server)\"; wait $server; \
            [ \"$word\" = stop ] || rm -rf \"$PWD\"";
        let mut keeper = Command::new("sh");
        keeper.args(["-c", script, "sh"]).args(command).current_dir(&self.dir).stdin(Stdio::piped());
        // Tests stop the server with SIGSTOP. If the process group of the tests contained a stopped process, the kernel
        // would send SIGHUP to the whole group when the group becomes orphaned (setpgid(2)).
        keeper.process_group(0);
        *self.keeper.lock().unwrap() = Some(keeper.spawn().unwrap());
        for _ in 0..600 {
            let ready = as_user(is_root, "pg_isready").arg("-q").arg("-h").arg(&self.dir).status();
            if ready.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("PostgreSQL does not start: {}", std::fs::read_to_string(self.dir.join("log")).unwrap_or_default());
    }

    /// Stops the server immediately, like a crash.
    ///
    /// # Panics
    /// Panics if the server is not running.
    pub fn stop(&self) {
        let mut keeper = self.keeper.lock().unwrap().take().unwrap();
        keeper.stdin.take().unwrap().write_all(b"stop\n").unwrap();
        keeper.wait().unwrap();
    }

    /// Restarts the server with additional settings, and with these rules for client authentication (`pg_hba.conf`).
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn restart_with(&self, settings: &str, access: &str) {
        self.stop();
        append(&self.dir.join("data/postgresql.conf"), &format!("{settings}\n"));
        std::fs::write(self.dir.join("data/pg_hba.conf"), access).unwrap();
        self.resume();
    }

    /// Copies a private key into the directory of the server, with permissions for its user only. Returns the path of
    /// the copy.
    ///
    /// # Panics
    /// Panics if the file cannot be copied.
    pub fn copy_key(&self, key: &Path) -> PathBuf {
        let copy = self.dir.join("tls.key");
        let owner = if nix::unistd::geteuid().is_root() { USER } else { "" };
        std::fs::copy(key, &copy).unwrap();
        run(Command::new("chmod").arg("600").arg(&copy));
        if !owner.is_empty() {
            run(Command::new("chown").arg(format!("{owner}:")).arg(&copy));
        }
        copy
    }

    /// Sends a signal to all processes of the server.
    ///
    /// # Panics
    /// Panics if the server does not run.
    pub fn signal_all(&self, signal: nix::sys::signal::Signal) {
        let file = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        let parent: i32 = file.lines().next().unwrap().parse().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        for child in children.split_whitespace() {
            // An error is ignored, because the process may have ended by now.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.parse().unwrap()), signal);
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(parent), signal).unwrap();
    }

    /// Creates an empty database, and returns its URL.
    ///
    /// # Panics
    /// Panics if the database cannot be created.
    pub fn create_database(&self, name: &str) -> String {
        self.run_sql("postgres", &format!("CREATE DATABASE \"{name}\" TEMPLATE template0"));
        self.url(name)
    }

    /// Returns the URL of a database.
    pub fn url(&self, name: &str) -> String {
        format!("postgres:///{name}?host={}&user={USER}", self.dir.display())
    }

    /// Returns the URL of a database on this server and on its standby.
    pub fn url_with_standby(&self, name: &str, standby: &PrivatePostgres) -> String {
        // In the parameter `host`, tokio-postgres does not separate the paths of several sockets.
        let [primary, standby] = [self, standby].map(|server| server.dir.display().to_string().replace('/', "%2F"));
        format!("postgres://{USER}@{primary},{standby}/{name}?target_session_attrs=read-write")
    }

    /// Creates an empty database whose tablespace is in `dir`, and returns its URL.
    ///
    /// # Panics
    /// Panics if the database cannot be created.
    pub fn create_database_in(&self, name: &str, dir: &Path) -> String {
        if nix::unistd::geteuid().is_root() {
            run(Command::new("chown").arg(format!("{USER}:")).arg(dir));
        }
        self.run_sql("postgres", &format!("CREATE TABLESPACE \"{name}\" LOCATION '{}'", dir.display()));
        let create = format!("CREATE DATABASE \"{name}\" TEMPLATE template0 TABLESPACE \"{name}\"");
        self.run_sql("postgres", &create);
        self.url(name)
    }

    /// Takes all `count` connections of the server. Ends the sessions of other clients, which cannot connect again
    /// until the returned connections are dropped.
    ///
    /// # Panics
    /// Panics if the connections cannot be taken within ten seconds.
    pub fn take_all_connections(&self, database: &str, count: usize) -> Vec<UnixStream> {
        let mut taken = Vec::new();
        for _ in 0..200 {
            taken.extend(std::iter::from_fn(|| self.open_idle_connection(database)));
            if taken.len() == count {
                return taken;
            }
            // The first session that was opened here ends all other sessions.
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name <> 'idle'\0";
            let length = u32::try_from(end.len() + 4).unwrap();
            taken[0].write_all(&[b"Q", &length.to_be_bytes()[..], end.as_bytes()].concat()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{} of {count} connections were taken", taken.len());
    }

    /// Opens a connection that stays idle. Returns `None` if the server refuses it.
    fn open_idle_connection(&self, database: &str) -> Option<UnixStream> {
        let mut connection = UnixStream::connect(self.socket()).unwrap();
        let parameters = format!("user\0{USER}\0database\0{database}\0application_name\0idle\0\0");
        let length = u32::try_from(parameters.len() + 8).unwrap();
        // A startup message consists of its length, the version of the protocol (3.0), and the parameters.
        let message = [&length.to_be_bytes()[..], &0x0003_0000_u32.to_be_bytes(), parameters.as_bytes()].concat();
        connection.write_all(&message).unwrap();
        let mut kind = [0];
        // The first byte of the response is `R` if the server accepts the connection, and `E` if it reports an error.
        (connection.read(&mut kind).is_ok_and(|length| length == 1) && kind == *b"R").then_some(connection)
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    /// Returns the contents of a database, as pg_dump prints them.
    ///
    /// # Panics
    /// Panics if the database cannot be read.
    pub fn dump(&self, database: &str) -> String {
        let mut dump = as_user(nix::unistd::geteuid().is_root(), "pg_dump");
        run(dump.args(["-U", USER, "-d", database, "-h"]).arg(&self.dir).current_dir("/tmp"))
    }

    /// Runs statements with psql, and returns its output without headers.
    ///
    /// # Panics
    /// Panics if a statement fails.
    pub fn run_sql(&self, database: &str, sql: &str) -> String {
        let mut psql = as_user(nix::unistd::geteuid().is_root(), "psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", database, "-h"]);
        run(psql.arg(&self.dir).args(["-c", sql]).current_dir("/tmp"))
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.lock().unwrap().take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
    }
}

/// Returns the server that all tests of this process share, or `None` if PostgreSQL is not installed.
///
/// # Panics
/// Panics in CI if PostgreSQL is not installed.
pub fn shared() -> Option<&'static PrivatePostgres> {
    static SHARED: OnceLock<PrivatePostgres> = OnceLock::new();
    is_installed().then(|| SHARED.get_or_init(PrivatePostgres::start))
}

/// Creates the temporary directory of a server.
fn create_directory() -> PathBuf {
    let dir = tempfile::Builder::new().prefix("pg-").tempdir_in("/tmp").unwrap().keep();
    if nix::unistd::geteuid().is_root() {
        run(Command::new("chown").arg(format!("{USER}:")).arg(&dir));
    }
    dir
}

fn append(path: &Path, text: &str) {
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn as_user(is_root: bool, program: &str) -> Command {
    let program = Path::new(PROGRAMS).join(program);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    // The working directory is `/tmp`, because the user may have no access to the directory of the tests.
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(program).current_dir("/tmp");
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_postgresql_skips_tests_except_in_ci() {
        for (is_installed, is_ci) in [(true, true), (true, false), (false, false)] {
            require_in_ci(is_installed, is_ci);
        }
        assert!(std::panic::catch_unwind(|| require_in_ci(false, true)).is_err());
    }
}
