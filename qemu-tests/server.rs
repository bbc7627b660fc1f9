//! `drophammer serve` as a child process, with its folder and its messages.

use crate::host_tools::{Context, Result, tie_to_thread, write};
use crate::proxy::Proxy;
use crate::tls_endpoints::{self, TlsEndpoints};
use model::architecture::Architecture;
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

/// Time limit for the start. A debug build of the server is slow on a busy host.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Running `drophammer serve` process, which is killed when this value is dropped.
pub struct Server {
    process: Child,
    folder: PathBuf,
    boot: PathBuf,
    cmdline: String,
    /// TLS endpoints between machine and server; `None` without TLS.
    ends: Option<TlsEndpoints>,
    messages: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    /// Starts the server on a port that it chooses; see [`Server::port`].
    ///
    /// # Errors
    /// Fails if the server does not print its port; its error message is included.
    pub fn start(folder: &Path, boot: &Path, cmdline: &str, ends: Option<TlsEndpoints>) -> Result<Server> {
        let messages = Arc::default();
        let process = spawn_server(folder, boot, cmdline, ends.as_ref(), &messages)?;
        let (folder, boot) = (folder.to_owned(), boot.to_owned());
        let mut server = Server { process, folder, boot, cmdline: cmdline.to_owned(), ends, messages };
        server.wait_until_listening(0)?;
        Ok(server)
    }

    /// Returns all messages so far in their order, including those of earlier processes of this server.
    pub fn all_messages(&self) -> Vec<Value> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the shared list of messages.
    pub fn share_messages(&self) -> Arc<Mutex<Vec<Value>>> {
        Arc::clone(&self.messages)
    }

    pub fn port(&self) -> Option<u16> {
        self.read_ports().last().copied()
    }

    /// Passes the current port to the proxy.
    ///
    /// # Errors
    /// Fails if the server does not print its port.
    pub fn connect_proxy(&self, proxy: &Proxy) -> Result<()> {
        let port = self.port().ok_or("drophammer serve did not print its port")?;
        if let Some(ends) = &self.ends {
            let port = over_tls(&self.all_messages()).last().copied();
            ends.set_server(port.ok_or("drophammer serve did not print its TLS port")?);
            proxy.set_over_tls(ends.to_server);
        }
        proxy.set_server(port, self.process.id() as i32);
        Ok(())
    }

    /// Kills the server; [`Server::restart`] starts it again.
    pub fn kill(&mut self) {
        // Both calls fail only if the process has already exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again.
    ///
    /// # Errors
    /// See [`Server::start`].
    pub fn restart(&mut self) -> Result<()> {
        let earlier_starts = self.read_ports().len();
        self.process = spawn_server(&self.folder, &self.boot, &self.cmdline, self.ends.as_ref(), &self.messages)?;
        self.wait_until_listening(earlier_starts)
    }

    /// Stops the process (SIGSTOP) or continues it (SIGCONT).
    ///
    /// # Errors
    /// Fails if the process has exited.
    pub fn set_frozen(&self, still: bool) -> Result<()> {
        let signal = if still { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(self.process.id() as i32), signal).context("drophammer serve")
    }

    fn read_ports(&self) -> Vec<u16> {
        let messages = self.all_messages();
        let addresses = messages.iter().filter_map(|line| line["listening"].as_str());
        addresses.filter_map(|address| address.rsplit(':').next()?.trim_end_matches('/').parse().ok()).collect()
    }

    fn has_begun(&self, earlier_starts: usize) -> bool {
        let speaks_tls = || self.ends.is_none() || over_tls(&self.all_messages()).len() > earlier_starts;
        self.read_ports().len() > earlier_starts && speaks_tls()
    }

    fn wait_until_listening(&mut self, earlier_starts: usize) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        while !self.has_begun(earlier_starts) {
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

/// Returns the TLS ports that all processes so far have reported.
fn over_tls(messages: &[Value]) -> Vec<u16> {
    let notes = messages.iter().filter_map(|line| line["note"].as_str());
    let places = notes.filter_map(|note| note.strip_prefix("the API and images are served only at https://127.0.0.1:"));
    places.filter_map(|rest| rest.split(';').next()?.parse().ok()).collect()
}

fn spawn_server(
    folder: &Path,
    boot: &Path,
    cmdline: &str,
    ends: Option<&TlsEndpoints>,
    messages: &Arc<Mutex<Vec<Value>>>,
) -> Result<Child> {
    let errors = folder.join("serve.errors.log");
    let errors = File::options().create(true).append(true).open(&errors).context(errors.display())?;
    let mut log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("serve.log"))
        .context(folder.join("serve.log").display())?;
    let mut command = tie_to_thread(env!("CARGO_BIN_EXE_drophammer"));
    command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0", "--json", "--boot"]).arg(boot);
    // QEMU's user network does not preserve the source ports of the machines.
    command.arg("--any-source-port");
    // Machines that were reset boot again within seconds. With the default, each of these boots would wait for a
    // minute.
    command.args(["--restart-timeout", "15"]);
    if !cmdline.is_empty() {
        command.args(["--cmdline", cmdline]);
    }
    if let Some(ends) = ends {
        command
            .arg("--tls-cert")
            .arg(tls_endpoints::testdata_path("server.pem"))
            .arg("--tls-key")
            .arg(tls_endpoints::testdata_path("server.key"));
        command.args(["--tls-listen", "127.0.0.1:0", "--url", &ends.url()]);
    }
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn().context("drophammer serve")?;
    let output = process.stdout.take().ok_or("drophammer serve has no output")?;
    let messages = Arc::clone(messages);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
            // The log is only for people. Messages in JSON are also stored in the list.
            let _ = writeln!(log, "{line}");
            if let Ok(value) = serde_json::from_str(&line) {
                messages.lock().unwrap_or_else(PoisonError::into_inner).push(value);
            }
        }
    });
    Ok(process)
}

/// Removes the server's database, and thereby its record of past events. Also removes the token, because a server with
/// a token but without a database refuses to start.
///
/// # Errors
/// Fails if a file cannot be removed.
pub fn remove_database(folder: &Path) -> Result<()> {
    for name in ["drophammer.sqlite", "drophammer.sqlite-wal", "drophammer.sqlite-shm", "operator.token"] {
        let path = folder.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).context(path.display()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the server's `start.ipxe` for a machine that reaches this host at 10.0.2.2.
///
/// # Errors
/// Fails if the server does not serve it.
pub fn start_script(port: u16) -> Result<String> {
    match send_get(port, "/start.ipxe")? {
        (200, body) if body.starts_with("#!ipxe") => Ok(body),
        (status, body) => Err(format!("drophammer serve has no /start.ipxe: {status} {body}")),
    }
}

/// Returns the kernel command line with which the machine carries out its order; `None` if there is no order. The
/// server counts this request as an attempt.
///
/// # Errors
/// Fails if the response contains neither a command line nor the statement that no order exists.
pub fn next_boot(port: u16, uuid: &str, mac: &str) -> Result<Option<String>> {
    let (status, body) = send_get(port, &format!("/boot.json?uuid={uuid}&mac={mac}"))?;
    let cmdline = serde_json::from_str::<Value>(&body).ok().and_then(|it| it["cmdline"].as_str().map(str::to_owned));
    match (status, cmdline) {
        (200, Some(cmdline)) => Ok(Some(cmdline)),
        (409, _) => Ok(None),
        (status, _) => Err(format!("GET /boot.json: {status} {body}")),
    }
}

/// Boot script of iPXE.
#[derive(Debug, PartialEq, Eq)]
pub struct BootScript {
    /// Kernel command line.
    pub cmdline: String,
    /// True if the part of the ramdisk for encrypted filesystems is loaded.
    pub with_luks: bool,
}

/// Returns the boot script of iPXE; `None` if the machine must boot its own disk. If a reinstall is ordered, the server
/// counts this request as an attempt.
///
/// # Errors
/// Fails if the server refuses.
pub fn boot_script(port: u16, uuid: &str, mac: &str, architecture: Architecture) -> Result<Option<BootScript>> {
    match send_get(port, &format!("/boot.ipxe?uuid={uuid}&mac={mac}&arch={architecture}"))? {
        (200, script) => read_script(&script),
        (status, body) => Err(format!("GET /boot.ipxe: {status} {body}")),
    }
}

fn read_script(script: &str) -> Result<Option<BootScript>> {
    let kernel = script.lines().find_map(|line| line.strip_prefix("kernel "));
    match kernel.and_then(|line| line.split_once(" initrd=initrd ")) {
        Some((_, arguments)) => {
            let (arguments, _) = arguments.split_once(" || ").unwrap_or((arguments, ""));
            let with_luks = script.contains("/boot/initrd-luks ");
            Ok(Some(BootScript { cmdline: arguments.to_owned(), with_luks }))
        }
        None if script.contains("sanboot") => Ok(None),
        None => Err(format!("the boot script has neither kernel nor disk: {script}")),
    }
}

/// Tests that boot scripts are parsed as iPXE does, and that the server's messages about TLS are parsed.
pub fn self_test() {
    let note =
        "the API and images are served only at https://127.0.0.1:4711; http://127.0.0.1:1 serves only boot files";
    let messages = [json!({"listening": "http://127.0.0.1:1"}), json!({"note": note}), json!({"note": "x"})];
    assert_eq!(over_tls(&messages), [4711]);
    let ramdisk = "#!ipxe\nkernel http://h/boot/vmlinuz initrd=initrd a.b=c panic=-1 || goto failed\ninitrd --name initrd http://h/boot/initrd || goto failed\nboot ||\n";
    let script = |with_luks| Ok(Some(BootScript { cmdline: "a.b=c panic=-1".to_owned(), with_luks }));
    assert_eq!(read_script(ramdisk), script(false));
    assert_eq!(read_script(&ramdisk.replace("boot/initrd", "boot/initrd-luks")), script(true));
    assert_eq!(read_script("#!ipxe\necho x\nsanboot --no-describe --drive 0x80 || exit\n"), Ok(None));
    assert!(read_script("#!ipxe\nshell\n").is_err());
}

/// Returns whether the server in this folder still has an order. Reads the database, because a request for the next
/// boot would count as an attempt.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn order_is_open(folder: &Path, machine: &str) -> Result<bool> {
    let path = folder.join("drophammer.sqlite");
    let database = rusqlite::Connection::open(&path).context(path.display())?;
    database.busy_timeout(Duration::from_secs(10)).context(path.display())?;
    let count = "SELECT count(*) FROM orders WHERE machine = ?1";
    let orders: u32 = database.query_row(count, [machine], |row| row.get(0)).context(path.display())?;
    Ok(orders > 0)
}

/// Returns the last report in the database. A server that was killed may have stored a report without printing it.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn stored_report(folder: &Path, machine: &str) -> Result<Option<Value>> {
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

/// Returns the machine's document as the operator receives it, with the reason if the machine has no allocation.
///
/// # Errors
/// Fails if the server refuses.
pub fn preview_machine(port: u16, folder: &Path, id: &str) -> Result<Value> {
    let token = folder.join("operator.token");
    let token = std::fs::read_to_string(&token).context(token.display())?;
    let path = format!("/v1/machine/{id}/preview");
    match get_with(port, &path, &format!("Authorization: Bearer {}\r\n", token.trim()))? {
        (200, body) => serde_json::from_str(&body).context(path),
        (status, body) => Err(format!("GET {path}: {status} {body}")),
    }
}

/// Sends a GET request like a machine behind QEMU's network. Returns the status and the body.
fn send_get(port: u16, path: &str) -> Result<(u16, String)> {
    get_with(port, path, "")
}

/// Sends a GET request with additional header lines. Returns the status and the body.
fn get_with(port: u16, path: &str, headers: &str) -> Result<(u16, String)> {
    send_request(port, &format!("GET {path}"), headers, "")
}

/// Sends a JSON request with this token of an agent.
///
/// # Errors
/// Fails if there is no response.
pub fn send_json(port: u16, token: &str, method: &str, path: &str, body: &Value) -> Result<(u16, String)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let headers =
        format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
    send_request(port, &format!("{method} {path}"), &headers, &body)
}

fn send_request(port: u16, what: &str, headers: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("drophammer serve")?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("drophammer serve")?;
    let request = format!("{what} HTTP/1.0\r\nHost: 10.0.2.2:{port}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).context("drophammer serve")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context(what)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(format!("{what}: no response: {answer:?}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(format!("{what}: no status: {head}"))?, body.to_owned()))
}

/// Writes `DIR/KIND/ID.yaml`.
///
/// # Errors
/// Fails if the folder cannot be written.
pub fn write_object(folder: &Path, kind: &str, id: &str, content: impl AsRef<[u8]>) -> Result<()> {
    let folder = folder.join(kind);
    std::fs::create_dir_all(&folder).context(folder.display())?;
    write(&folder.join(format!("{id}.yaml")), content)
}
