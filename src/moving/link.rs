//! One connection of a move: TCP that notices when the other end is gone, and TLS on it. An end of the stream that TLS has not said is
//! an error.

use super::tls::{Ends, OWN};
use crate::error::{Context, Error, Phase, Result};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

/// A handshake takes no longer, or there is nobody who means it.
const HANDSHAKE: Duration = Duration::from_secs(15);

/// Between two attempts, as Ganeti has it.
const PAUSE: Duration = Duration::from_secs(1);

/// What was sent and not acknowledged for so long does not arrive any more. Silence is asked after, as often as Ganeti does it.
const GONE_MILLISECONDS: u32 = 110_000;
const KEEP_IDLE_SECONDS: u32 = 60;
const KEEP_INTERVAL_SECONDS: u32 = 10;
const KEEP_COUNT: u32 = 5;

/// Of what is to be sent: as much as a chunk, so that the kernel is asked seldom.
const BUFFER_BYTES: usize = 256 << 10;

/// Both certificates were good.
pub struct Link {
    connection: Connection,
    tcp: TcpStream,
    /// The same, for reading: rustls asks for 4 KiB at a time.
    incoming: BufReader<TcpStream>,
    /// The other end takes our certificate.
    is_taken: bool,
    /// The other end's address, for messages.
    pub peer: String,
}

impl Link {
    /// Tries once a second until the time is over.
    ///
    /// # Errors
    /// Nobody listens there, or it is not the one with the pinned certificate.
    pub fn connect(address: &str, ends: &Ends, patience: Duration) -> Result<Link> {
        let what = || format!("connect to {address}");
        let config = ends.client().context(Phase::Move, what)?;
        let end = Instant::now() + patience;
        loop {
            // It is not sent, and nobody compares it.
            let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
            let connection = ClientConnection::new(config.clone(), name).context(Phase::Move, what)?;
            let tcp = tcp(address, end.saturating_duration_since(Instant::now()));
            match tcp.and_then(|tcp| Link::shake(connection.into(), tcp, HANDSHAKE)) {
                // Another certificate stays another one; everything else may pass.
                Err(error) if error.kind() != ErrorKind::InvalidData && Instant::now() + PAUSE < end => {
                    thread::sleep(PAUSE);
                }
                linked => return linked.context(Phase::Move, what),
            }
        }
    }

    /// # Errors
    /// It is not the one with the pinned certificate, or none who speaks TLS 1.3.
    pub fn accept(tcp: TcpStream, ends: &Ends) -> io::Result<Link> {
        let config = ends.server().map_err(io::Error::other)?;
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        Link::shake(connection.into(), tcp, HANDSHAKE)
    }

    /// All of it takes no longer than `patience`, however the other end deals out its bytes.
    fn shake(mut connection: Connection, mut tcp: TcpStream, patience: Duration) -> io::Result<Link> {
        let end = Instant::now() + patience;
        connection.set_buffer_limit(Some(BUFFER_BYTES));
        let peer = tcp.peer_addr()?.to_string();
        watch(&tcp)?;
        while connection.is_handshaking() || connection.wants_write() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(patience));
            }
            tcp.set_read_timeout(Some(left))?;
            tcp.set_write_timeout(Some(left))?;
            match step(&mut connection, &mut tcp) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(late(patience));
                }
                stepped => stepped?,
            }
        }
        tcp.set_read_timeout(None)?;
        tcp.set_write_timeout(None)?;
        let incoming = BufReader::with_capacity(BUFFER_BYTES, tcp.try_clone()?);
        // The one who connects has only judged the other end by now, and not been judged.
        let is_taken = matches!(connection, Connection::Server(_));
        Ok(Link { connection, tcp, incoming, is_taken, peer })
    }

    /// Is the other end one of ours?
    pub fn is_own(&self) -> bool {
        self.connection.alpn_protocol() == Some(OWN)
    }

    /// Has the other end said something that was not read yet?
    pub fn has_spoken(&mut self) -> bool {
        let mut byte = [0];
        let is_unpacked = self.connection.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0);
        is_unpacked
            || !self.incoming.buffer().is_empty()
            || recv(self.tcp.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).is_ok()
    }

    /// What ends this connection from another thread.
    ///
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn cutter(&self) -> io::Result<Cutter> {
        Cutter::of(&self.tcp)
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn close(&mut self) -> io::Result<()> {
        self.connection.send_close_notify();
        self.flush()
    }
}

impl Link {
    /// Says that nothing more comes, and lets the other end read what was said, for so long. Were the connection just closed while it
    /// sends, the kernel would drop that.
    pub fn last_words(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut rest = vec![0; BUFFER_BYTES];
        // All of this is a courtesy.
        let _ = self.close();
        let _ = self.tcp.shutdown(Shutdown::Write);
        let _ = self.tcp.set_read_timeout(Some(PAUSE));
        while Instant::now() < end {
            match self.tcp.read(&mut rest) {
                Ok(1..) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }
}

/// Ends a connection from elsewhere: who reads or writes in it gets an error.
pub struct Cutter(TcpStream);

impl Cutter {
    /// # Errors
    /// The kernel has no descriptor left.
    pub fn of(tcp: &TcpStream) -> io::Result<Cutter> {
        tcp.try_clone().map(Cutter)
    }

    pub fn cut(&self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Without TLS's own end it may have been cut by anybody.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(cut()),
                read => {
                    self.is_taken |= matches!(read, Ok(1..));
                    return read;
                }
            }
            self.connection.read_tls(&mut self.incoming)?;
            if let Err(error) = self.connection.process_new_packets() {
                // The alert that says why.
                let _ = self.connection.write_tls(&mut self.tcp);
                return Err(self.broken(error));
            }
        }
    }
}

impl Link {
    /// What came was damaged on its way, here or there, and another connection may do better: that is no `InvalidData`. An alert in
    /// place of the first word is one: it judges our certificate, as in the handshake.
    fn broken(&self, error: rustls::Error) -> io::Error {
        match error {
            rustls::Error::AlertReceived(alert) if !self.is_taken && alert != AlertDescription::BadRecordMac => {
                io::Error::new(ErrorKind::InvalidData, error)
            }
            error => io::Error::new(ErrorKind::ConnectionAborted, error),
        }
    }
}

impl Write for Link {
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

fn cut() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the connection was cut: TLS has not said that this is the end")
}

fn late(patience: Duration) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, format!("the handshake took more than {} s", patience.as_secs()))
}

/// The kernel is asked once.
fn step(connection: &mut Connection, tcp: &mut TcpStream) -> io::Result<()> {
    if connection.wants_write() {
        return connection.write_tls(tcp).map(drop);
    }
    if connection.read_tls(tcp)? == 0 {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the other end has gone before the handshake was over"));
    }
    connection.process_new_packets().map(drop).map_err(|error| {
        // The alert that says why.
        let _ = connection.write_tls(tcp);
        io::Error::new(ErrorKind::InvalidData, error)
    })
}

fn tcp(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience.max(PAUSE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn watch(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    setsockopt(tcp, sockopt::KeepAlive, &true)?;
    setsockopt(tcp, sockopt::TcpKeepIdle, &KEEP_IDLE_SECONDS)?;
    setsockopt(tcp, sockopt::TcpKeepInterval, &KEEP_INTERVAL_SECONDS)?;
    setsockopt(tcp, sockopt::TcpKeepCount, &KEEP_COUNT)?;
    setsockopt(tcp, sockopt::TcpUserTimeout, &GONE_MILLISECONDS)?;
    Ok(())
}

/// A port that waits for the other end.
pub struct Port {
    listener: TcpListener,
    /// With the number that the kernel gave where 0 was asked for.
    pub address: String,
}

impl Port {
    /// # Errors
    /// In use, or no address of this machine.
    pub fn open(address: &str) -> Result<Port> {
        let what = || format!("listen at {address}");
        let listener = TcpListener::bind(address).context(Phase::Move, what)?;
        listener.set_nonblocking(true).context(Phase::Move, what)?;
        let address = listener.local_addr().context(Phase::Move, what)?.to_string();
        Ok(Port { listener, address })
    }

    /// The next one who connects; `None` when there is nobody right now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn next(&self) -> Result<Option<TcpStream>> {
        match self.listener.accept() {
            Ok((tcp, _)) => {
                tcp.set_nonblocking(false).context(Phase::Move, || "take a connection")?;
                Ok(Some(tcp))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            // It went before it was taken.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(Error::with_source(Phase::Move, format!("listen at {}", self.address), error)),
        }
    }
}

#[cfg(test)]
mod tests;
