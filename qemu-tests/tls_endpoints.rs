//! TLS endpoints on both sides of the proxy, which therefore handles plain text. One endpoint accepts TLS from the
//! machine, and the other one uses TLS to the server. The certificate is from `testdata/tls`. The machine's ramdisk
//! trusts only the CA of this certificate.

use crate::host_tools::{Context, Result};
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

/// Path of the trusted CA certificates in the ramdisk, as in a build with `CA=`.
pub const RAMDISK_AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Address at which machines in QEMU reach this host. The certificate contains this address and [`HOST_SIDE_ADDRESS`].
const GUEST_SIDE_ADDRESS: &str = "10.0.2.2";
/// Address at which the tests reach this host.
const HOST_SIDE_ADDRESS: &str = "127.0.0.1";

/// TLS endpoints. They end when this value is dropped.
pub struct TlsEndpoints {
    /// Port to which the machine connects.
    port: u16,
    /// Port that accepts plain text, which is forwarded to the server over TLS.
    pub to_server: u16,
    server: Arc<AtomicU16>,
    _runtime: Runtime,
}

/// Returns the path of a file in `testdata/tls`.
pub fn testdata_path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
}

impl TlsEndpoints {
    /// Starts the endpoints. Data from machines are forwarded to this port of the proxy.
    ///
    /// # Errors
    /// Fails if no port is free, or the certificate cannot be used.
    pub fn start(wire: u16) -> Result<TlsEndpoints> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_io().build();
        let runtime = runtime.context("create the runtime of the TLS endpoints")?;
        let (acceptor, connector) = (build_acceptor()?, build_connector()?);
        let server = Arc::new(AtomicU16::new(0));
        let (machines, port) = open_listener(&runtime)?;
        let (plain, to_server) = open_listener(&runtime)?;
        runtime.spawn(async move {
            while let Ok((client, _)) = machines.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let client = acceptor.accept(client).await?;
                    join_connections(client, TcpStream::connect((HOST_SIDE_ADDRESS, wire)).await?).await
                });
            }
        });
        let shared = Arc::clone(&server);
        runtime.spawn(async move {
            while let Ok((client, _)) = plain.accept().await {
                let (connector, port) = (connector.clone(), shared.load(Ordering::Relaxed));
                tokio::spawn(async move {
                    let name = ServerName::try_from(HOST_SIDE_ADDRESS).map_err(std::io::Error::other)?;
                    let server = TcpStream::connect((HOST_SIDE_ADDRESS, port)).await?;
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

    /// Returns the URL at which the machine reaches the server.
    pub fn url(&self) -> String {
        format!("https://{GUEST_SIDE_ADDRESS}:{}", self.port)
    }
}

fn open_listener(runtime: &Runtime) -> Result<(tokio::net::TcpListener, u16)> {
    let listener = TcpListener::bind((HOST_SIDE_ADDRESS, 0)).context(HOST_SIDE_ADDRESS)?;
    listener.set_nonblocking(true).context(HOST_SIDE_ADDRESS)?;
    let port = listener.local_addr().context(HOST_SIDE_ADDRESS)?.port();
    let _entered = runtime.enter();
    Ok((tokio::net::TcpListener::from_std(listener).context(HOST_SIDE_ADDRESS)?, port))
}

/// Forwards data between two connections. An error on one side ends both connections, so that the other peer notices
/// it.
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

/// Tests that plain data is sent over TLS to another pair of endpoints, which forwards it as plain text. Also tests
/// that a client without TLS receives no data.
pub fn self_test() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let server = TcpListener::bind((HOST_SIDE_ADDRESS, 0)).expect("a port");
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
        let mut stream = TcpStream::connect((HOST_SIDE_ADDRESS, port)).expect("a connection");
        stream.write_all(b"question").expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert!(!ask(of_server.port).starts_with(b"question"), "plain text is not passed on");
    let answer = ask(of_machine.to_server);
    assert!(answer.starts_with(b"question") && answer.len() == 100_008, "{}", answer.len());
    answers.join().expect("the server has received the expected data");
    assert_eq!(of_machine.url(), format!("https://10.0.2.2:{}", of_machine.port));
}
