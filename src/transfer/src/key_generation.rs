//! Generates a private key, which never leaves this machine, and a certificate for the peer. Key and certificate are
//! stored in memory, or in files (`drophammer move key`) that are destroyed after the transfer.

use super::ganeti_certificate::PeerCertificate;
use super::shared_secret::{self, SharedSecret};
use common::error::{Context, Error, Phase, Result};
use linux::pem_encoding;
use rcgen::{CertificateParams, DnType, KeyPair};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use time::{Duration, OffsetDateTime};

/// Common name of the certificates. Ganeti's `import-export` accepts no other name (ganeti's constants.X509_CERT_CN).
const COMMON_NAME: &str = "ganeti.example.com";

/// Time by which a certificate is backdated, since the clock of the peer may be behind.
pub(crate) const EARLIER: Duration = Duration::minutes(2);

/// First line of key files of `drophammer move key`. Only key files with this line are destroyed after a transfer.
/// Parsers of PEM ignore the line.
const KEY_HEADER: &str = "X-Drophammer-Key: destroyed after the transfer";

/// Private key and certificate, both in PEM.
pub(crate) struct KeyPairPem {
    pub key: String,
    /// Certificate. If there is a secret, a signature header precedes the certificate.
    pub certificate: String,
}

/// Generates a key and its certificate, and writes both files, which must not exist yet.
///
/// # Errors
/// Fails if no random numbers are available or a file cannot be written.
pub(crate) fn write_files(
    key_file: &Path,
    certificate_file: &Path,
    hours: u32,
    secret: Option<&SharedSecret>,
) -> Result<()> {
    let KeyPairPem { key, certificate } = generate_pair(EARLIER, hours, secret)?;
    write_new_file(key_file, 0o600, &format!("{KEY_HEADER}\n\n{key}"))?;
    write_new_file(certificate_file, 0o644, &certificate)
}

/// Generates a key and a certificate that is backdated by `earlier`, and valid for `hours` from now on.
///
/// # Errors
/// Fails if no random numbers are available.
pub(crate) fn generate_pair(earlier: Duration, hours: u32, secret: Option<&SharedSecret>) -> Result<KeyPairPem> {
    let what = || "create a certificate for the transfer";
    let key = KeyPair::generate().context(Phase::Move, what)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, COMMON_NAME);
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - earlier, now + Duration::hours(i64::from(hours)));
    let made = params.self_signed(&key).context(Phase::Move, what)?;
    let certificate = PeerCertificate::from_der(made.der().clone()).ok_or_else(|| Error::new(Phase::Move, what()))?;
    let certificate = match secret {
        None => certificate.to_pem(),
        Some(secret) => certificate.to_signed_pem(secret, &shared_secret::generate_salt()?),
    };
    Ok(KeyPairPem { key: pem_encoding::encode_pem("PRIVATE KEY", &key.serialize_der()), certificate })
}

/// Overwrites and removes a key file that [`write_files`] has created, and removes the file of its certificate. Other
/// keys are preserved. A failure is only logged, because the transfer is already complete.
pub(crate) fn destroy_files(key_file: &Path, certificate_file: &Path) {
    let destroy = || -> io::Result<()> {
        let text = fs::read_to_string(key_file)?;
        if !text.starts_with(KEY_HEADER) {
            return Ok(());
        }
        overwrite_file(key_file, text.len())?;
        fs::remove_file(key_file)?;
        fs::remove_file(certificate_file)
    };
    if let Err(error) = destroy() {
        tracing::warn!("key {file} was not destroyed: {error}; remove the file", file = key_file.display());
    }
}

fn overwrite_file(path: &Path, bytes: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(&vec![0; bytes])?;
    file.sync_all()
}

/// Creates a secret, and writes it to a file that must not exist yet and that only its owner can read.
///
/// # Errors
/// Fails if no random numbers are available or the file cannot be written.
pub(crate) fn write_secret(file: &Path) -> Result<()> {
    write_new_file(file, 0o600, &format!("{}\n", shared_secret::generate_secret()?))
}

fn write_new_file(path: &Path, mode: u32, text: &str) -> Result<()> {
    let what = || format!("write {}", path.display());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).context(Phase::Move, what)?;
    file.write_all(text.as_bytes()).context(Phase::Move, what)
}
