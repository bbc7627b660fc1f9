//! TLS 1.3 between two peers that pin each other's certificate. Each peer compares the certificate of the other peer
//! with the pinned certificate. Host names and certificate authorities are not checked.

use super::ganeti_certificate::PeerCertificate;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use std::sync::Arc;

/// ALPN protocol between two drophammers. Ganeti does not use ALPN.
pub(crate) const DROPHAMMER_ALPN: &[u8] = b"drophammer-move/1";

/// Local certificate with its key, and the pinned certificate of the peer.
#[derive(Debug, Clone)]
pub(crate) struct TlsEndpoints {
    own: Arc<OwnCertResolver>,
    peer: Arc<PinnedVerifier>,
}

impl TlsEndpoints {
    /// Combines both certificates with the local private key, which is specified in PEM.
    ///
    /// # Errors
    /// Fails if the key cannot be used or does not belong to the local certificate.
    pub(crate) fn new(key: &str, own: &PeerCertificate, peer: PeerCertificate) -> Result<TlsEndpoints, String> {
        let provider = rustls::crypto::ring::default_provider();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|why| format!("the key file contains no PEM private key: {why}"))?;
        let key = provider.key_provider.load_private_key(key).map_err(|why| why.to_string())?;
        if key.public_key().is_none_or(|public| *public != *own.fields.public_key) {
            return Err("the private key does not belong to the certificate".to_owned());
        }
        let own = Arc::new(OwnCertResolver(Arc::new(CertifiedKey::new(vec![own.der.clone()], key))));
        Ok(TlsEndpoints { own, peer: Arc::new(PinnedVerifier { certificate: peer, provider: Arc::new(provider) }) })
    }

    /// Returns the pinned certificate of the peer.
    pub(crate) fn peer_certificate(&self) -> &PeerCertificate {
        &self.peer.certificate
    }

    /// Returns the TLS configuration of the sender, which is the client.
    ///
    /// # Errors
    /// Fails if rustls does not support TLS 1.3.
    pub(crate) fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let config = ClientConfig::builder_with_provider(self.peer.provider.clone());
        let config = config.with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(self.peer.clone())
            .with_client_cert_resolver(self.own.clone());
        config.alpn_protocols = vec![DROPHAMMER_ALPN.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Returns the TLS configuration of the receiver, which is the server.
    ///
    /// # Errors
    /// Fails for the same reasons as [`TlsEndpoints::client_config`].
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, Error> {
        let config = ServerConfig::builder_with_provider(self.peer.provider.clone());
        let config = config.with_protocol_versions(&[&rustls::version::TLS13])?;
        let mut config = config.with_client_cert_verifier(self.peer.clone()).with_cert_resolver(self.own.clone());
        config.alpn_protocols = vec![DROPHAMMER_ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// Certificate resolver of rustls that always selects the local certificate.
#[derive(Debug)]
struct OwnCertResolver(Arc<CertifiedKey>);

impl ResolvesClientCert for OwnCertResolver {
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for OwnCertResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Verifier that accepts only the pinned certificate, during its validity period.
#[derive(Debug)]
struct PinnedVerifier {
    certificate: PeerCertificate,
    provider: Arc<CryptoProvider>,
}

impl PinnedVerifier {
    fn verify_pinned(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        if **shown != *self.certificate.der {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        self.certificate.check_validity(now).map_err(|_| CertificateError::Expired.into())
    }

    /// Verifies a signature of the handshake with the public key of the pinned certificate.
    fn verify_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(&*self.certificate.fields.public_key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn tls12_error() -> Error {
    PeerIncompatible::Tls12NotOffered.into()
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify_pinned(shown, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12_error())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.supported_schemes()
    }
}

impl ClientCertVerifier for PinnedVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify_pinned(shown, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12_error())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.supported_schemes()
    }
}
