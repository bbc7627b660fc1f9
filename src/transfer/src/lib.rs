//! Disk transfer to another machine, over mutually authenticated TLS with pinned certificates. The peer is Ganeti's
//! `import-export` or another drophammer.
//!
//! The entry points are [`send_command`] for the sender and [`receive_command`] for the receiver. [`machine_migration`]
//! transfers the disks of a machine that is migrated to other hardware, between the agents of both machines.

mod destination_address;
mod destination_disk;
mod ganeti_certificate;
mod ganeti_protocol;
mod key_generation;
pub mod machine_migration;
pub mod move_options;
mod protocol;
mod receive_command;
mod send_command;
mod shared_secret;
mod source_disk;
mod tls;
mod tls_connection;
mod used_blocks;
mod x509_parser;

pub use used_blocks::worker::run_worker as run_used_blocks_worker;

use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use ganeti_certificate::{FILE_BYTES, PeerCertificate};
use move_options::{CommonOptions, KeyOptions, MoveCommand, SigningOptions, TransferOptions};
use shared_secret::SharedSecret;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use time::OffsetDateTime;
use tls::TlsEndpoints;

/// Runs `drophammer move`.
///
/// # Errors
/// Fails if a disk was not transferred completely.
pub fn run_move(options: &TransferOptions) -> Result<CommandOutcome> {
    report_refusal(match &options.command {
        MoveCommand::Secret(options) => key_generation::write_secret(&options.file).map(|()| CommandOutcome::Good),
        MoveCommand::Key(options) => create_key(options),
        MoveCommand::Send(options) => send_command::run_send(options),
        MoveCommand::Receive(options) => receive_command::run_receive(options),
    })
}

fn create_key(KeyOptions { key, cert, hours, signing }: &KeyOptions) -> Result<CommandOutcome> {
    let secret = load_secret(signing)?;
    key_generation::write_files(key, cert, *hours, secret.as_ref()).map(|()| CommandOutcome::Good)
}

/// Loads the shared secret. Returns `None` if signatures are disabled.
fn load_secret(SigningOptions { secret, unsigned }: &SigningOptions) -> Result<Option<SharedSecret>> {
    match secret {
        Some(file) => read_secret(file).map(Some),
        None if *unsigned => Ok(None),
        None => Err(Error::refusal(
            Phase::Move,
            "certificates must be signed, so that they cannot be replaced while they are copied; specify --secret FILE, which `drophammer move \
             secret FILE` creates, or --unsigned if nothing can replace them",
        )),
    }
}

/// Loads the local certificate and key, and the certificate of the peer. Both certificates must be valid now. If there
/// is a secret, the peer's certificate must be signed with this secret.
fn load_endpoints(common: &CommonOptions, secret: Option<&SharedSecret>) -> Result<TlsEndpoints> {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let good = |path: &Path, signed_with: Option<&SharedSecret>| {
        let good = check_certificate(&read_text(path)?, signed_with, now);
        good.map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", path.display())))
    };
    let (own, peer) = (good(&common.cert, None)?, good(&common.peer, secret)?);
    let ends = TlsEndpoints::new(&read_text(&common.key)?, &own, peer);
    ends.map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", common.key.display())))
}

/// Destroys the local key and its certificate; called after all disks were transferred. With `--keep-key`, they are
/// preserved for further transfers.
fn destroy_key(common: &CommonOptions) {
    if !common.keep_key {
        key_generation::destroy_files(&common.key, &common.cert);
    }
}

/// Parses a PEM certificate. Checks the size of its key, and its validity at the time `now`, in seconds since 1970. If
/// a secret is specified, also checks the signature of the certificate.
fn check_certificate(text: &str, signed_with: Option<&SharedSecret>, now: i64) -> Result<PeerCertificate, String> {
    let certificate = match signed_with {
        Some(secret) => PeerCertificate::parse_signed_pem(text, secret)?,
        None => PeerCertificate::parse_pem(text)?,
    };
    certificate.check_key_size()?;
    certificate.check_validity(now).map(|()| certificate)
}

fn read_secret(path: &Path) -> Result<SharedSecret> {
    SharedSecret::parse_secret(&read_text(path)?)
        .map_err(|why| Error::refusal(Phase::Move, format!("{}: {why}", path.display())))
}

fn read_text(path: &Path) -> Result<String> {
    let what = || format!("read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).context(Phase::Move, what)?;
    file.take(FILE_BYTES).read_to_string(&mut text).context(Phase::Move, what)?;
    Ok(text)
}

#[cfg(test)]
testing::workers!(linux::process::worker_process::USED_BLOCKS_WORKER => crate::run_used_blocks_worker, linux::process::worker_process::WORKER => image::worker::run_image_worker);
