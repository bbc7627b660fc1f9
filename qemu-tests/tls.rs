//! TLS endpoints on both sides of the proxy: one accepts TLS from the machine, the other uses TLS to the server, so that the proxy sees
//! plain text. The certificate comes from `testdata/tls`; the machine's ramdisk trusts its authority and no other.

use crate::host::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Trusted authorities of the ramdisk, at the path where a build with `CA=` puts them.
pub const RAMDISK_AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Address of this host for machines in QEMU. The certificate contains this address and [`OF_TESTS`].
const OF_MACHINES: &str = "10.0.2.2";
/// Address of this host for the tests.
const OF_TESTS: &str = "127.0.0.1";

/// TLS endpoints, which end when this value is dropped.
pub struct TlsEndpoints {
    /// Port that the machine connects to.
    port: u16,
    /// Port for plain text that is forwarded to the server over TLS.
    pub to_server: u16,
    server: Arc<AtomicU16>,
    _runtime: Runtime,
}

/// Returns the path of a file in `testdata/tls`.
pub fn testdata_path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
}

impl TlsEndpoints {
    /// Starts the endpoints. Data from the machine are forwarded to the proxy at that port.
    ///
    /// # Errors
    /// No port is available, or the certificate cannot be used.
    pub fn start(wire: u16) -> Result<TlsEndpoints> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
        let runtime = runtime.context("the ends of the wire")?;
        let (acceptor, connector) = (build_acceptor()?, build_connector()?);
        let server = Arc::new(AtomicU16::new(0));
        let (machines, port) = open_listener(&runtime)?;
        let (plain, to_server) = open_listener(&runtime)?;
        runtime.spawn(async move {
            while let Ok((client, _)) = machines.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let client = acceptor.accept(client).await?;
                    join_connections(client, TcpStream::connect((OF_TESTS, wire)).await?).await
                });
            }
        });
        let shared = Arc::clone(&server);
        runtime.spawn(async move {
            while let Ok((client, _)) = plain.accept().await {
                let (connector, port) = (connector.clone(), shared.load(Ordering::Relaxed));
                tokio::spawn(async move {
                    let name = ServerName::try_from(OF_TESTS).map_err(std::io::Error::other)?;
                    let server = TcpStream::connect((OF_TESTS, port)).await?;
                    join_connections(client, connector.connect(name, server).await?).await
                });
            }
        });
        Ok(TlsEndpoints { port, to_server, server, _runtime: runtime })
    }

    /// Sets the TLS port of the server.
    pub fn set_server(&self, port: u16) {
        self.server.store(port, Ordering::Relaxed);
    }

    /// Returns the URL of the server for the machine.
    pub fn url(&self) -> String {
        format!("https://{OF_MACHINES}:{}", self.port)
    }
}

fn open_listener(runtime: &Runtime) -> Result<(tokio::net::TcpListener, u16)> {
    let listener = TcpListener::bind((OF_TESTS, 0)).context(OF_TESTS)?;
    listener.set_nonblocking(true).context(OF_TESTS)?;
    let port = listener.local_addr().context(OF_TESTS)?.port();
    let _entered = runtime.enter();
    Ok((tokio::net::TcpListener::from_std(listener).context(OF_TESTS)?, port))
}

/// Forwards data between two connections. An error on one side ends both connections, so that the peer on the other
/// side detects the end.
async fn join_connections(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    copy_bidirectional(&mut one, &mut other).await.map(|_| ())
}

fn build_acceptor() -> Result<TlsAcceptor> {
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().context("TLS")?.with_no_client_auth();
    let certificate = CertificateDer::from_pem_file(testdata_path("server.pem")).context("server.pem")?;
    let key = PrivateKeyDer::from_pem_file(testdata_path("server.key")).context("server.key")?;
    let config = config.with_single_cert(vec![certificate], key).context("server.pem")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn build_connector() -> Result<TlsConnector> {
    let mut authorities = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(testdata_path("ca.pem")).context("ca.pem")?;
    authorities.add(authority).context("ca.pem")?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().context("TLS")?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(authorities).with_no_client_auth())))
}

/// Tests that data from the plain side are sent over TLS to another pair of endpoints, and leave these as plain text.
/// Also tests that a client without TLS gets no data.
pub fn self_test() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let server = TcpListener::bind((OF_TESTS, 0)).expect("a port");
    let of_server = TlsEndpoints::start(server.local_addr().expect("an address").port()).expect("ends");
    let of_machine = TlsEndpoints::start(0).expect("ends");
    of_machine.set_server(of_server.port);
    let answers = std::thread::spawn(move || {
        let (mut client, _) = server.accept().expect("a client");
        let mut question = [0; 8];
        client.read_exact(&mut question).expect("a question");
        client.write_all(&[&question[..], &[b'x'; 100_000]].concat()).expect("answered");
    });
    let ask = |port: u16| {
        let mut stream = TcpStream::connect((OF_TESTS, port)).expect("a connection");
        stream.write_all(b"question").expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert!(!ask(of_server.port).starts_with(b"question"), "plain text is not passed on");
    let answer = ask(of_machine.to_server);
    assert!(answer.starts_with(b"question") && answer.len() == 100_008, "{}", answer.len());
    answers.join().expect("the server is content");
    assert_eq!(of_machine.url(), format!("https://10.0.2.2:{}", of_machine.port));
}
