//! Command-line options of `drophammer move`.

use super::ganeti_protocol::{GanetiCompression, GanetiMagic};
use super::shared_secret::HmacSignature;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const EXIT_CODES: &str =
    "Exit status: 0 all disks were transferred; 1 the transfer failed; 2 refused before the first write; 64 usage.";

#[derive(Debug, Args)]
pub struct TransferOptions {
    #[command(subcommand)]
    pub command: MoveCommand,
}

#[derive(Debug, Subcommand)]
pub enum MoveCommand {
    /// Create the secret that sender and receiver use to sign their certificates
    ///
    /// Copy the file to the peer over an encrypted channel. Ganeti clusters share their secret in the file
    /// `cluster-domain-secret`.
    #[command(after_help = "Example:\n  drophammer move secret domain-secret")]
    Secret(SecretOptions),
    /// Create a private key for this machine, and its certificate for the peer
    ///
    /// `send` and `receive` destroy the key and the certificate after the last disk.
    #[command(after_help = "Example:\n  drophammer move key a.key a.pem --secret domain-secret")]
    Key(KeyOptions),
    /// Send disks, which are opened read-only and must not be in use
    ///
    /// Ganeti's import-export receives the whole disk. Another drophammer receives only the used blocks of filesystems,
    /// in pieces with checksums. The transfer resumes after an interruption, and the receiver acknowledges the complete
    /// transfer.
    #[command(after_help = format!(
        "Examples: to another drophammer, and to Ganeti's import-export\n  \
        drophammer move send b.example:7700 /dev/sda /dev/sdb --key a.key --cert a.pem --peer b.pem --secret domain-secret \
        --signature SALT/HEX\n  \
        drophammer move send node2:39000 /dev/sda --key a.key --cert a.pem --peer node2.pem --secret domain-secret --magic 0123abcd \
        --compress gzip --signature SALT/HEX\n\n\
        {EXIT_CODES}"
    ))]
    Send(SendOptions),
    /// Receive disks, and replace ALL contents of the disks listed here
    ///
    /// Connections with a certificate other than that of --peer are rejected; the command then continues to wait for
    /// the peer.
    #[command(after_help = format!(
        "Example:\n  \
        drophammer move receive 0.0.0.0:7700 /dev/nvme0n1 /dev/nvme1n1 --key b.key --cert b.pem --peer a.pem --secret domain-secret \
        --announce b.example --overwrite\n\n{EXIT_CODES}"
    ))]
    Receive(ReceiveOptions),
}

#[derive(Debug, Args)]
pub struct SecretOptions {
    /// File to which the secret is written
    pub file: PathBuf,
}

/// Options for signatures. Signatures are mandatory by default, and can be disabled.
#[derive(Debug, Args)]
pub struct SigningOptions {
    /// File with the secret that sender and receiver share. The secret signs this machine's certificate and address,
    /// and verifies those of the peer
    #[arg(long, value_name = "FILE", conflicts_with = "unsigned")]
    pub secret: Option<PathBuf>,
    /// Do without signatures and the secret. The operator must then verify that the certificate of the peer, and the
    /// address of the receiver, were not replaced while they were copied
    #[arg(long)]
    pub unsigned: bool,
}

#[derive(Debug, Args)]
pub struct KeyOptions {
    /// File to which the private key is written
    pub key: PathBuf,
    /// File to which the certificate is written
    pub cert: PathBuf,
    /// Validity period of the certificate, in hours
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=8760))]
    pub hours: u32,
    #[command(flatten)]
    pub signing: SigningOptions,
}

/// Options of sender and receiver.
#[derive(Debug, Args)]
pub struct CommonOptions {
    /// File with the local private key
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// File with the local certificate
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// File with the certificate of the peer. No other certificate is accepted
    #[arg(long, value_name = "FILE")]
    pub peer: PathBuf,
    #[command(flatten)]
    pub signing: SigningOptions,
    /// Keep the key and its certificate for the transfer of further disks. Without this option, files that `move key`
    /// has created are destroyed at the end
    #[arg(long)]
    pub keep_key: bool,
    /// Word that identifies the disk; must be the same for sender and receiver
    #[arg(long, value_name = "WORD")]
    pub magic: Option<GanetiMagic>,
    /// Compression for transfers to or from Ganeti's import-export. Between two drophammers, this option has no effect:
    /// data is compressed whenever that is faster
    #[arg(long, default_value = "gzip")]
    pub compress: GanetiCompression,
    /// Time to wait for the peer, in seconds
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub wait: u32,
}

impl CommonOptions {
    pub(crate) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.wait))
    }
}

#[derive(Debug, Args)]
pub struct SendOptions {
    /// HOST:PORT of the receiver
    pub to: String,
    /// Disks, or files in place of disks. A disk of the sender and a disk of the receiver belong together if they have
    /// the same NAME or, without names, the same position
    #[arg(required = true, value_name = "[NAME=]DISK")]
    pub disks: Vec<NamedDisk>,
    #[command(flatten)]
    pub common: CommonOptions,
    /// Signature of the receiver's address, port, disks and magic, as the receiver prints it
    #[arg(long, value_name = "SALT/HEX", conflicts_with_all = ["unsigned", "unsigned_address"])]
    pub signature: Option<HmacSignature>,
    /// Accept a receiver without --signature, such as a Ganeti import-export that was started by hand. The receiver's
    /// certificate must still be signed
    #[arg(long)]
    pub unsigned_address: bool,
    /// Also send unused blocks
    #[arg(long)]
    pub whole: bool,
    /// Print statistics as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ReceiveOptions {
    /// ADDRESS:PORT to listen on; port 0 selects a free port, which is printed
    pub at: String,
    /// Disks, or files in place of disks
    #[arg(required = true, value_name = "[NAME=]DISK")]
    pub disks: Vec<NamedDisk>,
    #[command(flatten)]
    pub common: CommonOptions,
    /// Host name or address of this machine that the sender will use. The signature covers this address and the port.
    /// Default: the address to listen on
    #[arg(long, value_name = "HOST", conflicts_with = "unsigned")]
    pub announce: Option<String>,
    /// Exact number of bytes to expect; useful because Ganeti's import-export does not report whether it sent
    /// everything
    #[arg(long, value_name = "BYTES")]
    pub size: Option<u64>,
    /// Continue a transfer that an earlier `move receive` has started: data that is already on the disks is not sent
    /// again. Not supported with Ganeti's import-export
    #[arg(long)]
    pub resume: bool,
    /// Confirm that ALL contents of the disks are replaced (required, also with --resume)
    #[arg(long)]
    pub overwrite: bool,
}

/// Disk with its name, which is the same for sender and receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedDisk {
    name: Option<String>,
    pub path: PathBuf,
}

impl FromStr for NamedDisk {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<NamedDisk, Self::Err> {
        Ok(match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => {
                NamedDisk { name: Some(name.to_owned()), path: path.into() }
            }
            _ => NamedDisk { name: None, path: text.into() },
        })
    }
}

/// Returns each disk with its name; the name of an unnamed disk is its index.
///
/// # Errors
/// Fails if two disks have the same name.
pub(crate) fn name_disks(disks: &[NamedDisk]) -> Result<Vec<(String, &Path)>, String> {
    let mut found: Vec<(String, &Path)> = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let name = disk.name.clone().unwrap_or_else(|| number.to_string());
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("two disks have the name {name}"));
        }
        found.push((name, &disk.path));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct MoveProgram {
        #[command(flatten)]
        options: TransferOptions,
    }

    fn parse(line: &str) -> Result<MoveProgram, clap::Error> {
        MoveProgram::try_parse_from(["move"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn options_are_consistent() {
        MoveProgram::command().debug_assert();
    }

    #[test]
    fn signatures_are_chosen_or_disabled_but_not_both() {
        const FILES: &str = "--key k --cert c --peer p";
        for good in [
            "secret s".to_owned(),
            "key k c --secret s".to_owned(),
            "key k c --unsigned".to_owned(),
            format!("send h:1 d {FILES} --secret s --signature ab/00"),
            format!("send h:1 d {FILES} --secret s --unsigned-address"),
            format!("send h:1 d {FILES} --unsigned --keep-key"),
            format!("receive h:1 d {FILES} --secret s --announce b.example --overwrite"),
            format!("receive h:1 d {FILES} --unsigned --overwrite"),
        ] {
            parse(&good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in [
            "secret".to_owned(),
            "key k c --secret s --unsigned".to_owned(),
            format!("send h:1 d {FILES} --secret s --unsigned"),
            format!("send h:1 d {FILES} --unsigned --signature ab/00"),
            format!("send h:1 d {FILES} --secret s --signature ab/00 --unsigned-address"),
            format!("send h:1 d {FILES} --secret s --signature ab"),
            format!("receive h:1 d {FILES} --unsigned --announce b.example --overwrite"),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }
}
