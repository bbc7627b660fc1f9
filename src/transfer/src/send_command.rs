//! `drophammer move send`: sends each disk over a separate connection, and reconnects until the peer has received the
//! disk completely.

use super::destination_address::Destination;
use super::ganeti_protocol::{self, GanetiTerms};
use super::move_options::{self, CommonOptions, SendOptions};
use super::protocol::send::{SendResult, SentBytes, send_disk};
use super::protocol::{ConnectionEnd, SenderRun, TransferHello};
use super::shared_secret::SharedSecret;
use super::source_disk::TransferSource;
use super::tls::TlsEndpoints;
use super::tls_connection::TlsLink;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Error, Phase, Result};
use common::{format, output};
use model::install_report::ImageTransferFigures;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Minimum duration of a connection that counts as progress, and therefore resets the retry timeout. A shorter
/// connection counts as a failed attempt.
const PROGRESS: Duration = Duration::from_secs(5);

/// Runs `drophammer move send`.
///
/// # Errors
/// Fails if a disk was not transferred completely.
pub(crate) fn run_send(options: &SendOptions) -> Result<CommandOutcome> {
    let secret = super::load_secret(&options.common.signing)?;
    let ends = super::load_endpoints(&options.common, secret.as_ref())?;
    let named = move_options::name_disks(&options.disks).map_err(|why| Error::refusal(Phase::Move, why))?;
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    check_destination(options, &names, secret.as_ref()).map_err(|why| Error::refusal(Phase::Move, why))?;
    let open = |(name, path)| TransferSource::open_source(path, options.whole).map(|source| (name, source));
    let disks: Vec<(String, TransferSource)> = named.into_iter().map(open).collect::<Result<_>>()?;
    let CommonOptions { magic, compress, .. } = &options.common;
    let terms = GanetiTerms { magic: magic.clone(), compression: *compress, size_bytes: None };
    let run = SenderRun { id: Uuid::new_v4(), disks: names };
    let way =
        TransferTarget { to: &options.to, ends: &ends, terms, patience: options.common.peer_timeout(), run: Some(run) };
    let figures: Vec<Result<TransferFigures>> = thread::scope(|scope| {
        let (way, count) = (&way, disks.len());
        let start = |(name, source)| scope.spawn(move || send_one_disk(name, source, way, count));
        let running: Vec<_> = disks.iter().map(|(name, source)| (name.as_str(), source)).map(start).collect();
        let panicked = |_| Err(Error::new(Phase::Move, "a thread has panicked"));
        running.into_iter().map(|running| running.join().unwrap_or_else(panicked)).collect()
    });
    let figures: Vec<TransferFigures> = figures.into_iter().collect::<Result<_>>()?;
    super::destroy_key(&options.common);
    let lines = || figures.iter().map(TransferFigures::format_lines).collect::<String>();
    output::print_text(&if options.json { output::to_json(&figures)? + "\n" } else { lines() })?;
    Ok(CommandOutcome::Good)
}

/// Verifies the signature of the receiver's address, unless signatures are disabled.
fn check_destination(options: &SendOptions, disks: &[String], secret: Option<&SharedSecret>) -> Result<(), String> {
    let SendOptions { to, signature, unsigned_address, .. } = options;
    let magic = options.common.magic.as_ref().map_or("", |magic| magic.as_str());
    match (secret, signature) {
        (Some(secret), Some(signature)) => Destination { address: to, disks, magic }.verify(secret, signature),
        (Some(_), None) if !unsigned_address => Err(format!(
            "address {to} must be signed, so that it cannot be replaced; specify --signature as the receiver has printed it, or \
             --unsigned-address"
        )),
        _ => Ok(()),
    }
}

/// Destination and parameters of a transfer.
pub(super) struct TransferTarget<'w> {
    /// Address of the receiver, `HOST:PORT`.
    pub to: &'w str,
    pub ends: &'w TlsEndpoints,
    pub terms: GanetiTerms,
    /// Timeout for connecting to the peer, and for attempts without progress.
    pub patience: Duration,
    pub run: Option<SenderRun>,
}

/// Sends a disk, and reconnects after interruptions. `of` is the total number of disks to send.
pub(super) fn send_one_disk(
    name: &str,
    source: &TransferSource,
    way: &TransferTarget<'_>,
    of: usize,
) -> Result<TransferFigures> {
    let TransferTarget { to, ends, terms, patience, .. } = way;
    let what = || format!("send {} to {to}", source.path.display());
    let mut link = TlsLink::connect(to, ends, *patience)?;
    if !link.is_own() {
        if of > 1 {
            let why = "the peer is Ganeti's import-export, which receives only one disk; specify a single disk";
            return Err(Error::refusal(Phase::Move, why));
        }
        let began = Instant::now();
        let sent = source
            .open_stream()
            .and_then(|stream| ganeti_protocol::send_disk(&mut link, stream, terms))
            .context(Phase::Move, what)?;
        return Ok(TransferFigures::from_ganeti(name, sent, began.elapsed()));
    }
    let hello = describe_disk(name, source, way);
    let (mut resumed, mut fruitless) = (0, None);
    loop {
        let began = Instant::now();
        let stopped = match send_disk(&mut link, source, &hello) {
            Ok(sent) => return Ok(TransferFigures::from_protocol(name, source, sent, resumed)),
            Err(stopped) => stopped,
        };
        let error = match stopped {
            ConnectionEnd::Interrupted(error) => error,
            ConnectionEnd::Refused(why) => return Err(Error::refusal(Phase::Move, format!("{}: {why}", what()))),
            ConnectionEnd::Failed(why) => return Err(Error::new(Phase::Move, format!("{}: {why}", what()))),
        };
        let since = if began.elapsed() > PROGRESS { began } else { *fruitless.get_or_insert(began) };
        fruitless = (began.elapsed() <= PROGRESS).then_some(since);
        if since.elapsed() > (*patience).max(PROGRESS) && fruitless.is_some() {
            return Err(Error::with_source(Phase::Move, what(), error));
        }
        tracing::warn!("{name}: connection lost, resuming: {error}");
        resumed += 1;
        link = TlsLink::connect(to, ends, *patience)?;
    }
}

fn describe_disk(name: &str, source: &TransferSource, way: &TransferTarget<'_>) -> TransferHello {
    TransferHello {
        name: name.to_owned(),
        magic: way.terms.magic.as_ref().map(|magic| magic.as_str().to_owned()),
        size_bytes: source.size_bytes,
        sector_bytes: source.sector_bytes,
        has_table: source.has_table(),
        run: way.run.clone(),
    }
}

/// Statistics of the transfer of one disk.
#[derive(Debug, Serialize)]
pub(super) struct TransferFigures {
    disk: String,
    /// Description of the disk's contents.
    what: String,
    /// Statistics of the last connection: bytes on the wire, and the load of each stage.
    sent: ImageTransferFigures,
    resumed: u32,
    bytes: u64,
    zero_bytes: u64,
    unused_bytes: u64,
    /// Number of bytes that the peer already had.
    same_bytes: u64,
    /// Digest that the peer has acknowledged; `None` for Ganeti's import-export, which does not acknowledge data.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<String>,
}

impl TransferFigures {
    fn from_ganeti(disk: &str, bytes: u64, elapsed: Duration) -> TransferFigures {
        let sent = ImageTransferFigures { bytes, seconds: elapsed.as_secs_f64(), shares: Vec::new() };
        let (disk, what) = (disk.to_owned(), "the whole disk".to_owned());
        TransferFigures {
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

    fn from_protocol(disk: &str, source: &TransferSource, sent: SendResult, resumed: u32) -> TransferFigures {
        let SendResult { figures, sent_bytes: SentBytes { sent: bytes, zero, unused, same }, digest } = sent;
        TransferFigures {
            disk: disk.to_owned(),
            what: source.describe_contents().to_owned(),
            sent: figures,
            resumed,
            bytes,
            zero_bytes: zero,
            unused_bytes: unused,
            same_bytes: same,
            acknowledged: Some(digest),
        }
    }

    pub(crate) fn format_lines(&self) -> String {
        let TransferFigures { disk, what, sent, resumed, bytes, zero_bytes, unused_bytes, same_bytes, acknowledged } =
            self;
        let [bytes, zero, unused, same] =
            [bytes, zero_bytes, unused_bytes, same_bytes].map(|bytes| format::format_bytes(*bytes));
        match acknowledged {
            None => format!("{disk}: {sent}; not acknowledged, since the peer is Ganeti's import-export\n"),
            Some(digest) => format!(
                "{disk}: {what}\n{disk}: {sent}\n{disk}: {bytes} sent, {zero} zero, {unused} unused, {same} already present; connection \
                 resumed {resumed} times\n{disk}: acknowledged sha256:{digest}\n"
            ),
        }
    }
}
