//! PostgreSQL server of a run, in its own directory. It listens only on a UNIX socket.

use common::error::{Context, Error, Phase, Result};
use common::sync::lock_mutex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Directory of Debian's PostgreSQL 15.
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub struct PostgresProcess {
    dir: PathBuf,
    child: Mutex<Child>,
}

impl PostgresProcess {
    /// Creates and starts a server in this directory, which must not exist yet.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub async fn start(dir: &Path) -> Result<PostgresProcess> {
        std::fs::create_dir(dir).context(Phase::Control, || format!("create {}", dir.display()))?;
        run(Command::new("chown").arg(format!("{USER}:")).arg(dir))?;
        let initdb = ["-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"];
        run(as_user("initdb", dir).args(initdb))?;
        let server = PostgresProcess { dir: dir.to_owned(), child: Mutex::new(spawn(dir)?) };
        server.wait_until_ready().await?;
        run(as_user("createdb", dir).arg("-h").arg(dir).args(["-U", USER, "-T", "template0", "desk"]))?;
        Ok(server)
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(".s.PGSQL.5432")
    }

    /// Stops the server with this signal, and starts it again.
    ///
    /// # Errors
    /// Returns an error if the server does not stop or start.
    pub async fn restart(&self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let began = Instant::now();
        while lock_mutex(&self.child).try_wait().context(Phase::Control, || "wait for PostgreSQL")?.is_none() {
            if began.elapsed() > START_TIMEOUT {
                return Err(Error::new(Phase::Control, "PostgreSQL does not stop"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *lock_mutex(&self.child) = spawn(&self.dir)?;
        self.wait_until_ready().await
    }

    /// Sends a signal to all processes of the server.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn signal_all(&self, signal: Signal) -> Result<()> {
        let parent = lock_mutex(&self.child).id();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.context(Phase::Control, || "list the processes of PostgreSQL")?;
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            // An error is ignored, because the process may have ended by now.
            let _ = kill(Pid::from_raw(child), signal);
        }
        self.signal(signal)
    }

    /// Runs a statement. Returns its result as text without headers.
    ///
    /// # Errors
    /// Returns an error if the statement fails.
    pub fn query(&self, sql: &str) -> Result<String> {
        let mut psql = as_user("psql", &self.dir);
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", "desk", "-h"]).arg(&self.dir);
        run(psql.args(["-c", sql]))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(lock_mutex(&self.child).id().cast_signed());
        kill(pid, signal).context(Phase::Control, || format!("send {signal} to PostgreSQL"))
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            let ready = as_user("pg_isready", &self.dir).arg("-q").arg("-h").arg(&self.dir).status();
            if ready.is_ok_and(|status| status.success()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        Err(Error::new(Phase::Control, format!("PostgreSQL does not start: {log}")))
    }
}

impl Drop for PostgresProcess {
    fn drop(&mut self) {
        // SIGCONT is also sent, because a process that SIGSTOP has stopped handles SIGQUIT only after SIGCONT.
        let _ = self.signal_all(Signal::SIGCONT);
        let _ = self.signal(Signal::SIGQUIT);
        let _ = lock_mutex(&self.child).wait();
    }
}

fn spawn(dir: &Path) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"));
    let log = log.context(Phase::Control, || "open the log of PostgreSQL")?;
    let mut server = as_user("postgres", dir);
    server.args(["-D", "data", "-k"]).arg(dir).args(["-c", "listen_addresses=", "-c", "max_connections=60"]);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = server.spawn().context(Phase::Control, || "start PostgreSQL")?;
    std::fs::write(dir.with_extension("pid"), child.id().to_string()).context(Phase::Control, || "write the pid")?;
    Ok(child)
}

fn as_user(program: &str, dir: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(Path::new(PROGRAMS).join(program));
    command.current_dir(dir);
    command
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context(Phase::Control, || format!("run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Error::new(Phase::Control, format!("{command:?}: {}", errors.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
