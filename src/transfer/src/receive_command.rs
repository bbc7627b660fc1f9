//! `drophammer move receive`: listens for connections, and receives until all disks are complete.

use super::destination_address::Destination;
use super::destination_disk::TransferDestination;
use super::ganeti_protocol::{self, GanetiTerms};
use super::move_options::{self, ReceiveOptions};
use super::protocol::ConnectionEnd;
use super::protocol::receive::receive_disk;
use super::protocol::receive_state::{self, ReceivedDisk};
use super::shared_secret::SharedSecret;
use super::tls::TlsEndpoints;
use super::tls_connection::{ListeningPort, TlsLink};
use common::command_outcome::CommandOutcome;
use common::error::{Context, Error, Phase, Result};
use common::output;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use unauthenticated_connections::{UnauthenticatedLimit, UnauthenticatedSlot};

mod unauthenticated_connections;

/// Maximum number of concurrent connections.
const CONNECTIONS: usize = 64;

/// Polling interval of the listening socket.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs `drophammer move receive`.
///
/// # Errors
/// Fails if a disk was not received completely.
pub(crate) fn run_receive(options: &ReceiveOptions) -> Result<CommandOutcome> {
    let secret = super::load_secret(&options.common.signing)?;
    let ends = super::load_endpoints(&options.common, secret.as_ref())?;
    let waiting = TransferReceiver::from_options(options)?;
    let port = ListeningPort::open(&options.at)?;
    let signed = secret.map(|secret| sign_destination(options, &port.address, &secret)).transpose()?;
    output::print_text(&format!("listening at {}\n{}", port.address, signed.unwrap_or_default()))?;
    let say = |line: &str| output::print_text(&format!("{line}\n"));
    waiting.receive_all(&port, options.common.peer_timeout(), &say, || Ok(ends.clone()))?;
    super::destroy_key(&options.common);
    Ok(CommandOutcome::Good)
}

/// Returns a line with the address that the sender must use, and the signature of the address. `bound` is the address
/// of the listening socket.
fn sign_destination(options: &ReceiveOptions, bound: &str, secret: &SharedSecret) -> Result<String> {
    let refuse = |why: String| Error::refusal(Phase::Move, why);
    let bound: SocketAddr = bound
        .parse()
        .map_err(|_| Error::new(Phase::Move, format!("the listening socket has an invalid address: {bound}")))?;
    let address = match &options.announce {
        Some(host) if host.contains(':') => format!("[{}]:{}", host.trim_matches(['[', ']']), bound.port()),
        Some(host) => format!("{host}:{}", bound.port()),
        None if bound.ip().is_unspecified() => {
            return Err(refuse(format!(
                "the sender cannot connect to {bound}; specify this host's address for the sender with --announce HOST"
            )));
        }
        None => bound.to_string(),
    };
    let named = move_options::name_disks(&options.disks).map_err(refuse)?;
    let disks: Vec<String> = named.into_iter().map(|(name, _)| name).collect();
    let magic = options.common.magic.as_ref().map_or("", |magic| magic.as_str());
    let signature = Destination { address: &address, disks: &disks, magic }.sign(secret)?;
    Ok(format!("destination for the sender: {address} --signature {signature}\n"))
}

/// Function that reports a line of progress.
type ReportLine<'a> = &'a dyn Fn(&str) -> Result<()>;

/// Receiver of one or several disks. All connections share its state.
pub(super) struct TransferReceiver {
    disks: Vec<ReceivedDisk>,
    terms: GanetiTerms,
    connections: AtomicUsize,
    strangers: UnauthenticatedLimit,
}

/// Outcome of a connection.
enum ConnectionOutcome {
    /// The client was not authenticated as the expected peer.
    Unauthenticated(String),
    Interrupted(String),
    Complete(String),
    /// Final failure of the transfer.
    Failed(Error),
}

impl TransferReceiver {
    /// Opens all destinations.
    fn from_options(options: &ReceiveOptions) -> Result<TransferReceiver> {
        let refuse = |why: String| Error::refusal(Phase::Move, why);
        if !options.overwrite {
            return Err(refuse("all contents of the disks will be replaced; confirm with --overwrite".to_owned()));
        }
        let named = move_options::name_disks(&options.disks).map_err(refuse)?;
        let magic = options.common.magic.clone();
        let word = magic.as_ref().map(|magic| magic.as_str().to_owned());
        let open = |(name, path): (String, &Path)| {
            let disk = ReceivedDisk::open_disk(
                name,
                (path.to_owned(), TransferDestination::open_destination),
                word.clone(),
                options.size,
                options.resume,
            )?;
            options.size.map_or(Ok(()), |size| disk.require_size(size)).map_err(|error| refuse(error.to_string()))?;
            Ok(disk)
        };
        let disks = named.into_iter().map(open).collect::<Result<_>>()?;
        let terms = GanetiTerms { magic, compression: options.common.compress, size_bytes: options.size };
        Ok(TransferReceiver::with_disks(disks, terms))
    }

    pub(super) fn with_disks(disks: Vec<ReceivedDisk>, terms: GanetiTerms) -> TransferReceiver {
        // The limit depends on the number of disks, because a sender simultaneously opens one connection per disk.
        let strangers = UnauthenticatedLimit::new(disks.len());
        TransferReceiver { disks, terms, connections: AtomicUsize::new(0), strangers }
    }

    /// Returns the number of bytes received for all disks together.
    pub(super) fn received_bytes(&self) -> u64 {
        self.disks.iter().map(ReceivedDisk::received_bytes).sum()
    }

    /// Receives until all disks are complete. `ends` is called repeatedly, and returns the local certificate, and the
    /// certificate of the peer that may connect now. If `ends` returns an error, the transfer ends with this error.
    pub(super) fn receive_all(
        &self,
        port: &ListeningPort,
        patience: Duration,
        say: ReportLine<'_>,
        ends: impl Fn() -> Result<TlsEndpoints>,
    ) -> Result<()> {
        let (tell, news) = mpsc::channel();
        thread::scope(|scope| {
            let serve = |tcp, place, ends: TlsEndpoints| {
                let tell = tell.clone();
                // Sending the outcome cannot fail, because the receiver of the channel outlives all connections.
                scope.spawn(move || drop(tell.send(self.serve_connection(tcp, place, &ends))));
            };
            let ended = self.accept_until_complete(port, patience, &news, say, ends, serve);
            // Authenticated connections may still exchange final frames. Unauthenticated ones are closed.
            self.strangers.close_all();
            if ended.is_err() {
                self.disks.iter().for_each(ReceivedDisk::fail_transfer);
            }
            ended
        })
    }

    fn accept_until_complete<'w>(
        &'w self,
        port: &ListeningPort,
        patience: Duration,
        news: &Receiver<ConnectionOutcome>,
        say: ReportLine<'_>,
        ends: impl Fn() -> Result<TlsEndpoints>,
        serve: impl Fn(TcpStream, UnauthenticatedSlot<'w>, TlsEndpoints),
    ) -> Result<()> {
        let (mut heard, mut whole) = (Instant::now(), 0);
        loop {
            let ends = ends()?;
            while let Ok(news) = news.try_recv() {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                match news {
                    ConnectionOutcome::Unauthenticated(why) => tracing::warn!("connection rejected: {why}"),
                    ConnectionOutcome::Interrupted(why) => {
                        heard = Instant::now();
                        tracing::warn!("{why}; waiting for another connection");
                    }
                    ConnectionOutcome::Complete(name) => {
                        heard = Instant::now();
                        whole += 1;
                        say(&format!("{name}: complete"))?;
                    }
                    ConnectionOutcome::Failed(error) => return Err(error),
                }
            }
            if whole >= self.disks.len() && receive_state::close_if_complete(&self.disks, ends.peer_certificate()) {
                return Ok(());
            }
            let connections = self.connections.load(Ordering::Relaxed);
            match port.accept_next()? {
                Some(tcp) if connections < CONNECTIONS => {
                    // If no slot is free for the client, its connection is closed, and the client may retry.
                    if let Some(place) = self.strangers.slot_for(&tcp) {
                        self.connections.fetch_add(1, Ordering::Relaxed);
                        serve(tcp, place, ends);
                    }
                }
                Some(too_many) => drop(too_many),
                None if connections == 0 && heard.elapsed() > patience => {
                    let why = format!("no connection from the sender for {seconds} s", seconds = patience.as_secs());
                    return Err(Error::new(Phase::Move, why));
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn serve_connection(
        &self,
        tcp: TcpStream,
        place: UnauthenticatedSlot<'_>,
        ends: &TlsEndpoints,
    ) -> ConnectionOutcome {
        let peer = tcp.peer_addr().map_or_else(|_| "unknown client".to_owned(), |address| address.to_string());
        let mut link = match TlsLink::accept(tcp, ends) {
            Ok(link) => link,
            Err(error) => return ConnectionOutcome::Unauthenticated(format!("{peer}: {error}")),
        };
        drop(place);
        if !link.is_own() {
            return self.receive_from_ganeti(&mut link, ends);
        }
        let what = || format!("receive from {peer}");
        match receive_disk(&mut link, &self.disks, ends.peer_certificate()) {
            Ok(name) => ConnectionOutcome::Complete(name),
            Err(ConnectionEnd::Interrupted(error)) => ConnectionOutcome::Interrupted(format!("{}: {error}", what())),
            Err(ConnectionEnd::Refused(why)) => {
                ConnectionOutcome::Failed(Error::refusal(Phase::Move, format!("{}: {why}", what())))
            }
            Err(ConnectionEnd::Failed(why)) => {
                ConnectionOutcome::Failed(Error::new(Phase::Move, format!("{}: {why}", what())))
            }
        }
    }

    /// Receives a disk from Ganeti's import-export. The first failure is final, because that program cannot resume.
    fn receive_from_ganeti(&self, link: &mut TlsLink, ends: &TlsEndpoints) -> ConnectionOutcome {
        let [disk] = &self.disks[..] else {
            return ConnectionOutcome::Failed(Error::refusal(
                Phase::Move,
                "the sender is Ganeti's import-export, which sends only one disk; specify a single disk",
            ));
        };
        let taken = disk
            .receive_at_once(ends.peer_certificate(), |onto| ganeti_protocol::receive_disk(link, onto, &self.terms));
        match taken.context(Phase::Move, || format!("receive from {}", link.peer)) {
            Ok(_) => {
                // An error is ignored, because the disk is complete even if the peer has already disconnected.
                let _ = link.send_close_notify();
                ConnectionOutcome::Complete(disk.name.clone())
            }
            Err(error) => ConnectionOutcome::Failed(error),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
