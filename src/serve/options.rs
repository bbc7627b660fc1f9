//! What a person asks of `drophammer serve` on the command line.

use super::fronts::TlsOptions;
use super::pxe::{PxeOptions, Range};
use clap::{Args, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Serve {
    #[command(subcommand)]
    pub command: Option<ServeCommand>,
    #[command(flatten)]
    pub options: Option<ServeOptions>,
}

#[derive(Debug, Subcommand)]
pub enum ServeCommand {
    /// Copy the database into a new file, whole and consistent, while the server runs.
    Backup(Backup),
    /// Put a backup in the place of the database. The server must not run. Unless the directory proves that the backup is complete, every machine
    /// needs confirmation afterwards.
    Restore(Restore),
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct Backup {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The copy, which must not be there yet.
    #[arg(required = true)]
    pub file: PathBuf,
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct Restore {
    /// The server's directory.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// What `drophammer serve backup` made.
    #[arg(required = true)]
    pub file: PathBuf,
    /// Also when the directory knows of more than the backup does.
    #[arg(long)]
    pub older: bool,
}

#[derive(Debug, Args)]
pub struct ServeOptions {
    /// Directory with machines/, layouts/, images/ and boot/.
    pub dir: PathBuf,
    /// Say all that is wrong with the directory and these options, and serve nothing. The server may run.
    #[arg(long)]
    pub check: bool,
    /// Address and port; port 0 takes a free one and prints it.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Answer the operator's calls here, and not where machines ask.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub operator_listen: Option<SocketAddr>,
    /// Speak TLS: this certificate, then those that sign it (PEM). --listen has then only what firmware loads.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM, without a passphrase).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Where calls and images are answered over TLS.
    #[arg(long, default_value = "0.0.0.0:8443", value_name = "ADDRESS:PORT", requires = "tls_cert")]
    pub tls_listen: SocketAddr,
    /// Address of a proxy before this server, whose X-Forwarded-For says for whom it asks; may be given several times.
    #[arg(long = "proxy", value_name = "ADDRESS")]
    pub proxies: Vec<IpAddr>,
    /// Another name of this server; may be given several times. Requests for other names are rejected (DNS rebinding). Addresses, localhost, the host's own
    /// names, and those of --url and --tls-cert are always accepted.
    #[arg(long = "host", value_name = "NAME", value_parser = super::host_names::parse_name)]
    pub hosts: Vec<String>,
    /// How machines reach this server; without it, as each request names it.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Answer machines that boot over PXE or HTTP on this network card, beside the DHCP server that is there. It needs dnsmasq, and
    /// root or three capabilities.
    #[arg(long, value_name = "CARD")]
    pub pxe: Option<String>,
    /// Give addresses too, where there is no other DHCP server.
    #[arg(long, value_name = "FIRST,LAST", requires = "pxe")]
    pub range: Option<Range>,
    /// Directory with iPXE's undionly.kpxe and snponly.efi [default: /usr/lib/ipxe].
    #[arg(long, value_name = "DIR", requires = "pxe")]
    pub ipxe: Option<PathBuf>,
    /// Directory with vmlinuz and initrd [default: DIR/boot].
    #[arg(long, value_name = "DIR")]
    pub boot: Option<PathBuf>,
    /// More for the kernel command line of the ramdisk.
    #[arg(long, value_name = "ARGUMENTS", default_value = "")]
    pub cmdline: String,
    /// Install only machines whose plan is approved (`drophammer rack plan --approve`); the others wait.
    #[arg(long)]
    pub approved_only: bool,
    /// One JSON object a line instead of text.
    #[arg(long)]
    pub json: bool,
}

/// The same as the server takes it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory with `machines/`, `layouts/` and `images/`; the state file goes there too.
    pub dir: PathBuf,
    pub listen: SocketAddr,
    /// Where the operator's calls are answered, and nowhere else; with the machines' when absent.
    pub operator_listen: Option<SocketAddr>,
    /// What carries a token is answered over TLS, and `listen` has what firmware loads.
    pub tls: Option<TlsOptions>,
    /// Addresses that say in `X-Forwarded-For` for whom they ask.
    pub proxies: Vec<IpAddr>,
    /// Further names that clients use for this server.
    pub hosts: Vec<String>,
    /// Base URL for machines; what they used themselves (the Host header) when absent.
    pub url: Option<String>,
    /// Machines find this server over a network card.
    pub pxe: Option<PxeOptions>,
    /// Directory with `vmlinuz` and `initrd`; `DIR/boot` when absent.
    pub boot: Option<PathBuf>,
    /// More kernel arguments for the ramdisk.
    pub cmdline: String,
    /// Nothing is installed of which no plan is approved.
    pub approved_only: bool,
    /// One JSON object a line instead of text.
    pub json: bool,
}

impl From<ServeOptions> for Options {
    fn from(serve: ServeOptions) -> Self {
        let ServeOptions {
            dir,
            listen,
            operator_listen,
            proxies,
            hosts,
            url,
            range,
            ipxe,
            boot,
            cmdline,
            json,
            approved_only,
            ..
        } = serve;
        let pxe = serve.pxe.map(|card| PxeOptions { card, range, ipxe });
        let tls = serve.tls_cert.zip(serve.tls_key).map(|(certificates, key)| TlsOptions {
            certificates,
            key,
            listen: serve.tls_listen,
        });
        Options { dir, listen, operator_listen, tls, proxies, hosts, url, pxe, boot, cmdline, approved_only, json }
    }
}
