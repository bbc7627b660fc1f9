//! Self-signed certificate of the agent, generated at each boot. The conductor receives this certificate with the
//! heartbeat, and does not accept any other certificate.

use super::stored_credentials;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::error::{Context, Phase, Result};
use linux::pem_encoding::encode_pem;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// Certificate and TLS configuration of the agent.
pub(crate) struct TlsIdentity {
    pub config: Arc<ServerConfig>,
    pub pem: String,
}

/// Stored certificate. A restarted agent reuses the certificate, since the conductor accepts only this certificate
/// until the next boot.
#[derive(Serialize, Deserialize)]
struct StoredCertificate {
    address: IpAddr,
    /// Certificate and key in DER, encoded in base64.
    certificate: String,
    key: String,
}

/// Returns the certificate that the agent uses during this boot. The certificate is valid for `address`, which is the
/// address of this machine for clients. The TLS configuration permits only TLS 1.3, which conductors support.
///
/// # Errors
/// Fails if no random numbers are available, or the certificate cannot be created or stored.
pub(crate) fn load_or_create(directory: &Path, address: IpAddr) -> Result<TlsIdentity> {
    let kept: Option<StoredCertificate> =
        stored_credentials::read_value(directory, FILE).filter(|kept: &StoredCertificate| kept.address == address);
    let kept = match kept {
        Some(kept) => kept,
        None => {
            let kept = create_certificate(address)?;
            stored_credentials::write_value(directory, FILE, &kept)?;
            kept
        }
    };
    let why = "load the TLS certificate of this machine";
    let decode = |text: &str| STANDARD.decode(text).context(Phase::Control, || why);
    let certificate = CertificateDer::from(decode(&kept.certificate)?);
    let secret = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(decode(&kept.key)?));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate.clone()], secret));
    let mut config = config.context(Phase::Control, || why)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsIdentity { config: Arc::new(config), pem: encode_pem("CERTIFICATE", &certificate) })
}

const FILE: &str = "ironic-certificate.json";

fn create_certificate(address: IpAddr) -> Result<StoredCertificate> {
    let why = || "create a certificate for this machine";
    let key = KeyPair::generate().context(Phase::Control, why)?;
    let certificate = certificate_params(address).self_signed(&key).context(Phase::Control, why)?;
    Ok(StoredCertificate {
        address,
        certificate: STANDARD.encode(certificate.der()),
        key: STANDARD.encode(key.serialize_der()),
    })
}

fn certificate_params(address: IpAddr) -> CertificateParams {
    let mut params = CertificateParams::default();
    // The clock of a ramdisk may be years off, in either direction. The certificate is used only until the end of the
    // boot.
    (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2099, 12, 31));
    params.distinguished_name.push(DnType::CommonName, address.to_string());
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    // The conductor trusts the self-signed certificate as a CA certificate, and verifies the certificate against
    // itself. Newer versions of Python require that a CA conforms to RFC 5280.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn certificate_is_pem_and_persists_until_reboot() {
        let boot = tempfile::tempdir().unwrap();
        let of = |address: &str| load_or_create(boot.path(), address.parse().unwrap()).unwrap().pem;
        for address in ["127.0.0.1", "2001:db8::7"] {
            let text = of(address);
            let der = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(encode_pem("CERTIFICATE", &der), text);
            assert!(text.lines().all(|line| line.len() <= 64));
            assert_eq!(of(address), text);
        }
        let other = load_or_create(tempfile::tempdir().unwrap().path(), "2001:db8::7".parse().unwrap()).unwrap();
        assert_ne!(other.pem, of("2001:db8::7"));
    }
}
