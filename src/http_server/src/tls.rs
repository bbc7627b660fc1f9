//! TLS of the server: certificate, key, and handshakes.

mod validity;

use crate::write_timeout::WriteTimeoutStream;
use common::error::{Context, Error, Phase, Result};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, InconsistentKeys, ServerConfig};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};
use time::OffsetDateTime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use validity::{CertificateValidity, ValidityProblem};

/// Time limit for the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Certificate and key of the server. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    /// Certificate chain, which is not empty. The first certificate is the server's own.
    chain: Vec<CertificateDer<'static>>,
    /// File that contains the certificates.
    file: PathBuf,
    pub handshake: Duration,
}

impl ServerTls {
    /// Loads the certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is invalid, or the key does not belong to the certificate.
    pub fn load_certificate(certificates: &Path, key: &Path) -> Result<ServerTls> {
        let refuse = |file: &Path, why: String| Err(Error::new(Phase::Serve, format!("{}: {why}", file.display())));
        let read = |file: &Path, what: &str| {
            fs::read(file).context(Phase::Serve, || format!("read {what} {}", file.display()))
        };
        let chain = read(certificates, "the certificate of --tls-cert")?;
        let chain: Vec<_> = match CertificateDer::pem_slice_iter(&chain).collect() {
            Ok(chain) => chain,
            Err(error) => return refuse(certificates, format!("invalid PEM: {error}")),
        };
        if chain.is_empty() {
            return refuse(
                certificates,
                "the file does not contain a certificate (-----BEGIN CERTIFICATE-----)".to_owned(),
            );
        }
        let secret = match PrivateKeyDer::from_pem_slice(&read(key, "the key of --tls-key")?) {
            Ok(secret) => secret,
            Err(error) => {
                let none = "the file does not contain a readable private key (PEM, without a passphrase)";
                return refuse(key, format!("{none}: {error}"));
            }
        };
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().context(Phase::Serve, || "set up TLS")?;
        let mut config = match config.with_no_client_auth().with_single_cert(chain.clone(), secret) {
            Ok(config) => config,
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                return refuse(
                    key,
                    format!("the key does not match the first certificate in {file}", file = certificates.display()),
                );
            }
            Err(error) => {
                return refuse(
                    certificates,
                    format!(
                        "the certificate cannot be used with the key {key_file}: {error}",
                        key_file = key.display()
                    ),
                );
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Sessions are resumed with tickets, because a session cache would be too small for thousands of machines.
        config.ticketer = rustls::crypto::ring::Ticketer::new().context(Phase::Serve, || "set up TLS tickets")?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(ServerTls { acceptor, chain, file: certificates.to_owned(), handshake: HANDSHAKE_TIMEOUT })
    }

    /// Returns whether the certificate covers this host: an address or a name, with or without a port.
    pub fn covers_host(&self, host: &str) -> bool {
        let name = common::url_host::strip_port(host).trim_start_matches('[').trim_end_matches(']');
        let certificate = self.chain.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
        let (Some(certificate), Ok(name)) = (certificate, ServerName::try_from(name)) else { return false };
        verify_server_name(&certificate, &name).is_ok()
    }

    /// Returns the certificates that are invalid now, or will expire within 30 days.
    pub fn find_validity_problems(&self) -> Vec<ValidityProblem> {
        validity::find_validity_problems(&self.file, &self.chain, OffsetDateTime::now_utc())
    }

    /// Returns the time at which the validity of each certificate ends.
    pub fn expiry_times(&self) -> Vec<OffsetDateTime> {
        let validity = self.chain.iter().filter_map(CertificateValidity::parse);
        validity.map(|validity| validity.not_after).collect()
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// Returns an error if the handshake takes too long or fails, or the client rejects the certificate.
    pub async fn accept_tls(&self, stream: WriteTimeoutStream) -> io::Result<TlsStream<WriteTimeoutStream>> {
        let accepted = tokio::time::timeout(self.handshake, self.acceptor.accept(stream)).await;
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Describes a failed handshake for the operator. Returns `None` if the client was too slow or has disconnected.
pub fn describe_tls_error(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => Some(
            "considers the server's certificate expired or not yet valid: compare the validity of the certificate with the clocks of \
             client and server"
                .to_owned(),
        ),
        rustls::Error::AlertReceived(alert) => Some(format!(
            "rejects the server's certificate ({alert:?}): the client must trust the CA of the certificate, and the certificate must cover the requested name"
        )),
        rustls::Error::InvalidMessage(_) => {
            Some("sends plain http to the https port: use a URL that begins with https://".to_owned())
        }
        other => Some(format!("TLS handshake failed: {other}")),
    }
}

/// Returns the path of the key file if every user of this host can read the file, and `None` otherwise.
pub fn world_readable_key(key: &Path) -> Option<PathBuf> {
    let mode = fs::metadata(key).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| key.to_owned())
}

#[cfg(test)]
mod certificate_tests;
