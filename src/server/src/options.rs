//! Command line options of `drophammer serve`.

use super::store_options::StoreOptions;
use crate::limit_options::{LimitOptions, parse_retention};
use api::audit_log::AuditRetention;
use clap::{Args, Subcommand};
use http_server::listen_address::parse_listen_address;
use http_server::request_permits::MAXIMUM_ADDRESS_REQUESTS;
use pxe::BootServer;
use pxe::pxe_options::{AddressRange, DhcpOption, PxeOptions};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use store::DEFAULT_UNKNOWN_MACHINES_LIMIT;
use store::boot_activity::SAME_ADDRESS_BOOT_TIMEOUT;
use store::record_retention::RetentionPolicy;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ServeArgs {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    #[command(flatten)]
    pub options: Option<ServeOptions>,
}

#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Write a complete and consistent copy of the database to a new file. The server may be running.
    Backup(BackupOptions),
    /// Replace the database with a backup. The server must not be running. Unless the directory proves that the
    /// backup is up to date, every machine needs confirmation afterwards.
    Restore(RestoreOptions),
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct BackupOptions {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// File for the copy. It must not exist yet.
    #[arg(required = true)]
    pub file: PathBuf,
    #[command(flatten)]
    pub store: StoreOptions,
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct RestoreOptions {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Backup, a file created by `drophammer serve backup`.
    #[arg(required = true)]
    pub file: PathBuf,
    /// Restore even if the directory shows that the backup is outdated.
    #[arg(long)]
    pub older: bool,
    #[command(flatten)]
    pub store: StoreOptions,
}

#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Directory with machines/, layouts/, images/ and boot/.
    pub dir: PathBuf,
    /// Print all problems of the directory and of these options, without serving. A server may be running in the
    /// directory.
    #[arg(long)]
    pub check: bool,
    /// Create the folders of the directory, with a sample layout, without serving. Existing files are not changed.
    #[arg(long, conflicts_with = "check")]
    pub init: bool,
    /// PostgreSQL database that contains the server's records, postgres://USER@HOST/DATABASE, instead of a SQLite file
    /// in the directory. A URL with a password must be in --store-file or in the variable DROPHAMMER_STORE.
    // Not flattened: clap does not support groups within an optional group.
    #[arg(long, value_name = "URL", conflicts_with = "store_file")]
    pub store: Option<String>,
    /// Read the URL of the PostgreSQL database from this file.
    #[arg(long, value_name = "FILE")]
    pub store_file: Option<PathBuf>,
    /// Address and port to listen on, or only a port: 10.0.0.1:8080, localhost:8080, :8080. Port 0 selects a free
    /// port and prints it.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT", value_parser = parse_listen_address)]
    pub listen: SocketAddr,
    /// Serve the operator's API at this address and port instead of at --listen.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen_address)]
    pub operator_listen: Option<SocketAddr>,
    /// Serve over TLS with this certificate chain (PEM), at the address in --tls-listen. The address in --listen then
    /// serves boot files only.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM, without a passphrase).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Address and port to listen on for TLS.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "ADDRESS:PORT", requires = "tls_cert", value_parser = parse_listen_address)]
    pub tls_listen: SocketAddr,
    /// Address of a reverse proxy whose X-Forwarded-For contains the client's address; can be specified several times.
    #[arg(long = "proxy", value_name = "ADDRESS")]
    pub proxies: Vec<IpAddr>,
    /// Accept registrations from every source port, if NAT or a proxy hides the ports of machines. Every process that
    /// sends requests from a machine's address can then register as that machine.
    #[arg(long)]
    pub any_source_port: bool,
    /// Seconds without a request after which a boot of a machine counts as ended. The machine's next boot may then
    /// register from the same address. Until then, the next boot waits, because the earlier boot may still be
    /// installing the machine. Agents send a request at least once a minute: a value below 60 only suits machines that
    /// restart within seconds, such as virtual ones.
    #[arg(long, value_name = "SECONDS", default_value_t = SAME_ADDRESS_BOOT_TIMEOUT.as_secs())]
    pub restart_timeout: u64,
    /// Additional name of this server; can be specified several times. Requests that address the server by another name
    /// are rejected, to prevent DNS rebinding. IP addresses, localhost, the host's own names, and the names in --url
    /// and --tls-cert are always accepted.
    #[arg(long = "host", value_name = "NAME", value_parser = api::accepted_host_names::parse_name)]
    pub hosts: Vec<String>,
    /// URL at which machines reach this server [default: the URL to which a machine sends its request].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Let the machines on this NIC's network boot over PXE or HTTP from this server. The network's DHCP server still
    /// assigns the addresses, unless --range is specified. Requires dnsmasq, and root or the capabilities
    /// net_bind_service, net_admin and net_raw.
    #[arg(long, value_name = "NIC")]
    pub pxe: Option<String>,
    /// Assign the addresses of machines from this range. Use it only on a network without another DHCP server.
    #[arg(long, value_name = "FIRST,LAST", requires = "pxe")]
    pub range: Option<AddressRange>,
    /// Also send this DHCP option, such as ntp-server,10.0.0.5 or dns-server,10.0.0.53, to all clients; can be
    /// specified several times. The names are those of `dnsmasq --help dhcp`.
    #[arg(long = "dhcp-option", value_name = "NAME,VALUE", requires = "range")]
    pub dhcp_options: Vec<DhcpOption>,
    /// Directory with iPXE's undionly.kpxe and snponly.efi [default: /usr/lib/ipxe].
    #[arg(long, value_name = "DIR", requires = "pxe")]
    pub ipxe: Option<PathBuf>,
    /// Directory with vmlinuz and initrd [default: DIR/boot].
    #[arg(long, value_name = "DIR")]
    pub boot: Option<PathBuf>,
    /// Additional arguments for the kernel command line of the ramdisk.
    #[arg(long, value_name = "ARGUMENTS", default_value = "")]
    pub cmdline: String,
    /// Install only machines whose plan is approved (`drophammer site plan --approve`). Machines without an approved
    /// plan wait.
    #[arg(long)]
    pub approved_only: bool,
    /// Append each entry of the audit log to this file, as one JSON object per line.
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// Days after which entries of the audit log are deleted from the database.
    #[arg(long, value_name = "DAYS", default_value_t = AUDIT_RETENTION.days, value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub audit_days: u32,
    /// Maximum number of entries of the audit log in the database. The oldest entries are deleted first.
    #[arg(long, value_name = "NUMBER", default_value_t = AUDIT_RETENTION.entries, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    pub audit_entries: u32,
    /// Maximum number of open connections [default: half of the limit of open files]. Each waiting machine has one
    /// connection. Further connections wait until another connection is closed.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(16..=1_000_000))]
    pub connections: Option<u32>,
    /// Maximum number of requests from one address that are handled at the same time. Further requests wait, and get
    /// status 429 with Retry-After after 20 seconds.
    #[arg(long, value_name = "NUMBER", default_value_t = MAXIMUM_ADDRESS_REQUESTS as u32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub requests_per_address: u32,
    /// Maximum number of machines that have registered, but have no machine file. Further machines get status 503
    /// with Retry-After, and wait.
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_UNKNOWN_MACHINES_LIMIT as u32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub unknown_machines: u32,
    /// Age and total size above which events are deleted, the oldest first.
    #[arg(long, value_name = "AGE,SIZE", default_value = "90d,4GiB", value_parser = parse_retention)]
    pub retain_events: RetentionPolicy,
    /// Age and total size above which console logs are deleted, the oldest first.
    #[arg(long, value_name = "AGE,SIZE", default_value = "90d,4GiB", value_parser = parse_retention)]
    pub retain_logs: RetentionPolicy,
    /// Print one JSON object per line instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Retention of the audit log that applies by default.
pub(crate) const AUDIT_RETENTION: AuditRetention = AuditRetention { days: 400, entries: 200_000 };

/// TLS options of the command line.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// Certificate chain, the server's own certificate first.
    pub certificates: PathBuf,
    pub key: PathBuf,
    pub listen: SocketAddr,
}

/// Options of the server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Directory with `machines/`, `layouts/` and `images/`, and the database.
    pub dir: PathBuf,
    /// PostgreSQL database that replaces the SQLite file.
    pub store: StoreOptions,
    pub listen: SocketAddr,
    /// Address of the operator's API, if it differs from the address for machines.
    pub operator_listen: Option<SocketAddr>,
    /// TLS options. If set, requests with a token are only accepted over TLS, and `listen` only serves boot files.
    pub tls: Option<TlsOptions>,
    /// Addresses of reverse proxies whose `X-Forwarded-For` contains the client's address.
    pub proxies: Vec<IpAddr>,
    /// True if registrations from every source port are accepted.
    pub any_source_port: bool,
    /// Time that must pass after the last request of a machine's boot, until the machine's next boot may register from
    /// the same address.
    pub restart_timeout: Duration,
    /// Additional names of this server.
    pub hosts: Vec<String>,
    /// Base URL for machines; by default taken from the Host header of each request.
    pub url: Option<String>,
    /// DHCP and TFTP options, to boot machines on a NIC.
    pub pxe: Option<PxeOptions>,
    /// Directory with `vmlinuz` and `initrd`; by default `DIR/boot`.
    pub boot: Option<PathBuf>,
    /// Additional kernel arguments of the ramdisk.
    pub cmdline: String,
    /// True if machines without an approved plan must wait.
    pub approved_only: bool,
    /// File to which the entries of the audit log are appended.
    pub audit_log: Option<PathBuf>,
    /// Limits above which entries of the audit log are deleted.
    pub audit_retention: AuditRetention,
    pub limits: LimitOptions,
    /// True if the log consists of one JSON object per line instead of text.
    pub json: bool,
}

impl ServerConfig {
    /// Returns the options that the network boot requires.
    pub(crate) fn boot_server(&self) -> BootServer {
        let (listen, url, tls) = (self.listen, self.url.clone(), self.tls.is_some());
        BootServer { listen, url, tls, leases: self.dir.join("dhcp.leases") }
    }
}

impl From<ServeOptions> for ServerConfig {
    fn from(serve: ServeOptions) -> Self {
        let tls = serve.tls_cert.zip(serve.tls_key).map(|(certificates, key)| TlsOptions {
            certificates,
            key,
            listen: serve.tls_listen,
        });
        let pxe = serve.pxe.map(|nic| PxeOptions {
            nic,
            range: serve.range,
            dhcp_options: serve.dhcp_options,
            ipxe: serve.ipxe,
        });
        ServerConfig {
            dir: serve.dir,
            store: StoreOptions { store: serve.store, store_file: serve.store_file },
            listen: serve.listen,
            operator_listen: serve.operator_listen,
            tls,
            proxies: serve.proxies,
            hosts: serve.hosts,
            any_source_port: serve.any_source_port,
            restart_timeout: Duration::from_secs(serve.restart_timeout),
            url: serve.url,
            pxe,
            boot: serve.boot,
            cmdline: serve.cmdline,
            approved_only: serve.approved_only,
            audit_log: serve.audit_log,
            audit_retention: AuditRetention { days: serve.audit_days, entries: serve.audit_entries },
            limits: LimitOptions {
                connections: serve.connections,
                requests_per_address: serve.requests_per_address,
                unknown_machines: serve.unknown_machines,
                retain_events: serve.retain_events,
                retain_logs: serve.retain_logs,
            },
            json: serve.json,
        }
    }
}
