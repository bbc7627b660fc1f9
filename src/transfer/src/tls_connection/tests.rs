//! Connections from unauthenticated clients.

use super::*;
use crate::ganeti_certificate::PeerCertificate;
use rcgen::{CertificateParams, KeyPair};

/// Returns endpoints with a self-signed certificate, which is also the pinned certificate of the peer.
fn ends() -> TlsEndpoints {
    let key = KeyPair::generate().unwrap();
    let made =
        PeerCertificate::from_der(CertificateParams::default().self_signed(&key).unwrap().der().clone()).unwrap();
    TlsEndpoints::new(&linux::pem_encoding::encode_pem("PRIVATE KEY", &key.serialize_der()), &made, made.clone())
        .unwrap()
}

/// Each byte of the ClientHello arrives before a read timeout, but all of them take almost a minute.
#[test]
fn handshake_timeout_applies_to_all_bytes_together() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = ServerConnection::new(ends().server_config().unwrap()).unwrap();
    thread::scope(|scope| {
        let stranger = scope.spawn(move || {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.set_nodelay(true).unwrap();
            // A ClientHello of 512 bytes.
            let hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3].into_iter().chain(std::iter::repeat(0)).take(517);
            for byte in hello {
                if stranger.write_all(&[byte]).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        let began = Instant::now();
        let accepted = TlsLink::do_handshake(server.into(), listener.accept().unwrap().0, Duration::from_secs(1));
        let (error, took) = (accepted.map(drop).unwrap_err(), began.elapsed());
        assert!(error.kind() == ErrorKind::TimedOut && took < Duration::from_secs(5), "{took:?}: {error}");
        assert!(error.to_string().contains("timed out after 1 s"), "{error}");
        stranger.join().unwrap();
    });
}
