//! The command line of `drophammer move`.

use super::ganeti::{Compression, Magic};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const EXIT_CODES: &str =
    "Exit codes: 0 the disks are whole at the other end; 1 they are not; 2 refused before the first write; 64 usage.";

#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    pub command: MoveCommand,
}

#[derive(Debug, Subcommand)]
pub enum MoveCommand {
    /// Make a key, which stays on this machine, and its certificate, which the other end is given.
    #[command(after_help = "Example:\n  drophammer move key a.key a.pem --secret cluster-domain-secret")]
    Key(Key),
    /// Send disks. They are read only, and must not be in use.
    ///
    /// Ganeti's end gets the whole disk. One of ours gets what filesystems use of it, in pieces with digests, is resumed after a cut, and
    /// acknowledges all of it.
    #[command(after_help = format!(
        "Examples: to one of ours, and to Ganeti's import-export\n  \
        drophammer move send b.example:7700 /dev/sda /dev/sdb --key a.key --cert a.pem --peer b.pem\n  \
        drophammer move send node2:39000 /dev/sda --key a.key --cert a.pem --peer node2.pem --secret domain-secret --magic 0123abcd --compress gzip\n\n\
        {EXIT_CODES}"
    ))]
    Send(Send),
    /// Wait for disks, which replace ALL that is on those named here.
    ///
    /// Whoever shows another certificate is not let in, and the wait goes on.
    #[command(after_help = format!(
        "Example:\n  \
        drophammer move receive 0.0.0.0:7700 /dev/nvme0n1 /dev/nvme1n1 --key b.key --cert b.pem --peer a.pem --overwrite\n\n{EXIT_CODES}"
    ))]
    Receive(Receive),
}

#[derive(Debug, Args)]
pub struct Key {
    /// File that gets the key.
    pub key: PathBuf,
    /// File that gets the certificate.
    pub cert: PathBuf,
    /// How long the certificate is good.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=8760))]
    pub hours: u32,
    /// File with the secret of both ends, with which the certificate is signed, as Ganeti does it.
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

/// What both ends take.
#[derive(Debug, Args)]
pub struct Common {
    /// This end's private key.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// This end's certificate.
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// The other end's certificate. No other is taken.
    #[arg(long, value_name = "FILE")]
    pub peer: PathBuf,
    /// File with the secret of both ends: the other one's certificate must be signed with it.
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// A word that both ends were told, by which they know the disk.
    #[arg(long, value_name = "WORD")]
    pub magic: Option<Magic>,
    /// As Ganeti's end has it. Two of ours compress where that is faster, whatever this says.
    #[arg(long, default_value = "gzip")]
    pub compress: Compression,
    /// How many seconds to wait for the other end.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub wait: u32,
}

impl Common {
    pub fn patience(&self) -> Duration {
        Duration::from_secs(u64::from(self.wait))
    }
}

#[derive(Debug, Args)]
pub struct Send {
    /// HOST:PORT of the receiver.
    pub to: String,
    /// Disks, or files in place of them. Both ends name them alike: by NAME, or by their order.
    #[arg(required = true, value_name = "[NAME=]DISK")]
    pub disks: Vec<Named>,
    #[command(flatten)]
    pub common: Common,
    /// Send what no filesystem uses too.
    #[arg(long)]
    pub whole: bool,
    /// The figures as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Receive {
    /// ADDRESS:PORT to listen at; port 0 takes any, and tells which.
    pub at: String,
    /// Disks, or files in place of them.
    #[arg(required = true, value_name = "[NAME=]DISK")]
    pub disks: Vec<Named>,
    #[command(flatten)]
    pub common: Common,
    /// Exactly so many bytes are to come. Ganeti's end does not say whether it has sent all.
    #[arg(long, value_name = "BYTES")]
    pub size: Option<u64>,
    /// An earlier run has brought a part of them: what is there already is not sent again. Between two of ours only.
    #[arg(long)]
    pub resume: bool,
    /// Required, as consent: ALL that is on the disks is replaced, also with --resume.
    #[arg(long)]
    pub overwrite: bool,
}

/// A disk, and what both ends call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    name: Option<String>,
    pub path: PathBuf,
}

impl FromStr for Named {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Named, Self::Err> {
        Ok(match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => {
                Named { name: Some(name.to_owned()), path: path.into() }
            }
            _ => Named { name: None, path: text.into() },
        })
    }
}

/// Each disk with its name, which is its number where it has none.
///
/// # Errors
/// In words: two have one name.
pub fn named(disks: &[Named]) -> Result<Vec<(String, &Path)>, String> {
    let mut found: Vec<(String, &Path)> = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let name = disk.name.clone().unwrap_or_else(|| number.to_string());
        if found.iter().any(|(other, _)| *other == name) {
            return Err(format!("two disks are called {name}"));
        }
        found.push((name, &disk.path));
    }
    Ok(found)
}
