//! One of the two servers of a run: a process of `drophammer serve` with its own directory, its own link to PostgreSQL,
//! and its own clock.

use super::link_switch::LinkSwitch;
use super::load_balancer::BackendAddresses;
use common::error::{Context, Error, Phase, Result};
use common::sync::lock_mutex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};
use tokio::net::{UnixListener, UnixStream};

/// Number of bytes at the end of the log in which the last line is searched.
const LOG_END: usize = 64 << 10;
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Properties that both servers share.
pub struct ServerSettings {
    pub program: PathBuf,
    /// Library of faketime, which shifts the clock of a process.
    pub clock_library: PathBuf,
    /// HTTP client for reading the state of the server.
    pub client: reqwest::Client,
    /// Certificate and key for TLS; `None` for plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
}

pub struct ServerProcess {
    dir: PathBuf,
    settings: ServerSettings,
    pub addresses: BackendAddresses,
    /// Link between the server and PostgreSQL.
    pub database_link: LinkSwitch,
    child: Mutex<Option<Child>>,
}

impl ServerProcess {
    /// Prepares a server that has its files in `dir`, and reaches PostgreSQL at `socket` over its own link.
    ///
    /// # Errors
    /// Returns an error if the link or the ports cannot be set up.
    pub fn prepare(dir: &Path, socket: &Path, settings: ServerSettings) -> Result<ServerProcess> {
        let what = || format!("prepare the server in {}", dir.display());
        let database_link = LinkSwitch::new();
        let sockets = dir.with_extension("postgres");
        fs::create_dir(&sockets).context(Phase::Control, what)?;
        let listener = UnixListener::bind(sockets.join(".s.PGSQL.5432")).context(Phase::Control, what)?;
        tokio::spawn(forward_sockets(listener, socket.to_owned(), database_link.clone()));
        let free = || std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let (boot, api) = (free().context(Phase::Control, what)?, free().context(Phase::Control, what)?);
        let api = if settings.tls.is_some() { api } else { boot };
        let addresses = BackendAddresses { boot, api };
        let server = ServerProcess { dir: dir.to_owned(), settings, addresses, database_link, child: Mutex::default() };
        server.set_clock(0)?;
        Ok(server)
    }

    /// Starts the process, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the server does not become ready.
    pub async fn start(&self) -> Result<()> {
        let what = || format!("start the server in {}", self.dir.display());
        let child = self.command()?.spawn().context(Phase::Control, what)?;
        fs::write(self.dir.with_extension("pid"), child.id().to_string()).context(Phase::Control, what)?;
        *lock_mutex(&self.child) = Some(child);
        let (began, mut last) = (Instant::now(), String::new());
        while began.elapsed() < START_TIMEOUT {
            last = match self.addresses.get(&self.settings.client, "/readyz").await {
                Ok(response) if response.status().is_success() => return Ok(()),
                Ok(response) => response.text().await.unwrap_or_default(),
                Err(error) => error,
            };
            if let Some(status) = self.exit_status() {
                return Err(Error::new(
                    Phase::Control,
                    format!("the server in {} ended: {status}", self.dir.display()),
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Error::new(Phase::Control, format!("the server in {} is not ready: {last}", self.dir.display())))
    }

    fn command(&self) -> Result<Command> {
        let open = |extension: &str| {
            let file = File::options().create(true).append(true).open(self.dir.with_extension(extension));
            file.context(Phase::Control, || "open the log of the server")
        };
        let (output, errors) = (open("log")?, open("errors")?);
        let store = format!("postgres:///desk?host={}&user=postgres", self.dir.with_extension("postgres").display());
        let mut command = Command::new(&self.settings.program);
        command.arg("serve").arg(&self.dir).args(["--json", "--restart-timeout", "5", "--store"]).arg(store);
        command.arg("--listen").arg(self.addresses.boot.to_string());
        if let Some((certificate, key)) = &self.settings.tls {
            command.arg("--tls-listen").arg(self.addresses.api.to_string());
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        }
        command.env("LD_PRELOAD", &self.settings.clock_library);
        command.env("FAKETIME_TIMESTAMP_FILE", self.clock_file()).env("FAKETIME_CACHE_DURATION", "1");
        // faketime must not change the monotonic clock, with which the server measures durations.
        command.env("DONT_FAKE_MONOTONIC", "1");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        Ok(command)
    }

    /// Returns the exit status if the process has ended.
    pub fn exit_status(&self) -> Option<std::process::ExitStatus> {
        lock_mutex(&self.child).as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// Returns an error if the process does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = lock_mutex(&self.child).as_ref().map(Child::id);
        let pid = pid.ok_or_else(|| Error::new(Phase::Control, "the server does not run"))?;
        kill(Pid::from_raw(pid.cast_signed()), signal).context(Phase::Control, || format!("send {signal} to a server"))
    }

    /// Kills the process, and waits for its end.
    pub fn kill(&self) {
        if let Some(mut child) = lock_mutex(&self.child).take() {
            // Errors are ignored: both calls fail only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Shifts the clock of the process. The process reads the shift once per second.
    ///
    /// # Errors
    /// Returns an error if the file with the shift cannot be written.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        let (path, new) = (self.clock_file(), self.dir.with_extension("clock.new"));
        let written = fs::write(&new, format!("{seconds:+}\n")).and_then(|()| fs::rename(&new, &path));
        written.context(Phase::Control, || format!("write {}", path.display()))
    }

    fn clock_file(&self) -> PathBuf {
        self.dir.with_extension("clock")
    }

    /// Returns the difference between the server's clock and this host's clock in seconds. The server's clock is read
    /// from the `Date` of a response and from the last line of the log. The larger of the two differences is returned,
    /// because hyper does not update the `Date` after the clock was set back.
    ///
    /// # Errors
    /// Returns an error if the server does not respond with a date.
    pub async fn clock_shift(&self) -> Result<i64> {
        let what = || "read the clock of the server";
        let response = self.addresses.get(&self.settings.client, "/livez").await;
        let response = response.map_err(|error| Error::new(Phase::Control, error)).context(Phase::Control, what)?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        let date = OffsetDateTime::parse(date.unwrap_or_default(), &Rfc2822).context(Phase::Control, what)?;
        let log = fs::read(self.dir.with_extension("log")).context(Phase::Control, what)?;
        let log =
            String::from_utf8_lossy(log.get(log.len().saturating_sub(LOG_END)..).unwrap_or_default()).into_owned();
        let logged = log.rsplit_once("\"time\":\"").and_then(|(_, rest)| rest.split('"').next());
        let logged = logged.and_then(|logged| OffsetDateTime::parse(logged, &Rfc3339).ok());
        let now = OffsetDateTime::now_utc();
        let shifts = [Some(date), logged].into_iter().flatten().map(|time| (time - now).whole_seconds());
        Ok(shifts.max_by_key(|shift| shift.abs()).unwrap_or_default())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Forwards connections to PostgreSQL over the link.
async fn forward_sockets(listener: UnixListener, socket: PathBuf, link: LinkSwitch) {
    while let Ok((client, _)) = listener.accept().await {
        let (socket, link) = (socket.clone(), link.clone());
        tokio::spawn(async move {
            link.wait_until_up().await;
            // An error is ignored, because the server notices that its connection has failed.
            if let Ok(server) = UnixStream::connect(socket).await {
                drop(link.copy_both(client, server).await);
            }
        });
    }
}
