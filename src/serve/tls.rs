//! TLS that the server speaks itself: its certificate, its key, and how such a connection begins.

use super::patient::Patient;
use crate::error::{Context, Error, Phase, Result};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{InconsistentKeys, ServerConfig};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A client has so long to agree on keys.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    certificate: CertificateDer<'static>,
    pub handshake: Duration,
}

impl Tls {
    /// With the certificate and those that sign it, and its key, both in PEM.
    ///
    /// # Errors
    /// A file cannot be read, holds something else, or the two do not belong together.
    pub fn load(certificates: &Path, key: &Path) -> Result<Tls> {
        let refuse = |file: &Path, why: String| Err(Error::new(Phase::Serve, format!("{}: {why}", file.display())));
        let read = |file: &Path, what: &str| {
            fs::read(file).context(Phase::Serve, || format!("read {what} {}", file.display()))
        };
        let chain = read(certificates, "the certificate of --tls-cert")?;
        let chain: Vec<_> = match CertificateDer::pem_slice_iter(&chain).collect() {
            Ok(chain) => chain,
            Err(error) => return refuse(certificates, format!("its PEM is damaged: {error}")),
        };
        let Some(certificate) = chain.first().cloned() else {
            return refuse(certificates, "there is no certificate in it (-----BEGIN CERTIFICATE-----)".to_owned());
        };
        let secret = match PrivateKeyDer::from_pem_slice(&read(key, "the key of --tls-key")?) {
            Ok(secret) => secret,
            Err(error) => {
                let none = "there is no private key in it that can be read: PEM, without a passphrase";
                return refuse(key, format!("{none}: {error}"));
            }
        };
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().context(Phase::Serve, || "set up TLS")?;
        let mut config = match config.with_no_client_auth().with_single_cert(chain, secret) {
            Ok(config) => config,
            Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                return refuse(
                    key,
                    format!("it is not the key of the first certificate in {}", certificates.display()),
                );
            }
            Err(error) => {
                return refuse(certificates, format!("with the key {} it cannot be used: {error}", key.display()));
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), certificate, handshake: HANDSHAKE })
    }

    /// Does the certificate name this host, an address or a name with or without a port?
    pub fn is_for(&self, host: &str) -> bool {
        let name = without_port(host).trim_start_matches('[').trim_end_matches(']');
        let certificate = ParsedCertificate::try_from(&self.certificate);
        let (Ok(certificate), Ok(name)) = (certificate, ServerName::try_from(name)) else { return false };
        verify_server_name(&certificate, &name).is_ok()
    }

    /// Agrees on keys with whoever has connected.
    ///
    /// # Errors
    /// It takes too long, speaks something else, or does not like the certificate.
    pub async fn accept(&self, stream: Patient) -> io::Result<TlsStream<Patient>> {
        let accepted = tokio::time::timeout(self.handshake, self.acceptor.accept(stream)).await;
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// What the operator should know about a connection that did not come about; nothing when the client was only slow, or has gone.
pub fn trouble(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(format!(
            "does not take the server's certificate, and says {alert:?}: its CA must be known there, and the name that was asked for must be in it"
        )),
        rustls::Error::InvalidMessage(_) => {
            Some("speaks something else where https is spoken: does its URL begin with https://?".to_owned())
        }
        other => Some(format!("cannot be spoken to over TLS: {other}")),
    }
}

/// `[::1]` of `[::1]:80`.
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Can everybody on this host read the key?
pub fn readable_key(key: &Path) -> Option<PathBuf> {
    let mode = fs::metadata(key).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| key.to_owned())
}

#[cfg(test)]
mod tests;
