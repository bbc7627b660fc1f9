//! One connection of a transfer: TLS over TCP with keepalives that detect a dead peer. A stream that ends without TLS's
//! close_notify is an error.

use super::tls::{DROPHAMMER_ALPN, TlsEndpoints};
use common::error::{Context, Error, Phase, Result};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// Delay between two connection attempts, as in Ganeti.
const CONNECT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time after which a connection fails because the peer has not acknowledged sent data (TCP_USER_TIMEOUT). The
/// keepalive parameters below are those of Ganeti.
const USER_TIMEOUT_MILLISECONDS: u32 = 110_000;
const KEEPALIVE_IDLE_SECONDS: u32 = 60;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 10;
const KEEPALIVE_PROBES: u32 = 5;

/// Size of the send and receive buffers, in bytes. Large buffers keep the number of system calls low.
const BUFFER_BYTES: usize = 256 << 10;

/// Established connection to a peer whose certificate was verified. [`Self::is_taken`] records whether the peer has
/// accepted the local certificate.
pub(crate) struct TlsLink {
    connection: Connection,
    tcp: TcpStream,
    /// Reader of the socket, buffered because rustls reads only 4 KiB at a time.
    incoming: BufReader<TcpStream>,
    /// Whether the peer is known to have accepted the local certificate.
    is_taken: bool,
    /// Address of the peer, used in messages.
    pub peer: String,
}

impl TlsLink {
    /// Connects to the peer, and retries once a second until the timeout `patience`.
    ///
    /// # Errors
    /// Fails if no connection is established in time, or the peer does not have the pinned certificate.
    pub(crate) fn connect(address: &str, ends: &TlsEndpoints, patience: Duration) -> Result<TlsLink> {
        let what = || format!("connect to {address}");
        let config = ends.client_config().context(Phase::Move, what)?;
        let end = Instant::now() + patience;
        loop {
            // rustls requires a server name, but the name is neither sent nor compared with the certificate.
            let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
            let connection = ClientConnection::new(config.clone(), name).context(Phase::Move, what)?;
            let tcp = connect_tcp(address, end.saturating_duration_since(Instant::now()));
            match tcp.and_then(|tcp| TlsLink::do_handshake(connection.into(), tcp, HANDSHAKE)) {
                // The connection is retried, except after an error caused by a wrong certificate (`InvalidData`), which
                // is permanent.
                Err(error) if error.kind() != ErrorKind::InvalidData && Instant::now() + CONNECT_RETRY_DELAY < end => {
                    thread::sleep(CONNECT_RETRY_DELAY);
                }
                linked => return linked.context(Phase::Move, what),
            }
        }
    }

    /// Performs the TLS handshake on an accepted connection.
    ///
    /// # Errors
    /// Fails if the peer does not have the pinned certificate or does not support TLS 1.3.
    pub(crate) fn accept(tcp: TcpStream, ends: &TlsEndpoints) -> io::Result<TlsLink> {
        let config = ends.server_config().map_err(io::Error::other)?;
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        TlsLink::do_handshake(connection.into(), tcp, HANDSHAKE)
    }

    /// Performs the handshake. `patience` limits its total duration, even if the peer sends single bytes slowly.
    fn do_handshake(mut connection: Connection, mut tcp: TcpStream, patience: Duration) -> io::Result<TlsLink> {
        let end = Instant::now() + patience;
        connection.set_buffer_limit(Some(BUFFER_BYTES));
        let peer = tcp.peer_addr()?.to_string();
        set_keepalive(&tcp)?;
        while connection.is_handshaking() || connection.wants_write() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(handshake_timeout(patience));
            }
            tcp.set_read_timeout(Some(left))?;
            tcp.set_write_timeout(Some(left))?;
            match handshake_step(&mut connection, &mut tcp) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(handshake_timeout(patience));
                }
                stepped => stepped?,
            }
        }
        tcp.set_read_timeout(None)?;
        tcp.set_write_timeout(None)?;
        let incoming = BufReader::with_capacity(BUFFER_BYTES, tcp.try_clone()?);
        // After the handshake, the server knows that both certificates are accepted. The client does not know yet
        // whether its own certificate was accepted.
        let is_taken = matches!(connection, Connection::Server(_));
        Ok(TlsLink { connection, tcp, incoming, is_taken, peer })
    }

    /// Returns whether the peer is another drophammer, according to the ALPN protocol.
    pub(crate) fn is_own(&self) -> bool {
        self.connection.alpn_protocol() == Some(DROPHAMMER_ALPN)
    }

    /// Returns whether there is unread data from the peer.
    pub(crate) fn has_pending_data(&mut self) -> bool {
        let mut byte = [0];
        let is_unpacked = self.connection.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0);
        is_unpacked
            || !self.incoming.buffer().is_empty()
            || recv(self.tcp.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).is_ok()
    }

    /// Returns a handle that shuts down this connection from another thread.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub(crate) fn shutdown_handle(&self) -> io::Result<ShutdownHandle> {
        ShutdownHandle::from_stream(&self.tcp)
    }

    /// Sends TLS's close_notify, which marks the end of the stream.
    ///
    /// # Errors
    /// Fails if the peer is gone.
    pub(crate) fn send_close_notify(&mut self) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush()
    }
}

impl TlsLink {
    /// Sends close_notify, and waits at most `patience` until the peer has closed the connection. Without the wait, the
    /// kernel could reset the connection because of data that the peer still sends, and the peer might not receive the
    /// last message.
    pub(crate) fn close_gracefully(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut rest = vec![0; BUFFER_BYTES];
        // Errors while closing are ignored, because the result of the transfer is already known.
        let _ = self.send_close_notify();
        let _ = self.tcp.shutdown(Shutdown::Write);
        let _ = self.tcp.set_read_timeout(Some(CONNECT_RETRY_DELAY));
        while Instant::now() < end {
            match self.tcp.read(&mut rest) {
                Ok(1..) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Handle that shuts down a connection from another thread. Pending reads and writes on the connection then fail.
pub(crate) struct ShutdownHandle(TcpStream);

impl ShutdownHandle {
    /// Duplicates the descriptor of the connection.
    ///
    /// # Errors
    /// Fails if no file descriptor is left.
    pub(crate) fn from_stream(tcp: &TcpStream) -> io::Result<ShutdownHandle> {
        tcp.try_clone().map(ShutdownHandle)
    }

    pub(crate) fn shut_down(&self) {
        // An error is ignored, because the connection may already be closed.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Read for TlsLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The connection has ended without close_notify, so an attacker may have truncated the stream.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(truncated_error()),
                read => {
                    self.is_taken |= matches!(read, Ok(1..));
                    return read;
                }
            }
            self.connection.read_tls(&mut self.incoming)?;
            if let Err(error) = self.connection.process_new_packets() {
                // Sends the TLS alert, which contains the reason for the failure.
                let _ = self.connection.write_tls(&mut self.tcp);
                return Err(self.classify_tls_error(error));
            }
        }
    }
}

impl TlsLink {
    /// Classifies a TLS error as permanent (`InvalidData`) or temporary. An alert that arrives before any data is a
    /// permanent error, because such an alert means that the peer rejects the local certificate. Data damaged in
    /// transit is a temporary error, since a new connection may succeed.
    fn classify_tls_error(&self, error: rustls::Error) -> io::Error {
        match error {
            rustls::Error::AlertReceived(alert) if !self.is_taken && alert != AlertDescription::BadRecordMac => {
                io::Error::new(ErrorKind::InvalidData, error)
            }
            error => io::Error::new(ErrorKind::ConnectionAborted, error),
        }
    }
}

impl Write for TlsLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.connection.writer().write(bytes)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }
}

fn truncated_error() -> io::Error {
    io::Error::new(
        ErrorKind::UnexpectedEof,
        "the connection was truncated: the peer closed it without a TLS close_notify",
    )
}

fn handshake_timeout(patience: Duration) -> io::Error {
    io::Error::new(
        ErrorKind::TimedOut,
        format!("TLS handshake timed out after {seconds} s", seconds = patience.as_secs()),
    )
}

/// Performs one read or write of the handshake.
fn handshake_step(connection: &mut Connection, tcp: &mut TcpStream) -> io::Result<()> {
    if connection.wants_write() {
        return connection.write_tls(tcp).map(drop);
    }
    if connection.read_tls(tcp)? == 0 {
        return Err(io::Error::new(
            ErrorKind::UnexpectedEof,
            "the peer closed the connection during the TLS handshake",
        ));
    }
    connection.process_new_packets().map(drop).map_err(|error| {
        // Sends the TLS alert, which contains the reason for the failure.
        let _ = connection.write_tls(tcp);
        io::Error::new(ErrorKind::InvalidData, error)
    })
}

fn connect_tcp(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host name resolves to no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience.max(CONNECT_RETRY_DELAY)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn set_keepalive(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    setsockopt(tcp, sockopt::KeepAlive, &true)?;
    setsockopt(tcp, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_SECONDS)?;
    setsockopt(tcp, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_SECONDS)?;
    setsockopt(tcp, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(tcp, sockopt::TcpUserTimeout, &USER_TIMEOUT_MILLISECONDS)?;
    Ok(())
}

/// Listening socket.
pub(crate) struct ListeningPort {
    listener: TcpListener,
    /// Bound address. If port 0 was requested, the address contains the port that the kernel has chosen.
    pub address: String,
}

impl ListeningPort {
    /// Binds the address and listens.
    ///
    /// # Errors
    /// Fails if the address is in use or is not an address of this host.
    pub(crate) fn open(address: &str) -> Result<ListeningPort> {
        let what = || format!("listen at {address}");
        let listener = TcpListener::bind(address).context(Phase::Move, what)?;
        listener.set_nonblocking(true).context(Phase::Move, what)?;
        let address = listener.local_addr().context(Phase::Move, what)?.to_string();
        Ok(ListeningPort { listener, address })
    }

    /// Accepts the next connection. Returns `None` if none is pending.
    ///
    /// # Errors
    /// Fails if the kernel reports an error. A connection that the client has aborted is not an error.
    pub(crate) fn accept_next(&self) -> Result<Option<TcpStream>> {
        match self.listener.accept() {
            Ok((tcp, _)) => {
                tcp.set_nonblocking(false).context(Phase::Move, || "accept a connection")?;
                Ok(Some(tcp))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(Error::with_source(Phase::Move, format!("listen at {}", self.address), error)),
        }
    }
}

#[cfg(test)]
mod tests;
