//! `drophammer move send`: sends each disk over a connection of its own, until the peer has it completely.

use super::ganeti::{self, Terms};
use super::link::Link;
use super::options::{self, Common, Send};
use super::own::send::{Carried, Sent, send};
use super::own::{Hello, Run, Stop};
use super::source::Source;
use super::tls::Ends;
use crate::error::{Context, Error, Phase, Result};
use crate::exit::Exit;
use crate::facts::BurnFigures;
use crate::stdout;
use crate::text;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Minimum duration of a successful connection. Shorter ones do not reset the retry timeout.
const PROGRESS: Duration = Duration::from_secs(5);

/// Runs `drophammer move send`.
///
/// # Errors
/// Fails if a disk was not transferred completely.
pub fn run(options: &Send) -> Result<Exit> {
    let ends = super::ends(&options.common)?;
    let named = options::named(&options.disks).map_err(|why| Error::refusal(Phase::Move, why))?;
    let open = |(name, path)| Source::open(path, options.whole).map(|source| (name, source));
    let disks: Vec<(String, Source)> = named.into_iter().map(open).collect::<Result<_>>()?;
    let Common { magic, compress, .. } = &options.common;
    let terms = Terms { magic: magic.clone(), compression: *compress, size_bytes: None };
    let run = Run { id: Uuid::new_v4(), disks: disks.iter().map(|(name, _)| name.clone()).collect() };
    let way = Way { to: &options.to, ends: &ends, terms, patience: options.common.patience(), run: Some(run) };
    let figures: Vec<Result<Figures>> = thread::scope(|scope| {
        let (way, count) = (&way, disks.len());
        let start = |(name, source)| scope.spawn(move || one(name, source, way, count));
        let running: Vec<_> = disks.iter().map(|(name, source)| (name.as_str(), source)).map(start).collect();
        let panicked = |_| Err(Error::new(Phase::Move, "a thread has panicked"));
        running.into_iter().map(|running| running.join().unwrap_or_else(panicked)).collect()
    });
    let figures: Vec<Figures> = figures.into_iter().collect::<Result<_>>()?;
    let lines = || figures.iter().map(Figures::lines).collect::<String>();
    stdout::print(&if options.json { stdout::json(&figures)? + "\n" } else { lines() })?;
    Ok(Exit::Good)
}

/// Destination and parameters of a transfer.
pub(super) struct Way<'w> {
    /// `HOST:PORT`.
    pub to: &'w str,
    pub ends: &'w Ends,
    pub terms: Terms,
    /// Timeout for reaching the peer.
    pub patience: Duration,
    pub run: Option<Run>,
}

/// Sends one of `of` disks, reconnecting as often as necessary.
pub(super) fn one(name: &str, source: &Source, way: &Way<'_>, of: usize) -> Result<Figures> {
    let Way { to, ends, terms, patience, run } = way;
    let what = || format!("send {} to {to}", source.path.display());
    let mut link = Link::connect(to, ends, *patience)?;
    if !link.is_own() {
        if of > 1 {
            return Err(Error::refusal(Phase::Move, "Ganeti's import-export receives only one disk"));
        }
        let began = Instant::now();
        let sent =
            source.stream().and_then(|stream| ganeti::send(&mut link, stream, terms)).context(Phase::Move, what)?;
        return Ok(Figures::of_ganeti(name, sent, began.elapsed()));
    }
    let hello = Hello {
        name: name.to_owned(),
        magic: terms.magic.as_ref().map(|magic| magic.as_str().to_owned()),
        size_bytes: source.size_bytes,
        sector_bytes: source.sector_bytes,
        has_table: source.has_table(),
        run: run.clone(),
    };
    let (mut resumed, mut fruitless) = (0, None);
    loop {
        let began = Instant::now();
        let stopped = match send(&mut link, source, &hello) {
            Ok(sent) => return Ok(Figures::of_own(name, source, sent, resumed)),
            Err(stopped) => stopped,
        };
        let error = match stopped {
            Stop::Again(error) => error,
            Stop::Refused(why) => return Err(Error::refusal(Phase::Move, format!("{}: {why}", what()))),
            Stop::Failed(why) => return Err(Error::new(Phase::Move, format!("{}: {why}", what()))),
        };
        let since = if began.elapsed() > PROGRESS { began } else { *fruitless.get_or_insert(began) };
        fruitless = (began.elapsed() <= PROGRESS).then_some(since);
        if since.elapsed() > (*patience).max(PROGRESS) && fruitless.is_some() {
            return Err(Error::with_source(Phase::Move, what(), error));
        }
        tracing::warn!("{name}: connection lost, resuming: {error}");
        resumed += 1;
        link = Link::connect(to, ends, *patience)?;
    }
}

/// Statistics of the transfer of one disk.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    disk: String,
    /// Description of its contents.
    what: String,
    /// Statistics of the last connection: bytes on the wire, and the load of each stage.
    sent: BurnFigures,
    resumed: u32,
    bytes: u64,
    zero_bytes: u64,
    unused_bytes: u64,
    /// Bytes that the peer had already.
    same_bytes: u64,
    /// Digest that the peer acknowledged. Ganeti's import-export acknowledges nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<String>,
}

impl Figures {
    fn of_ganeti(disk: &str, bytes: u64, elapsed: Duration) -> Figures {
        let sent = BurnFigures { bytes, seconds: elapsed.as_secs_f64(), shares: Vec::new() };
        let (disk, what) = (disk.to_owned(), "all of it".to_owned());
        Figures {
            disk,
            what,
            sent,
            resumed: 0,
            bytes,
            zero_bytes: 0,
            unused_bytes: 0,
            same_bytes: 0,
            acknowledged: None,
        }
    }

    fn of_own(disk: &str, source: &Source, sent: Sent, resumed: u32) -> Figures {
        let Sent { figures, carried: Carried { sent: bytes, zero, unused, same }, digest } = sent;
        Figures {
            disk: disk.to_owned(),
            what: source.what().to_owned(),
            sent: figures,
            resumed,
            bytes,
            zero_bytes: zero,
            unused_bytes: unused,
            same_bytes: same,
            acknowledged: Some(digest),
        }
    }

    pub fn lines(&self) -> String {
        let Figures { disk, what, sent, resumed, bytes, zero_bytes, unused_bytes, same_bytes, acknowledged } = self;
        let [bytes, zero, unused, same] =
            [bytes, zero_bytes, unused_bytes, same_bytes].map(|bytes| text::bytes(*bytes));
        match acknowledged {
            None => format!("{disk}: {sent}; not acknowledged, since the peer is Ganeti's import-export\n"),
            Some(digest) => format!(
                "{disk}: {what}\n{disk}: {sent}\n{disk}: {bytes} sent, {zero} zero, {unused} unused, {same} already present; connection \
                 resumed {resumed} times\n{disk}: acknowledged sha256:{digest}\n"
            ),
        }
    }
}
