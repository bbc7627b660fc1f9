//! A machine that becomes another one, in the words of its two agents: what was on the devices of its layout comes over the wire of
//! `drophammer move`. Each agent makes its key at its boot, and the key never leaves its memory.

use super::certificate::{Certificate, Secret};
use super::ganeti::{Compression, Terms};
use super::key::{self, Pair};
use super::link::Port;
use super::onto::Onto;
use super::own::awaited::Disk;
use super::receiving::Waiting;
use super::sending::{self, Way};
use super::source::Source;
use super::tls::Ends;
use crate::carried::{self, Carried, Peer};
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// Where a ramdisk has the secret of both machines, if it has one. One line.
pub const SECRET_FILE: &str = "/etc/drophammer/move-secret";

/// A copy that was cut after days goes on.
const HOURS: u32 = 24 * 7;

/// Nobody has set the clocks of these machines: they are in local time, or hours off.
const EARLIER: time::Duration = time::Duration::days(1);

/// So long the sender looks for the other end, before it asks the control plane where that is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A control plane that has no word about the move is heard so long, before that is taken for its end.
const SILENCE: Duration = Duration::from_secs(10 * 60);

/// How long the control plane has had no word about the move.
#[derive(Debug, Default)]
pub struct Silence(Option<Instant>);

/// What there is to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// It has just begun: people are told.
    Begins,
    Lasts,
    /// It has lasted too long.
    Ends,
}

impl Silence {
    /// It had no word again.
    pub fn heard(&mut self) -> Silent {
        self.heard_at(Instant::now())
    }

    fn heard_at(&mut self, now: Instant) -> Silent {
        match self.0 {
            Some(began) if now.saturating_duration_since(began) >= SILENCE => Silent::Ends,
            Some(_) => Silent::Lasts,
            None => {
                self.0 = Some(now);
                Silent::Begins
            }
        }
    }

    /// It had one, or did not answer at all.
    pub fn is_broken(&mut self) {
        self.0 = None;
    }
}

/// The key and the certificate of this boot.
pub struct Own {
    pair: Pair,
    certificate: Certificate,
    secret: Option<Secret>,
}

impl Own {
    /// # Errors
    /// There are no random numbers, or there is a file for the secret and no secret in it.
    pub fn make(secret_file: &Path) -> Result<Own> {
        let secret = secret_file.exists().then(|| super::secret(secret_file)).transpose()?;
        let pair = key::make(EARLIER, HOURS, secret.as_ref())?;
        let certificate = Certificate::read(&pair.certificate).map_err(|why| Error::new(Phase::Move, why))?;
        Ok(Own { pair, certificate, secret })
    }

    /// For the other end.
    pub fn certificate(&self) -> &str {
        &self.pair.certificate
    }

    /// Returns what vouches for the peer, and the fingerprint of this machine, for its console.
    pub fn trust(&self) -> String {
        let own = self.fingerprint();
        match self.secret {
            Some(_) => format!(
                "both certificates are signed with the secret of the ramdisks, which the control plane does not know.\nCertificate of this machine:\n  {own}"
            ),
            None => format!(
                "without a secret in the ramdisks (/etc/drophammer/move-secret) the operator approves both certificates.\nCertificate of this machine:\n  {own}"
            ),
        }
    }

    /// Fingerprint of the certificate of this boot.
    pub fn fingerprint(&self) -> String {
        carried::fingerprint(&self.pair.certificate).unwrap_or_default()
    }

    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns whether the peer may be trusted once its certificate is good: by the secret, or by the operator's approval.
    pub fn may_trust(&self, peer: &Peer) -> bool {
        self.has_secret() || peer.approved
    }

    /// Looks at the other end's certificate, before anything is erased for it.
    ///
    /// # Errors
    /// A refusal: it is not good now, or not signed as it must be.
    pub fn check(&self, peer: &Peer) -> Result<()> {
        self.ends(peer).map(drop)
    }

    fn ends(&self, peer: &Peer) -> Result<Ends> {
        self.ends_at(peer, OffsetDateTime::now_utc().unix_timestamp())
    }

    fn ends_at(&self, peer: &Peer, now: i64) -> Result<Ends> {
        let refuse = |why: String| {
            let hint = "compare the clocks of both machines, and the secrets of their ramdisks";
            Error::refusal(Phase::Move, format!("the other machine's certificate: {why}; {hint}"))
        };
        if !self.may_trust(peer) {
            return Err(Error::new(Phase::Move, "the other machine's certificate is not approved by the operator"));
        }
        let peer = super::good(&peer.certificate, self.secret.as_ref(), now).map_err(refuse)?;
        Ends::new(&self.pair.key, &self.certificate, peer).map_err(|why| Error::new(Phase::Move, why))
    }
}

/// One device of the layout, at this end.
pub struct Device {
    /// What both ends call it.
    pub name: String,
    pub path: DevicePath,
}

/// Sends devices that are only read. Each group has disks of its own: groups go side by side, and the devices of one after each other,
/// since a disk that is read at two places at once is slow.
///
/// `fails` hears at once what is wrong with one, while the others go on.
///
/// # Errors
/// A device is not whole at the other end.
pub fn send(
    own: &Own,
    peer: &Peer,
    order: &str,
    groups: &[Vec<Device>],
    say: &(dyn Fn(&str) + Sync),
    fails: &(dyn Fn(&Error) + Sync),
) -> Result<()> {
    let ends = own.ends(peer)?;
    let way = Way { to: &peer.address, ends: &ends, terms: terms(order)?, patience: PATIENCE, run: None };
    let group = |devices: &[Device]| {
        let ended = devices.iter().try_for_each(|Device { name, path }| {
            let source = Source::open(path.as_ref(), false)?;
            let figures = sending::one(name, &source, &way, usize::MAX)?;
            figures.lines().lines().for_each(say);
            Ok(())
        });
        ended.inspect_err(fails)
    };
    thread::scope(|scope| {
        let running: Vec<_> = groups.iter().map(|devices| scope.spawn(|| group(devices))).collect();
        let panicked = |_| Err(Error::new(Phase::Move, "a thread has panicked"));
        let ended: Vec<Result<()>> =
            running.into_iter().map(|running| running.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect()
    })
}

fn terms(order: &str) -> Result<Terms> {
    let magic = order.parse().map_err(|why| Error::new(Phase::Move, format!("the order's id {order:?}: {why}")))?;
    Ok(Terms { magic: Some(magic), compression: Compression::None, size_bytes: None })
}

/// The receiving end, which listens from before the plan on.
pub struct Incoming {
    own: Own,
    port: Port,
    /// What the plan was made for.
    planned: Option<Carried>,
    news: Mutex<News>,
}

/// The last that the control plane has said.
#[derive(Default)]
struct News {
    peer: Option<(Peer, Ends)>,
    over: Option<String>,
}

/// A partition table of the machine is the plan's; one inside of a device is content.
fn unfitted(path: &Path) -> Result<Onto> {
    Ok(Onto::open(path)?.unfitted())
}

impl Incoming {
    /// # Errors
    /// There is no port left.
    pub fn open(own: Own, planned: Option<Carried>) -> Result<Incoming> {
        // The first takes IPv4 too, where the kernel has IPv6 at all.
        let port = Port::open("[::]:0").or_else(|_| Port::open("0.0.0.0:0"))?;
        Ok(Incoming { own, port, planned, news: Mutex::default() })
    }

    pub fn own(&self) -> &Own {
        &self.own
    }

    pub fn port(&self) -> Option<u16> {
        self.port.address.rsplit(':').next()?.parse().ok()
    }

    /// Sets the machine that may connect from now on. Ignores one whose certificate is neither approved nor signed with the secret.
    ///
    /// # Errors
    /// A refusal: the certificate is not valid, or not signed with the secret.
    pub fn hear(&self, peer: &Peer) -> Result<()> {
        if !self.own.may_trust(peer) {
            return Ok(());
        }
        let mut news = self.news();
        if news.peer.as_ref().is_some_and(|(known, _)| known.certificate == peer.certificate) {
            return Ok(());
        }
        news.peer = Some((peer.clone(), self.own.ends(peer)?));
        Ok(())
    }

    /// Returns whether a machine that sends is known and may connect.
    pub fn knows_sender(&self) -> bool {
        self.news().peer.is_some()
    }

    /// The other machine says, after each boot, what it has. Ids of it are in the plan.
    pub fn compare(&self, carried: &Carried) {
        if self.planned.as_ref().is_some_and(|planned| !planned.fits_as(carried)) {
            self.end(
                "the other machine has booted again, and its filesystems, arrays or partitions have other ids or sizes than this plan was made for: it has to be made anew",
            );
        }
    }

    /// Nothing more comes.
    pub fn end(&self, why: &str) {
        self.news().over = Some(why.to_owned());
    }

    #[cfg(test)]
    pub fn is_over(&self) -> bool {
        self.news().over.is_some()
    }

    /// Opens the devices. Nothing is written yet.
    ///
    /// # Errors
    /// A device is not there, or in use.
    pub fn begin(&self, order: &str, devices: Vec<Device>) -> Result<Arriving<'_>> {
        let open = |Device { name, path }: Device| {
            let path = AsRef::<Path>::as_ref(&path).to_owned();
            Disk::open(name, (path, unfitted), Some(order.to_owned()), None, false)
        };
        let disks = devices.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Arriving { incoming: self, waiting: Waiting::of(disks, terms(order)?) })
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine that may connect now, and what its connection is secured with.
    fn ends(&self) -> Result<(Peer, Ends)> {
        let news = self.news();
        match (&news.over, &news.peer) {
            (Some(why), _) => Err(Error::new(Phase::Move, why.clone())),
            (None, Some(known)) => Ok(known.clone()),
            (None, None) => Err(Error::new(Phase::Move, "the control plane names no machine that sends")),
        }
    }
}

/// Devices that are awaited.
pub struct Arriving<'i> {
    incoming: &'i Incoming,
    waiting: Waiting,
}

impl Arriving<'_> {
    /// How much of them is there.
    pub fn bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// Waits until all is there. Returns the machine that has brought all of it; its certificate tells in which boot.
    ///
    /// # Errors
    /// A device is not whole, and will not be: it cannot be written, or the control plane has ended the move.
    pub fn until_whole(&self, say: &dyn Fn(&str)) -> Result<Peer> {
        let say = |line: &str| {
            say(line);
            Ok(())
        };
        // Nothing is whole but what the one has brought that was asked for last.
        let from = RefCell::new(Peer { certificate: String::new(), address: String::new(), approved: false });
        self.waiting.until_whole(&self.incoming.port, Duration::MAX, &say, || {
            let (peer, ends) = self.incoming.ends()?;
            *from.borrow_mut() = peer;
            Ok(ends)
        })?;
        Ok(from.into_inner())
    }
}

#[cfg(test)]
mod tests;
