//! `drophammer move receive`: listens, and receives until all disks are complete.

use super::ganeti::{self, Terms};
use super::link::{Link, Port};
use super::onto::Onto;
use super::options::{self, Receive};
use super::own::Stop;
use super::own::awaited::{self, Disk};
use super::own::receive::receive;
use super::tls::Ends;
use crate::error::{Context, Error, Phase, Result};
use crate::exit::Exit;
use crate::stdout;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};
use strangers::{Place, Strangers};

mod strangers;

/// Limit of concurrent connections.
const CONNECTIONS: usize = 64;

/// Polling interval of the listening socket.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs `drophammer move receive`.
///
/// # Errors
/// Fails if a disk was not received completely.
pub fn run(options: &Receive) -> Result<Exit> {
    let ends = super::ends(&options.common)?;
    let waiting = Waiting::begin(options)?;
    let port = Port::open(&options.at)?;
    stdout::print(&format!("listening at {}\n", port.address))?;
    let say = |line: &str| stdout::print(&format!("{line}\n"));
    waiting.until_whole(&port, options.common.patience(), &say, || Ok(ends.clone()))?;
    Ok(Exit::Good)
}

/// Function that reports progress.
type Say<'a> = &'a dyn Fn(&str) -> Result<()>;

/// State that all connections share.
pub(super) struct Waiting {
    disks: Vec<Disk>,
    terms: Terms,
    connections: AtomicUsize,
    strangers: Strangers,
}

/// Outcome of a connection.
enum News {
    /// The client was not the expected peer.
    Stranger(String),
    Cut(String),
    Whole(String),
    /// Final failure of the transfer.
    Over(Error),
}

impl Waiting {
    /// Opens all destinations.
    fn begin(options: &Receive) -> Result<Waiting> {
        let refuse = |why: String| Error::refusal(Phase::Move, why);
        if !options.overwrite {
            return Err(refuse("all contents of the disks will be replaced; confirm with --overwrite".to_owned()));
        }
        let named = options::named(&options.disks).map_err(refuse)?;
        let magic = options.common.magic.clone();
        let word = magic.as_ref().map(|magic| magic.as_str().to_owned());
        let open = |(name, path): (String, &Path)| {
            let disk = Disk::open(name, (path.to_owned(), Onto::open), word.clone(), options.size, options.resume)?;
            options.size.map_or(Ok(()), |size| disk.has_room(size)).map_err(|error| refuse(error.to_string()))?;
            Ok(disk)
        };
        let disks = named.into_iter().map(open).collect::<Result<_>>()?;
        let terms = Terms { magic, compression: options.common.compress, size_bytes: options.size };
        Ok(Waiting::of(disks, terms))
    }

    pub(super) fn of(disks: Vec<Disk>, terms: Terms) -> Waiting {
        // A sender transfers all disks concurrently.
        let strangers = Strangers::new(disks.len());
        Waiting { disks, terms, connections: AtomicUsize::new(0), strangers }
    }

    /// Returns the number of bytes received, over all disks.
    pub(super) fn bytes(&self) -> u64 {
        self.disks.iter().map(Disk::placed_bytes).sum()
    }

    /// Receives until all disks are complete. `ends` returns the expected certificates. It is called repeatedly, and its error ends the
    /// transfer.
    pub(super) fn until_whole(
        &self,
        port: &Port,
        patience: Duration,
        say: Say<'_>,
        ends: impl Fn() -> Result<Ends>,
    ) -> Result<()> {
        let (tell, news) = mpsc::channel();
        thread::scope(|scope| {
            let serve = |tcp, place, ends: Ends| {
                let tell = tell.clone();
                // Cannot fail: the receiver outlives all connections.
                scope.spawn(move || drop(tell.send(self.serve(tcp, place, &ends))));
            };
            let ended = self.watch(port, patience, &news, say, ends, serve);
            // Authenticated connections may still exchange final frames. Unauthenticated ones are closed.
            self.strangers.cut();
            if ended.is_err() {
                self.disks.iter().for_each(Disk::cut);
            }
            ended
        })
    }

    fn watch<'w>(
        &'w self,
        port: &Port,
        patience: Duration,
        news: &Receiver<News>,
        say: Say<'_>,
        ends: impl Fn() -> Result<Ends>,
        serve: impl Fn(TcpStream, Place<'w>, Ends),
    ) -> Result<()> {
        let (mut heard, mut whole) = (Instant::now(), 0);
        loop {
            let ends = ends()?;
            while let Ok(news) = news.try_recv() {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                match news {
                    News::Stranger(why) => tracing::warn!("connection rejected: {why}"),
                    News::Cut(why) => {
                        heard = Instant::now();
                        tracing::warn!("{why}; waiting for another connection");
                    }
                    News::Whole(name) => {
                        heard = Instant::now();
                        whole += 1;
                        say(&format!("{name}: complete"))?;
                    }
                    News::Over(error) => return Err(error),
                }
            }
            if whole >= self.disks.len() && awaited::close_if_whole(&self.disks, ends.peer()) {
                return Ok(());
            }
            let connections = self.connections.load(Ordering::Relaxed);
            match port.next()? {
                Some(tcp) if connections < CONNECTIONS => {
                    // A client that is rejected here may retry.
                    if let Some(place) = self.strangers.place_for(&tcp) {
                        self.connections.fetch_add(1, Ordering::Relaxed);
                        serve(tcp, place, ends);
                    }
                }
                Some(too_many) => drop(too_many),
                None if connections == 0 && heard.elapsed() > patience => {
                    let why = format!("no connection from the sender for {} s", patience.as_secs());
                    return Err(Error::new(Phase::Move, why));
                }
                None => thread::sleep(PAUSE),
            }
        }
    }

    fn serve(&self, tcp: TcpStream, place: Place<'_>, ends: &Ends) -> News {
        let peer = tcp.peer_addr().map_or_else(|_| "unknown client".to_owned(), |address| address.to_string());
        let mut link = match Link::accept(tcp, ends) {
            Ok(link) => link,
            Err(error) => return News::Stranger(format!("{peer}: {error}")),
        };
        drop(place);
        if !link.is_own() {
            return self.take_from_ganeti(&mut link, ends);
        }
        let what = || format!("receive from {peer}");
        match receive(&mut link, &self.disks, ends.peer()) {
            Ok(name) => News::Whole(name),
            Err(Stop::Again(error)) => News::Cut(format!("{}: {error}", what())),
            Err(Stop::Refused(why)) => News::Over(Error::refusal(Phase::Move, format!("{}: {why}", what()))),
            Err(Stop::Failed(why)) => News::Over(Error::new(Phase::Move, format!("{}: {why}", what()))),
        }
    }

    /// Receives from Ganeti's import-export, which cannot resume, so the first failure is final.
    fn take_from_ganeti(&self, link: &mut Link, ends: &Ends) -> News {
        let [disk] = &self.disks[..] else {
            return News::Over(Error::refusal(
                Phase::Move,
                "Ganeti's import-export sends one disk, but several are expected",
            ));
        };
        let taken = disk.take_alone(ends.peer(), |onto| ganeti::receive(link, onto, &self.terms));
        match taken.context(Phase::Move, || format!("receive from {}", link.peer)) {
            Ok(_) => {
                // The disk is complete, even if the peer has already disconnected.
                let _ = link.close();
                News::Whole(disk.name.clone())
            }
            Err(error) => News::Over(error),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
