//! `drophammer serve` as a child process, the folder that it reads, and what it says.

use crate::host::{Context, Result, child, write};
use crate::proxy::Proxy;
use crate::tls::{self, Ends};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A debug build of the server on a busy host needs a moment.
const START_DEADLINE: Duration = Duration::from_secs(30);

pub struct Server {
    process: Child,
    folder: PathBuf,
    boot: PathBuf,
    cmdline: String,
    /// Where it speaks TLS, what is between it and the machine.
    ends: Option<Ends>,
    said: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    /// Starts the server on a port of its own choice; read it from [`Server::port`].
    ///
    /// # Errors
    /// It does not say where it listens, with its own words.
    pub fn start(folder: &Path, boot: &Path, cmdline: &str, ends: Option<Ends>) -> Result<Server> {
        let said = Arc::default();
        let process = spawn(folder, boot, cmdline, ends.as_ref(), &said)?;
        let (folder, boot) = (folder.to_owned(), boot.to_owned());
        let mut server = Server { process, folder, boot, cmdline: cmdline.to_owned(), ends, said };
        server.wait_until_listening(0)?;
        Ok(server)
    }

    /// All that it has said so far, in order, over all its lives.
    pub fn said(&self) -> Vec<Value> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where that is kept.
    pub fn ear(&self) -> Arc<Mutex<Vec<Value>>> {
        Arc::clone(&self.said)
    }

    pub fn port(&self) -> Option<u16> {
        self.listening().last().copied()
    }

    /// Tells the wire where it is now.
    ///
    /// # Errors
    /// It does not say its port.
    pub fn connect(&self, proxy: &Proxy) -> Result<()> {
        let port = self.port().ok_or("drophammer serve does not say its port")?;
        if let Some(ends) = &self.ends {
            let port = over_tls(&self.said()).last().copied();
            ends.set_server(port.ok_or("drophammer serve does not say where it speaks TLS")?);
            proxy.set_over_tls(ends.to_server);
        }
        proxy.set_server(port, self.process.id() as i32);
        Ok(())
    }

    /// Kills it; [`Server::restart`] makes it come back.
    pub fn kill(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// # Errors
    /// As [`Server::start`].
    pub fn restart(&mut self) -> Result<()> {
        let lives = self.listening().len();
        self.process = spawn(&self.folder, &self.boot, &self.cmdline, self.ends.as_ref(), &self.said)?;
        self.wait_until_listening(lives)
    }

    /// Makes it stand still, or go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn freeze(&self, still: bool) -> Result<()> {
        let signal = if still { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(self.process.id() as i32), signal).context("drophammer serve")
    }

    fn listening(&self) -> Vec<u16> {
        let said = self.said();
        let addresses = said.iter().filter_map(|line| line["listening"].as_str());
        addresses.filter_map(|address| address.rsplit(':').next()?.trim_end_matches('/').parse().ok()).collect()
    }

    fn has_begun(&self, lives: usize) -> bool {
        let speaks_tls = || self.ends.is_none() || over_tls(&self.said()).len() > lives;
        self.listening().len() > lives && speaks_tls()
    }

    fn wait_until_listening(&mut self, lives: usize) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while !self.has_begun(lives) {
            let ended = self.process.try_wait().context("drophammer serve")?;
            if ended.is_some() || Instant::now() > deadline {
                let words = std::fs::read_to_string(self.folder.join("serve.errors.log")).unwrap_or_default();
                return Err(format!("drophammer serve does not listen ({ended:?}): {}", words.trim()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where it has spoken TLS, in all its lives.
fn over_tls(said: &[Value]) -> Vec<u16> {
    let notes = said.iter().filter_map(|line| line["note"].as_str());
    let places = notes.filter_map(|note| note.strip_prefix("API and images are served at https://127.0.0.1:"));
    places.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

fn spawn(
    folder: &Path,
    boot: &Path,
    cmdline: &str,
    ends: Option<&Ends>,
    said: &Arc<Mutex<Vec<Value>>>,
) -> Result<Child> {
    let errors = folder.join("serve.errors.log");
    let errors = File::options().create(true).append(true).open(&errors).context(errors.display())?;
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("serve.log"))
        .context(folder.join("serve.log").display())?;
    let mut command = child(env!("CARGO_BIN_EXE_drophammer"));
    command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0", "--json", "--boot"]).arg(boot);
    // QEMU's user network does not pass on the source ports of machines.
    command.arg("--any-source-port");
    if !cmdline.is_empty() {
        command.args(["--cmdline", cmdline]);
    }
    if let Some(ends) = ends {
        command.arg("--tls-cert").arg(tls::file("server.pem")).arg("--tls-key").arg(tls::file("server.key"));
        command.args(["--tls-listen", "127.0.0.1:0", "--url", &ends.url()]);
    }
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().context("drophammer serve")?;
    let output = process.stdout.take().ok_or("drophammer serve has no output")?;
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
            // The log is for people; what counts is kept below.
            let _ = writeln!(log, "{line}");
            if let Ok(value) = serde_json::from_str(&line) {
                said.lock().unwrap_or_else(PoisonError::into_inner).push(value);
            }
        }
    });
    Ok(process)
}

/// Makes the next server in this folder know nothing of what has happened. The token is removed too, because a server
/// without a database does not start beside it.
///
/// # Errors
/// A file cannot be removed.
pub fn forget(folder: &Path) -> Result<()> {
    for name in ["drophammer.sqlite", "drophammer.sqlite-wal", "drophammer.sqlite-shm", "operator.token"] {
        let path = folder.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context(path.display()),
            _ => {}
        }
    }
    Ok(())
}

/// `start.ipxe` as the server makes it for a machine that knows this host as 10.0.2.2.
///
/// # Errors
/// The server does not have it.
pub fn start_script(port: u16) -> Result<String> {
    match get(port, "/start.ipxe")? {
        (200, body) if body.starts_with("#!ipxe") => Ok(body),
        (status, body) => Err(format!("drophammer serve has no /start.ipxe: {status} {body}")),
    }
}

/// The kernel command line with which the machine carries out its order; none without an order. The server counts this
/// as an attempt.
///
/// # Errors
/// The server has neither.
pub fn next_boot(port: u16, uuid: &str, mac: &str) -> Result<Option<String>> {
    let (status, body) = get(port, &format!("/boot.json?uuid={uuid}&mac={mac}"))?;
    let cmdline = serde_json::from_str::<Value>(&body).ok().and_then(|it| it["cmdline"].as_str().map(str::to_owned));
    match (status, cmdline) {
        (200, Some(cmdline)) => Ok(Some(cmdline)),
        (409, _) => Ok(None),
        (status, _) => Err(format!("GET /boot.json: {status} {body}")),
    }
}

/// What iPXE is told to start.
#[derive(Debug, PartialEq, Eq)]
pub struct Script {
    /// Of the kernel.
    pub cmdline: String,
    /// With the part of the ramdisk that opens encrypted filesystems.
    pub with_luks: bool,
}

/// What iPXE is told to start; none if the machine is to boot its own disk. If a reinstall is
/// ordered, the server counts this as an attempt.
///
/// # Errors
/// The server refuses.
pub fn boot_script(port: u16, uuid: &str, mac: &str) -> Result<Option<Script>> {
    match get(port, &format!("/boot.ipxe?uuid={uuid}&mac={mac}"))? {
        (200, script) => read_script(&script),
        (status, body) => Err(format!("GET /boot.ipxe: {status} {body}")),
    }
}

fn read_script(script: &str) -> Result<Option<Script>> {
    let kernel = script.lines().find_map(|line| line.strip_prefix("kernel "));
    match kernel.and_then(|line| line.split_once(" initrd=initrd ")) {
        Some((_, arguments)) => {
            let with_luks = script.contains("/boot/initrd-luks\n");
            Ok(Some(Script { cmdline: arguments.to_owned(), with_luks }))
        }
        None if script.contains("sanboot") => Ok(None),
        None => Err(format!("neither kernel nor disk in the boot script: {script}")),
    }
}

/// A boot script is understood as iPXE does, and what the server says of TLS.
pub fn self_test() {
    let note = "API and images are served at https://127.0.0.1:4711 only; http://127.0.0.1:1 only serves boot files";
    let said = [json!({"listening": "http://127.0.0.1:1"}), json!({"note": note}), json!({"note": "x"})];
    assert_eq!(over_tls(&said), [4711]);
    let ramdisk = "#!ipxe\nkernel http://h/boot/vmlinuz initrd=initrd a.b=c panic=-1\ninitrd --name initrd http://h/boot/initrd\nboot\n";
    let told = |with_luks| Ok(Some(Script { cmdline: "a.b=c panic=-1".to_owned(), with_luks }));
    assert_eq!(read_script(ramdisk), told(false));
    assert_eq!(read_script(&ramdisk.replace("boot/initrd", "boot/initrd-luks")), told(true));
    assert_eq!(read_script("#!ipxe\necho x\nsanboot --no-describe --drive 0x80 || exit\n"), Ok(None));
    assert!(read_script("#!ipxe\nshell\n").is_err());
}

/// Does the server in this folder have an order left? The database is read, because asking the server for the next boot
/// would count as an attempt.
///
/// # Errors
/// The database cannot be read.
pub fn order_is_open(folder: &Path, machine: &str) -> Result<bool> {
    let path = folder.join("drophammer.sqlite");
    let database = rusqlite::Connection::open(&path).context(path.display())?;
    database.busy_timeout(Duration::from_secs(10)).context(path.display())?;
    let count = "SELECT count(*) FROM orders WHERE machine = ?1";
    let orders: u32 = database.query_row(count, [machine], |row| row.get(0)).context(path.display())?;
    Ok(orders > 0)
}

/// The last report that the server has kept: one that was killed may not have come to print it.
///
/// # Errors
/// The database cannot be read.
pub fn kept_report(folder: &Path, machine: &str) -> Result<Option<Value>> {
    let path = folder.join("drophammer.sqlite");
    let database = rusqlite::Connection::open(&path).context(path.display())?;
    database.busy_timeout(Duration::from_secs(10)).context(path.display())?;
    let select = "SELECT report FROM allocations WHERE machine = ?1 AND report IS NOT NULL ORDER BY created DESC";
    let mut statement = database.prepare(select).context(path.display())?;
    let mut rows = statement.query([machine]).context(path.display())?;
    let Some(row) = rows.next().context(path.display())? else { return Ok(None) };
    let text: String = row.get(0).context(path.display())?;
    serde_json::from_str(&text).map(Some).context(path.display())
}

/// What the operator is told of a machine: the machine's own document, and why it has no allocation.
///
/// # Errors
/// The server refuses.
pub fn preview(port: u16, folder: &Path, id: &str) -> Result<Value> {
    let token = folder.join("operator.token");
    let token = std::fs::read_to_string(&token).context(token.display())?;
    let path = format!("/v1/machine/{id}/preview");
    match get_with(port, &path, &format!("Authorization: Bearer {}\r\n", token.trim()))? {
        (200, body) => serde_json::from_str(&body).context(path),
        (status, body) => Err(format!("GET {path}: {status} {body}")),
    }
}

/// Status and body, as a machine behind QEMU's network gets them.
fn get(port: u16, path: &str) -> Result<(u16, String)> {
    get_with(port, path, "")
}

/// The same with more header lines.
fn get_with(port: u16, path: &str, headers: &str) -> Result<(u16, String)> {
    ask(port, &format!("GET {path}"), headers, "")
}

/// A call with JSON, as the agent with this token makes it.
///
/// # Errors
/// There is no answer.
pub fn call(port: u16, token: &str, method: &str, path: &str, body: &Value) -> Result<(u16, String)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let headers =
        format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
    ask(port, &format!("{method} {path}"), &headers, &body)
}

fn ask(port: u16, what: &str, headers: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("drophammer serve")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("drophammer serve")?;
    let request = format!("{what} HTTP/1.0\r\nHost: 10.0.2.2:{port}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).context("drophammer serve")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context(what)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(format!("{what}: no answer: {answer:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(format!("{what}: no status: {head}"))?, body.to_owned()))
}

/// Writes `DIR/KIND/ID.yaml`.
///
/// # Errors
/// The folder cannot be written.
pub fn put(folder: &Path, kind: &str, id: &str, content: impl AsRef<[u8]>) -> Result<()> {
    let folder = folder.join(kind);
    std::fs::create_dir_all(&folder).context(folder.display())?;
    write(&folder.join(format!("{id}.yaml")), content)
}
