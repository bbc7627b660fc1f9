//! Disk transfer to another machine, over mutually authenticated TLS with pinned certificates. The peer is Ganeti's `import-export` or
//! another drophammer.
//!
//! Start with [`sending`] and [`receiving`], the two ends. [`whole`] does the same for the agents of two machines, one of which replaces
//! the other.

mod certificate;
mod der;
mod ganeti;
mod key;
mod link;
mod onto;
pub mod options;
mod own;
mod receiving;
mod sending;
mod source;
mod tls;
mod used;
pub mod whole;

pub use used::worker::run as run_used_blocks_worker;

use crate::error::{Context, Error, Phase, Result};
use crate::exit::{Exit, or_refused};
use certificate::{Certificate, FILE_BYTES, Secret};
use options::{Common, Key, MoveCommand, Options};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use time::OffsetDateTime;
use tls::Ends;

/// Runs `drophammer move`.
///
/// # Errors
/// Fails if a disk was not transferred completely.
pub fn run(options: &Options) -> Result<Exit> {
    or_refused(match &options.command {
        MoveCommand::Key(options) => key(options),
        MoveCommand::Send(options) => sending::run(options),
        MoveCommand::Receive(options) => receiving::run(options),
    })
}

fn key(Key { key, cert, hours, secret }: &Key) -> Result<Exit> {
    let secret = secret.as_deref().map(self::secret).transpose()?;
    key::write(key, cert, *hours, secret.as_ref()).map(|()| Exit::Good)
}

/// Loads both certificates and the key. The certificates must be valid now, and the peer's must be signed if there is a secret.
fn ends(common: &Common) -> Result<Ends> {
    let secret = common.secret.as_deref().map(secret).transpose()?;
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let good = |path: &Path, signed_with: Option<&Secret>| {
        let good = good(&text(path)?, signed_with, now);
        good.map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", path.display())))
    };
    let (own, peer) = (good(&common.cert, None)?, good(&common.peer, secret.as_ref())?);
    let ends = Ends::new(&text(&common.key)?, &own, peer);
    ends.map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", common.key.display())))
}

/// Parses a PEM certificate and checks its validity at the given time, and its signature if there is a secret.
fn good(text: &str, signed_with: Option<&Secret>, now: i64) -> Result<Certificate, String> {
    let certificate = match signed_with {
        Some(secret) => Certificate::read_signed(text, secret)?,
        None => Certificate::read(text)?,
    };
    certificate.good_at(now).map(|()| certificate)
}

fn secret(path: &Path) -> Result<Secret> {
    Secret::read(&text(path)?).map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", path.display())))
}

fn text(path: &Path) -> Result<String> {
    let what = || format!("read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).context(Phase::Move, what)?;
    file.take(FILE_BYTES).read_to_string(&mut text).context(Phase::Move, what)?;
    Ok(text)
}
