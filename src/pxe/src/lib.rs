//! Network boot of machines on the network of one NIC (`drophammer serve --pxe NIC`). dnsmasq serves DHCP and TFTP; the
//! server itself serves all other boot files over HTTP.
//!
//! [`check_pxe`] reports all problems before anything is started. [`PxeServer`] starts, supervises and stops dnsmasq.
//! The crate passes messages to a [`PxeLog`], and does not write to the server's log itself.
//!
//! `nic` inspects the NIC, `dnsmasq_config` generates the configuration of dnsmasq, `dnsmasq_directory` manages its
//! directory, `supervisor` supervises it, `other_dhcp_servers` detects other DHCP servers, and `dns_check` checks the
//! name in `--url`. [`ipxe`] generates the scripts that iPXE runs. Start with [`PxeServer::start_dnsmasq`].

mod dns_check;
mod dnsmasq_config;
mod dnsmasq_directory;
pub mod ipxe;
mod nic;
mod other_dhcp_servers;
pub mod pxe_options;
mod supervisor;

use common::error::{Context, Error, Phase, Result};
use common::url_host::extract_host;
use dnsmasq_config::{BINARIES, NAME_BYTES};
use dnsmasq_directory::DnsmasqDirectory;
use linux::process::capabilities::{self, Capability};
use nic::{PxeNic, TFTP_PORT};
use pxe_options::PxeOptions;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use supervisor::{DnsmasqCommand, DnsmasqSupervisor};

/// Capabilities that dnsmasq requires: to bind ports below 1024, to ping through raw sockets, and to write entries of
/// the neighbor table.
const CAPABILITIES: &[Capability] = &[Capability::NetBindService, Capability::NetAdmin, Capability::NetRaw];

/// Directory in which Debian installs iPXE.
const IPXE: &str = "/usr/lib/ipxe";

/// Server that serves the boot files over HTTP.
#[derive(Debug, Clone)]
pub struct BootServer {
    /// Address and port at which the server accepts connections.
    pub listen: SocketAddr,
    /// URL at which machines reach the server; `None` for a URL with the address of the NIC.
    pub url: Option<String>,
    /// True if `url` is served over TLS. Boot files are always served over plain HTTP.
    pub tls: bool,
    /// File in which the leases are preserved across restarts.
    pub leases: PathBuf,
}

/// Message about network boot for the server's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PxeMessage {
    /// Log line of dnsmasq. Machines can cause any number of such lines.
    Dnsmasq(String),
    Note(String),
    /// Problem that prevents machines from booting.
    Problem(String),
}

/// Function that receives the messages, called from several threads.
pub type PxeLog = Arc<dyn Fn(PxeMessage) + Send + Sync>;

/// Running dnsmasq process, which is stopped when this value is dropped.
pub struct PxeServer {
    end: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    /// Directory with iPXE's binaries.
    pub ipxe: PathBuf,
}

impl PxeServer {
    /// Starts dnsmasq for a server that listens on `port`, and waits until dnsmasq is ready. dnsmasq is stopped while
    /// `permission` is false.
    ///
    /// # Errors
    /// Returns an error if dnsmasq cannot be started, or exits immediately.
    pub fn start_dnsmasq(
        pxe_options: &PxeOptions,
        server: &BootServer,
        port: u16,
        (log, permission): (&PxeLog, Arc<AtomicBool>),
    ) -> Result<PxeServer> {
        let home = DnsmasqDirectory::create(&ipxe_directory(pxe_options), server.leases.clone());
        let home = home.context(Phase::Serve, || "--pxe: create a directory for dnsmasq")?;
        let (ipxe, dnsmasq) =
            (home.tftp_directory(), DnsmasqCommand::new(pxe_options, server, port, find_dnsmasq()?, log));
        let (end, ended) = mpsc::channel();
        let (say, first) = mpsc::channel();
        let (keeper, log) = (DnsmasqSupervisor::new(dnsmasq, home, permission), log.clone());
        // The same thread starts and supervises dnsmasq, because the kernel terminates dnsmasq when the thread that has
        // started it exits.
        let run = move || keeper.supervise(&log, &ended, &say);
        let started = std::thread::Builder::new().name("dnsmasq".to_owned()).spawn(run);
        let keeper = Some(started.context(Phase::Serve, || "start the thread that supervises dnsmasq")?);
        let pxe = PxeServer { end: Some(end), keeper, ipxe };
        match first.recv() {
            Ok(Ok(())) => Ok(pxe),
            Ok(Err(why)) => Err(pxe_error(why)),
            Err(_) => Err(pxe_error("the thread that starts dnsmasq panicked".to_owned())),
        }
    }
}

impl Drop for PxeServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

fn pxe_error(why: String) -> Error {
    Error::new(Phase::Serve, format!("--pxe: {why}"))
}

fn ipxe_directory(pxe_options: &PxeOptions) -> PathBuf {
    pxe_options.ipxe.clone().unwrap_or_else(|| IPXE.into())
}

/// Checks everything that can be checked before dnsmasq is started.
///
/// # Errors
/// Returns all problems, each as one sentence.
pub fn check_pxe(pxe_options: &PxeOptions, server: &BootServer) -> Result<()> {
    let mut wrong: Vec<String> = find_dnsmasq().err().map(|error| error.to_string()).into_iter().collect();
    let ipxe = ipxe_directory(pxe_options);
    let missing: Vec<&str> = BINARIES.into_iter().filter(|name| !ipxe.join(name).is_file()).collect();
    if !missing.is_empty() {
        let what = missing.join(" and ");
        wrong.push(format!(
            "{folder} lacks {what}: run `apt-get install ipxe`, or specify the directory of iPXE's binaries with --ipxe", folder = ipxe.display()));
    }
    if !capabilities::has_capabilities(CAPABILITIES) {
        wrong.push(
            "dnsmasq requires the capabilities net_bind_service, net_admin and net_raw: run as root, or from a systemd unit with these capabilities".to_owned(),
        );
    }
    match check_nic(pxe_options, server) {
        Err(why) => wrong.push(why),
        Ok(nic) => {
            let proxies = pxe_options.range.is_none().then_some((4011, "PXE"));
            let ports = [(67, "DHCP"), (TFTP_PORT, "TFTP")].into_iter().chain(proxies);
            wrong.extend(ports.filter_map(|(port, what)| nic.check_port(port, what).err()));
        }
    }
    let host = server.url.as_deref().map(extract_host);
    wrong.extend(host.and_then(|host| dns_check::check_name(host, &pxe_options.dns_servers()).err()));
    if wrong.is_empty() { Ok(()) } else { Err(pxe_error(wrong.join("\n--pxe: "))) }
}

/// Returns the NIC of `--pxe`, or an error if other options contradict it.
fn check_nic(pxe_options: &PxeOptions, server: &BootServer) -> std::result::Result<PxeNic, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if pxe_options.nic.is_empty() || !pxe_options.nic.bytes().all(plain) {
        return Err(format!("{nic:?} is not a NIC name that dnsmasq supports", nic = pxe_options.nic));
    }
    let nic = PxeNic::read_state(&pxe_options.nic)?;
    let listen = server.listen.ip();
    if !listen.is_unspecified() && listen != IpAddr::V4(nic.address) && server.url.is_none() {
        return Err(format!(
            "machines on {nic} would be sent to the address {address}, but --listen {listen} does not accept connections at that address: listen on that address, or specify another URL with --url",
            nic = nic.name,
            address = nic.address
        ));
    }
    if let Some(range) = pxe_options.range {
        let (first, last) = (range.first, range.last);
        if first <= nic.network() || last >= nic.broadcast() {
            let (network, netmask) = (nic.network(), nic.netmask);
            return Err(format!(
                "--range {first},{last} is not within the network {network}/{netmask} of {nic}",
                nic = nic.name
            ));
        }
        if (first..=last).contains(&nic.address) {
            return Err(format!(
                "--range {first},{last} contains this host's own address {address}",
                address = nic.address
            ));
        }
    }
    let port = server.listen.port();
    let binaries = binaries_url(server, &nic, port);
    let urls = [dnsmasq_config::UEFI, dnsmasq_config::ARM64].map(|name| format!("{binaries}/{name}").len());
    let longest = urls.into_iter().fold(script_url(server, &nic, port).len(), usize::max);
    match longest > NAME_BYTES {
        true => Err("--url is too long: DHCP limits the URLs of iPXE and of its script to 127 characters".to_owned()),
        false => Ok(nic),
    }
}

/// Returns the base URL of boot files. The files contain no token, and are served over plain HTTP.
fn boot_base_url(server: &BootServer, nic: &PxeNic, port: u16) -> String {
    match &server.url {
        Some(url) if !server.tls => url.trim_end_matches('/').to_owned(),
        _ => format!("http://{}:{port}", nic.address),
    }
}

fn script_url(server: &BootServer, nic: &PxeNic, port: u16) -> String {
    format!("{}/start.ipxe", boot_base_url(server, nic, port))
}

/// Returns the URL of the directory of iPXE's binaries.
fn binaries_url(server: &BootServer, nic: &PxeNic, port: u16) -> String {
    format!("{}/ipxe", boot_base_url(server, nic, port))
}

/// Finds dnsmasq, even if the user's PATH contains neither `/usr/sbin` nor `/sbin`.
fn find_dnsmasq() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_program(std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)))
}

fn find_program(mut places: impl Iterator<Item = PathBuf>) -> Result<PathBuf> {
    let found = places.find_map(|place| Some(place.join("dnsmasq")).filter(|path| path.is_file()));
    found.ok_or_else(|| {
        Error::new(Phase::Serve, "dnsmasq is not installed on this host: run `apt-get install dnsmasq-base`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_dnsmasq_is_reported_with_its_package() {
        let nowhere = tempfile::tempdir().unwrap();
        let why = find_program([nowhere.path().to_owned()].into_iter()).unwrap_err().to_string();
        assert_eq!(why, "dnsmasq is not installed on this host: run `apt-get install dnsmasq-base`");
    }
}
