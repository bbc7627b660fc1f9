//! Load balancer in front of the two servers. It opens each forwarded connection with the client's source address,
//! because the servers bind tokens to addresses, and from a privileged port if the client uses one. It checks each
//! server at `/readyz`. If a server fails the check, its connections are closed, so that the clients connect to the
//! other server.

use super::link_switch::LinkSwitch;
use super::planted_false_acknowledgements;
use common::sync::lock_mutex;
use reqwest::{Client, Response};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// Interval between checks of a server. The server must respond within the same time.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time within which a server must accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const PRIVILEGED_PORTS: std::ops::Range<u16> = 512..1024;

/// Addresses of a server: one for boot files over plain HTTP, and one for the API.
#[derive(Debug, Clone, Copy)]
pub struct BackendAddresses {
    pub boot: SocketAddr,
    pub api: SocketAddr,
}

/// Server behind the balancer.
pub struct BalancedBackend {
    addresses: BackendAddresses,
    /// Link between the balancer and the server.
    pub link: LinkSwitch,
    is_ready: AtomicBool,
    /// Counter that is increased when the server fails its check. Each change closes all connections to the server.
    generation: watch::Sender<u64>,
    connections: Mutex<HashMap<u64, IpAddr>>,
}

pub struct LoadBalancer {
    pub backends: [BalancedBackend; 2],
    next: AtomicUsize,
    ids: AtomicU64,
    tampering: Option<planted_false_acknowledgements::TamperedRequest>,
    /// HTTP client for the checks.
    client: Client,
}

impl LoadBalancer {
    pub fn new(
        backends: [BackendAddresses; 2],
        tampering: Option<planted_false_acknowledgements::TamperedRequest>,
        client: Client,
    ) -> Arc<LoadBalancer> {
        let backends = backends.map(|addresses| BalancedBackend {
            addresses,
            link: LinkSwitch::new(),
            is_ready: AtomicBool::new(true),
            generation: watch::Sender::new(0),
            connections: Mutex::default(),
        });
        Arc::new(LoadBalancer { backends, next: AtomicUsize::new(0), ids: AtomicU64::new(0), tampering, client })
    }

    /// Starts to listen for boot requests and for API requests. Returns the two addresses.
    ///
    /// # Errors
    /// Returns an error if no port is free.
    pub async fn listen(self: &Arc<LoadBalancer>) -> io::Result<(SocketAddr, SocketAddr)> {
        let mut addresses = Vec::new();
        for is_api in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            addresses.push(listener.local_addr()?);
            let balancer = self.clone();
            tokio::spawn(async move {
                while let Ok((client, peer)) = listener.accept().await {
                    let balancer = balancer.clone();
                    // An error is ignored, because the client notices that its connection has failed.
                    tokio::spawn(async move { drop(balancer.forward(client, peer, is_api).await) });
                }
            });
        }
        for index in 0..self.backends.len() {
            let balancer = self.clone();
            tokio::spawn(async move { balancer.check_forever(index).await });
        }
        match addresses.as_slice() {
            [boot, api] => Ok((*boot, *api)),
            _ => Err(io::Error::other("the balancer has two listeners")),
        }
    }

    /// Returns the addresses of the clients that are connected to this server.
    pub fn clients_of(&self, index: usize) -> Vec<IpAddr> {
        self.backends
            .get(index)
            .map(|backend| lock_mutex(&backend.connections).values().copied().collect())
            .unwrap_or_default()
    }

    /// Returns whether both servers have passed their last check.
    pub fn are_all_ready(&self) -> bool {
        self.backends.iter().all(|backend| backend.is_ready.load(Ordering::SeqCst))
    }

    async fn forward(&self, client: TcpStream, peer: SocketAddr, is_api: bool) -> io::Result<()> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let order = [first % 2, (first + 1) % 2].map(|index| &self.backends[index]);
        let (ready, others): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|backend| backend.is_ready.load(Ordering::SeqCst));
        for backend in ready.into_iter().chain(others) {
            let address = if is_api { backend.addresses.api } else { backend.addresses.boot };
            let connected = async {
                backend.link.wait_until_up().await;
                connect_as(peer, address).await
            };
            let Ok(Ok(server)) = timeout(CONNECT_TIMEOUT, connected).await else { continue };
            return self.copy(backend, client, server, peer.ip()).await;
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    async fn copy(
        &self,
        backend: &BalancedBackend,
        client: TcpStream,
        server: TcpStream,
        peer: IpAddr,
    ) -> io::Result<()> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        lock_mutex(&backend.connections).insert(id, peer);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut generation = backend.generation.subscribe();
        let copied = async {
            match self.tampering {
                Some(tampering) => tampering.copy(client, server, peer).await,
                None => backend.link.copy_both(client, server).await,
            }
        };
        let result = tokio::select! {
            result = copied => result,
            _ = generation.changed() => Err(io::ErrorKind::ConnectionReset.into()),
        };
        lock_mutex(&backend.connections).remove(&id);
        result
    }

    async fn check_forever(&self, index: usize) {
        let Some(backend) = self.backends.get(index) else { return };
        loop {
            let is_ready =
                timeout(CHECK_TIMEOUT, check_backend(&self.client, backend)).await.is_ok_and(|checked| checked.is_ok());
            if backend.is_ready.swap(is_ready, Ordering::SeqCst) && !is_ready {
                backend.generation.send_modify(|generation| *generation += 1);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

async fn check_backend(client: &Client, backend: &BalancedBackend) -> Result<(), String> {
    backend.link.wait_until_up().await;
    let response = backend.addresses.get(client, "/readyz").await?;
    backend.link.wait_until_up().await;
    response.error_for_status().map(drop).map_err(|error| error.to_string())
}

impl BackendAddresses {
    /// Sends a GET request to the API.
    ///
    /// # Errors
    /// Returns an error if the server does not respond.
    pub async fn get(self, client: &Client, path: &str) -> Result<Response, String> {
        let scheme = if self.boot == self.api { "http" } else { "https" };
        let request = client.get(format!("{scheme}://{}{path}", self.api)).header("connection", "close");
        request.send().await.map_err(|error| error.to_string())
    }
}

/// Connects to a server from the address of the client, and from a privileged port if the client uses one.
async fn connect_as(client: SocketAddr, server: SocketAddr) -> io::Result<TcpStream> {
    let is_privileged = client.port() < PRIVILEGED_PORTS.end;
    let mut attempts = if is_privileged { 64 } else { 1 };
    loop {
        attempts -= 1;
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        let port = if is_privileged { fastrand::u16(PRIVILEGED_PORTS) } else { 0 };
        let connected = match socket.bind(SocketAddr::new(client.ip(), port)) {
            Ok(()) => socket.connect(server).await,
            Err(error) => Err(error),
        };
        match connected {
            Err(error)
                if attempts > 0
                    && matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) => {}
            done => return done,
        }
    }
}
